"""Stream, queue and checkpoint consumers with a fault at any moment: the real SDK on a model of the broker
(`tests.support.models.broker_model`), with a fault at every command of the conversation in turn.

Each time, every message is handed out exactly once (the model has no other consumer, and the SDK knows what it holds
and has acknowledged). Keys are in order, permits never exceed the prefetch, and finally everything is acknowledged at
the broker and no task, timer, consumer or connection is left.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

import anabranch
from anabranch import Backoff, Checkpoint, Client, ConnectionPolicy, DeadLetter, Message
from anabranch.client.async_resource import AsyncResource
from anabranch.client.consumer.consumer import Consumer
from tests.support.in_memory.simulated_loop import LoopClock
from tests.support.models.broker_model import KEYS, TLS, TOPIC, URL, ConsumerWorld, WiredLoop, run_wired

QUICK = ConnectionPolicy(backoff=Backoff(initial=0.01, maximum=0.1), keepalive=30.0)
RETRY_DELAYS = 200.0  # simulated
FIRST, SECOND = 9, 8  # messages before and after the split
MOMENTS = range(3, 30)
KINDS = ("stream", "queue", "checkpoint")
TROUBLES: dict[str, Callable[[ConsumerWorld], None]] = {
    "cut": ConsumerWorld.cut,
    "sent away": ConsumerWorld.send_away,
    "children sent away": partial(ConsumerWorld.send_away, is_sparing_the_first=True),
    "answers lost": ConsumerWorld.lose_answers,
    "cut twice": ConsumerWorld.cut,
}


class Zero:
    def random(self) -> float:
        return 0.0


@dataclass
class Story:
    """One run: what the application does while the trouble comes."""

    kind: str
    world: ConsumerWorld
    acks: str = "each"  # or "late": when all has come
    nacked: frozenset[int] = frozenset()
    pace_s: float = 0.0  # of the application, between two messages
    found: list[Message] = field(default_factory=list)

    def opened(self, client: Client) -> Any:
        prefetch = self.world.prefetch
        if self.kind == "stream":
            return client.stream_consumer(str(TOPIC), subscription="s", start="earliest", prefetch=prefetch)
        if self.kind == "queue":
            return client.queue_consumer(str(TOPIC), subscription="s", start="earliest", prefetch=prefetch)
        return client.checkpoint_consumer(str(TOPIC), start=Checkpoint.earliest(), prefetch=prefetch)

    async def take(self, consumer: Any, until: int) -> None:
        """Until so many have come in all."""
        while len(self.found) < until:
            message = await consumer.receive(timeout=RETRY_DELAYS)
            assert message is not None, f"only {sorted(int(one.value) for one in self.found)} came"
            assert len(consumer._queue) <= self.world.prefetch * 3 + self.world.batch
            if self.pace_s:
                await asyncio.sleep(self.pace_s)
            number = int(message.value)
            if number in self.nacked and message.redelivery_count == 0:
                await consumer.nack(message, delay=0.01)
                continue
            self.found.append(message)
            if self.acks == "each":
                await self.ack(consumer, message)

    async def ack(self, consumer: Any, message: Message) -> None:
        if self.kind == "stream":
            await consumer.ack_cumulative(message)
        elif self.kind == "queue":
            await consumer.ack(message)

    async def finish(self, consumer: Any) -> None:
        if self.acks == "late":
            for message in self.found:
                await self.ack(consumer, message)
        assert await consumer.receive(timeout=1.0) is None, "something came twice"

    def check(self) -> None:
        numbers = [int(message.value) for message in self.found]
        assert Counter(numbers) == Counter(range(self.world.published))
        if self.kind == "queue":
            return
        for key in KEYS:
            ordered = [int(message.value) for message in self.found if message.key == key]
            assert ordered == sorted(ordered), f"{key}: {ordered}"

    def check_broker(self) -> None:
        world = self.world
        assert not world.attached and not world.connections and not world.registrations and not world.watches
        if self.kind != "checkpoint":
            for store in world.stores.values():
                left = [index for index in range(len(store.entries)) if store.left("s", index)]
                assert not left, f"segment {store.segment_id}: entries {left} are not acknowledged"


def connected() -> AsyncResource[Client]:
    return anabranch.connect(URL, tls=TLS, connection=QUICK, clock=LoopClock(), chance=Zero())


def permits_agree(world: ConsumerWorld, consumer: Consumer) -> None:
    """At rest both sides count alike."""
    ours = sorted(
        segment_consumer.state._permits
        for segment_consumer in consumer._segment_consumers.values()
        if segment_consumer._connection is not None
    )
    assert ours == sorted(one.permits for one in world.attached)


async def play(story: Story) -> None:
    """Messages, a split, more messages; the application takes, acknowledges and closes."""
    world = story.world
    world.publish(FIRST)
    async with (
        connected() as client,
        story.opened(client) as consumer,
    ):
        await story.take(consumer, FIRST // 2)
        world.split()
        world.publish(SECOND)
        await story.take(consumer, FIRST + SECOND)
        await story.finish(consumer)
        permits_agree(world, consumer)
    story.check()
    story.check_broker()
    loop = asyncio.get_running_loop()
    assert isinstance(loop, WiredLoop)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert loop.timers() == []


def run(story: Story, trouble: str, moment: int) -> None:
    event = TROUBLES[trouble]
    story.world.events.setdefault(moment, []).append(lambda: event(story.world))
    if trouble == "cut twice":
        story.world.events.setdefault(moment + 4, []).append(story.world.cut)
    if trouble == "answers lost":  # a lost answer is noticed only when the connection ends
        story.world.events.setdefault(moment + 6, []).append(lambda: recovered(story.world))
    try:
        run_wired(story.world, play(story))
    except BaseException as error:
        error.add_note(f"{story.kind}, {trouble} at command {moment}, acks {story.acks}")
        raise


def recovered(world: ConsumerWorld) -> None:
    world.is_deaf_to_acks = False
    world.cut()


@pytest.mark.parametrize(
    ("kind", "is_ours"),
    [("stream", True), ("stream", False), ("queue", True), ("checkpoint", True), ("checkpoint", False)],
    ids=["stream-ours", "stream-M1", "queue", "checkpoint-ours", "checkpoint-M1"],
)
@pytest.mark.parametrize("trouble", TROUBLES)
@pytest.mark.parametrize(("prefetch", "batch", "step"), [(4, 3, 1), (1, 1, 2), (1000, 3, 3)])
def test_fault_at_every_command_keeps_delivery_guarantees(
    is_ours: bool, kind: str, trouble: str, prefetch: int, batch: int, step: int
) -> None:
    for moment in MOMENTS[::step]:
        run(Story(kind, ConsumerWorld(is_ours=is_ours, prefetch=prefetch, batch=batch)), trouble, moment)


@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_slow_application_sees_parents_before_children(trouble: str) -> None:
    """A controller that hands out both at once, and an application that gives everybody time to come back."""
    for moment in MOMENTS:
        run(Story("stream", ConsumerWorld(is_ours=False, prefetch=2, batch=1), pace_s=0.05), trouble, moment)


@pytest.mark.parametrize("trouble", TROUBLES)
@pytest.mark.parametrize("kind", ["queue", "checkpoint"])
def test_late_acks_count(kind: str, trouble: str) -> None:
    for moment in MOMENTS[::2]:
        run(Story(kind, ConsumerWorld(is_ours=False, prefetch=5, batch=2), acks="late"), trouble, moment)


@pytest.mark.parametrize("trouble", TROUBLES)
def test_redelivery_of_single_messages_of_batches(trouble: str) -> None:
    """Nacked ones come again, and only those, whatever happens meanwhile."""
    for moment in MOMENTS:
        nacked = frozenset(range(0, FIRST + SECOND, 3))
        run(Story("queue", ConsumerWorld(is_ours=True, prefetch=6, batch=3), nacked=nacked), trouble, moment)


@pytest.mark.parametrize("is_ours", [True, False], ids=["ours", "M1"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("taken", range(0, FIRST + SECOND + 1, 2))
def test_next_consumer_after_close_gets_exactly_the_rest(is_ours: bool, kind: str, taken: int) -> None:
    """Closing acknowledges nothing and gives back what waits; a checkpoint carries over in bytes."""
    world = ConsumerWorld(is_ours=is_ours, prefetch=7, batch=3)
    story = Story(kind, world)

    async def main() -> None:
        world.publish(FIRST)
        async with connected() as client:
            async with story.opened(client) as consumer:
                await story.take(consumer, min(taken, FIRST))
                world.split()
                world.publish(SECOND)
                await story.take(consumer, taken)
                start = consumer.checkpoint().to_bytes() if kind == "checkpoint" else b""
            if kind == "checkpoint":
                again: Any = client.checkpoint_consumer(
                    str(TOPIC), start=Checkpoint.from_bytes(start), prefetch=world.prefetch
                )
            else:
                again = story.opened(client)
            async with again as consumer:
                await story.take(consumer, FIRST + SECOND)
                await story.finish(consumer)
        story.check()
        story.check_broker()

    run_wired(world, main())


@pytest.mark.parametrize("prefetch", [1, 3])
def test_pending_dead_letters_count_as_prefetched(prefetch: int) -> None:
    """A channel that is detached meanwhile counts anew; the model checks what it is granted."""
    for moment in range(8, 40, 2):
        world = ConsumerWorld(is_ours=True, prefetch=prefetch, batch=1)

        async def main(world: ConsumerWorld = world) -> None:
            world.publish(6)
            policy = DeadLetter(max_redeliveries=0, topic=str(TOPIC))
            async with (
                connected() as client,
                client.queue_consumer(
                    str(TOPIC), subscription="s", start="earliest", prefetch=prefetch, dead_letter=policy
                ) as consumer,
            ):
                while (message := await consumer.receive(timeout=5.0)) is not None:
                    await consumer.nack(message, delay=0)
                permits_agree(world, consumer)
                assert [
                    segment_consumer.state._buffered for segment_consumer in consumer._segment_consumers.values()
                ] == [0]

        world.events.setdefault(moment, []).append(world.cut)
        try:
            run_wired(world, main())
        except BaseException as error:
            error.add_note(f"cut at command {moment}")
            raise
