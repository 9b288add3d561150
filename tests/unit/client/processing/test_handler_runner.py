"""`consumer.run` of the real SDK on a model of the broker, in simulated time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine
from typing import Any

import pytest

from anabranch import Backoff, Message, Retry
from anabranch.client.client import Client
from anabranch.client.errors import BadOption, HandlerFailed, Unfinished
from tests.support.models.broker_model import KEYS, TOPIC, ConsumerWorld, run_wired
from tests.unit.client.consumer.test_consumers import connected

QUICK = Backoff(initial=0.01, maximum=0.1)


class Work:
    """A handler that takes time, and checks what runs together."""

    def __init__(self, *, seconds: float = 0.01) -> None:
        self.seconds = seconds
        self.done: list[int] = []
        self.started: list[int] = []
        self.running: dict[int, str] = {}
        self.most = 0
        self.failing: dict[int, int] = {}  # how often each still fails
        self.checks_keys = True
        self.changed = asyncio.Event()

    async def __call__(self, message: Message) -> None:
        number, key = int(message.value), str(message.key)
        assert not self.checks_keys or key not in self.running.values(), f"{key} is processed twice at once"
        self.started.append(number)
        self.changed.set()
        self.running[number] = key
        self.most = max(self.most, len(self.running))
        try:
            # Later numbers are faster, so that order is not a matter of luck.
            await asyncio.sleep(self.seconds * (1 + 3 / (1 + number)))
            if self.failing.get(number):
                self.failing[number] -= 1
                raise ValueError(f"{number} fails")
        finally:
            del self.running[number]
        self.done.append(number)
        self.changed.set()

    async def wait_done(self, count: int) -> None:
        await self._wait(self.done, count)

    async def wait_started(self, count: int) -> None:
        await self._wait(self.started, count)

    async def _wait(self, numbers: list[int], count: int) -> None:
        async with asyncio.timeout(300.0):  # simulated
            while len(numbers) < count:
                self.changed.clear()
                await self.changed.wait()

    def check_keys(self) -> None:
        for key in KEYS:
            mine = [number for number in self.done if KEYS[number % len(KEYS)] == key]
            assert mine == sorted(mine), f"{key}: {mine}"


def opened(client: Client, kind: str, world: ConsumerWorld) -> Any:
    open_one = client.stream_consumer if kind == "stream" else client.queue_consumer
    return open_one(str(TOPIC), subscription="s", start="earliest", prefetch=world.prefetch)


def unacknowledged(world: ConsumerWorld) -> list[int]:
    found: list[int] = []
    for store in world.stores.values():
        for index, entry in enumerate(store.entries):
            left = store.left("s", index)
            found += [number for bit, number in enumerate(entry.numbers) if left >> bit & 1]
    return sorted(found)


async def cancelled(running: asyncio.Task[None]) -> None:
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


def play(world: ConsumerWorld, main: Coroutine[Any, Any, None]) -> None:
    run_wired(world, main)
    assert not world.mishaps


@pytest.mark.parametrize("kind", ["stream", "queue"])
@pytest.mark.parametrize("moment", [None, *range(8, 40, 3)])
def test_everything_is_processed_and_acknowledged_through_a_split_and_a_cut(kind: str, moment: int | None) -> None:
    world = ConsumerWorld(is_ours=True, prefetch=1000, batch=3)
    if moment is not None:
        world.events.setdefault(moment, []).append(world.cut)

    async def main() -> None:
        work = Work()
        work.checks_keys = kind == "stream"
        world.publish(20)
        async with connected() as client, opened(client, kind, world) as consumer:
            running = asyncio.create_task(consumer.run(work, concurrency=4))
            await work.wait_done(10)
            world.split()
            world.publish(15)
            await work.wait_done(35)
            assert work.most == 4
            await asyncio.sleep(1.0)  # a connection that was cut is there again, and has sent the acks
            await cancelled(running)
        assert Counter(work.done) == Counter(range(35))
        if kind == "stream":
            work.check_keys()
        assert unacknowledged(world) == []

    play(world, main())


@pytest.mark.parametrize("kind", ["stream", "queue"])
def test_cancelled_run_lets_running_handlers_finish_and_acknowledges_them(kind: str) -> None:
    world = ConsumerWorld(is_ours=True, prefetch=1000, batch=3)

    async def main() -> None:
        work = Work(seconds=1.0)
        work.checks_keys = kind == "stream"
        world.publish(20)
        async with connected() as client, opened(client, kind, world) as consumer:
            running = asyncio.create_task(consumer.run(work, concurrency=3))
            await work.wait_started(3)
            await cancelled(running)
            assert sorted(work.done) == [0, 1, 2]
            assert sorted(work.started) == [0, 1, 2]
            if kind == "stream":
                with pytest.raises(Unfinished):
                    await consumer.receive(timeout=0)
            else:
                assert await consumer.receive(timeout=1) is not None
        assert unacknowledged(world) == list(range(3, 20))

    play(world, main())


@pytest.mark.parametrize("kind", ["stream", "queue"])
def test_handlers_are_cancelled_after_the_drain_timeout(kind: str) -> None:
    world = ConsumerWorld(is_ours=True, prefetch=1000, batch=1)

    async def main() -> None:
        work = Work(seconds=1000.0)
        world.publish(2)
        async with connected() as client, opened(client, kind, world) as consumer:
            running = asyncio.create_task(consumer.run(work, concurrency=2, drain_timeout=3.0))
            await work.wait_started(2)
            before = asyncio.get_running_loop().time()
            await cancelled(running)
            assert 3.0 <= asyncio.get_running_loop().time() - before < 4.0
        assert work.running == {}
        assert work.done == []
        assert unacknowledged(world) == [0, 1]

    play(world, main())


def test_handler_that_ignores_its_cancellation_does_not_hang_the_run() -> None:
    world = ConsumerWorld(is_ours=True, prefetch=1000, batch=1)

    async def main() -> None:
        is_over = asyncio.Event()
        is_started = asyncio.Event()

        async def stubborn(message: Message) -> None:
            is_started.set()
            while not is_over.is_set():
                try:
                    await is_over.wait()
                except asyncio.CancelledError:
                    continue

        world.publish(1)
        async with connected() as client, opened(client, "queue", world) as consumer:
            running = asyncio.create_task(consumer.run(stubborn, drain_timeout=1.0))
            await is_started.wait()
            before = asyncio.get_running_loop().time()
            await cancelled(running)
            assert asyncio.get_running_loop().time() - before < 10.0
            is_over.set()

    play(world, main())


@pytest.mark.parametrize("kind", ["stream", "queue"])
def test_close_lets_running_handlers_finish_and_run_returns(kind: str) -> None:
    world = ConsumerWorld(is_ours=True, prefetch=1000, batch=3)

    async def main() -> None:
        work = Work(seconds=0.5)
        work.checks_keys = kind == "stream"
        world.publish(20)
        async with connected() as client:
            consumer = await opened(client, kind, world)
            running = asyncio.create_task(consumer.run(work, concurrency=3))
            await work.wait_started(3)
            await consumer.close()
            await running
            assert sorted(work.done) == [0, 1, 2]
        assert unacknowledged(world) == list(range(3, 20))

    play(world, main())


def test_handler_may_close_its_consumer() -> None:
    world = ConsumerWorld(is_ours=True, prefetch=1000, batch=1)

    async def main() -> None:
        world.publish(1)
        async with connected() as client:
            consumer = await opened(client, "queue", world)

            async def handler(message: Message) -> None:
                await consumer.close()

            await consumer.run(handler)
        assert unacknowledged(world) == [0]

    play(world, main())


def test_queue_message_whose_handler_raises_comes_again_after_the_retry_delay() -> None:
    world = ConsumerWorld(is_ours=True, prefetch=1000, batch=1)

    async def main() -> None:
        work = Work()
        work.failing = {2: 2}
        world.publish(5)
        async with connected() as client, opened(client, "queue", world) as consumer:
            before = asyncio.get_running_loop().time()
            running = asyncio.create_task(consumer.run(work, retry=Backoff(initial=2.0, maximum=9.0, jitter=0.0)))
            await work.wait_done(5)
            assert 6.0 <= asyncio.get_running_loop().time() - before < 7.0, "2 s, then 4 s"
            await cancelled(running)
        assert Counter(work.started) == Counter({0: 1, 1: 1, 2: 3, 3: 1, 4: 1})
        assert unacknowledged(world) == []

    play(world, main())


def test_stream_message_whose_handler_raises_is_retried_before_its_key_goes_on() -> None:
    world = ConsumerWorld(is_ours=True, prefetch=1000, batch=4)

    async def main() -> None:
        work = Work()
        work.failing = {1: 2, 6: 1}
        world.publish(20)
        async with connected() as client, opened(client, "stream", world) as consumer:
            running = asyncio.create_task(consumer.run(work, retry=Retry(attempts=3, backoff=QUICK)))
            await work.wait_done(20)
            await cancelled(running)
        work.check_keys()
        assert Counter(work.started)[1] == 3
        assert unacknowledged(world) == []

    play(world, main())


def test_stream_run_raises_after_the_last_attempt_and_the_message_stays() -> None:
    world = ConsumerWorld(is_ours=True, prefetch=1000, batch=4)

    async def main() -> None:
        work = Work()
        work.failing = {7: 99}
        world.publish(12)
        async with connected() as client, opened(client, "stream", world) as consumer:
            with pytest.raises(HandlerFailed, match="ValueError") as failure:
                await consumer.run(work, concurrency=2, retry=Retry(attempts=2, backoff=QUICK))
            assert isinstance(failure.value.__cause__, ValueError)
            assert not failure.value.retryable
            with pytest.raises(Unfinished):
                await consumer.run(work)
        assert Counter(work.started)[7] == 2
        assert unacknowledged(world)[0] == 7, "everything before it is acknowledged, nothing after it"
        async with connected() as client, opened(client, "stream", world) as consumer:
            again = Work()
            running = asyncio.create_task(consumer.run(again))
            await again.wait_done(5)
            await cancelled(running)
        assert sorted(again.done) == [7, 8, 9, 10, 11]
        assert unacknowledged(world) == []

    play(world, main())


def test_stream_run_skips_after_the_last_attempt_if_asked() -> None:
    world = ConsumerWorld(is_ours=True, prefetch=1000, batch=4)

    async def main() -> None:
        work = Work()
        work.failing = {7: 99}
        world.publish(12)
        async with connected() as client, opened(client, "stream", world) as consumer:
            running = asyncio.create_task(consumer.run(work, retry=Retry(attempts=2, backoff=QUICK, then="skip")))
            await work.wait_done(11)
            await cancelled(running)
        assert sorted(work.done) == [number for number in range(12) if number != 7]
        assert unacknowledged(world) == []

    play(world, main())


def test_sequential_run_can_be_cancelled_and_continued() -> None:
    """With one handler nothing is received ahead, so nothing is left unprocessed."""
    world = ConsumerWorld(is_ours=True, prefetch=1000, batch=4)

    async def main() -> None:
        work = Work()
        world.publish(12)
        async with connected() as client, opened(client, "stream", world) as consumer:
            for _ in range(3):
                running = asyncio.create_task(consumer.run(work, concurrency=1))
                await work.wait_done(min(len(work.done) + 2, 12))
                await cancelled(running)
            while len(work.done) < 12:
                message = await consumer.receive(timeout=5)
                await work(message)
                await consumer.ack_cumulative(message)
        assert work.done == list(range(12))
        assert unacknowledged(world) == []

    play(world, main())


def test_plain_function_is_refused_by_the_asyncio_form() -> None:
    world = ConsumerWorld(is_ours=True, prefetch=1000, batch=4)

    async def main() -> None:
        world.publish(1)
        async with connected() as client, opened(client, "queue", world) as consumer:
            with pytest.raises(BadOption, match="async function"):
                await consumer.run(lambda message: None)
            with pytest.raises(BadOption, match="concurrency"):
                await consumer.run(Work(), concurrency=0)
        assert unacknowledged(world) == [0]

    play(world, main())


def test_second_run_at_the_same_time_is_refused() -> None:
    world = ConsumerWorld(is_ours=True, prefetch=1000, batch=4)

    async def main() -> None:
        async with connected() as client, opened(client, "queue", world) as consumer:
            running = asyncio.create_task(consumer.run(Work()))
            await asyncio.sleep(0.1)
            with pytest.raises(BadOption, match="already"):
                await consumer.run(Work())
            await cancelled(running)

    play(world, main())


def test_retry_policy_is_checked() -> None:
    with pytest.raises(BadOption, match="attempts"):
        Retry(attempts=0)
    with pytest.raises(BadOption, match="then"):
        Retry(then="drop")  # type: ignore[arg-type]  # that is the point
