"""Layout sessions of regular topics: one segment per partition, the hash of their keys, and changes of both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from anabranch.broker.admin.subscriptions import SubscriptionAdmin
from anabranch.broker.admin.topic_maintenance import TopicMaintenance
from anabranch.broker.admin.topics import TopicAdmin
from anabranch.controller.regular_topics import TopicNotMigrated
from anabranch.model.errors import AlreadyExists
from anabranch.model.names import TopicName
from anabranch.model.partition_hash import PARTITION_HASH_PROPERTY
from anabranch.node.node import Node
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.server_errors import ServerError
from tests.integration.broker.test_partition_hashes import KEYS, java, write
from tests.support.processes.in_process_cluster import nodes
from tests.support.processes.scalable_nodes import admin_of, layout_client, plain_settings

TOPIC = TopicName.parse("persistent://public/default/orders")


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with Node(plain_settings(tmp_path)) as made:
        yield made


def topics_of(node: Node) -> TopicAdmin:
    return TopicAdmin(lambda: node.services, SubscriptionAdmin(lambda: node.services))


def partitions(update: pb.CommandScalableTopicUpdate) -> list[str]:
    assert all(one.state == pb.ACTIVE for one in update.dag.segments)
    return [one.legacy_topic_name for one in update.dag.segments]


@pytest.mark.parametrize("spelling", ["orders", str(TOPIC), "topic://public/default/orders", "public/default/orders"])
async def test_every_name_of_a_partitioned_topic_answers_its_partitions(node: Node, spelling: str) -> None:
    await topics_of(node).create_partitions(str(TOPIC), 3, {})
    async with layout_client(node) as client:
        client.lookup(spelling)
        update = await client.update()
        assert update.resolved_topic_name == "topic://public/default/orders"
        assert partitions(update) == [str(TOPIC.partition(index)) for index in range(3)]
        assert (update.dag.epoch, update.dag.partition_hash, update.dag.incarnation) == (0, "murmur3-32", 0)
        assert {one.broker_url for one in update.dag.segment_brokers} == {node.service_url}
        assert not update.dag.HasField("controller_broker_url"), "no controller leads it"


async def test_topic_without_partitions_is_one_segment_also_before_it_exists(node: Node) -> None:
    async with layout_client(node) as client:
        client.lookup(str(TOPIC))
        assert partitions(await client.update()) == [str(TOPIC)]
        assert not await node.services.catalog.exists(TOPIC), "attaching creates it, not looking"
        await node.services.topics.create(TOPIC)
        client.lookup("topic://public/default/orders", 2)
        assert partitions(await client.update(2)) == [str(TOPIC)]


async def test_names_without_layout_are_refused(node: Node) -> None:
    await topics_of(node).create_partitions(str(TOPIC), 2, {})
    async with layout_client(node) as client:
        client.lookup("non-persistent://public/default/orders", 1)
        assert (await client.update(1)).error == ServerError.NotAllowedError
        client.lookup(str(TOPIC.partition(0)), 2)
        assert (await client.update(2)).error == ServerError.TopicNotFound


async def test_added_partitions_are_pushed_to_sessions_on_every_broker(tmp_path: Path) -> None:
    async with nodes(tmp_path, "a", "b") as both:
        await topics_of(both[0]).create_partitions(str(TOPIC), 2, {})
        async with layout_client(both[0]) as one, layout_client(both[1]) as other:
            for client in (one, other):
                client.lookup(str(TOPIC))
                assert len(partitions(await client.update())) == 2
            await topics_of(both[0]).update_partitions(str(TOPIC), 5)
            for client in (one, other):
                update = await client.update()
                assert (len(partitions(update)), update.dag.epoch) == (5, 0)


async def test_layout_names_the_hash_of_the_keys_and_a_property_decides(node: Node) -> None:
    await topics_of(node).create_partitions(str(TOPIC), 5, {})
    await asyncio.to_thread(write, node.service_url, KEYS)
    async with layout_client(node) as client:
        client.lookup(str(TOPIC))
        assert (await client.update()).dag.partition_hash == "boost"
        maintenance = TopicMaintenance(lambda: node.services)
        await maintenance.add_properties(str(TOPIC), {PARTITION_HASH_PROPERTY: "java-string"})
        assert (await client.update()).dag.partition_hash == "java-string"


async def test_hash_that_keys_show_later_is_pushed(node: Node) -> None:
    await topics_of(node).create_partitions(str(TOPIC), 5, {})
    async with layout_client(node) as client:
        client.lookup(str(TOPIC))
        assert (await client.update()).dag.partition_hash == "murmur3-32"
        await asyncio.to_thread(write, node.service_url, KEYS, java)
        assert (await client.update()).dag.partition_hash == "java-string"


async def test_split_and_merge_of_a_regular_topic_name_the_migration(node: Node) -> None:
    await topics_of(node).create_partitions(str(TOPIC), 2, {})
    admin = admin_of(node)
    for name in (str(TOPIC), "topic://public/default/orders"):
        with pytest.raises(TopicNotMigrated, match="migrate-to-scalable topic://public/default/orders"):
            await admin.split(name, 0, 2, None, None)
        with pytest.raises(TopicNotMigrated, match="migrate-to-scalable topic://public/default/orders"):
            await admin.merge(name, [0, 1], None)
    with pytest.raises(AlreadyExists, match="regular topic"):
        await admin.create("topic://public/default/orders", 1, {})
