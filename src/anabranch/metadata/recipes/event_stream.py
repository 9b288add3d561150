"""Events for whoever listens, as async iterators. Knows nothing of stores.

A listener that does not keep up loses the oldest events, never the newest: recipes tell states, the last one counts.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Generic, Self, TypeVar

T = TypeVar("T")
NEWS_MAX = 256


class NewsReader(AsyncIterator[T]):
    """One listener's bounded queue; `close` (or the end of the source) ends the iteration."""

    def __init__(self, readers: dict[NewsReader[T], None]) -> None:
        self._readers = readers
        self._items: deque[T] = deque(maxlen=NEWS_MAX)
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
    """The source. Readers hear what is told after they were made."""

    def __init__(self) -> None:
        self._readers: dict[NewsReader[T], None] = {}  # told in the order they came, so that simulations repeat

    def read(self) -> NewsReader[T]:
        reader: NewsReader[T] = NewsReader(self._readers)
        self._readers[reader] = None
        return reader

    def tell(self, item: T) -> None:
        for reader in tuple(self._readers):
            reader.offer(item)

    def close(self) -> None:
        for reader in tuple(self._readers):
            reader.close()
