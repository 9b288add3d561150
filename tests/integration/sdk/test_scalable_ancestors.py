"""The SDK's consumers over generations of segments: backlog behind fast splits, slow parents, restored checkpoints."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import anabranch
from anabranch import Checkpoint, Message, StreamConsumer
from anabranch.client.consumer.segment_traversal import PositionGone
from anabranch.model.names import TopicName
from anabranch.node.node import Node
from anabranch.node.settings.scalable_topics import ScalableTopicSettings
from tests.integration.sdk.test_scalable import (
    QUICK,
    RETRY_DELAYS,
    TOPIC,
    World,
    assert_ordered,
    lanes,
    nothing,
    received,
)
from tests.support.processes.in_process_cluster import until
from tests.support.processes.scalable_nodes import admin_of, plain_settings, service_of


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """What everybody has read goes with the next sweep, and only the test sweeps."""
    scalable = ScalableTopicSettings(retention_minutes=0, retention_mb=0, sweep_seconds=3_600.0)
    async with (
        Node(plain_settings(tmp_path, scalable_topics=scalable)) as node,
        anabranch.connect(node.service_url, connection=QUICK) as client,
    ):
        yield World(node, client, admin_of(node))


async def test_fast_splits_with_backlog_keep_keys_in_order(world: World) -> None:
    """Three generations are unread when two consumers come; while they read, it splits and merges on."""
    await world.create()
    await world.admin.create_subscription(TOPIC, "s", "STREAM", "earliest")
    await world.publish(60)
    await world.split(0)
    await world.split(1)  # at once: nothing was published in between to some of the children
    await world.publish(60)
    await world.split(3)
    await world.split(2)
    await world.publish(60)
    seen: list[Message] = []  # over all consumers, in the order in which they were handed out

    acknowledged: list[Message] = []

    async def read(consumer: StreamConsumer) -> None:
        async for message in consumer:
            seen.append(message)
            await asyncio.sleep(0)  # the other one has its turn
            await consumer.ack_cumulative(message)
            acknowledged.append(message)

    consumers = [
        await world.client.stream_consumer(TOPIC, subscription="s", name=name, prefetch=10) for name in ("a", "b")
    ]
    reading = [asyncio.create_task(read(consumer)) for consumer in consumers]
    await until(lambda: len(seen) > 30)
    await world.merge(5, 6)
    await world.publish(60)
    await world.split(9)
    await world.publish(60)
    await until(lambda: len(acknowledged) >= len(world.all))  # a closed consumer cannot acknowledge
    for consumer in consumers:
        await consumer.close()
    await asyncio.gather(*reading)
    assert_ordered(seen, world.all)
    assert len({message.id.lane for message in seen}) >= 6, "the messages were in many segments"


async def test_merged_segment_waits_for_its_slower_parent(world: World) -> None:
    await world.create(2)
    async with (
        world.client.stream_consumer(TOPIC, subscription="s", start="earliest", name="a") as first,
        world.client.stream_consumer(TOPIC, subscription="s", name="b") as second,
    ):
        await until(lambda: len(lanes(first)) == len(lanes(second)) == 1)
        await world.publish(24)
        fast, slow = await shares(first, second, 24)
        await world.merge(0, 1)
        await world.publish(24)
        assert await nothing(first), "no consumer has both parents"
        assert await nothing(second)
        await first.ack_cumulative(fast[-1])
        await second.ack_cumulative(slow[-1])
        waiting = [asyncio.create_task(one.receive(timeout=RETRY_DELAYS)) for one in (first, second)]
        done, others = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED, timeout=RETRY_DELAYS)
        for one in others:
            one.cancel()
        (winner,) = [(first, second)[waiting.index(one)] for one in done]
        head = done.pop().result()
        assert head is not None
        third = [head, *await received(winner, 23)]
        assert {message.id.lane for message in third} == {2}
        assert_ordered([*fast, *slow, *third], world.all)


async def shares(one: StreamConsumer, other: StreamConsumer, count: int) -> tuple[list[Message], list[Message]]:
    """What each of them is given, until it is so many together."""
    found: tuple[list[Message], list[Message]] = [], []
    async with asyncio.timeout(RETRY_DELAYS):
        while len(found[0]) + len(found[1]) < count:
            for mine, consumer in zip(found, (one, other), strict=True):
                mine += await consumer.receive_many(count, timeout=0.02)
    return found


# -- checkpoints


async def sealed_and_drained(world: World) -> dict[str, Checkpoint]:
    """24 messages in segment 0, 24 in its children; a queue has read 0. Checkpoints of one reader on its way."""
    await world.create()
    await world.admin.create_subscription(TOPIC, "q", "QUEUE", "earliest")
    await world.publish(24)
    saved: dict[str, Checkpoint] = {}
    async with world.client.checkpoint_consumer(TOPIC, start=Checkpoint.earliest()) as reader:
        await received(reader, 10)
        saved["in the middle"] = stored(reader.checkpoint())
        await received(reader, 14)
        saved["at its end, not sealed yet"] = stored(reader.checkpoint())
        await world.split(0)
        await world.publish(24)
        await received(reader, 1)
        saved["in a child"] = stored(reader.checkpoint())
        await received(reader, 23)
        saved["through"] = stored(reader.checkpoint())
    async with world.client.queue_consumer(TOPIC, subscription="q") as queue:
        for message in await received(queue, 48):
            await queue.ack(message)
    return saved


def stored(checkpoint: Checkpoint) -> Checkpoint:
    """As an application keeps it."""
    return Checkpoint.from_bytes(checkpoint.to_bytes())


LEFT = {"in the middle": 38, "at its end, not sealed yet": 24, "in a child": 23, "through": 0}


@pytest.mark.parametrize("where", LEFT)
async def test_checkpoint_is_restored_before_its_drained_segment_is_deleted(world: World, where: str) -> None:
    """Nothing is read again, though the segment could be: not even after others are through with it."""
    saved = await sealed_and_drained(world)
    assert 0 in (await service_of(world.node).record(TopicName.parse(TOPIC))).segments
    async with world.client.checkpoint_consumer(TOPIC, start=saved[where]) as reader:
        found = await received(reader, LEFT[where])
        assert await nothing(reader)
        assert len({message.data for message in found}) == len(found)
        if where != "in a child":  # whose head is any one of 24
            assert_ordered(found, world.all[48 - LEFT[where] :])
        again = stored(reader.checkpoint())
    async with world.client.checkpoint_consumer(TOPIC, start=again) as reader:
        assert await nothing(reader)


@pytest.mark.parametrize("where", LEFT)
async def test_checkpoint_is_restored_after_its_drained_segment_is_deleted(world: World, where: str) -> None:
    saved = await sealed_and_drained(world)
    await world.admin.create_subscription(TOPIC, "late", "STREAM", "latest")
    await service_of(world.node).controllers.sweep()
    assert 0 not in (await service_of(world.node).record(TopicName.parse(TOPIC))).segments
    if where == "in the middle":
        with pytest.raises(PositionGone):
            await world.client.checkpoint_consumer(TOPIC, start=saved[where], on_loss="fail")
    left = min(LEFT[where], 24)
    async with world.client.checkpoint_consumer(TOPIC, start=saved[where]) as reader:
        found = await received(reader, left)
        assert await nothing(reader)
        assert {message.id.lane for message in found} <= {1, 2}
        await world.publish(6)
        assert_ordered(await received(reader, 6), world.all[48:])


async def test_restored_group_does_not_reread_completed_segments(world: World) -> None:
    """All members die after the parent was reported complete; the next ones begin with what was stored."""
    await world.create()
    await world.publish(24)
    store: list[Checkpoint] = []

    def restore() -> Checkpoint | None:
        return Checkpoint.merge(store) if store else None

    async with world.client.checkpoint_consumer(
        TOPIC, start=Checkpoint.earliest(), group="g", name="a", restore=restore
    ) as member:
        got = await received(member, 24)
        await world.split(0)
        await world.publish(24)
        store.append(stored(member.checkpoint()))
        await member.saved(store[-1])
        got += await received(member, 7)
        store.append(stored(member.checkpoint()))
        await member.saved(store[-1])
    assert (await world.admin.subscription(TOPIC, "g"))["drained"] == [0]
    async with (
        world.client.checkpoint_consumer(
            TOPIC, start=Checkpoint.earliest(), group="g", name="b", restore=restore
        ) as one,
        world.client.checkpoint_consumer(
            TOPIC, start=Checkpoint.earliest(), group="g", name="c", restore=restore
        ) as two,
    ):
        while len(got) < 48:
            for consumer in (one, two):
                message = await consumer.receive(timeout=0.2)
                if message is not None:
                    got.append(message)
                store.append(stored(consumer.checkpoint()))
                await consumer.saved(store[-1])
        assert await nothing(one)
        assert await nothing(two)
    assert_ordered(got, world.all)
