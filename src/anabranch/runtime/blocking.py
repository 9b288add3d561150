"""Port for blocking work: a small pool for independent calls, and named workers that keep their order.

Results are delivered on the event loop, with one wake-up each.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any, ParamSpec, Protocol, TypeVar

from anabranch.runtime.logs import get_logger

P = ParamSpec("P")
T = TypeVar("T")
log = get_logger(__name__)


class Worker(Protocol):
    """One thread with an ordered queue."""

    def submit(self, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        """Run `work` after everything submitted before; `done(result, error)` is called on the event loop."""

    async def close(self) -> None:
        """Finish the submitted work, then end the thread."""


class Blocking(Protocol):
    async def run(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...

    def worker(self, name: str) -> Worker: ...

    async def close(self) -> None: ...


class ThreadWorker:
    def __init__(self, name: str, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._inbox: SimpleQueue[tuple[Callable[[], Any], Callable[[Any, BaseException | None], None]] | None] = (
            SimpleQueue()
        )
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        self._inbox.put((work, done))

    def _run(self) -> None:
        while (job := self._inbox.get()) is not None:
            work, done = job
            result: Any = None
            error: BaseException | None = None
            try:
                result = work()
            except BaseException as raised:  # passed to `done`, so nothing is swallowed
                error = raised
            if self._loop.is_closed():
                log.warning(
                    "result of blocking work dropped: its event loop is closed", extra={"worker": self._thread.name}
                )
                return
            self._loop.call_soon_threadsafe(done, result, error)
            del job, work, done, result, error

    async def close(self) -> None:
        self._inbox.put(None)
        await self._loop.run_in_executor(None, self._thread.join)


class ThreadBlocking:
    """Real threads. Create it on the running event loop; `close` joins all threads."""

    def __init__(self, threads: int = 4) -> None:
        self._loop = asyncio.get_running_loop()
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="blocking")
        self._workers: list[ThreadWorker] = []

    async def run(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._loop.run_in_executor(self._pool, lambda: call(*args, **kwargs))

    def worker(self, name: str) -> Worker:
        worker = ThreadWorker(name, self._loop)
        self._workers.append(worker)
        return worker

    async def close(self) -> None:
        for worker in self._workers:
            await worker.close()
        self._workers.clear()
        await self._loop.run_in_executor(None, self._pool.shutdown)
