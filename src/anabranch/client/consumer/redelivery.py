"""State machine of redelivery in queue consumers: nacked messages after a delay, unacknowledged ones after a timeout.

Times are seconds of a monotonic clock, passed with each call. `due` returns the messages to deliver again. Acknowledged
messages are removed with `done`.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from typing import Generic, TypeVar

from anabranch.client.messages.message import MessageId

K = TypeVar("K", bound=Hashable)

PENDING_MAX = 100_000


class Redelivery(Generic[K]):
    """`timeout_s` None: no processing timeout."""

    def __init__(self, timeout_s: float | None = None, *, pending_max: int = PENDING_MAX) -> None:
        self._timeout_s = timeout_s
        self._pending_max = pending_max
        self._due: dict[tuple[K, MessageId], float] = {}
        self._nacks: set[tuple[K, MessageId]] = set()  # the others of `_due` are timeouts
        self._heap: list[tuple[float, int, tuple[K, MessageId]]] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._due)

    def handed_out(self, source: K, one: MessageId, now: float) -> None:
        """The message was handed out; its processing timeout starts."""
        if self._timeout_s is not None:
            self._set(source, one, now + self._timeout_s)
            self._nacks.discard((source, one))

    def nacked(self, source: K, one: MessageId, at: float) -> bool:
        """Redeliver the message at this time. Returns False if too many wait; it must be redelivered at once then."""
        if len(self._due) >= self._pending_max and (source, one) not in self._due:
            return False
        self._set(source, one, at)
        self._nacks.add((source, one))
        return True

    def take_nacks(self) -> dict[K, list[MessageId]]:
        """The consumer closes: remove all nacked messages, and return them."""
        found: dict[K, list[MessageId]] = {}
        for source, one in self._nacks:
            found.setdefault(source, []).append(one)
        for key in self._nacks:
            del self._due[key]
        self._nacks.clear()
        return found

    def done(self, source: K, one: MessageId) -> None:
        """The message was acknowledged or is being redelivered."""
        if self._due:  # usually empty, and hashing an id is not free
            self._due.pop((source, one), None)
            self._nacks.discard((source, one))

    def forget(self, source: K) -> None:
        """The source is detached; the broker redelivers all its messages."""
        for key in [key for key in self._due if key[0] == source]:
            del self._due[key]
            self._nacks.discard(key)

    def next_due(self) -> float | None:
        """The next time at which `due` may return something."""
        while self._heap and self._due.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def due(self, now: float) -> dict[K, list[MessageId]]:
        found: dict[K, list[MessageId]] = {}
        while (at := self.next_due()) is not None and at <= now:
            source, one = heapq.heappop(self._heap)[2]
            del self._due[source, one]
            self._nacks.discard((source, one))
            found.setdefault(source, []).append(one)
        return found

    def _set(self, source: K, one: MessageId, at: float) -> None:
        key = (source, one)
        self._due[key] = at
        self._count += 1
        heapq.heappush(self._heap, (at, self._count, key))
        if len(self._heap) > 2 * len(self._due) + 64:  # most items are outdated
            self._heap = [item for item in self._heap if self._due.get(item[2]) == item[0]]
            heapq.heapify(self._heap)
