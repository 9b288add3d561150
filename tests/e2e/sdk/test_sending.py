"""Options of sending, and access modes of producers: delays, times, exclusive producers, credits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta

import pulsar
import pytest

import anabranch
from anabranch import AccessMode, Backoff, Client, ConnectionPolicy
from anabranch.client.errors import BadOption, ProducerBusy, ProducerFenced, TimedOut
from anabranch.testing import Broker
from tests.support.processes.broker_process import BrokerProcess

RETRY_DELAYS = 20.0
QUICK = ConnectionPolicy(backoff=Backoff(initial=0.02, maximum=0.2))


@pytest.fixture
async def sdk(broker: BrokerProcess) -> AsyncIterator[Client]:
    async with anabranch.connect(broker.service_url, connection=QUICK) as client:
        yield client


async def test_delayed_messages_arrive_at_their_time(sdk: Client, topic: str) -> None:
    """Scenario 23: to queues not before their time; streams keep the order."""
    async with (
        sdk.queue_consumer(topic, subscription="queue") as queue,
        sdk.stream_consumer(topic, subscription="stream") as stream,
        sdk.producer(topic) as producer,
    ):
        at = datetime.now(UTC) + timedelta(seconds=1)
        await producer.send(b"at", deliver_at=at, timeout=RETRY_DELAYS)
        after = datetime.now(UTC) + timedelta(seconds=0.5)
        await producer.send(b"after", deliver_after=timedelta(seconds=0.5), timeout=RETRY_DELAYS)
        await producer.send(b"now", timeout=RETRY_DELAYS)
        not_before = {b"at": at, b"after": after, b"now": datetime(2026, 1, 1, tzinfo=UTC)}
        while not_before:
            message = await queue.receive(timeout=RETRY_DELAYS)
            assert message is not None
            assert datetime.now(UTC) >= not_before.pop(message.value)
        ordered = [await stream.receive(timeout=RETRY_DELAYS) for _ in range(3)]
        assert [one and one.value for one in ordered] == [b"at", b"after", b"now"], "streams keep the order"


async def test_times_keys_and_properties_arrive(sdk: Client, client: pulsar.Client, topic: str) -> None:
    """Scenario 22, also at the stock client."""
    theirs = await asyncio.to_thread(client.subscribe, topic, "stock")
    moment = datetime(2026, 11, 17, 3, 0, 0, 123_000, UTC)
    async with sdk.queue_consumer(topic, subscription="s") as consumer, sdk.producer(topic) as producer:
        await producer.send(b"x", key=b"\x00\xff", event_time=moment, properties={"a": "b"}, timeout=RETRY_DELAYS)
        await producer.send(b"y", timeout=RETRY_DELAYS)
        first, second = [await consumer.receive(timeout=RETRY_DELAYS) for _ in range(2)]
        assert first is not None and second is not None
        millis = round(moment.timestamp() * 1000)
        assert (first.key, first.event_time, first.properties) == (b"\x00\xff", millis, {"a": "b"})
        assert (second.key, second.event_time, second.properties) == (None, None, {})
        message = await asyncio.to_thread(theirs.receive, int(RETRY_DELAYS * 1000))
        assert (message.event_timestamp(), message.properties()) == (millis, {"a": "b"})
        for wrong in (
            {"deliver_after": 1, "deliver_at": 1},
            {"deliver_after": -1},
            {"deliver_at": datetime(2026, 1, 1)},
            {"event_time": -1},
            {"sequence_id": -1},
        ):
            with pytest.raises(BadOption):
                producer.send_nowait(b"z", **wrong)


async def test_one_exclusive_producer_at_a_time(sdk: Client, topic: str) -> None:
    """Scenario 19: a second one is refused when it is opened; one that waits gets in when the first one closes."""
    first = await sdk.producer(topic, access=AccessMode.EXCLUSIVE)
    await first.send(b"first", timeout=RETRY_DELAYS)
    with pytest.raises(ProducerFenced):
        await sdk.producer(topic, access="exclusive")
    with pytest.raises(ProducerBusy):
        await sdk.producer(topic)
    with pytest.raises(TimedOut):
        await sdk.producer(topic, access="wait-for-exclusive", timeout=0.3)
    waiting = asyncio.ensure_future(sdk.producer(topic, access="wait-for-exclusive", timeout=RETRY_DELAYS).__aenter__())
    await asyncio.sleep(0)
    await first.close()
    second = await waiting
    await second.send(b"second", timeout=RETRY_DELAYS)
    with pytest.raises(BadOption, match="access is one of"):
        sdk.producer(topic, access="alone")


async def test_fenced_producer_gets_an_error(sdk: Client, topic: str) -> None:
    old = await sdk.producer(topic, access="exclusive")
    async with sdk.producer(topic, access="exclusive-with-fencing") as new:
        await new.send(b"new", timeout=RETRY_DELAYS)
        with pytest.raises(ProducerFenced):
            await old.send(b"old", timeout=RETRY_DELAYS)


@pytest.fixture(scope="module")
def narrow() -> Iterator[Broker]:
    """A broker that takes little at once."""
    with Broker(settings={"broker.producer_messages_max": 10, "broker.producer_bytes_max": 64 << 10}) as running:
        yield running


async def test_producer_respects_the_brokers_window(narrow: Broker) -> None:
    """Ten messages or 64 KiB unstored at most; everything arrives, in order."""
    topic = "persistent://public/default/narrow"
    async with (
        anabranch.connect(narrow.service_url) as client,
        client.stream_consumer(topic, subscription="s") as consumer,
        client.producer(topic, batching=None) as producer,
    ):
        most = 0
        sent = [producer.send_nowait(b"%d" % n + b"x" * (n % 5 * 10_000)) for n in range(300)]
        for runner in producer._segments._producers.values():
            lane = runner.lane
            assert lane._credits is not None
            most = max(most, len(lane._in_flight))
        await asyncio.gather(*sent)
        assert 1 <= most <= 10
        for n in range(300):
            message = await consumer.receive(timeout=RETRY_DELAYS)
            assert message is not None
            assert message.value.startswith(b"%d" % n)
