"""Consumers of ordered subscriptions over the wire: registration, sharing out, hand-over, leaving, grace, fencing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from anabranch.model.names import TopicName
from anabranch.model.position import EARLIEST, Position
from anabranch.node.node import Node
from anabranch.node.settings.scalable_topics import ScalableTopicSettings
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.commands import BaseCommand, message_id
from anabranch.protocol.server_errors import ServerError
from anabranch.runtime.clock import SystemClock
from tests.support.models.memory_segment_host import MemoryHost, Shelf
from tests.support.processes.in_process_cluster import until
from tests.support.processes.scalable_nodes import (
    admin_of,
    ids,
    layout_client,
    name,
    one_node,
    plain_settings,
    service_of,
)
from tests.support.traffic.raw_client import RawClient

TOPIC = str(name("orders"))


async def test_consumers_share_the_segments_and_one_that_leaves_gives_them_back(tmp_path: Path) -> None:
    async with one_node(tmp_path) as node, layout_client(node) as one, layout_client(node) as two:
        await admin_of(node).create(TOPIC, 4, {})
        first = await one.register(TOPIC, "s", "a", initial_position=pb.CommandSubscribe.Earliest)
        assert ids(first.assignment) == [0, 1, 2, 3]
        assert first.assignment.segments[0].segment_topic == "segment://public/default/orders/0000-3fff-0"
        second = await two.register(TOPIC, "s", "b")
        assert ids(second.assignment) == []  # nothing is released yet
        revoked = await one.assignment()
        assert len(revoked.segments) == 2
        given_up = [0, 1, 2, 3]
        for kept in ids(revoked):
            given_up.remove(kept)
        one.raw.tell(BaseCommand.SEGMENT_RELEASE, consumer_id=1, generation=revoked.generation, segment_ids=given_up)
        granted = await two.assignment()
        while ids(granted) != given_up:
            granted = await two.assignment()
        assert granted.generation > revoked.generation
        answer = await two.raw.ask(BaseCommand.SCALABLE_TOPIC_LEAVE, consumer_id=1)
        assert answer.kind == BaseCommand.SUCCESS
        back = await one.assignment()
        while ids(back) != [0, 1, 2, 3]:
            back = await one.assignment()


async def test_a_child_opens_when_its_parent_is_drained(tmp_path: Path) -> None:
    shelf, clock = Shelf(), SystemClock()
    async with (
        Node(plain_settings(tmp_path), segments=MemoryHost(shelf, clock.now_ms)) as node,
        layout_client(node) as client,
    ):
        admin = admin_of(node)
        await admin.create(TOPIC, 1, {})
        first = await client.register(TOPIC, "s", "a", initial_position=pb.CommandSubscribe.Earliest)
        parent = TopicName.parse(first.assignment.segments[0].segment_topic)
        shelf.publish(parent, "p", 0, b"x", clock.now_ms())
        await admin.split(TOPIC, 0, 2, None, None)
        again = await client.register(TOPIC, "s", "a")
        assert ids(again.assignment) == [0]  # the parent is not drained
        shelf.acknowledge(parent, "s", Position(0, 0))
        opened = await client.assignment()
        while ids(opened) != [1, 2]:
            opened = await client.assignment()
        assert opened.layout_epoch == 1
        await admin.seek(TOPIC, "s", 0)  # the parent is to be read again, and its children close
        closed = await client.assignment()
        while 0 not in ids(closed):
            closed = await client.assignment()
        assert ids(closed) == [0]


async def test_lost_connection_has_a_grace_period_for_takeover(tmp_path: Path) -> None:
    settings = replace(ScalableTopicSettings(), session_grace_seconds=0.3)
    async with one_node(tmp_path, scalable_topics=settings) as node, layout_client(node) as other:
        admin = admin_of(node)
        await admin.create(TOPIC, 2, {})
        async with layout_client(node) as lost:
            await lost.register(TOPIC, "s", "a")
            await other.register(TOPIC, "s", "b")
        async with layout_client(node) as back:  # before the grace is over: nothing has changed hands
            assert len((await back.register(TOPIC, "s", "a")).assignment.segments) >= 1
            state = await admin.stats(TOPIC)
            assert state["subscriptions"]["s"]["consumerCount"] == 2
            async with layout_client(node) as thief:
                taken = await thief.register(TOPIC, "s", "a")
                assert len(taken.assignment.segments) >= 1
                assert ids(await back.assignment()) == []  # fenced
        everything = await other.assignment()
        while ids(everything) != [0, 1]:
            everything = await other.assignment()


async def test_kinds_and_names_are_checked(tmp_path: Path) -> None:
    async with one_node(tmp_path) as node, layout_client(node) as client:
        admin = admin_of(node)
        await admin.create(TOPIC, 1, {})
        await admin.create_subscription(TOPIC, "q", "QUEUE", "latest")
        refused = await client.register(TOPIC, "q", "a")
        assert refused.HasField("error")
        assert "QUEUE" in refused.message
        missing = await client.register(str(name("missing")), "s", "a", 2)
        assert missing.error == ServerError.TopicNotFound
        persistent = await client.register("persistent://public/default/orders", "s", "a", 3)
        assert ids(persistent.assignment) == [0]  # the other spelling of the same topic
        answer = await client.raw.ask(BaseCommand.SCALABLE_TOPIC_LEAVE, consumer_id=99)
        assert answer.body.error == ServerError.ConsumerNotFound


async def test_checkpoint_group_opens_children_by_its_progress(tmp_path: Path) -> None:
    async with one_node(tmp_path) as node, layout_client(node) as client:
        admin = admin_of(node)
        await admin.create(TOPIC, 1, {})
        first = await client.register(TOPIC, "g", "a", consumer_type=pb.CHECKPOINT)
        assert ids(first.assignment) == [0]
        await admin.split(TOPIC, 0, 2, None, None)
        progress = [pb.SegmentProgress(segment_id=0, completed=True)]
        answer = await client.raw.ask(BaseCommand.CHECKPOINT_PROGRESS, consumer_id=1, segments=progress)
        assert answer.kind == BaseCommand.SUCCESS
        opened = await client.assignment()
        while ids(opened) != [1, 2]:
            opened = await client.assignment()
        assert (await admin.subscription(TOPIC, "g"))["drained"] == [0]


async def test_checkpoint_positions_are_stored_returned_and_held(tmp_path: Path) -> None:
    shelf, clock = Shelf(), SystemClock()
    host = MemoryHost(shelf, clock.now_ms)
    position = pb.MessageIdData(ledgerId=4, entryId=7, batch_index=2, batch_size=5)
    since = pb.MessageIdData(ledgerId=3, entryId=1)
    async with Node(plain_settings(tmp_path), segments=host) as node, layout_client(node) as client:
        await admin_of(node).create(TOPIC, 2, {})
        first = await client.register(TOPIC, "g", "a", consumer_type=pb.CHECKPOINT)
        assert [one.HasField("position") for one in first.assignment.segments] == [False, False]
        progress = [pb.SegmentProgress(segment_id=0, position=position, since=since)]
        answer = await client.raw.ask(BaseCommand.CHECKPOINT_PROGRESS, consumer_id=1, segments=progress)
        assert answer.kind == BaseCommand.SUCCESS
        low, high = (TopicName.parse(one.segment_topic) for one in first.assignment.segments)
        await until(lambda: shelf.segments[low].holds == {"g": Position(3, 1)})
        await until(lambda: shelf.segments[high].holds == {"g": EARLIEST})
        again = await client.register(TOPIC, "g", "a", consumer_type=pb.CHECKPOINT)  # another process of its name
        late = await client.raw.ask(BaseCommand.CHECKPOINT_PROGRESS, consumer_id=1, segments=progress)
        assert late.kind == BaseCommand.SUCCESS
        assert again.assignment.segments[0].position == position
    async with Node(plain_settings(tmp_path), segments=host) as node, layout_client(node) as client:
        after = (await client.register(TOPIC, "g", "b", 2, consumer_type=pb.CHECKPOINT)).assignment
        assert not after.segments  # `a` may come back
        back = (await client.register(TOPIC, "g", "a", consumer_type=pb.CHECKPOINT)).assignment
        found = {one.segment_id: one for one in back.segments}
        assert (found[0].position, found[0].since) == (position, since)
        await admin_of(node).delete_subscription(TOPIC, "g", True)
        assert all(not segment.holds for segment in shelf.segments.values())


async def test_consumer_progress_is_shown_by_segment(tmp_path: Path) -> None:
    """On real segments: an ordered subscription by its cursor, a checkpoint group by its own word."""
    async with (
        Node(plain_settings(tmp_path)) as node,
        layout_client(node) as client,
        RawClient(node.service_url) as raw,
    ):
        admin = admin_of(node)
        await admin.create(TOPIC, 2, {})
        mine = await client.register(TOPIC, "s", "a", initial_position=pb.CommandSubscribe.Earliest)
        await client.register(TOPIC, "g", "b", 2, consumer_type=pb.CHECKPOINT)
        await raw.hello(extensions=True)
        segment = mine.assignment.segments[0].segment_topic
        await raw.producer(segment)
        for sequence in range(3):
            raw.send(sequence)
            await raw.receipt()
        await raw.subscribe(segment, "s", permits=10, subType=pb.CommandSubscribe.Exclusive)
        first, second, _ = await raw.messages(3)
        raw.ack(first, second)
        await raw.barrier()
        progress = [pb.SegmentProgress(segment_id=0, position=message_id(first))]
        assert (await client.raw.ask(BaseCommand.CHECKPOINT_PROGRESS, consumer_id=2, segments=progress)).kind == (
            BaseCommand.SUCCESS
        )
        stream = (await admin.subscription(TOPIC, "s"))["segments"]
        assert stream["0"] == {
            "position": f"{second.ledger}:{second.entry}",
            "backlog": 1,
            "drained": False,
            "consumer": "a",
            "consumers": 1,
        }
        assert (stream["1"]["backlog"], stream["1"]["consumer"]) == (0, "a")
        group = (await admin.subscription(TOPIC, "g"))["segments"]
        assert (group["0"]["position"], group["0"]["consumer"]) == (f"{first.ledger}:{first.entry}", "b")
        assert (group["1"]["position"], group["1"]["drained"]) == (None, False)
        stats = (await admin.stats(TOPIC))["subscriptions"]
        assert (stats["s"]["segments"], stats["g"]["segments"]["0"]["position"]) == (stream, group["0"]["position"])


async def test_sessions_and_assignments_survive_a_restart_of_the_broker(tmp_path: Path) -> None:
    shelf, clock = Shelf(), SystemClock()
    host = MemoryHost(shelf, clock.now_ms)
    async with Node(plain_settings(tmp_path), segments=host) as node, layout_client(node) as client:
        await admin_of(node).create(TOPIC, 2, {})
        before = await client.register(TOPIC, "s", "a")
    async with Node(plain_settings(tmp_path), segments=host) as node, layout_client(node) as client:
        # resumed without being asked: it has sessions
        await until(lambda: len(service_of(node).controllers) == 1)
        after = await client.register(
            TOPIC, "s", "a", held_segments=ids(before.assignment), generation=before.assignment.generation
        )
        assert ids(after.assignment) == ids(before.assignment)
        assert after.assignment.generation == before.assignment.generation + 1  # of its new leader; nothing was taken
