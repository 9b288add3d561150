"""SIGSTOP for processes that share an embedded metadata store, outside of a commit.

A process that is stopped in the middle of a commit keeps the writer lock, and no other process can write until it
continues or ends. Tests examine how the others treat a silent process. So the process is resumed and stopped again, a
little later, until it is stopped without the lock.
"""

from __future__ import annotations

import fcntl
import os
import signal
import time
from pathlib import Path

WRITER_LOCK = "writer.lock"
_HELD_S = 1.0
"""A lock held for this long belongs to the stopped process."""


def stop_outside(pid: int, store: Path) -> None:
    """Returns once the process stands still and does not hold the lock of the store in this folder, if there is one."""
    _stop(pid, store / WRITER_LOCK, with_lock=False)


def stop_inside(pid: int, store: Path) -> None:
    """Returns once it stands still and holds the lock."""
    _stop(pid, store / WRITER_LOCK, with_lock=True)


def _stop(pid: int, lock: Path, *, with_lock: bool, within_s: float = 60.0) -> None:
    deadline = time.monotonic() + within_s
    while True:
        os.kill(pid, signal.SIGSTOP)
        while not is_stopped(pid):
            assert time.monotonic() < deadline, f"{pid} does not stand still"
            time.sleep(0.001)
        if _is_held(lock) == with_lock:
            return
        os.kill(pid, signal.SIGCONT)
        assert time.monotonic() < deadline, f"{pid} {'never' if with_lock else 'always'} holds the lock"
        time.sleep(0.003)


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def _is_held(path: Path) -> bool:
    """Whether the lock stays held: running processes hold it only briefly."""
    if not path.exists():
        return False
    fd = os.open(path, os.O_RDWR)
    try:
        deadline = time.monotonic() + _HELD_S
        while time.monotonic() < deadline:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return False
            except BlockingIOError:
                time.sleep(0.001)
        return True
    finally:
        os.close(fd)
