"""Messages without a value: sent as None, received as None, and compaction removes their keys."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pulsar
import pytest

import anabranch
from anabranch import Batching, Client
from anabranch.client.errors import BadOption
from anabranch.protocol.codec import BadColumn
from tests.support.processes.broker_process import BrokerProcess
from tests.support.traffic.stock_calls import Rest, eventually, topic_path

LIMIT_S = 20.0


@pytest.fixture
async def sdk(broker: BrokerProcess) -> AsyncIterator[Client]:
    async with anabranch.connect(broker.service_url) as client:
        yield client


@dataclass
class Order:
    state: str


FORMS = {"alone": None, "batched": Batching(max_delay=5.0, max_messages=3)}


@pytest.mark.parametrize("domain", ["persistent", "topic"])
@pytest.mark.parametrize("form", FORMS)
async def test_none_is_received_as_none_beside_empty_values(sdk: Client, topic: str, form: str, domain: str) -> None:
    place = topic.replace("persistent://", f"{domain}://")
    async with (
        sdk.stream_consumer(place, subscription="s", start="earliest") as consumer,
        sdk.producer(place, batching=FORMS[form]) as producer,
    ):
        sent = [producer.send_nowait(value, key="k") for value in (b"x", None, b"")]
        await asyncio.wait_for(asyncio.gather(*sent), LIMIT_S)
        found = [await consumer.receive(timeout=LIMIT_S) for _ in range(3)]
        assert [(one and one.value, one and one.is_tombstone) for one in found] == [
            (b"x", False),
            (None, True),
            (b"", False),
        ]
        assert [one and one.data for one in found] == [b"x", b"", b""]
        assert "data=None" in repr(found[1])
        await producer.send(None, key="k", properties={"a": "b"}, timeout=LIMIT_S)
        await producer.send_batch([b"y", None, b""], ["k", "k", None], timeout=LIMIT_S)
        values: list[Any] = []
        keys: list[Any] = []
        columns: list[Any] = []
        while len(values) < 4:
            batch = await consumer.receive_batch(timeout=LIMIT_S)
            assert len(batch)
            values += batch.values()
            keys += batch.keys()
            columns += batch.to_arrow(["value"])["value"].to_pylist()
        assert values == columns == [None, b"y", None, b""]
        assert keys == ["k", "k", "k", None]


async def test_none_needs_a_key(sdk: Client, topic: str) -> None:
    async with sdk.producer(topic) as producer:
        for call in (producer.send, producer.send_nowait):
            with pytest.raises(BadOption, match="needs key="):
                made: Any = call(None)
                await made
        for keys in (None, ["k", None]):
            with pytest.raises(BadColumn, match="row 1 has neither value nor key"):
                await producer.send_batch([b"x", None], keys)
        assert producer.pending_bytes == 0


async def test_schema_does_not_see_none(sdk: Client, topic: str) -> None:
    async with (
        sdk.queue_consumer(topic, subscription="s", schema=Order) as consumer,
        sdk.producer(topic, schema=Order) as producer,
    ):
        await producer.send(Order("new"), key="k", timeout=LIMIT_S)
        await producer.send(None, key="k", timeout=LIMIT_S)
        found = [await consumer.receive(timeout=LIMIT_S) for _ in range(2)]
        assert [one and one.value for one in found] == [Order("new"), None]


async def test_compaction_removes_the_key_for_stock_clients(
    sdk: Client, client: pulsar.Client, broker: BrokerProcess, topic: str
) -> None:
    rest = Rest(broker.http_url)
    plain = client.subscribe(topic, "stock")
    async with sdk.producer(topic, batching=Batching(max_delay=5.0, max_messages=3)) as producer:
        for value in (b"1", b"2"):
            producer.send_nowait(value, key="gone")
            producer.send_nowait(value, key="kept")
            producer.send_nowait(value, key=b"\xff")
        await producer.send(None, key="gone", timeout=LIMIT_S)
        await producer.send_batch([None], [b"\xff"], timeout=LIMIT_S)
    received = [(await asyncio.to_thread(plain.receive, 20_000)) for _ in range(8)]
    assert (received[6].partition_key(), received[6].data()) == ("gone", b"")

    def compacted() -> list[tuple[str, bytes]]:
        path = f"{topic_path(topic)}/compaction"
        rest.expect("PUT", path)
        eventually(lambda: rest.expect("GET", path)["status"] == "SUCCESS", what="compaction ends")
        reader = client.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=True)
        found = []
        while reader.has_message_available():
            message = reader.read_next(10_000)
            found.append((message.partition_key(), message.data()))
        return found

    assert await asyncio.to_thread(compacted) == [("kept", b"2")]


async def test_dead_letter_of_a_tombstone_is_a_tombstone(sdk: Client, topic: str) -> None:
    dead = f"{topic}-dead"
    async with (
        sdk.queue_consumer(
            topic,
            subscription="s",
            dead_letter=anabranch.DeadLetter(max_redeliveries=0, topic=dead, initial_subscription="d"),
        ) as consumer,
        sdk.producer(topic) as producer,
        sdk.queue_consumer(dead, subscription="d", start="earliest") as letters,
    ):
        await producer.send(None, key="k", timeout=LIMIT_S)
        message = await consumer.receive(timeout=LIMIT_S)
        assert message is not None
        await consumer.nack(message, delay=0)
        letter = await letters.receive(timeout=LIMIT_S)
        assert letter is not None and letter.is_tombstone and letter.key == "k"
