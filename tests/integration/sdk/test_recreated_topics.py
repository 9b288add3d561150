"""A topic that is deleted, and perhaps created again, while producers and consumers of the SDK are open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import anabranch
from anabranch import Backoff, Checkpoint, Client, ConnectionPolicy, Producer
from anabranch.broker.admin.scalable_topics import ScalableAdmin
from anabranch.client.consumer.consumer import Consumer
from anabranch.client.consumer.segment_traversal import CheckpointMismatch
from anabranch.client.errors import TimedOut, TopicNotFound
from anabranch.node.node import Node
from tests.support.processes.scalable_nodes import admin_of, plain_settings

DEADLINE = 60.0
QUICK = ConnectionPolicy(backoff=Backoff(initial=0.02, maximum=0.2))
TOPIC = "topic://public/default/orders"
KINDS = ("stream", "queue", "checkpoint", "group")


@dataclass
class World:
    node: Node
    client: Client
    admin: ScalableAdmin

    async def open(self, kind: str, topic: str = TOPIC) -> Consumer:
        match kind:
            case "stream":
                return await self.client.stream_consumer(topic, subscription="s")
            case "queue":
                return await self.client.queue_consumer(topic, subscription="q")
            case "checkpoint":
                return await self.client.checkpoint_consumer(topic, start=Checkpoint.latest())
            case _:
                return await self.client.checkpoint_consumer(topic, start=Checkpoint.latest(), group="g")

    async def recreate(self, segments: int) -> None:
        await self.admin.delete(TOPIC, True)
        await self.admin.create(TOPIC, segments, {})


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with (
        Node(plain_settings(tmp_path)) as node,
        anabranch.connect(node.service_url, connection=QUICK) as client,
    ):
        yield World(node, client, admin_of(node))


async def sent(producer: Producer, *values: str) -> None:
    for value in values:
        await producer.send(value.encode(), key=value, timeout=DEADLINE)


async def received(consumer: Consumer, count: int) -> set[str]:
    found: set[str] = set()
    while len(found) < count:
        message = await consumer.receive(timeout=DEADLINE)
        assert message is not None, f"only {sorted(found)} of {count}"
        found.add(message.data.decode())
    return found


@pytest.mark.parametrize("segments", [2, 1, 4])
@pytest.mark.parametrize("kind", KINDS)
async def test_every_consumer_reads_the_recreated_topic_from_its_beginning(
    world: World, kind: str, segments: int
) -> None:
    """Also with `start="latest"`: everything in the new topic is newer than the consumer."""
    await world.admin.create(TOPIC, 2, {})
    consumer = await world.open(kind)
    async with world.client.producer(TOPIC) as producer:
        await sent(producer, "old")
        assert await received(consumer, 1) == {"old"}
        await world.recreate(segments)
        await sent(producer, *(f"new-{n}" for n in range(8)))
        assert await received(consumer, 8) == {f"new-{n}" for n in range(8)}
    await consumer.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_consumer_follows_a_topic_that_is_recreated_twice(world: World, kind: str) -> None:
    await world.admin.create(TOPIC, 1, {})
    consumer = await world.open(kind)
    async with world.client.producer(TOPIC) as producer:
        for segments in (2, 3):
            await world.recreate(segments)
            await sent(producer, "a", "b")
            assert await received(consumer, 2) == {"a", "b"}
    await consumer.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_topic_recreated_after_splits_is_read_completely(world: World, kind: str) -> None:
    """The old layout has sealed segments with the ids of the new topic's segments."""
    await world.admin.create(TOPIC, 1, {})
    consumer = await world.open(kind)
    async with world.client.producer(TOPIC) as producer:
        await sent(producer, "old")
        await received(consumer, 1)
        await world.admin.split(TOPIC, 0, 2, None, None)
        await world.recreate(1)
        await sent(producer, "a", "b")
        assert await received(consumer, 2) == {"a", "b"}
    await consumer.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_topic_recreated_while_the_client_is_disconnected_is_read_from_its_beginning(
    world: World, kind: str
) -> None:
    await world.admin.create(TOPIC, 2, {})
    consumer = await world.open(kind)
    async with anabranch.connect(world.node.service_url, connection=QUICK) as other:
        cut = asyncio.ensure_future(keep_cut(world.client))
        await world.recreate(2)
        async with other.producer(TOPIC) as producer:
            await sent(producer, "a", "b")
        cut.cancel()
        await asyncio.wait([cut])
    assert await received(consumer, 2) == {"a", "b"}
    await consumer.close()


async def keep_cut(client: Client) -> None:
    """Breaks the shared connections of the client again and again."""
    while True:
        for connection in list(client._pool._connections.values()):
            connection.abort("cut by the test")
        await asyncio.sleep(0.005)


