"""Reads ledger files: entries, message counts, publish times and lengths. All methods block, on any thread.

Entries in memory are not seen here: for a ledger that is being written, the caller passes its index and ends the read
before the first entry that is not in the file. The offset where a read ended is remembered, so that the next read needs
no search.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from sys import getrefcount

from anabranch.model.position import Position
from anabranch.runtime.disk import File
from anabranch.storage.interface import CorruptEntry, LedgerNotFound, LedgerSummary, Payload, StoredEntry
from anabranch.storage.ledger.ledger_files import LEDGER_START, LedgerFiles
from anabranch.storage.ledger.record_format import (
    FILE_HEAD_BYTES,
    HEADER_BYTES,
    LEDGER_MAGIC,
    BadFileHead,
    decode_file_head,
    decode_header,
)
from anabranch.storage.ledger.record_runs import sound_run
from anabranch.storage.ledger.record_scanner import BLOCK_BYTES, RecordScanner
from anabranch.storage.ledger.sparse_index import IndexPoint, SparseIndex, decode_index, encode_point, place_of_point

HINTS_MAX = 4096
INDEXES_MAX = 64
SMALL_BLOCK_BYTES = 64 << 10
RESIDENT_BYTES = 1 << 20
"""Size of one read on the event loop; it takes a quarter of a millisecond, checksums included."""
RESIDENT_BLOCKS = 8
_UNUSED_REFERENCES = 3  # the list of the pool, the loop variable, and the argument of getrefcount itself


class BlockPool:
    """Read buffers, reused when no view of them is left. Used on one thread.

    A reader hands out views of a block. A view keeps a reference to its block, so the reference count shows whether a
    block is unused. A new block of a megabyte costs as much as reading it, because it is zeroed and its pages fault.
    """

    def __init__(self, block_bytes: int, kept_max: int) -> None:
        """`kept_max`: number of blocks kept for reuse; when all are in use, further blocks are allocated."""
        self.block_bytes = block_bytes
        self._kept_max = kept_max
        self._blocks: list[bytearray] = []

    def take(self) -> bytearray:
        """A block that has no view. Its content is left over from earlier reads."""
        for block in self._blocks:
            if getrefcount(block) == _UNUSED_REFERENCES:
                return block
        block = bytearray(self.block_bytes)
        if len(self._blocks) < self._kept_max:
            self._blocks.append(block)
        return block


class LedgerReader:
    def __init__(
        self, files: LedgerFiles, step_bytes: int, step_entries: int, publish_time_of: Callable[[Payload], int]
    ) -> None:
        self._files = files
        self._step_bytes = step_bytes
        self._step_entries = step_entries
        self._publish_time_of = publish_time_of
        self._lock = threading.Lock()
        self._hints: OrderedDict[tuple[int, int], int] = OrderedDict()
        self._indexes: OrderedDict[int, SparseIndex] = OrderedDict()
        self._blocks = BlockPool(RESIDENT_BYTES, RESIDENT_BLOCKS)

    def entries(
        self, ledger_id: int, first: int, end: int, entries_max: int, bytes_max: int, index: SparseIndex | None
    ) -> list[StoredEntry]:
        path = self._files.path(ledger_id)
        found: list[StoredEntry] = []
        size = 0
        try:
            with self._files.lease(path) as file:
                entry_id, offset = self._start(file, ledger_id, first, index)
                block = min(max(bytes_max + SMALL_BLOCK_BYTES, SMALL_BLOCK_BYTES), BLOCK_BYTES)
                if entry_id == first:
                    data = memoryview(file.pread(block, offset))
                    found, after = sound_run(data, offset, ledger_id, first, min(end, first + entries_max), bytes_max)
                    if found:
                        self._remember(ledger_id, found[-1].position.entry + 1, after)
                        return found
                walk = RecordScanner(file, ledger_id, entry_id, offset, block_bytes=block, stop_after=first)
                for entry, place, messages, payload, after in walk:
                    if entry < first:
                        continue
                    if entry >= end or len(found) >= entries_max:
                        break
                    if payload is None:
                        if not found:
                            raise CorruptEntry(path, place, ledger_id, entry)
                        break
                    size += len(payload)
                    if found and size > bytes_max:
                        break
                    found.append(StoredEntry(Position(ledger_id, entry), messages, payload))
                    offset = after
                if not found and first < end:
                    raise CorruptEntry(path, walk.offset, ledger_id, first)
        except FileNotFoundError as error:
            raise LedgerNotFound(f"ledger {ledger_id} has no file") from error
        if found:
            self._remember(ledger_id, found[-1].position.entry + 1, offset)
        return found

    def resident(
        self, ledger_id: int, first: int, end: int, entries_max: int, bytes_max: int
    ) -> list[StoredEntry] | None:
        """`entries` on the event loop: works where the last read ended, if the file is in the page cache; else None."""
        offset = self._hints.get((ledger_id, first))
        if offset is None:
            return None
        view = memoryview(self._blocks.take())
        got = self._files.read_resident(ledger_id, view, offset)
        if not got:
            return None
        found, after = sound_run(view[:got], offset, ledger_id, first, min(end, first + entries_max), bytes_max)
        if not found:
            return None
        self._remember(ledger_id, found[-1].position.entry + 1, after)
        return found

    def _start(self, file: File, ledger_id: int, first: int, index: SparseIndex | None) -> tuple[int, int]:
        """A known (entry id, offset) at or before an entry."""
        with self._lock:
            hint = self._hints.get((ledger_id, first))
        if hint is not None:
            return first, hint
        point = (index or self._index_of(file, ledger_id)).before(first)
        return (point.entry_id, point.offset) if point else (0, LEDGER_START)

    def _remember(self, ledger_id: int, entry_id: int, offset: int) -> None:
        with self._lock:
            self._hints[ledger_id, entry_id] = offset
            if len(self._hints) > HINTS_MAX:
                self._hints.popitem(last=False)

    def count_messages(self, ledger_id: int, end: int, index: SparseIndex | None) -> int:
        """Messages in the entries before `end`. With a complete index, at most one index step is read."""
        try:
            with self._files.lease(self._files.path(ledger_id)) as file:
                point = (index or self._index_of(file, ledger_id)).before(end)
                entry_id, offset, messages = (
                    (point.entry_id, point.offset, point.messages) if point else (0, LEDGER_START, 0)
                )
                if entry_id < end:
                    for slot in RecordScanner(file, ledger_id, entry_id, offset):
                        if slot.entry_id >= end:
                            break
                        messages += slot.messages
        except FileNotFoundError as error:
            raise LedgerNotFound(f"ledger {ledger_id} has no file") from error
        return messages

    def first_at(self, ledger_id: int, publish_ms: int, end: int, index: SparseIndex | None) -> int:
        """First entry before `end` published at or after this time, or `end`. Damaged entries are skipped."""
        try:
            with self._files.lease(self._files.path(ledger_id)) as file:
                point = (index or self._index_of(file, ledger_id)).before_time(publish_ms)
                entry_id, offset = (point.entry_id, point.offset) if point else (0, LEDGER_START)
                for slot in RecordScanner(file, ledger_id, entry_id, offset):
                    if slot.entry_id >= end:
                        break
                    if slot.payload is not None and self._publish_time_of(slot.payload) >= publish_ms:
                        return slot.entry_id
        except FileNotFoundError as error:
            raise LedgerNotFound(f"ledger {ledger_id} has no file") from error
        return end

    def summarize(self, ledger_id: int) -> LedgerSummary:
        """Totals of a ledger that is no longer written; also completes its index."""
        path = self._files.path(ledger_id)
        try:
            with self._files.lease(path) as file:
                head = file.pread(FILE_HEAD_BYTES, 0)
                try:
                    decode_file_head(head, LEDGER_MAGIC, path)
                except BadFileHead:
                    if len(head) < FILE_HEAD_BYTES:
                        return LedgerSummary(ledger_id, 0, 0, 0, 0, 0)
                index = self._load_index(file, ledger_id)
                summary = self._complete(file, ledger_id, index)
        except FileNotFoundError:
            return LedgerSummary(ledger_id, 0, 0, 0, 0, 0)
        self._keep(ledger_id, index)
        return summary

    def forget(self, ledger_id: int) -> None:
        with self._lock:
            self._indexes.pop(ledger_id, None)
            for key in [key for key in self._hints if key[0] == ledger_id]:
                del self._hints[key]

    # index of a ledger that is not in memory
    # -----------------------------------------------------------------------------

    def _index_of(self, file: File, ledger_id: int) -> SparseIndex:
        with self._lock:
            index = self._indexes.get(ledger_id)
            if index is not None:
                self._indexes.move_to_end(ledger_id)
                return index
        index = self._load_index(file, ledger_id)
        end = index.points[-1].offset if index.points else LEDGER_START
        if file.size() - end > 2 * self._step_bytes or not index.points:
            self._complete(file, ledger_id, index)
        self._keep(ledger_id, index)
        return index

    def _keep(self, ledger_id: int, index: SparseIndex) -> None:
        with self._lock:
            self._indexes[ledger_id] = index
            if len(self._indexes) > INDEXES_MAX:
                self._indexes.popitem(last=False)

    def _load_index(self, file: File, ledger_id: int) -> SparseIndex:
        """Points from the index file, as far as they are sound and the last one matches a record in the ledger file."""
        points: list[IndexPoint] = []
        path = self._files.index_path(ledger_id)
        try:
            with self._files.lease(path) as index_file:
                points = decode_index(index_file.pread(index_file.size(), 0), ledger_id, path)
        except FileNotFoundError:
            pass  # rebuilt by the scan that follows
        while points and not _stands(file, ledger_id, points[-1]):
            points.pop()
        return SparseIndex(self._step_bytes, self._step_entries, points)

    def _complete(self, file: File, ledger_id: int, index: SparseIndex) -> LedgerSummary:
        """Scan from the last point to the end; add the missing points to the index and to the index file."""
        last = index.points[-1] if index.points else IndexPoint(0, LEDGER_START, 0, 0, 0)
        known = len(index.points)
        entries, messages, size = last.entry_id, last.messages, last.bytes
        publish_ms = 0
        payload: memoryview | None = None
        walk = RecordScanner(file, ledger_id, last.entry_id, last.offset, count_tail=True)
        for slot in walk:
            if slot.payload is not None:
                payload = slot.payload
                if slot.offset > last.offset or not index.points:
                    if index.wants(slot.entry_id, slot.offset):
                        at = self._publish_time_of(payload)
                        index.add(IndexPoint(slot.entry_id, slot.offset, messages, size, at))
                size += len(payload)
            else:
                size += max(slot.end - slot.offset - HEADER_BYTES, 0)
            entries = slot.entry_id + 1
            messages += slot.messages
        if payload is not None:
            publish_ms = self._publish_time_of(payload)
        if len(index.points) > max(known, 1):
            known = 0 if known == 1 else known  # a file with one point may not exist yet
            encoded = b"".join(map(encode_point, index.points[known:]))
            self._files.write_index(ledger_id, encoded, place_of_point(known))
        return LedgerSummary(ledger_id, entries, messages, size, walk.offset if entries else 0, publish_ms)


def _stands(file: File, ledger_id: int, point: IndexPoint) -> bool:
    data = file.pread(HEADER_BYTES, point.offset)
    if len(data) < HEADER_BYTES:
        return False
    header = decode_header(data)
    return header.ledger == ledger_id and header.entry == point.entry_id and header.offset == point.offset
