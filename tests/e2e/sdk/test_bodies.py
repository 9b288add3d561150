"""Compressed and chunked messages: the SDK with itself and with the stock client, in both directions."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

import pulsar
import pytest

import anabranch
from anabranch import Batching, Chunking, Client, Compression, DeadLetter
from anabranch.client.errors import MessageTooLarge
from anabranch.protocol.frames import MESSAGE_BYTES_MAX
from tests.support.processes.broker_process import BrokerProcess

RETRY_DELAYS = 30.0
LARGE = 5 * 1024 * 1024 + 1
STOCK = {
    Compression.LZ4: pulsar.CompressionType.LZ4,
    Compression.ZLIB: pulsar.CompressionType.ZLib,
    Compression.ZSTD: pulsar.CompressionType.ZSTD,
    Compression.SNAPPY: pulsar.CompressionType.SNAPPY,
}


@pytest.fixture
async def sdk(broker: BrokerProcess) -> AsyncIterator[Client]:
    async with anabranch.connect(broker.service_url) as client:
        yield client


def text(n: int) -> bytes:
    return b"message %d " % n * (1 + n % 7 * 100)


@pytest.mark.parametrize("kind", list(STOCK))
@pytest.mark.parametrize("batching", [Batching(max_messages=50, max_delay=0.05), None], ids=["batches", "alone"])
async def test_every_codec_reaches_the_stock_client(
    sdk: Client, client: pulsar.Client, topic: str, kind: Compression, batching: Batching | None
) -> None:
    """Scenario 13 of the V5 client."""
    consumer = await asyncio.to_thread(client.subscribe, topic, "s")
    async with sdk.producer(topic, compression=kind, batching=batching) as producer:
        for n in range(100):
            producer.send_nowait(text(n), key=f"k{n % 3}")
        await producer.flush(timeout=RETRY_DELAYS)
    for n in range(100):
        message = await asyncio.to_thread(consumer.receive, int(RETRY_DELAYS * 1000))
        assert (message.data(), message.partition_key()) == (text(n), f"k{n % 3}")


@pytest.mark.parametrize("kind", list(STOCK))
@pytest.mark.parametrize("batching", [True, False])
async def test_every_codec_of_the_stock_client_is_read(
    sdk: Client, client: pulsar.Client, topic: str, kind: Compression, batching: bool
) -> None:
    async with sdk.queue_consumer(topic, subscription="s") as consumer:
        producer = client.create_producer(
            topic, compression_type=STOCK[kind], batching_enabled=batching, batching_max_publish_delay_ms=50
        )
        for n in range(100):
            producer.send_async(text(n), None)
        await asyncio.to_thread(producer.flush)
        for n in range(100):
            message = await consumer.receive(timeout=RETRY_DELAYS)
            assert message is not None
            assert message.value == text(n)
            await consumer.ack(message)


async def test_chunked_messages_keep_their_order_among_others(sdk: Client, topic: str) -> None:
    """Large and small ones of one key, pipelined; acknowledged, nothing is left."""
    sizes = [10, LARGE * 2, 20, LARGE, 30]
    values = [os.urandom(size) for size in sizes]
    async with sdk.stream_consumer(topic, subscription="s", start="earliest") as consumer:
        async with sdk.producer(topic, chunking=Chunking()) as producer:
            sent = [producer.send_nowait(value, key="k") for value in values]
            found = [await consumer.receive(timeout=RETRY_DELAYS) for _ in values]
            assert [message and message.value for message in found] == values
            assert [message and message.id for message in found] == await asyncio.gather(*sent)
        assert found[-1] is not None
        await consumer.ack_cumulative(found[-1])
    async with sdk.stream_consumer(topic, subscription="s") as consumer:
        assert await consumer.receive(timeout=0.3) is None


async def test_chunked_message_is_redelivered_after_nack_and_acked_whole(sdk: Client, topic: str) -> None:
    value = os.urandom(LARGE)
    async with sdk.queue_consumer(topic, subscription="s") as consumer:
        async with sdk.producer(topic, chunking=Chunking(chunk_bytes=1 << 20), compression="zstd") as producer:
            await producer.send(value, timeout=RETRY_DELAYS)
        first = await consumer.receive(timeout=RETRY_DELAYS)
        assert first is not None and first.value == value
        await consumer.nack(first, delay=0)
        again = await consumer.receive(timeout=RETRY_DELAYS)
        assert again is not None and again.value == value
        assert again.redelivery_count == 1
        await consumer.ack(again)
    async with sdk.queue_consumer(topic, subscription="s") as consumer:
        assert await consumer.receive(timeout=0.3) is None


@pytest.mark.parametrize("kind", [None, "zstd"])
async def test_chunks_reach_the_stock_client(sdk: Client, client: pulsar.Client, topic: str, kind: str | None) -> None:
    value = os.urandom(LARGE * 2)
    consumer = await asyncio.to_thread(client.subscribe, topic, "s")
    async with sdk.producer(topic, chunking=Chunking(), compression=kind) as producer:
        await producer.send(value, key="k", properties={"a": "b"}, timeout=RETRY_DELAYS)
    message = await asyncio.to_thread(consumer.receive, int(RETRY_DELAYS * 1000))
    assert message.data() == value
    assert (message.partition_key(), message.properties()) == ("k", {"a": "b"})


@pytest.mark.parametrize("kind", [pulsar.CompressionType.NONE, pulsar.CompressionType.LZ4])
async def test_chunks_of_the_stock_client_are_read(
    sdk: Client, client: pulsar.Client, topic: str, kind: pulsar.CompressionType
) -> None:
    value = os.urandom(LARGE * 2)
    async with sdk.stream_consumer(topic, subscription="s") as consumer:
        producer = client.create_producer(topic, chunking_enabled=True, batching_enabled=False, compression_type=kind)
        await asyncio.to_thread(producer.send, value, None, "k")
        message = await consumer.receive(timeout=RETRY_DELAYS)
        assert message is not None
        assert (message.value, message.key) == (value, "k")


@pytest.mark.parametrize("form", ["send", "send_batch"])
async def test_message_of_exactly_the_limit_is_sent_and_received(
    sdk: Client, client: pulsar.Client, topic: str, form: str
) -> None:
    """The broker, the SDK and the stock client count in the same way."""
    value = os.urandom(MESSAGE_BYTES_MAX)
    stock = client.subscribe(topic, "stock")
    async with sdk.stream_consumer(topic, subscription="s") as consumer, sdk.producer(topic) as producer:
        for size in (MESSAGE_BYTES_MAX, MESSAGE_BYTES_MAX - 1):
            if form == "send":
                await producer.send(value[:size], key="k", timeout=RETRY_DELAYS)
            else:
                await producer.send_batch([b"before", value[:size]], ["k", "k"], timeout=RETRY_DELAYS)
                assert (await consumer.receive(timeout=RETRY_DELAYS)) is not None
                await asyncio.to_thread(stock.receive, 20_000)
            message = await consumer.receive(timeout=RETRY_DELAYS)
            assert message is not None and message.value == value[:size]
            assert (await asyncio.to_thread(stock.receive, 20_000)).data() == value[:size]
        with pytest.raises(MessageTooLarge) as caught:
            if form == "send":
                await producer.send(value + b"x", timeout=RETRY_DELAYS)
            else:
                await producer.send_batch([b"before", value + b"x"], timeout=RETRY_DELAYS)
        assert (caught.value.message_bytes, caught.value.message_bytes_max) == (len(value) + 1, len(value))
        assert await consumer.receive(timeout=0.3) is None, "a call fails as a whole"


async def test_large_message_without_chunking_is_refused_alone(sdk: Client, topic: str) -> None:
    async with sdk.producer(topic) as producer:
        with pytest.raises(MessageTooLarge):
            await producer.send(os.urandom(LARGE), timeout=RETRY_DELAYS)
        await producer.send(b"small", timeout=RETRY_DELAYS)


async def test_queue_consumers_share_chunked_messages(sdk: Client, topic: str) -> None:
    """Every message goes to one consumer, complete; none waits for chunks that another one has."""
    values = [os.urandom(6_000_000 + n) for n in range(12)]
    async with (
        sdk.queue_consumer(topic, subscription="s", prefetch=8) as one,
        sdk.queue_consumer(topic, subscription="s", prefetch=8) as two,
        sdk.queue_consumer(topic, subscription="s", prefetch=8) as three,
        sdk.producer(topic, chunking=Chunking(chunk_bytes=1 << 20), batching=None) as producer,
    ):
        found: list[bytes] = []
        counts = [0, 0, 0]
        done = asyncio.Event()

        async def work(index: int, consumer: anabranch.QueueConsumer) -> None:
            async for message in consumer:
                found.append(message.value)
                counts[index] += 1
                await consumer.ack(message)
                if len(found) == len(values):
                    done.set()

        workers = [asyncio.create_task(work(n, consumer)) for n, consumer in enumerate((one, two, three))]
        await asyncio.gather(*(producer.send(value, timeout=RETRY_DELAYS) for value in values))
        await asyncio.wait_for(done.wait(), RETRY_DELAYS)
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        assert sorted(found) == sorted(values)
        assert all(counts), "everybody had a share"


async def test_chunked_message_can_become_a_dead_letter(sdk: Client, topic: str) -> None:
    """Larger than the broker takes at once: the copy comes in chunks, too, and the original is gone."""
    value = os.urandom(LARGE)
    dead_letters = f"{topic}-dead"
    policy = DeadLetter(max_redeliveries=1, topic=dead_letters, initial_subscription="readers")
    async with (
        sdk.queue_consumer(topic, subscription="s", dead_letter=policy) as consumer,
        sdk.producer(topic, chunking=Chunking(chunk_bytes=1 << 20)) as producer,
    ):
        await producer.send(value, key="k", timeout=RETRY_DELAYS)
        for tries in range(2):
            message = await consumer.receive(timeout=RETRY_DELAYS)
            assert message is not None and message.redelivery_count == tries
            await consumer.nack(message, delay=0)
        async with sdk.queue_consumer(dead_letters, subscription="readers", start="earliest") as dead_letter_consumer:
            message = await dead_letter_consumer.receive(timeout=RETRY_DELAYS)
            assert message is not None
            assert (message.value, message.key, message.properties["REAL_TOPIC"]) == (value, "k", topic)