async def test_positions_of_the_deleted_topic_are_refused(world: World) -> None:
    await world.admin.create(TOPIC, 1, {})
    async with world.client.producer(TOPIC) as producer:
        async with world.client.checkpoint_consumer(TOPIC, group="g", name="one") as consumer:
            await sent(producer, "old")
            await received(consumer, 1)
            old = consumer.checkpoint()
            await world.recreate(1)
            await sent(producer, "new")
            assert await received(consumer, 1) == {"new"}
            with pytest.raises(CheckpointMismatch):
                await consumer.saved(old)
            await consumer.saved(consumer.checkpoint())
        with pytest.raises(CheckpointMismatch):
            await world.client.checkpoint_consumer(TOPIC, start=old)
        with pytest.raises(CheckpointMismatch):
            async with world.client.checkpoint_consumer(TOPIC, group="h", restore=lambda: old) as consumer:
                await consumer.receive(timeout=DEADLINE)


async def test_group_that_restores_positions_of_the_deleted_topic_fails(world: World) -> None:
    await world.admin.create(TOPIC, 1, {})
    stored = Checkpoint.latest()
    async with world.client.checkpoint_consumer(TOPIC, group="g", start=stored, restore=lambda: stored) as consumer:
        stored = consumer.checkpoint()
        await world.recreate(1)
        with pytest.raises(CheckpointMismatch):
            await consumer.receive(timeout=DEADLINE)


async def test_stream_goes_on_after_its_subscription_was_deleted(world: World) -> None:
    """As the consumers of a queue do: the subscription is created again at `start`."""
    await world.admin.create(TOPIC, 2, {})
    async with (
        world.client.producer(TOPIC) as producer,
        world.client.stream_consumer(TOPIC, subscription="s", start="earliest") as consumer,
    ):
        await sent(producer, "a", "b")
        assert await received(consumer, 2) == {"a", "b"}
        await world.admin.delete_subscription(TOPIC, "s", True)
        await sent(producer, "c", "d")
        found: set[str] = set()
        while not found >= {"c", "d"}:  # "a" and "b" come again if they are still stored
            found |= await received(consumer, 1)


# ------------------------------------------------------------------------------------------- deleted, not created again


async def test_send_to_a_deleted_topic_fails_with_a_typed_error_and_later_ones_at_once(world: World) -> None:
    await world.admin.create(TOPIC, 2, {})
    producer = await world.client.producer(TOPIC)
    await sent(producer, "old")
    await world.admin.delete(TOPIC, True)
    with pytest.raises(TopicNotFound, match=TOPIC) as caught:
        await producer.send(b"lost", timeout=DEADLINE)
    assert not caught.value.retryable
    with pytest.raises(TopicNotFound):
        producer.send_nowait(b"lost")
    with pytest.raises(TopicNotFound):
        await producer.send_batch([b"lost"])
    await producer.flush(timeout=DEADLINE)
    assert producer.pending_bytes == 0
    await producer.close()


async def test_producer_goes_on_when_the_topic_is_created_after_sends_have_failed(world: World) -> None:
    await world.admin.create(TOPIC, 2, {})
    async with world.client.producer(TOPIC) as producer, world.client.queue_consumer(TOPIC, subscription="q") as queue:
        await world.admin.delete(TOPIC, True)
        with pytest.raises(TopicNotFound):
            await producer.send(b"lost", timeout=DEADLINE)
        await world.admin.create(TOPIC, 1, {})
        async with asyncio.timeout(DEADLINE):
            while True:
                try:
                    await producer.send(b"new")
                    break
                except TopicNotFound:
                    await asyncio.sleep(0.01)  # it asks for the topic once per second
        assert await received(queue, 1) == {"new"}


@pytest.mark.parametrize("kind", KINDS)
async def test_consumer_of_a_deleted_topic_fails_after_the_operation_timeout(tmp_path: Path, kind: str) -> None:
    async with (
        Node(plain_settings(tmp_path)) as node,
        anabranch.connect(node.service_url, connection=QUICK, operation_timeout=2.0) as client,
    ):
        world = World(node, client, admin_of(node))
        await world.admin.create(TOPIC, 1, {})
        consumer = await world.open(kind)
        await world.admin.delete(TOPIC, True)
        assert await consumer.receive(timeout=0.5) is None, "it may be created again"
        with pytest.raises(TopicNotFound, match=TOPIC):
            await consumer.receive(timeout=DEADLINE)
        await consumer.close()


async def test_timeout_of_a_send_names_the_deleted_topic(world: World) -> None:
    await world.admin.create(TOPIC, 1, {})
    async with world.client.producer(TOPIC, send_timeout=0.3) as producer:
        await sent(producer, "old")
        await world.admin.delete(TOPIC, True)
        with pytest.raises(TimedOut, match="orders") as caught:
            await producer.send(b"lost", timeout=DEADLINE)
        assert isinstance(caught.value.__cause__, TopicNotFound)
