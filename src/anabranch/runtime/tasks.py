"""Owners of background tasks. Every task is started by a `TaskOwner` and ends with it.

`asyncio.TaskGroup` cancels all siblings when one task fails, but a broker must not stop serving thousands of topics
because one background step failed. So an owner logs the error of a task, and its `close` cancels and awaits the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from anabranch.runtime.clock import Clock
from anabranch.runtime.logs import get_logger

log = get_logger(__name__)

YIELD_SECONDS = 0.005
"""Longest work of a `YieldBudget` user between two turns of the event loop."""


async def give_way() -> None:
    """Give all other tasks a turn: for long work that rarely waits."""
    await asyncio.sleep(0)


class YieldBudget:
    """For long loops: gives the event loop a turn after every `YIELD_SECONDS` of work."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until = clock.monotonic() + YIELD_SECONDS

    async def spend(self) -> None:
        """Call it after each step."""
        if self._clock.monotonic() >= self._until:
            await self._clock.sleep(0)
            self._until = self._clock.monotonic() + YIELD_SECONDS


class TaskOwner:
    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: dict[asyncio.Task[Any], None] = {}  # in the order they were started
        self._closed = False

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any] | None:
        """Start `work`. Returns None, and closes the work unstarted, if the owner is closed."""
        if self._closed:
            work.close()
            return None
        task = asyncio.get_running_loop().create_task(work, name=f"{self._name}:{name}")
        self._tasks[task] = None
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("background task failed", extra={"task": task.get_name()}, exc_info=error)

    async def drain(self, seconds: float) -> None:
        """Wait a while for running tasks to finish; new work is still accepted."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=seconds)

    def cancel(self) -> None:
        """Like `close`, for callers that cannot wait: starts nothing new and cancels what runs."""
        self._closed = True
        for task in self._tasks:
            task.cancel()

    async def close(self) -> None:
        tasks = list(self._tasks)
        self.cancel()
        if tasks:
            await asyncio.gather(*tasks, return_exceptions=True)
