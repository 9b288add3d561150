"""Change notifications between the processes of one directory: a file that is written, and the kernel's inotify.

A notification is written after a commit, when its changes can be read; the database files themselves change earlier.
Without inotify (another kernel, or no watches left) `listen` returns False, and the owner polls.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import struct
from collections.abc import Callable
from pathlib import Path
from zlib import crc32

from anabranch.metadata.sqlite.fork_guard import guard
from anabranch.runtime.logs import get_logger

log = get_logger(__name__)

_IN_MODIFY = 0x2
_IN_CLOSE_WRITE = 0x8
_IN_Q_OVERFLOW = 0x4000
_EVENT = struct.Struct("iIII")
_READ_BYTES = 65536
_MESSAGE = struct.Struct("<II")  # length, checksum
MESSAGE_BYTES_MAX = 4096 - _MESSAGE.size


class ChangeNotifier:
    """`notify` wakes the other processes.

    After `listen`, `on_leave` is called when a process closes a session file. After `set_notified(True)`, `on_change`
    is called for notifications too.
    """

    def __init__(self, path: Path, folder: Path) -> None:
        self._path = path
        self._folder = folder
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._inotify: _Inotify | None = None
        self._change_watch: int | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        guard(self)

    def notify(self, message: bytes) -> None:
        """Write the message if it is short; a receiver that reads it in time needs no query."""
        short = message if len(message) <= MESSAGE_BYTES_MAX else b""
        os.pwrite(self._fd, _MESSAGE.pack(len(short), crc32(short)) + short, 0)

    def message(self) -> bytes:
        """The latest message; empty if it was too long or is being replaced."""
        data = os.pread(self._fd, _MESSAGE.size + MESSAGE_BYTES_MAX, 0)
        if len(data) < _MESSAGE.size:
            return b""
        size, check = _MESSAGE.unpack_from(data)
        found = data[_MESSAGE.size : _MESSAGE.size + size]
        return found if crc32(found) == check else b""

    def listen(self, on_change: Callable[[], None], on_leave: Callable[[], None]) -> bool:
        """Start listening in the running loop. False if inotify is not available: poll instead."""
        try:
            self._inotify = _Inotify()
            self._inotify.add(self._folder, _IN_CLOSE_WRITE)
        except (OSError, AttributeError) as error:
            log.warning(
                "inotify not available; polling for metadata changes of other processes", extra={"error": str(error)}
            )
            return False
        self._on_change, self._on_leave = on_change, on_leave
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._inotify.fd, self._readable)
        return True

    def set_notified(self, is_wanted: bool) -> None:
        """Whether notifications wake this process. Its own do too, so request it only while there are watches."""
        if self._loop is None or self._inotify is None or is_wanted == (self._change_watch is not None):
            return
        if self._change_watch is not None:
            self._inotify.remove(self._change_watch)
            self._change_watch = None
            return
        try:
            self._change_watch = self._inotify.add(self._path, _IN_MODIFY)
        except OSError as error:
            log.warning(
                "no inotify watch; polling for metadata changes of other processes", extra={"error": str(error)}
            )

    def _readable(self) -> None:
        assert self._inotify is not None
        try:
            data = os.read(self._inotify.fd, _READ_BYTES)
        except BlockingIOError:
            return
        seen, at = 0, 0
        while at < len(data):
            _, mask, _, name_bytes = _EVENT.unpack_from(data, at)
            seen |= mask
            at += _EVENT.size + name_bytes
        if seen & (_IN_MODIFY | _IN_Q_OVERFLOW):
            self._on_change()
        if seen & (_IN_CLOSE_WRITE | _IN_Q_OVERFLOW):
            self._on_leave()

    def stop(self) -> None:
        """Stop listening; `notify` still works."""
        if self._loop is not None and self._inotify is not None:
            if not self._loop.is_closed():
                self._loop.remove_reader(self._inotify.fd)
            os.close(self._inotify.fd)
        self._loop = None

    def close(self) -> None:
        self.stop()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def after_fork(self) -> None:
        if self._fd >= 0:  # a closed notifier may still be guarded, and its number may be another file's by now
            os.close(self._fd)
            self._fd = -1
        if self._loop is not None and self._inotify is not None:
            os.close(self._inotify.fd)
            self._loop = None


class _Inotify:
    """inotify through libc, because the standard library has no binding."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.fd: int = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1 failed")

    def add(self, path: Path, mask: int) -> int:
        watch: int = self._libc.inotify_add_watch(self.fd, os.fsencode(path), ctypes.c_uint32(mask))
        if watch < 0:
            raise OSError(ctypes.get_errno(), f"inotify_add_watch of {path} failed")
        return watch

    def remove(self, watch: int) -> None:
        self._libc.inotify_rm_watch(self.fd, watch)
