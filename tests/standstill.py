"""SIGSTOP for processes that share an embedded metadata store, at a moment at which the others can go on.

A process that stands still in the middle of a commit keeps the writer lock: nobody can write until it goes on or ends,
as with every lock. What tests want to see is what the others do with a process that is silent; so it is stopped again,
a little later, until it stands still without the lock. Knows pids and the lock's file, no store.
"""

from __future__ import annotations

import fcntl
import os
import signal
import time
from pathlib import Path

WRITER_LOCK = "writer.lock"
_HELD_S = 1.0
"""A lock that nobody lets go of for so long is held by the one that stands still."""


def stop_outside(pid: int, store: Path, within_s: float = 60.0) -> None:
    """Returns once the process stands still and does not hold the lock of the store in this folder, if there is one."""
    deadline = time.monotonic() + within_s
    while True:
        os.kill(pid, signal.SIGSTOP)
        while not is_stopped(pid):
            assert time.monotonic() < deadline, f"{pid} does not stand still"
            time.sleep(0.001)
        if not (store / WRITER_LOCK).exists() or _is_let_go(store / WRITER_LOCK):
            return
        os.kill(pid, signal.SIGCONT)
        assert time.monotonic() < deadline, f"{pid} always holds the lock"
        time.sleep(0.003)


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def _is_let_go(path: Path) -> bool:
    fd = os.open(path, os.O_RDWR)
    try:
        deadline = time.monotonic() + _HELD_S
        while time.monotonic() < deadline:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                time.sleep(0.001)
        return False
    finally:
        os.close(fd)
