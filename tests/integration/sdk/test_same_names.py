"""Two consumers of the SDK with one name: the newer one takes over, the older one fails with a typed error."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import anabranch
from anabranch import Backoff, Checkpoint, CheckpointConsumer, Client, ConnectionPolicy, StreamConsumer
from anabranch.broker.admin.scalable_topics import ScalableAdmin
from anabranch.client.consumer.controller_session import ControllerSession
from anabranch.client.errors import ConsumerReplaced
from anabranch.model.names import TopicName
from anabranch.node.node import Node
from tests.support.processes.in_process_cluster import until
from tests.support.processes.scalable_nodes import admin_of, plain_settings, service_of

DEADLINE = 60.0
QUICK = ConnectionPolicy(backoff=Backoff(initial=0.02, maximum=0.2))
TOPIC = "topic://public/default/orders"
Ordered = StreamConsumer | CheckpointConsumer


@dataclass
class World:
    node: Node
    client: Client
    admin: ScalableAdmin

    async def open(self, kind: str, client: Client | None = None) -> Ordered:
        client = client or self.client
        if kind == "stream":
            return await client.stream_consumer(TOPIC, subscription="s", name="worker", start="earliest")
        return await client.checkpoint_consumer(TOPIC, group="s", name="worker", start=Checkpoint.earliest())

    async def publish(self, *values: str) -> None:
        async with self.client.producer(TOPIC) as producer:
            for value in values:
                await producer.send(value.encode(), key=value, timeout=DEADLINE)

    async def connected(self) -> list[str]:
        found = await self.admin.subscription(TOPIC, "s")
        return [one["name"] for one in found["sessions"] if one["connected"]]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with (
        Node(plain_settings(tmp_path)) as node,
        anabranch.connect(node.service_url, connection=QUICK) as client,
    ):
        world = World(node, client, admin_of(node))
        await world.admin.create(TOPIC, 2, {})
        yield world


async def received(consumer: Ordered, count: int) -> set[str]:
    found: set[str] = set()
    while len(found) < count:
        message = await consumer.receive(timeout=DEADLINE)
        assert message is not None
        found.add(message.data.decode())
    return found


@pytest.mark.parametrize("kind", ["stream", "group"])
async def test_newer_consumer_takes_over_and_the_older_gets_a_typed_error(world: World, kind: str) -> None:
    older = await world.open(kind)
    newer = await world.open(kind)
    with pytest.raises(ConsumerReplaced) as caught:
        await older.receive(timeout=DEADLINE)
    assert (caught.value.code, caught.value.retryable) == ("consumer-replaced", False)
    assert "'worker'" in caught.value.reason
    await world.publish("a", "b", "c")
    assert await received(newer, 3) == {"a", "b", "c"}
    await older.close()
    assert await world.connected() == ["worker"], "the close of the older one changes nothing"
    await world.publish("d")
    assert await received(newer, 1) == {"d"}


async def test_replaced_member_of_a_group_cannot_report_progress(world: World) -> None:
    older = await world.open("group")
    assert isinstance(older, CheckpointConsumer)
    checkpoint = older.checkpoint()
    await world.open("group")
    with pytest.raises(ConsumerReplaced):
        await older.receive(timeout=DEADLINE)
    with pytest.raises(ConsumerReplaced):
        await older.saved(checkpoint)


@pytest.mark.parametrize("kind", ["stream", "group"])
async def test_older_consumer_does_not_come_back_after_connections_and_leader_are_lost(world: World, kind: str) -> None:
    """The older one loses its connection, is replaced meanwhile, and comes back to the next leader."""
    older = await world.open(kind)
    session = session_of(older)
    async with anabranch.connect(world.node.service_url, connection=QUICK) as other:
        pause = asyncio.ensure_future(keep_cut(session))
        newer = await world.open(kind, other)
        controller = service_of(world.node).controllers.by_topic[TopicName.parse(TOPIC)]
        controller.stop_leading("by the test")
        pause.cancel()
        await asyncio.wait([pause])
        with pytest.raises(ConsumerReplaced):
            await older.receive(timeout=DEADLINE)
        await world.publish("a", "b")
        assert await received(newer, 2) == {"a", "b"}
        await until(lambda: session._connection is None)


async def test_reconnecting_consumer_keeps_its_session(world: World) -> None:
    consumer = await world.open("stream")
    for number in range(3):
        connection = session_of(consumer)._connection
        assert connection is not None
        connection.abort("cut by the test")
        await world.publish(str(number))
        assert await received(consumer, 1) == {str(number)}
        await until(lambda: session_of(consumer)._connection is not None)


def session_of(consumer: Ordered) -> ControllerSession:
    parts = consumer._sessions if isinstance(consumer, StreamConsumer) else consumer._checkpoint_topics
    (only,) = parts.values()
    assert only.controller_session is not None
    return only.controller_session


async def keep_cut(session: ControllerSession) -> None:
    """Breaks the connection of the session again and again."""
    while True:
        if session._connection is not None:
            session._connection.abort("cut by the test")
        await asyncio.sleep(0)
