"""Oxia's order of keys. Pure.

Keys compare part by part between slashes, and at each level a key that ends there comes before all longer ones:

    /t/a   /t/b   /t/a/x   /t/a/y   /t/a/x/1   /t/b/z

So everything below a key is one range, its direct children are the beginning of that range, and parents come before
children within a shard. Keys of the port contain no NUL, which is used for bounds.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Generic, TypeVar

T = TypeVar("T")


def below(key: str) -> tuple[str, str]:
    """The range [start, end) of everything below `key` ("" for the root), without the key itself."""
    return key + "/", key + "\0/"


def behind(key: str) -> str:
    """The smallest bound that excludes `key`."""
    return key + "\0"


def behind_name(parent: str, name: str) -> str:
    """The smallest bound after everything below `parent/name`."""
    return f"{parent}/{name}\0/"


def order(key: str) -> str:
    """A string that compares as Oxia compares the key (code points and UTF-8 bytes sort alike). Not for bounds."""
    head, slash, last = key.rpartition("/")
    return "\1" + head.replace("/", "\0\1") + "\0\0" + last if slash else "\0" + last


def child_name(parent: str, key: str) -> str:
    """The first name of `key` below `parent`."""
    start = len(parent) + 1
    end = key.find("/", start)
    return key[start:] if end < 0 else key[start:end]


class PageMerge(Generic[T]):
    """Merges the pages of several sorted sources, with about one page of each in memory."""

    def __init__(self, sources: Iterable[int]) -> None:
        self._orders: dict[int, list[str]] = {source: [] for source in sources}
        self._items: dict[int, list[T]] = {source: [] for source in self._orders}
        self._running = set(self._orders)

    def wants(self) -> list[int]:
        """The sources whose next page is needed to continue."""
        return [source for source in self._orders if source in self._running and not self._orders[source]]

    def add(self, source: int, page: Iterable[tuple[str, T]]) -> None:
        """Append (key, item) pairs, ascending."""
        for key, item in page:
            self._orders[source].append(order(key))
            self._items[source].append(item)

    def end(self, source: int) -> None:
        self._running.discard(source)

    def take(self) -> list[T]:
        """All items that no later page can precede, in order. Empty while a page is needed."""
        if self.wants():
            return []
        bound = min((self._orders[source][-1] for source in self._running), default=None)
        ready: list[tuple[str, T]] = []
        for source, orders in self._orders.items():
            count = len(orders) if bound is None else bisect_right(orders, bound)
            items = self._items[source]
            ready.extend(zip(orders[:count], items[:count], strict=True))
            self._orders[source], self._items[source] = orders[count:], items[count:]
        ready.sort(key=lambda pair: pair[0])
        return [item for _, item in ready]
