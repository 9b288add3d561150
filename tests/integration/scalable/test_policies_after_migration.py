"""A regular topic with policies of its own becomes a scalable one: the policies stay, and are those of all segments."""

from __future__ import annotations

from pathlib import Path

import pytest

import anabranch
import anabranch.admin
from anabranch.model.names import TopicName
from anabranch.node.node import Node
from tests.integration.scalable.test_migration import (
    NEW,
    OLD,
    make_topic,
    migrate,
    migrating_settings,
    migrations_of,
    topics_of,
)

BIG = b"x" * 4_000


@pytest.mark.parametrize("partitions", [0, 3])
async def test_migrated_topic_keeps_its_policies_on_all_segments(tmp_path: Path, partitions: int) -> None:
    async with (
        Node(migrating_settings(tmp_path)) as node,
        anabranch.admin.connect(node.http_url) as admin,
        anabranch.connect(node.service_url) as client,
    ):
        await make_topic(node, partitions)
        await admin.topic_policies.set(OLD, "maxMessageSize", 2_000)
        await migrate(node)
        assert await admin.topic_policies.get(NEW, "maxMessageSize") == 2_000
        async with client.producer(NEW) as producer:
            for number in range(16):
                with pytest.raises(anabranch.Error, match="maximum message size"):
                    await producer.send(BIG, key=f"k{number}")
        await admin.topic_policies.remove(NEW, "maxMessageSize")
        async with client.producer(NEW) as producer:
            await producer.send(BIG, key="k")
        await admin.topic_policies.set(NEW, "maxMessageSize", 2_000)
        await admin.scalable_topics.delete(NEW)
        assert not await node.services.catalog.topic_policies.of(TopicName.parse(NEW))


@pytest.mark.parametrize("partitions", [0, 3])
async def test_migrated_topic_keeps_its_properties_and_schema(tmp_path: Path, partitions: int) -> None:
    async with (
        Node(migrating_settings(tmp_path)) as node,
        anabranch.admin.connect(node.http_url) as admin,
        anabranch.connect(node.service_url) as client,
    ):
        if partitions:
            await topics_of(node).create_partitions(OLD, partitions, {"team": "billing", "tier": "1"})
        else:
            await topics_of(node).create(OLD, {"team": "billing", "tier": "1"})
        async with client.producer(OLD, schema=anabranch.schema.String()) as producer:
            await producer.send("before", key="k")
        versions = await node.services.schemas.history(TopicName.parse(OLD))
        assert len(versions) == 1
        assert (await migrations_of(node).check(OLD, force=False, kinds={}))["properties"] == {
            "team": "billing", "tier": "1"
        }  # fmt: skip
        await migrate(node)
        assert (await admin.scalable_topics.metadata(NEW))["properties"] == {"team": "billing", "tier": "1"}
        assert await admin.scalable_topics.list("public/default", properties={"team": "billing"}) == [NEW]
        assert await node.services.schemas.history(TopicName.parse(NEW)) == versions
        async with client.producer(NEW, schema=anabranch.schema.String()) as producer:
            await producer.send("after", key="k")
        with pytest.raises(anabranch.Error, match="schema"):
            async with client.producer(NEW, schema=anabranch.schema.Int64()) as producer:
                await producer.send(1, key="k")
