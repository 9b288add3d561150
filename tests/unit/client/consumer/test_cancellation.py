"""The task of an application is cancelled before every turn of the event loop, one run for each turn. The real SDK on
a model of the broker, in simulated time.

The cancellation must come through. When the application has left its `async with`, or was cancelled there too, no
task, timer, connection, consumer, producer, session or watch is left, in the client and at the broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import anabranch
from anabranch import Backoff, Checkpoint, Client, ConnectionPolicy, DeadLetter
from anabranch.client.async_resource import AsyncResource
from tests.support.in_memory.simulated_loop import LoopClock
from tests.support.models.broker_model import TLS, TOPIC, URL, ConsumerWorld, WiredLoop, run_wired

QUICK = ConnectionPolicy(backoff=Backoff(initial=0.01, maximum=0.1), keepalive=30.0)
Life = Callable[[Client, ConsumerWorld], Awaitable[None]]
LATER = 40.0  # simulated: longer than anything that anybody waits for here


class Zero:
    def random(self) -> float:
        return 0.0


def connected() -> AsyncResource[Client]:
    return anabranch.connect(URL, tls=TLS, connection=QUICK, clock=LoopClock(), chance=Zero())


async def stream(client: Client, world: ConsumerWorld) -> None:
    async with client.stream_consumer(str(TOPIC), subscription="s", start="earliest", prefetch=4) as consumer:
        for _ in range(4):
            message = await consumer.receive(timeout=5)
            assert message is not None
            await consumer.ack_cumulative(message)
        world.split()
        await consumer.receive(timeout=0.5)


async def queue(client: Client, world: ConsumerWorld) -> None:
    policy = DeadLetter(max_redeliveries=0, topic=str(TOPIC))
    async with client.queue_consumer(
        str(TOPIC), subscription="s", start="earliest", prefetch=4, dead_letter=policy
    ) as consumer:
        for number in range(4):
            message = await consumer.receive(timeout=5)
            assert message is not None
            await (consumer.nack(message, delay=0) if number == 2 else consumer.ack(message))
        await consumer.receive_batch(2, timeout=0.5)


async def checkpoint(client: Client, world: ConsumerWorld) -> None:
    async with client.checkpoint_consumer(str(TOPIC), start=Checkpoint.earliest(), prefetch=4) as consumer:
        await consumer.receive_many(3, timeout=5)
        world.split()
        await consumer.receive(timeout=5)


async def producing(client: Client, world: ConsumerWorld) -> None:
    async with client.producer(str(TOPIC), pending_bytes_max=300) as producer:
        await asyncio.gather(*(producer.send(b"x" * 100, key=f"k{n}") for n in range(4)))
        await producer.send_batch([b"a", b"b"], ["k", None], timeout=5)
        last = producer.send_nowait(b"last")
        last.add_done_callback(lambda one: one.cancelled() or one.exception())  # it may fail unseen
        await producer.flush(timeout=5)


LIVES: dict[str, Life] = {"stream": stream, "queue": queue, "checkpoint": checkpoint, "producer": producing}


def lived(life: Life, cancel_at: tuple[int, ...], *, is_ours: bool) -> int:
    """How many turns it took."""
    world = ConsumerWorld(is_ours=is_ours, prefetch=4, batch=2)
    world.publish(8)

    async def application() -> None:
        async with connected() as client:
            await life(client, world)

    async def main() -> int:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, WiredLoop)
        task = loop.create_task(application())

        def at_turn(number: int) -> None:
            if number in cancel_at:
                task.cancel()

        ended: list[int] = []
        task.add_done_callback(lambda _: ended.append(loop.turns))
        loop.at_turn = at_turn
        await asyncio.wait([task])
        (turns,), loop.at_turn = ended, None
        assert task.cancelled() == (turns > cancel_at[0]), repr(task)
        await asyncio.sleep(LATER)  # what was cut short even while it closed has its time
        assert asyncio.all_tasks() == {asyncio.current_task()}, asyncio.all_tasks()
        assert loop.timers() == []
        left: dict[str, Any] = {
            "connections": world.connections,
            "attached": world.attached,
            "producers": world.producers,
            "registrations": world.registrations,
            "watches": world.watches,
        }
        assert not any(left.values()), left
        return turns

    try:
        return run_wired(world, main())
    except BaseException as error:
        error.add_note(f"cancelled at turns {cancel_at}")
        raise


@pytest.mark.parametrize("is_ours", [True, False], ids=["ours", "M1"])
@pytest.mark.parametrize("life", LIVES)
def test_cancel_before_any_loop_turn_leaves_nothing_open(life: str, is_ours: bool) -> None:
    turns = lived(LIVES[life], (1_000_000,), is_ours=is_ours)
    assert turns > 30
    for moment in range(1, turns):
        lived(LIVES[life], (moment,), is_ours=is_ours)


@pytest.mark.parametrize("life", LIVES)
def test_second_cancel_while_closing_leaves_nothing_open(life: str) -> None:
    turns = lived(LIVES[life], (1_000_000,), is_ours=True)
    for moment in range(5, turns, 5):
        for again in (1, 2, 4):
            lived(LIVES[life], (moment, moment + again), is_ours=True)
