"""What one broker changes, every broker goes by: policies, permissions, partitions, schemas, deletions."""

from __future__ import annotations

import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from anabranch.broker.errors import TopicNotFound
from anabranch.broker.topic.topic import Topic
from anabranch.model.names import TopicName
from anabranch.model.schema import Schema, SchemaType
from anabranch.node.settings.node import MetadataSettings
from anabranch.protocol.commands import BaseCommand
from tests import services
from tests.support.processes.in_process_cluster import nodes, topic_at, until
from tests.support.traffic.raw_client import RawClient


def fresh_url(kind: str) -> str:
    """A separate prefix on the server that the test process shares."""
    base, name = services.shared(kind).url, f"news-{uuid.uuid4().hex[:8]}"
    return f"{base}/default/{name}" if kind == "oxia" else f"{base}/{name}"


@pytest.mark.parametrize("kind", ["sqlite", "zk", "etcd", "oxia"])
async def test_policies_changed_at_one_broker_count_at_the_other(tmp_path: Path, kind: str) -> None:
    more = {} if kind == "sqlite" else {"metadata": MetadataSettings(url=fresh_url(kind))}
    async with nodes(tmp_path, "b1", "b2", **more) as (one, two):
        name = topic_at(two)
        topic = await two.services.topics.get(name, create=True)
        assert isinstance(topic, Topic) and not topic.deduplication.is_on
        await one.services.catalog.change_policies("public/default", lambda known: replace(known, deduplication=True))
        await until(lambda: topic.deduplication.is_on)
        await one.services.catalog.change_policies("public/default", lambda known: replace(known, deduplication=False))
        await until(lambda: not topic.deduplication.is_on)


@pytest.mark.parametrize("kind", ["sqlite", "zk", "etcd", "oxia"])
async def test_topics_of_one_broker_are_told_to_watchers_at_the_other(tmp_path: Path, kind: str) -> None:
    more = {} if kind == "sqlite" else {"metadata": MetadataSettings(url=fresh_url(kind))}
    async with nodes(tmp_path, "b1", "b2", **more) as (one, two), RawClient(two.service_url) as client:
        await client.hello()
        asked = {"watcher_id": 1, "namespace": "public/default", "topics_pattern": "public/default/.*"}
        answer = await client.ask(BaseCommand.WATCH_TOPIC_LIST, **asked)
        assert (answer.kind, list(answer.body.topic)) == (BaseCommand.WATCH_TOPIC_LIST_SUCCESS, [])
        name = topic_at(one)
        await one.services.topics.create(name)
        assert list((await client.expect(BaseCommand.WATCH_TOPIC_UPDATE)).body.new_topics) == [str(name)]
        parent = TopicName.parse("persistent://public/default/parent")
        await one.services.catalog.create_partitioned(parent, 2)
        found = (await client.expect(BaseCommand.WATCH_TOPIC_UPDATE)).body
        assert list(found.new_topics) == [str(parent.partition(index)) for index in range(2)]
        await one.services.topics.delete(name, force=False)
        assert list((await client.expect(BaseCommand.WATCH_TOPIC_UPDATE)).body.deleted_topics) == [str(name)]


async def test_partitions_schemas_and_deletions_are_not_cached(tmp_path: Path) -> None:
    async with nodes(tmp_path, "b1", "b2") as (one, two):
        parent = TopicName.parse("persistent://public/default/parent")
        assert await two.services.catalog.partitions(parent) == 0
        await one.services.catalog.create_partitioned(parent, 3)
        assert await two.services.catalog.partitions(parent) == 3
        schema = Schema(SchemaType.STRING, b"")
        assert await two.services.schemas.find(parent, schema) is None
        await one.services.schemas.register(parent, schema)
        assert await two.services.schemas.find(parent, schema) == 0
        gone = topic_at(one)
        await one.services.topics.create(gone)
        assert await two.services.catalog.exists(gone)
        await one.services.topics.delete(gone, force=False)
        assert not await two.services.catalog.exists(gone)
        with pytest.raises(TopicNotFound):
            await two.services.catalog.check_may_load(gone, create=False)
