"""What metadata said last, for the time that nobody can ask. Knows no keys' meaning and no store.

While the store is away the last answer stands in; without one the failure travels on. After a failure nobody waits for
the store again for a moment: clients that come back all at once are not held up one deadline each.
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
        """The answer, or the last one while there is none to be had. Any other failure forgets it."""
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
