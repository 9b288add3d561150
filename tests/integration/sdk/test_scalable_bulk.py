"""Bulk calls on scalable topics, against a real node in this process: while segments are split and merged, every key
stays in order, nothing is lost or repeated, and batches are acknowledged as a whole.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import anabranch
from anabranch import Backoff, Batching, Checkpoint, Client, ConnectionPolicy
from anabranch.broker.admin.scalable_topics import ScalableAdmin
from anabranch.client.consumer.consumer import Consumer
from anabranch.client.producer.bulk_send import Sent
from anabranch.node.node import Node
from tests.support.processes.scalable_nodes import admin_of, plain_settings

RETRY_DELAYS = 30.0
TOPIC = "topic://public/default/bulk"
KEYS = [f"key-{n}" for n in range(40)]
CALLS, ROWS = 40, 120
QUICK = ConnectionPolicy(backoff=Backoff(initial=0.02, maximum=0.2))


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with Node(plain_settings(tmp_path)) as node:
        yield node


@pytest.fixture
async def sdk(node: Node) -> AsyncIterator[Client]:
    async with anabranch.connect(node.service_url, connection=QUICK) as client:
        yield client


def rows(call: int) -> tuple[list[bytes], list[str]]:
    numbers = range(call * ROWS, (call + 1) * ROWS)
    keys = [KEYS[number * 7 % len(KEYS)] for number in numbers]
    return [f"{key} {number}".encode() for key, number in zip(keys, numbers, strict=True)], keys


async def publish_through_changes(sdk: Client, admin: ScalableAdmin) -> list[Sent]:
    """Pipelined calls; in between the topic is split twice and merged once, while some are under way."""
    changes = {
        CALLS // 4: admin.split(TOPIC, 0, 2, None, None),
        CALLS // 2: admin.split(TOPIC, 1, 3, None, None),
        3 * CALLS // 4: admin.merge(TOPIC, [3, 4], None),
    }
    running: list[asyncio.Task[object]] = []
    async with sdk.producer(TOPIC, batching=Batching(max_messages=25)) as producer:
        futures = []
        for call in range(CALLS):
            values, keys = rows(call)
            futures.append(producer.send_batch_nowait(values, keys))
            if (change := changes.get(call)) is not None:
                await asyncio.gather(*running)  # one after the other, as the controller wants it
                running.append(asyncio.ensure_future(change))
            await asyncio.sleep(0)
            if call % 4 == 3:
                await asyncio.wait_for(futures[-4], RETRY_DELAYS)
        await asyncio.gather(*running)
        return await asyncio.wait_for(asyncio.gather(*futures), RETRY_DELAYS)


def assert_all_in_order(values: list[bytes]) -> None:
    expected: dict[str, list[int]] = defaultdict(list)
    for call in range(CALLS):
        for value in rows(call)[0]:
            key, number = value.decode().split()
            expected[key].append(int(number))
    found: dict[str, list[int]] = defaultdict(list)
    for value in values:
        key, number = value.decode().split()
        found[key].append(int(number))
    assert found == expected


async def all_values(consumer: Consumer) -> list[bytes]:
    values: list[bytes] = []
    while len(values) < CALLS * ROWS:
        batch = await consumer.receive_batch(timeout=RETRY_DELAYS)
        assert batch, f"only {len(values)} of {CALLS * ROWS}"
        values += batch.values()
        if isinstance(consumer, anabranch.StreamConsumer):
            await consumer.ack_cumulative(batch)
        elif isinstance(consumer, anabranch.QueueConsumer):
            await consumer.ack(batch)
    return values


async def test_bulk_calls_through_splits_and_a_merge(node: Node, sdk: Client) -> None:
    admin = admin_of(node)
    await admin.create(TOPIC, 1, {})
    async with (
        sdk.stream_consumer(TOPIC, subscription="stream", start="earliest") as stream,
        sdk.queue_consumer(TOPIC, subscription="queue", start="earliest") as queue,
        sdk.checkpoint_consumer(TOPIC, start=Checkpoint.earliest()) as reader,
    ):
        sent = await publish_through_changes(sdk, admin)
        assert [len(one) for one in sent] == [ROWS] * CALLS
        assert len({one for ids in sent for one in ids if one.ledger >= 0}) > CALLS * ROWS // 2, "ids of their own"
        assert_all_in_order(await all_values(stream))
        assert_all_in_order(await all_values(reader))
        assert sorted(await all_values(queue)) == sorted(value for call in range(CALLS) for value in rows(call)[0])
        saved = reader.checkpoint()
    async with sdk.stream_consumer(TOPIC, subscription="stream") as stream:
        assert not await stream.receive_batch(timeout=0.3), "all of it is acknowledged"
    async with sdk.queue_consumer(TOPIC, subscription="queue") as queue:
        assert not await queue.receive_batch(timeout=0.3), "all of it is acknowledged"
    async with sdk.checkpoint_consumer(TOPIC, start=saved) as reader:
        assert not await reader.receive_batch(timeout=0.3), "the checkpoint is behind all of it"
