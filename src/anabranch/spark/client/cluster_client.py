"""One cluster, as Spark's processes use it: persistent connections, questions about topics, ranges of entries. Calls
block; the work runs on an event loop in a separate thread.

A process keeps one client per access value (`cluster_of`), because tasks are short and connections are expensive.
Spark forks processes, so a child never uses what its parent opened.
"""

from __future__ import annotations

import asyncio
import os
import re
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from anabranch.admin.admin import connect as connect_admin
from anabranch.client.config import Backoff, ConnectionPolicy
from anabranch.client.connection.address import Address
from anabranch.client.connection.connection import Connection
from anabranch.client.connection.connection_pool import ConnectionPool
from anabranch.client.errors import (
    ClientError,
    NotReady,
    TimedOut,
    TopicNotFound,
    TopicTerminated,
    WrongThread,
    refusal,
)
from anabranch.client.topic.layout_watch import DOUBT_SECONDS, LayoutWatch, LayoutWatches
from anabranch.client.topic.topic_view import TopicView
from anabranch.model.names import Domain, TopicName
from anabranch.model.position import Position
from anabranch.model.segment import Segment, backing_topic
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.commands import BaseCommand, message_id
from anabranch.runtime.chance import SystemChance, secret_bytes
from anabranch.runtime.clock import SystemClock
from anabranch.runtime.loop_thread import LoopThread
from anabranch.spark.client.access import Access
from anabranch.spark.client.broker_extents import BrokerExtents
from anabranch.spark.client.entry_fetcher import EntryBuffer, managed_fields, subscribe_fields
from anabranch.spark.client.extents import Capabilities, Extent, Extents
from anabranch.spark.client.pulsar_extents import PulsarExtents
from anabranch.spark.offsets.topic_view import SegmentExtent, View

T = TypeVar("T")
BACKOFF = Backoff(initial=0.05, maximum=1.0)
ASKED_AT_ONCE = 64
PARTITIONS_EVERY_S = 5.0  # Apache Pulsar does not push added partitions


