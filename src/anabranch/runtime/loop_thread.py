"""An event loop on a daemon thread, for callers on other threads: a call runs on the loop, and its caller waits.

A call from the loop's own thread would wait for itself for ever, so it is refused with the error that the owner names.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


class LoopThread:
    """Started by the first call, kept for the life of the process."""

    def __init__(self, name: str, *, own_thread_error: Callable[[str], Exception] = RuntimeError) -> None:
        """`own_thread_error` makes the error of a blocking call on the loop's own thread from its text."""
        self._name = name
        self._own_thread_error = own_thread_error
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def call(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run `work` on the loop and wait for its result. An interrupt of the caller cancels it."""
        waiting = self.submit(work)
        try:
            return waiting.result()
        except BaseException:
            waiting.cancel()
            raise

    def submit(self, work: Callable[[], Awaitable[T]]) -> concurrent.futures.Future[T]:
        loop = self._running()
        if threading.current_thread() is self._thread:
            raise self._own_thread_error("a blocking call on the thread of the event loop would wait for itself")

        async def run() -> T:
            return await work()

        return asyncio.run_coroutine_threadsafe(run(), loop)

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=loop.run_forever, name=self._name, daemon=True)
                self._thread.start()
                self._loop = loop
            return self._loop
