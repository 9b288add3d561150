"""Cache that serves the last known value while the metadata store is unavailable.

Without a known value the failure is raised. After a failure the store is not tried again for a moment, so that clients
that reconnect all at once do not each wait for a deadline.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from anabranch.metadata.interface import StoreUnavailable
from anabranch.runtime.clock import Clock

COUNT_MAX = 10_000
AWAY_SECONDS = 1.0

T = TypeVar("T")


class StaleWhileUnavailableCache(Generic[T]):
    def __init__(self, clock: Clock, count_max: int = COUNT_MAX) -> None:
        self._clock = clock
        self._count_max = count_max
        self._known: OrderedDict[str, T] = OrderedDict()
        self._away_until = 0.0

    def __len__(self) -> int:
        return len(self._known)

    async def recall(self, key: str, ask: Callable[[], Awaitable[T]]) -> T:
        """The value, or the last known one while the store is unavailable. Any other failure drops the known value."""
        if key in self._known and self._clock.monotonic() < self._away_until:
            return self._known[key]
        try:
            answer = await ask()
        except StoreUnavailable:
            self._away_until = self._clock.monotonic() + AWAY_SECONDS
            if key not in self._known:
                raise
            return self._known[key]
        except Exception:
            self._known.pop(key, None)
            raise
        self._known[key] = answer
        self._known.move_to_end(key)
        if len(self._known) > self._count_max:
            self._known.popitem(last=False)
        return answer
