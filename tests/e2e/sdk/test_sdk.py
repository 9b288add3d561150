"""The SDK against a real broker process."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import anabranch
from anabranch import Backoff, Batching, Client, ConnectionPolicy, Message, MessageId, QueueConsumer
from anabranch.client.consumer.consumer import Consumer
from anabranch.client.errors import (
    BadOption,
    BadServiceUrl,
    Closed,
    ConsumerBusy,
    MessageTooLarge,
    QueueFull,
    TimedOut,
)
from tests.e2e.conftest import StartBroker
from tests.support.processes.broker_process import BrokerProcess

RETRY_DELAYS = 20.0
QUICK = ConnectionPolicy(backoff=Backoff(initial=0.02, maximum=0.2))


@pytest.fixture
async def sdk(broker: BrokerProcess) -> AsyncIterator[Client]:
    async with anabranch.connect(broker.service_url, connection=QUICK) as client:
        yield client
    assert asyncio.all_tasks() == {asyncio.current_task()}, "the client left tasks behind"


async def received(consumer: Consumer, count: int) -> list[Message]:
    found: list[Message] = []
    while len(found) < count:
        message = await consumer.receive(timeout=RETRY_DELAYS)
        assert message is not None, f"only {len(found)} of {count} messages"
        found.append(message)
    return found


def create_partitioned(broker: BrokerProcess, topic: str, partitions: int) -> None:
    path = topic.removeprefix("persistent://")
    request = urllib.request.Request(
        f"{broker.http_url}/admin/v2/persistent/{path}/partitions", data=json.dumps(partitions).encode(), method="PUT"
    )
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=RETRY_DELAYS):
        pass


async def test_sent_messages_are_received(sdk: Client, topic: str) -> None:
    async with (
        sdk.queue_consumer(topic, subscription="s") as consumer,
        sdk.producer(topic, name="shop") as producer,
    ):
        sent = await producer.send(b"one", key="k", properties={"a": "1"}, event_time=1234, timeout=RETRY_DELAYS)
        (message,) = await received(consumer, 1)
        assert message.value == b"one"
        assert (message.key, message.properties, message.event_time) == ("k", {"a": "1"}, 1234)
        assert (message.producer_name, message.sequence_id, message.redelivery_count) == ("shop", 0, 0)
        assert message.id == sent
        assert message.topic == producer.topic == consumer.topic
        assert message.publish_time > 1_600_000_000_000
        assert MessageId.from_bytes(sent.to_bytes()) == sent
        await consumer.ack(message)


async def test_pipelined_sends_keep_their_order_in_batches(sdk: Client, topic: str) -> None:
    async with (
        sdk.stream_consumer(topic, subscription="s", start="earliest") as consumer,
        sdk.producer(topic, batching=Batching(max_messages=7)) as producer,
    ):
        futures = [producer.send_nowait(b"%d" % n, key=f"k{n % 3}") for n in range(100)]
        await producer.flush(timeout=RETRY_DELAYS)
        assert all(future.done() for future in futures)
        ids = [future.result() for future in futures]
        assert ids == sorted(ids) and len(set(ids)) == 100
        messages = await received(consumer, 100)
        assert [message.value for message in messages] == [b"%d" % n for n in range(100)]
        assert [message.id for message in messages] == ids
        await consumer.ack_cumulative(messages[-1])


async def test_receive_returns_none_after_its_timeout(sdk: Client, topic: str) -> None:
    async with sdk.queue_consumer(topic, subscription="s") as consumer:
        assert await consumer.receive(timeout=0.01) is None
        assert await consumer.receive_many(5, timeout=0.01) == []


async def test_acks_of_single_messages_of_a_batch_survive_the_consumer(sdk: Client, topic: str) -> None:
    async with sdk.queue_consumer(topic, subscription="s", start="earliest") as consumer:
        async with sdk.producer(topic, batching=Batching(max_delay=60)) as producer:
            futures = [producer.send_nowait(b"%d" % n) for n in range(10)]
            await producer.flush(timeout=RETRY_DELAYS)
        assert {future.result().batch_size for future in futures} == {10}
        for message in await received(consumer, 10):
            if int(message.value) % 2:
                await consumer.ack(message)
    async with sdk.queue_consumer(topic, subscription="s") as consumer:
        again = await received(consumer, 5)
        assert [message.value for message in again] == [b"0", b"2", b"4", b"6", b"8"]
        assert await consumer.receive(timeout=0.05) is None


async def test_nack_redelivers_only_that_message_of_the_batch(sdk: Client, topic: str) -> None:
    async with (
        sdk.queue_consumer(topic, subscription="s") as consumer,
        sdk.producer(topic, batching=Batching(max_delay=60)) as producer,
    ):
        for n in range(4):
            producer.send_nowait(b"%d" % n)
        await producer.flush(timeout=RETRY_DELAYS)
        messages = await received(consumer, 4)
        await consumer.ack(messages[0])
        await consumer.nack(messages[2], delay=0.01)
        (again,) = await received(consumer, 1)
        assert again.id == messages[2].id
        assert again.redelivery_count == 1
        assert await consumer.receive(timeout=0.05) is None


async def test_cumulative_ack_inside_a_batch(sdk: Client, topic: str) -> None:
    async with sdk.stream_consumer(topic, subscription="s") as consumer:
        async with sdk.producer(topic, batching=Batching(max_delay=60)) as producer:
            for n in range(6):
                producer.send_nowait(b"%d" % n)
        messages = await received(consumer, 6)
        await consumer.ack_cumulative(messages[3])
    async with sdk.stream_consumer(topic, subscription="s") as consumer:
        assert [message.value for message in await received(consumer, 2)] == [b"4", b"5"]


async def test_partitions_are_lanes(sdk: Client, broker: BrokerProcess, topic: str) -> None:
    create_partitioned(broker, topic, 3)
    async with (
        sdk.stream_consumer(topic, subscription="s") as consumer,
        sdk.producer(topic) as producer,
    ):
        for n in range(90):
            producer.send_nowait(b"%d" % n, key=f"k{n % 9}")
        await producer.flush(timeout=RETRY_DELAYS)
        messages = await received(consumer, 90)
        assert {message.id.lane for message in messages} == {0, 1, 2}
        assert {message.topic for message in messages} == {topic}
        for key in {message.key for message in messages}:
            values = [int(message.value) for message in messages if message.key == key]
            assert values == sorted(values) and len(values) == 10
        await consumer.ack_cumulative(messages[59])
    async with sdk.stream_consumer(topic, subscription="s") as consumer:
        left = await received(consumer, 30)
        assert {message.value for message in left} == {message.value for message in messages[60:]}
        assert await consumer.receive(timeout=0.05) is None


async def test_keyless_messages_use_every_partition(sdk: Client, broker: BrokerProcess, topic: str) -> None:
    create_partitioned(broker, topic, 2)
    async with sdk.producer(topic) as producer:
        ids = await asyncio.gather(*(producer.send(b"x") for _ in range(10)))
        assert sorted(one.lane for one in ids) == [0] * 5 + [1] * 5


async def test_async_iteration_ends_with_the_consumer(sdk: Client, topic: str) -> None:
    consumer = await sdk.stream_consumer(topic, subscription="s")
    async with sdk.producer(topic) as producer:
        await producer.send(b"x")
    seen = []
    async for message in consumer:
        seen.append(message.value)
        await consumer.close()
    assert seen == [b"x"]


async def test_a_waiting_receive_wakes_when_the_consumer_closes(sdk: Client, topic: str) -> None:
    consumer = await sdk.queue_consumer(topic, subscription="s")
    waiting = asyncio.ensure_future(consumer.receive())
    await asyncio.sleep(0)
    await consumer.close()
    with pytest.raises(Closed):
        await waiting
    with pytest.raises(Closed):
        await consumer.ack(MessageId(topic, 0, 0))


async def test_a_cancelled_receive_loses_nothing(sdk: Client, topic: str) -> None:
    async with sdk.queue_consumer(topic, subscription="s") as consumer, sdk.producer(topic) as producer:
        for n in range(50):
            waiting = asyncio.ensure_future(consumer.receive())
            await asyncio.sleep(0)
            future = producer.send_nowait(b"%d" % n)
            if n % 2:
                await future
            waiting.cancel()
            try:
                message = await waiting
            except asyncio.CancelledError:
                message = await consumer.receive(timeout=RETRY_DELAYS)
            assert message is not None
            assert message.value == b"%d" % n


async def test_invalid_calls_are_refused_with_a_reason(sdk: Client, topic: str) -> None:
    """Scenario 7: an HTTP address is named as what it is."""
    with pytest.raises(BadServiceUrl):
        anabranch.connect("http://localhost:8080")
    with pytest.raises(BadOption):
        sdk.producer("segment://public/default/x/0000-ffff-0")
    with pytest.raises(BadOption):
        sdk.producer("non-persistent://public/default/x")
    async with sdk.producer(topic, pending_bytes_max=1000) as producer:
        with pytest.raises(MessageTooLarge):
            await producer.send(b"x" * (6 << 20))
        first = producer.send_nowait(b"x" * 900)
        with pytest.raises(QueueFull):
            producer.send_nowait(b"y" * 900)
        await producer.send(b"y" * 900)  # waits for room
        assert first.done()
        assert producer.pending_bytes == 0
    with pytest.raises(Closed):
        await producer.send(b"late")


async def test_connect_without_a_broker_fails_in_time() -> None:
    with pytest.raises(TimedOut) as caught:
        await anabranch.connect("pulsar://127.0.0.1:1", operation_timeout=0.2, connection=QUICK)
    assert caught.value.retryable
    assert "cannot connect" in caught.value.reason


async def test_second_producer_with_the_same_name_is_refused_at_once(sdk: Client, topic: str) -> None:
    async with sdk.stream_consumer(topic, subscription="s"):
        with pytest.raises(ConsumerBusy):
            await sdk.queue_consumer(topic, subscription="s")


async def test_closing_twice_and_with_pending_sends(broker: BrokerProcess, topic: str) -> None:
    client = await anabranch.connect(broker.service_url)
    producer = await client.producer(topic, batching=Batching(max_delay=60))
    future = producer.send_nowait(b"x")
    await client.close()
    assert future.result().ledger >= 0  # close flushed it
    await client.close()
    await producer.close()
    with pytest.raises(Closed):
        await client.producer(topic)


def open_sockets() -> int:
    return sum("socket:" in os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if _is_there(fd))


def _is_there(fd: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{fd}")


async def test_nothing_is_left_open(broker: BrokerProcess, topic: str) -> None:
    before = open_sockets()
    client = await anabranch.connect(broker.service_url, connection=QUICK)
    await client.producer(topic)
    await client.queue_consumer(topic, subscription="s")
    opening = asyncio.ensure_future(client.stream_consumer(topic, subscription="t").__aenter__())
    await asyncio.sleep(0)
    opening.cancel()
    await asyncio.gather(opening, return_exceptions=True)
    assert open_sockets() == before + 1  # one connection for everything
    await client.close()
    assert open_sockets() == before


def test_blocking_client(broker: BrokerProcess, topic: str) -> None:
    with anabranch.blocking.connect(broker.service_url) as client:
        with (
            client.stream_consumer(topic, subscription="s") as stream,
            client.queue_consumer(topic, subscription="q") as queue,
            client.producer(topic) as producer,
        ):
            first = producer.send(b"0", key="k", timeout=RETRY_DELAYS)
            futures = [producer.send_nowait(b"%d" % n, key="k") for n in range(1, 20)]
            producer.flush(timeout=RETRY_DELAYS)
            ids = [first, *(future.result(timeout=RETRY_DELAYS) for future in futures)]
            messages = []
            for message in stream:
                messages.append(message)
                if len(messages) == 20:
                    break
            assert [message.id for message in messages] == ids
            assert [int(message.value) for message in messages] == list(range(20))
            stream.ack_cumulative(messages[-1])
            for message in queue.receive_many(20, timeout=RETRY_DELAYS):
                queue.ack(message)
        assert producer.is_closed
        with pytest.raises(Closed):
            producer.send(b"late")
    assert client.is_closed


def test_examples_of_the_sdk_page_run(private_broker: BrokerProcess) -> None:
    page = (Path(__file__).parents[3] / "docs" / "guides" / "sdk.md").read_text()
    shown = []
    for program in re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        program = program.replace("pulsar://localhost:6650", private_broker.service_url)
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        shown.append(done.stdout)
    assert "customer-1 b'paid'" in shown[0]
    assert any("['hall', 'roof', 'hall'] [b'20.5', b'21.0', b'19.8']" in text for text in shown)


async def produce_through_kills(broker: BrokerProcess, topic: str, count: int, kills: int) -> list[int]:
    """Sends `count` keyed messages, pipelined, while the broker is killed and restarted; the values in stored order."""
    async with anabranch.connect(broker.service_url, connection=QUICK) as client:
        async with client.producer(topic, name="p", batching=Batching(max_messages=10)) as producer:
            futures = []
            for n in range(count):
                futures.append(producer.send_nowait(b"%d" % n, key=f"k{n % 5}"))
                if n % 20 == 19:
                    await asyncio.sleep(0)
                if n % (count // (kills + 1)) == 0 and n:
                    broker.kill9()
                    await asyncio.to_thread(broker.start)
                    await futures[n // 2]
            await producer.flush(timeout=RETRY_DELAYS)
            assert [future for future in futures if future.exception() is not None] == []
        async with client.stream_consumer(topic, subscription="audit", start="earliest") as consumer:
            seen: list[int] = []
            while set(seen) != set(range(count)):
                message = await consumer.receive(timeout=RETRY_DELAYS)
                assert message is not None, f"{count - len(set(seen))} messages were lost"
                seen.append(int(message.value))
            return seen


@pytest.mark.slow
@pytest.mark.parametrize("deduplication", ["false", "true"])
async def test_kill9_in_the_middle_of_pipelined_sends(
    start_broker: StartBroker, topic: str, deduplication: str
) -> None:
    broker = start_broker(environment={"ANABRANCH_BROKER_DEDUPLICATION": deduplication})
    create_partitioned(broker, topic, 2)
    seen = await produce_through_kills(broker, topic, 600, kills=2)
    if deduplication == "true":
        assert len(seen) == len(set(seen)), "stored twice"
    for key in range(5):
        first_seen = list(dict.fromkeys(n for n in seen if n % 5 == key))
        assert first_seen == sorted(first_seen), f"key {key} was reordered"


def cut(client: Client) -> None:
    """Reset every connection under the client's feet, with whatever is on its way in either direction."""
    for connection in client._pool._connections.values():
        if connection._stream is not None:
            connection._stream.abort()


