"""Handlers of the blocking form: plain functions that `consumer.run` calls on threads."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

from anabranch.client.messages.message import Message
from anabranch.client.processing.handler_runner import Handler as AsyncHandler
from anabranch.runtime.loop_thread import LoopThread

Handler = Callable[[Message], object]


def run_on_threads(
    loop: LoopThread,
    handler: Handler,
    concurrency: int,
    run: Callable[[AsyncHandler], Awaitable[None]],
    stop: Callable[[], Awaitable[None]],
) -> None:
    """Waits until `run` ends on the loop. An interrupt of the caller drains, like a cancellation in asyncio: `stop`
    ends `run` and returns when it has drained."""
    pool = ThreadPoolExecutor(concurrency, "anabranch-handler")

    async def on_thread(message: Message) -> None:
        call = contextvars.copy_context().run  # the handler sees the context of its task, as with `asyncio.to_thread`
        await asyncio.get_running_loop().run_in_executor(pool, call, handler, message)

    running = loop.submit(lambda: run(on_thread))
    try:
        running.result()
    except BaseException:
        if not running.done():
            loop.call(stop)
        raise
    finally:
        pool.shutdown(wait=False)  # a handler that outlasts the drain timeout keeps its thread until it returns
