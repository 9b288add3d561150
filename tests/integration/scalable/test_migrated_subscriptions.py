"""What subscriptions of stock consumers left unread before a migration, and nothing else, comes after it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pulsar
import pytest

import anabranch
from anabranch import Client
from anabranch.node.node import Node
from tests.integration.scalable.test_migration import (
    NEW,
    OLD,
    PATIENCE,
    check_key_order,
    make_topic,
    migrate,
    migrating_settings,
    migrations_of,
    numbers_of,
    publish,
    take,
)
from tests.support.processes.scalable_nodes import admin_of
from tests.support.traffic.stock_client import new_client

MESSAGES = 60
DELAY_SECONDS = 2.0
TYPES = {
    "Exclusive": (pulsar.ConsumerType.Exclusive, "STREAM"),
    "Failover": (pulsar.ConsumerType.Failover, "STREAM"),
    "Shared": (pulsar.ConsumerType.Shared, "QUEUE"),
    "Key_Shared": (pulsar.ConsumerType.KeyShared, "QUEUE"),
}


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with Node(migrating_settings(tmp_path)) as made:
        yield made


@pytest.fixture
async def client(node: Node) -> AsyncIterator[Client]:
    async with anabranch.connect(node.service_url) as made:
        yield made


async def with_stock(node: Node, work: Callable[[pulsar.Client], Any]) -> Any:
    """In a thread: the broker runs in this one."""

    def run() -> Any:
        stock = new_client(node.service_url)
        try:
            return work(stock)
        finally:
            stock.close()

    return await asyncio.to_thread(run)


def send_batches(stock: pulsar.Client, numbers: range) -> None:
    """Ten messages to a batch."""
    producer = stock.create_producer(
        OLD, batching_enabled=True, batching_max_messages=10, batching_max_publish_delay_ms=10_000
    )
    for number in numbers:
        producer.send_async(b"%d" % number, lambda *_: None, partition_key=f"k{number % 7}")
    producer.flush()
    producer.close()


@pytest.mark.parametrize("partitions", [0, 3])
@pytest.mark.parametrize("kind", TYPES)
async def test_unread_messages_of_stock_consumers_come_after_it_holes_in_batches_too(
    node: Node, client: Client, kind: str, partitions: int
) -> None:
    await make_topic(node, partitions)
    consumer_type, wanted = TYPES[kind]
    acked: set[int] = set()

    def consume(stock: pulsar.Client) -> None:
        consumer = stock.subscribe(
            OLD, "work", consumer_type=consumer_type, batch_index_ack_enabled=True, initial_position=EARLIEST
        )
        send_batches(stock, range(MESSAGES))
        for index in range(MESSAGES):
            message = consumer.receive(timeout_millis=20_000)
            if index % 3:
                consumer.acknowledge(message)
                acked.add(int(message.data()))
        time.sleep(0.3)  # acknowledgements are sent in groups
        consumer.close()

    await with_stock(node, consume)
    report = await migrations_of(node).check(OLD, force=False, kinds={})
    assert report["subscriptions"] == {"work": wanted}
    await migrate(node)
    await publish(client, NEW, range(MESSAGES, MESSAGES + 20))
    left = sorted(set(range(MESSAGES + 20)) - acked)
    if wanted == "QUEUE":
        async with client.queue_consumer(NEW, subscription="work") as queue:
            found = await take(queue, len(left))
            assert await queue.receive(timeout=0.3) is None
    else:
        async with client.stream_consumer(NEW, subscription="work") as stream:
            found = await take(stream, len(left))
            check_key_order(found)
            assert await stream.receive(timeout=0.3) is None
    assert numbers_of(found) == left


EARLIEST = pulsar.InitialPosition.Earliest


async def test_delayed_messages_of_partitions_come_when_they_are_due(node: Node, client: Client) -> None:
    await make_topic(node, 2)
    async with client.queue_consumer(OLD, subscription="work", start="earliest"), client.producer(OLD) as producer:
        for number in range(6):
            await producer.send(b"%d" % number, key=f"k{number}", deliver_after=DELAY_SECONDS if number % 2 else None)
        published = time.monotonic()
    await migrate(node)
    async with client.queue_consumer(NEW, subscription="work") as consumer:
        found = await take(consumer, 6)
        assert time.monotonic() - published >= DELAY_SECONDS - 0.5
    assert sorted(int(one.value) for one in found[:3]) == [0, 2, 4], "those without a delay come first"
    assert numbers_of(found) == list(range(6))


async def test_redelivery_counts_go_on_to_the_dead_letter_topic(node: Node, client: Client) -> None:
    await make_topic(node, 1)
    letters = "persistent://public/default/letters"
    policy = anabranch.DeadLetter(max_redeliveries=2, topic=letters)
    async with client.queue_consumer(OLD, subscription="work", start="earliest", dead_letter=policy) as consumer:
        await publish(client, OLD, range(1))
        (message,) = await take(consumer, 1)
        await consumer.nack(message, delay=0.01)
        await migrate(node)
        counts = []
        async with asyncio.timeout(PATIENCE):
            while (message_again := await consumer.receive(timeout=2.0)) is not None:
                counts.append(message_again.redelivery_count)
                await consumer.nack(message_again, delay=0.01)
    assert counts == [1, 2]
    async with client.queue_consumer(letters, subscription="all", start="earliest") as reader:
        assert numbers_of(await take(reader, 1)) == [0]


async def test_stats_seek_and_clear_cover_partitions_and_children(node: Node, client: Client) -> None:
    await make_topic(node, 2)
    async with client.stream_consumer(OLD, subscription="audit", start="earliest"):
        await publish(client, OLD, range(30))
    between_ms = node.services.clock.now_ms()
    await asyncio.sleep(0.01)
    await migrate(node)
    await publish(client, NEW, range(30, 50))
    admin = admin_of(node)
    stats = await admin.stats(NEW)
    assert sum(one["messages"] for one in stats["segments"].values()) == 50
    assert (await admin.subscription(NEW, "audit"))["msgBacklog"] == 50
    await admin.seek(NEW, "audit", between_ms)
    async with client.stream_consumer(NEW, subscription="audit") as consumer:
        assert numbers_of(await take(consumer, 20)) == list(range(30, 50))
    await admin.seek(NEW, "audit", 0)
    async with client.stream_consumer(NEW, subscription="audit") as consumer:
        found = await take(consumer, 50)
        check_key_order(found)
    await admin.clear_backlog(NEW, "audit")
    assert (await admin.subscription(NEW, "audit"))["msgBacklog"] == 0
