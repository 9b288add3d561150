"""The blocking form of the SDK: the same names and errors as `client`, without logic of its own.

Every call runs on one event loop thread, shared by all blocking clients of the process, and is waited for.
"""

from __future__ import annotations

import concurrent.futures
import ssl
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

from anabranch.client import client as asynchronous
from anabranch.client.blocking_base import LOOP, Blocking, documented, on_loop
from anabranch.client.blocking_consumers import (
    BlockingCheckpointConsumer,
    BlockingQueueConsumer,
    BlockingStreamConsumer,
)
from anabranch.client.config import (
    AccessMode,
    AckEvery,
    Backoff,
    Batching,
    Chunking,
    ConnectionPolicy,
    DeadLetter,
    ProcessingTimeout,
    Seconds,
)
from anabranch.client.consumer.checkpoint import Checkpoint
from anabranch.client.consumer.checkpoint_consumer import Restore
from anabranch.client.encryption.options import Decryption, Encryption
from anabranch.client.messages.compression import Compression
from anabranch.client.messages.message import MessageId
from anabranch.client.messages.timestamps import Moment
from anabranch.client.metrics.metrics import ClientMetrics, ProducerMetrics
from anabranch.client.opening import Start
from anabranch.client.producer.bulk_send import Sent
from anabranch.client.producer.producer import Producer
from anabranch.client.schema.schema import Schema
from anabranch.client.tracing.tracing import Tracing
from anabranch.model.partition_hash import PartitionHash
from anabranch.runtime.chance import Chance
from anabranch.runtime.clock import Clock
from anabranch.runtime.credentials import Credentials, Tls

__all__ = [
    "BlockingCheckpointConsumer",
    "BlockingClient",
    "BlockingProducer",
    "BlockingQueueConsumer",
    "BlockingStreamConsumer",
    "connect",
]


@documented(Producer)
class BlockingProducer(Blocking):
    """Blocking form of Producer."""

    def __init__(self, inner: Producer) -> None:
        self._inner: Producer = inner

    def metrics(self) -> ProducerMetrics:
        """Counters, rates and latencies."""
        return LOOP.call(on_loop(self._inner.metrics))

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


@documented(asynchronous.Client)
class BlockingClient(Blocking):
    """Blocking form of Client."""

    def __init__(self, inner: asynchronous.Client) -> None:
        self._inner: asynchronous.Client = inner

    def metrics(self) -> ClientMetrics:
        """Counters, rates, latencies and pending work of the open producers and consumers, as plain values."""
        return LOOP.call(on_loop(self._inner.metrics))

    def metrics_text(self) -> str:
        """The metrics in Prometheus' text format."""
        return LOOP.call(on_loop(self._inner.metrics_text))

    def producer(
        self,
        topic: str,
        *,
        name: str | None = None,
        batching: Batching | None = Batching(),  # noqa: B008  frozen
        compression: Compression | str | None = None,
        chunking: Chunking | None = None,
        encryption: Encryption | None = None,
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
            encryption=encryption,
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
        topic: str | Sequence[str] | None = None,
        *,
        namespace: str | None = None,
        topic_properties: Mapping[str, str] | None = None,
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
        decryption: Decryption | None = None,
        schema: Schema | type | None = None,
        properties: Mapping[str, str] | None = None,
        timeout: Seconds | None = None,
    ) -> BlockingQueueConsumer:
        opening = self._inner.queue_consumer(
            topic,
            namespace=namespace,
            topic_properties=topic_properties,
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
            decryption=decryption,
            schema=schema,
            properties=properties,
            timeout=timeout,
        )
        return BlockingQueueConsumer(LOOP.call(lambda: opening))

    def stream_consumer(
        self,
        topic: str | Sequence[str] | None = None,
        *,
        namespace: str | None = None,
        topic_properties: Mapping[str, str] | None = None,
        subscription: str,
        start: Start = "latest",
        name: str | None = None,
        prefetch: int = 1000,
        ack_group_time: Seconds = 0.01,
        decryption: Decryption | None = None,
        schema: Schema | type | None = None,
        release_timeout: Seconds = 10.0,
        ack_every: AckEvery | int | timedelta | None = None,
        fan_out: Literal["auto", "off"] = "off",
        properties: Mapping[str, str] | None = None,
        timeout: Seconds | None = None,
    ) -> BlockingStreamConsumer:
        opening = self._inner.stream_consumer(
            topic,
            namespace=namespace,
            topic_properties=topic_properties,
            subscription=subscription,
            start=start,
            name=name,
            prefetch=prefetch,
            ack_group_time=ack_group_time,
            decryption=decryption,
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
        topic: str | Sequence[str] | None = None,
        *,
        namespace: str | None = None,
        topic_properties: Mapping[str, str] | None = None,
        start: Checkpoint = Checkpoint.latest(),  # noqa: B008  frozen
        group: str | None = None,
        restore: Restore | None = None,
        name: str | None = None,
        prefetch: int = 1000,
        on_loss: Literal["skip", "fail"] = "skip",
        release_timeout: Seconds = 10.0,
        decryption: Decryption | None = None,
        schema: Schema | type | None = None,
        properties: Mapping[str, str] | None = None,
        timeout: Seconds | None = None,
    ) -> BlockingCheckpointConsumer:
        opening = self._inner.checkpoint_consumer(
            topic,
            namespace=namespace,
            topic_properties=topic_properties,
            start=start,
            group=group,
            restore=restore,
            name=name,
            prefetch=prefetch,
            on_loss=on_loss,
            release_timeout=release_timeout,
            decryption=decryption,
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