@pytest.mark.slow
async def test_lost_connections_lose_repeat_and_reorder_nothing(start_broker: StartBroker, topic: str) -> None:
    broker = start_broker(environment={"ANABRANCH_BROKER_DEDUPLICATION": "true"})
    create_partitioned(broker, topic, 2)
    count = 2000
    async with (
        anabranch.connect(broker.service_url, connection=QUICK) as reading,
        anabranch.connect(broker.service_url, connection=QUICK) as writing,
        reading.stream_consumer(topic, subscription="s", prefetch=50) as consumer,
        writing.producer(topic, batching=Batching(max_messages=7)) as producer,
    ):

        async def produce() -> None:
            for n in range(count):
                future = producer.send_nowait(b"%d" % n, key=f"k{n % 5}")
                if n % 50 == 49:
                    await asyncio.sleep(0)  # what was written is on its way
                if n % 250 == 249:
                    cut(writing)
                    await future

        async def consume() -> list[int]:
            seen = []
            for n in range(count):
                message = await consumer.receive(timeout=RETRY_DELAYS)
                assert message is not None, f"only {n} of {count} messages"
                seen.append(int(message.value))
                if n % 100 == 99:
                    await consumer.ack_cumulative(message)
                if n % 300 == 299:
                    cut(reading)
            return seen

        _, seen = await asyncio.gather(produce(), consume())
        assert sorted(seen) == list(range(count)), "lost or doubled"
        for key in range(5):
            of_key = [n for n in seen if n % 5 == key]
            assert of_key == sorted(of_key), f"key {key} was reordered"
        assert await consumer.receive(timeout=0.1) is None


