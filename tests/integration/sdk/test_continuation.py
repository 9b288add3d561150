"""A stream consumer goes on with the children of a segment before it has acknowledged the segment.

Everybody who comes from Kafka acknowledges every N messages. A sealed segment then ends on a rest that is not
acknowledged, and nothing more may be published that would complete the N.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import anabranch
from anabranch import Message, StreamConsumer
from anabranch.broker.topic.topic import Topic
from anabranch.cli.output.scalable_topic import stats_view
from anabranch.client.async_resource import AsyncResource
from anabranch.client.connection import connection_state
from anabranch.client.consumer.segment import stream_segment_consumer
from anabranch.client.consumer.segment.segment_consumer import SegmentConsumer
from anabranch.controller.group import stall_watch
from anabranch.model.names import TopicName
from anabranch.model.segment import backing_topic
from anabranch.node.node import Node
from anabranch.protocol import pulsar_pb2 as pb
from tests.integration.sdk.test_scalable import (
    QUICK,
    TOPIC,
    World,
    assert_ordered,
    lanes,
    nothing,
    received,
    texts,
)
from tests.support.processes.in_process_cluster import until
from tests.support.processes.scalable_nodes import admin_of, plain_settings, service_of


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with Node(plain_settings(tmp_path)) as node, anabranch.connect(node.service_url, connection=QUICK) as client:
        yield World(node, client, admin_of(node))


async def backlogs(world: World) -> dict[int, int]:
    """Unacknowledged messages by segment, as stored."""
    found = {}
    record = await service_of(world.node).record(TopicName.parse(TOPIC))
    for segment_id, segment in record.segments.items():
        topic = world.node.services.topics.loaded(backing_topic(TopicName.parse(TOPIC), segment))
        assert isinstance(topic, Topic)
        found[segment_id] = await topic.subscriptions["s"].backlog_messages()
    return found


def opened(world: World, *, name: str | None = None, prefetch: int = 1000) -> AsyncResource[StreamConsumer]:
    return world.client.stream_consumer(TOPIC, subscription="s", start="earliest", name=name, prefetch=prefetch)


async def test_rest_of_a_sealed_segment_does_not_stop_the_consumer(world: World) -> None:
    await world.create()
    async with opened(world) as consumer:
        await world.publish(7)
        first = await received(consumer, 7)
        await consumer.ack_cumulative(first[4])
        await world.split(0)
        await world.publish(20)
        rest = await received(consumer, 20)
        assert {message.id.lane for message in rest} == {1, 2}
        assert_ordered([*first, *rest], world.all)
        assert await backlogs(world) == {
            0: 2,
            1: sum(m.id.lane == 1 for m in rest),
            2: sum(m.id.lane == 2 for m in rest),
        }
        await consumer.ack_cumulative(rest[-1])  # one ack covers parent and children
        await until(lambda: lanes(consumer) == {1, 2})
    assert set((await backlogs(world)).values()) == {0}


async def test_nothing_is_acknowledged_over_splits_and_a_merge(world: World) -> None:
    await world.create()
    async with opened(world) as consumer:
        await world.publish(12)
        await world.split(0)
        await world.publish(12)
        await world.split(1)
        await world.publish(12)
        await world.merge(4, 2)
        await world.publish(12)
        messages = await received(consumer, 48)
        assert_ordered(messages, world.all)
        await consumer.ack_cumulative(messages[-1])
    assert set((await backlogs(world)).values()) == {0}


@pytest.mark.parametrize("prefetch", [1, 2])
async def test_waiting_children_do_not_use_up_the_window_of_their_parent(world: World, prefetch: int) -> None:
    await world.create()
    await world.admin.create_subscription(TOPIC, "s", "STREAM", "earliest")
    await world.publish(30)
    await world.split(0)
    await world.split(1)
    await world.publish(30)
    async with opened(world, prefetch=prefetch) as consumer:
        assert_ordered(await received(consumer, 60), world.all)


async def test_next_consumer_gets_the_rest_of_the_parent_before_the_children(world: World) -> None:
    await world.create()
    async with opened(world, name="one") as consumer:
        await world.publish(12)
        first = await received(consumer, 12)
        await consumer.ack_cumulative(first[8])
        await world.split(0)
        await world.publish(12)
        await received(consumer, 12)
    async with opened(world, name="two") as consumer:
        again = await received(consumer, 15)
        assert texts(again[:3]) == texts(first[9:])
        assert_ordered(again, world.all[9:])


async def test_child_acknowledged_by_id_acknowledges_its_ancestors(world: World) -> None:
    await world.create()
    async with opened(world) as consumer:
        await world.publish(12)
        await world.split(0)
        await world.publish(24)
        messages = await received(consumer, 36)
        last = [message for message in messages if message.id.lane == 1][-1]
        await consumer.ack_cumulative(last.id)
    left = await backlogs(world)
    assert (left[0], left[1]) == (0, 0)
    assert left[2] > 0


async def test_close_sends_acks_of_the_parent_and_then_those_of_the_children(world: World) -> None:
    await world.create()
    async with opened(world) as consumer:
        await world.publish(12)
        await world.split(0)
        await world.publish(24)
        messages = await received(consumer, 36)
        await consumer.ack_cumulative(messages[-1])
    assert set((await backlogs(world)).values()) == {0}


async def test_acks_of_a_child_wait_until_those_of_its_parent_are_confirmed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a confirmation nothing of a child is acknowledged, and the next consumer gets it again."""
    await world.create()
    unconfirmed: list[int] = []
    confirm = SegmentConsumer._confirmed

    def lost(self: SegmentConsumer, number: int, answer: asyncio.Future[object]) -> None:
        if self.spec.segment_id == 0:
            unconfirmed.append(number)
        else:
            confirm(self, number, answer)

    async with opened(world, name="one") as consumer:
        await world.publish(12)
        await world.split(0)
        await world.publish(12)
        await until(lambda: lanes(consumer) == {0, 1, 2})
        messages = await received(consumer, 24)
        monkeypatch.setattr(SegmentConsumer, "_confirmed", lost)
        session = next(iter(consumer._sessions.values()))
        monkeypatch.setattr(session, "on_assigned", lambda assignment: None)
        await consumer.ack_cumulative(messages[-1])
        await until(lambda: bool(unconfirmed))
        await consumer.close(timeout=0.2)
    left = await backlogs(world)
    assert left[0] == 0
    assert left[1] + left[2] == 12


