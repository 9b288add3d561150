"""Advisory whole-file locks (`flock`), which the kernel releases when the process ends."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path
from types import TracebackType

from anabranch.metadata.interface import StoreUnavailable
from anabranch.metadata.sqlite.fork_guard import guard
from anabranch.runtime.clock import Clock

_RETRY_S = (0.0002, 0.0005, 0.001, 0.002)


def try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class WriterLock:
    """Taken around every commit, checkpoint, open and close by all processes on one store.

    SQLite's own busy-waiting is unfair (seconds of waiting with a few writers), and SQLite before 3.51.3 can corrupt
    its file when a checkpoint races a commit. This lock prevents both.
    """

    def __init__(self, path: Path, clock: Clock, wait_ms_max: int) -> None:
        self._path = path
        self._clock = clock
        self._wait_ms_max = wait_ms_max
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._pause = threading.Event()  # never set: only its timed wait is used
        guard(self)

    def __enter__(self) -> None:
        if not try_lock(self._fd):
            self._wait()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        fcntl.flock(self._fd, fcntl.LOCK_UN)

    def _wait(self) -> None:
        deadline = self._clock.monotonic() + self._wait_ms_max / 1000
        attempts = 0
        while not try_lock(self._fd):
            if self._clock.monotonic() > deadline:
                raise StoreUnavailable(f"another process has held {self._path} for more than {self._wait_ms_max} ms")
            self._pause.wait(_RETRY_S[min(attempts, len(_RETRY_S) - 1)])
            attempts += 1

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def after_fork(self) -> None:
        if self._fd >= 0:  # a closed lock may still be guarded, and its number may be another file's by now
            os.close(self._fd)
            self._fd = -1
