"""A consumer, or the broker that owns and leads everything, is killed while children of an unacknowledged segment are
read: the rest of the parent comes again first, and nothing is lost."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import anabranch
import anabranch.admin
from anabranch import Backoff, Client, ConnectionPolicy, Message, StreamConsumer
from tests.support.processes.broker_process import BrokerProcess

pytestmark = pytest.mark.slow

TOPIC = "topic://public/default/orders"
SECONDS = 60.0
QUICK = ConnectionPolicy(backoff=Backoff(initial=0.02, maximum=0.2))


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[BrokerProcess]:
    process = BrokerProcess(tmp_path / "data")
    try:
        await asyncio.to_thread(process.start)
        async with anabranch.admin.connect(process.http_url) as admin:
            await admin.scalable_topics.create(TOPIC)
        yield process
    finally:
        await asyncio.to_thread(process.close)


async def publish(client: Client, first: int, count: int) -> list[str]:
    texts = [str(number) for number in range(first, first + count)]
    async with client.producer(TOPIC) as producer:
        for text in texts:
            await producer.send(text.encode(), key=f"key-{int(text) % 5}")
    return texts


async def split(broker: BrokerProcess, segment_id: int) -> None:
    async with anabranch.admin.connect(broker.http_url) as admin:
        await admin.scalable_topics.split(TOPIC, segment_id)


async def received(consumer: StreamConsumer, count: int) -> list[Message]:
    found: list[Message] = []
    while len(found) < count:
        message = await consumer.receive(timeout=SECONDS)
        assert message is not None, f"only {len(found)} of {count} messages"
        found.append(message)
    return found


def numbers_by_key(texts: list[str]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for number in map(int, texts):
        found.setdefault(number % 5, []).append(number)
    return found


async def test_killed_consumer_leaves_the_parent_before_its_children(broker: BrokerProcess) -> None:
    async with anabranch.connect(broker.service_url, connection=QUICK) as client:
        arguments = [broker.service_url, TOPIC, "s", "old", "24"]
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.support.processes.stream_consumer_child",
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            assert process.stdout is not None
            parent = await publish(client, 0, 12)
            await split(broker, 0)
            children = await publish(client, 12, 12)
            lines = [await asyncio.wait_for(process.stdout.readline(), SECONDS) for _ in range(24)]
            first = [line.decode().split()[1] for line in lines]
            assert first[:12] == parent, "nothing is acknowledged, and the children are read after the parent"
            assert numbers_by_key(first) == numbers_by_key([*parent, *children])
        finally:
            process.kill()
            await process.wait()
        async with client.stream_consumer(TOPIC, subscription="s", name="old") as consumer:
            again = [message.data.decode() for message in await received(consumer, 24)]
            assert again[:12] == parent
            assert numbers_by_key(again) == numbers_by_key([*parent, *children])


async def test_killed_owner_and_leader_keep_parent_and_children_in_order(broker: BrokerProcess) -> None:
    async with anabranch.connect(broker.service_url, connection=QUICK) as client:
        async with client.stream_consumer(TOPIC, subscription="s", name="c", start="earliest") as consumer:
            texts = await publish(client, 0, 12)
            messages = await received(consumer, 12)
            await consumer.ack_cumulative(messages[8])
            await split(broker, 0)
            texts += await publish(client, 12, 12)
            messages += await received(consumer, 12)
            await asyncio.to_thread(broker.kill9)
            await asyncio.to_thread(broker.start)
            texts += await publish(client, 24, 12)
            messages += await received(consumer, 12)
            assert numbers_by_key([message.data.decode() for message in messages]) == numbers_by_key(texts)
            await asyncio.to_thread(broker.kill9)  # the rest of segment 0 and all of its children are unacknowledged
        await asyncio.to_thread(broker.start)
        async with client.stream_consumer(TOPIC, subscription="s", name="c") as consumer:
            found = await received(consumer, 27)
            again = [message.data.decode() for message in found]
            assert again[:3] == texts[9:12], "the rest of the parent"
            assert numbers_by_key(again) == numbers_by_key(texts[9:])
            await consumer.ack_cumulative(found[-1])
        async with client.stream_consumer(TOPIC, subscription="s", name="c") as consumer:
            assert await consumer.receive(timeout=0.3) is None
