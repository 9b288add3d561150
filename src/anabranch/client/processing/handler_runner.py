"""`consumer.run(handler)`: receives, calls handlers concurrently, acknowledges what they finished, drains at the end.

A `HandlerState` decides what starts and what is acknowledged; this shell owns the tasks.

    run ──▶ receive, handle ──▶ cancelled, stopped by `close`, given up, or the consumer failed ──▶ drain

While it drains nothing new starts. Handlers that run may finish within `drain_timeout`, then they are cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from anabranch.client.config import Backoff
from anabranch.client.errors import BadOption, ClientError, Closed, HandlerFailed
from anabranch.client.messages.message import Message
from anabranch.client.processing.handler_state import (
    Acknowledge,
    Effect,
    GiveUp,
    HandlerState,
    Nack,
    RetryLater,
    Skip,
    Start,
)
from anabranch.runtime.chance import Chance
from anabranch.runtime.clock import Clock
from anabranch.runtime.logs import get_logger
from anabranch.runtime.tasks import TaskOwner

log = get_logger(__name__)

Handler = Callable[[Message], Awaitable[object]]
CANCEL_SECONDS = 5.0  # for handlers to end after they were cancelled


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerPorts:
    """What a consumer gives to a runner. `nack` has the delay in seconds; None: the consumer's own. `process` is
    entered while a handler runs."""

    receive: Callable[[], Awaitable[Message | None]]
    ack: Callable[[Message], Awaitable[None]]
    nack: Callable[[Message, float | None], Awaitable[None]]
    process: Callable[[Message], AbstractContextManager[object]] | None
    clock: Clock
    chance: Chance


class HandlerRunner:
    """Used once. `run` may be cancelled; `stop` ends it from another task."""

    def __init__(
        self, handler: Handler, state: HandlerState, ports: RunnerPorts, backoff: Backoff | None, drain_timeout_s: float
    ) -> None:
        """`backoff` None: the delay of a nack is the consumer's."""
        self._handler = handler
        self._state = state
        self._ports = ports
        self._backoff = backoff
        self._drain_timeout_s = drain_timeout_s
        self._tasks = TaskOwner("handlers")
        self._messages: dict[int, Message] = {}  # not acknowledged
        self._handlers: set[asyncio.Task[Any]] = set()
        self._last = 0
        self._room = asyncio.Event()
        self._stopping = asyncio.Event()
        self._ended = asyncio.Event()
        self._failure: BaseException | None = None

    @property
    def unacknowledged(self) -> int:
        """After `run`: how many messages were received and will be delivered again."""
        return self._state.unacknowledged

    async def run(self) -> None:
        """Returns after `stop` or when the consumer was closed. Raises the failure of the consumer or the handler."""
        receiving = self._tasks.spawn(self._receive(), "receive")
        assert receiving is not None
        try:
            await self._stopping.wait()
        finally:
            receiving.cancel()
            try:
                await self._drain()
            finally:
                self._ended.set()
        if self._failure is not None:
            raise self._failure

    async def stop(self, timeout_s: float | None) -> None:
        """Ends `run`, and waits until it has drained (None: `run` bounds that itself). A handler that calls this does
        not wait for itself."""
        self._stopping.set()
        if asyncio.current_task() in self._handlers:
            return
        try:
            async with asyncio.timeout(timeout_s):
                await self._ended.wait()
        except TimeoutError:
            log.warning("handlers still run while their consumer closes", extra={"handlers": len(self._handlers)})

    async def _receive(self) -> None:
        try:
            while True:
                while not self._state.has_room:
                    self._room.clear()
                    await self._room.wait()
                message = await self._ports.receive()
                assert message is not None
                self._last = number = self._last + 1
                self._messages[number] = message
                key = None if message.key is None else (message.topic, message.key)
                await self._perform(self._state.received(number, message.origin.where, key))
        except Closed:
            self._stopping.set()
        except ClientError as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self._stopping.set()

    async def _perform(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case Start(number):
                    task = self._tasks.spawn(self._handle(number), "handler")
                    if task is not None:
                        self._handlers.add(task)
                        task.add_done_callback(self._handlers.discard)
                case Acknowledge(numbers):
                    done = [self._messages.pop(number) for number in numbers]
                    await self._settle(self._ports.ack(done[-1]))
                case Nack(number):
                    message = self._messages.pop(number)
                    await self._settle(self._ports.nack(message, self._delay_s(message.redelivery_count)))
                case RetryLater(number, failures):
                    self._tasks.spawn(self._retry(number, failures), "retry")
                case Skip(number):
                    message = self._messages[number]
                    log.error("skipping a message whose handler failed on every attempt", extra=_fields(message))
                case GiveUp():
                    pass  # `_handle` raises the error, because it has the cause

    async def _settle(self, settling: Awaitable[None]) -> None:
        try:
            await settling
        except Closed:
            pass  # closed without waiting for the handlers: the message stays unacknowledged, and `run` ends

    async def _handle(self, number: int) -> None:
        message = self._messages[number]
        task = asyncio.current_task()
        assert task is not None
        try:
            with nullcontext() if self._ports.process is None else self._ports.process(message):
                result: object = self._handler(message)
                if not isinstance(result, Awaitable):
                    self._fail(BadOption("the handler must be an async function; anabranch.blocking takes plain ones"))
                    return
                await result
        except asyncio.CancelledError as error:
            if not task.cancelling():  # raised by the handler itself
                await self._failed(number, error)
                return
            await self._perform(self._state.cancelled(number))
            raise
        except Exception as error:
            await self._failed(number, error)
        else:
            await self._perform(self._state.finished(number))
        finally:
            self._room.set()

    async def _failed(self, number: int, error: BaseException) -> None:
        message = self._messages[number]
        effects = self._state.failed(number)
        if GiveUp(number) in effects:
            failure = HandlerFailed(message.topic, str(message.id), type(error).__name__)
            failure.__cause__ = error
            self._fail(failure)
            return
        log.warning("handler failed, its message is processed again", extra=_fields(message), exc_info=error)
        await self._perform(effects)

    async def _retry(self, number: int, failures: int) -> None:
        delay_s = self._delay_s(failures - 1)
        assert delay_s is not None
        await self._ports.clock.sleep(delay_s)
        await self._perform(self._state.due(number))

    def _delay_s(self, attempt: int) -> float | None:
        return None if self._backoff is None else self._backoff.delay(attempt, self._ports.chance.random())

    async def _drain(self) -> None:
        self._state.stop()
        try:
            if self._handlers:
                await asyncio.wait(set(self._handlers), timeout=self._drain_timeout_s)
        finally:
            self._tasks.cancel()
            await self._tasks.drain(CANCEL_SECONDS)
            if self._handlers:
                log.warning("handlers did not end after they were cancelled", extra={"handlers": len(self._handlers)})


def _fields(message: Message) -> dict[str, object]:
    return {"topic": message.topic, "id": str(message.id), "redelivery_count": message.redelivery_count}
