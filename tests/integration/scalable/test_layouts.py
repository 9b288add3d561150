"""Layouts over the wire: lookup, pushes in order, plans for our own peers, creation by use, deletion, regular ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from anabranch.model.errors import AlreadyExists, Error
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.server_errors import ServerError
from tests.support.processes.scalable_nodes import admin_of, layout_client, name, one_node
from tests.support.traffic.raw_client import RawClient


async def test_a_split_reaches_a_watcher(tmp_path: Path) -> None:
    async with one_node(tmp_path) as node, layout_client(node) as client:
        admin, topic = admin_of(node), str(name("orders"))
        await admin.create(topic, 2, {"team": "a"})
        client.lookup(topic)
        first = await client.update()
        assert first.resolved_topic_name == topic
        assert [(one.hash_start, one.hash_end) for one in first.dag.segments] == [(0, 0x7FFF), (0x8000, 0xFFFF)]
        assert first.dag.controller_broker_url == node.service_url
        assert {one.broker_url for one in first.dag.segment_brokers} == {node.service_url}
        assert first.dag.ring_hash == "murmur3-low16"
        done = await admin.split(topic, 0, 2, None, "op-1")
        assert done == {"operation": "op-1", "epoch": 1, "segments": [2, 3]}
        dag = await client.until_layout(lambda it: it.epoch == 1)
        states = {one.segment_id: one.state for one in dag.segments}
        assert states == {0: pb.SEALED, 1: pb.ACTIVE, 2: pb.ACTIVE, 3: pb.ACTIVE}
        assert not dag.HasField("plan")
        assert await admin.merge(topic, [3, 2], None)
        dag = await client.until_layout(lambda it: it.epoch == 2)
        assert [one.segment_id for one in dag.segments if one.state == pb.ACTIVE] == [1, 4]


async def test_planned_operation_is_sent_to_clients_with_extensions_only(tmp_path: Path) -> None:
    async with (
        one_node(tmp_path) as node,
        layout_client(node) as ours,
        layout_client(node, extensions=False) as theirs,
    ):
        admin, topic = admin_of(node), str(name("orders"))
        await admin.create(topic, 1, {})
        for client in (ours, theirs):
            client.lookup(topic)
        plain = (await theirs.update()).dag
        assert not plain.HasField("incarnation")
        assert not plain.HasField("ring_hash")
        await ours.update()
        await admin.split(topic, 0, 3, None, "op")
        planned = await ours.until_layout(lambda it: it.HasField("plan"))
        assert planned.epoch == 0
        assert [one.segment_id for one in planned.plan.children] == [1, 2, 3]
        assert {one.broker_url for one in planned.plan.child_brokers} == {node.service_url}
        assert (await ours.until_layout(lambda it: it.epoch == 1)).plan.operation_id == ""
        dag = await theirs.until_layout(lambda it: it.epoch == 1)
        assert not dag.HasField("plan")
        assert len(dag.segment_brokers) == 3


async def test_a_lookup_creates_where_it_may(tmp_path: Path) -> None:
    async with one_node(tmp_path) as node, layout_client(node) as client:
        client.lookup(str(name("new")))  # M1 has no create_if_missing: its absence means yes
        assert len((await client.update()).dag.segments) == 1
        client.lookup(str(name("no")), 2, create_if_missing=False)
        assert (await client.update(2)).error == ServerError.TopicNotFound
        assert await admin_of(node).names("public/default", {}) == [str(name("new"))]


async def test_deletion_is_sent_and_recreation_is_a_new_incarnation(tmp_path: Path) -> None:
    async with one_node(tmp_path) as node, layout_client(node) as client:
        admin, topic = admin_of(node), str(name("orders"))
        await admin.create(topic, 2, {})
        client.lookup(topic)
        before = (await client.update()).dag
        await admin.delete(topic, False)
        gone = await client.update()
        assert gone.error == ServerError.TopicNotFound
        assert await admin.names("public/default", {}) == []
        await admin.create(topic, 1, {})
        client.lookup(topic)
        after = (await client.update()).dag
        assert after.incarnation != before.incarnation
        assert len(after.segments) == 1
        await admin.delete(topic, False)
        with pytest.raises(Error) as refused:
            await admin.metadata(topic)
        assert refused.value.code == "topic-not-found"


async def test_the_name_of_a_scalable_topic_is_taken(tmp_path: Path) -> None:
    async with one_node(tmp_path) as node, RawClient(node.service_url) as v4:
        admin, services = admin_of(node), node.services
        await admin.create(str(name("orders")), 1, {})
        await v4.hello()
        answer = await v4.producer("persistent://public/default/orders")
        assert answer.body.error == ServerError.TopicNotFound
        with pytest.raises(AlreadyExists):
            await services.topics.create(name("orders").parse("persistent://public/default/orders"))
        await services.topics.create(name("orders").parse("persistent://public/default/regular"))
        with pytest.raises(AlreadyExists):
            await admin.create(str(name("regular")), 1, {})
        with pytest.raises(AlreadyExists):
            await admin.create(str(name("orders")), 1, {})


async def test_a_regular_topic_is_seen_as_segments(tmp_path: Path) -> None:
    async with one_node(tmp_path) as node, layout_client(node) as client:
        await node.services.catalog.create_partitioned(name("p").parse("persistent://public/default/p"), 3)
        client.lookup("persistent://public/default/p")
        update = await client.update()
        assert [one.legacy_topic_name for one in update.dag.segments] == [
            f"persistent://public/default/p-partition-{index}" for index in range(3)
        ]
        assert not update.dag.HasField("ring_hash")
        client.lookup("non-persistent://public/default/p", 2)
        assert (await client.update(2)).error == ServerError.NotAllowedError
        client.lookup("persistent://public/default/p-partition-0", 3)
        assert (await client.update(3)).error == ServerError.TopicNotFound


async def test_odd_names_are_topics_like_any_other(tmp_path: Path) -> None:
    async with one_node(tmp_path) as node, layout_client(node) as client:
        admin = admin_of(node)
        for session_id, local in enumerate(("a/b", "100%", "x#y", "größe ü", "a b+c")):
            topic = str(name(local))
            await admin.create(topic, 1, {})
            client.lookup(topic, session_id)
            assert (await client.update(session_id)).resolved_topic_name == topic
            await admin.create_subscription(topic, "s/%#ü", "STREAM", "earliest")
            await admin.split(topic, 0, 2, None, None)
            assert (await admin.stats(topic))["subscriptions"]["s/%#ü"]["type"] == "STREAM"
            await admin.delete_subscription(topic, "s/%#ü", False)
            await admin.delete(topic, False)
        assert await admin.names("public/default", {}) == []
