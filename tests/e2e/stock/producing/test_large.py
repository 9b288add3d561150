"""Large messages: near the limit, over it, in chunks."""

from __future__ import annotations

import os

import pulsar
import pytest

from tests.support.traffic.stock_calls import (
    EARLIEST,
    SHARED,
    data,
    expect_silence,
    position,
    read_all,
    receive_all,
    receive_data,
)

LIMIT = 5 * 1024 * 1024


@pytest.mark.parametrize("size", [64 * 1024, 1024 * 1024, LIMIT - 1024])
def test_sizes_up_to_the_limit(client: pulsar.Client, topic: str, size: int) -> None:
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    value = os.urandom(size)
    client.create_producer(topic).send(value)
    assert receive_data(consumer, 1)[0] == value


def test_over_the_limit_is_refused_and_harms_nothing(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    producer = client.create_producer(topic)
    with pytest.raises(pulsar.MessageTooBig):
        producer.send(bytes(LIMIT + 20_000))
    producer.send(b"small")
    assert receive_data(consumer, 1) == [b"small"]
    expect_silence(consumer)


def test_compression_brings_a_message_under_the_limit(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    producer = client.create_producer(topic, compression_type=pulsar.CompressionType.ZLib)
    producer.send(b"x" * (LIMIT - 100))
    assert len(receive_data(consumer, 1)[0]) == LIMIT - 100


@pytest.mark.conformance("chunks", client="Python")
def test_chunked_message(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    producer = client.create_producer(topic, chunking_enabled=True)
    value = os.urandom(12 * 1024 * 1024)
    producer.send(value, properties={"a": "1"}, partition_key="k")
    message = receive_all(consumer, 1)[0]
    assert message.data() == value
    assert message.properties() == {"a": "1"}
    assert message.partition_key() == "k"


def test_acked_chunked_message_does_not_come_back(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", SHARED, initial_position=EARLIEST)
    producer = client.create_producer(topic, chunking_enabled=True)
    producer.send(bytes(11 * 1024 * 1024))
    producer.send(b"small")
    consumer.acknowledge(receive_all(consumer, 1, ack=False)[0])
    consumer.close()
    again = client.subscribe(topic, "s", SHARED)
    assert receive_data(again, 1) == [b"small"]
    expect_silence(again)


def test_chunks_of_two_producers_interleave(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    values = {name: name.encode() * (11 * 1024 * 1024) for name in "ab"}
    producers = {name: client.create_producer(topic, chunking_enabled=True, producer_name=name) for name in "ab"}
    for name, producer in producers.items():
        producer.send_async(values[name], lambda result, message_id: None)
    received = {message.producer_name(): message.data() for message in receive_all(consumer, 2)}
    assert received == values


def test_reader_of_chunked_messages(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic, chunking_enabled=True)
    value = os.urandom(6 * 1024 * 1024)
    sent = producer.send(value)
    producer.send(b"after")
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    messages = read_all(reader, 2)
    assert data(messages) == [value, b"after"]
    assert position(messages[0].message_id()) == position(sent)


def test_chunked_with_compression(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    producer = client.create_producer(topic, chunking_enabled=True, compression_type=pulsar.CompressionType.LZ4)
    value = os.urandom(6 * 1024 * 1024) + b"z" * (4 * 1024 * 1024)
    producer.send(value)
    assert receive_data(consumer, 1)[0] == value
