"""The SDK on regular topics, partitioned or not, against a real node in this process."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pulsar
import pytest

import anabranch
from anabranch import Checkpoint, Client, Message
from anabranch.broker.admin.subscriptions import SubscriptionAdmin
from anabranch.broker.admin.topics import TopicAdmin
from anabranch.broker.topic.topic import Topic
from anabranch.client.consumer.consumer import Consumer
from anabranch.client.errors import BadOption
from anabranch.model.names import TopicName
from anabranch.model.partition_hash import PartitionHash
from anabranch.node.node import Node
from anabranch.protocol.managed_clients import is_managed
from tests.integration.broker.test_partition_hashes import KEYS, java, write
from tests.support.processes.in_process_cluster import until
from tests.support.processes.scalable_nodes import plain_settings
from tests.support.traffic.stock_client import new_client

TOPIC = "persistent://public/default/orders"
DEADLINE = 60.0


@asynccontextmanager
async def opened(client: Client, kind: str, **options: Any) -> AsyncIterator[Consumer]:
    if kind == "queue":
        async with client.queue_consumer(TOPIC, subscription="s", **options) as queue:
            yield queue
    elif kind == "stream":
        async with client.stream_consumer(TOPIC, subscription="s", **options) as stream:
            yield stream
    else:
        async with client.checkpoint_consumer(TOPIC, start=Checkpoint.earliest(), **options) as reader:
            yield reader


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with Node(plain_settings(tmp_path)) as made:
        yield made


async def create(node: Node, partitions: int) -> None:
    await node.services.catalog.create_partitioned(TopicName.parse(TOPIC), partitions)


def by_partition(stored: Iterable[Message]) -> dict[str, set[int]]:
    """The partitions of each key."""
    found: dict[str, set[int]] = {}
    for one in stored:
        assert isinstance(one.key, str)
        found.setdefault(one.key, set()).add(one.id.lane)
    return found


async def everything(client: Client, count: int) -> list[Message]:
    async with client.checkpoint_consumer(TOPIC, start=Checkpoint.earliest()) as reader:
        found: list[Message] = []
        while len(found) < count:
            message = await reader.receive(timeout=DEADLINE)
            assert message is not None, f"only {len(found)} of {count}"
            found.append(message)
    return found


@pytest.mark.parametrize("how", ["one by one", "in bulk", "with an option"])
async def test_keys_keep_their_partition_when_the_producer_changes_to_the_sdk(node: Node, how: str) -> None:
    """With murmur3, 12 of these 37 keys changed their partition, and lost their order."""
    keys = [f"customer-{number}" for number in range(37)]
    await create(node, 5)
    chosen = None
    if how == "with an option":
        chosen = "boost"
    else:
        await asyncio.to_thread(write, node.service_url, keys)
    async with anabranch.connect(node.service_url) as client:
        async with client.producer(TOPIC, partition_hash=chosen) as producer:
            if how == "in bulk":
                await producer.send_batch([b"y"] * len(keys), keys=keys)
            else:
                await asyncio.gather(*(producer.send(b"y", key=key) for key in keys))
        if chosen is not None:
            await asyncio.to_thread(write, node.service_url, keys)
        found = by_partition(await everything(client, 2 * len(keys)))
    assert found.keys() == set(keys)
    assert {key for key, partitions in found.items() if len(partitions) > 1} == set()


async def test_keys_of_a_java_producer_keep_their_partition_and_bytes_are_hashed_as_text(node: Node) -> None:
    await create(node, 5)
    await asyncio.to_thread(write, node.service_url, KEYS, java)
    async with anabranch.connect(node.service_url) as client:
        async with client.producer(TOPIC) as producer:
            for key in KEYS:
                await producer.send(b"y", key=key)
            binary = await producer.send(b"y", key=b"\xff\xfe\xfd")
        assert binary.lane == PartitionHash.JAVA_STRING.partition_of("//79", 5)
        found = by_partition(one for one in await everything(client, 2 * len(KEYS) + 1) if isinstance(one.key, str))
    assert {key for key, partitions in found.items() if len(partitions) > 1} == set()


async def test_unknown_hash_and_non_persistent_topics_are_refused_by_the_builders(node: Node) -> None:
    async with anabranch.connect(node.service_url) as client:
        with pytest.raises(BadOption, match="java-string, boost"):
            client.producer(TOPIC, partition_hash="md5")
        for name in ("non-persistent://public/default/x", "non-persistent://public/default/x-partition-0"):
            with pytest.raises(BadOption, match="no delivery guarantees"):
                client.producer(name)
            with pytest.raises(BadOption, match="no delivery guarantees"):
                client.queue_consumer(name, subscription="s")
            with pytest.raises(BadOption, match="no delivery guarantees"):
                client.stream_consumer(name, subscription="s")
            with pytest.raises(BadOption, match="no delivery guarantees"):
                client.checkpoint_consumer(name)


@pytest.mark.parametrize("kind", ["queue", "stream", "checkpoint"])
async def test_producers_and_consumers_follow_added_partitions_without_asking(node: Node, kind: str) -> None:
    """The SDK asks Apache Pulsar for the number of partitions every minute; this broker pushes it."""
    await create(node, 2)
    admin = TopicAdmin(lambda: node.services, SubscriptionAdmin(lambda: node.services))
    sent = [f"{key} {turn}" for turn in range(10) for key in KEYS]
    async with anabranch.connect(node.service_url) as client, client.producer(TOPIC) as producer:
        options: dict[str, Any] = {} if kind == "checkpoint" else {"start": "earliest"}
        async with opened(client, kind, **options) as consumer:
            for number, text in enumerate(sent):
                if number == len(sent) // 2:
                    await admin.update_partitions(TOPIC, 5)
                    await until(lambda: attached(node, f"{TOPIC}-partition-4") != [])
                await producer.send(text.encode(), key=text.split()[0])
            found: list[Message] = []
            while len(found) < len(sent):
                message = await consumer.receive(timeout=DEADLINE)
                assert message is not None, f"only {len(found)} of {len(sent)}"
                found.append(message)
            assert Counter(one.data.decode() for one in found) == Counter(sent), "once each"
            assert {one.id.lane for one in found} == set(range(5))


async def test_queue_consumers_of_the_sdk_and_of_v4_share_one_subscription(node: Node) -> None:
    await create(node, 3)
    stock = new_client(node.service_url)
    try:
        theirs = await asyncio.to_thread(
            stock.subscribe, TOPIC, "s", consumer_type=pulsar.ConsumerType.Shared, receiver_queue_size=5
        )
        async with (
            anabranch.connect(node.service_url) as client,
            client.queue_consumer(TOPIC, subscription="s", prefetch=6) as ours,
            client.producer(TOPIC, batching=None) as producer,
        ):
            sent = {f"{number}" for number in range(300)}
            await asyncio.gather(*(producer.send(text.encode(), key=text) for text in sent))
            seen: Counter[str] = Counter()
            got = {"theirs": 0, "ours": 0}

            async def stock_side() -> None:
                while seen.total() < len(sent):
                    try:
                        message = await asyncio.to_thread(theirs.receive, 200)
                    except pulsar.Timeout:
                        continue
                    seen[message.data().decode()] += 1
                    got["theirs"] += 1
                    await asyncio.to_thread(theirs.acknowledge, message)

            async def sdk_side() -> None:
                while seen.total() < len(sent):
                    if (message := await ours.receive(timeout=0.2)) is not None:
                        seen[message.data.decode()] += 1
                        got["ours"] += 1
                        await ours.ack(message)

            async with asyncio.timeout(DEADLINE):
                await asyncio.gather(stock_side(), sdk_side())
            assert seen == Counter(sent) and min(got.values()) > 0
    finally:
        await asyncio.to_thread(stock.close)


async def test_stream_consumers_of_the_sdk_and_of_v4_replace_each_other_on_each_partition(node: Node) -> None:
    """Both are Failover consumers: each partition has one active consumer, and the other one goes on behind its ack."""
    await create(node, 3)
    stock = new_client(node.service_url)
    try:
        theirs = await asyncio.to_thread(
            stock.subscribe, TOPIC, "s", consumer_name="a", consumer_type=pulsar.ConsumerType.Failover
        )
        async with (
            anabranch.connect(node.service_url) as client,
            client.producer(TOPIC) as producer,
            client.stream_consumer(TOPIC, subscription="s", name="b") as ours,
        ):
            numbers: dict[str, list[int]] = {key: [] for key in KEYS}
            for turn in range(6):
                await asyncio.gather(*(producer.send(str(turn).encode(), key=key) for key in KEYS))
            left = 3 * len(KEYS)

            async def note(key: str | bytes | None, body: bytes) -> None:
                assert isinstance(key, str)
                numbers[key].append(int(body))

            async with asyncio.timeout(DEADLINE):
                while left:  # by either, until the stock consumer leaves in the middle
                    if (message := await ours.receive(timeout=0.05)) is not None:
                        await note(message.key, message.data)
                        await ours.ack_cumulative(message)
                        left -= 1
                        continue
                    with contextlib.suppress(pulsar.Timeout):
                        other = await asyncio.to_thread(theirs.receive, 200)
                        await note(other.partition_key(), other.data())
                        await asyncio.to_thread(theirs.acknowledge, other)
                        left -= 1
                await asyncio.to_thread(theirs.close)
                while any(len(some) < 6 for some in numbers.values()):
                    message = await ours.receive(timeout=DEADLINE)
                    assert message is not None
                    await note(message.key, message.data)
                    await ours.ack_cumulative(message)
            assert all(some == list(range(6)) for some in numbers.values()), numbers
    finally:
        await asyncio.to_thread(stock.close)


def attached(node: Node, topic: str) -> list[dict[str, str]]:
    """Metadata of all producers and consumers of one partition."""
    found = node.services.topics.loaded(TopicName.parse(topic))
    if found is None:
        return []
    consumers = [one for subscription in found.subscriptions.values() for one in subscription.consumers]
    assert isinstance(found, Topic)
    return [dict(one.metadata) for one in found.producers.values()] + [dict(one.spec.metadata) for one in consumers]


@pytest.mark.parametrize("kind", ["queue", "stream", "checkpoint"])
@pytest.mark.parametrize("partitions", [0, 2])
async def test_sdk_clients_of_a_regular_topic_say_that_they_follow_its_migration(
    tmp_path: Path, partitions: int, kind: str
) -> None:
    async with Node(plain_settings(tmp_path)) as node, anabranch.connect(node.service_url) as client:
        if partitions:
            await node.services.catalog.create_partitioned(TopicName.parse(TOPIC), partitions)
        names = [f"{TOPIC}-partition-{index}" for index in range(partitions)] or [TOPIC]
        about: dict[str, str] = {"team": "billing"}
        async with opened(client, kind, properties=about), client.producer(TOPIC, properties=about) as producer:
            for _ in names:
                await producer.send(b"x")
            for name in names:
                await until(partial(_are_two, node, name))
                assert all(is_managed(one) and one["team"] == "billing" for one in attached(node, name))


def _are_two(node: Node, topic: str) -> bool:
    return len(attached(node, topic)) == 2
