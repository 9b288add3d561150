"""A `LedgerStore` in memory, for tests and simulations. The test decides when appends become durable or fail.

`crashed()` returns the store after a power cut: it holds only what was durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from anabranch.model.position import Position
from anabranch.storage.interface import (
    AppendSink,
    CorruptEntry,
    IgnoringListener,
    LedgerNotFound,
    LedgerSummary,
    Payload,
    StorageError,
    StoredEntry,
    StoreListener,
)


class MemoryWriter:
    def __init__(self, store: MemoryLedgerStore, ledger_id: int) -> None:
        self._store = store
        self.ledger_id = ledger_id
        self.next_entry_id = 0
        self.durable_entry_id = -1
        self.durable_bytes = 0
        self.durable_messages = 0
        self.bytes = 0
        self.messages = 0
        self.failure: StorageError | None = None
        self.is_sealed = False

    def append(self, payload: Payload, messages: int, sink: AppendSink, context: Any) -> int:
        assert not self.is_sealed, "append to a sealed ledger"
        if self._store.refusal is not None:
            raise self._store.refusal
        entry_id = self.next_entry_id
        self.next_entry_id += 1
        self.bytes += len(payload)
        self.messages += messages
        entry = StoredEntry(Position(self.ledger_id, entry_id), messages, payload)
        self._store.submit(_Append(self, entry, sink, context))
        return entry_id

    def append_run(
        self, payloads: Sequence[Payload], messages: Sequence[int], sink: AppendSink, contexts: Sequence[Any]
    ) -> int:
        first = self.next_entry_id
        for payload, count, context in zip(payloads, messages, contexts, strict=True):
            self.append(payload, count, sink, context)
        return first

    async def seal(self) -> LedgerSummary:
        self.is_sealed = True
        while self.failure is None and self.durable_entry_id + 1 < self.next_entry_id:
            await self._store.wait_group()
        return await self._store.summarize(self.ledger_id)


class _Append(NamedTuple):
    """One entry that is not durable yet."""

    writer: MemoryWriter
    entry: StoredEntry
    sink: AppendSink
    context: Any


class MemoryLedgerStore:
    def __init__(self, *, publish_time_of: Callable[[Payload], int] = lambda payload: 0, auto: bool = True) -> None:
        self._listener: StoreListener = IgnoringListener()
        self.refusal: StorageError | None = None  # appends are refused at once
        self.fail_groups: StorageError | None = None  # groups fail
        self.corrupt: set[tuple[int, int]] = set()
        self.uncached: set[int] = set()
        self.groups = 0
        self._publish_time_of = publish_time_of
        self._auto = auto
        self._durable: dict[int, list[tuple[int, bytes]]] = {}
        self._queue: list[_Append] = []
        self._is_scheduled = False
        self._group_done: asyncio.Future[None] | None = None

    def start(self, listener: StoreListener) -> None:
        self._listener = listener

    @property
    def ledger_ids(self) -> set[int]:
        return set(self._durable)

    @property
    def queued(self) -> int:
        return len(self._queue)

    def crashed(self, *, auto: bool | None = None) -> MemoryLedgerStore:
        after = MemoryLedgerStore(publish_time_of=self._publish_time_of, auto=self._auto if auto is None else auto)
        after._durable = {ledger: list(entries) for ledger, entries in self._durable.items()}
        return after

    def submit(self, append: _Append) -> None:
        self._queue.append(append)
        if self._auto and not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._run_group)

    def _run_group(self) -> None:
        self._is_scheduled = False
        self.commit()

    def commit(self, count: int | None = None) -> None:
        """Make what is queued durable (or the first `count` of it), or fail it."""
        group = self._queue[:count]
        del self._queue[: len(group)]
        self.groups += 1
        for append in group:
            writer, entry, sink, context = append
            writer.failure = writer.failure or self.fail_groups
            if writer.failure is not None:
                sink.append_failed(entry, context, writer.failure)
                continue
            self._durable.setdefault(writer.ledger_id, []).append((entry.messages, bytes(entry.payload)))
            writer.durable_entry_id = entry.position.entry
            writer.durable_bytes += len(entry.payload)
            writer.durable_messages += entry.messages
            sink.appended((entry,), (context,))
        self._listener.on_group_end()
        if self._group_done is not None:
            self._group_done.set_result(None)
            self._group_done = None

    def commit_unheard(self, error: StorageError) -> None:
        """What is queued becomes durable, and its writers learn of a failure only: their answers were lost."""
        group = list(self._queue)
        self.fail_groups = error
        self.commit()
        self.fail_groups = None
        for append in group:
            stored = self._durable.setdefault(append.writer.ledger_id, [])
            stored.append((append.entry.messages, bytes(append.entry.payload)))

    async def wait_group(self) -> None:
        if self._group_done is None:
            self._group_done = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._group_done)

    def create(self, ledger_id: int) -> MemoryWriter:
        assert ledger_id not in self._durable, "ledger ids are never used twice"
        return MemoryWriter(self, ledger_id)

    async def summarize(self, ledger_id: int) -> LedgerSummary:
        entries = self._durable.get(ledger_id, [])
        size = sum(len(payload) for _, payload in entries)
        last_ms = self._publish_time_of(entries[-1][1]) if entries else 0
        return LedgerSummary(ledger_id, len(entries), sum(count for count, _ in entries), size, size, last_ms)

    def read_cached(self, ledger_id: int, first: int, entries_max: int, bytes_max: int) -> list[StoredEntry] | None:
        entries = self._durable.get(ledger_id, [])
        if first >= len(entries):
            return []
        if ledger_id in self.uncached or (ledger_id, first) in self.corrupt:
            return None
        return self._slice(ledger_id, first, len(entries), entries_max, bytes_max)

    def read_resident(
        self, ledger_id: int, first: int, end: int, entries_max: int, bytes_max: int
    ) -> list[StoredEntry] | None:
        return None

    async def read(self, ledger_id: int, first: int, end: int, entries_max: int, bytes_max: int) -> list[StoredEntry]:
        entries = self._durable.get(ledger_id)
        if entries is None:
            raise LedgerNotFound(f"no ledger {ledger_id}")
        if (ledger_id, first) in self.corrupt:
            raise CorruptEntry(f"{ledger_id}.ledger", first * 100, ledger_id, first)
        return self._slice(ledger_id, first, min(end, len(entries)), entries_max, bytes_max)

    def _slice(self, ledger_id: int, first: int, end: int, entries_max: int, bytes_max: int) -> list[StoredEntry]:
        found: list[StoredEntry] = []
        size = 0
        for entry_id in range(first, min(end, first + entries_max)):
            messages, payload = self._durable[ledger_id][entry_id]
            size += len(payload)
            if (found and size > bytes_max) or (ledger_id, entry_id) in self.corrupt:
                break
            found.append(StoredEntry(Position(ledger_id, entry_id), messages, payload))
        return found

    async def messages_before(self, ledger_id: int, entry_id: int) -> int:
        return sum(messages for messages, _ in self._durable.get(ledger_id, [])[:entry_id])

    async def first_entry_at(self, ledger_id: int, publish_ms: int, end: int) -> int:
        for entry_id, (_, payload) in enumerate(self._durable.get(ledger_id, [])[:end]):
            if self._publish_time_of(payload) >= publish_ms:
                return entry_id
        return end

    def evict(self, ledger_id: int) -> None:
        """Entries are in memory only."""

    async def delete(self, ledger_id: int) -> None:
        self._durable.pop(ledger_id, None)
