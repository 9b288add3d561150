"""Reads of ledgers: recent entries from memory, older ones from ledger files.

Runs on the event loop; reads of files run on a thread.
"""

from __future__ import annotations

from collections.abc import Callable

from anabranch.runtime.blocking import Blocking
from anabranch.storage.interface import LedgerSummary, Payload, StoredEntry
from anabranch.storage.ledger.ledger_reader import LedgerReader
from anabranch.storage.log.open_ledger import OpenLedger


class LedgerReads:
    """The reading part of `LedgerStore`."""

    def __init__(
        self,
        ledgers: dict[int, OpenLedger],
        reader: LedgerReader,
        blocking: Blocking,
        publish_time_of: Callable[[Payload], int],
    ) -> None:
        """`ledgers`: those with entries in memory; other ledgers are read from their files."""
        self._ledgers = ledgers
        self._reader = reader
        self._blocking = blocking
        self._publish_time_of = publish_time_of

    def read_cached(self, ledger_id: int, first: int, entries_max: int, bytes_max: int) -> list[StoredEntry] | None:
        ledger = self._ledgers.get(ledger_id)
        if ledger is None:
            return None
        if first > ledger.durable_entry_id:
            return []
        cache = ledger.cache
        entry = cache.get(first)
        if entry is None:
            return None
        found = [entry]
        size = len(entry.payload)
        for entry_id in range(first + 1, min(first + entries_max, ledger.durable_entry_id + 1)):
            entry = cache[entry_id]
            size += len(entry.payload)
            if size > bytes_max:
                break
            found.append(entry)
        return found

    def read_resident(
        self, ledger_id: int, first: int, end: int, entries_max: int, bytes_max: int
    ) -> list[StoredEntry] | None:
        ledger = self._ledgers.get(ledger_id)
        if ledger is not None:
            end = min(end, ledger.cache_first)
        return self._reader.resident(ledger_id, first, end, entries_max, bytes_max) if first < end else None

    async def read(self, ledger_id: int, first: int, end: int, entries_max: int, bytes_max: int) -> list[StoredEntry]:
        ledger = self._ledgers.get(ledger_id)
        index = None
        if ledger is not None:
            end = min(end, ledger.durable_entry_id + 1)
            if first < end and first >= ledger.cache_first:
                cached = self.read_cached(ledger_id, first, min(entries_max, end - first), bytes_max)
                assert cached is not None, "the cache has no holes"
                return cached
            end = min(end, ledger.cache_first)
            index = ledger.index
        if first >= end:
            return []
        return await self._blocking.run(self._reader.entries, ledger_id, first, end, entries_max, bytes_max, index)

    async def summarize(self, ledger_id: int) -> LedgerSummary:
        ledger = self._ledgers.get(ledger_id)
        if ledger is not None:
            return ledger.summary()
        return await self._blocking.run(self._reader.summarize, ledger_id)

    async def messages_before(self, ledger_id: int, entry_id: int) -> int:
        ledger = self._ledgers.get(ledger_id)
        if ledger is None:
            return await self._blocking.run(self._reader.count_messages, ledger_id, entry_id, None)
        summary_end = ledger.durable_entry_id + 1
        if entry_id >= summary_end:
            return ledger.durable_messages
        point = ledger.index.before(entry_id)
        if point is None:
            return 0
        cache_first = ledger.cache_first
        if point.entry_id >= cache_first:
            cached = (ledger.cache[number].messages for number in range(point.entry_id, entry_id))
            return point.messages + sum(cached)
        rest = sum(ledger.cache[number].messages for number in range(cache_first, entry_id))
        upto = min(entry_id, cache_first)
        return rest + await self._blocking.run(self._reader.count_messages, ledger_id, upto, ledger.index)

    async def first_entry_at(self, ledger_id: int, publish_ms: int, end: int) -> int:
        ledger = self._ledgers.get(ledger_id)
        if ledger is None:
            return await self._blocking.run(self._reader.first_at, ledger_id, publish_ms, end, None)
        end = min(end, ledger.durable_entry_id + 1)
        point = ledger.index.before_time(publish_ms)
        start = point.entry_id if point else 0
        cached = [entry for number in range(max(start, ledger.cache_first), end) if (entry := ledger.cache.get(number))]
        if start < ledger.cache_first:
            upto = min(end, ledger.cache_first)
            found = await self._blocking.run(self._reader.first_at, ledger_id, publish_ms, upto, ledger.index)
            if found < upto:
                return found
        for entry in cached:
            if self._publish_time_of(entry.payload) >= publish_ms:
                return entry.position.entry
        return end
