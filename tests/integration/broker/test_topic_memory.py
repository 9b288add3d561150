"""Unloaded and deleted topics, and clients that are gone, leave nothing behind: reference counting frees them.

See `live_objects` for how objects in a reference cycle are found.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import anabranch
from anabranch import admin
from anabranch.controller.service import ScalableTopicService
from anabranch.model.names import TopicName
from anabranch.node.node import Node
from tests.support.in_memory.live_objects import left_behind
from tests.support.in_memory.node import client_of, serving

NAMES = [f"persistent://public/default/t-{index}" for index in range(3)]
TOPICS = [TopicName.parse(name) for name in NAMES]
SCALABLE = "topic://public/default/s"
NON_PERSISTENT = "non-persistent://public/default/n"


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with serving(tmp_path, storage={"write_behind_ms": 10}) as made:
        yield made
        gc.unfreeze()


@asynccontextmanager
async def clients(node: Node, topic: str) -> AsyncIterator[None]:
    """A producer and two consumers, attached, after they have exchanged messages."""
    async with (
        anabranch.connect(node.service_url) as client,
        client.producer(topic) as producer,
        client.queue_consumer(topic, subscription="queue", start="earliest") as queue,
        client.stream_consumer(topic, subscription="stream", start="earliest") as stream,
    ):
        async with asyncio.timeout(60):
            for number in range(5):
                await producer.send(b"%d" % number, key=f"k{number}")
            for _ in range(3):
                one = await queue.receive()
                assert one is not None
                await queue.ack(one)
            first = await stream.receive()
            assert first is not None
            await stream.ack_cumulative(first)
        yield


async def test_unloaded_topics_leave_no_object_behind(node: Node) -> None:
    @asynccontextmanager
    async def loaded() -> AsyncIterator[None]:
        for name in TOPICS:
            await node.services.topics.get(name, create=True)
        yield
        for name in TOPICS:
            await node.services.topics.close(name)

    assert await left_behind(loaded) == {}


async def test_deleted_topics_leave_no_object_behind(node: Node) -> None:
    @asynccontextmanager
    async def created() -> AsyncIterator[None]:
        for name in TOPICS:
            await node.services.topics.get(name, create=True)
        yield
        for name in TOPICS:
            await node.services.topics.delete(name, force=True)

    assert await left_behind(created) == {}


async def test_topics_unloaded_under_clients_leave_no_object_behind(node: Node) -> None:
    """The clients reconnect, which loads the topics again; then they and the topics go."""

    @asynccontextmanager
    async def attached() -> AsyncIterator[None]:
        for name in NAMES:
            async with clients(node, name):
                await node.services.topics.close(TopicName.parse(name))
        yield
        for topic in TOPICS:
            await node.services.topics.delete(topic, force=True)

    assert await left_behind(attached) == {}


async def test_clients_that_are_gone_leave_no_object_behind(tmp_path: Path) -> None:
    """The topic stays loaded: producers, consumers, dispatchers and connections go. The cache keeps no entries here."""
    async with serving(tmp_path, storage={"write_behind_ms": 10, "cache_bytes": 0}) as node:

        @asynccontextmanager
        async def attached() -> AsyncIterator[None]:
            async with clients(node, NAMES[0]):
                yield

        assert await left_behind(attached) == {}
        gc.unfreeze()


async def test_non_persistent_topics_leave_no_object_behind(node: Node) -> None:
    @asynccontextmanager
    async def attached() -> AsyncIterator[None]:
        async with client_of(node) as client:
            await client.subscribe(NON_PERSISTENT)
            await client.producer(NON_PERSISTENT)
            yield
            await node.services.topics.close(TopicName.parse(NON_PERSISTENT))

    assert await left_behind(attached) == {}


async def test_calls_of_the_admin_rest_leave_no_object_behind(node: Node) -> None:
    @asynccontextmanager
    async def called() -> AsyncIterator[None]:
        async with admin.connect(node.http_url) as rest:
            for name in NAMES:
                await rest.topics.create(name)
                await rest.topics.stats(name, precise_backlog=True)
                await rest.topics.internal_stats(name)
            yield
            for name in NAMES:
                await rest.topics.unload(name)
                await rest.topics.delete(name, force=True)

    assert await left_behind(called) == {}


async def test_deleted_scalable_topics_leave_no_object_behind(node: Node) -> None:
    @asynccontextmanager
    async def split_and_merged() -> AsyncIterator[None]:
        async with admin.connect(node.http_url) as rest:
            await rest.scalable_topics.create(SCALABLE)
            async with clients(node, SCALABLE):
                await rest.scalable_topics.split(SCALABLE, 0)
                await rest.scalable_topics.stats(SCALABLE)
            await rest.scalable_topics.merge(SCALABLE, [1, 2])
            yield
            await rest.scalable_topics.delete(SCALABLE, force=True)

    assert await left_behind(split_and_merged) == {}


async def test_unloaded_scalable_topics_leave_no_object_behind(node: Node) -> None:
    """The leader of an idle topic is unloaded, and so are its segments; consumers were registered."""
    topics, scalable = node.services.topics, node.services.scalable
    assert isinstance(scalable, ScalableTopicService)

    @asynccontextmanager
    async def led() -> AsyncIterator[None]:
        async with anabranch.connect(node.service_url) as client:
            if not await scalable.names("public/default", {}):
                await scalable.create(TopicName.parse(SCALABLE), 2, {})
            async with (
                client.stream_consumer(SCALABLE, subscription="stream"),
                client.checkpoint_consumer(SCALABLE, group="checkpoint"),
            ):
                pass
        yield
        for leader in tuple(scalable.controllers.by_topic.values()):
            await leader.close()
        await scalable.controllers.sweep()
        for name in topics.names():
            await topics.close(name)

    assert await left_behind(led) == {}
