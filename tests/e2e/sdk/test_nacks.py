"""Queue workers in processes that nack single messages of batches, while a worker or the broker is killed."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

import anabranch
import anabranch.admin
from anabranch import Backoff, Client, ConnectionPolicy
from tests.support.processes.broker_process import BrokerProcess
from tests.support.processes.queue_worker_child import FAILING

pytestmark = pytest.mark.slow

COUNT = 2_000
PATIENCE = 60.0
QUIET = 1.0
QUICK = ConnectionPolicy(backoff=Backoff(initial=0.02, maximum=0.2))


class Worker:
    """One worker process, and what it said."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.received: list[tuple[int, int]] = []
        self.done: list[int] = []
        self.is_ready = asyncio.Event()
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            match line.decode().split():
                case ["ready"]:
                    self.is_ready.set()
                case ["received", number, count]:
                    self.received.append((int(number), int(count)))
                case ["done", number]:
                    self.done.append(int(number))

    async def kill9(self) -> None:
        self.process.kill()
        await self.process.wait()
        await self._reading

    async def finish(self) -> None:
        """Let it send its acknowledgements and close."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"end\n")
        assert await asyncio.wait_for(self.process.wait(), PATIENCE) == 0
        await self._reading


@asynccontextmanager
async def started(url: str, topic: str) -> AsyncIterator[Worker]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.support.processes.queue_worker_child", url, topic, "s",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    worker = Worker(process)
    try:
        await asyncio.wait_for(worker.is_ready.wait(), PATIENCE)
        yield worker
    finally:
        if process.returncode is None:
            await worker.kill9()


async def wait_until(holds: Callable[[], bool], what: Callable[[], object]) -> None:
    deadline = asyncio.get_running_loop().time() + PATIENCE
    while not holds():
        assert asyncio.get_running_loop().time() < deadline, what()
        await asyncio.sleep(0.02)  # a poll of other processes, bounded by the deadline


async def publish(client: Client, topic: str) -> None:
    async with client.producer(topic) as producer:
        for number in range(COUNT):
            producer.send_nowait(b"%d" % number, key=f"k{number}")
        await producer.flush(timeout=PATIENCE)


def done_by(workers: list[Worker]) -> Counter[int]:
    return Counter(number for worker in workers for number in worker.done)


async def all_done(workers: list[Worker]) -> None:
    await wait_until(
        lambda: len(done_by(workers)) == COUNT, lambda: f"missing: {set(range(COUNT)) - set(done_by(workers))}"
    )


async def assert_nothing_left(client: Client, topic: str) -> None:
    async with client.queue_consumer(topic, subscription="s") as consumer:
        assert await consumer.receive(timeout=QUIET) is None


@pytest.fixture(params=["persistent", "topic"])
async def jobs(request: pytest.FixtureRequest, private_broker: BrokerProcess) -> str:
    name = f"{request.param}://public/default/jobs"
    if request.param == "topic":
        async with anabranch.admin.connect(private_broker.http_url) as admin:
            await admin.scalable_topics.create(name, segments=2)
    return name


async def test_only_messages_of_a_killed_worker_are_processed_twice(private_broker: BrokerProcess, jobs: str) -> None:
    url = private_broker.service_url
    async with anabranch.connect(url, connection=QUICK) as client, AsyncExitStack() as stack:
        workers = [await stack.enter_async_context(started(url, jobs)) for _ in range(4)]
        await publish(client, jobs)
        victim = workers[0]
        await wait_until(lambda: len(victim.done) > COUNT // 10, lambda: len(victim.done))
        await victim.kill9()
        await all_done(workers)
        for worker in workers[1:]:
            await worker.finish()
        await assert_nothing_left(client, jobs)
    twice = {number for number, times in done_by(workers).items() if times > 1}
    assert twice <= set(victim.done)
    tries = Counter(number for worker in workers[1:] for number, _ in worker.received)
    held = {number for number, _ in victim.received}
    failing = set(range(0, COUNT, FAILING))
    assert {number for number, times in tries.items() if times > 1} <= failing | held
    counts = {pair for worker in workers for pair in worker.received}
    assert counts <= {(number, 0) for number in range(COUNT)} | {(number, 1) for number in failing}
    assert {number for number, count in counts if count} == failing


async def test_nacks_and_acks_survive_a_killed_broker(private_broker: BrokerProcess, jobs: str) -> None:
    url = private_broker.service_url
    async with AsyncExitStack() as stack:
        workers = [await stack.enter_async_context(started(url, jobs)) for _ in range(2)]
        async with anabranch.connect(url, connection=QUICK) as client:
            await publish(client, jobs)
            await wait_until(lambda: len(done_by(workers)) > COUNT // 10, lambda: done_by(workers))
            private_broker.kill9()
            await asyncio.to_thread(private_broker.start)
            await all_done(workers)
            for worker in workers:
                await worker.finish()
            await assert_nothing_left(client, jobs)
    assert set(done_by(workers)) == set(range(COUNT))
