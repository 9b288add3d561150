"""Messages that must not be delivered before their time. A pure heap; the shell owns the timer.

Held in memory only: after a restart the unacknowledged entries are read again and land here again.
"""

from __future__ import annotations

import heapq

from anabranch.model.position import Position


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
        """Those whose time has come, removed, in position order."""
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
