"""Loop thread: calls of any thread run on one loop, results and interrupts are passed, its own thread is refused."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from anabranch.runtime.loop_thread import LoopThread


class OwnThread(Exception):
    pass


async def where() -> tuple[str, asyncio.AbstractEventLoop]:
    return threading.current_thread().name, asyncio.get_running_loop()


def test_calls_of_many_threads_run_on_one_loop() -> None:
    portal = LoopThread("loop")
    with ThreadPoolExecutor(4) as threads:
        found = set(threads.map(lambda _: portal.call(where), range(20)))
    assert len(found) == 1
    assert found.pop()[0] == "loop"


def test_errors_come_back() -> None:
    async def failing() -> None:
        raise KeyError("k")

    with pytest.raises(KeyError):
        LoopThread("loop").call(failing)


def test_call_from_the_loop_thread_is_refused() -> None:
    portal = LoopThread("loop", own_thread_error=OwnThread)

    async def inside() -> None:
        portal.call(inside)

    with pytest.raises(OwnThread):
        portal.call(inside)


def test_interrupted_call_is_cancelled_on_the_loop() -> None:
    portal, begun, cancelled = LoopThread("loop"), threading.Event(), threading.Event()

    async def endless() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    waiting = portal.submit(endless)
    assert begun.wait(60)
    waiting.cancel()
    assert cancelled.wait(60)
