"""The blocking form of the SDK: the same names and errors as `client`, without logic of its own.

Every call runs on one event loop thread, shared by all blocking clients of the process, and is waited for.
"""

from __future__ import annotations

import concurrent.futures
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from anabranch.client import client as asynchronous
from anabranch.client.arguments import check_concurrency
from anabranch.client.blocking_base import LOOP, Blocking, documented
from anabranch.client.client import Start
from anabranch.client.config import (
    AccessMode,
    AckEvery,
    Backoff,
    Batching,
    Chunking,
    ConnectionPolicy,
    DeadLetter,
    ProcessingTimeout,
    Retry,
    Seconds,
)
from anabranch.client.consumer.checkpoint import Checkpoint
from anabranch.client.consumer.checkpoint_consumer import CheckpointConsumer, Restore
from anabranch.client.consumer.consumer import BATCH_ROWS, Consumer
from anabranch.client.consumer.queue_consumer import QueueConsumer
from anabranch.client.consumer.stream_consumer import StreamConsumer
from anabranch.client.consumer.subscription_calls import Target
from anabranch.client.errors import Closed
from anabranch.client.messages.compression import Compression
from anabranch.client.messages.message import Message, MessageId
from anabranch.client.messages.message_batch import MessageBatch
from anabranch.client.messages.timestamps import Moment
from anabranch.client.metrics.metrics import ClientMetrics, ConsumerMetrics, ProducerMetrics
from anabranch.client.processing.handler_threads import Handler, run_on_threads
from anabranch.client.producer.bulk_send import Sent
from anabranch.client.producer.producer import Producer
from anabranch.client.schema.schema import Schema
from anabranch.client.tracing.tracing import Tracing
from anabranch.model.layout import Layout
from anabranch.model.partition_hash import PartitionHash
from anabranch.runtime.chance import Chance
from anabranch.runtime.clock import Clock
from anabranch.runtime.credentials import Credentials, Tls

T = TypeVar("T")


def _on_loop(call: Callable[[], T]) -> Callable[[], Awaitable[T]]:
    """A plain function for `LOOP.call`, because what it reads changes on the loop's thread."""

    async def called() -> T:
        return call()

    return called


@documented(Producer)
class BlockingProducer(Blocking):
    """Blocking form of Producer."""

    def __init__(self, inner: Producer) -> None:
        self._inner: Producer = inner

    def metrics(self) -> ProducerMetrics:
        """Counters, rates and latencies."""
        return LOOP.call(_on_loop(self._inner.metrics))

    @property
    def topic(self) -> str:
        return self._inner.topic

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def pending_bytes(self) -> int:
        return self._inner.pending_bytes

    @property
    def last_sequence_id(self) -> int:
        return self._inner.last_sequence_id

    def send(
        self,
        value: Any,
        *,
        key: str | bytes | None = None,
        properties: Mapping[str, str] | None = None,
        event_time: Moment | None = None,
        deliver_after: Seconds | None = None,
        deliver_at: Moment | None = None,
        sequence_id: int | None = None,
        timeout: Seconds | None = None,
    ) -> MessageId:
        return LOOP.call(
            lambda: self._inner.send(
                value,
                key=key,
                properties=properties,
                event_time=event_time,
                deliver_after=deliver_after,
                deliver_at=deliver_at,
                sequence_id=sequence_id,
                timeout=timeout,
            )
        )

    def send_nowait(
        self,
        value: Any,
        *,
        key: str | bytes | None = None,
        properties: Mapping[str, str] | None = None,
        event_time: Moment | None = None,
        deliver_after: Seconds | None = None,
        deliver_at: Moment | None = None,
        sequence_id: int | None = None,
    ) -> concurrent.futures.Future[MessageId]:
        """The order is fixed by this call. Unlike in asyncio, the future carries errors such as QueueFull."""
        return LOOP.submit(
            lambda: self._inner.send_nowait(
                value,
                key=key,
                properties=properties,
                event_time=event_time,
                deliver_after=deliver_after,
                deliver_at=deliver_at,
                sequence_id=sequence_id,
            )
        )

    def send_batch(
        self,
        values: Sequence[Any],
        keys: Sequence[str | bytes | None] | None = None,
        *,
        properties: Sequence[Mapping[str, str] | None] | None = None,
        event_times: Sequence[int | None] | None = None,
        timeout: Seconds | None = None,
    ) -> Sent:
        return LOOP.call(
            lambda: self._inner.send_batch(
                values, keys, properties=properties, event_times=event_times, timeout=timeout
            )
        )

    def send_batch_nowait(
        self,
        values: Sequence[Any],
        keys: Sequence[str | bytes | None] | None = None,
        *,
        properties: Sequence[Mapping[str, str] | None] | None = None,
        event_times: Sequence[int | None] | None = None,
    ) -> concurrent.futures.Future[Sent]:
        """The order is fixed by this call. Like `send_nowait`, errors such as QueueFull are set on the future."""
        return LOOP.submit(
            lambda: self._inner.send_batch_nowait(values, keys, properties=properties, event_times=event_times)
        )

    def flush(self, timeout: Seconds | None = None) -> None:
        LOOP.call(lambda: self._inner.flush(timeout))


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
        return LOOP.call(_on_loop(self._inner.metrics))

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


