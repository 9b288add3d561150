"""When messages of a queue come back: nacked ones after their delay, forgotten ones after a timeout. A machine.

Times are seconds of any clock that never runs backwards; they come with the calls. Knows no broker: what is due comes
out, and whoever asked has it delivered again. What is acknowledged meanwhile is forgotten here.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from typing import Generic, TypeVar

from anabranch.client.messages.message import MessageId

K = TypeVar("K", bound=Hashable)

PENDING_MAX = 100_000


class Redelivery(Generic[K]):
    """`timeout_s` None: what the application forgets stays with it."""

    def __init__(self, timeout_s: float | None = None, *, pending_max: int = PENDING_MAX) -> None:
        self._timeout_s = timeout_s
        self._pending_max = pending_max
        self._due: dict[tuple[K, MessageId], float] = {}
        self._heap: list[tuple[float, int, tuple[K, MessageId]]] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._due)

    def handed_out(self, source: K, one: MessageId, now: float) -> None:
        """The application has it."""
        if self._timeout_s is not None:
            self._set(source, one, now + self._timeout_s)

    def nacked(self, source: K, one: MessageId, at: float) -> bool:
        """Bring it back then. False: more are waiting than is good, bring it back at once."""
        if len(self._due) >= self._pending_max and (source, one) not in self._due:
            return False
        self._set(source, one, at)
        return True

    def done(self, source: K, one: MessageId) -> None:
        """Acknowledged, or brought back by other means."""
        if self._due:  # mostly nobody counts, and hashing an id has its price
            self._due.pop((source, one), None)

    def forget(self, source: K) -> None:
        """The channel is gone, and whoever has it next gets everything of it."""
        for key in [key for key in self._due if key[0] == source]:
            del self._due[key]

    def next_due(self) -> float | None:
        """When `due` has something at the latest."""
        while self._heap and self._due.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def due(self, now: float) -> dict[K, list[MessageId]]:
        found: dict[K, list[MessageId]] = {}
        while (at := self.next_due()) is not None and at <= now:
            source, one = heapq.heappop(self._heap)[2]
            del self._due[source, one]
            found.setdefault(source, []).append(one)
        return found

    def _set(self, source: K, one: MessageId, at: float) -> None:
        key = (source, one)
        self._due[key] = at
        self._count += 1
        heapq.heappush(self._heap, (at, self._count, key))
        if len(self._heap) > 2 * len(self._due) + 64:  # most of it is of messages that are done with
            self._heap = [item for item in self._heap if self._due.get(item[2]) == item[0]]
            heapq.heapify(self._heap)
