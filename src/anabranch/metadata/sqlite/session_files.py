"""One locked file per session: how processes of one machine see each other's sessions live and die.

    file locked, heartbeat young   alive
    file not locked                its process is gone (the kernel dropped the lock, and told inotify watchers)
    heartbeat older than its ttl   its process hangs or is stopped: others may end the session

The heartbeat is the machine's monotonic time, written without fsync: after a reboot no file is locked anyway. Knows no
database. All of it is called under the writer lock, but `beat` and `next_deadline`.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from anabranch.metadata.sqlite.file_lock import try_lock
from anabranch.metadata.sqlite.fork_guard import guard

_BEAT = struct.Struct("<qq")  # monotonic nanoseconds, ttl in milliseconds


class SessionFiles:
    """The sessions of one store object, and the files of everybody's."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._fds: dict[int, int] = {}
        folder.mkdir(exist_ok=True)
        guard(self)

    @property
    def folder(self) -> Path:
        return self._folder

    def create(self, session: int, ttl_ms: int, now: float) -> None:
        """Under another name until it is locked: no moment in which it looks like an orphan."""
        path = self._folder / str(session)
        fresh = path.with_name(f"new-{session}")
        fd = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            locked = try_lock(fd)
            assert locked, f"{fresh} is locked by somebody else"
            os.pwrite(fd, _BEAT.pack(int(now * 1e9), ttl_ms), 0)
            os.rename(fresh, path)
        except BaseException:
            os.close(fd)
            raise
        self._fds[session] = fd

    def beat(self, session: int, ttl_ms: int, now: float) -> None:
        """Only while nobody has been asked to `remove` it: the descriptor would be another file's."""
        os.pwrite(self._fds[session], _BEAT.pack(int(now * 1e9), ttl_ms), 0)

    def remove(self, session: int) -> None:
        with suppress(FileNotFoundError):
            os.unlink(self._folder / str(session))
        fd = self._fds.pop(session, None)
        if fd is not None:
            os.close(fd)

    def dead(self, known: Iterable[int], now: float) -> list[int]:
        """Sessions to end: nobody holds the file, its heartbeat is too old, or a known session has no file."""
        names = self._names()
        return [
            session
            for session in sorted(names | set(known))
            if session not in self._fds and (session not in names or self._is_over(session, now))
        ]

    def next_deadline(self) -> float | None:
        """When the first session of somebody else will have been silent for too long; None without any."""
        deadlines = [self._deadline(session) for session in self._names() if session not in self._fds]
        return min(deadlines, default=None)

    def close(self) -> None:
        for session in tuple(self._fds):
            self.remove(session)

    def after_fork(self) -> None:
        for fd in self._fds.values():
            os.close(fd)
        self._fds.clear()

    def _names(self) -> set[int]:
        return {int(name) for name in os.listdir(self._folder) if name.isdecimal()}

    def _is_over(self, session: int, now: float) -> bool:
        return self._deadline(session) <= now or self._is_orphan(session)

    def _deadline(self, session: int) -> float:
        """Without a readable heartbeat only the lock counts."""
        try:
            content = (self._folder / str(session)).read_bytes()
        except FileNotFoundError:
            return float("inf")
        if len(content) != _BEAT.size:
            return float("inf")
        beat_ns, ttl_ms = _BEAT.unpack(content)
        return float(beat_ns / 1e9 + ttl_ms / 1000)

    def _is_orphan(self, session: int) -> bool:
        try:  # read-only, so that closing it wakes nobody who waits for the end of a writer
            fd = os.open(self._folder / str(session), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return True
        try:
            return try_lock(fd)
        finally:
            os.close(fd)
