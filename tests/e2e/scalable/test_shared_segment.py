"""Eight processes read one segment by entry buckets. One is killed, one is stopped for a while, one closes: nothing is
lost, and every key is received in order over all processes."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

import anabranch
import anabranch.admin
from tests.support.processes.broker_process import BrokerProcess

pytestmark = pytest.mark.slow

TOPIC = "topic://public/default/shared"
SECONDS = 60.0
READERS = 8
KEYS = 64


class Reader:
    """One consumer process, and what it has received: time, key and number."""

    def __init__(self, process: asyncio.subprocess.Process, arrived: asyncio.Event) -> None:
        self.process, self._arrived = process, arrived
        self.received: list[tuple[int, str, int]] = []
        self.task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            if line.endswith(b"\n"):  # a process that is killed may write half a line
                at, key, number = line.decode().split()
                self.received.append((int(at), key, int(number)))
                self._arrived.set()

    async def kill(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()
        await self.task


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[BrokerProcess]:
    settings = {
        "ANABRANCH_SCALABLE_TOPICS_ENTRY_BUCKET_BUDGET": "16",
        "ANABRANCH_SCALABLE_TOPICS_AUTO_SCALE_ENABLED": "false",
        "ANABRANCH_SCALABLE_TOPICS_SESSION_GRACE_SECONDS": "0.5",
    }
    process = BrokerProcess(tmp_path / "data", environment=settings)
    try:
        await asyncio.to_thread(process.start)
        async with anabranch.admin.connect(process.http_url) as admin:
            await admin.scalable_topics.create(TOPIC)
        yield process
    finally:
        await asyncio.to_thread(process.close)


async def test_killed_and_stopped_readers_of_a_shared_segment(broker: BrokerProcess) -> None:
    arrived, sent = asyncio.Event(), Counter[str]()
    readers: list[Reader] = []

    async def started(name: str) -> Reader:
        module = "tests.support.processes.sharing_consumer_child"
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", module, broker.service_url, TOPIC, "s", name, stdout=asyncio.subprocess.PIPE
        )
        readers.append(Reader(process, arrived))
        return readers[-1]

    def seen() -> set[tuple[str, int]]:
        return {(key, number) for reader in readers for _, key, number in reader.received}

    async def until_seen(count: int) -> None:
        async with asyncio.timeout(SECONDS):
            while len(seen()) < count:
                arrived.clear()
                await arrived.wait()

    async with AsyncExitStack() as exits:
        client = await exits.enter_async_context(anabranch.connect(broker.service_url))
        producer = await exits.enter_async_context(client.producer(TOPIC))

        async def publish(rounds: int) -> int:
            for _ in range(rounds):
                for key in range(KEYS):
                    producer.send_nowait(f"key-{key} {sent[f'key-{key}']}".encode(), key=f"key-{key}")
                    sent[f"key-{key}"] += 1
                await producer.flush()
            return sum(sent.values())

        try:
            for number in range(READERS):
                await started(f"c{number}")
            await until_seen(await publish(20))
            await publish(20)
            await readers[0].kill()
            readers[1].process.send_signal(signal.SIGSTOP)  # its connection stays
            await publish(20)
            readers[1].process.send_signal(signal.SIGCONT)
            readers[2].process.terminate()
            await started("late")
            await until_seen(await publish(20))
            async with client.checkpoint_consumer(TOPIC) as watcher:
                assert len(watcher.layouts[TOPIC].segments) == 1, "all of them read one segment"
        finally:
            await asyncio.gather(*(reader.kill() for reader in readers))
    check(readers, sent)


def check(readers: list[Reader], sent: Counter[str]) -> None:
    """Complete; per key, first deliveries in ascending order by time over all processes."""
    first: dict[str, list[int]] = defaultdict(list)
    shares = Counter[int]()
    deliveries = ((at, key, number, index) for index, one in enumerate(readers) for at, key, number in one.received)
    for _, key, number, reader in sorted(deliveries):
        if number not in first[key]:
            first[key].append(number)
            shares[reader] += 1
    assert first == {key: list(range(count)) for key, count in sent.items()}
    assert all(shares[index] for index in range(READERS)), f"some process received nothing: {shares}"