class ClusterClient:
    def __init__(self, access: Access) -> None:
        self.timeout_s = access.operation_timeout_ms / 1000
        self._access = access
        self._portal = LoopThread("anabranch-client", own_thread_error=WrongThread)
        self._clock = SystemClock()
        self._chance = SystemChance()
        self._pool: ConnectionPool | None = None
        self._watches: LayoutWatches | None = None
        self._held: dict[str, LayoutWatch] = {}
        self._served: dict[str, Connection] = {}  # by backing topic; a guess until it fails
        self._is_foreign = False  # as the last broker was
        self._chosen: Extents | None = None  # by the kind of cluster, once one of its brokers has answered

    def call(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run it on the loop, wait here."""
        return self._portal.call(work)

    def submit(self, work: Callable[[], Awaitable[T]]) -> Future[T]:
        return self._portal.submit(work)

    def pause(self, seconds: float) -> None:
        self.call(lambda: self._clock.sleep(seconds))

    def now_ms(self) -> int:
        return self._clock.now_ms()

    @property
    def clock(self) -> SystemClock:
        return self._clock

    def close(self) -> None:
        """Connections are closed; the loop's thread is a daemon and ends with the process."""
        self.call(self._close)

    # -- questions

    def topics(self, pattern: str) -> tuple[str, ...]:
        """Topics of a namespace whose names match: `persistent://tenant/namespace/` and a regular expression."""
        return self.call(lambda: self.topics_now(pattern))

    def layout(self, topic: str, *, creates: bool = False) -> TopicView:
        """`creates`: for writing; a missing topic is created if brokers allow it."""
        return self.call(lambda: self._layout(topic, creates=creates))

    def view(self, topic: str) -> View:
        return self.call(lambda: self.view_now(topic))

    def views(self, topics: Iterable[str]) -> dict[str, View]:
        wanted = list(topics)
        return self.call(lambda: self._views(wanted))

    def extents(self, asked: Mapping[str, Mapping[str, Any]]) -> dict[str, Extent]:
        """By backing topic: fields of TOPIC_EXTENT to ask with."""
        return self.call(lambda: self.extents_now(asked))

    def schema(self, topic: str, version: bytes | None = None) -> pb.Schema | None:
        """The topic's schema of a version, or its newest; None when it has none."""
        return self.call(lambda: self._schema(topic, version))

    async def _views(self, topics: list[str]) -> dict[str, View]:
        found = await asyncio.gather(*(self.view_now(topic) for topic in topics))
        return dict(zip(topics, found, strict=True))

    async def view_now(self, topic: str) -> View:
        """Layout and extents of a topic, asked for together."""
        seen = await self._layout(topic)
        segments = list(seen.layout.segments.values())
        names = {one.segment_id: str(backing_topic(seen.topic, one)) for one in segments}
        found = await self.extents_now({name: {} for name in names.values()})
        return view_of(topic, seen, {one: found[name] for one, name in names.items()})

    async def extents_now(self, asked: Mapping[str, Mapping[str, Any]]) -> dict[str, Extent]:
        room = asyncio.Semaphore(ASKED_AT_ONCE)

        async def one(topic: str, fields: Mapping[str, Any]) -> Extent:
            async with room:
                return await self._extent(topic, fields)

        found = await asyncio.gather(*(one(topic, fields) for topic, fields in asked.items()))
        return dict(zip(asked, found, strict=True))

    async def _extent(self, topic: str, fields: Mapping[str, Any]) -> Extent:
        extents = await self._extents()

        async def ask() -> Extent:
            try:
                return await extents.extent(topic, fields)
            except ClientError:
                self._served.pop(topic, None)
                raise

        return await self.patiently(ask)

    async def _extents(self) -> Extents:
        """How this kind of cluster is asked: chosen at the first connection."""
        if self._chosen is None:
            connection = await self.patiently(self._opened()[0].connection)
            access = self._access
            if connection.has_extensions:
                self._chosen = BrokerExtents(self.serving, self.timeout_s)
            else:
                admin = access.admin_url and connect_admin(
                    access.admin_url, auth=access.credentials(), tls=access.admin_tls(), timeout=self.timeout_s
                )
                self._chosen = PulsarExtents(self.serving, self._clock, self.timeout_s, admin or None)
        return self._chosen

    async def _layout(self, topic: str, *, creates: bool = False) -> TopicView:
        watch = self._held.get(topic)
        if watch is None or watch.is_over:
            pool, watches = self._opened()
            del pool
            watch = self._held[topic] = watches.hold(TopicName.parse(topic), self, creates=creates)
        try:
            return await watch.wait_first(self.timeout_s)
        except ClientError:
            del self._held[topic]
            await self._opened()[1].release(watch, self)
            raise

    def layout_without(self, topic: str, segments: Iterable[int]) -> TopicView:
        """The layout once none of these segments is active in it; TopicTerminated when that does not come about."""
        gone = set(segments)
        return self.call(lambda: self._layout_without(topic, gone))

    async def _layout_without(self, topic: str, gone: set[int]) -> TopicView:
        deadline = self._clock.monotonic() + self.timeout_s
        while True:
            found = await self._layout(topic)
            if not gone & {one.segment_id for one in found.layout.active}:
                return found
            if found.is_synthetic or self._clock.monotonic() > deadline:
                raise TopicTerminated(f"{topic} takes nothing more")
            self._held[topic].refresh()
            await self._clock.sleep(0.02)

    def capabilities(self) -> Capabilities:
        """What this kind of cluster can say."""

        async def chosen() -> Capabilities:
            return (await self._extents()).capabilities

        return self.call(chosen)

    def deduplicates(self, backing: str) -> bool:
        """Does the broker keep the last sequence id of each producer? ClusterCannot where it does not say."""

        async def ask() -> bool:
            extents = await self._extents()
            return await self.patiently(lambda: extents.deduplicates(backing))

        return self.call(ask)

    def kept_from(self, subscription: str, backing: str) -> Position:
        """The first entry that a durable subscription has not consumed. Only on clusters that do not say exactly what
        they have deleted."""

        async def ask() -> Position:
            extents = await self._extents()
            assert isinstance(extents, PulsarExtents)
            return await self.patiently(lambda: extents.kept_from(subscription, backing))

        return self.call(ask)

    async def topics_now(self, pattern: str) -> tuple[str, ...]:
        scheme, _, rest = pattern.partition("://") if "://" in pattern else ("persistent", "", pattern)
        tenant, namespace, local = rest.split("/", 2)

        async def ask() -> Any:
            connection = await self._opened()[0].connection()
            return await connection.ask(
                BaseCommand.GET_TOPICS_OF_NAMESPACE,
                self.timeout_s,
                namespace=f"{tenant}/{namespace}",
                mode=pb.CommandGetTopicsOfNamespace.PERSISTENT,
            )

        answer = await self.patiently(ask)
        shape = re.compile(local)
        names = {str(TopicName.parse(name).base) for name in answer.topics}
        return tuple(
            sorted(
                name
                for name in names
                if TopicName.parse(name).domain == Domain(scheme) and shape.fullmatch(TopicName.parse(name).local)
            )
        )

    async def _schema(self, topic: str, version: bytes | None) -> pb.Schema | None:
        async def ask() -> pb.Schema | None:
            connection = await self._opened()[0].connection()
            answer = await connection.ask(BaseCommand.GET_SCHEMA, self.timeout_s, topic=topic, schema_version=version)
            if answer.HasField("error_code"):
                error = refusal(answer.error_code, answer.error_message)
                if isinstance(error, TopicNotFound):
                    return None
                raise error
            return answer.schema if answer.HasField("schema") else None

        return await self.patiently(ask)

    # -- readers

    def attach(self, topic: str, entry_buffer: EntryBuffer, prefix: str = "spark") -> Future[None]:
        """`prefix` begins the reader's name in the broker's statistics."""
        return self.submit(lambda: self._attach(topic, entry_buffer, prefix))

    async def _attach(self, topic: str, entry_buffer: EntryBuffer, prefix: str) -> None:
        connection = await self.patiently(lambda: self.serving(topic, fresh=True))
        entry_buffer.consumer_id, entry_buffer.connection = connection.new_id(), connection
        entry_buffer.is_filtered = not connection.has_extensions
        connection.listen_consumer(entry_buffer.consumer_id, entry_buffer)
        try:
            fields = subscribe_fields(topic, f"{prefix}-{secret_bytes(8).hex()}", entry_buffer.start)
            await connection.ask(BaseCommand.SUBSCRIBE, self.timeout_s, consumer_id=entry_buffer.consumer_id, **fields)
        except BaseException as error:
            connection.unlisten(entry_buffer.consumer_id)
            if isinstance(error, ClientError) and self.doubts(error, 0.0):
                raise NotReady(f"{topic} is not there at the moment: {error.reason}") from error
            raise

    def write(self, entry_buffer: EntryBuffer, data: bytes) -> None:
        connection = entry_buffer.connection
        assert connection is not None

        async def say() -> None:
            connection.write(data)

        self.submit(say)

    def detach(self, entry_buffer: EntryBuffer) -> None:
        connection = entry_buffer.connection
        if connection is None:
            return

        async def leave() -> None:
            connection.unlisten(entry_buffer.consumer_id)
            if connection.is_usable:
                # The answer is not awaited; reading its error avoids asyncio's warning.
                closing = connection.begin(BaseCommand.CLOSE_CONSUMER, 5.0, consumer_id=entry_buffer.consumer_id)
                closing.add_done_callback(lambda one: one.cancelled() or one.exception())

        self.submit(leave)

    # -- a subscription that holds retention

    def hold(self, subscription: str, positions: Mapping[str, Position]) -> None:
        """The durable subscription has consumed everything before these positions, by backing topic; where it is
        missing it is made."""
        self.call(lambda: self._hold(subscription, positions))

    async def _hold(self, subscription: str, positions: Mapping[str, Position]) -> None:
        room = asyncio.Semaphore(ASKED_AT_ONCE)

        async def one(topic: str, position: Position) -> None:
            async with room:
                try:
                    await self.patiently(partial(self._hold_one, subscription, topic, position))
                except TopicNotFound:  # collected meanwhile: nothing to hold. Whether that is a loss, the plan says
                    self._served.pop(topic, None)

        await asyncio.gather(*(one(topic, position) for topic, position in positions.items()))

    async def _hold_one(self, subscription: str, topic: str, position: Position) -> None:
        connection = await self.serving(topic)
        consumer_id = connection.new_id()
        await connection.ask(
            BaseCommand.SUBSCRIBE,
            self.timeout_s,
            consumer_id=consumer_id,
            topic=topic,
            subscription=subscription,
            subType=pb.CommandSubscribe.Shared,
            consumer_name=f"spark-{secret_bytes(4).hex()}",
            durable=True,
            initialPosition=pb.CommandSubscribe.Earliest,
            force_topic_creation=False,
            **managed_fields(),
        )
        try:
            await connection.ask(
                BaseCommand.SEEK, self.timeout_s, consumer_id=consumer_id, message_id=message_id(position)
            )
        finally:
            if connection.is_usable:
                await connection.ask(BaseCommand.CLOSE_CONSUMER, self.timeout_s, consumer_id=consumer_id)

    # -- inside

    async def serving(self, topic: str, *, fresh: bool = False) -> Connection:
        """The connection to the topic's owner; asked for again when the last one broke or `fresh`."""
        known = self._served.get(topic)
        if known is not None and known.is_usable and not fresh:
            return known
        found = self._served[topic] = await self._opened()[0].serving(topic)
        self._is_foreign = not found.has_extensions
        return found

    async def patiently(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask until the answer is final: a broker that restarts is no reason to fail."""
        attempt = 0
        last: ClientError | None = None
        began = self._clock.monotonic()
        try:
            async with asyncio.timeout(self.timeout_s):
                while True:
                    try:
                        return await ask()
                    except ClientError as error:
                        if not error.retryable and not self.doubts(error, self._clock.monotonic() - began):
                            raise
                        last = error
                    await self._clock.sleep(BACKOFF.delay(attempt, self._chance.random()))
                    attempt += 1
        except TimeoutError as error:
            raise TimedOut("the broker does not answer" if last is None else last.reason) from (last or error)

    def doubts(self, error: ClientError, asking_s: float) -> bool:
        """Apache Pulsar answers "not found" for topics that it cannot look up at the moment, during an unload say."""
        return isinstance(error, TopicNotFound) and asking_s <= DOUBT_SECONDS and self._is_foreign

    def _opened(self) -> tuple[ConnectionPool, LayoutWatches]:
        if self._pool is None or self._watches is None:
            access, policy = self._access, ConnectionPolicy(partitions_every=PARTITIONS_EVERY_S)
            self._pool = ConnectionPool(
                Address.parse_all(access.service_url),
                policy,
                self._clock,
                auth=access.credentials(),
                tls=access.tls(),
                answer_timeout_s=self.timeout_s,
            )
            self._watches = LayoutWatches(self._pool, policy, self._clock, self._chance)
        return self._pool, self._watches

    async def _close(self) -> None:
        if self._chosen is not None:
            await self._chosen.close()
        if self._watches is not None:
            await self._watches.close()
        if self._pool is not None:
            await self._pool.close()


def view_of(topic: str, seen: TopicView, extents: Mapping[int, Extent]) -> View:
    """Layout and extents as one value. A topic is another one when its incarnation is, or that of its only part. A
    migration gives it an incarnation; its only part is then the segment that was the topic."""
    uid = str(seen.incarnation or "")
    if not uid and len(extents) == 1:
        uid = str(next(iter(extents.values())).incarnation or "")
    segments = {one: stretch_of(seen.layout[one], extent) for one, extent in extents.items()}
    partitions = [extent for one, extent in extents.items() if seen.is_legacy(seen.layout[one])]
    former_uid = str(partitions[0].incarnation or "") if len(partitions) == 1 and not seen.is_synthetic else ""
    return View(topic, uid, segments, seen.layout.routing.ring_hash, former_uid)


def stretch_of(segment: Segment, extent: Extent) -> SegmentExtent:
    return SegmentExtent(
        segment.segment_id,
        (segment.hash_range.start, segment.hash_range.end),
        extent.first,
        extent.end,
        not segment.is_active or extent.is_terminated,
        segment.parent_ids,
        segment.child_ids,
        extent.trimmed_to,
        segment.legacy_topic_name,
        extent.ledgers,
        extent.is_trim_exact,
    )


_clusters: dict[tuple[int, Access], ClusterClient] = {}
_lock = threading.Lock()


def cluster_of(access: Access) -> ClusterClient:
    """The one that this process keeps."""
    key = (os.getpid(), access)
    with _lock:
        if key not in _clusters:
            _clusters[key] = ClusterClient(access)
        return _clusters[key]
