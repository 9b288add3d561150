"""Which recent entries stay in memory: first in, first out over all ledgers, within one budget of bytes. No I/O.

Entries that are not in their ledger file yet are never evicted; they are few, because they are written behind soon.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from anabranch.storage.writer import OpenLedger

ENTRY_OVERHEAD_BYTES = 250
"""Memory of one cached entry besides its payload."""


class _Chunk(NamedTuple):
    ledger: OpenLedger
    last: int
    cost: int


class TailCache:
    def __init__(self, bytes_max: int, on_evicted: Callable[[OpenLedger], None]) -> None:
        self._bytes_max = bytes_max
        self._on_evicted = on_evicted
        self._chunks: deque[_Chunk] = deque()
        self.bytes = 0

    def add(self, ledger: OpenLedger, last: int, entries: int, size: int) -> None:
        cost = size + entries * ENTRY_OVERHEAD_BYTES
        self._chunks.append(_Chunk(ledger, last, cost))
        self.bytes += cost

    def trim(self) -> None:
        chunks = self._chunks
        while self.bytes > self._bytes_max and chunks:
            ledger, last, cost = chunks[0]
            if last > ledger.written_entry_id and not ledger.is_deleted:
                return
            chunks.popleft()
            self.bytes -= cost
            if not ledger.is_deleted:
                ledger.evict(last)
                self._on_evicted(ledger)
