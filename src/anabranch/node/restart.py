"""Restart of a broker process that was replaced by another broker, so that it joins the cluster again.

The restart is an `exec` of the same command. It ends all connections, locks and threads at once: the process may write
nothing any more, and an unavailable store cannot delay it. Process id and standard streams stay, so a process manager
sees one process.

Short runs are counted in the environment; the pause before the next start grows with their number.
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
    """Number of short runs in a row; 0 after a long one; None in the first run of the process."""
    text = environ.get(SHORT_RUNS, "")
    return min(int(text), COUNTED_MAX) if text.isdecimal() else None


def counted(before: int | None, lived_s: float) -> int:
    """The count for the next run, after a run that served for `lived_s` seconds (0: it never served)."""
    return 0 if lived_s >= SETTLED_SECONDS else min((before or 0) + 1, COUNTED_MAX)


def same_command(executable: str, words: Sequence[str]) -> list[str]:
    """The command with which this process was started; `words` begins with the interpreter, which is replaced by its
    resolved path."""
    return [executable, *words[1:]]


def restart_process(short: int) -> NoReturn:
    logging.shutdown()
    sys.stdout.flush()
    os.environ[SHORT_RUNS] = str(short)
    os.execv(sys.executable, same_command(sys.executable, sys.orig_argv))
