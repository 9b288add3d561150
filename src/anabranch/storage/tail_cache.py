"""Decides which recent entries stay in memory: first in, first out over all ledgers, within a budget of bytes. No I/O.

Entries that are not in their ledger file yet are never evicted; they are few, because write-behind follows soon. When
their turn comes, they are set aside, so that they do not hold back the eviction of newer entries. Once written, they
are evicted next. Entries of one ledger are therefore always evicted in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from anabranch.storage.log.open_ledger import OpenLedger

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
        self._aside: dict[int, deque[_Chunk]] = {}  # ledger -> chunks whose turn came before they were written
        self._ready: deque[_Chunk] = deque()  # written since they were set aside; older than anything in `_chunks`
        self.bytes = 0

    def add(self, ledger: OpenLedger, last: int, entries: int, size: int) -> None:
        cost = size + entries * ENTRY_OVERHEAD_BYTES
        self._chunks.append(_Chunk(ledger, last, cost))
        self.bytes += cost

    def written(self, ledger: OpenLedger) -> None:
        """More of this ledger is in its file now, or it is deleted: chunks set aside for it may be evicted next."""
        aside = self._aside.get(ledger.ledger_id)
        if aside is None:
            return
        while aside and _may_go(aside[0]):
            self._ready.append(aside.popleft())
        if not aside:
            del self._aside[ledger.ledger_id]

    def trim(self) -> None:
        while self.bytes > self._bytes_max and (self._ready or self._chunks):
            chunk = self._ready.popleft() if self._ready else self._chunks.popleft()
            ledger, last, cost = chunk
            if not _may_go(chunk):
                self._aside.setdefault(ledger.ledger_id, deque()).append(chunk)
                continue
            self.bytes -= cost
            if not ledger.is_deleted:
                ledger.evict(last)
                self._on_evicted(ledger)


def _may_go(chunk: _Chunk) -> bool:
    return chunk.last <= chunk.ledger.written_entry_id or chunk.ledger.is_deleted
