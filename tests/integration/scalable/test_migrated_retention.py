"""What becomes of the partitions of a migrated topic: deleted after retention, expired by TTL, shown to people."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

import anabranch
from anabranch import Client
from anabranch.broker.admin.views.messages import MessageBrowser
from anabranch.broker.errors import TopicMigrated
from anabranch.broker.segment.owned_segment import segment_of
from anabranch.broker.topic.topic import Topic
from anabranch.model.errors import AlreadyExists
from anabranch.model.names import TopicName
from anabranch.node.node import Node
from anabranch.node.settings.scalable_topics import ScalableTopicSettings
from tests.integration.scalable.test_migration import (
    NEW,
    OLD,
    make_topic,
    migrate,
    numbers_of,
    publish,
    take,
    topics_of,
)
from tests.integration.scalable.test_retention import MINUTE_MS, MovedClock
from tests.support.processes.in_process_cluster import until
from tests.support.processes.scalable_nodes import admin_of, plain_settings, service_of

RETENTION_MINUTES = 60
SCALABLE = TopicName.parse(NEW)


@pytest.fixture
def clock() -> MovedClock:
    return MovedClock()


@pytest.fixture
async def node(tmp_path: Path, clock: MovedClock) -> AsyncIterator[Node]:
    scalable = replace(
        ScalableTopicSettings(),
        retention_minutes=RETENTION_MINUTES,
        sweep_seconds=3_600.0,
        idle_seconds=86_400.0,
        auto_scale_enabled=False,
    )
    async with Node(plain_settings(tmp_path, scalable_topics=scalable), clock) as made:
        yield made


@pytest.fixture
async def client(node: Node) -> AsyncIterator[Client]:
    async with anabranch.connect(node.service_url) as made:
        yield made


def is_drained(node: Node, partition: str, subscription: str) -> bool:
    topic = node.services.topics.loaded(TopicName.parse(partition))
    segment = None if topic is None else segment_of(topic)
    return segment is not None and any(name == subscription for name, _ in segment.state.drained)


async def read_all(client: Client, topic: str, subscription: str, count: int) -> None:
    async with client.queue_consumer(topic, subscription=subscription, start="earliest") as consumer:
        found = await take(consumer, count)
        for message in found:
            await consumer.ack(message)
    assert numbers_of(found) == list(range(count))


@pytest.mark.parametrize("partitions", [0, 2])
async def test_drained_partitions_are_deleted_after_their_retention_and_the_old_name_stays_refused(
    node: Node, client: Client, clock: MovedClock, partitions: int
) -> None:
    await make_topic(node, partitions)
    count = max(1, partitions)
    parts = [f"{OLD}-partition-{index}" for index in range(partitions)] or [OLD]
    for subscription in ("fast", "slow"):
        async with client.queue_consumer(OLD, subscription=subscription, start="earliest"):
            pass
    await publish(client, OLD, range(20))
    await migrate(node)
    await read_all(client, NEW, "fast", 20)
    await until(lambda: all(is_drained(node, part, "fast") for part in parts))
    service = service_of(node)
    clock.ahead_ms += (RETENTION_MINUTES + 1) * MINUTE_MS
    await service.controllers.sweep()
    assert len((await service.record(SCALABLE)).segments) == 2 * count, "a backlog keeps them, however old"

    await read_all(client, NEW, "slow", 20)
    await until(lambda: all(is_drained(node, part, "slow") for part in parts))
    await service.controllers.sweep()
    assert sorted((await service.record(SCALABLE)).segments) == list(range(count, 2 * count))
    await until(lambda: node.services.topics.loaded(TopicName.parse(parts[0])) is None)
    assert await topics_of(node).list_all("public/default", "persistent", True) == []

    with pytest.raises(TopicMigrated):
        await topics_of(node).lookup(OLD, False, None)
    with pytest.raises((AlreadyExists, TopicMigrated)):
        await topics_of(node).create(OLD, {})
    with pytest.raises((AlreadyExists, TopicMigrated)):
        await topics_of(node).create_partitions(OLD, 2, {})
    await publish(client, NEW, range(20, 30))
    async with client.queue_consumer(NEW, subscription="slow") as consumer:
        assert numbers_of(await take(consumer, 10)) == list(range(20, 30))


async def test_messages_expire_on_partitions_and_children(node: Node, client: Client, clock: MovedClock) -> None:
    await make_topic(node, 2)
    async with client.queue_consumer(OLD, subscription="work", start="earliest"):
        await publish(client, OLD, range(20))
    await migrate(node)
    await publish(client, NEW, range(20, 40))
    await node.services.catalog.change_policies(
        SCALABLE.namespace_path, lambda known: replace(known, other={**known.other, "message_ttl_in_seconds": 60})
    )
    await node.services.topics.apply_policies(SCALABLE.namespace_path)
    clock.ahead_ms += 2 * MINUTE_MS
    for topic in list(node.services.topics):
        assert isinstance(topic, Topic)
        await topic.sweep()
    assert (await admin_of(node).subscription(NEW, "work"))["msgBacklog"] == 0
    await publish(client, NEW, range(40, 50))
    async with client.queue_consumer(NEW, subscription="work") as consumer:
        assert numbers_of(await take(consumer, 10)) == list(range(40, 50))


async def test_newest_messages_of_partitions_and_children_are_shown(node: Node, client: Client) -> None:
    await make_topic(node, 2)
    await publish(client, OLD, range(10))
    await migrate(node)
    await publish(client, NEW, range(10, 20))
    shown = await MessageBrowser(lambda: node.services).newest(NEW, 50, None)
    assert sorted(int(one["payload"]) for one in shown) == list(range(20))
    assert {one["segment"] for one in shown} == {0, 1, 2, 3}
