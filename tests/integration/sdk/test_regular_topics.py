"""The SDK on regular topics, partitioned or not, against a real node in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import anabranch
from anabranch import Checkpoint, Client
from anabranch.broker.topic.topic import Topic
from anabranch.client.consumer.consumer import Consumer
from anabranch.model.names import TopicName
from anabranch.node.node import Node
from anabranch.protocol.managed_clients import is_managed
from tests.support.processes.in_process_cluster import until
from tests.support.processes.scalable_nodes import plain_settings

TOPIC = "persistent://public/default/orders"


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
