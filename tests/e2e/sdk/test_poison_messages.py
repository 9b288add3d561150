"""A message kills every worker that gets it: it becomes a dead letter after the promised attempts; no other does."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter

import pytest

import anabranch
import anabranch.admin
from anabranch import Backoff, ConnectionPolicy
from tests.support.processes.broker_process import BrokerProcess

pytestmark = pytest.mark.slow

COUNT = 60
AT = 20  # how many messages come before the first one that kills
MAX_REDELIVERIES = 2
SECONDS = 60.0
QUICK = ConnectionPolicy(backoff=Backoff(initial=0.02, maximum=0.2))


@pytest.fixture(params=["persistent", "topic"])
async def jobs(request: pytest.FixtureRequest, private_broker: BrokerProcess) -> str:
    name = f"{request.param}://public/default/jobs"
    if request.param == "topic":
        async with anabranch.admin.connect(private_broker.http_url) as admin:
            await admin.scalable_topics.create(name)
    return name


async def publish(broker: BrokerProcess, topic: str, *, is_batched: bool) -> None:
    batching = anabranch.Batching() if is_batched else None
    async with (
        anabranch.connect(broker.service_url, connection=QUICK) as client,
        client.producer(topic, batching=batching) as producer,
    ):
        for number in range(COUNT):
            producer.send_nowait(b"poison" if number == AT else b"%d" % number)
        await producer.flush(timeout=SECONDS)


async def run_worker(broker: BrokerProcess, topic: str) -> tuple[int, list[tuple[int, int]]]:
    """Exit code, and what it acknowledged."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.support.processes.poisoned_worker_child"),
        *(broker.service_url, topic, "s", str(MAX_REDELIVERIES)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        out, _ = await asyncio.wait_for(process.communicate(b"end\n"), SECONDS)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    code = process.returncode
    assert code is not None
    done = [line.split()[1:] for line in out.decode().splitlines() if line.startswith("done")]
    return code, [(int(number), int(count)) for number, count in done]


@pytest.mark.parametrize("is_batched", [True, False], ids=["batched", "single"])
async def test_message_that_kills_its_workers_becomes_a_dead_letter(
    private_broker: BrokerProcess, jobs: str, is_batched: bool
) -> None:
    async with (
        anabranch.connect(private_broker.service_url, connection=QUICK) as client,
        client.queue_consumer(jobs, subscription="s", start="earliest"),
    ):
        pass  # creates the subscription
    await publish(private_broker, jobs, is_batched=is_batched)
    codes, done = [], Counter[int]()
    for _ in range(MAX_REDELIVERIES + 3):
        code, found = await run_worker(private_broker, jobs)
        codes.append(code)
        done.update(number for number, _ in found)
        assert {count for _, count in found} <= {0}, "only the message that the worker had is counted"
        if code == 0:
            break
    assert codes == [-9] * (MAX_REDELIVERIES + 1) + [0]
    assert set(done) == set(range(COUNT)) - {AT}
    assert max(done.values()) == 1, "acknowledged before the next message was handed out"
    letters = f"{jobs}-DLQ" if jobs.startswith("topic") else f"{jobs}-s-DLQ"
    async with (
        anabranch.connect(private_broker.service_url, connection=QUICK) as client,
        client.queue_consumer(letters, subscription="s", start="earliest") as dead,
    ):
        message = await dead.receive(timeout=SECONDS)
        assert message is not None and message.data == b"poison"
        assert await dead.receive(timeout=0.3) is None
