"""Ledgers that a log still holds records of, though their owner has let go of them: handed over, or deleted.

A list beside the log files. Recovery brings records of such a ledger only into a file that is there: when it is not,
whoever has the ledger now has deleted it, and it must not come back. A ledger is listed when nothing more will be
written to it by this broker and its file's name is durable; a deleted one before its file goes.

    ledger u64 | crc32c u32   (little endian), one behind the other; what a crash tore is not counted

Used from one worker thread; recovery reads it when its owner is fenced. It goes with its log.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct

from crc32c import crc32c

from anabranch.runtime.disk import Disk

NAME = "released"
_ITEM = Struct("<QI")
_ID = Struct("<Q")


def encode_released(ledgers: Iterable[int]) -> bytes:
    return b"".join(_ITEM.pack(ledger, crc32c(_ID.pack(ledger))) for ledger in ledgers)


def decode_released(data: bytes) -> set[int]:
    whole = data[: len(data) - len(data) % _ITEM.size]
    return {ledger for ledger, crc in _ITEM.iter_unpack(whole) if crc == crc32c(_ID.pack(ledger))}


class Released:
    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self._end = 0

    def add(self, ledgers: Iterable[int]) -> None:
        """Durable when it returns."""
        items = encode_released(ledgers)
        file = self._disk.open(f"{self._directory}/{NAME}", create=True)
        try:
            file.pwritev([items], self._end)
            file.fdatasync()
        finally:
            file.close()
        if not self._end:
            self._disk.fsync_dir(self._directory)
        self._end += len(items)


def read_released(disk: Disk, directory: str) -> set[int]:
    try:
        file = disk.open(f"{directory}/{NAME}")
    except FileNotFoundError:
        return set()
    try:
        return decode_released(file.pread(file.size(), 0))
    finally:
        file.close()
