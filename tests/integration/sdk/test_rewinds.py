"""An operator seeks a subscription while an application reads it, against a real node in this process.

For every key the application sees the old messages that were handed out, then everything after the seek, in order.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from functools import partial

import pytest

from anabranch import Message, StreamConsumer
from anabranch.client.consumer.consumer import Consumer
from tests.integration.sdk.test_scalable import (
    TOPIC,
    World,
    assert_ordered,
    lanes,
    nothing,
    received,
    texts,
    world,
)
from tests.support.processes.in_process_cluster import until

__all__ = ["world"]


async def branched(world: World) -> None:
    """Two generations: 12 messages in segment 0, 12 in its children, 12 in one's children and the other."""
    await world.create()
    await world.admin.create_subscription(TOPIC, "s", "STREAM", "earliest")
    await world.publish(12)
    await world.split(0)
    await world.publish(12)
    await world.split(1)
    await world.publish(12)


async def read_all(consumer: StreamConsumer, count: int) -> list[Message]:
    """Acknowledged one by one: what is behind a segment comes only when it is."""
    got: list[Message] = []
    while len(got) < count:
        got += await received(consumer, 1)
        await consumer.ack_cumulative(got[-1])
    return got


def by_key(found: Sequence[str]) -> dict[str, list[int]]:
    numbers: dict[str, list[int]] = defaultdict(list)
    for text in found:
        key, number = text.split()
        numbers[key].append(int(number))
    return numbers


def is_through(found: Sequence[str], expected: Sequence[str]) -> bool:
    """Everything has come again, from the seek on."""
    got, wanted = by_key(found), by_key(expected)
    return all(got[key][-len(numbers) :] == numbers for key, numbers in wanted.items())


def assert_tail_then_all(found: Sequence[str], expected: Sequence[str], start: int = 0) -> None:
    """Of every key: a run that goes on from what was read before (`start` messages were), then all that is expected."""
    got, wanted = by_key(found), by_key(expected)
    for key, numbers in wanted.items():
        tail = got[key][: -len(numbers)]
        assert got[key][-len(numbers) :] == numbers, f"{key}: {got[key]}"
        assert tail == list(range(start, start + len(tail))), f"{key}: {got[key]}"


async def test_acks_from_before_a_rewind_do_not_undo_it(world: World) -> None:
    await branched(world)
    async with world.client.stream_consumer(TOPIC, subscription="s") as consumer:
        old = await read_all(consumer, 24)
        old += await received(consumer, 12)  # the application still works on these
        await world.admin.seek(TOPIC, "s", 0)
        for message in old[24:]:
            await consumer.ack_cumulative(message)
        again = await received(consumer, 1)
        await consumer.ack_cumulative(old[-1])  # late, and of a segment that it has again by then, or has not
        await consumer.ack_cumulative(again[0])
        again += await read_all(consumer, 35)
        assert_ordered(again, world.all)
        assert await nothing(consumer)
    async with world.client.stream_consumer(TOPIC, subscription="s") as consumer:
        assert await nothing(consumer), "what came again is acknowledged"


async def test_rewind_does_not_wait_for_acks_of_old_messages(world: World) -> None:
    await branched(world)
    async with world.client.stream_consumer(TOPIC, subscription="s", release_timeout=3_600) as consumer:
        await read_all(consumer, 24)
        await received(consumer, 12)
        await world.admin.seek(TOPIC, "s", 0)
        assert_ordered(await read_all(consumer, 36), world.all)


@pytest.mark.parametrize("handed_out", [0, 5, 12, 17, 30])
async def test_messages_buffered_before_a_rewind_are_dropped(world: World, handed_out: int) -> None:
    """Buffered, and half acknowledged, in any generation of segments."""
    await branched(world)
    async with world.client.stream_consumer(TOPIC, subscription="s") as consumer:
        before = texts(await read_all(consumer, handed_out))
        await world.admin.seek(TOPIC, "s", 0)
        found = list(before)
        while not (len(found) >= 36 and is_through(found[handed_out:], world.all)):
            found += texts(await read_all(consumer, 1))
        assert_tail_then_all(found, world.all)
        assert await nothing(consumer)


