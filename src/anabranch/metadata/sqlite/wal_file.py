"""The file of the write-ahead log: kept at a fixed length, so that syncing a commit writes no file metadata.

If the log grew with every commit, each sync would also wait for the file system's journal (measured: a third of its
time). So the file is extended with zeros once, and a checkpoint restarts the log instead of truncating it. SQLite reads
a log up to the first frame whose salt and checksum do not match: zeros, like frames of an earlier round, are behind its
end. This module writes only behind that end. Synchronous; call it under the writer lock.

    header: magic u32 | format u32 | page bytes u32 | sequence u32 | salt u64 | …   32 bytes
    then frames: page u32 | pages u32 | salt u64 | checksum u64 | page              24 bytes and the page
"""

from __future__ import annotations

import os
import sqlite3
from struct import Struct

_HEADER = Struct(">IIIIQ")
_HEADER_BYTES = 32
_FRAME = Struct(">IIQ")
_FRAME_BYTES = 24
_STEP = 1 << 20


class WalFile:
    def __init__(self, path: str, bytes_kept: int) -> None:
        """The file exists while a connection to the database is open and has written."""
        self._path = path
        self._bytes_kept = bytes_kept
        self._fd = -1

    def is_long(self) -> bool:
        """Does the valid part of the log exceed `bytes_kept`?"""
        if self._fd < 0:
            self._fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        header = os.pread(self._fd, _HEADER.size, 0)
        if len(header) < _HEADER.size:
            return False
        _, _, page_bytes, _, salt = _HEADER.unpack(header)
        frames = (self._bytes_kept - _HEADER_BYTES) // (_FRAME_BYTES + page_bytes)
        frame = os.pread(self._fd, _FRAME.size, _HEADER_BYTES + (frames - 1) * (_FRAME_BYTES + page_bytes))
        return len(frame) == _FRAME.size and _FRAME.unpack(frame)[2] == salt

    def extend(self, connection: sqlite3.Connection) -> None:
        """Extend the file with zeros, in a transaction that blocks writers without the writer lock."""
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
