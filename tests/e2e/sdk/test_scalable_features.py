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
from typing import Any

import pytest

import anabranch
import anabranch.admin
from anabranch import Backoff, Chunking, Client, ConnectionPolicy
from anabranch.admin import Admin
from anabranch.client.errors import ClientError
from anabranch.client.messages.chunking import entries_of
from anabranch.client.messages.outgoing import EntryFormat, OutgoingMessage
from anabranch.protocol.commands import BaseCommand
from anabranch.protocol.entry import Bytes
from anabranch.schema import Auto, Avro
from tests.support.processes.broker_process import BrokerProcess

RETRY_DELAYS = 30.0
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


async def test_chunked_messages_keep_their_order_through_splits(sdk: Client, admin: Admin, scalable: str) -> None:
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
                message = await consumer.receive(timeout=RETRY_DELAYS)
                assert message is not None
                number, _, rest = message.data.partition(b" ")
                assert rest == (large if int(number) % 40 == 7 else b"")
                assert isinstance(message.key, str)
                seen.setdefault(message.key, []).append(int(number))
                await consumer.ack_cumulative(message)
        assert seen == sent
        assert len(await active(admin, scalable)) == 4


class Half:
    """Sends the first chunks of a message to segment 0, and never the rest: its producer died."""

    def __init__(self, chunks: int) -> None:
        self._chunks = chunks
        self._stored: asyncio.Queue[int] = asyncio.Queue()

    def on_command(self, kind: int, body: Any, payload: Bytes) -> None:
        self._stored.put_nowait(kind)

    def on_detached(self, error: ClientError) -> None:
        raise AssertionError(error.reason)

    async def send(self, client: Client, topic: str) -> None:
        segment = f"segment://{topic.removeprefix('topic://')}/0000-ffff-0"
        connection = await client._pool.serving(segment)
        number = connection.new_id()
        connection.listen_producer(number, self)
        fields = {"topic": segment, "producer_id": number, "producer_name": "half", "user_provided_producer_name": True}
        await connection.ask(BaseCommand.PRODUCER, RETRY_DELAYS, **fields)
        chunks = entries_of(OutgoingMessage(0, os.urandom(5000), "k"), EntryFormat("half", chunk_bytes=1000), 2000)
        for entry in chunks[: self._chunks]:
            connection.write(*entry.frame(number))
            assert await asyncio.wait_for(self._stored.get(), RETRY_DELAYS) == BaseCommand.SEND_RECEIPT
        await connection.ask(BaseCommand.CLOSE_PRODUCER, RETRY_DELAYS, producer_id=number)
        connection.unlisten(number)


@pytest.mark.parametrize("is_last", [True, False], ids=["at the end", "before others"])
async def test_incomplete_message_in_sealed_segment_blocks_nothing(
    sdk: Client, admin: Admin, scalable: str, is_last: bool
) -> None:
    """Readers go on with the children at once, long before half messages are given up for their age."""
    async with (
        sdk.stream_consumer(scalable, subscription="s", start="earliest") as stream,
        sdk.checkpoint_consumer(scalable, start=anabranch.Checkpoint.earliest()) as reader,
        sdk.producer(scalable) as producer,
    ):
        await producer.send(b"before", key="k", timeout=RETRY_DELAYS)
        await Half(2).send(sdk, scalable)
        sent = [b"before"]
        if not is_last:
            await producer.send(b"behind", key="k", timeout=RETRY_DELAYS)
            sent.append(b"behind")
        await admin.scalable_topics.split(scalable, 0)
        await producer.send(b"after", key="k", timeout=RETRY_DELAYS)
        for value in (*sent, b"after"):
            message = await stream.receive(timeout=RETRY_DELAYS)
            assert message is not None and message.value == value
            await stream.ack_cumulative(message)
            message = await reader.receive(timeout=RETRY_DELAYS)
            assert message is not None and message.value == value


async def test_checkpoint_between_chunks_keeps_the_message_whole(sdk: Client, admin: Admin, scalable: str) -> None:
    """Two producers: what one of them sends lies between the chunks of the other's. Restored readers get the rest."""
    value = os.urandom(LARGE)
    small = asyncio.Event()

    async def send_large() -> None:
        async with sdk.producer(scalable, chunking=Chunking(chunk_bytes=1 << 18)) as producer:
            sending = producer.send_nowait(value, key="large")
            small.set()
            await sending

    async with sdk.producer(scalable, batching=None) as other, asyncio.TaskGroup() as tasks:
        tasks.create_task(send_large())
        await small.wait()
        for n in range(20):
            await other.send(b"%d" % n, key="small", timeout=RETRY_DELAYS)
    wanted = {b"%d" % n for n in range(20)} | {value}
    start, seen = anabranch.Checkpoint.earliest(), list[bytes]()
    while len(seen) < 21:
        async with sdk.checkpoint_consumer(scalable, start=start) as reader:
            message = await reader.receive(timeout=RETRY_DELAYS)
            assert message is not None
            seen.append(message.value)
            start = anabranch.Checkpoint.from_bytes(reader.checkpoint().to_bytes())
    assert len(set(seen)) == 21 and set(seen) == wanted, "every message once, over twenty-one restarts"
    assert [one for one in seen if one != value] == [b"%d" % n for n in range(20)]


async def test_one_schema_history_for_all_segments(sdk: Client, admin: Admin, scalable: str) -> None:
    """Scenario 93: children have the parent's versions; readers of every kind decode old and new."""
    async with sdk.producer(scalable, schema=Avro(Order), compression="zstd") as producer:
        for n in range(50):
            await producer.send(Order(f"c{n % 7}", n), key=f"c{n % 7}", timeout=RETRY_DELAYS)
        await admin.scalable_topics.split(scalable, 0)
        for n in range(50, 100):
            await producer.send(Order(f"c{n % 7}", n), key=f"c{n % 7}", timeout=RETRY_DELAYS)
    assert [one["version"] for one in await admin.schemas.versions(scalable)] == [0]
    async with (
        sdk.queue_consumer(scalable, subscription="q", start="earliest", schema=Avro(Order)) as queue,
        sdk.checkpoint_consumer(scalable, start=anabranch.Checkpoint.earliest(), schema=Auto()) as reader,
    ):
        numbers = set()
        for _ in range(100):
            message = await queue.receive(timeout=RETRY_DELAYS)
            assert message is not None
            numbers.add(message.value.number)
            await queue.ack(message)
        assert numbers == set(range(100))
        per_customer: dict[str, list[int]] = {}
        for _ in range(100):
            message = await reader.receive(timeout=RETRY_DELAYS)
            assert message is not None
            per_customer.setdefault(message.value["customer"], []).append(message.value["number"])
        assert all(numbers == sorted(numbers) for numbers in per_customer.values())


def anabranch_command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "anabranch", *arguments]


async def test_consume_prints_splits_and_merges(
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
        async with asyncio.timeout(RETRY_DELAYS), sdk.producer(scalable) as producer:
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


async def test_consume_continues_from_a_checkpoint(
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
            await producer.send(b"%d" % n, key="k", timeout=RETRY_DELAYS)
        assert await consumed(7) == [str(n) for n in range(7)]
        await admin.scalable_topics.split(scalable, 0)
        for n in range(10, 15):
            await producer.send(b"%d" % n, key="k", timeout=RETRY_DELAYS)
    assert await consumed(8) == [str(n) for n in range(7, 15)]
