"""Whether this run searches for new failures (`make explore`, soaks) or repeats known examples (`make test`).

`make test` gives the same answer twice: Hypothesis draws its examples from a fixed seed, and random loads use the seed
that stands in the test. With `ANABRANCH_EXPLORE=1` both are drawn anew in every run.
"""

from __future__ import annotations

import os
import secrets

VARIABLE = "ANABRANCH_EXPLORE"


def is_exploring() -> bool:
    return os.environ.get(VARIABLE, "") not in ("", "0")


def seed(fixed: int) -> int:
    """`fixed`, or a new one when exploring. The test prints it, so that a failure can be repeated."""
    return secrets.randbelow(1 << 32) if is_exploring() else fixed
