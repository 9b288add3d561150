"""The blocking form of consumers. It contains no logic."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Self

from anabranch.client.arguments import check_concurrency
from anabranch.client.blocking_base import LOOP, Blocking, documented, on_loop
from anabranch.client.config import (
    Backoff,
    Retry,
    Seconds,
)
from anabranch.client.consumer.checkpoint import Checkpoint
from anabranch.client.consumer.checkpoint_consumer import CheckpointConsumer
from anabranch.client.consumer.consumer import BATCH_ROWS, Consumer
from anabranch.client.consumer.queue_consumer import QueueConsumer
from anabranch.client.consumer.stream_consumer import StreamConsumer
from anabranch.client.consumer.subscription_calls import Target
from anabranch.client.errors import Closed
from anabranch.client.messages.message import Message, MessageId
from anabranch.client.messages.message_batch import MessageBatch
from anabranch.client.metrics.metrics import ConsumerMetrics
from anabranch.client.processing.handler_threads import Handler, run_on_threads
from anabranch.model.layout import Layout


@documented(Consumer)
class _BlockingConsumer(Blocking):
    _inner: Consumer

    @property
    def topic(self) -> str:
        return self._inner.topic

    @property
    def subscription(self) -> str:
        return self._inner.subscription

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def layouts(self) -> Mapping[str, Layout]:
        return self._inner.layouts

    def metrics(self) -> ConsumerMetrics:
        """Counters, rates and what is in memory."""
        return LOOP.call(on_loop(self._inner.metrics))

    def receive(self, timeout: Seconds | None = None) -> Message | None:
        return LOOP.call(lambda: self._inner.receive(timeout))

    def receive_many(self, count: int, timeout: Seconds | None = None) -> list[Message]:
        return LOOP.call(lambda: self._inner.receive_many(count, timeout))

    def receive_batch(self, count: int = BATCH_ROWS, timeout: Seconds | None = None) -> MessageBatch:
        return LOOP.call(lambda: self._inner.receive_batch(count, timeout))

    def seek(self, to: Target, timeout: Seconds | None = None) -> None:
        LOOP.call(lambda: self._inner.seek(to, timeout))

    def unsubscribe(self, timeout: Seconds | None = None) -> None:
        LOOP.call(lambda: self._inner.unsubscribe(timeout))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message:
        try:
            message = self.receive()
        except Closed as error:
            raise StopIteration from error
        assert message is not None
        return message


@documented(QueueConsumer)
class BlockingQueueConsumer(_BlockingConsumer):
    """Blocking form of QueueConsumer."""

    def __init__(self, inner: QueueConsumer) -> None:
        self._inner: QueueConsumer = inner

    def lag(self, timeout: Seconds | None = None) -> int:
        """Messages that are not acknowledged, according to the brokers."""
        return LOOP.call(lambda: self._inner.lag(timeout))

    def ack(self, message: Message | MessageId | MessageBatch) -> None:
        LOOP.call(lambda: self._inner.ack(message))

    def nack(self, message: Message | MessageId, delay: Seconds | None = None) -> None:
        LOOP.call(lambda: self._inner.nack(message, delay))

    def run(
        self,
        handler: Handler,
        *,
        concurrency: int = 8,
        retry: Backoff | None = None,
        drain_timeout: Seconds = 30.0,
    ) -> None:
        """Call the plain function `handler` with every message, on `concurrency` threads, in no order.

        A message is acknowledged when its handler returns, and nacked when it raises; see `QueueConsumer.run`. Returns
        when another thread closes the consumer. An interrupt (Ctrl-C) lets the handlers that run finish first.
        """
        run = partial(self._inner.run, concurrency=concurrency, retry=retry, drain_timeout=drain_timeout)
        run_on_threads(LOOP, handler, check_concurrency(concurrency), run, self._inner.stop_handlers)


@documented(StreamConsumer)
class BlockingStreamConsumer(_BlockingConsumer):
    """Blocking form of StreamConsumer."""

    def __init__(self, inner: StreamConsumer) -> None:
        self._inner: StreamConsumer = inner

    def lag(self, timeout: Seconds | None = None) -> int:
        """Messages that are not acknowledged, according to the brokers."""
        return LOOP.call(lambda: self._inner.lag(timeout))

    def ack_cumulative(self, message: Message | MessageId | MessageBatch) -> None:
        LOOP.call(lambda: self._inner.ack_cumulative(message))

    def run(
        self,
        handler: Handler,
        *,
        concurrency: int = 8,
        retry: Retry | None = None,
        drain_timeout: Seconds = 30.0,
    ) -> None:
        """Call the plain function `handler` with every message, on `concurrency` threads; each key in order.

        What handlers finished is acknowledged; see `StreamConsumer.run`. Returns when another thread closes the
        consumer. An interrupt (Ctrl-C) lets the handlers that run finish first.
        """
        run = partial(self._inner.run, concurrency=concurrency, retry=retry, drain_timeout=drain_timeout)
        run_on_threads(LOOP, handler, check_concurrency(concurrency), run, self._inner.stop_handlers)

    def position(self, message: Message) -> MessageId:
        async def asked() -> MessageId:
            return self._inner.position(message)

        return LOOP.call(asked)


@documented(CheckpointConsumer)
class BlockingCheckpointConsumer(_BlockingConsumer):
    """Blocking form of CheckpointConsumer."""

    def __init__(self, inner: CheckpointConsumer) -> None:
        self._inner: CheckpointConsumer = inner

    @property
    def group(self) -> str | None:
        return self._inner.group

    def checkpoint(self) -> Checkpoint:
        async def asked() -> Checkpoint:
            return self._inner.checkpoint()

        return LOOP.call(asked)

    def saved(self, checkpoint: Checkpoint, timeout: Seconds | None = None) -> None:
        LOOP.call(lambda: self._inner.saved(checkpoint, timeout))
