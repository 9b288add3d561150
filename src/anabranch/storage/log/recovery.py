"""Replays a broker's commit log into the ledger files, after a crash or for a broker that was stopped.

The point of no return is the fence (see `fence.claim`): after it the old owner confirms nothing. Every later step may
be repeated, even by two processes at once, because a record is written at the offset it names, always with the same
bytes. `LogReader` finds the records of one log file and steps over damage; `take_over` does the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from anabranch.runtime.disk import Disk, File
from anabranch.storage.ledger.ledger_files import LedgerFiles
from anabranch.storage.ledger.record_format import (
    GROUP_LEDGER,
    HEADER_BYTES,
    LOG_MAGIC,
    PAYLOAD_BYTES_MAX,
    TOMBSTONE_LEDGER,
    BadFileHead,
    Header,
    decode_file_head,
    decode_group_head,
    decode_header,
    is_sound,
    log_stamp,
)
from anabranch.storage.log import fence
from anabranch.storage.log.commit_log import log_name, log_number
from anabranch.storage.log.group_commit import LOG_START
from anabranch.storage.log.released_ledgers import read_released

BLOCK_BYTES = 4 << 20
SEARCH_BLOCK_BYTES = 256 << 10
_ZEROS = bytes(SEARCH_BLOCK_BYTES)
SEARCH_BYTES_MAX = 16 << 20
"""How far after a damaged place the next record is searched; more than the largest entry."""


class LoggedRecord(NamedTuple):
    header: Header
    record: memoryview


@dataclass(slots=True)
class Recovery:
    """Result of a recovery."""

    generation: int
    records: int = 0
    bytes: int = 0
    ledgers: set[int] = field(default_factory=set)
    damaged: list[tuple[str, int]] = field(default_factory=list)  # log file, offset
    torn: list[tuple[str, int]] = field(default_factory=list)  # offset where a log file ends inside a group


class LogReader:
    """Records of one log file, oldest first."""

    def __init__(self, file: File, number: int) -> None:
        self._file = file
        self._number = number
        self._accepts = {log_stamp(number), log_stamp(number - 1)}
        self._view = memoryview(b"")
        self._base = 0
        self.damaged: list[int] = []
        self.torn: int | None = None

    def _load(self, place: int, size: int) -> int:
        at = place - self._base
        if at < 0 or at + size > len(self._view):
            self._view = memoryview(self._file.pread(max(size, BLOCK_BYTES), place))
            self._base, at = place, 0
        return at

    def __iter__(self) -> Iterator[LoggedRecord]:
        place = group_end = LOG_START
        while True:
            at = self._load(place, HEADER_BYTES)
            head = decode_group_head(self._view, at, place, self._number)
            if head is not None:
                place += HEADER_BYTES
                group_end = place + head.length
                continue
            found = self._record_at(place)
            if found is None:
                after = self._search(place)
                if after is None:
                    self.torn = place if place < group_end else None
                    return
                self.damaged.append(place)
                place = after
                continue
            yield found
            place += len(found.record)

    def _record_at(self, place: int) -> LoggedRecord | None:
        at = self._load(place, HEADER_BYTES)
        if len(self._view) - at < HEADER_BYTES:
            return None
        header = decode_header(self._view, at)
        if header.stamp not in self._accepts or header.length > PAYLOAD_BYTES_MAX or header.ledger == GROUP_LEDGER:
            return None
        size = HEADER_BYTES + header.length
        at = self._load(place, size)
        if len(self._view) - at < size or not is_sound(self._view, at, header.length):
            return None
        return LoggedRecord(header, self._view[at : at + size])

    def _search(self, start: int) -> int | None:
        """Offset of the next sound record or group head of this file."""
        patterns = [stamp.to_bytes(4, "little") for stamp in self._accepts]
        place = start + 1
        while place < start + SEARCH_BYTES_MAX:
            data = self._file.pread(SEARCH_BLOCK_BYTES, place)
            if len(data) < HEADER_BYTES:
                return None
            if data != _ZEROS:  # after the last record a log is mostly zeros, and searching them is slow
                hits = sorted({at for pattern in patterns for at in _finds(data, pattern)})
                for at in hits:
                    if self._is_item(place + at - (HEADER_BYTES - 4)):
                        return place + at - (HEADER_BYTES - 4)
            if len(data) < SEARCH_BLOCK_BYTES:
                return None
            place += len(data) - HEADER_BYTES
        return None

    def _is_item(self, place: int) -> bool:
        at = self._load(place, HEADER_BYTES)
        if decode_group_head(self._view, at, place, self._number) is not None:
            return True
        return self._record_at(place) is not None


def _finds(data: bytes, pattern: bytes) -> Iterator[int]:
    at = data.find(pattern, HEADER_BYTES - 4)
    while at >= 0:
        yield at
        at = data.find(pattern, at + 1)


class _Run:
    """Consecutive records of one ledger, written with one call."""

    def __init__(self, files: LedgerFiles, may_create: Callable[[int], bool]) -> None:
        self._files = files
        self._may_create = may_create
        self._ledger = -1
        self._start = 0
        self._end = 0
        self._pieces: list[memoryview] = []

    def add(self, found: LoggedRecord) -> None:
        header = found.header
        if header.ledger != self._ledger or header.offset != self._end or len(self._pieces) >= 1024:
            self.flush()
            self._ledger, self._start = header.ledger, header.offset
        self._pieces.append(found.record)
        self._end = header.offset + len(found.record)

    def flush(self) -> None:
        if self._pieces:
            if self._files.exists(self._ledger) or self._may_create(self._ledger):
                self._files.write(self._ledger, self._pieces, self._start)
            self._pieces = []
        self._ledger = -1


def replay(
    file: File, number: int, files: LedgerFiles, recovery: Recovery, may_create: Callable[[int], bool] = lambda _: True
) -> None:
    """`may_create(ledger)`: a ledger without a file was not written yet (True) or has been deleted (False)."""
    reader = LogReader(file, number)
    run = _Run(files, may_create)
    for found in reader:
        if found.header.ledger == TOMBSTONE_LEDGER:  # written by an earlier version
            run.flush()
            files.delete(found.header.entry)
            recovery.ledgers.discard(found.header.entry)
            continue
        run.add(found)
        recovery.records += 1
        recovery.bytes += found.header.length
        recovery.ledgers.add(found.header.ledger)
    run.flush()
    recovery.damaged += [(file.path, place) for place in reader.damaged]
    if reader.torn is not None:
        recovery.torn.append((file.path, reader.torn))


def take_over(
    disk: Disk, broker_dir: str, files: LedgerFiles, pause_at: Callable[[str], None]
) -> tuple[fence.Fence, Recovery]:
    """Fence the earlier generations of this broker, then replay their logs into the ledger files."""
    pause_at("before-fence")
    mine = fence.claim(disk, broker_dir)
    pause_at("fence-written")
    recovery = Recovery(mine.generation)
    earlier = [number for number in fence.generations(disk, broker_dir) if number < mine.generation]
    for generation in earlier:
        directory = fence.log_dir(broker_dir, generation)
        released = read_released(disk, directory)
        for name in disk.list(directory):
            _replay_file(disk, f"{directory}/{name}", log_number(name), files, recovery, released)
    pause_at("log-replayed")
    files.sync_many(recovery.ledgers)
    pause_at("ledgers-synced")
    for generation in earlier:
        directory = fence.log_dir(broker_dir, generation)
        for name in disk.list(directory):
            disk.unlink(f"{directory}/{name}")
        disk.remove_dir(directory)
    pause_at("log-removed")
    return mine, recovery


def _replay_file(
    disk: Disk, path: str, number: int | None, files: LedgerFiles, recovery: Recovery, released: set[int]
) -> None:
    """Replay one log file. A file without a sound head of its number was being created when its owner stopped; it is
    empty.
    """
    if number is None:
        return

    def may_create(ledger: int) -> bool:
        return ledger not in released and disk.exists(path)  # the file is gone if another recovery was faster

    try:
        file = disk.open(path)
    except FileNotFoundError:
        return  # another recovery was faster
    try:
        if decode_file_head(file.pread(LOG_START, 0), LOG_MAGIC, path) != number:
            return
        replay(file, number, files, recovery, may_create)
    except BadFileHead:
        if log_name(number) in path and file.size() > LOG_START:
            replay(file, number, files, recovery, may_create)
    finally:
        file.close()
