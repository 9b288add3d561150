"""Decides which recent entries stay in memory: first in, first out over all ledgers, within a budget of bytes. No I/O.

Entries that are not in their ledger file yet are never evicted; they are few, because write-behind follows soon. When
their turn comes, they are set aside, so that they do not hold back the eviction of newer entries. Once written, they
are evicted next. Entries of one ledger are therefore always evicted in order.

A ledger that is deleted, or whose topic is closed, is dropped with all its entries. Its chunks stay in the queue until
their turn comes or until they are most of the queue. They are numbers only, so they keep no ledger in memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, NamedTuple, Protocol, TypeVar

ENTRY_OVERHEAD_BYTES = 250
"""Memory of one cached entry besides its payload."""
DROPPED_MAX = 1_000
"""Chunks of dropped ledgers in the queue before it is rebuilt without them."""


class CachedLedger(Protocol):
    """A ledger with recent entries in memory."""

    ledger_id: int
    durable_entry_id: int
    cached_chunks: int
    cached_bytes: int

    @property
    def written_entry_id(self) -> int:
        """Entries up to this one can be read elsewhere."""

    def evict(self, upto: int) -> None: ...


_Ledger = TypeVar("_Ledger", bound=CachedLedger)


class _Chunk(NamedTuple):
    ledger_id: int
    last: int
    cost: int


class TailCache(Generic[_Ledger]):
    def __init__(self, bytes_max: int, on_evicted: Callable[[_Ledger], None]) -> None:
        self._bytes_max = bytes_max
        self._on_evicted = on_evicted
        self._ledgers: dict[int, _Ledger] = {}  # with entries in the cache
        self._chunks: deque[_Chunk] = deque()
        self._aside: dict[int, deque[_Chunk]] = {}  # ledger -> chunks whose turn came before they were written
        self._ready: deque[_Chunk] = deque()  # written since they were set aside; older than anything in `_chunks`
        self._dropped = 0  # chunks of dropped ledgers in `_chunks` and `_ready`
        self.bytes = 0

    def __len__(self) -> int:
        """Chunks in the queues."""
        return len(self._chunks) + len(self._ready)

    def add(self, ledger: _Ledger, last: int, entries: int, size: int) -> None:
        cost = size + entries * ENTRY_OVERHEAD_BYTES
        self._ledgers[ledger.ledger_id] = ledger
        ledger.cached_chunks += 1
        ledger.cached_bytes += cost
        self._chunks.append(_Chunk(ledger.ledger_id, last, cost))
        self.bytes += cost

    def written(self, ledger: _Ledger) -> None:
        """More of this ledger is in its file now: chunks set aside for it may be evicted next."""
        aside = self._aside.get(ledger.ledger_id)
        if aside is None:
            return
        while aside and aside[0].last <= ledger.written_entry_id:
            self._ready.append(aside.popleft())
        if not aside:
            del self._aside[ledger.ledger_id]

    def trim(self) -> None:
        while self.bytes > self._bytes_max and (self._ready or self._chunks):
            chunk = self._ready.popleft() if self._ready else self._chunks.popleft()
            ledger = self._ledgers.get(chunk.ledger_id)
            if ledger is None:
                self._dropped -= 1
            elif chunk.last > ledger.written_entry_id:
                self._aside.setdefault(chunk.ledger_id, deque()).append(chunk)
            else:
                self._evict(ledger, chunk)

    def _evict(self, ledger: _Ledger, chunk: _Chunk) -> None:
        self.bytes -= chunk.cost
        ledger.cached_chunks -= 1
        ledger.cached_bytes -= chunk.cost
        if not ledger.cached_chunks:
            del self._ledgers[chunk.ledger_id]
        ledger.evict(chunk.last)
        self._on_evicted(ledger)

    def drop(self, ledger: _Ledger) -> None:
        """Evict all entries of a ledger that is deleted, or that is complete in its file and not written any more."""
        if self._ledgers.pop(ledger.ledger_id, None) is None:
            return
        self.bytes -= ledger.cached_bytes
        self._dropped += ledger.cached_chunks - len(self._aside.pop(ledger.ledger_id, ()))
        ledger.cached_chunks = ledger.cached_bytes = 0
        ledger.evict(ledger.durable_entry_id)
        if self._dropped > DROPPED_MAX and self._dropped * 2 > len(self):
            self._chunks = self._without_dropped(self._chunks)
            self._ready = self._without_dropped(self._ready)
            self._dropped = 0

    def _without_dropped(self, chunks: deque[_Chunk]) -> deque[_Chunk]:
        return deque(chunk for chunk in chunks if chunk.ledger_id in self._ledgers)
