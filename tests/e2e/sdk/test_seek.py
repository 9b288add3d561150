"""seek and unsubscribe of the SDK's consumers, on regular and scalable topics."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest

import anabranch
import anabranch.admin
from anabranch import Client
from anabranch.client.errors import BadOption, Closed, NotSupported, Refused
from tests.support.processes.broker_process import BrokerProcess

LIMIT_S = 20.0


@pytest.fixture
async def sdk(broker: BrokerProcess) -> AsyncIterator[Client]:
    async with anabranch.connect(broker.service_url) as client:
        yield client


async def received(consumer: Any, count: int) -> list[bytes]:
    found: list[bytes] = []
    for _ in range(count):
        message = await consumer.receive(timeout=LIMIT_S)
        assert message is not None, found
        found.append(message.value)
        await (consumer.ack(message) if hasattr(consumer, "ack") else consumer.ack_cumulative(message))
    return found


def opened(sdk: Client, kind: str, topic: str) -> Any:
    make = sdk.queue_consumer if kind == "queue" else sdk.stream_consumer
    return make(topic, subscription="s", start="earliest")


@pytest.mark.parametrize("partitions", [0, 3])
@pytest.mark.parametrize("kind", ["queue", "stream"])
async def test_seek_moves_the_subscription_of_every_partition(
    sdk: Client, broker: BrokerProcess, topic: str, kind: str, partitions: int
) -> None:
    if partitions:
        async with anabranch.admin.connect(broker.http_url) as admin:
            await admin.topics.create(topic, partitions=partitions)
    before = [b"%d" % n for n in range(20)]
    after = [b"%d" % n for n in range(20, 40)]
    async with opened(sdk, kind, topic) as consumer, sdk.producer(topic) as producer:
        for value in before:
            await producer.send(value, key=value.decode(), timeout=LIMIT_S)
        await asyncio.sleep(0.01)  # so that the times differ
        moment = datetime.now(UTC)
        await asyncio.sleep(0.01)
        for value in after:
            await producer.send(value, key=value.decode(), timeout=LIMIT_S)
        assert sorted(await received(consumer, 40), key=int) == before + after
        await consumer.seek("earliest", timeout=LIMIT_S)
        assert sorted(await received(consumer, 40), key=int) == before + after
        await consumer.seek(moment, timeout=LIMIT_S)
        assert sorted(await received(consumer, 20), key=int) == after
        await consumer.seek("earliest", timeout=LIMIT_S)
        await received(consumer, 5)  # the rest waits in the buffer
        await consumer.seek("latest", timeout=LIMIT_S)
        assert await consumer.receive(timeout=0.3) is None
        await producer.send(b"new", timeout=LIMIT_S)
        assert await received(consumer, 1) == [b"new"]
    async with opened(sdk, kind, topic) as again:
        assert await again.receive(timeout=0.3) is None, "the acks after the seeks count"


@pytest.mark.parametrize("kind", ["queue", "stream"])
async def test_unsubscribe_deletes_the_subscription_unless_others_are_attached(
    sdk: Client, broker: BrokerProcess, topic: str, kind: str
) -> None:
    async with anabranch.admin.connect(broker.http_url) as admin, sdk.producer(topic) as producer:
        await producer.send(b"x", timeout=LIMIT_S)
        async with opened(sdk, kind, topic) as consumer:
            async with opened(sdk, kind, topic):
                with pytest.raises(Refused):
                    await consumer.unsubscribe(timeout=LIMIT_S)
                assert not consumer.is_closed and await admin.subscriptions.list(topic) == ["s"]
            await consumer.unsubscribe(timeout=LIMIT_S)
            assert consumer.is_closed
            with pytest.raises(Closed):
                await consumer.seek("earliest")
        assert await admin.subscriptions.list(topic) == []


async def test_what_cannot_be_moved_is_refused_and_changes_nothing(sdk: Client, topic: str) -> None:
    async with opened(sdk, "queue", topic) as consumer:
        for wrong in ("now", 1.5, datetime(2026, 1, 1)):
            with pytest.raises(BadOption):
                await consumer.seek(wrong)
    async with sdk.checkpoint_consumer(topic) as reader:
        with pytest.raises(NotSupported):
            await reader.seek("earliest")


@pytest.fixture
async def scalable(broker: BrokerProcess, topic: str) -> str:
    """A scalable topic of two segments."""
    name = topic.replace("persistent://", "topic://")
    async with anabranch.admin.connect(broker.http_url) as admin:
        await admin.scalable_topics.create(name, segments=2)
    return name


@pytest.mark.parametrize("kind", ["queue", "stream"])
async def test_seek_moves_all_segments_of_a_scalable_topic(
    sdk: Client, broker: BrokerProcess, scalable: str, kind: str
) -> None:
    before = [b"%d" % n for n in range(20)]
    after = [b"%d" % n for n in range(20, 40)]
    async with (
        anabranch.admin.connect(broker.http_url) as admin,
        opened(sdk, kind, scalable) as consumer,
        sdk.producer(scalable) as producer,
    ):
        for value in before:
            await producer.send(value, key=value.decode(), timeout=LIMIT_S)
        await admin.scalable_topics.split(scalable, 0)
        await asyncio.sleep(0.01)  # so that the times differ
        moment = datetime.now(UTC)
        await asyncio.sleep(0.01)
        for value in after:
            await producer.send(value, key=value.decode(), timeout=LIMIT_S)
        assert sorted(await received(consumer, 40), key=int) == before + after
        await consumer.seek("earliest", timeout=LIMIT_S)
        assert sorted(await received(consumer, 40), key=int) == before + after
        await consumer.seek(moment, timeout=LIMIT_S)
        assert sorted(await received(consumer, 20), key=int) == after
        await consumer.seek("earliest", timeout=LIMIT_S)
        await received(consumer, 5)  # the rest waits in the buffer
        await consumer.seek("latest", timeout=LIMIT_S)
        assert await consumer.receive(timeout=0.3) is None
        await producer.send(b"new", timeout=LIMIT_S)
        assert await received(consumer, 1) == [b"new"]
    async with opened(sdk, kind, scalable) as again:
        assert await again.receive(timeout=0.3) is None, "the acks after the seeks count"


@pytest.mark.parametrize("kind", ["queue", "stream"])
async def test_acks_of_messages_from_before_a_seek_do_not_count(sdk: Client, scalable: str, kind: str) -> None:
    values = [b"%d" % n for n in range(20)]
    async with sdk.producer(scalable) as producer:
        for value in values:
            await producer.send(value, key=value.decode(), timeout=LIMIT_S)
    async with opened(sdk, kind, scalable) as other, opened(sdk, kind, scalable) as consumer:
        held = []
        for one in (consumer, other):
            while (message := await one.receive(timeout=1.0)) is not None:
                held.append((one, message))
        assert sorted((message.value for _, message in held), key=int) == values
        await consumer.seek("earliest", timeout=LIMIT_S)
        again: set[bytes] = set()
        while len(again) < len(values):
            for one in (consumer, other):
                if (message := await one.receive(timeout=0.2)) is not None:
                    again.add(message.value)
        for one, message in held:
            await (one.ack(message) if kind == "queue" else one.ack_cumulative(message))
    async with opened(sdk, kind, scalable) as last:
        assert sorted(await received(last, 20), key=int) == values, "the late acks were ignored"


async def test_seek_behind_a_position_of_a_stream_continues_there(
    sdk: Client, broker: BrokerProcess, scalable: str
) -> None:
    async with opened(sdk, "stream", scalable) as consumer, sdk.producer(scalable) as producer:
        for n in range(40):
            await producer.send(b"%d" % n, key=str(n), timeout=LIMIT_S)
            if n == 19:
                async with anabranch.admin.connect(broker.http_url) as admin:
                    await admin.scalable_topics.split(scalable, 0)
        messages = []
        for _ in range(40):
            message = await consumer.receive(timeout=LIMIT_S)
            assert message is not None
            messages.append(message)
        await consumer.seek(consumer.position(messages[10]), timeout=LIMIT_S)
        rest = [message.value for message in messages[11:]]
        assert sorted(await received(consumer, len(rest)), key=int) == sorted(rest, key=int)
        assert await consumer.receive(timeout=0.3) is None


@pytest.mark.parametrize("kind", ["queue", "stream"])
async def test_unsubscribe_of_a_scalable_topic_is_refused_while_others_are_attached(
    sdk: Client, broker: BrokerProcess, scalable: str, kind: str
) -> None:
    async with anabranch.admin.connect(broker.http_url) as admin:
        async with opened(sdk, kind, scalable) as consumer:
            async with opened(sdk, kind, scalable):
                with pytest.raises(Refused, match="used by 1 other"):
                    await consumer.unsubscribe(timeout=LIMIT_S)
                assert not consumer.is_closed
            assert list((await admin.scalable_topics.stats(scalable))["subscriptions"]) == ["s"]
            await consumer.unsubscribe(timeout=LIMIT_S)
            assert consumer.is_closed
        assert list((await admin.scalable_topics.stats(scalable))["subscriptions"]) == []
