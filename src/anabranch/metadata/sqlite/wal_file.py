"""The file of the write-ahead log: kept long and written over, so that syncing a commit has no metadata to write.

A log that grows with every commit makes each sync wait for the file system's journal as well: measured, a third of its
time. So zeros are put behind what is there, once, and a checkpoint starts the log over instead of cutting it off.
SQLite reads a log up to the first frame whose salt and checksum do not fit: zeros, like what is left of an earlier
round, are behind its end. Knows the layout of the log, writes only behind its end. Synchronous; call it under the
writer lock.

    head: magic u32 | format u32 | page bytes u32 | sequence u32 | salt u64 | …     32 bytes
    then frames: page u32 | pages u32 | salt u64 | checksum u64 | page              24 bytes and the page
"""

from __future__ import annotations

import os
import sqlite3
from struct import Struct

_HEAD = Struct(">IIIIQ")
_HEAD_BYTES = 32
_FRAME = Struct(">IIQ")
_FRAME_BYTES = 24
_STEP = 1 << 20


class WalFile:
    def __init__(self, path: str, bytes_kept: int) -> None:
        """The file is there while any connection to the database is open and has written."""
        self._path = path
        self._bytes_kept = bytes_kept
        self._fd = -1

    def is_long(self) -> bool:
        """Does what counts of the log reach past the room that is kept for it?"""
        if self._fd < 0:
            self._fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        head = os.pread(self._fd, _HEAD.size, 0)
        if len(head) < _HEAD.size:
            return False
        _, _, page_bytes, _, salt = _HEAD.unpack(head)
        frames = (self._bytes_kept - _HEAD_BYTES) // (_FRAME_BYTES + page_bytes)
        frame = os.pread(self._fd, _FRAME.size, _HEAD_BYTES + (frames - 1) * (_FRAME_BYTES + page_bytes))
        return len(frame) == _FRAME.size and _FRAME.unpack(frame)[2] == salt

    def extend(self, connection: sqlite3.Connection) -> None:
        """Make room behind the end. In a transaction: who writes without the writer lock must not write just now."""
        if self._fd < 0:
            self._fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        connection.execute("BEGIN IMMEDIATE")
        try:
            size = os.fstat(self._fd).st_size
            while size < self._bytes_kept:
                size += os.pwrite(self._fd, bytes(min(_STEP, self._bytes_kept - size)), size)
            os.fdatasync(self._fd)
        finally:
            connection.execute("ROLLBACK")

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
