"""Schemas of the SDK against a real broker, with itself and with the stock client, both ways."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated, Any

import pulsar
import pulsar.schema
import pydantic
import pytest

import anabranch
from anabranch import Client
from anabranch.client.errors import IncompatibleSchema, SchemaMismatch
from anabranch.schema import Auto, Avro, Boolean, Float32, Float64, Int8, Int16, Int32, Int64, Json, Schema, String
from tests.support.processes.broker_process import BrokerProcess

RETRY_DELAYS = 20.0


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


@pytest.fixture
async def sdk(broker: BrokerProcess) -> AsyncIterator[Client]:
    async with anabranch.connect(broker.service_url) as client:
        yield client


async def values(consumer: Any, count: int) -> list[Any]:
    found = []
    for _ in range(count):
        message = await consumer.receive(timeout=RETRY_DELAYS)
        assert message is not None
        found.append(message.value)
    return found


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (String(), "é"),
        (Boolean(), True),
        (Int8(), -7),
        (Int16(), 300),
        (Int32(), 1 << 20),
        (Int64(), 1 << 40),
        (Float32(), 0.5),
        (Float64(), 1.25),
        (Json(Order), Order("Ann", 3, ["x"])),
        (Avro(Order), Order("Ann", None)),
    ],
    ids=repr,
)
async def test_values_round_trip(sdk: Client, topic: str, schema: Schema, value: object) -> None:
    """Scenarios 92 and 94: by a consumer with the schema, and by one that takes what comes."""
    async with (
        sdk.queue_consumer(topic, subscription="same", schema=schema) as same,
        sdk.stream_consumer(topic, subscription="auto", schema=Auto()) as auto,
        sdk.queue_consumer(topic, subscription="bytes") as plain,
        sdk.producer(topic, schema=schema) as producer,
    ):
        await producer.send(value, key="k", timeout=RETRY_DELAYS)
        assert await values(same, 1) == [value]
        (found,) = await values(auto, 1)
        assert found == (value.__dict__ if isinstance(value, Order) else value)
        assert await values(plain, 1) == [schema.encode(value)]


async def test_class_as_schema_means_json(sdk: Client, topic: str) -> None:
    class Customer(pydantic.BaseModel):
        name: str
        age: int = 0

    async with (
        sdk.queue_consumer(topic, subscription="s", schema=Customer) as consumer,
        sdk.producer(topic, schema=Customer) as producer,
    ):
        await producer.send(Customer(name="Ann", age=7), timeout=RETRY_DELAYS)
        assert await values(consumer, 1) == [Customer(name="Ann", age=7)]
        with pytest.raises(SchemaMismatch, match="takes Customer, not dict"):
            producer.send_nowait({"name": "Ann"})


@pytest.mark.parametrize("kind", ["json", "avro"])
async def test_records_round_trip_with_the_stock_client(
    sdk: Client, client: pulsar.Client, topic: str, kind: str
) -> None:
    stock = pulsar.schema.JsonSchema(StockOrder) if kind == "json" else pulsar.schema.AvroSchema(StockOrder)
    ours = Json(Order) if kind == "json" else Avro(Order)
    theirs = await asyncio.to_thread(client.subscribe, topic, "stock", schema=stock)
    async with sdk.queue_consumer(topic, subscription="ours", schema=ours) as consumer:
        producer = await asyncio.to_thread(client.create_producer, topic, schema=stock)
        await asyncio.to_thread(producer.send, StockOrder(customer="Ann", amount=1, tags=["a", "b"]))
        async with sdk.producer(topic, schema=ours) as mine:
            await mine.send(Order("Bob", 2), timeout=RETRY_DELAYS)
        assert await values(consumer, 2) == [Order("Ann", 1, ["a", "b"]), Order("Bob", 2)]
    for expected in (("Ann", 1, ["a", "b"]), ("Bob", 2, None)):
        message = await asyncio.to_thread(theirs.receive, int(RETRY_DELAYS * 1000))
        value = message.value()
        assert (value.customer, value.amount, value.tags) == expected


async def test_strings_round_trip_with_the_stock_client(sdk: Client, client: pulsar.Client, topic: str) -> None:
    stock = pulsar.schema.StringSchema()
    theirs = await asyncio.to_thread(client.subscribe, topic, "stock", schema=stock)
    async with sdk.queue_consumer(topic, subscription="ours", schema=String()) as consumer:
        producer = await asyncio.to_thread(client.create_producer, topic, schema=stock)
        await asyncio.to_thread(producer.send, "one")
        async with sdk.producer(topic, schema=String()) as mine:
            await mine.send("two", timeout=RETRY_DELAYS)
        assert await values(consumer, 2) == ["one", "two"]
    assert [theirs.receive(int(RETRY_DELAYS * 1000)).value() for _ in range(2)] == ["one", "two"]


async def test_old_versions_are_read_with_their_own_schema(sdk: Client, broker: BrokerProcess, topic: str) -> None:
    """Scenario 93: one history of versions; every message is read by its own, on all partitions."""

    def version(count: int) -> type:
        names = {"customer": str, **{f"extra{n}": int for n in range(count)}}
        cls = type("Sale", (), {"__annotations__": names, **{f"extra{n}": n for n in range(count)}})
        return dataclass(cls)

    async with sdk.stream_consumer(topic, subscription="auto", schema=Auto()) as auto:
        for count in (0, 2, 1):
            cls = version(count)
            async with sdk.producer(topic, schema=Avro(cls)) as producer:
                for n in range(3):
                    await producer.send(cls(customer=f"c{n}"), timeout=RETRY_DELAYS)
        found = await values(auto, 9)
        assert [len(one) for one in found] == [1] * 3 + [3] * 3 + [2] * 3
        assert [one["customer"] for one in found] == ["c0", "c1", "c2"] * 3
    wanted = version(2)
    async with sdk.queue_consumer(topic, subscription="typed", start="earliest", schema=Avro(wanted)) as typed:
        found = await values(typed, 9)
        assert all(isinstance(one, wanted) for one in found)
        assert [one.extra1 for one in found] == [1] * 9


async def test_incompatible_schema_is_refused_with_its_reason(sdk: Client, topic: str) -> None:
    async with sdk.producer(topic, schema=String()):
        with pytest.raises(IncompatibleSchema) as caught:
            await sdk.producer(topic, schema=Int64())
        assert (caught.value.code, caught.value.retryable) == ("incompatible-schema", False)
        with pytest.raises(IncompatibleSchema):
            await sdk.queue_consumer(topic, subscription="s", schema=Int64())


async def test_undecodable_message_fails_when_its_value_is_read(sdk: Client, topic: str) -> None:
    """Bytes in between: the consumer goes on, and the message can be acknowledged like any other."""
    async with sdk.queue_consumer(topic, subscription="s", schema=Json(Order)) as consumer:
        async with sdk.producer(topic) as producer:
            await producer.send(b"not json", timeout=RETRY_DELAYS)
        async with sdk.producer(topic, schema=Json(Order)) as producer:
            await producer.send(Order("Ann", 1), timeout=RETRY_DELAYS)
        first, second = [await consumer.receive(timeout=RETRY_DELAYS) for _ in range(2)]
        assert first is not None and second is not None
        with pytest.raises(SchemaMismatch):
            _ = first.value
        assert first.data == b"not json"
        await consumer.ack(first)
        assert second.value == Order("Ann", 1)


@pytest.mark.parametrize("schema", [Json(Order), Avro(Order)], ids=repr)
async def test_bulk_calls_use_the_schema(sdk: Client, topic: str, schema: Schema) -> None:
    orders = [Order(f"c{n % 3}", n, ["t"] * (n % 4)) for n in range(500)]
    async with (
        sdk.stream_consumer(topic, subscription="s", schema=schema) as consumer,
        sdk.producer(topic, schema=schema, compression="lz4") as producer,
    ):
        await producer.send_batch(orders, [one.customer for one in orders], timeout=RETRY_DELAYS)
        found: list[Order] = []
        while len(found) < len(orders):
            batch = await consumer.receive_batch(timeout=RETRY_DELAYS)
            assert len(batch)
            found += [message.value for message in batch]
        assert found == orders