@pytest.mark.slow
async def test_stream_continues_after_kill_without_duplicates(private_broker: BrokerProcess, topic: str) -> None:
    async with anabranch.connect(private_broker.service_url, connection=QUICK) as client:
        async with (
            client.stream_consumer(topic, subscription="s", prefetch=10) as consumer,
            client.producer(topic, batching=Batching(max_messages=10)) as producer,
        ):
            for n in range(100):
                producer.send_nowait(b"%d" % n)
            await producer.flush(timeout=RETRY_DELAYS)
            before = await received(consumer, 37)
            await consumer.ack_cumulative(before[20])
            private_broker.kill9()
            await asyncio.to_thread(private_broker.start)
            after = await received(consumer, 63)
            assert [int(message.value) for message in before + after] == list(range(100))
            await consumer.ack_cumulative(after[-1])
        async with client.stream_consumer(topic, subscription="s") as consumer:
            assert await consumer.receive(timeout=0.1) is None


@pytest.mark.slow
async def test_held_messages_of_a_queue_are_acked_after_a_kill(private_broker: BrokerProcess, topic: str) -> None:
    async with anabranch.connect(private_broker.service_url, connection=QUICK) as client:
        async with client.producer(topic) as producer, client.queue_consumer(topic, subscription="s") as consumer:
            for n in range(20):
                producer.send_nowait(b"%d" % n)
            await producer.flush(timeout=RETRY_DELAYS)
            held = await received(consumer, 10)
            private_broker.kill9()
            for message in held:
                await consumer.ack(message)
            await asyncio.to_thread(private_broker.start)
            rest = await received(consumer, 10)
            assert [int(message.value) for message in held + rest] == list(range(20))
            for message in rest:
                await consumer.ack(message)
        async with client.queue_consumer(topic, subscription="s") as consumer:
            assert await consumer.receive(timeout=0.1) is None


