"""Fan-out of changes to the watches of one process.

A watch that is read too slowly loses details, never the fact that something changed: beyond the bound its queue becomes
a single INVALIDATED.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable

from anabranch.metadata.interface import RESERVED, Change, ChangeKind, check_tree, is_within

CHANGES_MAX = 4096


class TreeWatch:
    """The bounded queue of one watch; the `Watch` of all backends."""

    def __init__(self, tree: str, registry: dict[TreeWatch, None]) -> None:
        self._tree = tree
        self._registry = registry
        self._changes: deque[Change] = deque()
        self._ready = asyncio.Event()
        self._closed = False
        registry[self] = None

    def shows(self, key: str) -> bool:
        return is_within(key, self._tree) and (bool(self._tree) or not is_within(key, RESERVED))

    def offer(self, change: Change) -> None:
        if not self._concerns(change):
            return
        if change.kind is ChangeKind.INVALIDATED or len(self._changes) >= CHANGES_MAX:
            self._changes.clear()
            self._changes.append(Change(ChangeKind.INVALIDATED, self._tree or "/"))
        else:
            self._changes.append(change)
        self._ready.set()

    def _concerns(self, change: Change) -> bool:
        if change.kind is ChangeKind.INVALIDATED:
            lost = "" if change.key == "/" else change.key
            return is_within(lost, self._tree) or is_within(self._tree, lost)
        return self.shows(change.key)

    def __aiter__(self) -> AsyncIterator[Change]:
        return self

    async def __anext__(self) -> Change:
        while not self._changes:
            if self._closed:
                raise StopAsyncIteration
            self._ready.clear()
            await self._ready.wait()
        return self._changes.popleft()

    def close(self) -> None:
        self._closed = True
        self._registry.pop(self, None)
        self._ready.set()


class WatchFanout:
    """All watches of one store."""

    def __init__(self) -> None:
        self._open: dict[TreeWatch, None] = {}  # in the order of creation, so that simulations are deterministic

    def __len__(self) -> int:
        return len(self._open)

    def add(self, prefix: str) -> TreeWatch:
        return TreeWatch(check_tree(prefix), self._open)

    def is_watched(self, key: str) -> bool:
        """Does any watch show changes of this key?"""
        return any(watch.shows(key) for watch in self._open)

    def publish(self, changes: Iterable[Change]) -> None:
        if not self._open:
            return
        for change in changes:
            for watch in tuple(self._open):
                watch.offer(change)

    def close(self) -> None:
        for watch in tuple(self._open):
            watch.close()
