"""Importing the package, and its client, is quick and loads no more than it must."""

from __future__ import annotations

import subprocess
import sys

BUDGET_SECONDS = 0.15
LAZY = ("cramjam", "avro", "fastavro", "pydantic", "h11", "anabranch.broker", "anabranch.rest", "pyarrow", "numpy")

MEASURE = """
import sys, time
began = time.process_time()
import anabranch
{more}
print(time.process_time() - began)
print([name for name in {lazy} if name in sys.modules])
"""


def best_of(runs: int, more: str) -> tuple[float, str]:
    """CPU seconds of the quickest run, so that a busy machine does not count; and what was loaded that need not be."""
    times, loaded = [], ""
    for _ in range(runs):
        script = MEASURE.format(more=more, lazy=LAZY)
        ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
        seconds, loaded = ran.stdout.splitlines()
        times.append(float(seconds))
    return min(times), loaded


def test_importing_the_package_is_quick() -> None:
    seconds, loaded = best_of(3, "")
    assert seconds <= BUDGET_SECONDS
    assert loaded == "[]"


def test_the_client_loads_what_it_needs_and_nothing_else() -> None:
    _, loaded = best_of(1, "anabranch.connect")
    assert loaded == "[]"
