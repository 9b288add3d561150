"""Event streams: async iterators over the events of a recipe, for any number of readers.

A reader that falls behind loses the oldest events, never the newest: recipes report states, and the last one counts.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Generic, Self, TypeVar

T = TypeVar("T")
EVENTS_MAX = 256


class EventReader(AsyncIterator[T]):
    """The bounded queue of one reader. Closing it, or its stream, ends the iteration."""

    def __init__(self, readers: dict[EventReader[T], None]) -> None:
        self._readers = readers
        self._items: deque[T] = deque(maxlen=EVENTS_MAX)
        self._ready = asyncio.Event()
        self._is_closed = False

    def offer(self, item: T) -> None:
        self._items.append(item)
        self._ready.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        while not self._items:
            if self._is_closed:
                raise StopAsyncIteration
            self._ready.clear()
            await self._ready.wait()
        return self._items.popleft()

    def close(self) -> None:
        self._is_closed = True
        self._readers.pop(self, None)
        self._ready.set()


class EventStream(Generic[T]):
    """The source. A reader receives the events published after it was made."""

    def __init__(self) -> None:
        self._readers: dict[
            EventReader[T], None
        ] = {}  # in the order of creation, so that simulations are deterministic

    def read(self) -> EventReader[T]:
        reader: EventReader[T] = EventReader(self._readers)
        self._readers[reader] = None
        return reader

    def publish(self, item: T) -> None:
        for reader in tuple(self._readers):
            reader.offer(item)

    def close(self) -> None:
        for reader in tuple(self._readers):
            reader.close()
