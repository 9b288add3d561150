"""Entries that must not be delivered before their time: a heap, and the timer of a subscription.

The heap is in memory only. After a restart the unacknowledged entries are read again and added again.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

from anabranch.model.position import Position
from anabranch.runtime.clock import Clock, Timer


class DelayedEntries:
    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._heap: list[tuple[int, Position]] = []
        self._known: set[Position] = set()

    def __len__(self) -> int:
        return len(self._known)

    @property
    def is_full(self) -> bool:
        return len(self._known) >= self._count_max

    @property
    def next_ms(self) -> int | None:
        return self._heap[0][0] if self._heap else None

    def add(self, deliver_at_ms: int, position: Position) -> None:
        if position not in self._known:
            self._known.add(position)
            heapq.heappush(self._heap, (deliver_at_ms, position))

    def due(self, now_ms: int) -> list[Position]:
        """Remove and return the entries that are due, in position order."""
        found = []
        while self._heap and self._heap[0][0] <= now_ms:
            position = heapq.heappop(self._heap)[1]
            if position in self._known:
                self._known.discard(position)
                found.append(position)
        return sorted(found)

    def clear(self) -> None:
        self._heap.clear()
        self._known.clear()


class DelayTimer:
    """The only timer of a subscription's delayed entries, set for the earliest one."""

    __slots__ = ("_call", "_clock", "_due_ms", "_timer")

    def __init__(self, clock: Clock, call: Callable[[], None]) -> None:
        self._clock = clock
        self._call = call
        self._timer: Timer | None = None
        self._due_ms: int | None = None

    def set(self, due_ms: int | None) -> None:
        """Call at `due_ms`; None: not at all. Called after every delivery, so it is cheap if nothing changed."""
        if due_ms == self._due_ms and (self._timer is not None or due_ms is None):
            return
        self.stop()
        self._due_ms = due_ms
        if due_ms is not None:
            seconds = max(0.0, (due_ms - self._clock.now_ms()) / 1000)
            self._timer = self._clock.call_later(seconds + 0.001, self._over)

    def _over(self) -> None:
        self._timer = None
        self._call()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
