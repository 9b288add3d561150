"""Ledgers that this broker has released (handed over or deleted) while its log still holds records of them.

Recovery of a log restores every ledger that the log has records of. It must not restore one that its next owner has
deleted, so a list beside the log files names the released ledgers: recovery writes their records only into a file that
exists. A ledger is listed when this broker will write no more to it and its file's name is durable; a deleted one is
listed before its file is deleted.

    ledger u64 | crc32c u32   (little endian), repeated; an incomplete or damaged item is ignored

`LoggedLedgers` decides, without I/O, which ledgers must be on the list. `ReleasedLedgers` writes the list from one
worker thread. The list is deleted together with its log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from struct import Struct

from crc32c import crc32c

from anabranch.runtime.disk import Disk

NAME = "released"
FINISHED_LEDGERS_MAX = 2048
"""Finished ledgers in the log before a checkpoint frees them; each takes about 1 kB of memory until then. Small ledgers
can be many before a log file is full: one message per load of a topic is a ledger of some hundred bytes.
"""
_ITEM = Struct("<QI")
_ID = Struct("<Q")


def encode_released(ledgers: Iterable[int]) -> bytes:
    return b"".join(_ITEM.pack(ledger, crc32c(_ID.pack(ledger))) for ledger in ledgers)


def decode_released(data: bytes) -> set[int]:
    whole = data[: len(data) - len(data) % _ITEM.size]
    return {ledger for ledger, crc in _ITEM.iter_unpack(whole) if crc == crc32c(_ID.pack(ledger))}


class LoggedLedgers:
    """Which ledgers the log holds records of, and which of them are on the list of released ledgers."""

    __slots__ = ("_finished", "_listed", "last_log")

    def __init__(self) -> None:
        self.last_log: dict[int, int] = {}  # ledger -> the last log file with records of it; set for each batch
        self._listed: set[int] = set()
        self._finished: set[int] = set()  # closed and complete in their file; only the log keeps them in memory

    def finish(self, ledger_id: int) -> bool:
        """The ledger is closed and complete in its file. True if so many are that a checkpoint should free them.

        Open ledgers do not count, because a checkpoint does not free those: the next batch logs them again.
        """
        if ledger_id in self.last_log:
            self._finished.add(ledger_id)
        return len(self._finished) >= FINISHED_LEDGERS_MAX

    def release(self, is_closed: Callable[[int], bool]) -> list[int]:
        """Closed ledgers that are not on the list yet; they count as listed from now on."""
        closed = [ledger_id for ledger_id in self.last_log.keys() - self._listed if is_closed(ledger_id)]
        self._listed.update(closed)
        return closed

    def forget(self, ledger_id: int) -> bool:
        """The ledger is being deleted. True if it must be listed, because recovery of the log would restore it."""
        is_logged = self.last_log.pop(ledger_id, None) is not None and ledger_id not in self._listed
        self._listed.discard(ledger_id)
        self._finished.discard(ledger_id)
        return is_logged

    def retired(self, log_number: int) -> None:
        """Log files up to this number are deleted, with all records in them."""
        self.last_log = {ledger: number for ledger, number in self.last_log.items() if number > log_number}
        self._listed &= self.last_log.keys()
        self._finished &= self.last_log.keys()


class ReleasedLedgers:
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