async def test_two_consumers_see_one_order_after_a_rewind(world: World) -> None:
    """No consumer gets a later message of a key before an earlier one was handed out by any of them."""
    await branched(world)
    found: list[str] = []

    async def work(consumer: Consumer) -> None:
        assert isinstance(consumer, StreamConsumer)
        while True:
            message = await consumer.receive()
            assert message is not None
            found.append(message.data.decode())
            await asyncio.sleep(0)
            await consumer.ack_cumulative(message)

    async with (
        world.client.stream_consumer(TOPIC, subscription="s", name="a") as first,
        world.client.stream_consumer(TOPIC, subscription="s", name="b") as second,
    ):
        working = [asyncio.create_task(work(one)) for one in (first, second)]
        try:
            await until(lambda: len(found) == 36 and len(lanes(first)) >= 1 and len(lanes(second)) >= 1)
            for run in range(2, 6):
                await world.admin.seek(TOPIC, "s", 0)
                await until(partial(has_found, found, 36 * run))
            assert_ordered_runs(found, world.all, 5)
        finally:
            for task in working:
                task.cancel()
            await asyncio.gather(*working, return_exceptions=True)


def has_found(found: Sequence[str], count: int) -> bool:
    return len(found) >= count


def assert_ordered_runs(found: Sequence[str], expected: Sequence[str], runs: int) -> None:
    wanted = by_key(expected)
    assert by_key(found) == {key: numbers * runs for key, numbers in wanted.items()}


@pytest.mark.parametrize("part", ["in the parent", "between", "behind everything"])
async def test_a_seek_to_a_time(world: World, part: str) -> None:
    """From the first message published then on; what is older stays read, and holds nothing up."""
    clock = world.node.services.clock

    async def now() -> int:
        at_ms = clock.now_ms()
        await until(lambda: clock.now_ms() > at_ms)
        return clock.now_ms()

    await world.create()
    await world.admin.create_subscription(TOPIC, "s", "STREAM", "earliest")
    await world.publish(12)
    in_parent = await now()
    await world.publish(12)
    await world.split(0)
    between = await now()
    await world.publish(12)
    behind = await now()
    to_ms, first = {"in the parent": (in_parent, 12), "between": (between, 24), "behind everything": (behind, 36)}[part]
    async with world.client.stream_consumer(TOPIC, subscription="s") as consumer:
        await read_all(consumer, 36)
        await world.admin.seek(TOPIC, "s", to_ms)
        assert_ordered(await read_all(consumer, 36 - first), world.all[first:])
        assert await nothing(consumer)
        await world.publish(6)
        assert_ordered(await read_all(consumer, 6), world.all[36:])


async def test_rewind_without_consumers_applies_to_the_next(world: World) -> None:
    await branched(world)
    async with world.client.stream_consumer(TOPIC, subscription="s") as consumer:
        await read_all(consumer, 36)
    await world.admin.seek(TOPIC, "s", 0)
    async with world.client.stream_consumer(TOPIC, subscription="s") as consumer:
        assert_ordered(await read_all(consumer, 36), world.all)


async def test_clearing_the_backlog_delivers_no_child_before_parent(world: World) -> None:
    await branched(world)
    async with world.client.stream_consumer(TOPIC, subscription="s") as consumer:
        found = texts(await read_all(consumer, 5))
        await world.admin.clear_backlog(TOPIC, "s")
        await world.publish(12)
        while not set(world.all[36:]) <= set(found):
            found += texts(await read_all(consumer, 1))
        assert all(numbers == sorted(set(numbers)) for numbers in by_key(found).values())
        assert await nothing(consumer)
