"""Retention of scalable topics on real segments: by size and by time, out of the layout first, then off the disk.

One broker in this process, its own ledgers on disk; the test moves the wall clock and says when it is swept.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

from anabranch.broker.segment.owned_segment import OwnedSegment, segment_of
from anabranch.controller.records.topic_record import TopicRecord
from anabranch.controller.service import ScalableTopicService
from anabranch.model.names import TopicName
from anabranch.model.segment import backing_topic
from anabranch.node.node import Node
from anabranch.node.settings.scalable_topics import ScalableTopicSettings
from anabranch.protocol.commands import BaseCommand
from anabranch.runtime.clock import SystemClock
from tests.support.processes.in_process_cluster import until
from tests.support.processes.scalable_nodes import admin_of, name, plain_settings, service_of
from tests.support.traffic.raw_client import RawClient

TOPIC = name("orders")
KIB, MIB = 1 << 10, 1 << 20
MINUTE_MS = 60_000
ENTRY = 64 * KIB


class MovedClock(SystemClock):
    """The real one, but the calendar is what the test says."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms


class World:
    def __init__(self, node: Node, clock: MovedClock, client: RawClient, folder: Path) -> None:
        self.node, self.clock, self.client, self.folder = node, clock, client, folder
        self.admin = admin_of(node)
        self._numbers = 0

    @property
    def service(self) -> ScalableTopicService:
        return service_of(self.node)

    async def record(self) -> TopicRecord:
        return await self.service.record(TOPIC)

    async def segments(self) -> list[int]:
        return sorted((await self.record()).segments)

    async def segment(self, segment_id: int) -> OwnedSegment:
        name = backing_topic(TOPIC, (await self.record()).segments[segment_id])
        found = segment_of(self.node.services.topics.loaded(name))
        assert found is not None
        return found

    async def publish(self, segment_id: int, size: int) -> None:
        """So many bytes, in entries of 64 KiB."""
        self._numbers += 1
        topic = await self.segment(segment_id)
        answer = await self.client.producer(str(topic.name), self._numbers)
        assert answer.kind == BaseCommand.PRODUCER_SUCCESS, answer
        for sequence in range(size // ENTRY):
            self.client.send(sequence, b"x" * ENTRY, producer_id=self._numbers)
            await self.client.receipt()
        await self.client.ask(BaseCommand.CLOSE_PRODUCER, producer_id=self._numbers)

    async def read(self, subscription: str, segment_id: int) -> None:
        """To its end."""
        topic = (await self.segment(segment_id)).topic
        topic.subscriptions[subscription].skip_to(topic.log.last_position)

    async def split(self, segment_id: int) -> None:
        await self.admin.split(str(TOPIC), segment_id, 2, None, None)

    async def until_drained(self, subscription: str, segment_id: int) -> None:
        """The owner says so."""
        topic = await self.segment(segment_id)
        await until(lambda: any(known == subscription for known, _ in topic.state.drained))

    def ledger_bytes(self) -> int:
        """On the disk."""
        return sum(path.stat().st_size for path in self.folder.rglob("*.ledger"))


@asynccontextmanager
async def world(folder: Path, **scalable: Any) -> AsyncIterator[World]:
    scalable = {"sweep_seconds": 3_600.0, "idle_seconds": 3_600.0, **scalable}
    plain = plain_settings(folder, scalable_topics=replace(ScalableTopicSettings(), **scalable))
    clock = MovedClock()
    settings = replace(plain, topics=replace(plain.topics, ledger_bytes_max=256 * KIB))
    async with Node(settings, clock) as node, RawClient(node.service_url) as client:
        await client.hello()
        made = World(node, clock, client, folder)
        await made.admin.create(str(TOPIC), 1, {})
        for one in ("fast", "slow"):
            await made.admin.create_subscription(str(TOPIC), one, "QUEUE", "earliest")
        yield made


async def test_oldest_read_segments_over_the_size_are_deleted_in_two_phases(tmp_path: Path) -> None:
    async with world(tmp_path, retention_minutes=-1, retention_mb=1) as it:
        await it.publish(0, 1536 * KIB)
        await it.split(0)
        await it.publish(1, 512 * KIB)
        await it.split(1)
        await until(lambda: it.ledger_bytes() > 2 * MIB)  # written behind the log
        before = it.ledger_bytes()
        for one in (0, 1):
            await it.read("fast", one)
            await it.until_drained("fast", one)
        await it.service.controllers.sweep()
        assert await it.segments() == [0, 1, 2, 3, 4], "unread segments stay, however large"

        await it.read("slow", 0)
        await it.read("slow", 1)
        await it.until_drained("slow", 1)
        topic, phases = (await it.segment(0)).name, dict[str, tuple[list[int], bool]]()

        def note(step: str, _: TopicName) -> None:
            leader = it.service.controllers.leading(TOPIC)
            assert leader is not None
            garbage = [] if leader.record is None else [one.segment_id for one in leader.record.garbage]
            phases[step] = garbage, it.node.services.topics.loaded(topic) is not None

        leader = it.service.controllers.leading(TOPIC)
        assert leader is not None
        leader._step = note
        await it.service.controllers.sweep()
        assert await it.segments() == [1, 2, 3, 4], "the oldest alone: without it the topic is small enough"
        await until(lambda: leader.record is not None and not leader.record.garbage)
        steps = ["before-prune", "after-prune", "tell-layout", "before-delete", "after-delete", "before-swept"]
        assert list(phases)[:6] == steps
        assert phases["before-delete"] == ([0], True), "out of the layout, not off the disk"
        assert phases["after-delete"] == ([0], False), "off the disk, and still to be noted"
        await until(lambda: it.ledger_bytes() <= before - 1536 * KIB)
        await it.service.controllers.sweep()
        assert await it.segments() == [1, 2, 3, 4]

        await it.publish(2, 768 * KIB)  # the active ones count too
        await it.service.controllers.sweep()
        assert await it.segments() == [2, 3, 4]


async def test_read_segment_is_deleted_after_its_retention_time(tmp_path: Path) -> None:
    async with world(tmp_path, retention_minutes=60) as it:
        await it.publish(0, 256 * KIB)
        await it.split(0)
        for one in ("fast", "slow"):
            await it.read(one, 0)
            await it.until_drained(one, 0)
        await until(lambda: it.ledger_bytes() > 256 * KIB)  # written behind the log
        before = it.ledger_bytes()
        it.clock.ahead_ms += 59 * MINUTE_MS
        await it.service.controllers.sweep()
        assert await it.segments() == [0, 1, 2]
        it.clock.ahead_ms += 2 * MINUTE_MS
        await it.service.controllers.sweep()
        assert await it.segments() == [1, 2]
        await until(lambda: it.ledger_bytes() <= before - 256 * KIB)


async def test_namespace_retention_overrides_the_default(tmp_path: Path) -> None:
    """Nothing is kept, by its policy, though the broker keeps everything for a week."""
    async with world(tmp_path) as it:
        await it.publish(0, 128 * KIB)
        await it.split(0)
        for one in ("fast", "slow"):
            await it.read(one, 0)
            await it.until_drained(one, 0)
        await it.service.controllers.sweep()
        assert await it.segments() == [0, 1, 2]
        nothing = {"retention_policies": {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}}
        await it.node.services.catalog.change_policies(
            TOPIC.namespace_path, lambda known: replace(known, other={**known.other, **nothing})
        )
        await it.service.controllers.sweep()
        assert await it.segments() == [1, 2]


async def test_active_segment_trims_read_entries_over_the_size(tmp_path: Path) -> None:
    """Whole ledgers, oldest first, down to the size that is kept; unread entries stay."""
    async with world(tmp_path, retention_minutes=-1, retention_mb=1) as it:
        await it.publish(0, 3 * MIB)
        topic = (await it.segment(0)).topic
        await it.read("fast", 0)
        await topic.log.trim()
        assert topic.log.total_bytes >= 3 * MIB
        sizes = [ledger.bytes for ledger in topic.log.chain]
        await it.read("slow", 0)
        await topic.log.trim()
        left = list(accumulate(reversed(sizes)))  # as Pulsar: the ledger that is at the limit goes too
        assert topic.log.total_bytes == max(size for size in left if size < MIB)
        await until(lambda: it.ledger_bytes() <= 2 * MIB)
        assert await it.segments() == [0]


async def test_backlog_without_consumers_survives_splits_and_collection(tmp_path: Path) -> None:
    """No retention, and "slow" has no consumer: its whole backlog stays."""
    async with world(tmp_path, retention_minutes=0, retention_mb=0) as it:
        await it.publish(0, 128 * KIB)
        await it.split(0)
        await it.publish(1, 64 * KIB)
        await it.split(1)
        for one in (0, 1):
            await it.read("fast", one)
            await it.until_drained("fast", one)
        await it.service.controllers.sweep()
        assert await it.segments() == [0, 1, 2, 3, 4]
        backlog = (await it.admin.subscription(str(TOPIC), "slow"))["backlog"]
        assert {key: count for key, count in backlog.items() if count} == {"0": 2, "1": 1}
        await it.read("slow", 1)  # the younger one first: its parent keeps it
        await it.until_drained("slow", 1)
        await it.service.controllers.sweep()
        assert await it.segments() == [0, 1, 2, 3, 4]
        await it.read("slow", 0)
        await it.until_drained("slow", 0)
        await it.service.controllers.sweep()
        assert await it.segments() == [2, 3, 4]


async def test_topic_with_queue_subscriptions_is_split_and_collected(tmp_path: Path) -> None:
    """Clients that know nothing of a registry: a durable SUBSCRIBE on a segment makes the subscription, everywhere."""
    async with world(tmp_path, retention_minutes=0, retention_mb=0) as it:
        for one in ("fast", "slow"):
            await it.admin.delete_subscription(str(TOPIC), one, False)
        parent = str((await it.segment(0)).name)
        assert (await it.client.subscribe(parent, "q", permits=10)).kind == BaseCommand.SUCCESS
        assert (await it.admin.subscription(str(TOPIC), "q"))["type"] == "QUEUE"
        await it.publish(0, 64 * KIB)
        await it.split(0)
        for child in (1, 2):
            assert "q" in (await it.segment(child)).topic.subscriptions
        await it.publish(1, 64 * KIB)
        await it.service.controllers.sweep()
        assert await it.segments() == [0, 1, 2]
        (at,) = await it.client.messages(1)
        it.client.ack(at)
        await it.until_drained("q", 0)
        await it.service.controllers.sweep()
        assert await it.segments() == [1, 2]
        low = str((await it.segment(1)).name)
        assert (await it.client.subscribe(low, "q", 2, permits=10)).kind == BaseCommand.SUCCESS
        assert len(await it.client.messages(1)) == 1
