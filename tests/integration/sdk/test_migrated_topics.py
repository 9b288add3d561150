"""The SDK attached by the `persistent://` name while its topic is migrated, on a real node in this process."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import anabranch
from anabranch import Batching, Checkpoint, CheckpointConsumer, Client, Message, Producer, QueueConsumer, StreamConsumer
from anabranch.node.node import Node
from tests.integration.broker.test_partition_hashes import java, write
from tests.integration.scalable.test_migration import OLD, migrate, migrating_settings, topics_of

DEADLINE = 60.0
KEYS = [f"customer-{number}" for number in range(37)]
ROUNDS = 60

AnyConsumer = QueueConsumer | StreamConsumer | CheckpointConsumer


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with Node(migrating_settings(tmp_path)) as made:
        yield made


@pytest.fixture
async def client(node: Node) -> AsyncIterator[Client]:
    async with anabranch.connect(node.service_url) as made:
        yield made


async def make(node: Node, partitions: int) -> None:
    if partitions:
        await topics_of(node).create_partitions(OLD, partitions, {})
    else:
        await topics_of(node).create(OLD, {})


class Traffic:
    """Keyed and pipelined: key k's messages are `k 0`, `k 1`, …"""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._counts = dict.fromkeys(KEYS, 0)
        self.sent: list[str] = []
        self._unanswered: list[asyncio.Future[anabranch.MessageId]] = []

    def round(self) -> None:
        for key in KEYS:
            text = f"{key} {self._counts[key]}"
            self._counts[key] += 1
            self.sent.append(text)
            self._unanswered.append(self._producer.send_nowait(text.encode(), key=key))

    async def during(self, node: Node) -> None:
        """Publishes before, through and after the migration; every send succeeds."""
        migration: asyncio.Task[None] | None = None
        for number in range(ROUNDS):
            self.round()
            if number == ROUNDS // 3:
                migration = asyncio.create_task(migrate(node))
            await asyncio.sleep(0.002)
        assert migration is not None
        await migration
        self.round()
        await asyncio.wait_for(asyncio.gather(*self._unanswered), DEADLINE)


def check(found: list[Message], sent: list[str], *, is_ordered: bool) -> None:
    texts = [one.data.decode() for one in found]
    assert Counter(texts) == Counter(sent), "lost or delivered twice"
    orders: dict[str, list[int]] = defaultdict(list)
    for text in texts:
        key, _, number = text.partition(" ")
        orders[key].append(int(number))
    if is_ordered:
        assert all(numbers == sorted(numbers) for numbers in orders.values())


async def read(consumer: AnyConsumer, count: int) -> list[Message]:
    found: list[Message] = []
    while len(found) < count:
        message = await consumer.receive(timeout=DEADLINE)
        assert message is not None, f"only {len(found)} of {count} messages"
        found.append(message)
        if isinstance(consumer, QueueConsumer):
            await consumer.ack(message)
        elif isinstance(consumer, StreamConsumer) and len(found) % 50 == 0:
            await consumer.ack_cumulative(message)
    while (message := await consumer.receive(timeout=0.3)) is not None:
        found.append(message)
    return found


@pytest.mark.parametrize("kind", ["queue", "stream", "checkpoint"])
@pytest.mark.parametrize("partitions", [0, 3])
async def test_nothing_is_lost_doubled_or_reordered_through_a_migration(
    node: Node, client: Client, partitions: int, kind: str
) -> None:
    await make(node, partitions)
    consumer: AnyConsumer
    if kind == "queue":
        consumer = await client.queue_consumer(OLD, subscription="s", start="earliest")
    elif kind == "stream":
        consumer = await client.stream_consumer(OLD, subscription="s", start="earliest")
    else:
        consumer = await client.checkpoint_consumer(OLD, start=Checkpoint.earliest())
    async with client.producer(OLD, batching=Batching(max_messages=5)) as producer:
        traffic = Traffic(producer)
        reading = asyncio.create_task(read(consumer, (ROUNDS + 1) * len(KEYS)))
        await traffic.during(node)
        found = await asyncio.wait_for(reading, DEADLINE)
    check(found, traffic.sent, is_ordered=kind != "queue")
    assert {one.topic.partition("://")[0] for one in found} == {"persistent", "topic"}
    await consumer.close()


