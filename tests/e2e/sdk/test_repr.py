"""What `repr` and error texts of an open client show: enough to recognise it, no secret and no whole body."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, cast

import pytest

import anabranch
from anabranch.client.errors import BadOption
from anabranch.testing.broker import Broker

TOPIC = "topic://public/default/shown"
TOKEN = "s3cret-token"


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


async def test_repr_of_client_producer_consumers_and_messages(broker: Broker) -> None:
    async with anabranch.connect(broker.service_url, token=TOKEN) as client:
        async with (
            client.queue_consumer(TOPIC, subscription="s", name="me", start="earliest") as consumer,
            client.producer(TOPIC, name="p") as producer,
        ):
            assert repr(client) == f"<Client {broker.service_url} producers=1 consumers=1>"
            assert repr(producer) == f"<Producer topic={TOPIC} name=p pending_bytes=0>"
            assert repr(consumer) == f"<QueueConsumer topic={TOPIC} subscription=s name=me>"
            await producer.send(b"short", key="k", timeout=10)
            await producer.send(b"x" * 10_000, timeout=10)
            short, long = [await consumer.receive(timeout=10) for _ in range(2)]
            assert short is not None and long is not None
            assert repr(short) == f"Message(topic={TOPIC!r}, id={short.id}, key='k', data=b'short')"
            assert repr(long).endswith(f"data={b'x' * 32!r}… (10000 bytes))")
        assert repr(producer).endswith(" closed>") and repr(consumer).endswith(" closed>")
    assert repr(client) == f"<Client {broker.service_url} closed>"


def test_blocking_forms_show_the_same(broker: Broker) -> None:
    with (
        anabranch.blocking.connect(broker.service_url, token=TOKEN) as client,
        client.producer(TOPIC, name="p2") as producer,
    ):
        assert repr(client) == f"<BlockingClient {broker.service_url} producers=1 consumers=0>"
        assert repr(producer) == f"<BlockingProducer topic={TOPIC} name=p2 pending_bytes=0>"


async def test_acknowledging_what_is_no_message_names_what_is_expected(broker: Broker) -> None:
    async with (
        anabranch.connect(broker.service_url) as client,
        client.queue_consumer(TOPIC, subscription="q") as queue,
        client.stream_consumer(TOPIC, subscription="t") as stream,
    ):
        wrong: Any = "x"
        for call in (queue.ack, queue.nack, stream.ack_cumulative):
            with pytest.raises(BadOption, match="a Message"):
                await call(wrong)
        with pytest.raises(BadOption, match="a Message"):
            stream.position(wrong)
        for timeout in (wrong, cast(Any, [])):
            with pytest.raises(BadOption, match="timeout must be"):
                await asyncio.wait_for(queue.receive(timeout=timeout), 5)