async def test_assignment_that_arrives_during_close_releases_the_acks_of_children(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller says that the parent is drained, and the confirmation of its acks never comes."""
    await world.create()
    confirm = SegmentConsumer._confirmed

    def lost(self: SegmentConsumer, number: int, answer: asyncio.Future[object]) -> None:
        if self.spec.segment_id != 0:
            confirm(self, number, answer)

    async with opened(world) as consumer:
        await world.publish(12)
        await world.split(0)
        await world.publish(12)
        messages = await received(consumer, 24)
        monkeypatch.setattr(SegmentConsumer, "_confirmed", lost)
        await consumer.ack_cumulative(messages[-1])
    assert set((await backlogs(world)).values()) == {0}


async def test_child_of_another_consumer_waits_for_the_acknowledgement(world: World) -> None:
    await world.create(scales_itself=False)
    async with opened(world, name="a") as first, opened(world, name="b") as second:
        reader, other = (first, second) if lanes(first) else (second, first)
        await world.publish(12)
        messages = await received(reader, 12)
        await world.split(0)
        await world.publish(48)
        await until(lambda: len(lanes(reader)) == 2)
        own = await received(reader, 1)
        assert await nothing(other), "the parent is not acknowledged"
        await reader.ack_cumulative(messages[-1])
        theirs = await received(other, 1)
        assert {own[0].id.lane, theirs[0].id.lane} == {1, 2}


async def test_merged_child_is_read_by_the_consumer_of_its_last_undrained_parent(world: World) -> None:
    await world.create(2)
    async with opened(world) as consumer:
        await world.publish(24)
        first = await received(consumer, 24)
        await world.merge(0, 1)
        await world.publish(12)
        assert_ordered([*first, *await received(consumer, 12)], world.all)


async def test_client_without_the_flag_keeps_the_strict_rule(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    class Flags:
        """The feature flags of an earlier SDK."""

        def __call__(self, **flags: bool) -> pb.FeatureFlags:
            flags.pop("anabranch_continuation", None)
            return pb.FeatureFlags(**flags)

    class Wire:
        FeatureFlags = Flags()

        def __getattr__(self, name: str) -> object:
            return getattr(pb, name)

    monkeypatch.setattr(connection_state, "pb", Wire())
    await world.create()
    async with (
        anabranch.connect(world.node.service_url, connection=QUICK) as client,
        client.stream_consumer(TOPIC, subscription="s", start="earliest") as consumer,
    ):
        await world.publish(7)
        messages: list[Message] = await received(consumer, 7)
        await consumer.ack_cumulative(messages[4])
        await world.split(0)
        await world.publish(12)
        assert await nothing(consumer)
        await consumer.ack_cumulative(messages[-1])
        assert_ordered([*messages, *await received(consumer, 12)], world.all)


async def test_rewind_returns_to_the_parent_while_children_are_read(world: World) -> None:
    await world.create()
    async with opened(world) as consumer:
        await world.publish(12)
        await world.split(0)
        await world.publish(12)
        before = await received(consumer, 24)
        await consumer.ack_cumulative(before[-1])
        await world.admin.seek(TOPIC, "s", 0)
        assert_ordered(await received(consumer, 24), world.all)
        await consumer.ack_cumulative(before[-1])  # from before the seek: covers nothing
    assert sum((await backlogs(world)).values()) == 24


async def test_stall_is_logged_once_and_shown_in_stats(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Client and broker say which segment is not acknowledged, and which segments wait for it."""
    monkeypatch.setattr(stream_segment_consumer, "STALL_SECONDS", 0.05)
    monkeypatch.setattr(stall_watch, "STALL_SECONDS", 0.05)
    await world.create(scales_itself=False)
    async with opened(world, name="a") as first, opened(world, name="b") as second:
        reader = first if lanes(first) else second
        await world.publish(12)
        messages = await received(reader, 12)
        await reader.ack_cumulative(messages[9])
        await world.split(0)
        await until(lambda: len(lanes(reader)) == 2)
        (waiting,) = {1, 2} - lanes(reader)
        client = f"segment 0 is sealed and read; 2 messages are not acknowledged; segments {waiting} wait for them"
        broker = (
            "segment 0 is sealed and its position does not move; 2 messages are not acknowledged; "
            f"segments {waiting} wait for them"
        )
        await until(lambda: client in caplog.text and broker in caplog.text)
        stats = await world.admin.stats(TOPIC)
        assert stats["subscriptions"]["s"]["waiting"] == {str(waiting): [0]}
        line = f"subscription s: segments {waiting} wait until 2 messages of 0 are acknowledged"
        assert line in stats_view(stats)
        (led,) = service_of(world.node).led()
        assert [group.waiting for group in led.groups] == [1]
        assert await nothing(second if reader is first else first)
        assert caplog.text.count(client) == caplog.text.count(broker) == 1
        await reader.ack_cumulative(messages[-1])
        await until(lambda: [group.waiting for group in service_of(world.node).led()[0].groups] == [0])
