"""How processes on one directory wake each other: a file that is touched, and the kernel's inotify. Knows no database.

The bell is rung after a commit, when its changes can be read; the database files themselves change before that. Without
inotify (another kernel, no watches left) `open` says so, and the owner polls.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import struct
from collections.abc import Callable
from pathlib import Path
from zlib import crc32

from anabranch.metadata.sqlite.fork_guard import guard

log = logging.getLogger(__name__)

_IN_MODIFY = 0x2
_IN_CLOSE_WRITE = 0x8
_IN_Q_OVERFLOW = 0x4000
_HEAD = struct.Struct("iIII")
_READ_BYTES = 65536
_MESSAGE = struct.Struct("<II")  # length, checksum
MESSAGE_BYTES_MAX = 4096 - _MESSAGE.size


class ChangeNotifier:
    """`ring` tells the others; after `listen` the loop hears who closes a file, after `hear` also who rings."""

    def __init__(self, bell: Path, folder: Path) -> None:
        self._bell = bell
        self._folder = folder
        self._bell_fd = os.open(bell, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._inotify: _Inotify | None = None
        self._heard: int | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        guard(self)

    def ring(self, message: bytes) -> None:
        """Leave a message in the bell, if it is short: who hears the ring at once need not look any further."""
        short = message if len(message) <= MESSAGE_BYTES_MAX else b""
        os.pwrite(self._bell_fd, _MESSAGE.pack(len(short), crc32(short)) + short, 0)

    def message(self) -> bytes:
        """The last one; empty when it was long, or is being replaced just now."""
        data = os.pread(self._bell_fd, _MESSAGE.size + MESSAGE_BYTES_MAX, 0)
        if len(data) < _MESSAGE.size:
            return b""
        size, check = _MESSAGE.unpack_from(data)
        found = data[_MESSAGE.size : _MESSAGE.size + size]
        return found if crc32(found) == check else b""

    def listen(self, on_ring: Callable[[], None], on_leave: Callable[[], None]) -> bool:
        """Start listening in the running loop. False: this machine cannot; poll instead."""
        try:
            self._inotify = _Inotify()
            self._inotify.add(self._folder, _IN_CLOSE_WRITE)
        except (OSError, AttributeError) as error:
            log.warning("no inotify: metadata changes of other processes are polled", extra={"error": str(error)})
            return False
        self._on_ring, self._on_leave = on_ring, on_leave
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._inotify.fd, self._readable)
        return True

    def hear(self, is_wanted: bool) -> None:
        """Whether rings wake us. Our own do too, so nobody should want it for nothing."""
        if self._loop is None or self._inotify is None or is_wanted == (self._heard is not None):
            return
        if self._heard is not None:
            self._inotify.remove(self._heard)
            self._heard = None
            return
        try:
            self._heard = self._inotify.add(self._bell, _IN_MODIFY)
        except OSError as error:
            log.warning("metadata changes of other processes are polled", extra={"error": str(error)})

    def _readable(self) -> None:
        assert self._inotify is not None
        try:
            data = os.read(self._inotify.fd, _READ_BYTES)
        except BlockingIOError:
            return
        seen, at = 0, 0
        while at < len(data):
            _, mask, _, name_bytes = _HEAD.unpack_from(data, at)
            seen |= mask
            at += _HEAD.size + name_bytes
        if seen & (_IN_MODIFY | _IN_Q_OVERFLOW):
            self._on_ring()
        if seen & (_IN_CLOSE_WRITE | _IN_Q_OVERFLOW):
            self._on_leave()

    def stop(self) -> None:
        """Hear nothing any more; `ring` still works."""
        if self._loop is not None and self._inotify is not None:
            if not self._loop.is_closed():
                self._loop.remove_reader(self._inotify.fd)
            os.close(self._inotify.fd)
        self._loop = None

    def close(self) -> None:
        self.stop()
        os.close(self._bell_fd)

    def after_fork(self) -> None:
        os.close(self._bell_fd)
        if self._loop is not None and self._inotify is not None:
            os.close(self._inotify.fd)
            self._loop = None


class _Inotify:
    """A non-blocking descriptor that tells of changes to paths. The standard library does not have it."""

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
