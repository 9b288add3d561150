"""`ack_every` of the real SDK on a model of the broker, in simulated time."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from anabranch import AckEvery
from anabranch.client.client import Client
from anabranch.client.errors import BadOption
from tests.support.models.broker_model import TOPIC, ConsumerWorld, run_wired
from tests.unit.client.consumer.test_consumers import connected
from tests.unit.client.processing.test_handler_runner import Work, unacknowledged


def opened(client: Client, ack_every: AckEvery | int | timedelta) -> Any:
    return client.stream_consumer(str(TOPIC), subscription="s", start="earliest", ack_every=ack_every)


async def take(consumer: Any, count: int) -> list[int]:
    found: list[int] = []
    for _ in range(count):
        message = await consumer.receive(timeout=200.0)
        assert message is not None, f"only {found} came"
        found.append(int(message.value))
    return found


async def settle() -> None:
    await asyncio.sleep(0.5)  # simulated; grouped acks have left


def test_every_n_messages_are_acknowledged_and_the_last_receive_is_not() -> None:
    world = ConsumerWorld(is_ours=True, prefetch=1000, batch=3)

    async def main() -> None:
        world.publish(20)
        async with connected() as client, opened(client, 5) as consumer:
            await take(consumer, 5)
            await settle()
            assert len(unacknowledged(world)) == 20, "the fifth is not processed yet"
            await take(consumer, 1)
            await settle()
            assert unacknowledged(world) == list(range(5, 20))
            await take(consumer, 3)
            await settle()
            assert unacknowledged(world) == list(range(5, 20))
        assert unacknowledged(world) == list(range(8, 20)), "closing acknowledges what is processed"

    run_wired(world, main())


def test_messages_are_acknowledged_after_the_interval() -> None:
    world = ConsumerWorld(is_ours=True, prefetch=1000, batch=3)

    async def main() -> None:
        world.publish(4)
        async with connected() as client, opened(client, timedelta(seconds=5)) as consumer:
            await take(consumer, 3)
            await asyncio.sleep(4.0)
            assert len(unacknowledged(world)) == 4
            await asyncio.sleep(1.5)
            assert unacknowledged(world) == [2, 3]
            await take(consumer, 1)
            assert await consumer.receive(timeout=6.0) is None
            assert unacknowledged(world) == [], "a receive that returns nothing counts"

    run_wired(world, main())


def test_whole_batches_and_lists_count_as_one_call() -> None:
    world = ConsumerWorld(is_ours=True, prefetch=1000, batch=4)

    async def main() -> None:
        world.publish(12)
        async with connected() as client, opened(client, 1) as consumer:
            assert len(await consumer.receive_many(4, timeout=5)) == 4
            await settle()
            assert len(unacknowledged(world)) == 12
            assert len(await consumer.receive_batch(8, timeout=5)) == 8
            await settle()
            assert unacknowledged(world) == list(range(4, 12))
            assert not await consumer.receive_batch(timeout=1)
            assert unacknowledged(world) == []

    run_wired(world, main())


@pytest.mark.parametrize("is_ours", [True, False], ids=["ours", "M1"])
@pytest.mark.parametrize("ack_every", [1000, timedelta(hours=1), AckEvery(messages=1000, interval=3600)], ids=str)
def test_split_does_not_wait_for_a_large_count_or_interval(
    is_ours: bool, ack_every: AckEvery | int | timedelta
) -> None:
    """The controller of the model assigns the children when everything of the parent is acknowledged."""
    world = ConsumerWorld(is_ours=is_ours, prefetch=1000, batch=3)

    async def main() -> None:
        world.publish(9)
        async with connected() as client, opened(client, ack_every) as consumer:
            found = await take(consumer, 4)
            world.split()
            world.publish(8)
            found += await take(consumer, 13)
            assert sorted(found) == list(range(17))
            assert await consumer.receive(timeout=1.0) is None
        assert unacknowledged(world) == []

    run_wired(world, main())


def test_failure_between_two_receives_leaves_the_message_unacknowledged() -> None:
    world = ConsumerWorld(is_ours=True, prefetch=1000, batch=3)

    async def main() -> None:
        world.publish(6)
        async with connected() as client:
            with pytest.raises(ValueError, match="3"):
                async with opened(client, 1) as consumer:
                    async for message in consumer:
                        if message.value == b"3":
                            raise ValueError("3")
        assert unacknowledged(world) == [3, 4, 5]

    run_wired(world, main())


def test_no_timer_is_left_after_close() -> None:
    world = ConsumerWorld(is_ours=True, prefetch=1000, batch=3)

    async def main() -> None:
        world.publish(6)
        async with connected() as client, opened(client, timedelta(hours=1)) as consumer:
            await take(consumer, 3)
        loop: Any = asyncio.get_running_loop()
        assert loop.timers() == []

    run_wired(world, main())


def test_run_is_refused_on_a_consumer_with_ack_every() -> None:
    world = ConsumerWorld(is_ours=True, prefetch=1000, batch=3)

    async def main() -> None:
        async with connected() as client, opened(client, 5) as consumer:
            with pytest.raises(BadOption, match="ack_every"):
                await consumer.run(Work())

    run_wired(world, main())
