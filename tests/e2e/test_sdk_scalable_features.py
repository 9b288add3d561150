"""Features of the SDK on scalable topics while they are split and merged: chunks, schemas, the command line."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import anabranch
import anabranch.admin
from anabranch import Backoff, Chunking, Client, ConnectionPolicy
from anabranch.admin import Admin
from anabranch.schema import Auto, Avro
from tests.broker_process import BrokerProcess

PATIENCE = 30.0
QUICK = ConnectionPolicy(backoff=Backoff(initial=0.02, maximum=0.2))
LARGE = 5 * 1024 * 1024 + 1000


@dataclass
class Order:
    customer: str
    number: int


@pytest.fixture
async def sdk(broker: BrokerProcess) -> AsyncIterator[Client]:
    async with anabranch.connect(broker.service_url, connection=QUICK) as client:
        yield client


@pytest.fixture
async def admin(broker: BrokerProcess) -> AsyncIterator[Admin]:
    async with anabranch.admin.connect(broker.http_url) as client:
        yield client


@pytest.fixture
async def scalable(admin: Admin) -> str:
    topic = f"topic://public/default/f-{uuid.uuid4().hex[:12]}"
    await admin.scalable_topics.create(topic)
    return topic


async def active(admin: Admin, topic: str) -> list[int]:
    found = await admin.scalable_topics.metadata(topic)
    return sorted(int(key) for key, one in found["segments"].items() if one["state"] == "ACTIVE")


async def test_chunks_keep_their_place_through_splits(sdk: Client, admin: Admin, scalable: str) -> None:
    """Scenario 25: small and large messages of a few keys, pipelined, while every segment is split twice."""
    async with (
        sdk.stream_consumer(scalable, subscription="s", start="earliest") as consumer,
        sdk.producer(scalable, chunking=Chunking(chunk_bytes=1 << 20)) as producer,
    ):
        sent: dict[str, list[int]] = {}
        large = os.urandom(LARGE)

        async def produce() -> None:
            stored = []
            for n in range(400):
                key = f"k{n % 5}"
                sent.setdefault(key, []).append(n)
                body = b"%d " % n + (large if n % 40 == 7 else b"")
                stored.append(producer.send_nowait(body, key=key))
                if n % 10 == 9:
                    await asyncio.wait(stored[-20:-10] or stored[:1])  # twenty of them in flight
            await asyncio.gather(*stored)

        async def split() -> None:
            for _ in range(2):
                for segment in await active(admin, scalable):
                    await asyncio.sleep(0.05)  # somewhere in the middle of it
                    await admin.scalable_topics.split(scalable, segment)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(produce())
            tasks.create_task(split())
            seen: dict[str, list[int]] = {}
            for _ in range(400):
                message = await consumer.receive(timeout=PATIENCE)
                assert message is not None
                number, _, rest = message.data.partition(b" ")
                assert rest == (large if int(number) % 40 == 7 else b"")
                assert isinstance(message.key, str)
                seen.setdefault(message.key, []).append(int(number))
                await consumer.ack_cumulative(message)
        assert seen == sent
        assert len(await active(admin, scalable)) == 4


async def test_one_schema_history_for_all_segments(sdk: Client, admin: Admin, scalable: str) -> None:
    """Scenario 93: children have the parent's versions; readers of every kind decode old and new."""
    async with sdk.producer(scalable, schema=Avro(Order), compression="zstd") as producer:
        for n in range(50):
            await producer.send(Order(f"c{n % 7}", n), key=f"c{n % 7}", timeout=PATIENCE)
        await admin.scalable_topics.split(scalable, 0)
        for n in range(50, 100):
            await producer.send(Order(f"c{n % 7}", n), key=f"c{n % 7}", timeout=PATIENCE)
    assert [one["version"] for one in await admin.schemas.versions(scalable)] == [0]
    async with (
        sdk.queue_consumer(scalable, subscription="q", start="earliest", schema=Avro(Order)) as queue,
        sdk.checkpoint_consumer(scalable, start=anabranch.Checkpoint.earliest(), schema=Auto()) as reader,
    ):
        numbers = set()
        for _ in range(100):
            message = await queue.receive(timeout=PATIENCE)
            assert message is not None
            numbers.add(message.value.number)
            await queue.ack(message)
        assert numbers == set(range(100))
        per_customer: dict[str, list[int]] = {}
        for _ in range(100):
            message = await reader.receive(timeout=PATIENCE)
            assert message is not None
            per_customer.setdefault(message.value["customer"], []).append(message.value["number"])
        assert all(numbers == sorted(numbers) for numbers in per_customer.values())


def anabranch_command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "anabranch", *arguments]


async def test_consume_tells_of_splits_and_merges(
    broker: BrokerProcess, sdk: Client, admin: Admin, scalable: str
) -> None:
    arguments = ("consume", scalable, "-s", "watch", "--from", "earliest", "--count", "2", "--json")
    consuming = await asyncio.create_subprocess_exec(
        *anabranch_command(*arguments, "--url", broker.service_url),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert consuming.stdout is not None and consuming.stderr is not None
    try:
        async with asyncio.timeout(PATIENCE), sdk.producer(scalable) as producer:
            await producer.send(b"before", key="k")
            first = json.loads(await consuming.stdout.readline())
            await admin.scalable_topics.split(scalable, 0)
            event = json.loads(await consuming.stderr.readline())
            assert event == {"event": "split", "topic": scalable, "parents": [0], "children": [1, 2]}
            await admin.scalable_topics.merge(scalable, [1, 2])
            event = json.loads(await consuming.stderr.readline())
            assert event == {"event": "merge", "topic": scalable, "parents": [1, 2], "children": [3]}
            await producer.send(b"after", key="k")
            second = json.loads(await consuming.stdout.readline())
            assert await consuming.wait() == 0
    finally:
        if consuming.returncode is None:
            consuming.kill()
            await consuming.wait()
    assert [(one["payload"], one["segment"], one["topic"]) for one in (first, second)] == [
        ("before", 0, scalable),
        ("after", 3, scalable),
    ]


async def test_consume_goes_on_from_a_checkpoint(
    broker: BrokerProcess, sdk: Client, admin: Admin, scalable: str, tmp_path: Path
) -> None:
    """Across a split, from the file that the last run wrote."""
    file = tmp_path / "checkpoint"

    async def consumed(count: int) -> list[str]:
        arguments = ("consume", scalable, "--type", "checkpoint", "--from", "earliest", "--checkpoint", str(file))
        wanted = ("--count", str(count), "--timeout", "20s", "--json", "--url", broker.service_url)
        ran = await asyncio.to_thread(
            subprocess.run, anabranch_command(*arguments, *wanted), capture_output=True, text=True, timeout=60
        )
        assert ran.returncode == 0, ran.stderr
        return [json.loads(line)["payload"] for line in ran.stdout.splitlines()]

    async with sdk.producer(scalable) as producer:
        for n in range(10):
            await producer.send(b"%d" % n, key="k", timeout=PATIENCE)
        assert await consumed(7) == [str(n) for n in range(7)]
        await admin.scalable_topics.split(scalable, 0)
        for n in range(10, 15):
            await producer.send(b"%d" % n, key="k", timeout=PATIENCE)
    assert await consumed(8) == [str(n) for n in range(7, 15)]
