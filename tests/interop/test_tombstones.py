"""Messages without a value between the SDK and Pulsar's own clients, both ways.

Java's classic client knows them. The Python client can neither send one nor tell it from an empty value.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator

import pulsar
import pytest

import anabranch
from anabranch import Batching
from tests.services.available import pulsar_v4
from tests.services.pulsar_v4 import V4Client
from tests.support.processes.broker_process import BrokerProcess
from tests.support.traffic.stock_client import new_client

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("pulsar_v5")]

SECONDS = 30.0
VALUES = [("k", b"x"), ("k", None), ("k", b""), ("other", None)]
FORMS = pytest.mark.parametrize("is_batched", [True, False], ids=["batched", "single"])


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("tombstones") / "data") as started:
        yield started


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[pulsar.Client]:
    stock = new_client(broker.service_url)
    yield stock
    stock.close()


@pytest.fixture
def topic() -> str:
    return f"persistent://public/default/t-{uuid.uuid4().hex[:12]}"


@pytest.fixture(scope="module")
def java(broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[V4Client]:
    client = pulsar_v4(broker.service_url, tmp_path_factory.mktemp("java4"))
    yield client
    client.close()


async def send(broker: BrokerProcess, topic: str, *, is_batched: bool) -> None:
    batching = Batching(max_delay=SECONDS, max_messages=len(VALUES)) if is_batched else None
    async with (
        anabranch.connect(broker.service_url) as client,
        client.producer(topic, batching=batching) as producer,
    ):
        sent = [producer.send_nowait(value, key=key) for key, value in VALUES]
        await asyncio.wait_for(asyncio.gather(*sent), SECONDS)


async def received(broker: BrokerProcess, topic: str, count: int) -> list[tuple[object, object, bool]]:
    async with (
        anabranch.connect(broker.service_url) as client,
        client.stream_consumer(topic, subscription="sdk", start="earliest") as consumer,
    ):
        found = [await consumer.receive(timeout=SECONDS) for _ in range(count)]
        return [(one.key, one.value, one.is_tombstone) for one in found if one is not None]


WANTED = [(key, value, value is None) for key, value in VALUES]


@FORMS
@pytest.mark.conformance("messages without a value", client="Java")
async def test_java_receives_the_sdks_tombstones(
    broker: BrokerProcess, java: V4Client, topic: str, is_batched: bool
) -> None:
    await send(broker, topic, is_batched=is_batched)
    assert await asyncio.to_thread(java.take, topic, "java", len(VALUES)) == VALUES


@FORMS
async def test_sdk_receives_javas_tombstones(
    broker: BrokerProcess, java: V4Client, topic: str, is_batched: bool
) -> None:
    await asyncio.to_thread(java.send, topic, VALUES, is_batched=is_batched)
    assert await received(broker, topic, len(VALUES)) == WANTED


@FORMS
@pytest.mark.conformance("messages without a value", client="Python")
async def test_python_receives_a_tombstone_as_an_empty_value(
    broker: BrokerProcess, client: pulsar.Client, topic: str, is_batched: bool
) -> None:
    await send(broker, topic, is_batched=is_batched)

    def taken() -> list[tuple[str, bytes]]:
        consumer = client.subscribe(topic, "python", initial_position=pulsar.InitialPosition.Earliest)
        messages = [consumer.receive(int(SECONDS * 1000)) for _ in VALUES]
        return [(one.partition_key(), one.data()) for one in messages]

    assert await asyncio.to_thread(taken) == [(key, value or b"") for key, value in VALUES]


async def test_empty_value_of_the_python_client_is_no_tombstone(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    producer = client.create_producer(topic)
    await asyncio.to_thread(producer.send, b"", partition_key="k")
    assert await received(broker, topic, 1) == [("k", b"", False)]
