"""A broker that was replaced joins again by itself: the same process starts over.

Starting over is an `exec` of the same command. It ends every connection, lock and thread of the old life at once
(whoever took over has everything, nothing of it may be written any more, and no store that is away can delay it), and
keeps the process id and the standard streams: whoever watches the process sees one. Knows nothing of brokers.

Lives that were short are counted in the environment; the next one begins after a pause that grows with them.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

from anabranch.node.supervisor import SETTLED_SECONDS

SHORT_RUNS = "ANABRANCH_SHORT_LIVES"
COUNTED_MAX = 1000


def short_run_count(environ: Mapping[str, str]) -> int | None:
    """How many lives in a row ended soon, 0 after one that did not; None in a first life."""
    text = environ.get(SHORT_RUNS, "")
    return min(int(text), COUNTED_MAX) if text.isdecimal() else None


def counted(before: int | None, lived_s: float) -> int:
    """The count for the next life, after one of `lived_s` seconds of service (0: it never served)."""
    return 0 if lived_s >= SETTLED_SECONDS else min((before or 0) + 1, COUNTED_MAX)


def same_command(executable: str, words: Sequence[str]) -> list[str]:
    """`words` as this process was started with, interpreter first; which file that was is known better now."""
    return [executable, *words[1:]]


def restart_process(short: int) -> NoReturn:
    logging.shutdown()
    sys.stdout.flush()
    os.environ[SHORT_RUNS] = str(short)
    os.execv(sys.executable, same_command(sys.executable, sys.orig_argv))
