"""Stream consumers that share a segment by entry buckets, against a real node in this process. Numbers: scenarios of
the V5 client. Auto-scaling is off: it would split the topic for the consumers first."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

import anabranch
from anabranch import Backoff, Batching, Client, ConnectionPolicy, StreamConsumer
from anabranch.client.consumer.segment.shared_segment_consumer import SharedSegmentConsumer
from anabranch.model.names import TopicName
from anabranch.node.node import Node
from anabranch.node.settings.scalable_topics import ScalableTopicSettings
from tests.support.processes.in_process_cluster import until
from tests.support.processes.scalable_nodes import admin_of, plain_settings, service_of

TOPIC = "topic://public/default/shared"
KEYS = [f"key-{n}" for n in range(40)]
QUICK = ConnectionPolicy(backoff=Backoff(initial=0.02, maximum=0.2))
SECONDS = 30.0
BUCKETS = 8


class World:
    """A node, a producer that counts per key, and consumers whose deliveries are written down in order."""

    def __init__(self, node: Node, client: Client, exits: AsyncExitStack) -> None:
        self.node, self.client, self.exits = node, client, exits
        self.sent: dict[str, int] = defaultdict(int)
        self.delivered: list[tuple[str, str, int]] = []  # consumer, key, number
        self.consumers: dict[str, StreamConsumer] = {}
        self.arrived = asyncio.Event()

    async def create(self, segments: int = 1) -> None:
        await admin_of(self.node).create(TOPIC, segments, {})
        await service_of(self.node).set_auto_scale_policy(TopicName.parse(TOPIC), {"enabled": False})

    async def publish(self, rounds: int, **options: Any) -> None:
        async with self.client.producer(TOPIC, batching=Batching(max_messages=100), **options) as producer:
            for _ in range(rounds):
                for key in KEYS:
                    producer.send_nowait(f"{key} {self.sent[key]}".encode(), key=key)
                    self.sent[key] += 1
            await producer.flush()

    async def open(self, name: str, **options: Any) -> StreamConsumer:
        options = {"fan_out": "auto", "start": "earliest"} | options
        consumer = await self.exits.enter_async_context(
            self.client.stream_consumer(TOPIC, subscription="s", name=name, **options)
        )
        self.consumers[name] = consumer
        return consumer

    async def reader(self, name: str, *, acks: bool = True, **options: Any) -> asyncio.Task[None]:
        """Receives and acknowledges until it is closed."""
        consumer = await self.open(name, **options)

        async def run() -> None:
            async for message in consumer:
                key, number = message.data.decode().split()
                self.delivered.append((name, key, int(number)))
                if acks:
                    await consumer.ack_cumulative(message)
                self.arrived.set()

        task = asyncio.create_task(run(), name=f"reader {name}")
        self.exits.callback(task.cancel)
        return task

    def buckets(self) -> Mapping[str, tuple[int, ...]]:
        """By consumer: the buckets of segment 0 that it reads."""
        found = {}
        for name, consumer in self.consumers.items():
            shares = [one for one in consumer._segment_consumers.values() if isinstance(one, SharedSegmentConsumer)]
            found[name] = tuple(bucket for one in shares for bucket in one.buckets)
        return found

    async def shared_by(self, *names: str) -> None:
        def is_spread() -> bool:
            owned = self.buckets()
            every = sorted(bucket for name in names for bucket in owned[name])
            return every == list(range(BUCKETS)) and all(owned[name] for name in names)

        await until(is_spread)

    async def all_delivered(self) -> None:
        total = sum(self.sent.values())
        async with asyncio.timeout(SECONDS):
            while len({(key, number) for _, key, number in self.delivered}) < total:
                self.arrived.clear()
                await self.arrived.wait()

    def check(self, *, is_exact: bool = True) -> None:
        """Every key complete and in order over all consumers; without duplicates if exact."""
        by_key: dict[str, list[int]] = defaultdict(list)
        for _, key, number in self.delivered:
            if is_exact or number not in by_key[key]:
                by_key[key].append(number)
        assert by_key == {key: list(range(count)) for key, count in self.sent.items()}

    async def check_acked(self) -> None:
        """A fresh consumer of the subscription sees nothing."""
        for consumer in self.consumers.values():
            await consumer.close()
        fresh = await self.open("fresh")
        assert await fresh.receive(timeout=0.3) is None

    def readers_of(self, key: str) -> list[str]:
        return list(dict.fromkeys(name for name, one, _ in self.delivered if one == key))


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    settings = plain_settings(tmp_path, scalable_topics=ScalableTopicSettings(entry_bucket_budget=BUCKETS))
    async with (
        Node(settings) as node,
        anabranch.connect(node.service_url, connection=QUICK) as client,
        AsyncExitStack() as exits,
    ):
        yield World(node, client, exits)


async def test_one_consumer_reads_all_buckets_and_acknowledges_cumulatively(world: World) -> None:
    """Scenario 55."""
    await world.create()
    await world.publish(5)
    consumer = await world.open("a")
    for _ in range(5 * len(KEYS)):
        message = await consumer.receive(timeout=SECONDS)
        assert message is not None
        key, number = message.data.decode().split()
        world.delivered.append(("a", key, int(number)))
    assert message is not None
    await consumer.ack_cumulative(message)
    world.check()
    await world.check_acked()


async def test_two_consumers_share_a_segment_by_key(world: World) -> None:
    """Scenario 56."""
    await world.create()
    await world.reader("a")
    await world.reader("b")
    await world.shared_by("a", "b")
    await world.publish(5)
    await world.all_delivered()
    world.check()
    assert all(len(world.readers_of(key)) == 1 for key in KEYS), "each key wholly on one consumer"
    assert {name for name, _, _ in world.delivered} == {"a", "b"}
    await world.check_acked()


async def test_keys_move_in_order_when_consumers_join_and_leave_during_traffic(world: World) -> None:
    """Scenarios 57, 60."""
    await world.create()
    await world.reader("a")
    traffic = asyncio.create_task(world.publish(60))
    for name in ("b", "c", "d"):
        await world.reader(name)
    await world.shared_by("a", "b", "c", "d")
    for name in ("b", "a"):
        await world.consumers.pop(name).close()
    await world.shared_by("c", "d")
    await world.reader("e")
    await traffic
    await world.all_delivered()
    await world.shared_by("c", "d", "e")
    world.check(is_exact=False)  # closed consumers had unacknowledged messages in their queues
    await world.check_acked()


async def test_a_share_waits_for_the_acks_of_its_former_consumer(world: World) -> None:
    """Scenarios 58, 59: what moves waits, the rest flows."""
    await world.create()
    await world.publish(1)
    holder = await world.open("a")
    held = [await holder.receive(timeout=SECONDS) for _ in KEYS]
    await world.reader("b")
    await world.shared_by("a", "b")
    await world.publish(1)
    assert world.delivered == []
    assert held[-1] is not None
    await holder.ack_cumulative(held[-1])
    mine = set(world.buckets()["b"])
    assert mine
    await until(lambda: bool(world.delivered))
    assert {number for _, _, number in world.delivered} == {1}, "nothing comes twice"


async def test_consumers_above_the_bucket_count_wait_and_take_over(world: World) -> None:
    """Scenario 61."""
    await world.create()
    names = [f"c{number}" for number in range(BUCKETS + 1)]
    for name in names:
        await world.reader(name)
    await until(lambda: sorted(map(len, world.buckets().values())) == [0] + [1] * BUCKETS)
    idle = next(name for name, owned in world.buckets().items() if not owned)
    leaving = next(name for name in names if name != idle)
    await world.consumers.pop(leaving).close()
    await world.shared_by(*(name for name in names if name != leaving))
    await world.publish(3)
    await world.all_delivered()
    world.check()


async def test_consumers_without_fan_out_get_whole_segments(world: World) -> None:
    await world.create()
    await world.reader("a", fan_out="off")
    await world.reader("b", fan_out="auto")
    await world.publish(2)
    await world.all_delivered()
    world.check()
    assert {name for name, _, _ in world.delivered} == {"a"}
    assert set(world.buckets().values()) == {()}


async def test_batches_of_several_buckets_keep_their_order(world: World) -> None:
    """Producers with a given name do not divide their batches."""
    await world.create()
    await world.reader("a")
    await world.reader("b")
    await world.shared_by("a", "b")
    for number in range(6):
        await world.publish(2, **({"name": f"named-{number}"} if number % 2 else {}))
    await world.all_delivered()
    world.check()
    await world.check_acked()


async def test_shares_go_on_over_a_split_and_a_merge(world: World) -> None:
    await world.create()
    for name in "abcd":
        await world.reader(name)
    await world.shared_by(*"abcd")
    traffic = asyncio.create_task(world.publish(80))
    await admin_of(world.node).split(TOPIC, 0, 2, None, None)
    await until(lambda: len(world.delivered) > 20 * len(KEYS))
    await admin_of(world.node).merge(TOPIC, [1, 2], None)
    await traffic
    await world.all_delivered()
    world.check()
    await world.shared_by(*"abcd")
    await world.check_acked()


async def test_a_wrong_choice_of_fan_out_is_refused(world: World) -> None:
    await world.create()
    with pytest.raises(anabranch.Error, match="fan_out must be 'auto' or 'off', not 'maybe'"):
        world.client.stream_consumer(TOPIC, subscription="s", fan_out="maybe")  # type: ignore[arg-type]  # on purpose
