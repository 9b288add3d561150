"""The way from threads to an event loop: one daemon thread with a loop, calls run there and are waited for here.

All blocking clients of a process share one portal. A call from its own thread would wait for itself for ever, so it is
refused. Knows threads; nothing of what is called.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Awaitable, Callable
from typing import TypeVar

from anabranch.client.errors import ClientError

T = TypeVar("T")


class WrongThread(ClientError):
    """A blocking call on the thread that would have to do the work."""

    code = "wrong-thread"


class LoopThread:
    """One event loop on one daemon thread; started by the first call, kept for the life of the process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def call(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run it there, wait here. An interrupt here cancels it there."""
        waiting = self.submit(work)
        try:
            return waiting.result()
        except BaseException:
            waiting.cancel()
            raise

    def submit(self, work: Callable[[], Awaitable[T]]) -> concurrent.futures.Future[T]:
        loop = self._running()
        if threading.current_thread() is self._thread:
            raise WrongThread("blocking calls must not be made on the thread of the event loop")

        async def run() -> T:
            return await work()

        return asyncio.run_coroutine_threadsafe(run(), loop)

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=loop.run_forever, name="anabranch-client", daemon=True)
                self._thread.start()
                self._loop = loop
            return self._loop


PORTAL = LoopThread()
"""Of the blocking clients of this process."""