@pytest.mark.parametrize("kind", ["queue", "stream"])
async def test_messages_from_before_are_acknowledged_after_the_migration(node: Node, client: Client, kind: str) -> None:
    await make(node, 3)
    async with client.producer(OLD) as producer:
        traffic = Traffic(producer)
        traffic.round()
        await producer.flush()
        if kind == "queue":
            queue = await client.queue_consumer(OLD, subscription="s", start="earliest")
            held = [await queue.receive(timeout=DEADLINE) for _ in KEYS]
            await migrate(node)
            traffic.round()
            rest = [await queue.receive(timeout=DEADLINE) for _ in KEYS]
            for message in held + rest:
                assert message is not None
                await queue.ack(message.id)
            await queue.close()
            again: AnyConsumer = await client.queue_consumer(OLD, subscription="s")
        else:
            stream = await client.stream_consumer(OLD, subscription="s", start="earliest")
            held = [await stream.receive(timeout=DEADLINE) for _ in KEYS]
            await migrate(node)
            traffic.round()
            rest = [await stream.receive(timeout=DEADLINE) for _ in KEYS]
            assert rest[-1] is not None
            await stream.ack_cumulative(rest[-1])
            await stream.close()
            again = await client.stream_consumer(OLD, subscription="s")
    check([one for one in held + rest if one is not None], traffic.sent, is_ordered=True)
    assert await again.receive(timeout=0.5) is None, "all of it is acknowledged"
    await again.close()


async def test_checkpoint_from_before_is_exact_after_the_migration(node: Node, client: Client) -> None:
    await make(node, 3)
    async with client.producer(OLD) as producer:
        traffic = Traffic(producer)
        for _ in range(10):
            traffic.round()
        await producer.flush()
        first = await client.checkpoint_consumer(OLD, start=Checkpoint.earliest())
        before = [await first.receive(timeout=DEADLINE) for _ in range(4 * len(KEYS))]
        saved = first.checkpoint().to_bytes()
        await first.close()
        await migrate(node)
        for _ in range(5):
            traffic.round()
        await producer.flush()
    restored = await client.checkpoint_consumer(OLD, start=Checkpoint.from_bytes(saved))
    after = await read(restored, len(traffic.sent) - len(before))
    check([one for one in before if one is not None] + after, traffic.sent, is_ordered=True)
    later = restored.checkpoint()
    await restored.close()
    by_new_name = await client.checkpoint_consumer(OLD.replace("persistent", "topic"), start=later)
    assert await by_new_name.receive(timeout=0.3) is None
    await by_new_name.close()


async def test_two_stream_consumers_share_the_partitions_before_and_the_segments_after(
    node: Node, client: Client
) -> None:
    await make(node, 4)
    async with client.producer(OLD) as producer:
        traffic = Traffic(producer)
        one = await client.stream_consumer(OLD, subscription="s", name="a", start="earliest")
        other = await client.stream_consumer(OLD, subscription="s", name="b", start="earliest")
        found: list[Message] = []
        count = (ROUNDS + 1) * len(KEYS)

        async def drain(consumer: StreamConsumer) -> None:
            while len(found) < count:
                message = await consumer.receive(timeout=0.1)
                if message is not None:
                    found.append(message)
                    await consumer.ack_cumulative(message)

        async with asyncio.timeout(2 * DEADLINE):
            await asyncio.gather(traffic.during(node), drain(one), drain(other))
        check(found, traffic.sent, is_ordered=True)
        await one.close()
        await other.close()


async def test_exactly_once_producer_of_java_keys_goes_on_in_a_new_process(node: Node) -> None:
    """The partitions were written by the hash of Java clients, and tell by it what they have stored."""
    await node.services.catalog.set_deduplication("public/default", True)
    await make(node, 5)
    await asyncio.to_thread(write, node.service_url, KEYS * 2, java)
    texts = [(key, f"{key} {number}") for number in range(4) for key in KEYS]
    async with anabranch.connect(node.service_url) as client, client.producer(OLD, name="job") as producer:
        for number, (key, text) in enumerate(texts[: len(texts) // 2]):
            await producer.send(text.encode(), key=key, sequence_id=number)
    await migrate(node)
    async with anabranch.connect(node.service_url) as client:
        async with client.producer(OLD, name="job") as producer:  # repeats everything
            for number, (key, text) in enumerate(texts):
                producer.send_nowait(text.encode(), key=key, sequence_id=number)
            await producer.flush()
        async with client.checkpoint_consumer(OLD, start=Checkpoint.earliest()) as reader:
            found = await read(reader, len(texts) + 2 * len(KEYS))
    check([one for one in found if one.data != b"x"], [text for _, text in texts], is_ordered=True)
