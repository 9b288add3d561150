"""Automatic splits and merges on a real node: load reports of its segments, consumers of the SDK, stored decisions."""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anabranch
from anabranch.controller.records.topic_record import TopicRecord
from anabranch.model.autoscale.decision import Reason, Suppressed, Suppression
from anabranch.model.autoscale.policy import AutoScalePolicy
from anabranch.model.metadata_keys import loaded_segment_at, segment_loads_key
from anabranch.model.names import TopicName
from anabranch.model.routing import RingHash, key_hash
from anabranch.node.node import Node
from anabranch.node.settings.scalable_topics import ScalableTopicSettings
from anabranch.runtime.clock import SystemClock
from tests.support.processes.in_process_cluster import until
from tests.support.processes.scalable_nodes import admin_of, name, plain_settings, service_of

TOPIC = name("orders")
QUICK: dict[str, Any] = {
    "split_rate_window_seconds": 5,
    "split_msg_rate_in_threshold": 100.0,
    "merge_msg_rate_in_threshold": 50.0,
    "merge_window_seconds": 1,
    "split_cooldown_seconds": 0,
    "merge_cooldown_seconds": 0,
    "load_report_interval_seconds": 1.0,
}


CLOCK = SystemClock()


async def eventually(done: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        while not await done():
            await CLOCK.sleep(0.05)


class ScaledNode:
    def __init__(self, node: Node, client: anabranch.Client) -> None:
        self.node, self.client = node, client

    async def record(self) -> TopicRecord:
        return await service_of(self.node).record(TOPIC)

    async def active(self) -> int:
        return len((await self.record()).layout.active)

    async def wait(self, done: Callable[[int], bool]) -> None:
        """Until the number of active segments is as wanted."""
        await eventually(lambda: self._is(done))

    async def _is(self, done: Callable[[int], bool]) -> bool:
        return done(await self.active())

    async def reported(self) -> set[int]:
        """Segments with a stored load report."""
        found = set()
        async for key, _ in service_of(self.node).records._store.scan(segment_loads_key(TOPIC)):
            number = loaded_segment_at(key, TOPIC)
            if number is not None:
                found.add(number)
        return found


@asynccontextmanager
async def scaled_node(folder: Path, segments: int = 1, **scalable: Any) -> AsyncIterator[ScaledNode]:
    settings = plain_settings(
        folder, scalable_topics=replace(ScalableTopicSettings(), **{"auto_scale_enabled": True, **scalable})
    )
    async with Node(settings) as node, anabranch.connect(node.service_url) as client:
        await admin_of(node).create(str(TOPIC), segments, {})
        yield ScaledNode(node, client)


async def test_hot_segment_is_split_and_its_cold_children_are_merged(tmp_path: Path) -> None:
    async with scaled_node(tmp_path, **QUICK) as scaled:
        async with scaled.client.producer(str(TOPIC)) as producer, asyncio.timeout(60):
            while await scaled.active() == 1:  # one burst can be too slow for a rate on a loaded machine
                await asyncio.gather(*(producer.send(b"x", key=f"k{number % 50}") for number in range(300)))
        record = await scaled.record()
        assert record.last_operation is not None
        assert record.last_operation.reason == "auto: msg-rate-in"
        await scaled.wait(lambda active: active == 1)
        record = await scaled.record()
        assert record.last_operation is not None
        assert record.last_operation.reason == "auto: cold"
        active = {one.segment_id for one in record.layout.active}

        async def only_active() -> bool:
            return await scaled.reported() <= active

        await eventually(only_active)


def low_keys(count: int) -> list[str]:
    """Keys in the lowest eighth of the ring."""
    found = (key for key in map(str, itertools.count()) if RingHash.LOW16.ring_position(key_hash(key)) < 0x2000)
    return list(itertools.islice(found, count))


async def test_uneven_segment_is_split_where_its_load_is(tmp_path: Path) -> None:
    async with scaled_node(tmp_path, **{**QUICK, "split_point": "load", "max_segments": 2}) as scaled:
        keys = low_keys(400)

        async def sampled() -> bool:
            """The reporter has seen the idle segment, and samples what comes."""
            return bool(await scaled.reported())

        await eventually(sampled)
        async with scaled.client.producer(str(TOPIC)) as producer:
            await asyncio.gather(*(producer.send(b"x", key=key) for key in keys * 2))
        await scaled.wait(lambda active: active == 2)
        first, second = sorted(one.hash_range for one in (await scaled.record()).layout.active)
        assert first.end < 0x2000, "an even split would leave all load in one segment"
        assert 0x400 < second.start < 0x1C00


async def test_segment_with_one_hot_key_is_not_split_and_the_key_is_named(tmp_path: Path) -> None:
    async with scaled_node(tmp_path, **QUICK) as scaled, scaled.client.producer(str(TOPIC)) as producer:

        def hot_key() -> Suppressed | None:
            leader = service_of(scaled.node).controllers.leading(TOPIC)
            decision = None if leader is None or leader.scaler is None else leader.scaler.decision
            found = () if decision is None else decision.suppressed
            return next((one for one in found if one.suppressed_by is Suppression.HOT_KEY), None)

        async def is_idle() -> bool:
            return bool(await scaled.reported())

        await eventually(is_idle)
        async with asyncio.timeout(60):
            while hot_key() is None:
                await asyncio.gather(*(producer.send(b"x", key="whale") for _ in range(200)))
        found = hot_key()
        assert found is not None
        assert "'whale'" in found.detail
        assert await scaled.active() == 1


async def test_stream_consumers_get_a_segment_each(tmp_path: Path) -> None:
    async with scaled_node(tmp_path, split_cooldown_seconds=0) as scaled, AsyncExitStack() as stack:
        for _ in range(3):
            await stack.enter_async_context(scaled.client.stream_consumer(str(TOPIC), subscription="s"))
        await scaled.wait(lambda active: active == 3)

        async def is_stored() -> bool:
            history, _ = await service_of(scaled.node).records.scaling.history(TOPIC)
            acted = [one.decision.reason for one in history.decisions if one.decision.action is not None]
            return acted == [Reason.CONSUMER_COUNT, Reason.CONSUMER_COUNT]

        await eventually(is_stored)
        (led,) = service_of(scaled.node).led()
        assert (led.scaling.splits, led.scaling.merges) == (2, 0)


async def test_consumers_that_split_a_topic_by_joining_read_everything_once_and_in_order(tmp_path: Path) -> None:
    """Each of them takes keys from the others while messages are published."""
    sent: dict[str, list[int]] = defaultdict(list)
    read: dict[str, list[list[int]]] = defaultdict(list)  # by key: of each consumer

    async def consume(consumer: anabranch.StreamConsumer) -> None:
        mine: dict[str, list[int]] = {}
        async for message in consumer:
            key, number = message.data.decode().split()
            if key not in mine:
                read[key].append(mine.setdefault(key, []))
            mine[key].append(int(number))
            await consumer.ack_cumulative(message)

    async with (
        scaled_node(tmp_path, split_cooldown_seconds=0) as scaled,
        scaled.client.producer(str(TOPIC)) as producer,
        AsyncExitStack() as stack,
    ):
        tasks = []
        for _ in range(4):
            consumer = await stack.enter_async_context(
                scaled.client.stream_consumer(str(TOPIC), subscription="s", start="earliest")
            )
            tasks.append(asyncio.ensure_future(consume(consumer)))
            for _ in range(5):
                for key in map(str, range(20)):
                    sent[key].append(len(sent[key]))
                await asyncio.gather(*(producer.send(f"{key} {sent[key][-1]}".encode(), key=key) for key in sent))

        async def all_read() -> bool:
            return sum(len(part) for parts in read.values() for part in parts) >= sum(map(len, sent.values()))

        await scaled.wait(lambda active: active == 4)
        await eventually(all_read)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for key, numbers in sent.items():
        assert sorted(one for part in read[key] for one in part) == numbers
        assert all(part == sorted(part) for part in read[key])
    assert any(len(parts) > 1 for parts in read.values()), "some keys have moved to another consumer"


async def test_segment_limit_suppresses_splits_and_is_counted(tmp_path: Path) -> None:
    async with (
        scaled_node(tmp_path, split_cooldown_seconds=0, max_segments=1) as scaled,
        scaled.client.stream_consumer(str(TOPIC), subscription="s"),
        scaled.client.stream_consumer(str(TOPIC), subscription="s"),
    ):
        await until(lambda: any(one.scaling.split_suppressed_max_segments for one in service_of(scaled.node).led()))
        assert await scaled.active() == 1


async def test_cooldown_suppresses_the_second_split_and_is_explained(tmp_path: Path) -> None:
    async with scaled_node(tmp_path, split_cooldown_seconds=600) as scaled, AsyncExitStack() as stack:
        for _ in range(3):
            await stack.enter_async_context(scaled.client.stream_consumer(str(TOPIC), subscription="s"))
        await scaled.wait(lambda active: active == 2)
        leader = service_of(scaled.node).controllers.leading(TOPIC)
        assert leader is not None
        assert leader.scaler is not None
        scaler = leader.scaler
        await until(lambda: scaler.decision is not None and scaler.decision.action is None)
        assert scaler.decision is not None
        assert Suppression.COOLDOWN in scaler.decision.suppressed_by
        assert scaler.due_at_ms is not None
        assert await scaled.active() == 2


async def test_queue_consumers_do_not_split(tmp_path: Path) -> None:
    async with scaled_node(tmp_path, split_cooldown_seconds=0) as scaled, AsyncExitStack() as stack:
        for _ in range(3):
            await stack.enter_async_context(scaled.client.queue_consumer(str(TOPIC), subscription="q"))
        await stack.enter_async_context(scaled.client.stream_consumer(str(TOPIC), subscription="s"))
        leader = service_of(scaled.node).controllers.leading(TOPIC)
        assert leader is not None
        assert leader.scaler is not None
        scaler = leader.scaler
        await until(lambda: scaler.decision is not None)
        assert scaler.decision is not None
        assert scaler.decision.action is None
        assert await scaled.active() == 1


async def test_disabled_policy_of_the_broker_changes_nothing(tmp_path: Path) -> None:
    async with (
        scaled_node(tmp_path, auto_scale_enabled=False, split_cooldown_seconds=0) as scaled,
        scaled.client.stream_consumer(str(TOPIC), subscription="s"),
        scaled.client.stream_consumer(str(TOPIC), subscription="s"),
    ):
        leader = service_of(scaled.node).controllers.leading(TOPIC)
        assert leader is not None
        assert leader.scaler is not None
        scaler = leader.scaler
        await until(lambda: scaler.decision is not None)
        assert scaler.decision is not None
        assert scaler.decision.reason is Reason.DISABLED
        assert await scaled.active() == 1


async def test_busy_topic_that_is_not_scaled_costs_one_read_of_its_policy(tmp_path: Path) -> None:
    async with scaled_node(tmp_path, auto_scale_enabled=False) as scaled:
        policies, read = service_of(scaled.node).policies, list[TopicName]()
        effective = policies.effective

        async def counted(topic: TopicName) -> AutoScalePolicy | None:
            read.append(topic)
            return await effective(topic)

        policies.effective = counted  # type: ignore[method-assign]  # counts the reads of the reporter
        async with scaled.client.producer(str(TOPIC)) as producer:
            end = CLOCK.monotonic() + 3.5  # at least three looks
            while CLOCK.monotonic() < end:
                await producer.send(b"x")
                await CLOCK.sleep(0.02)
        assert len(read) <= 1
        assert await scaled.reported() == set()


async def test_look_at_many_segments_of_a_topic_reads_its_record_once(tmp_path: Path) -> None:
    many = name("many")
    async with scaled_node(tmp_path) as scaled:
        service, read = service_of(scaled.node), list[TopicName]()
        ring_hash = service.policies.ring_hash

        async def counted(topic: TopicName) -> RingHash | None:
            read.append(topic)
            return await ring_hash(topic)

        service.policies.ring_hash = counted  # type: ignore[method-assign]  # counts the reads of the reporter
        await admin_of(scaled.node).create(str(many), 24, {})

        async def are_reported() -> bool:
            return len([key async for key, _ in service.records._store.scan(segment_loads_key(many))]) == 24

        await eventually(are_reported)
        assert 1 <= read.count(many) < 12


async def test_deleted_topic_leaves_no_load_reports(tmp_path: Path) -> None:
    async with scaled_node(tmp_path, segments=2, **QUICK) as scaled:

        async def is_reported() -> bool:
            return bool(await scaled.reported())

        await eventually(is_reported)
        await admin_of(scaled.node).delete(str(TOPIC), force=True)
        assert await scaled.reported() == set()
