"""Advisory whole-file locks (`flock`) that the kernel drops with the process. Knows nothing of what they protect."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from anabranch.metadata.port import StoreUnavailable
from anabranch.runtime.clock import Clock

_RETRY_S = 0.002


def try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class WriterLock:
    """Taken around every commit, checkpoint, open and close by all processes on one store.

    SQLite's own busy-waiting is unfair (seconds of waiting with a few writers), and SQLite before 3.51.3 can damage its
    file when a checkpoint races a commit; with this lock neither can happen.
    """

    def __init__(self, path: Path, clock: Clock, wait_ms_max: int) -> None:
        self._path = path
        self._clock = clock
        self._wait_ms_max = wait_ms_max
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._pause = threading.Event()  # never set: only its timed wait is used

    @contextmanager
    def held(self) -> Iterator[None]:
        deadline = self._clock.monotonic() + self._wait_ms_max / 1000
        while not try_lock(self._fd):
            if self._clock.monotonic() > deadline:
                raise StoreUnavailable(f"another process holds {self._path} for more than {self._wait_ms_max} ms")
            self._pause.wait(_RETRY_S)
        try:
            yield
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def close(self) -> None:
        os.close(self._fd)


class SessionFiles:
    """One locked file per session of this process: who can lock the file of another knows that its owner is dead."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._fds: dict[int, int] = {}
        folder.mkdir(exist_ok=True)

    def __len__(self) -> int:
        return len(self._fds)

    def create(self, session: int) -> None:
        fd = os.open(self._folder / str(session), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._fds[session] = fd
        assert try_lock(fd), f"session file {session} is locked by somebody else"

    def remove(self, session: int) -> None:
        fd = self._fds.pop(session, None)
        if fd is not None:
            os.close(fd)
        with suppress(FileNotFoundError):
            os.unlink(self._folder / str(session))

    def dead(self, known: list[int]) -> list[int]:
        """Sessions nobody holds any more: unlocked files, and known ids whose file is gone."""
        names = {int(name) for name in os.listdir(self._folder) if name.isdecimal()}
        return [
            session
            for session in sorted(names | set(known))
            if session not in self._fds and (session not in names or self._is_orphan(session))
        ]

    def _is_orphan(self, session: int) -> bool:
        try:
            fd = os.open(self._folder / str(session), os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return True
        try:
            return try_lock(fd)
        finally:
            os.close(fd)

    def close(self) -> None:
        for session in tuple(self._fds):
            self.remove(session)