@documented(asynchronous.Client)
class BlockingClient(Blocking):
    """Blocking form of Client."""

    def __init__(self, inner: asynchronous.Client) -> None:
        self._inner: asynchronous.Client = inner

    def metrics(self) -> ClientMetrics:
        """Counters, rates, latencies and pending work of the open producers and consumers, as plain values."""
        return LOOP.call(_on_loop(self._inner.metrics))

    def metrics_text(self) -> str:
        """The metrics in Prometheus' text format."""
        return LOOP.call(_on_loop(self._inner.metrics_text))

    def producer(
        self,
        topic: str,
        *,
        name: str | None = None,
        batching: Batching | None = Batching(),  # noqa: B008  frozen
        compression: Compression | str | None = None,
        chunking: Chunking | None = None,
        schema: Schema | type | None = None,
        send_timeout: Seconds = 30.0,
        pending_bytes_max: int = 64 << 20,
        access: AccessMode | str = AccessMode.SHARED,
        initial_sequence_id: int | None = None,
        partition_hash: PartitionHash | str | None = None,
        properties: Mapping[str, str] | None = None,
        timeout: Seconds | None = None,
    ) -> BlockingProducer:
        opening = self._inner.producer(
            topic,
            name=name,
            batching=batching,
            compression=compression,
            chunking=chunking,
            schema=schema,
            send_timeout=send_timeout,
            pending_bytes_max=pending_bytes_max,
            access=access,
            initial_sequence_id=initial_sequence_id,
            partition_hash=partition_hash,
            properties=properties,
            timeout=timeout,
        )
        return BlockingProducer(LOOP.call(lambda: opening))

    def queue_consumer(
        self,
        topic: str | Sequence[str],
        *,
        subscription: str,
        start: Start = "latest",
        name: str | None = None,
        prefetch: int = 1000,
        ack_group_time: Seconds = 0.01,
        nack_delay: Seconds = 60.0,
        nack_backoff: Backoff | None = None,
        processing_timeout: ProcessingTimeout | Seconds | None = None,
        dead_letter: DeadLetter | None = None,
        priority: int = 0,
        subscription_properties: Mapping[str, str] | None = None,
        schema: Schema | type | None = None,
        properties: Mapping[str, str] | None = None,
        timeout: Seconds | None = None,
    ) -> BlockingQueueConsumer:
        opening = self._inner.queue_consumer(
            topic,
            subscription=subscription,
            start=start,
            name=name,
            prefetch=prefetch,
            ack_group_time=ack_group_time,
            nack_delay=nack_delay,
            nack_backoff=nack_backoff,
            processing_timeout=processing_timeout,
            dead_letter=dead_letter,
            priority=priority,
            subscription_properties=subscription_properties,
            schema=schema,
            properties=properties,
            timeout=timeout,
        )
        return BlockingQueueConsumer(LOOP.call(lambda: opening))

    def stream_consumer(
        self,
        topic: str | Sequence[str],
        *,
        subscription: str,
        start: Start = "latest",
        name: str | None = None,
        prefetch: int = 1000,
        ack_group_time: Seconds = 0.01,
        schema: Schema | type | None = None,
        release_timeout: Seconds = 10.0,
        ack_every: AckEvery | int | timedelta | None = None,
        fan_out: Literal["auto", "off"] = "off",
        properties: Mapping[str, str] | None = None,
        timeout: Seconds | None = None,
    ) -> BlockingStreamConsumer:
        opening = self._inner.stream_consumer(
            topic,
            subscription=subscription,
            start=start,
            name=name,
            prefetch=prefetch,
            ack_group_time=ack_group_time,
            schema=schema,
            release_timeout=release_timeout,
            ack_every=ack_every,
            fan_out=fan_out,
            properties=properties,
            timeout=timeout,
        )
        return BlockingStreamConsumer(LOOP.call(lambda: opening))

    def checkpoint_consumer(
        self,
        topic: str | Sequence[str],
        *,
        start: Checkpoint = Checkpoint.latest(),  # noqa: B008  frozen
        group: str | None = None,
        restore: Restore | None = None,
        name: str | None = None,
        prefetch: int = 1000,
        on_loss: Literal["skip", "fail"] = "skip",
        release_timeout: Seconds = 10.0,
        schema: Schema | type | None = None,
        properties: Mapping[str, str] | None = None,
        timeout: Seconds | None = None,
    ) -> BlockingCheckpointConsumer:
        opening = self._inner.checkpoint_consumer(
            topic,
            start=start,
            group=group,
            restore=restore,
            name=name,
            prefetch=prefetch,
            on_loss=on_loss,
            release_timeout=release_timeout,
            schema=schema,
            properties=properties,
            timeout=timeout,
        )
        return BlockingCheckpointConsumer(LOOP.call(lambda: opening))


def connect(
    url: str,
    *,
    token: str | Path | Callable[[], str] | None = None,
    auth: Credentials | None = None,
    tls: Tls | ssl.SSLContext | None = None,
    operation_timeout: Seconds = 30.0,
    connection: ConnectionPolicy | None = None,
    tracing: Tracing | bool | None = None,
    clock: Clock | None = None,
    chance: Chance | None = None,
) -> BlockingClient:
    """`with anabranch.blocking.connect("pulsar://localhost:6650") as client`, or `close` it later.

    The arguments and errors are those of `anabranch.connect`.
    """
    opening = asynchronous.connect(
        url,
        token=token,
        auth=auth,
        tls=tls,
        operation_timeout=operation_timeout,
        connection=connection,
        tracing=tracing,
        clock=clock,
        chance=chance,
    )
    return BlockingClient(LOOP.call(lambda: opening))
