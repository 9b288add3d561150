"""One ledger that this process writes, or has written recently: its open batch, its totals and its entries in memory.

Runs on the event loop. Records are encoded at once, while the previous group is synced, so that a group can be written
as soon as the disk is free.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from crc32c import crc32c

from anabranch.model.position import Position
from anabranch.storage.interface import AppendSink, LedgerSummary, Payload, StorageError, StoredEntry
from anabranch.storage.ledger.ledger_files import LEDGER_START
from anabranch.storage.ledger.record_format import CRC, HEADER_BYTES, PAYLOAD_BYTES_MAX, REST
from anabranch.storage.ledger.sparse_index import IndexPoint, SparseIndex
from anabranch.storage.log.append_gate import AppendGate
from anabranch.storage.log.group_commit import JOIN_BELOW_BYTES, Batch

_pack_rest = REST.pack
_pack_crc = CRC.pack
_new = tuple.__new__


class OpenLedger:
    __slots__ = (
        "ledger_id",
        "next_entry_id",
        "durable_entry_id",
        "written_entry_id",
        "bytes",
        "messages",
        "index",
        "cache",
        "cache_first",
        "is_sealed",
        "is_cached",
        "cached_chunks",
        "cached_bytes",
        "_gate",
        "_gather",
        "_publish_time_of",
        "_refusal",
        "_batch",
        "_end",
        "_point_entry",
        "_point_offset",
        "durable_messages",
        "durable_bytes",
        "_durable_end",
        "_last_payload",
        "_waiters",
    )

    def __init__(
        self,
        ledger_id: int,
        gate: AppendGate,
        gather: Callable[[Batch], None],
        index: SparseIndex,
        publish_time_of: Callable[[Payload], int],
    ) -> None:
        self.ledger_id = ledger_id
        self.next_entry_id = 0
        self.durable_entry_id = -1
        self.written_entry_id = -1  # last entry that is in the ledger file
        self.bytes = 0
        self.messages = 0
        self.index = index
        self.cache: dict[int, StoredEntry] = {}  # cache_first … durable_entry_id, without holes
        self.cache_first = 0
        self.is_sealed = False
        self.is_cached = True  # False: its topic is closed, and entries leave memory once they are in the file
        self.cached_chunks = self.cached_bytes = 0  # of `TailCache`
        self._gate = gate
        self._gather = gather
        self._publish_time_of = publish_time_of
        self._refusal: StorageError | None = None
        self._batch: Batch | None = None
        self._end = LEDGER_START
        self._point_entry = 0
        self._point_offset = LEDGER_START
        self.durable_messages = 0
        self.durable_bytes = 0
        self._durable_end = LEDGER_START
        self._last_payload: Payload | None = None
        self._waiters: list[asyncio.Future[None]] = []

    # appending ----------------------------------------------------------------------------------------------------

    def append(self, payload: Payload, messages: int, sink: AppendSink, context: Any) -> int:
        return self.append_run((payload,), (messages,), sink, (context,))

    def append_run(
        self, payloads: Sequence[Payload], messages: Sequence[int], sink: AppendSink, contexts: Sequence[Any]
    ) -> int:
        gate, total = self._gate, sum(map(len, payloads))
        if gate.refusal is not None or self._refusal is not None or total > PAYLOAD_BYTES_MAX:
            self._refuse(total)
        batch = self._batch
        if batch is None:
            points = self.index.points
            batch = self._batch = Batch(self.ledger_id, self._end, len(points), points[0] if points else None)
            batch.sink = sink
            self._gather(batch)
        ledger_id, stamp, offset, first = self.ledger_id, gate.log_stamp, self._end, self.next_entry_id
        pieces, add_entry, known, written = batch.pieces, batch.entries.append, self.messages, self.bytes
        for entry_id, (payload, count) in enumerate(zip(payloads, messages, strict=True), first):
            if entry_id >= self._point_entry or offset >= self._point_offset:
                self.messages, self.bytes = known, written
                self._add_point(batch, entry_id, offset, payload)
            size = len(payload)
            rest = _pack_rest(size, ledger_id, entry_id, offset, count, stamp)
            if size < JOIN_BELOW_BYTES:
                record = rest + payload
                pieces += (_pack_crc(crc32c(record)), record)
            else:
                pieces += (_pack_crc(crc32c(payload, crc32c(rest))) + rest, payload)
            # Same as StoredEntry(Position(…), …) at half the cost; readers get the same object once it is durable.
            add_entry(_new(StoredEntry, (_new(Position, (ledger_id, entry_id)), count, payload, None)))
            offset += HEADER_BYTES + size
            written += size
            known += count
        self.messages, self.bytes = known, written
        batch.contexts += contexts
        self.next_entry_id = first + len(payloads)
        self._end = offset
        return first

    def _refuse(self, size: int) -> NoReturn:
        if self._refusal is not None:
            raise type(self._refusal)(str(self._refusal))
        if self._gate.refusal is not None:
            raise self._gate.refuse()
        raise StorageError(f"entry of {size} bytes is larger than the storage limit")

    def _add_point(self, batch: Batch, entry_id: int, offset: int, payload: Payload) -> None:
        point = IndexPoint(entry_id, offset, self.messages, self.bytes, self._publish_time_of(payload))
        self.index.add(point)
        batch.points.append(point)
        self._point_entry = entry_id + self.index.step_entries
        self._point_offset = offset + self.index.step_bytes

    def close_batch(self) -> None:
        """The open batch enters a group: fix its totals. Later appends start another batch."""
        batch, self._batch = self._batch, None
        assert batch is not None, "nothing was gathered"
        batch.end, batch.messages, batch.bytes = self._end, self.messages, self.bytes
        batch.last_entry_id = self.next_entry_id - 1

    # outcome of a batch
    # --------------------------------------------------------------------------------------------------

    def on_durable(self, batch: Batch) -> None:
        """The batch is durable, so readers may see it."""
        entries = batch.entries
        self.cache.update(enumerate(entries, entries[0].position.entry))
        self.durable_entry_id = batch.last_entry_id
        self.durable_messages, self.durable_bytes, self._durable_end = batch.messages, batch.bytes, batch.end
        last = entries[-1].payload
        self._last_payload = (
            bytes(last) if isinstance(last, memoryview) else last
        )  # a view would keep its whole block in memory
        if self._waiters:
            self._wake()

    def fail(self, error: StorageError) -> None:
        """An append failed. No later entry may become durable, so this ledger ends at its last durable entry."""
        self._refusal = error
        self._batch = None
        self.index.cut(self.durable_entry_id + 1)
        self._wake()

    def evict(self, upto: int) -> None:
        """Drop cached entries up to this one; they are in the file."""
        cache = self.cache
        for entry_id in range(self.cache_first, upto + 1):
            del cache[entry_id]
        self.cache_first = upto + 1

    def _wake(self) -> None:
        if self.is_drained:
            for waiter in self._waiters:
                if not waiter.done():
                    waiter.set_result(None)
            self._waiters.clear()

    @property
    def is_drained(self) -> bool:
        return self._refusal is not None or self.durable_entry_id == self.next_entry_id - 1

    @property
    def is_closed(self) -> bool:
        """Sealed, and complete in its file."""
        return self.is_sealed and self.is_drained and self.written_entry_id >= self.durable_entry_id

    @property
    def is_spent(self) -> bool:
        """Closed, and without entries in memory."""
        return self.is_closed and not self.cache

    # sealing
    # -------------------------------------------------------------------------------------------------------------

    async def seal(self) -> LedgerSummary:
        self.is_sealed = True
        if not self.is_drained:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter
        if self._refusal is None:
            self._refusal = StorageError(f"ledger {self.ledger_id} is sealed")
        return self.summary()

    def summary(self) -> LedgerSummary:
        return LedgerSummary(
            ledger_id=self.ledger_id,
            entries=self.durable_entry_id + 1,
            messages=self.durable_messages,
            bytes=self.durable_bytes,
            file_bytes=self._durable_end if self.durable_entry_id >= 0 else 0,
            last_publish_ms=self._publish_time_of(self._last_payload) if self._last_payload is not None else 0,
        )
