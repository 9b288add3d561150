"""`run` of a consumer: handlers are called until the consumer is closed, in one run at a time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager

from anabranch.client.config import Backoff, Seconds, seconds
from anabranch.client.context import ClientContext
from anabranch.client.errors import BadOption, ClientError, Unfinished
from anabranch.client.messages.message import Message
from anabranch.client.processing.handler_runner import Handler, HandlerRunner, RunnerPorts
from anabranch.client.processing.handler_state import HandlerState


class HandlerRuns:
    def __init__(
        self,
        receive: Callable[[], Awaitable[Message | None]],
        fail: Callable[[ClientError], None],
        context: ClientContext,
        subscription: str,
    ) -> None:
        """`fail` is called when a run ends before all that it has received is processed."""
        self._receive, self._fail = receive, fail
        self._context, self._subscription = context, subscription
        self._runner: HandlerRunner | None = None

    async def stop(self, timeout_s: float | None) -> None:
        """End the run as a cancellation does, and wait for that."""
        if self._runner is not None:
            await self._runner.stop(timeout_s)

    async def run(
        self,
        handler: Handler,
        state: HandlerState,
        ack: Callable[[Message], Awaitable[None]],
        nack: Callable[[Message, float | None], Awaitable[None]],
        backoff: Backoff | None,
        drain_timeout: Seconds,
    ) -> None:
        if self._runner is not None:
            raise BadOption("the consumer runs a handler already")
        ports = RunnerPorts(
            receive=self._receive,
            ack=ack,
            nack=nack,
            process=None if self._context.tracing is None else self._process_span,
            clock=self._context.clock,
            chance=self._context.chance,
        )
        self._runner = runner = HandlerRunner(handler, state, ports, backoff, seconds(drain_timeout, "drain_timeout"))
        try:
            await runner.run()
        finally:
            self._runner = None
            if runner.unacknowledged:  # a later cumulative ack would cover them
                left = f"`run` ended with {runner.unacknowledged} messages that were not processed"
                self._fail(Unfinished(f"{left}; close the consumer, then they are delivered again"))

    def _process_span(self, message: Message) -> AbstractContextManager[object]:
        tracing = self._context.tracing
        assert tracing is not None
        return tracing.process(message.topic, self._subscription, message)
