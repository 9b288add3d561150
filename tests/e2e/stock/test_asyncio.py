"""The asyncio face of the stock client: produce, consume, ack, seek, readers, errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pulsar
import pulsar.asyncio
import pytest

from tests.support.processes.broker_process import BrokerProcess
from tests.support.traffic.stock_calls import EARLIEST, KEY_SHARED, SHARED, payloads, position

DEADLINE_S = 15.0


@pytest.fixture
async def aclient(broker: BrokerProcess) -> AsyncIterator[pulsar.asyncio.Client]:
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    stock = pulsar.asyncio.Client(broker.service_url, operation_timeout_seconds=10, logger=quiet)
    yield stock
    async with asyncio.timeout(DEADLINE_S):
        await stock.close()


async def receive(consumer: Any, count: int, *, ack: bool = True) -> list[Any]:
    messages = []
    async with asyncio.timeout(DEADLINE_S):
        for _ in range(count):
            message = await consumer.receive()
            messages.append(message)
            if ack:
                await consumer.acknowledge(message)
    return messages


async def test_send_and_receive(aclient: pulsar.asyncio.Client, topic: str) -> None:
    consumer = await aclient.subscribe(topic, "s", initial_position=EARLIEST)
    producer = await aclient.create_producer(topic, producer_name="async")
    values = payloads(20)
    ids = [await producer.send(value, properties={"n": str(index)}) for index, value in enumerate(values)]
    messages = await receive(consumer, 20)
    assert [each.data() for each in messages] == values
    assert [each.properties()["n"] for each in messages] == [str(index) for index in range(20)]
    assert [position(each.message_id())[:2] for each in messages] == [position(each)[:2] for each in ids]
    assert producer.producer_name() == "async"
    await producer.close()
    await consumer.close()


async def test_concurrent_sends_keep_order(aclient: pulsar.asyncio.Client, topic: str) -> None:
    consumer = await aclient.subscribe(topic, "s", initial_position=EARLIEST)
    producer = await aclient.create_producer(topic)
    values = payloads(300)
    async with asyncio.timeout(DEADLINE_S):
        await asyncio.gather(*(producer.send(value) for value in values))
    assert [each.data() for each in await receive(consumer, 300)] == values


async def test_flush_and_sequence_ids(aclient: pulsar.asyncio.Client, topic: str) -> None:
    producer = await aclient.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=60_000)
    sends = [asyncio.ensure_future(producer.send(value)) for value in payloads(10)]
    await asyncio.sleep(0)
    async with asyncio.timeout(DEADLINE_S):
        await producer.flush()
        await asyncio.gather(*sends)
    assert producer.last_sequence_id() == 9


async def test_acks_are_kept(aclient: pulsar.asyncio.Client, topic: str) -> None:
    consumer = await aclient.subscribe(topic, "s", SHARED, initial_position=EARLIEST)
    producer = await aclient.create_producer(topic, batching_enabled=False)
    values = payloads(6)
    for value in values:
        await producer.send(value)
    for message in (await receive(consumer, 6, ack=False))[::2]:
        await consumer.acknowledge(message)
    await consumer.close()
    again = await aclient.subscribe(topic, "s", SHARED)
    assert [each.data() for each in await receive(again, 3)] == values[1::2]


async def test_cumulative_ack(aclient: pulsar.asyncio.Client, topic: str) -> None:
    consumer = await aclient.subscribe(topic, "s", initial_position=EARLIEST)
    producer = await aclient.create_producer(topic, batching_enabled=False)
    values = payloads(6)
    for value in values:
        await producer.send(value)
    await consumer.acknowledge_cumulative((await receive(consumer, 6, ack=False))[3])
    await consumer.close()
    again = await aclient.subscribe(topic, "s")
    assert [each.data() for each in await receive(again, 2)] == values[4:]


@pytest.mark.conformance("negative acknowledgement", client="Python asyncio")
async def test_negative_ack(aclient: pulsar.asyncio.Client, topic: str) -> None:
    consumer = await aclient.subscribe(
        topic, "s", SHARED, initial_position=EARLIEST, negative_ack_redelivery_delay_ms=100
    )
    producer = await aclient.create_producer(topic)
    await producer.send(b"x")
    await consumer.negative_acknowledge((await receive(consumer, 1, ack=False))[0])
    assert [(each.data(), each.redelivery_count()) for each in await receive(consumer, 1)] == [(b"x", 1)]


@pytest.mark.conformance("seek", client="Python asyncio")
async def test_seek_and_last_id(aclient: pulsar.asyncio.Client, topic: str) -> None:
    consumer = await aclient.subscribe(topic, "s", initial_position=EARLIEST)
    producer = await aclient.create_producer(topic, batching_enabled=False)
    values = payloads(5)
    ids = [await producer.send(value) for value in values]
    await receive(consumer, 5)
    last = await consumer.get_last_message_id()
    assert position(last)[:2] == position(ids[-1])[:2]
    await consumer.seek(pulsar.MessageId.wrap(pulsar.MessageId.earliest))
    assert [each.data() for each in await receive(consumer, 5)] == values


async def test_redeliver_all(aclient: pulsar.asyncio.Client, topic: str) -> None:
    consumer = await aclient.subscribe(topic, "s", initial_position=EARLIEST)
    producer = await aclient.create_producer(topic)
    values = payloads(5)
    for value in values:
        await producer.send(value)
    await receive(consumer, 5, ack=False)
    consumer.redeliver_unacknowledged_messages()
    assert [each.data() for each in await receive(consumer, 5)] == values


async def test_unsubscribe(aclient: pulsar.asyncio.Client, topic: str) -> None:
    producer = await aclient.create_producer(topic)
    await producer.send(b"x")
    consumer = await aclient.subscribe(topic, "s", initial_position=EARLIEST)
    await receive(consumer, 1)
    await consumer.unsubscribe()
    again = await aclient.subscribe(topic, "s", initial_position=EARLIEST)
    assert [each.data() for each in await receive(again, 1)] == [b"x"]


@pytest.mark.conformance("reader", client="Python asyncio")
async def test_reader(aclient: pulsar.asyncio.Client, topic: str) -> None:
    producer = await aclient.create_producer(topic, batching_enabled=False)
    values = payloads(5)
    ids = [await producer.send(value) for value in values]
    reader = await aclient.create_reader(topic, pulsar.MessageId.earliest)
    found = []
    async with asyncio.timeout(DEADLINE_S):
        while await reader.has_message_available():
            found.append((await reader.read_next()).data())
        assert found == values
        await reader.seek(ids[2])
        assert (await reader.read_next()).data() == values[3]
        await reader.close()


@pytest.mark.conformance("Exclusive", client="Python asyncio")
async def test_exclusive_is_busy(aclient: pulsar.asyncio.Client, topic: str) -> None:
    holder = await aclient.subscribe(topic, "s")  # unlike the blocking client's, it closes when it is garbage collected
    with pytest.raises(pulsar.asyncio.PulsarException) as refused:
        await aclient.subscribe(topic, "s")
    assert refused.value.error() == pulsar.Result.ConsumerBusy
    await holder.close()


async def test_producer_name_is_busy(aclient: pulsar.asyncio.Client, topic: str) -> None:
    holder = await aclient.create_producer(topic, producer_name="p")
    with pytest.raises(pulsar.asyncio.PulsarException) as refused:
        await aclient.create_producer(topic, producer_name="p")
    assert refused.value.error() == pulsar.Result.ProducerBusy
    await holder.close()


@pytest.mark.conformance("pattern subscription", client="Python asyncio")
async def test_topic_list_and_pattern(aclient: pulsar.asyncio.Client, topic: str) -> None:
    topics = [f"{topic}-{index}" for index in range(3)]
    consumer = await aclient.subscribe(topics, "s", initial_position=EARLIEST)
    for name in topics:
        await (await aclient.create_producer(name)).send(name.encode())
    assert sorted(each.data().decode() for each in await receive(consumer, 3)) == topics
    by_pattern = await aclient.subscribe(f"{topic}-.*", "p", initial_position=EARLIEST, is_pattern_topic=True)
    assert sorted(each.data().decode() for each in await receive(by_pattern, 3)) == topics


@pytest.mark.conformance("partitioned topics", client="Python asyncio")
async def test_partitions(aclient: pulsar.asyncio.Client, partitioned_topic: str) -> None:
    assert len(await aclient.get_topic_partitions(partitioned_topic)) == 3
    consumer = await aclient.subscribe(partitioned_topic, "s", KEY_SHARED, initial_position=EARLIEST)
    producer = await aclient.create_producer(partitioned_topic)
    for index in range(30):
        await producer.send(f"{index:02d}".encode(), partition_key=f"k{index % 3}")
    messages = await receive(consumer, 30)
    for key in range(3):
        mine = [each.data() for each in messages if each.partition_key() == f"k{key}"]
        assert mine == [f"{index:02d}".encode() for index in range(key, 30, 3)]


async def test_receive_waits_for_a_later_send(aclient: pulsar.asyncio.Client, topic: str) -> None:
    consumer = await aclient.subscribe(topic, "s")
    producer = await aclient.create_producer(topic)
    waiting = asyncio.ensure_future(receive(consumer, 1))
    await asyncio.sleep(0)
    assert not waiting.done()
    await producer.send(b"at last")
    assert [each.data() for each in await waiting] == [b"at last"]
