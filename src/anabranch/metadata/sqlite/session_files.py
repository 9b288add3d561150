"""One locked file per session: how the processes of one machine detect which sessions are alive.

    file locked, heartbeat recent  alive
    file not locked                its process has ended (the kernel released the lock and notified inotify watchers)
    heartbeat older than its ttl   its process hangs or is stopped: other processes may end the session

The heartbeat is the machine's monotonic time, written without fsync: after a reboot no file is locked anyway.
Everything but `heartbeat` and `next_deadline` is called under the writer lock.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from anabranch.metadata.sqlite.file_lock import try_lock
from anabranch.metadata.sqlite.fork_guard import guard

_HEARTBEAT = struct.Struct("<qq")  # monotonic nanoseconds, ttl in milliseconds


class SessionFiles:
    """The session files of this store object, and read access to those of others."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._fds: dict[int, int] = {}
        folder.mkdir(exist_ok=True)
        guard(self)

    @property
    def folder(self) -> Path:
        return self._folder

    def create(self, session: int, ttl_ms: int, now: float) -> None:
        """Create it under another name until it is locked, so that it never looks like an orphan."""
        path = self._folder / str(session)
        fresh = path.with_name(f"new-{session}")
        fd = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            locked = try_lock(fd)
            assert locked, f"{fresh} is locked by another process"
            os.pwrite(fd, _HEARTBEAT.pack(int(now * 1e9), ttl_ms), 0)
            os.rename(fresh, path)
        except BaseException:
            os.close(fd)
            raise
        self._fds[session] = fd

    def heartbeat(self, session: int, ttl_ms: int, now: float) -> None:
        """Must not be called after `remove`: the descriptor could belong to another file."""
        os.pwrite(self._fds[session], _HEARTBEAT.pack(int(now * 1e9), ttl_ms), 0)

    def remove(self, session: int) -> None:
        with suppress(FileNotFoundError):
            os.unlink(self._folder / str(session))
        fd = self._fds.pop(session, None)
        if fd is not None:
            os.close(fd)

    def find_dead(self, known: Iterable[int], now: float) -> list[int]:
        """Sessions to end: the file is not locked, its heartbeat is too old, or a known session has no file."""
        names = self._names()
        return [
            session
            for session in sorted(names | set(known))
            if session not in self._fds and (session not in names or self._is_over(session, now))
        ]

    def next_deadline(self) -> float | None:
        """The earliest deadline among sessions of other processes; None if there are none."""
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
        """Infinite without a readable heartbeat: then only the lock counts."""
        try:
            content = (self._folder / str(session)).read_bytes()
        except FileNotFoundError:
            return float("inf")
        if len(content) != _HEARTBEAT.size:
            return float("inf")
        heartbeat_ns, ttl_ms = _HEARTBEAT.unpack(content)
        return float(heartbeat_ns / 1e9 + ttl_ms / 1000)

    def _is_orphan(self, session: int) -> bool:
        try:  # read-only, so that closing it does not wake inotify watchers (IN_CLOSE_WRITE)
            fd = os.open(self._folder / str(session), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return True
        try:
            return try_lock(fd)
        finally:
            os.close(fd)
