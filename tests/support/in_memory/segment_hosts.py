"""Segment owners under one contract: the model in memory, a single broker, and two brokers of which the other owns the
segment. Each world publishes, reads and acknowledges in its own way; the answers of the port must be the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

from anabranch.broker.topic.topic import Topic
from anabranch.controller.records.topic_record import TopicRecord, planned
from anabranch.controller.records.topic_record_codec import encode_record
from anabranch.controller.segment_host import HostEvent, SegmentHost, SegmentRef
from anabranch.metadata.interface import ANY
from anabranch.metadata.open import open_store
from anabranch.model.layout import NO_LIMITS, Layout
from anabranch.model.metadata_keys import scalable_topic_key
from anabranch.model.names import TopicName
from anabranch.model.position import EARLIEST, Position
from anabranch.model.replacement import plan_split
from anabranch.model.segment import Segment, backing_topic
from anabranch.node.node import Node
from anabranch.protocol.commands import position_of
from anabranch.runtime.clock import SystemClock
from tests.support.in_memory.node import client_of, serving
from tests.support.models.memory_segment_host import MemoryHost, Shelf
from tests.support.processes.in_process_cluster import nodes, place_of
from tests.support.traffic.raw_client import RawClient

TOPIC = TopicName.parse("topic://public/default/orders")
_CLOCK = SystemClock()


def split_record() -> TopicRecord:
    """One segment, and a split of it that runs."""
    record = TopicRecord(Layout.initial(1, now_ms=1), incarnation=1)
    return planned(record, "op", plan_split(record.layout, 0, now_ms=2, limits=NO_LIMITS), now_ms=2)


def ref_of(topic: TopicName, segment: Segment, incarnation: int = 1) -> SegmentRef:
    return SegmentRef(backing_topic(topic, segment), incarnation, segment.segment_id)


async def save_record(node: Node, topic: TopicName, record: TopicRecord) -> None:
    async with open_store(node.settings.metadata_url, _CLOCK, 8_000) as store:
        await store.put(scalable_topic_key(topic), encode_record(record), expected=ANY)


class SegmentWorld(Protocol):
    host: SegmentHost
    events: list[HostEvent]
    topic: TopicName

    async def publish(self, ref: SegmentRef, *sequence_ids: int) -> list[Position]:
        """By the producer "p", one entry each."""

    async def unread(self, ref: SegmentRef, subscription: str) -> list[int]:
        """Sequence ids (the n-th entry has the n-th that was published)."""

    async def acknowledge(self, ref: SegmentRef, subscription: str, count: int) -> None:
        """The first `count` unread ones."""

    def exists(self, ref: SegmentRef) -> bool: ...


class MemoryWorld:
    def __init__(self) -> None:
        self.shelf = Shelf()
        self.host: SegmentHost = MemoryHost(self.shelf, _CLOCK.now_ms)
        self.events: list[HostEvent] = []
        self.topic = TOPIC
        self.shelf.listen(self.events.append)

    async def publish(self, ref: SegmentRef, *sequence_ids: int) -> list[Position]:
        return [self.shelf.publish(ref.name, "p", one, b"x", _CLOCK.now_ms()) for one in sequence_ids]

    async def unread(self, ref: SegmentRef, subscription: str) -> list[int]:
        return [entry.sequence_id for _, entry in self.shelf.unread(ref.name, subscription)]

    async def acknowledge(self, ref: SegmentRef, subscription: str, count: int) -> None:
        position, _ = self.shelf.unread(ref.name, subscription)[count - 1]
        self.shelf.acknowledge(ref.name, subscription, position)

    def exists(self, ref: SegmentRef) -> bool:
        return ref.name in self.shelf.segments


class BrokerWorld:
    def __init__(self, asking: Node, owning: Node, client: RawClient, topic: TopicName) -> None:
        assert asking.services.segments is not None
        self.host: SegmentHost = asking.services.segments
        self.events: list[HostEvent] = []
        self.topic = topic
        self.owning, self.client = owning, client
        self._sent: list[int] = []
        asking.services.segments.listen(self.events.append)

    def segment(self, ref: SegmentRef) -> Topic:
        found = self.owning.services.topics.loaded(ref.name)
        assert isinstance(found, Topic)
        return found

    async def publish(self, ref: SegmentRef, *sequence_ids: int) -> list[Position]:
        await self.client.producer(str(ref.name), producer_name="p")
        found = []
        for one in sequence_ids:
            self.client.send(one, producer_id=1)
            found.append(position_of((await self.client.receipt()).message_id))
            if found[-1] != EARLIEST:
                self._sent.append(one)
        return found

    async def unread(self, ref: SegmentRef, subscription: str) -> list[int]:
        topic = self.segment(ref)
        cursor, count = topic.subscriptions[subscription].cursor, topic.log.chain.entries
        return self._sent[count - cursor.backlog_entries :]

    async def acknowledge(self, ref: SegmentRef, subscription: str, count: int) -> None:
        topic = self.segment(ref)
        at = topic.subscriptions[subscription].cursor.first_unacked()
        for _ in range(count - 1):
            at = topic.log.after(at)
        topic.subscriptions[subscription].skip_to(at)

    def exists(self, ref: SegmentRef) -> bool:
        return self.owning.services.topics.loaded(ref.name) is not None


@asynccontextmanager
async def segment_world(kind: str, directory: Path) -> AsyncIterator[SegmentWorld]:
    if kind == "memory":
        yield MemoryWorld()
    elif kind == "one broker":
        async with serving(directory) as node, client_of(node) as client:
            await save_record(node, TOPIC, split_record())
            yield BrokerWorld(node, node, client, TOPIC)
    else:
        async with nodes(directory, "a", "b") as (asking, owning), client_of(owning) as client:
            topic = topic_away(owning)
            await save_record(asking, topic, split_record())
            yield BrokerWorld(asking, owning, client, topic)


def topic_away(owning: Node) -> TopicName:
    """A scalable topic whose first segment is at this node (the others are where their names say)."""
    first = split_record().layout[0]
    names = (TopicName.parse(f"{TOPIC}-{number}") for number in range(10_000))
    return next(name for name in names if place_of(owning).is_here(backing_topic(name, first)))


async def until(done: Callable[[], bool]) -> None:
    """What happens by itself; a poll with a generous deadline."""
    async with asyncio.timeout(60):
        while not done():
            await _CLOCK.sleep(0.002)
