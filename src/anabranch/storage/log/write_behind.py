"""Queue of batches that are durable in the log but not in the ledger files, and when they are due. No I/O, no clock.

A ledger is due when it has enough bytes waiting, when its oldest batch is too old, or when all ledgers together use too
much memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from anabranch.storage.log.group_commit import Batch

PORTIONS = 64
"""Number of portions over which the ledgers that are due by age are spread."""


@dataclass(slots=True)
class _Waiting:
    since: float
    batches: list[Batch] = field(default_factory=list)
    bytes: int = 0


class WriteBehind:
    def __init__(self, ledger_bytes: int, bytes_max: int, age_max: float) -> None:
        self._ledger_bytes = ledger_bytes
        self._bytes_max = bytes_max
        self._age_max = age_max
        self._waiting: dict[int, _Waiting] = {}  # oldest first
        self._ripe: set[int] = set()
        self._writing: dict[int, list[Batch]] = {}
        self._aged_after = 0.0  # ledgers that are due by age are written in small portions, not all at once
        self.bytes = 0  # waiting or being written

    @property
    def is_empty(self) -> bool:
        return not self._waiting and not self._writing

    @property
    def is_over(self) -> bool:
        return self.bytes > self._bytes_max

    def holds(self, ledger_id: int) -> bool:
        return ledger_id in self._waiting or ledger_id in self._writing

    def add(self, batch: Batch, now: float) -> None:
        waiting = self._waiting.get(batch.ledger_id)
        if waiting is None:
            waiting = self._waiting[batch.ledger_id] = _Waiting(now)
        waiting.batches.append(batch)
        waiting.bytes += batch.size
        self.bytes += batch.size
        if waiting.bytes >= self._ledger_bytes:
            self._ripe.add(batch.ledger_id)

    def claim(self, ledger_id: int) -> tuple[Batch, ...] | None:
        """Hand a ledger's waiting batches to a direct write; None while some are being written, because order would
        break.
        """
        if ledger_id in self._writing:
            return None
        waiting = self._waiting.pop(ledger_id, None)
        self._ripe.discard(ledger_id)
        if waiting is None:
            return ()
        self.bytes -= waiting.bytes
        return tuple(waiting.batches)

    def take(self, now: float, *, everything: bool = False) -> list[list[Batch]]:
        """Batches to write now, in order per ledger. They count as being written until `done` or `failed`."""
        if self._writing:
            return []
        if everything or self.is_over:
            chosen = list(self._waiting)
        else:
            chosen = [*self._ripe, *self._aged(now)]
        for ledger_id in chosen:
            self._writing[ledger_id] = self._waiting.pop(ledger_id).batches
            self._ripe.discard(ledger_id)
        return list(self._writing.values())

    def _aged(self, now: float) -> list[int]:
        """The oldest ledgers that are due by age, limited so that one round over all of them takes half that age."""
        if now < self._aged_after:
            return []
        room = max(len(self._waiting) // (PORTIONS // 2), 1)
        chosen: list[int] = []
        for ledger_id, waiting in self._waiting.items():
            if now - waiting.since < self._age_max or len(chosen) == room:
                break
            if ledger_id not in self._ripe:
                chosen.append(ledger_id)
        if chosen:
            self._aged_after = now + self._age_max / PORTIONS
        return chosen

    def done(self) -> list[Batch]:
        """The write has finished. Returns the last batch of each ledger."""
        written, self._writing = self._writing, {}
        self.bytes -= sum(batch.size for batches in written.values() for batch in batches)
        return [batches[-1] for batches in written.values() if batches]

    def failed(self, now: float) -> None:
        """The write has failed: its batches wait again, before those added meanwhile."""
        returned, self._writing = self._writing, {}
        for ledger_id, batches in returned.items():
            self.put_back(ledger_id, batches, now, is_counted=True)

    def put_back(self, ledger_id: int, batches: list[Batch], now: float, *, is_counted: bool = False) -> None:
        if not batches:
            return
        size = sum(batch.size for batch in batches)
        waiting = self._waiting.get(ledger_id)
        if waiting is None:
            waiting = self._waiting[ledger_id] = _Waiting(now)
        waiting.batches[:0] = batches
        waiting.bytes += size
        if not is_counted:
            self.bytes += size
        if waiting.bytes >= self._ledger_bytes:
            self._ripe.add(ledger_id)

    def drop(self, ledger_id: int) -> None:
        """The ledger is deleted: drop what waits, and do not requeue what is being written."""
        waiting = self._waiting.pop(ledger_id, None)
        self._ripe.discard(ledger_id)
        if waiting is not None:
            self.bytes -= waiting.bytes
        if ledger_id in self._writing:
            self.bytes -= sum(batch.size for batch in self._writing[ledger_id])
            self._writing[ledger_id] = []

    def next_due(self) -> float | None:
        """When the oldest waiting ledger is due by age."""
        for waiting in self._waiting.values():
            return max(waiting.since + self._age_max, self._aged_after)
        return None
