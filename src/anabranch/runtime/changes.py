"""Waiting for something to change, without missing one: a count that grows, and a wait for it to differ.

An event that several tasks clear loses what happens between one's look and its wait. Here each reads the count before
it looks, and waits for another one.
"""

from __future__ import annotations

import asyncio


class Changes:
    """For any number of waiters of one event loop."""

    def __init__(self) -> None:
        self.count = 0
        self._next = asyncio.Event()

    def happened(self) -> None:
        self.count += 1
        self._next.set()
        self._next = asyncio.Event()

    async def wait(self, seen: int) -> None:
        """Until the count is another one than was seen: at once, when it is already."""
        while self.count == seen:
            await self._next.wait()
