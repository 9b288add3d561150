"""Bulk calls of the SDK against a real broker: lists and Arrow, order, acks of whole batches, bounds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pyarrow as pa
import pytest

import anabranch
from anabranch import Batching, Client, MessageBatch
from anabranch.client.config import Chunking
from anabranch.client.consumer.consumer import Consumer
from anabranch.client.errors import Closed, MessageTooLarge, QueueFull, TimedOut
from anabranch.protocol.codec import BadColumn
from anabranch.schema import String
from tests.e2e.sdk.test_sdk import QUICK, RETRY_DELAYS, create_partitioned, received
from tests.support.processes.broker_process import BrokerProcess

ROWS = 2_500
VALUES = [b"value-%d" % row for row in range(ROWS)]
KEYS = [None if row % 7 == 0 else f"key-{row % 40}" for row in range(ROWS)]


@pytest.fixture
async def sdk(broker: BrokerProcess) -> AsyncIterator[Client]:
    async with anabranch.connect(broker.service_url, connection=QUICK) as client:
        yield client
    assert asyncio.all_tasks() == {asyncio.current_task()}, "the client left tasks behind"


async def batches(consumer: Consumer, count: int) -> list[MessageBatch]:
    found: list[MessageBatch] = []
    while sum(map(len, found)) < count:
        batch = await consumer.receive_batch(timeout=RETRY_DELAYS)
        assert batch, f"only {sum(map(len, found))} of {count} messages"
        found.append(batch)
    return found


def by_key(pairs: list[tuple[Any, bytes]]) -> dict[Any, list[bytes]]:
    found: dict[Any, list[bytes]] = {}
    for key, value in pairs:
        if key is not None:
            found.setdefault(key, []).append(value)
    return found


@pytest.mark.parametrize("partitions", [0, 3])
@pytest.mark.parametrize("is_arrow", [False, True], ids=["lists", "arrow"])
async def test_columns_round_trip(
    sdk: Client, broker: BrokerProcess, topic: str, partitions: int, is_arrow: bool
) -> None:
    if partitions:
        create_partitioned(broker, topic, partitions)
    values: Any = pa.array(VALUES) if is_arrow else VALUES
    keys: Any = pa.array(KEYS) if is_arrow else KEYS
    async with (
        sdk.stream_consumer(topic, subscription="s", start="earliest") as consumer,
        sdk.producer(topic) as producer,
    ):
        before = producer.send_nowait(b"before", key="key-1")
        sent = await producer.send_batch(values, keys, event_times=range(1, ROWS + 1), timeout=RETRY_DELAYS)
        after = producer.send_nowait(b"after", key="key-1")
        await producer.flush(timeout=RETRY_DELAYS)
        assert len(sent) == ROWS and len(set(sent)) == ROWS
        assert before.result() < sent[1] < after.result()
        found = await batches(consumer, ROWS + 2)
        pairs = [(message.key, message.value) for batch in found for message in batch]
        wanted = [("key-1", b"before"), *zip(KEYS, VALUES, strict=True), ("key-1", b"after")]
        assert by_key(pairs) == by_key(wanted), "every key in its order"
        assert sorted(value for _, value in pairs) == sorted(value for _, value in wanted)
        ids = {message.value: message.id for batch in found for message in batch}
        assert [ids[value] for value in VALUES] == list(sent)
        tables = pa.concat_tables(batch.to_arrow(["key", "value", "event_time", "sequence_id"]) for batch in found)
        assert by_key(list(zip(tables["key"].to_pylist(), tables["value"].to_pylist(), strict=True))) == by_key(wanted)
        assert tables["event_time"].null_count == 2
        await consumer.ack_cumulative(found[-1])
    async with sdk.stream_consumer(topic, subscription="s") as consumer:
        assert await consumer.receive(timeout=0.3) is None, "all of it is acknowledged"


async def test_batch_is_acked_as_a_whole_and_the_rest_redelivered(sdk: Client, topic: str) -> None:
    async with sdk.producer(topic, batching=Batching(max_messages=10)) as producer:
        async with sdk.queue_consumer(topic, subscription="q", start="earliest") as consumer:
            await producer.send_batch([b"%d" % row for row in range(35)], timeout=RETRY_DELAYS)
            first = await received(consumer, 3)
            for message in first:
                await consumer.ack(message)
            rest = await batches(consumer, 32)
            assert [message.value for batch in rest for message in batch] == [b"%d" % row for row in range(3, 35)]
            assert [value for batch in rest for value in batch.values()] == [b"%d" % row for row in range(3, 35)]
            assert rest[0][0].value == b"3" and rest[-1][-1].value == b"34" and rest[-1].last == rest[-1][-1].id
            for batch in rest[:-1]:
                await consumer.ack(batch)
            for message in rest[-1][:-2]:
                await consumer.ack(message)
        async with sdk.queue_consumer(topic, subscription="q") as consumer:
            again = await batches(consumer, 2)
            assert [message.value for batch in again for message in batch] == [b"33", b"34"]
            assert pa.concat_tables(batch.to_arrow(["value"]) for batch in again)["value"].to_pylist() == [b"33", b"34"]
            for batch in again:
                await consumer.ack(batch)
            empty = await consumer.receive_batch(timeout=0.2)
            assert len(empty) == 0 and not empty and empty.to_arrow(["key", "value"]).num_rows == 0


async def test_bounds_and_errors_are_those_of_single_sends(sdk: Client, topic: str) -> None:
    async with sdk.producer(topic, pending_bytes_max=100_000) as producer:
        with pytest.raises(QueueFull):
            producer.send_batch_nowait([b"x" * 50_000] * 3)
        with pytest.raises(MessageTooLarge):
            await producer.send_batch([b"x", b"x" * 6_000_000])
        for bad in ([b"x", None], ["text"], [1]):
            with pytest.raises(BadColumn):
                await producer.send_batch(bad)
        with pytest.raises(BadColumn):
            await producer.send_batch([b"x"], ["k", "l"])
        assert producer.pending_bytes == 0
        assert len(await producer.send_batch([])) == 0
        # Larger than the bound: alone it may always go, and what comes later waits for it.
        large, small = await asyncio.gather(producer.send_batch([b"x" * 50_000] * 4), producer.send_batch([b"y"]))
        assert large[3] < small[0]
        assert producer.pending_bytes == 0
        with pytest.raises(TimedOut):
            await producer.send_batch([b"x"] * 10, timeout=0)
    with pytest.raises(Closed):
        await producer.send_batch([b"x"])


async def test_bulk_messages_that_need_chunks_are_sent_one_by_one(sdk: Client, topic: str) -> None:
    values = [b"small", b"x" * 6_000_000, b"last"]
    async with (
        sdk.queue_consumer(topic, subscription="q", start="earliest") as consumer,
        sdk.producer(topic, chunking=Chunking()) as producer,
    ):
        sent = await producer.send_batch(values, ["k"] * 3, timeout=RETRY_DELAYS)
        assert len(set(sent)) == 3
        found = await received(consumer, 3)
        assert [message.value for message in found] == values


async def test_schema_compression_and_properties(sdk: Client, topic: str) -> None:
    schema = String()
    async with (
        sdk.producer(topic, schema=schema, compression="zstd") as producer,
        sdk.queue_consumer(topic, subscription="q", start="earliest", schema=schema) as consumer,
    ):
        await producer.send_batch(["é", "b"], [b"\xff", "k"], properties=[{"a": "b"}, None], timeout=RETRY_DELAYS)
        (batch,) = await batches(consumer, 2)
        assert batch.values() == ["é", "b"] and batch.keys() == [b"\xff", "k"]
        assert [dict(message.properties) for message in batch] == [{"a": "b"}, {}]


def test_blocking_client(broker: BrokerProcess, topic: str) -> None:
    with (
        anabranch.blocking.connect(broker.service_url) as client,
        client.queue_consumer(topic, subscription="q", start="earliest") as consumer,
        client.producer(topic) as producer,
    ):
        assert len(producer.send_batch([b"a", b"b"], ["k", "k"])) == 2
        producer.send_batch_nowait([b"c"]).result(RETRY_DELAYS)
        values: list[bytes] = []
        while len(values) < 3:
            batch = consumer.receive_batch(timeout=RETRY_DELAYS)
            values += batch.values()
            consumer.ack(batch)
        assert values == [b"a", b"b", b"c"]
