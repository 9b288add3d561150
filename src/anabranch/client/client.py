"""`connect` and `Client`: check options, share connections, open and close producers and consumers."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar

from anabranch.client.arguments import check_has, check_optional, check_properties, check_type, check_whole
from anabranch.client.async_resource import AsyncResource
from anabranch.client.config import (
    NO_BATCHING,
    AccessMode,
    AckEvery,
    Backoff,
    Batching,
    Chunking,
    ConnectionPolicy,
    DeadLetter,
    ProcessingTimeout,
    Seconds,
    seconds,
)
from anabranch.client.connection.address import Address
from anabranch.client.connection.connection_pool import ConnectionPool
from anabranch.client.consumer.checkpoint import Checkpoint
from anabranch.client.consumer.checkpoint_consumer import CheckpointConsumer, CheckpointOptions, Restore, check_start
from anabranch.client.consumer.consumer import Consumer
from anabranch.client.consumer.dead_letters import DeadLetters
from anabranch.client.consumer.queue_consumer import QueueConsumer, QueueOptions
from anabranch.client.consumer.stream_consumer import StreamConsumer, StreamOptions
from anabranch.client.context import ClientContext
from anabranch.client.encryption.options import Decryption, Encryption, check_encryption
from anabranch.client.errors import BadOption, ClientError, Closed, TimedOut
from anabranch.client.messages.compression import Compression
from anabranch.client.metrics.metrics import ClientMetrics
from anabranch.client.metrics.prometheus_text import MetricsText
from anabranch.client.opening import (
    Start,
    check_dead_letter,
    checked_hash,
    checked_topic,
    consumer_options,
    new_name,
    topics_or_namespace,
    usable_tls,
)
from anabranch.client.producer.options import ProducerOptions
from anabranch.client.producer.producer import Producer
from anabranch.client.producer.traced_producer import TracedProducer
from anabranch.client.schema.schema import Schema, schema_of
from anabranch.client.topic.layout_watch import LayoutWatches
from anabranch.client.tracing.tracing import Tracing, tracing_of
from anabranch.model.names import TopicName
from anabranch.model.partition_hash import PartitionHash
from anabranch.runtime.chance import Chance, SystemChance
from anabranch.runtime.clock import Clock, SystemClock
from anabranch.runtime.credentials import Credentials, Tls, token_credentials

T = TypeVar("T")
P = TypeVar("P", bound=Producer | Consumer)


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
) -> AsyncResource[Client]:
    """`async with connect("pulsar://localhost:6650") as client`, or `client = await connect(…)` and `close` later.

    `url` may name several brokers of a cluster: `pulsar://one:6650,two:6650`. `token` is a text, a file (as a Path) or
    a function that returns the current token; it is read again whenever a broker asks for credentials. `auth` is
    another way to authenticate (`Basic`, `Certificate`). `tls` is a `Tls` or an SSL context, for pulsar+ssl://.

    `tracing=True` makes spans with OpenTelemetry (extra `otel`), `tracing=` an object with the methods of `Tracing`
    makes them otherwise.

    Raises BadOption at once for invalid options. Awaiting raises if no broker answers within `operation_timeout`.
    """
    check_type(url, str, "url", "text like 'pulsar://localhost:6650'")
    if token is not None and not callable(token):
        check_type(token, (str, Path), "token", "text, a Path, a function or None")
    check_has(auth, ("method", "data"), "auth", "credentials (Token, Basic, Certificate)")
    check_optional(tls, (Tls, ssl.SSLContext), "tls", "a Tls, an ssl.SSLContext")
    check_optional(connection, ConnectionPolicy, "connection", "a ConnectionPolicy")
    client = Client(
        Address.parse_all(url),
        auth=auth or token_credentials(token),
        tls=usable_tls(tls),
        operation_timeout_s=seconds(operation_timeout, "operation_timeout"),
        policy=connection or ConnectionPolicy(),
        tracing=tracing_of(tracing),
        clock=clock or SystemClock(),
        chance=chance or SystemChance(),
    )
    return AsyncResource(client.open, "anabranch.connect(…)", "client")


class Client:
    """Created by `connect`. Closing the client closes all its producers and consumers."""

    def __init__(
        self,
        services: Sequence[Address],
        *,
        auth: Credentials | None,
        tls: ssl.SSLContext | None,
        operation_timeout_s: float,
        policy: ConnectionPolicy,
        tracing: Tracing | None,
        clock: Clock,
        chance: Chance,
    ) -> None:
        if operation_timeout_s <= 0:
            raise BadOption("operation_timeout must be above 0")
        self._services = tuple(services)
        self._operation_timeout_s = operation_timeout_s
        self._policy = policy
        self._clock = clock
        self._chance = chance
        self._pool = ConnectionPool(services, policy, clock, auth=auth, tls=tls, answer_timeout_s=operation_timeout_s)
        self._watches = LayoutWatches(self._pool, policy, clock, chance)
        self._context = ClientContext(self._pool, policy.backoff, clock, chance, self._watches, tracing)
        self._opened: set[Producer | Consumer] = set()
        self._metrics_text = MetricsText()
        self._is_closed = False

    def __repr__(self) -> str:
        producers = sum(isinstance(one, Producer) for one in self._opened if not one.is_closed)
        consumers = sum(isinstance(one, Consumer) for one in self._opened if not one.is_closed)
        state = "closed" if self._is_closed else f"producers={producers} consumers={consumers}"
        return f"<Client {','.join(map(str, self._services))} {state}>"

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._is_closed

    async def open(self) -> Client:
        """Connect to the first broker that answers. `connect` calls it."""
        try:
            await self._retrying(self._pool.connection)
        except BaseException:
            await self.close(timeout=0)
            raise
        return self

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
    ) -> AsyncResource[Producer]:
        """Open a producer on a topic.

        `batching=None` sends each message in its own entry. `send_timeout=0` waits for receipts without a limit.

        `compression` is "lz4", "zlib", "zstd" or "snappy"; bodies under 4 KiB are not compressed. With `chunking`,
        messages larger than the broker's limit are cut into chunks, and assembled by the consumer. With `encryption`,
        brokers see ciphertext only; this needs the extra `anabranch[crypto]`. `schema` is the type
        of the values (`anabranch.schema`); a dataclass or pydantic model means JSON. Without a schema they are bytes.

        `access` controls other producers of the topic. An exclusive producer has exclusive access to every partition or
        segment before this returns.

        With a `name`, sequence ids continue after the last one that the brokers have, or after `initial_sequence_id` if
        that is higher. A message that is sent again with a stored sequence id is not stored again.

        `partition_hash` ("java-string", "boost", "boost-1.80" or "murmur3-32") maps keys to the partitions of a regular
        topic. Without it the broker names the hash that the topic's other producers use.
        """
        where = checked_topic(topic)
        check_optional(name, str, "name", "text")
        check_optional(batching, Batching, "batching", "a Batching")
        check_optional(chunking, Chunking, "chunking", "a Chunking")
        check_encryption(encryption)
        check_whole(pending_bytes_max, "pending_bytes_max", 1)
        if initial_sequence_id is not None:
            check_whole(initial_sequence_id, "initial_sequence_id", 0)
        check_properties(properties)
        options = ProducerOptions(
            name=name or new_name("producer"),
            is_name_given=name is not None,
            batching=batching or NO_BATCHING,
            send_timeout_s=seconds(send_timeout, "send_timeout"),
            pending_bytes_max=pending_bytes_max,
            properties=properties,
            encryption=encryption,
            operation_timeout_s=self._timeout_s(timeout),
            compression=Compression.named(compression),
            chunk_bytes=None if chunking is None else chunking.chunk_bytes,
            schema=schema_of(schema),
            access=AccessMode.named(access),
            initial_sequence_id=initial_sequence_id,
            partition_hash=None if partition_hash is None else checked_hash(partition_hash),
        )
        return AsyncResource(partial(self._open_producer, where, options), "client.producer(…)", "producer")

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
    ) -> AsyncResource[QueueConsumer]:
        """Open a consumer that shares messages with the other consumers of the subscription.

        With `namespace` ("tenant/namespace") instead of topics it reads all scalable topics there, or those with all
        `topic_properties`. Topics that are created or deleted are followed.

        `start` is the position of a subscription that does not exist yet. `decryption` has the private keys of
        encrypted messages. A nacked message is redelivered after `nack_delay`, or after a delay of `nack_backoff` by
        its redelivery count; a message without ack or nack after `processing_timeout`. With `dead_letter`, messages
        that were redelivered too often go to another topic. Consumers with the lowest `priority` value are served
        first, as long as they have permits.
        """
        topics, place = topics_or_namespace(topic, namespace, topic_properties)
        shared = consumer_options(
            subscription,
            start,
            name,
            prefetch,
            ack_group_time,
            properties,
            self._timeout_s(timeout),
            schema,
            decryption,
        )
        if processing_timeout is not None and not isinstance(processing_timeout, ProcessingTimeout):
            processing_timeout = ProcessingTimeout(timeout=seconds(processing_timeout, "processing_timeout"))
        check_whole(priority, "priority", 0)
        check_optional(nack_backoff, Backoff, "nack_backoff", "a Backoff")
        check_dead_letter(dead_letter, decryption)
        check_properties(subscription_properties, "subscription_properties")
        shared |= {"priority": priority, "subscription_properties": subscription_properties or {}}
        options = QueueOptions(
            **shared,
            **place,
            nack_delay_s=seconds(nack_delay, "nack_delay"),
            nack_backoff=nack_backoff,
            processing_timeout=processing_timeout,
        )
        dead_letters = None if dead_letter is None else self._open_dead_letters(dead_letter, options.subscription)

        async def opened() -> QueueConsumer:
            made = QueueConsumer(topics, options, self._context, dead_letters)
            await made.open()
            return await self._keep(made)

        return AsyncResource(opened, "client.queue_consumer(…)", "consumer")

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
    ) -> AsyncResource[StreamConsumer]:
        """Open a consumer that receives every key in order, with cumulative acks. `namespace` and `topic_properties`
        are those of `queue_consumer`.

        `start` is the position of a subscription that does not exist yet. `release_timeout` is the time to acknowledge
        messages of a segment that moves to another consumer. With `fan_out="auto"` it may share a segment with others.

        With `ack_every` the consumer acknowledges by itself, every so many messages, after an interval (a timedelta),
        or both (`AckEvery`): everything that it handed out before the last call of a receive method. What that call
        returned is not acknowledged, also not by `close`. Only one task may receive then.
        """
        topics, place = topics_or_namespace(topic, namespace, topic_properties)
        options = StreamOptions(
            **consumer_options(
                subscription,
                start,
                name,
                prefetch,
                ack_group_time,
                properties,
                self._timeout_s(timeout),
                schema,
                decryption,
            ),
            **place,
            release_timeout_s=seconds(release_timeout, "release_timeout"),
            ack_every=None if ack_every is None else AckEvery.of(ack_every),
            fan_out=fan_out,
        )

        async def opened() -> StreamConsumer:
            made = StreamConsumer(topics, options, self._context)
            await made.open()
            return await self._keep(made)

        return AsyncResource(opened, "client.stream_consumer(…)", "consumer")

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
    ) -> AsyncResource[CheckpointConsumer]:
        """Open a consumer that reads from `start`, without a subscription on the broker. `namespace` and
        `topic_properties` are those of `queue_consumer`.

        In a `group` the members share the segments; `restore` returns the checkpoint that the group has stored, and is
        called whenever this member is assigned more segments. `on_loss="fail"`: raise PositionGone if retention deleted
        a segment of the checkpoint before it was read.
        """
        topics, place = topics_or_namespace(topic, namespace, topic_properties)
        if on_loss not in ("skip", "fail"):
            raise BadOption(f"on_loss must be 'skip' or 'fail', not {on_loss!r}")
        check_has(restore, ("__call__",), "restore", "a function")
        reader = new_name("reader")
        options = CheckpointOptions(
            **consumer_options(
                group or reader,
                "earliest",
                name or reader,
                prefetch,
                0.01,
                properties,
                self._timeout_s(timeout),
                schema,
                decryption,
            ),
            **place,
            start=check_start(start),
            group=group,
            restore=restore,
            is_loss_fatal=on_loss == "fail",
            release_timeout_s=seconds(release_timeout, "release_timeout"),
        )

        async def opened() -> CheckpointConsumer:
            made = CheckpointConsumer(topics, options, self._context)
            await made.open()
            return await self._keep(made)

        return AsyncResource(opened, "client.checkpoint_consumer(…)", "consumer")

    def metrics(self) -> ClientMetrics:
        """Counters, rates, latencies and pending work of the open producers and consumers, as plain values.

        Rates and latencies are of about the last minute: over the time between two calls that are at least a minute
        apart, or since the opening.
        """
        return self._metrics_of(self._forget_closed())

    def metrics_text(self) -> str:
        """The metrics in Prometheus' text format (`text/plain; version=0.0.4`), for the application's own HTTP port."""
        return self._metrics_text.page(self.metrics())

    def _metrics_of(self, ones: Iterable[Producer | Consumer]) -> ClientMetrics:
        ordered = sorted(ones, key=lambda one: (one.topic, one.name))
        return ClientMetrics(
            producers=tuple(one.metrics() for one in ordered if isinstance(one, Producer)),
            consumers=tuple(one.metrics() for one in ordered if isinstance(one, Consumer)),
            connections=len(self._pool),
        )

    def _forget_closed(self) -> set[Producer | Consumer]:
        """What is closed leaves its counters to the text. Returns what is open."""
        closed = {one for one in self._opened if one.is_closed}
        self._metrics_text.closed(self._metrics_of(closed))
        self._opened -= closed
        return self._opened

    async def close(self, timeout: Seconds | None = None) -> None:
        """Closes all producers and consumers, then the connections. Safe to repeat; never hangs."""
        self._is_closed = True
        opened, self._opened = list(self._opened), set()
        try:
            outcomes = await asyncio.gather(*(one.close(timeout) for one in opened), return_exceptions=True)
        finally:
            try:
                await self._watches.close()
            finally:
                await self._pool.close()
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    # -- inside

    async def _open_producer(self, topic: TopicName, options: ProducerOptions) -> Producer:
        tracing = self._context.tracing
        if tracing is None:
            made = Producer(topic, options, self._context, self._watches)
        else:
            made = TracedProducer(topic, options, self._context, self._watches, tracing)
        await made.open()
        return await self._keep(made)

    def _open_dead_letters(self, policy: DeadLetter, subscription: str) -> DeadLetters:
        async def sender(topic: str) -> Producer:
            if policy.initial_subscription is not None:
                async with self.queue_consumer(topic, subscription=policy.initial_subscription, start="earliest"):
                    pass  # the subscription exists now and retains messages
            # With chunks, so that any message that was received can be sent.
            return await self.producer(topic, chunking=Chunking(), encryption=policy.encryption)

        return DeadLetters(policy, subscription, sender)

    async def _keep(self, made: P) -> P:
        if self._is_closed:
            await made.close(timeout=0)
            raise Closed("the client is closed")
        self._forget_closed().add(made)
        return made

    async def _retrying(self, ask: Callable[[], Awaitable[T]], timeout_s: float | None = None) -> T:
        """Repeat until the answer is final, because a restarting broker is no reason to fail."""
        attempt = 0
        last: ClientError | None = None
        try:
            async with asyncio.timeout(self._operation_timeout_s if timeout_s is None else timeout_s):
                while True:
                    try:
                        return await ask()
                    except ClientError as error:
                        if not error.retryable:
                            raise
                        last = error
                    await self._clock.sleep(self._policy.backoff.delay(attempt, self._chance.random()))
                    attempt += 1
        except TimeoutError as error:
            raise TimedOut("the broker does not answer" if last is None else last.reason) from (last or error)

    def _timeout_s(self, timeout: Seconds | None) -> float:
        return self._operation_timeout_s if timeout is None else seconds(timeout, "timeout")
