"""Consumers of all scalable topics of a namespace, while topics come and go."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest

import anabranch
import anabranch.admin
from anabranch import Checkpoint, Client
from anabranch.admin import Admin
from anabranch.client.errors import BadOption
from tests.support.processes.broker_process import BrokerProcess

LIMIT_S = 20.0


@pytest.fixture
async def sdk(broker: BrokerProcess) -> AsyncIterator[Client]:
    async with anabranch.connect(broker.service_url) as client:
        yield client


@pytest.fixture
async def admin(broker: BrokerProcess) -> AsyncIterator[Admin]:
    async with anabranch.admin.connect(broker.http_url) as client:
        yield client


@pytest.fixture
async def namespace(admin: Admin) -> str:
    name = f"public/ns-{uuid.uuid4().hex[:8]}"
    await admin.namespaces.create(name)
    return name


async def create(admin: Admin, namespace: str, local: str, **properties: str) -> str:
    topic = f"topic://{namespace}/{local}"
    await admin.scalable_topics.create(topic, properties=properties)
    return topic


async def send(sdk: Client, topic: str, *values: str) -> None:
    async with sdk.producer(topic) as producer:
        await producer.send_batch([value.encode() for value in values], ["k"] * len(values), timeout=LIMIT_S)


async def take(consumer: Any, count: int) -> list[tuple[str, str]]:
    """Local name of the topic, and value."""
    found: list[tuple[str, str]] = []
    for _ in range(count):
        message = await consumer.receive(timeout=LIMIT_S)
        assert message is not None, found
        found.append((message.topic.rpartition("/")[2], message.value.decode()))
    return found


async def test_topics_that_match_are_followed_as_they_come_and_go(sdk: Client, admin: Admin, namespace: str) -> None:
    for local, team in (("a", "red"), ("b", "blue"), ("c", "red")):
        await create(admin, namespace, local, team=team)
    async with (
        sdk.queue_consumer(namespace=namespace, subscription="all", start="earliest") as everything,
        sdk.queue_consumer(
            namespace=namespace, topic_properties={"team": "red"}, subscription="red", start="latest"
        ) as red,
    ):
        assert everything.topic == f"namespace://{namespace}"
        for local in "abc":
            await send(sdk, f"topic://{namespace}/{local}", "1")
        assert sorted(await take(everything, 3)) == [("a", "1"), ("b", "1"), ("c", "1")]
        assert sorted(await take(red, 2)) == [("a", "1"), ("c", "1")]
        # A new topic is read from its beginning, also by a consumer that began with the latest messages.
        await send(sdk, await create(admin, namespace, "d", team="red"), "1", "2")
        assert await take(red, 2) == [("d", "1"), ("d", "2")]
        assert await take(everything, 2) == [("d", "1"), ("d", "2")]
        await admin.scalable_topics.delete(f"topic://{namespace}/a", force=True)
        await send(sdk, f"topic://{namespace}/c", "2")
        assert await take(red, 1) == [("c", "2")]
        assert await take(everything, 1) == [("c", "2")]
        async with asyncio.timeout(LIMIT_S):
            while f"topic://{namespace}/a" in everything.layouts:
                assert await everything.receive(timeout=0.02) is None
        assert f"topic://{namespace}/a" not in await admin.scalable_topics.list(namespace), "created again"


async def test_one_cumulative_ack_covers_all_topics(sdk: Client, admin: Admin, namespace: str) -> None:
    for local in "ab":
        await create(admin, namespace, local)
    async with sdk.stream_consumer(namespace=namespace, subscription="s", start="earliest") as consumer:
        await send(sdk, f"topic://{namespace}/a", "1", "2")
        await send(sdk, f"topic://{namespace}/b", "1", "2")
        await send(sdk, await create(admin, namespace, "c"), "1", "2")
        last = None
        for _ in range(6):
            last = await consumer.receive(timeout=LIMIT_S)
        assert last is not None
        await consumer.ack_cumulative(last)
    await send(sdk, f"topic://{namespace}/b", "3")
    async with sdk.stream_consumer(namespace=namespace, subscription="s", start="earliest") as consumer:
        assert await take(consumer, 1) == [("b", "3")]


async def test_checkpoint_of_a_namespace_is_continued(sdk: Client, admin: Admin, namespace: str) -> None:
    for local in "ab":
        await create(admin, namespace, local)
        await send(sdk, f"topic://{namespace}/{local}", "1")
    async with sdk.checkpoint_consumer(namespace=namespace, start=Checkpoint.earliest()) as reader:
        assert sorted(await take(reader, 2)) == [("a", "1"), ("b", "1")]
        saved = reader.checkpoint().to_bytes()
    await send(sdk, f"topic://{namespace}/a", "2")
    await send(sdk, await create(admin, namespace, "c"), "1")
    async with sdk.checkpoint_consumer(namespace=namespace, start=Checkpoint.from_bytes(saved)) as reader:
        assert sorted(await take(reader, 2)) == [("a", "2"), ("c", "1")]
    async with sdk.checkpoint_consumer(namespace=namespace, start=Checkpoint.latest()) as reader:
        await send(sdk, await create(admin, namespace, "d"), "1")
        assert await take(reader, 1) == [("d", "1")], "a topic that comes later is read from its beginning"


async def test_either_topics_or_a_namespace(sdk: Client) -> None:
    for given in ({}, {"topic": "t", "namespace": "public/default"}, {"topic": "t", "topic_properties": {"a": "b"}}):
        with pytest.raises(BadOption):
            sdk.queue_consumer(subscription="s", **given)
    with pytest.raises(BadOption, match="topic_properties"):
        sdk.stream_consumer(namespace="public/default", topic_properties={"a": 1}, subscription="s")  # type: ignore[dict-item]  # meant
