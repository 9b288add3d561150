"""Waiting for a change without missing one: a counter that grows, and a wait until it differs.

An event that several tasks clear loses changes between a task's check and its wait. Here each task reads the counter
before it checks, and then waits for another value.
"""

from __future__ import annotations

import asyncio


class Changes:
    """A change counter for any number of waiters on one event loop."""

    def __init__(self) -> None:
        self.count = 0
        self._next = asyncio.Event()

    def happened(self) -> None:
        self.count += 1
        self._next.set()
        self._next = asyncio.Event()

    async def wait(self, seen: int) -> None:
        """Wait until the counter differs from `seen`; returns at once if it does already."""
        while self.count == seen:
            await self._next.wait()