@pytest.mark.slow
async def test_close_does_not_hang_without_a_broker(private_broker: BrokerProcess, topic: str) -> None:
    before = asyncio.all_tasks()
    client = await anabranch.connect(private_broker.service_url, connection=QUICK)
    producer = await client.producer(topic)
    consumer: QueueConsumer = await client.queue_consumer(topic, subscription="s")
    private_broker.kill9()
    future = producer.send_nowait(b"x")
    waiting = asyncio.ensure_future(consumer.receive())
    async with asyncio.timeout(RETRY_DELAYS):
        await client.close(timeout=0.1)
    with pytest.raises(Closed):
        await future
    with pytest.raises(Closed):
        await waiting
    assert asyncio.all_tasks() <= before


@pytest.mark.slow
async def test_sends_time_out_while_the_broker_is_away(private_broker: BrokerProcess, topic: str) -> None:
    async with (
        anabranch.connect(private_broker.service_url, connection=QUICK) as client,
        client.producer(topic, send_timeout=0.2) as producer,
    ):
        private_broker.kill9()
        with pytest.raises(TimedOut):
            await producer.send(b"lost")
        await asyncio.to_thread(private_broker.start)
        async with asyncio.timeout(RETRY_DELAYS):
            while True:  # attached again when its turn comes, which may take longer than 0.2 s
                try:
                    assert (await producer.send(b"found")).ledger >= 0
                    break
                except TimedOut:
                    continue
