"""The SDK on Apache Pulsar's broker (5.0.0-M1, standalone): regular and partitioned topics, and the stock client.

Nothing here uses extensions of Anabranch. One broker for the whole file; every test has separate topics. Tests that
kill or stop the broker come last and restart it.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
import uuid
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import pulsar
import pulsar.schema
import pytest

import anabranch
from anabranch import (
    AccessMode,
    Backoff,
    Batching,
    Checkpoint,
    Chunking,
    Client,
    Compression,
    DeadLetter,
    Message,
    MessageId,
    Producer,
)
from anabranch.admin import Admin, Refused
from anabranch.client.consumer.consumer import Consumer
from anabranch.client.errors import (
    Closed,
    IncompatibleSchema,
    MessageTooLarge,
    ProducerBusy,
    ProducerFenced,
    TimedOut,
    TopicTerminated,
)
from anabranch.model.routing import key_hash, mod_n
from anabranch.schema import Auto, Avro, Json, Schema, String
from tests.interop.conftest import QUICK, START_SECONDS, Made
from tests.services.pulsar_broker import DELAY_TICK_MS, PulsarNode

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("pulsar")]

RETRY_DELAYS = 60.0
IDLE = 0.3  # nothing comes for so long: nothing is there
KEYS = 7
SHAPES = pytest.mark.parametrize("partitions", [0, 3], ids=["plain", "partitioned"])
STOCK = {
    Compression.LZ4: pulsar.CompressionType.LZ4,
    Compression.ZLIB: pulsar.CompressionType.ZLib,
    Compression.ZSTD: pulsar.CompressionType.ZSTD,
    Compression.SNAPPY: pulsar.CompressionType.SNAPPY,
}


async def received(consumer: Consumer, count: int) -> list[Message]:
    found: list[Message] = []
    while len(found) < count:
        message = await consumer.receive(timeout=RETRY_DELAYS)
        assert message is not None, f"only {len(found)} of {count} messages"
        found.append(message)
    return found


async def nothing_more(consumer: Consumer) -> None:
    message = await consumer.receive(timeout=IDLE)
    assert message is None, f"{message} came, too"


async def taken(consumer: Any, count: int) -> list[Any]:
    """What a consumer of the stock wheel gets."""

    def take() -> list[Any]:
        found = []
        for _ in range(count):
            message = consumer.receive(int(RETRY_DELAYS * 1000))
            consumer.acknowledge(message)
            found.append(message)
        return found

    return await asyncio.to_thread(take)


def pipelined(producer: Producer, numbers: Iterable[int]) -> list[asyncio.Future[MessageId]]:
    return [producer.send_nowait(b"%d" % n, key=f"k{n % KEYS}") for n in numbers]


def in_order(messages: Sequence[Message], numbers: Iterable[int]) -> None:
    """Exactly these, and those of every key in the order in which they were sent."""
    wanted, found = defaultdict(list), defaultdict(list)
    for n in numbers:
        wanted[f"k{n % KEYS}"].append(n)
    for message in messages:
        found[str(message.key)].append(int(message.value))
    assert found == wanted


# -- sending


@SHAPES
async def test_sent_messages_are_received(sdk: Client, made: Made, partitions: int) -> None:
    topic = await made(partitions)
    async with (
        sdk.queue_consumer(topic, subscription="s") as consumer,
        sdk.producer(topic, name="shop", properties={"team": "a"}) as producer,
    ):
        sent = await producer.send(b"one", key="k", properties={"a": "1"}, event_time=1234, timeout=RETRY_DELAYS)
        (message,) = await received(consumer, 1)
        assert (message.value, message.key, message.properties, message.event_time) == (b"one", "k", {"a": "1"}, 1234)
        assert (message.producer_name, message.sequence_id, message.redelivery_count) == ("shop", 0, 0)
        assert message.id == sent and message.topic == topic
        assert MessageId.from_bytes(sent.to_bytes()) == sent
        second = await producer.send(b"two", key=b"\x00\xff", timeout=RETRY_DELAYS)
        (message,) = await received(consumer, 1)
        assert (message.value, message.key, message.properties, message.id) == (b"two", b"\x00\xff", {}, second)


@SHAPES
async def test_pipelined_batches_keep_every_key_in_order(sdk: Client, made: Made, partitions: int) -> None:
    topic = await made(partitions)
    async with (
        sdk.stream_consumer(topic, subscription="s", start="earliest") as consumer,
        sdk.producer(topic, batching=Batching(max_messages=9)) as producer,
    ):
        futures = pipelined(producer, range(200))
        await producer.flush(timeout=RETRY_DELAYS)
        ids = [future.result() for future in futures]
        assert len(set(ids)) == 200
        messages = await received(consumer, 200)
        in_order(messages, range(200))
        assert {message.id for message in messages} == set(ids)


@pytest.mark.parametrize("batching", [None, Batching(), Batching(max_delay=0), Batching(max_messages=5)], ids=str)
async def test_scenario_14_every_way_to_batch_delivers_everything_in_order(
    sdk: Client, made: Made, batching: Batching | None
) -> None:
    topic = await made(0)
    async with sdk.stream_consumer(topic, subscription="s") as consumer:
        async with sdk.producer(topic, batching=batching) as producer:
            pipelined(producer, range(40))
        assert [int(message.value) for message in await received(consumer, 40)] == list(range(40))


@SHAPES
async def test_columns_round_trip(sdk: Client, made: Made, partitions: int) -> None:
    topic = await made(partitions)
    async with (
        sdk.stream_consumer(topic, subscription="s") as consumer,
        sdk.producer(topic, compression="lz4") as producer,
    ):
        values, keys = [b"%d" % n for n in range(500)], [f"k{n % KEYS}" for n in range(500)]
        ids = await producer.send_batch(values, keys, timeout=RETRY_DELAYS)
        assert len(ids) == 500
        found: list[Message] = []
        while len(found) < 500:
            batch = await consumer.receive_batch(timeout=RETRY_DELAYS)
            assert len(batch)
            await consumer.ack_cumulative(batch)
            found += batch
        in_order(found, range(500))


@pytest.mark.parametrize("kind", list(STOCK))
async def test_every_codec_both_ways(sdk: Client, stock: pulsar.Client, made: Made, kind: Compression) -> None:
    topic, bodies = await made(0), [b"message %d " % n * (1 + n % 7 * 100) for n in range(60)]
    theirs = await asyncio.to_thread(stock.subscribe, topic, "theirs")
    async with sdk.queue_consumer(topic, subscription="ours") as ours:
        for batching in (None, Batching(max_messages=20, max_delay=0.05)):
            async with sdk.producer(topic, compression=kind, batching=batching) as producer:
                for body in bodies:
                    producer.send_nowait(body)
        for is_batched in (True, False):
            writer = await asyncio.to_thread(
                stock.create_producer, topic, compression_type=STOCK[kind], batching_enabled=is_batched
            )
            for body in bodies:
                writer.send_async(body, None)
            await asyncio.to_thread(writer.flush)
        assert [message.value for message in await received(ours, 240)] == bodies * 4
    assert [message.data() for message in await taken(theirs, 240)] == bodies * 4


async def test_chunked_messages_both_ways(sdk: Client, stock: pulsar.Client, made: Made) -> None:
    """Larger than the broker takes: between small ones, in order, acknowledged as one."""
    topic, values = await made(0), [os.urandom(size) for size in (10, 6 << 20, 20)]
    theirs = await asyncio.to_thread(stock.subscribe, topic, "theirs")
    async with sdk.stream_consumer(topic, subscription="ours") as consumer:
        async with sdk.producer(topic, chunking=Chunking(), compression="zstd") as producer:
            sent = [producer.send_nowait(value, key="k") for value in values]
            await producer.flush(timeout=RETRY_DELAYS)
        mine = await received(consumer, 3)
        assert [message.value for message in mine] == values
        assert [message.id for message in mine] == [one.result() for one in sent]
        writer = await asyncio.to_thread(stock.create_producer, topic, batching_enabled=False, chunking_enabled=True)
        for value in values:
            await asyncio.to_thread(writer.send, value)
        found = await received(consumer, 3)
        assert [message.value for message in found] == values
        await consumer.ack_cumulative(found[-1])
    async with sdk.stream_consumer(topic, subscription="ours") as consumer:
        await nothing_more(consumer)
    assert [message.data() for message in await taken(theirs, 6)] == values * 2


async def test_chunked_message_is_redelivered_after_nack(sdk: Client, made: Made) -> None:
    topic, value = await made(0), os.urandom(300_000)
    async with sdk.queue_consumer(topic, subscription="s") as consumer:
        async with sdk.producer(topic, chunking=Chunking(chunk_bytes=100_000)) as producer:
            await producer.send(value, timeout=RETRY_DELAYS)
        (first,) = await received(consumer, 1)
        await consumer.nack(first, delay=0)
        (again,) = await received(consumer, 1)
        assert (again.value, again.redelivery_count) == (value, 1)
        await consumer.ack(again)
    async with sdk.queue_consumer(topic, subscription="s") as consumer:
        await nothing_more(consumer)


async def test_too_large_message_is_refused_alone(sdk: Client, made: Made) -> None:
    async with sdk.producer(await made(0)) as producer:
        with pytest.raises(MessageTooLarge):
            await producer.send(bytes(6 << 20), timeout=RETRY_DELAYS)
        assert (await producer.send(b"small", timeout=RETRY_DELAYS)).ledger >= 0


async def test_delayed_messages_arrive_at_their_time(sdk: Client, made: Made) -> None:
    topic = await made(0)
    async with (
        sdk.queue_consumer(topic, subscription="queue") as queue,
        sdk.stream_consumer(topic, subscription="stream") as stream,
        sdk.producer(topic) as producer,
    ):
        due = datetime.now(UTC) + timedelta(seconds=1.5)
        await producer.send(b"later", deliver_at=due, timeout=RETRY_DELAYS)
        await producer.send(b"soon", deliver_after=0.7, timeout=RETRY_DELAYS)
        await producer.send(b"now", timeout=RETRY_DELAYS)
        arrived = {message.value: datetime.now(UTC) async for message in _some(queue, 3)}
        assert set(arrived) == {b"later", b"soon", b"now"}
        assert arrived[b"later"] >= due - timedelta(milliseconds=DELAY_TICK_MS), "the broker may be a tick early"
        in_place = [message.value for message in await received(stream, 3)]
        assert in_place == [b"later", b"soon", b"now"], "streams keep the order"


async def _some(consumer: Consumer, count: int) -> Any:
    for _ in range(count):
        (message,) = await received(consumer, 1)
        yield message


@pytest.fixture(scope="module")
def deduplicated(apache: PulsarNode) -> str:
    """A namespace whose topics store no sequence id twice."""
    name = f"public/dedup-{uuid.uuid4().hex[:6]}"
    with anabranch.admin.blocking.connect(apache.http_url) as admin:
        admin.namespaces.create(name)
        admin.namespaces.set_policy(name, "deduplication", True)
    return name


async def test_sequence_ids_are_stored_once_and_continue_by_name(sdk: Client, deduplicated: str) -> None:
    topic = f"persistent://{deduplicated}/t-{uuid.uuid4().hex[:8]}"
    async with sdk.stream_consumer(topic, subscription="s") as consumer:
        async with sdk.producer(topic, name="till") as producer:
            assert producer.last_sequence_id == -1
            for n in (5, 6, 6, 5, 7):
                await producer.send(b"%d" % n, key="k0", sequence_id=n, timeout=RETRY_DELAYS)
        async with sdk.producer(topic, name="till") as producer:
            assert producer.last_sequence_id == 7
            await producer.send(b"repeated", sequence_id=7, timeout=RETRY_DELAYS)
            await producer.send(b"8", timeout=RETRY_DELAYS)
            assert producer.last_sequence_id == 8
        found = await received(consumer, 4)
        assert [(message.value, message.sequence_id) for message in found] == [(b"%d" % n, n) for n in (5, 6, 7, 8)]
        await nothing_more(consumer)


async def test_one_exclusive_producer_at_a_time(sdk: Client, made: Made) -> None:
    topic = await made(0)
    first = await sdk.producer(topic, access=AccessMode.EXCLUSIVE)
    await first.send(b"first", timeout=RETRY_DELAYS)
    with pytest.raises(ProducerFenced):
        await sdk.producer(topic, access="exclusive")
    with pytest.raises((ProducerBusy, ProducerFenced)):
        await sdk.producer(topic)
    waiting = asyncio.ensure_future(sdk.producer(topic, access="wait-for-exclusive", timeout=RETRY_DELAYS).__aenter__())
    await asyncio.sleep(0)
    await first.close()
    second = await waiting
    await second.send(b"second", timeout=RETRY_DELAYS)
    await second.close()


async def test_fenced_producer_gets_an_error(sdk: Client, made: Made) -> None:
    """The broker closes the connection of a fenced producer that sends; the reconnect is refused with the reason."""
    topic = await made(0)
    old = await sdk.producer(topic, access="exclusive")
    async with sdk.producer(topic, access="exclusive-with-fencing") as new:
        await new.send(b"new", timeout=RETRY_DELAYS)
        with pytest.raises(ProducerFenced):
            await old.send(b"old", timeout=RETRY_DELAYS)
        await new.send(b"newer", timeout=RETRY_DELAYS)


# -- schemas


@dataclass
class Order:
    customer: str | None
    amount: Annotated[int, "int"] | None
    tags: list[str] | None = None


class StockOrder(pulsar.schema.Record):  # type: ignore[misc]  # the wheel has no types
    customer = pulsar.schema.String()
    amount = pulsar.schema.Integer()
    tags = pulsar.schema.Array(pulsar.schema.String())


StockOrder._record_name = "Order"
StockOrder.__name__ = "Order"


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (String(), pulsar.schema.StringSchema()),
        (Json(Order), pulsar.schema.JsonSchema(StockOrder)),
        (Avro(Order), pulsar.schema.AvroSchema(StockOrder)),
    ],
    ids=["string", "json", "avro"],
)
async def test_values_with_a_schema_both_ways(
    sdk: Client, stock: pulsar.Client, made: Made, ours: Schema, theirs: Any
) -> None:
    topic = await made(3)
    is_text = isinstance(ours, String)
    reader = await asyncio.to_thread(stock.subscribe, topic, "theirs", schema=theirs)
    async with (
        sdk.queue_consumer(topic, subscription="ours", schema=ours) as consumer,
        sdk.stream_consumer(topic, subscription="auto", schema=Auto()) as auto,
    ):
        writer = await asyncio.to_thread(stock.create_producer, topic, schema=theirs)
        stocks: Any = "Ann" if is_text else StockOrder(customer="Ann", amount=1, tags=["a"])
        await asyncio.to_thread(writer.send, stocks)
        mine: Any = "Bob" if is_text else Order("Bob", 2)
        async with sdk.producer(topic, schema=ours) as producer:
            await producer.send(mine, key="k", timeout=RETRY_DELAYS)
        wanted = ["Ann", "Bob"] if is_text else [Order("Ann", 1, ["a"]), Order("Bob", 2)]
        found = [message.value for message in await received(consumer, 2)]
        assert sorted(found, key=str) == wanted
        plain = [message.value for message in await received(auto, 2)]
        assert sorted(plain, key=str) == [one if isinstance(one, str) else one.__dict__ for one in wanted]
    values = [message.value() for message in await taken(reader, 2)]
    names = sorted(value if isinstance(value, str) else value.customer for value in values)
    assert names == ["Ann", "Bob"]


async def test_messages_are_read_with_their_own_schema_version(sdk: Client, admin: Admin, made: Made) -> None:
    topic = await made(0)

    def version(count: int) -> type:
        names = {"customer": str, **{f"extra{n}": int for n in range(count)}}
        return dataclass(type("Sale", (), {"__annotations__": names, **{f"extra{n}": n for n in range(count)}}))

    async with sdk.stream_consumer(topic, subscription="auto", schema=Auto()) as auto:
        for count in (0, 2, 1):
            cls = version(count)
            async with sdk.producer(topic, schema=Avro(cls)) as producer:
                await producer.send(cls(customer=f"c{count}"), timeout=RETRY_DELAYS)
        assert [len(message.value) for message in await received(auto, 3)] == [1, 3, 2]
    wanted = version(2)
    async with sdk.queue_consumer(topic, subscription="typed", start="earliest", schema=Avro(wanted)) as typed:
        found = [message.value for message in await received(typed, 3)]
        assert [(one.customer, one.extra1) for one in found] == [("c0", 1), ("c2", 1), ("c1", 1)]
    assert len(await admin.schemas.versions(topic)) == 3
    assert json.loads((await admin.schemas.get(topic))["data"])["name"] == "Sale"
    with pytest.raises(IncompatibleSchema):
        await sdk.producer(topic, schema=String())


# -- consuming


@SHAPES
async def test_cumulative_ack_in_the_middle_redelivers_the_rest(sdk: Client, made: Made, partitions: int) -> None:
    topic = await made(partitions)
    async with sdk.producer(topic, batching=None) as producer:
        pipelined(producer, range(60))
    async with sdk.stream_consumer(topic, subscription="s", start="earliest") as consumer:
        first = await received(consumer, 25)
        await consumer.ack_cumulative(first[-1])
        await received(consumer, 10)  # closing acknowledges nothing
    async with sdk.stream_consumer(topic, subscription="s") as consumer:
        rest = await received(consumer, 35)
        in_order([*first, *rest], range(60))
        await consumer.ack_cumulative(rest[-1])
    async with sdk.stream_consumer(topic, subscription="s") as consumer:
        await nothing_more(consumer)


async def test_stream_consumers_share_partitions_and_take_over(sdk: Client, made: Made) -> None:
    topic = await made(4)
    first = await sdk.stream_consumer(topic, subscription="s", name="a", start="earliest")
    second = await sdk.stream_consumer(topic, subscription="s", name="b", start="earliest")
    async with sdk.producer(topic) as producer:
        pipelined(producer, range(100))
        await producer.flush(timeout=RETRY_DELAYS)
        got: dict[int, tuple[Any, Message]] = {}
        async with asyncio.timeout(RETRY_DELAYS):
            while len(got) < 100:
                for consumer in (first, second):
                    for message in await consumer.receive_many(100, timeout=0.05):
                        got[int(message.value)] = consumer, message
        assert {consumer for consumer, _ in got.values()} == {first, second}, "each has partitions"
        for consumer in (first, second):
            await consumer.ack_cumulative([message for owner, message in got.values() if owner is consumer][-1])
        await second.close()
        pipelined(producer, range(100, 200))
        in_order(await received(first, 100), range(100, 200))


@SHAPES
async def test_queue_consumers_lose_and_repeat_nothing(sdk: Client, made: Made, partitions: int) -> None:
    topic = await made(partitions)
    consumers = [await sdk.queue_consumer(topic, subscription="s", prefetch=10) for _ in range(3)]
    async with sdk.producer(topic, batching=Batching(max_messages=5)) as producer:
        pipelined(producer, range(300))
    found: list[int] = []
    busy = set()
    async with asyncio.timeout(RETRY_DELAYS):
        while len(found) < 300:
            for consumer in consumers:
                for message in await consumer.receive_many(20, timeout=0.02):
                    busy.add(consumer)
                    found.append(int(message.value))
                    await consumer.ack(message)
    assert sorted(found) == list(range(300)) and len(busy) == 3
    for consumer in consumers:
        await consumer.close()
    async with sdk.queue_consumer(topic, subscription="s") as consumer:
        await nothing_more(consumer)


@SHAPES
async def test_individual_acks_leave_exactly_the_rest(sdk: Client, made: Made, partitions: int) -> None:
    """Also after the topic was unloaded: what was acknowledged stays so, what is held does not come twice."""
    topic = await made(partitions)
    async with sdk.queue_consumer(topic, subscription="s") as consumer:
        async with sdk.producer(topic, batching=None) as producer:
            pipelined(producer, range(40))
        for message in await received(consumer, 40):
            if int(message.value) % 2:
                await consumer.ack(message)
    async with sdk.queue_consumer(topic, subscription="s") as consumer:
        rest = await received(consumer, 20)
        assert sorted(int(message.value) for message in rest) == list(range(0, 40, 2))
        await nothing_more(consumer)


async def test_single_message_of_a_batch_is_redelivered_alone(sdk: Client, made: Made) -> None:
    """The broker redelivers whole batches; the application sees only what it asked for."""
    topic = await made(0)
    async with (
        sdk.queue_consumer(topic, subscription="s") as consumer,
        sdk.producer(topic, batching=Batching(max_delay=60)) as producer,
    ):
        sent = pipelined(producer, range(10))
        await producer.flush(timeout=RETRY_DELAYS)
        assert {one.result().batch_size for one in sent} == {10}
        messages = await received(consumer, 10)
        await consumer.ack(messages[0])
        await consumer.nack(messages[4], delay=0)
        (again,) = await received(consumer, 1)
        assert (again.id, again.redelivery_count) == (messages[4].id, 1)
        await nothing_more(consumer)


async def test_nacks_follow_backoff_and_become_dead_letters(sdk: Client, made: Made) -> None:
    topic = await made(0)
    dead_letters = DeadLetter(max_redeliveries=2, initial_subscription="readers")
    async with (
        sdk.queue_consumer(
            topic, subscription="s", nack_backoff=Backoff(initial=0.05, maximum=0.2, jitter=0), dead_letter=dead_letters
        ) as consumer,
        sdk.producer(topic, batching=None) as producer,
    ):
        await producer.send(b"bad", key="k", properties={"a": "b"}, timeout=RETRY_DELAYS)
        counts = []
        for _ in range(3):
            (message,) = await received(consumer, 1)
            counts.append(message.redelivery_count)
            await consumer.nack(message)
        assert counts == [0, 1, 2]
        async with sdk.queue_consumer(
            f"{topic}-s-DLQ", subscription="readers", start="earliest"
        ) as dead_letter_consumer:
            (dead_letter,) = await received(dead_letter_consumer, 1)
            assert (dead_letter.value, dead_letter.key, dead_letter.properties["a"]) == (b"bad", "k", "b")
            assert dead_letter.properties["REAL_TOPIC"] == topic
        await nothing_more(consumer)


async def test_processing_timeout_redelivers_messages(sdk: Client, made: Made) -> None:
    topic = await made(0)
    async with sdk.queue_consumer(topic, subscription="s", processing_timeout=0.3) as consumer:
        async with sdk.producer(topic) as producer:
            await producer.send(b"x", timeout=RETRY_DELAYS)
        first, again = await received(consumer, 2)
        assert (first.id, again.redelivery_count) == (again.id, 1)
        await consumer.ack(again)


@SHAPES
async def test_a_checkpoint_is_exact(sdk: Client, made: Made, partitions: int) -> None:
    """Stopped after every few messages, in the middle of batches too; bytes in between; nothing stays at the broker."""
    topic = await made(partitions)
    async with sdk.producer(topic, batching=Batching(max_messages=4)) as producer:
        pipelined(producer, range(50))
    found: list[Message] = []
    start = Checkpoint.earliest()
    while len(found) < 50:
        async with sdk.checkpoint_consumer(topic, start=start) as reader:
            found += await received(reader, min(13, 50 - len(found)))
            start = Checkpoint.from_bytes(reader.checkpoint().to_bytes())
    in_order(found, range(50))
    async with sdk.checkpoint_consumer(topic, start=start) as reader:
        await nothing_more(reader)
        async with sdk.producer(topic) as producer:
            await producer.send(b"50", key="k1", timeout=RETRY_DELAYS)
        assert [message.value for message in await received(reader, 1)] == [b"50"]


async def test_a_checkpoint_at_the_end_and_at_a_time(sdk: Client, admin: Admin, made: Made) -> None:
    topic = await made(0)
    async with sdk.producer(topic, batching=None) as producer:
        await producer.send(b"0", timeout=RETRY_DELAYS)
        async with sdk.checkpoint_consumer(topic, start=Checkpoint.latest()) as reader:
            mark = reader.checkpoint()
        await asyncio.sleep(0.002)  # publish times are milliseconds
        later = time.time_ns() // 1_000_000
        for n in (1, 2):
            await producer.send(b"%d" % n, timeout=RETRY_DELAYS)
        for start in (mark, Checkpoint.at_time(later)):
            async with sdk.checkpoint_consumer(topic, start=start) as reader:
                assert [message.value for message in await received(reader, 2)] == [b"1", b"2"]
    assert await admin.subscriptions.list(topic) == [], "readers leave nothing behind"


async def test_one_consumer_on_several_topics(sdk: Client, made: Made) -> None:
    topics = [await made(0), await made(2), await made(0)]
    async with (
        sdk.stream_consumer(topics, subscription="stream") as stream,
        sdk.queue_consumer(topics, subscription="queue") as queue,
        sdk.checkpoint_consumer(topics, start=Checkpoint.earliest()) as reader,
    ):
        for number, topic in enumerate(topics):
            async with sdk.producer(topic) as producer:
                pipelined(producer, range(number * 10, number * 10 + 10))
        consumers: tuple[Consumer, ...] = (stream, queue, reader)
        for consumer in consumers:
            found = await received(consumer, 30)
            assert sorted(int(message.value) for message in found) == list(range(30))
            assert {message.topic for message in found} == set(topics)
            if consumer is stream:
                await stream.ack_cumulative(found[-1])
    async with sdk.stream_consumer(topics, subscription="stream") as stream:
        await nothing_more(stream)


async def test_initial_position_and_rewind_of_a_subscription(sdk: Client, admin: Admin, made: Made) -> None:
    topic = await made(0)
    async with sdk.producer(topic, batching=None) as producer:
        await producer.send(b"0", key="k0", timeout=RETRY_DELAYS)
        async with (
            sdk.stream_consumer(topic, subscription="old", start="earliest") as old,
            sdk.stream_consumer(topic, subscription="new", start="latest") as new,
        ):
            await producer.send(b"1", key="k1", timeout=RETRY_DELAYS)
            first = await received(old, 2)
            in_order(first, range(2))
            assert [message.value for message in await received(new, 1)] == [b"1"]
            await old.ack_cumulative(first[-1])
            await _settled(admin, topic, "old", 0)
            await admin.subscriptions.seek_time(topic, "old", 0)
            in_order(await received(old, 2), range(2))
            await admin.subscriptions.skip_all(topic, "old")
            await producer.send(b"2", key="k2", timeout=RETRY_DELAYS)
            assert [message.value for message in await received(old, 1)] == [b"2"]


async def _settled(admin: Admin, topic: str, subscription: str, backlog: int) -> None:
    """Until the broker counts so many that are not acknowledged."""
    async with asyncio.timeout(RETRY_DELAYS):
        while True:
            stats = await admin.topics.stats(topic, precise_backlog=True)
            if stats["subscriptions"][subscription]["msgBacklog"] == backlog:
                return
            await asyncio.sleep(0.05)


async def test_new_partitions_are_noticed(sdk: Client, admin: Admin, made: Made) -> None:
    topic = await made(1)
    async with (
        sdk.queue_consumer(topic, subscription="s") as consumer,
        sdk.producer(topic, batching=None) as producer,
    ):
        await producer.send(b"0", timeout=RETRY_DELAYS)
        await admin.topics.add_partitions(topic, 3)
        lanes: set[int] = set()
        n = 1
        async with asyncio.timeout(RETRY_DELAYS):
            while len(lanes) < 3:
                lanes.add((await producer.send(b"%d" % n)).lane)
                n += 1
        found = await received(consumer, n)
        assert sorted(int(message.value) for message in found) == list(range(n))


# -- with the stock wheel on the other end


async def test_scenarios_98_99_keys_find_the_same_partition_on_both_sides(
    sdk: Client, stock: pulsar.Client, made: Made
) -> None:
    """The SDK routes by Murmur3 of the key. A stock producer with the same router uses the same partition, so a key
    that both write stays in order. By default the stock client uses another hash."""
    topic = await made(5)

    def routed(message: Any, count: int) -> int:
        return mod_n(key_hash(message.partition_key()), count)

    reader = await asyncio.to_thread(stock.subscribe, topic, "theirs")
    async with sdk.stream_consumer(topic, subscription="ours") as consumer, sdk.producer(topic) as producer:
        writer = await asyncio.to_thread(
            stock.create_producer,
            topic,
            message_routing_mode=pulsar.PartitionsRoutingMode.CustomPartition,
            message_router=routed,
        )
        for n in range(0, 60, 2):
            await producer.send(b"%d" % n, key=f"k{n % KEYS}", timeout=RETRY_DELAYS)
            await asyncio.to_thread(writer.send, b"%d" % (n + 1), partition_key=f"k{(n + 1) % KEYS}")
        in_order(await received(consumer, 60), range(60))
    for message in await taken(reader, 60):
        number = mod_n(key_hash(message.partition_key()), 5)
        assert message.topic_name() == f"{topic}-partition-{number}"


async def test_properties_and_batches_match_the_stock_client(sdk: Client, stock: pulsar.Client, made: Made) -> None:
    topic = await made(0)
    reader = await asyncio.to_thread(stock.subscribe, topic, "theirs")
    async with sdk.queue_consumer(topic, subscription="ours") as consumer:
        writer = await asyncio.to_thread(
            stock.create_producer, topic, producer_name="wheel", batching_enabled=True, batching_max_publish_delay_ms=50
        )
        for n in range(20):
            writer.send_async(b"%d" % n, None, properties={"n": str(n)}, partition_key=f"k{n}", event_timestamp=n + 1)
        await asyncio.to_thread(writer.flush)
        async with sdk.producer(topic, name="sdk", batching=Batching(max_delay=0.05)) as producer:
            for n in range(20, 40):
                producer.send_nowait(b"%d" % n, key=f"k{n}", properties={"n": str(n)}, event_time=n + 1)
        for n, message in enumerate(await received(consumer, 40)):
            assert (message.value, message.key, message.properties, message.event_time, message.producer_name) == (
                b"%d" % n,
                f"k{n}",
                {"n": str(n)},
                n + 1,
                "wheel" if n < 20 else "sdk",
            )
            assert message.id.batch_size == 20
    for n, message in enumerate(await taken(reader, 40)):
        found = message.data(), message.partition_key(), message.properties(), message.event_timestamp()
        assert found == (b"%d" % n, f"k{n}", {"n": str(n)}, n + 1)


# -- closing


async def test_close_wakes_receivers_and_leaves_nothing(apache: PulsarNode, admin: Admin, made: Made) -> None:
    topic = await made(2)
    client = await anabranch.connect(apache.service_url, connection=QUICK)
    stream = await client.stream_consumer(topic, subscription="a")
    queue = await client.queue_consumer(topic, subscription="b")
    reader = await client.checkpoint_consumer(topic)
    producer = await client.producer(topic)
    assert await stream.receive(timeout=0.01) is None
    consumers: tuple[Consumer, ...] = (stream, queue, reader)
    waiting = [asyncio.ensure_future(consumer.receive()) for consumer in consumers]
    await asyncio.sleep(0)
    await queue.close()
    await client.close()
    await client.close()
    assert [type(outcome) for outcome in await asyncio.gather(*waiting, return_exceptions=True)] == [Closed] * 3
    with pytest.raises(Closed):
        producer.send_nowait(b"too late")
    assert asyncio.all_tasks() == {asyncio.current_task()}
    async with asyncio.timeout(RETRY_DELAYS):
        while True:
            stats = await admin.topics.partitioned_stats(topic)
            parts = stats["partitions"].values()
            left = [one for part in parts for one in part["subscriptions"].values() if one["consumers"]]
            if not left and not any(part["publishers"] for part in parts):
                break
            await asyncio.sleep(0.05)


def test_blocking_client(apache: PulsarNode) -> None:
    topic = f"persistent://public/default/t-{uuid.uuid4().hex[:12]}"
    with anabranch.blocking.connect(apache.service_url) as client:
        with client.producer(topic, schema=String()) as producer:
            producer.send("one", key="k", timeout=RETRY_DELAYS)
            producer.send_nowait("two", key="k")
            producer.flush(timeout=RETRY_DELAYS)
        with client.stream_consumer(topic, subscription="s", start="earliest", schema=String()) as stream:
            found = [stream.receive(timeout=RETRY_DELAYS) for _ in range(2)]
            assert [one and one.value for one in found] == ["one", "two"]
            assert found[1] is not None
            stream.ack_cumulative(found[1])
        with client.queue_consumer(topic, subscription="q", start="earliest") as queue:
            message = queue.receive(timeout=RETRY_DELAYS)
            assert message is not None and message.value == b"one"
            queue.nack(message, delay=0)
        with client.checkpoint_consumer(topic, start=Checkpoint.earliest()) as reader:
            assert reader.receive(timeout=RETRY_DELAYS) is not None
            saved = reader.checkpoint()
        with client.checkpoint_consumer(topic, start=saved) as reader:
            message = reader.receive(timeout=RETRY_DELAYS)
            assert message is not None and message.value == b"two"
    with anabranch.admin.blocking.connect(apache.http_url) as admin:
        assert topic in admin.topics.list("public/default")
        assert sorted(admin.subscriptions.list(topic)) == ["q", "s"]


# -- administration


async def test_topics_are_administered(sdk: Client, admin: Admin, made: Made) -> None:
    topic = await made(3)
    assert await admin.topics.partitions(topic) == 3
    assert topic in await admin.topics.list_partitioned("public/default")
    async with sdk.producer(topic) as producer:
        for n in range(30):
            producer.send_nowait(b"%d" % n, key=f"k{n}")
    stats = await admin.topics.partitioned_stats(topic)
    assert stats["msgInCounter"] >= 1 and set(stats["partitions"]) == {f"{topic}-partition-{n}" for n in range(3)}
    internal = await admin.topics.internal_stats(f"{topic}-partition-0")
    assert internal["numberOfEntries"] >= 1
    last = await admin.topics.last_message_id(f"{topic}-partition-0")
    assert last["ledgerId"] >= 0
    assert (await admin.topics.lookup(f"{topic}-partition-0"))["brokerUrl"].startswith("pulsar://")
    await admin.topics.delete(topic, partitioned=True, force=True)
    assert topic not in await admin.topics.list_partitioned("public/default")
    with pytest.raises(Refused) as caught:
        await admin.topics.stats(topic)
    assert caught.value.status == 404


async def test_subscriptions_are_administered(sdk: Client, admin: Admin, made: Made) -> None:
    topic = await made(0)
    await admin.topics.create(topic)
    await admin.subscriptions.create(topic, "early", at="earliest")
    async with sdk.producer(topic, batching=None) as producer:
        pipelined(producer, range(10))
    assert await admin.subscriptions.list(topic) == ["early"]
    await _settled(admin, topic, "early", 10)
    await admin.subscriptions.skip(topic, "early", 4)
    await _settled(admin, topic, "early", 6)
    async with sdk.queue_consumer(topic, subscription="early") as consumer:
        assert sorted(int(message.value) for message in await received(consumer, 6)) == list(range(4, 10))
    await admin.subscriptions.delete(topic, "early")
    assert await admin.subscriptions.list(topic) == []


async def test_namespaces_tenants_and_brokers_are_administered(admin: Admin) -> None:
    name = f"public/n-{uuid.uuid4().hex[:6]}"
    assert "public" in await admin.tenants.list()
    await admin.namespaces.create(name)
    assert name in await admin.namespaces.list("public")
    await admin.namespaces.set_policy(name, "messageTTL", 3600)
    assert await admin.namespaces.policy(name, "messageTTL") == 3600
    await admin.topics.create(f"persistent://{name}/t")
    assert await admin.namespaces.topics(name) == [f"persistent://{name}/t"]
    await admin.topics.delete(f"persistent://{name}/t")
    await admin.namespaces.delete(name, force=False)
    assert name not in await admin.namespaces.list("public")
    assert (await admin.brokers.version()).startswith(("4.", "5."))
    assert await admin.brokers.list()
    with pytest.raises(Refused) as caught:
        await admin.namespaces.get("public/nowhere")
    assert caught.value.status == 404


# -- troubles, and last those of the broker's process


async def test_terminated_topic_is_reported_and_read_to_its_end(sdk: Client, admin: Admin, made: Made) -> None:
    topic = await made(0)
    async with sdk.producer(topic) as producer, sdk.stream_consumer(topic, subscription="s") as consumer:
        await producer.send(b"last", timeout=RETRY_DELAYS)
        await admin.topics.terminate(topic)
        with pytest.raises(TopicTerminated):
            await producer.send(b"too late", timeout=RETRY_DELAYS)
        (message,) = await received(consumer, 1)
        await consumer.ack_cumulative(message)
    with pytest.raises(TopicTerminated):
        await sdk.producer(topic)


@SHAPES
async def test_sends_continue_through_unloads(sdk: Client, admin: Admin, deduplicated: str, partitions: int) -> None:
    """No loss, no double and every key in order, while the broker lets go of the topic under pipelined load."""
    topic = f"persistent://{deduplicated}/t-{uuid.uuid4().hex[:8]}"
    await admin.topics.create(topic, partitions=partitions)
    async with (
        sdk.stream_consumer(topic, subscription="s") as consumer,
        sdk.producer(topic, name="p", batching=Batching(max_messages=8)) as producer,
    ):
        futures = []
        for turn in range(3):
            futures += pipelined(producer, range(turn * 200, turn * 200 + 200))
            await admin.topics.unload(topic)
        await producer.flush(timeout=RETRY_DELAYS)
        assert [future.exception() for future in futures] == [None] * 600
        found = await received(consumer, 600)
        in_order(found, range(600))
        await consumer.ack_cumulative(found[-1])
        await nothing_more(consumer)


async def test_consumers_continue_through_unloads_without_duplicates(sdk: Client, admin: Admin, made: Made) -> None:
    """Held messages come again from the broker, and not to the application; their acks still count."""
    topic = await made(0)
    async with (
        sdk.stream_consumer(topic, subscription="stream") as stream,
        sdk.queue_consumer(topic, subscription="queue") as queue,
        sdk.checkpoint_consumer(topic) as reader,
        sdk.producer(topic, batching=Batching(max_messages=5)) as producer,
    ):
        pipelined(producer, range(50))
        consumers: tuple[Consumer, ...] = (stream, queue, reader)
        held = {consumer: await received(consumer, 30) for consumer in consumers}
        await queue.ack(held[queue][0])
        await admin.topics.unload(topic)
        pipelined(producer, range(50, 60))
        for consumer in consumers:
            found = held[consumer] + await received(consumer, 30)
            in_order(found, range(60))
            await nothing_more(consumer)
            for message in found:
                if consumer is queue:
                    await queue.ack(message)
            if consumer is stream:
                await stream.ack_cumulative(found[-1])
        await _settled(admin, topic, "stream", 0)
        await _settled(admin, topic, "queue", 0)


async def test_sends_time_out_while_the_broker_is_silent(apache: PulsarNode, made: Made) -> None:
    topic = await made(0)
    async with (
        anabranch.connect(apache.service_url, connection=QUICK) as client,
        client.producer(topic, send_timeout=1.0) as producer,
    ):
        apache.pause()
        try:
            with pytest.raises(TimedOut):
                await producer.send(b"stuck", timeout=RETRY_DELAYS)
            with pytest.raises(TimedOut):
                await client.queue_consumer(topic, subscription="s", timeout=0.3)
        finally:
            apache.resume()
        async with asyncio.timeout(RETRY_DELAYS):
            while True:
                try:
                    await producer.send(b"through")
                    break
                except TimedOut:
                    continue  # each message has a different second


async def test_producers_and_consumers_continue_after_kill9(sdk: Client, apache: PulsarNode, deduplicated: str) -> None:
    """Producer, stream, queue and checkpoint consumer live through it: nothing lost, nothing twice, all in order."""
    topic = f"persistent://{deduplicated}/t-{uuid.uuid4().hex[:8]}"
    async with (
        sdk.stream_consumer(topic, subscription="stream") as stream,
        sdk.queue_consumer(topic, subscription="queue") as queue,
        sdk.checkpoint_consumer(topic) as reader,
        sdk.producer(topic, name="p", send_timeout=START_SECONDS, batching=Batching(max_messages=8)) as producer,
    ):
        futures = pipelined(producer, range(200))
        await producer.flush(timeout=RETRY_DELAYS)
        consumers: tuple[Consumer, ...] = (stream, queue, reader)
        held = {consumer: await received(consumer, 100) for consumer in consumers}
        await stream.ack_cumulative(held[stream][49])
        futures += pipelined(producer, range(200, 400))
        await asyncio.to_thread(apache.kill9)
        futures += pipelined(producer, range(400, 500))
        await asyncio.to_thread(apache.start, within_s=START_SECONDS)
        futures += pipelined(producer, range(500, 600))
        await producer.flush(timeout=START_SECONDS)
        assert [future.exception() for future in futures] == [None] * 600
        for consumer in consumers:
            in_order(held[consumer] + await received(consumer, 500), range(600))
            await nothing_more(consumer)
