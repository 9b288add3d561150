"""Migration of regular topics on one broker: subscriptions with backlog, old clients, undo, what follows it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

import anabranch
from anabranch import Client, Message
from anabranch.broker.admin.migration_check import MigrationBlocked
from anabranch.broker.admin.partition_hashes import PartitionHashes
from anabranch.broker.admin.subscriptions import SubscriptionAdmin
from anabranch.broker.admin.topic_migration import TopicMigrationAdmin
from anabranch.broker.admin.topics import TopicAdmin
from anabranch.broker.errors import TopicMigrated, TopicNotFound
from anabranch.broker.segment.owned_segment import segment_of
from anabranch.client import errors
from anabranch.model.errors import AlreadyExists, Error, NotAllowed
from anabranch.model.names import TopicName
from anabranch.node.node import Node
from anabranch.node.settings.node import NodeSettings
from anabranch.protocol.commands import BaseCommand
from anabranch.protocol.server_errors import ServerError
from tests.support.processes.scalable_nodes import admin_of, plain_settings
from tests.support.traffic.raw_client import RawClient

PATIENCE = 30.0
MIGRATED = "TopicMigrated: persistent://public/default/orders is now topic://public/default/orders"
OLD, NEW = "persistent://public/default/orders", "topic://public/default/orders"
KEYS = 7


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with Node(migrating_settings(tmp_path)) as node:
        yield node


def migrating_settings(path: Path) -> NodeSettings:
    return plain_settings(path)


@pytest.fixture
async def client(node: Node) -> AsyncIterator[Client]:
    async with anabranch.connect(node.service_url) as client:
        yield client


def topics_of(node: Node) -> TopicAdmin:
    return TopicAdmin(lambda: node.services, SubscriptionAdmin(lambda: node.services))


def migrations_of(node: Node) -> TopicMigrationAdmin:
    return TopicMigrationAdmin(lambda: node.services, PartitionHashes(lambda: node.services))


async def migrate(node: Node, topic: str = OLD, *, force: bool = False, **kinds: str) -> None:
    async with asyncio.timeout(PATIENCE):
        await migrations_of(node).migrate(topic, force=force, kinds=kinds)


async def make_topic(node: Node, partitions: int) -> None:
    if partitions:
        await topics_of(node).create_partitions(OLD, partitions, {})
    else:
        await topics_of(node).create(OLD, {})


async def publish(client: Client, topic: str, numbers: range) -> None:
    async with client.producer(topic) as producer:
        for number in numbers:
            producer.send_nowait(b"%d" % number, key=f"k{number % KEYS}")
        await producer.flush(timeout=PATIENCE)


async def take(consumer: anabranch.QueueConsumer | anabranch.StreamConsumer, count: int) -> list[Message]:
    found: list[Message] = []
    while len(found) < count:
        message = await consumer.receive(timeout=PATIENCE)
        assert message is not None, f"only {len(found)} of {count} messages"
        found.append(message)
    return found


def numbers_of(messages: list[Message]) -> list[int]:
    return sorted(int(message.value) for message in messages)


def check_key_order(messages: list[Message]) -> None:
    last: dict[str, int] = {}
    for message in messages:
        key, number = str(message.key), int(message.value)
        assert number > last.get(key, -1), f"{key}: {number} after {last[key]}"
        last[key] = number


@pytest.mark.parametrize("partitions", [0, 1, 5])
async def test_queue_subscription_with_holes_goes_on_where_it_was(node: Node, client: Client, partitions: int) -> None:
    await make_topic(node, partitions)
    acked: set[int] = set()
    async with client.queue_consumer(OLD, subscription="work", start="earliest") as consumer:
        await publish(client, OLD, range(90))
        for index, message in enumerate(await take(consumer, 90)):
            if index % 3:
                await consumer.ack(message)
                acked.add(int(message.value))
    await migrate(node)
    await publish(client, NEW, range(90, 120))
    async with client.queue_consumer(NEW, subscription="work") as consumer:
        left = sorted(set(range(120)) - acked)
        assert numbers_of(await take(consumer, len(left))) == left


@pytest.mark.parametrize("partitions", [0, 1, 5])
async def test_stream_subscription_reads_the_rest_in_the_order_of_each_key(
    node: Node, client: Client, partitions: int
) -> None:
    await make_topic(node, partitions)
    async with client.stream_consumer(OLD, subscription="audit", start="earliest") as consumer:
        await publish(client, OLD, range(90))
        first = await take(consumer, 30)
        await consumer.ack_cumulative(first[-1])
    await migrate(node)
    await publish(client, NEW, range(90, 120))
    async with client.stream_consumer(NEW, subscription="audit") as consumer:
        rest = await take(consumer, 90)
    assert numbers_of([*first, *rest]) == list(range(120))
    check_key_order([*first, *rest])


async def test_new_subscription_reads_partitions_before_their_children(node: Node, client: Client) -> None:
    await make_topic(node, 3)
    await publish(client, OLD, range(60))
    await migrate(node)
    await publish(client, NEW, range(60, 90))
    async with client.stream_consumer(NEW, subscription="late", start="earliest") as consumer:
        found = await take(consumer, 90)
    assert numbers_of(found) == list(range(90))
    check_key_order(found)


async def test_migrated_topic_is_split_merged_and_deleted_with_its_partitions(node: Node, client: Client) -> None:
    await make_topic(node, 2)
    await publish(client, OLD, range(20))
    await migrate(node)
    admin = admin_of(node)
    split = await admin.split(NEW, 2, 2, None, None)
    await publish(client, NEW, range(20, 40))
    await admin.merge(NEW, split["segments"], None)
    async with client.stream_consumer(NEW, subscription="all", start="earliest") as consumer:
        found = await take(consumer, 40)
        check_key_order(found)
    await admin.delete(NEW, force=True)
    assert await topics_of(node).list_all("public/default", "persistent", True) == []
    await make_topic(node, 3)
    assert await node.services.catalog.partitions(TopicName.parse(OLD)) == 3


async def test_metadata_shows_what_the_topic_was(node: Node) -> None:
    await make_topic(node, 2)
    assert (await migrations_of(node).status(OLD))["phase"] == "NONE"
    await migrate(node)
    found = await admin_of(node).metadata(NEW)
    assert found["migratedFrom"]["topic"] == OLD
    assert found["migratedFrom"]["partitions"] == 2
    assert (await migrations_of(node).status(OLD))["phase"] == "DONE"
    with pytest.raises(TopicNotFound):
        await migrations_of(node).status("persistent://public/default/none")


class TestGuards:
    async def test_old_name_is_refused_everywhere(self, node: Node, client: Client) -> None:
        await make_topic(node, 2)
        await migrate(node)
        catalog, old = node.services.catalog, TopicName.parse(OLD)
        with pytest.raises(TopicMigrated, match=f"TopicMigrated: {OLD} is now {NEW}"):
            await catalog.partitions_or_create(old, auto_create=True)
        with pytest.raises(TopicMigrated):
            await topics_of(node).lookup(OLD, False, None)
        with pytest.raises((AlreadyExists, TopicMigrated)):
            await topics_of(node).create(OLD, {})
        with pytest.raises((AlreadyExists, TopicMigrated)):
            await topics_of(node).create_partitions(OLD, 4, {})
        with pytest.raises(Error):
            await topics_of(node).update_partitions(OLD, 4)
        with pytest.raises(AlreadyExists):
            await admin_of(node).create(NEW, 1, {})

    async def test_client_that_cannot_follow_is_refused_by_a_partition(self, node: Node) -> None:
        await make_topic(node, 2)
        await migrate(node)
        partition = f"{OLD}-partition-1"
        async with RawClient(node.service_url) as raw:
            await raw.hello()
            refused = await raw.ask(BaseCommand.PRODUCER, topic=partition, producer_id=1)
            assert (refused.body.error, refused.body.message) == (ServerError.TopicNotFound, MIGRATED)
            assert refused.body.migrated_to == NEW
            refused = await raw.ask(
                BaseCommand.SUBSCRIBE, topic=partition, subscription="old", subType=1, consumer_id=1
            )
            assert (refused.body.error, refused.body.message) == (ServerError.TopicNotFound, MIGRATED)

    async def test_sdk_gets_the_new_name_with_the_error(self, node: Node, client: Client) -> None:
        await make_topic(node, 2)
        await migrate(node)
        with pytest.raises(errors.TopicMigrated, match="TopicMigrated: ") as refused:
            await client._pool.partitions(OLD)
        assert (refused.value.code, refused.value.migrated_to, refused.value.retryable) == (
            "topic-migrated", NEW, False
        )  # fmt: skip
        assert await client._pool.serving(OLD), "Pulsar's V5 client looks up the old name"

    async def test_old_client_blocks_a_migration_and_goes_on_undisturbed(self, node: Node) -> None:
        await make_topic(node, 2)
        async with RawClient(node.service_url) as raw:
            await raw.hello()
            await raw.producer(f"{OLD}-partition-1", producer_name="legacy")
            with pytest.raises(MigrationBlocked, match=r"1 clients cannot follow .*producer legacy at 127"):
                await migrate(node)
            report = await migrations_of(node).check(OLD, force=False, kinds={})
            assert [one["name"] for one in report["clients"]] == ["legacy"]
            assert [one["kind"] for one in report["blockers"]] == ["v4-clients"]
            raw.send(0)
            await raw.receipt()

    async def test_forced_migration_closes_old_clients(self, node: Node) -> None:
        await make_topic(node, 2)
        async with RawClient(node.service_url) as raw:
            await raw.hello()
            await raw.producer(f"{OLD}-partition-1")
            await raw.subscribe(f"{OLD}-partition-0", "old", consumer_id=2)
            await migrate(node, force=True)
            await raw.expect(BaseCommand.CLOSE_PRODUCER)
            await raw.expect(BaseCommand.CLOSE_CONSUMER)
        assert (await migrations_of(node).status(OLD))["phase"] == "DONE"

    async def test_partition_survives_a_restart_as_a_segment(self, tmp_path: Path) -> None:
        settings = migrating_settings(tmp_path)
        async with Node(settings) as node, anabranch.connect(node.service_url) as client:
            await make_topic(node, 2)
            await publish(client, OLD, range(10))
            await migrate(node)
        async with Node(settings) as node, anabranch.connect(node.service_url) as client:
            async with client.stream_consumer(NEW, subscription="all", start="earliest") as consumer:
                assert numbers_of(await take(consumer, 10)) == list(range(10))
            partition = node.services.topics.loaded(TopicName.parse(f"{OLD}-partition-0"))
            assert segment_of(partition) is not None


class TestRefusals:
    async def test_missing_topic_is_not_found(self, node: Node) -> None:
        with pytest.raises(TopicNotFound):
            await migrate(node)

    async def test_scalable_topic_is_refused(self, node: Node) -> None:
        await admin_of(node).create(NEW, 1, {})
        with pytest.raises(MigrationBlocked, match="a scalable topic has the name"):
            await migrate(node)

    async def test_second_migration_is_refused(self, node: Node) -> None:
        await make_topic(node, 2)
        await migrate(node)
        with pytest.raises(MigrationBlocked):
            await migrate(node)

    async def test_partition_is_refused(self, node: Node) -> None:
        await make_topic(node, 2)
        with pytest.raises(MigrationBlocked, match="is a partition"):
            await migrate(node, f"{OLD}-partition-0")

    async def test_terminated_topic_is_refused(self, node: Node) -> None:
        await make_topic(node, 0)
        await topics_of(node).terminate(OLD)
        with pytest.raises(MigrationBlocked, match="terminated"):
            await migrate(node)

    async def test_kill_switch_refuses_every_migration(self, tmp_path: Path) -> None:
        plain = plain_settings(tmp_path)
        off = replace(plain, scalable_topics=replace(plain.scalable_topics, migration_enabled=False))
        async with Node(off) as node:
            await make_topic(node, 0)
            assert (await migrations_of(node).check(OLD, force=False, kinds={}))["possible"]
            with pytest.raises(NotAllowed, match="migration_enabled"):
                await migrate(node)
