"""Seek by id and by time, and the last message id, on plain and partitioned topics."""

from __future__ import annotations

import time

import pulsar
import pytest

from tests.support.traffic.stock_calls import (
    EARLIEST,
    EXCLUSIVE,
    FAILOVER,
    KEY_SHARED,
    SHARED,
    eventually,
    expect_silence,
    payloads,
    position,
    publish_batch,
    receive_all,
    receive_data,
    send_all,
)


def border_ms() -> int:
    """A time stamp after everything sent so far and before everything sent from now on."""
    border = int(time.time() * 1000) + 1
    eventually(lambda: int(time.time() * 1000) > border, what="the next millisecond")
    return border


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED], ids=lambda kind: kind.name)
def test_seek_back_to_earliest(client: pulsar.Client, topic: str, kind: pulsar.ConsumerType) -> None:
    consumer = client.subscribe(topic, "s", kind, initial_position=EARLIEST)
    values = payloads(10)
    send_all(client.create_producer(topic), values, partition_key="k")
    assert receive_data(consumer, 10) == values
    consumer.seek(pulsar.MessageId.earliest)
    assert receive_data(consumer, 10) == values
    expect_silence(consumer)


def test_seek_forward_to_latest(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    producer = client.create_producer(topic)
    send_all(producer, payloads(10))
    consumer.seek(pulsar.MessageId.latest)
    producer.send(b"new")
    assert receive_data(consumer, 1) == [b"new"]


@pytest.mark.parametrize("inclusive", [False, True])
@pytest.mark.conformance("seek", client="Python")
def test_seek_to_an_id(client: pulsar.Client, topic: str, inclusive: bool) -> None:
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST, start_message_id_inclusive=inclusive)
    values = payloads(10)
    ids = send_all(client.create_producer(topic), values)
    receive_all(consumer, 10)
    consumer.seek(ids[6])
    assert receive_data(consumer, 4 if inclusive else 3) == (values[6:] if inclusive else values[7:])
    expect_silence(consumer)


def test_seek_into_a_batch(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST, start_message_id_inclusive=True)
    values = payloads(10)
    ids = publish_batch(client, topic, values)
    receive_all(consumer, 10)
    consumer.seek(ids[6])
    assert receive_data(consumer, 4) == values[6:]


def test_seek_by_time(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    producer = client.create_producer(topic)
    send_all(producer, payloads(5, "old"))
    border = border_ms()
    fresh = payloads(5, "new")
    send_all(producer, fresh)
    receive_all(consumer, 10)
    consumer.seek(border)
    assert receive_data(consumer, 5) == fresh
    expect_silence(consumer)


def test_seek_before_all_time(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    values = payloads(5)
    send_all(client.create_producer(topic), values)
    receive_all(consumer, 5)
    consumer.seek(int(time.time() * 1000) - 3_600_000)
    assert receive_data(consumer, 5) == values


def test_seek_to_the_future_skips_everything(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    producer = client.create_producer(topic)
    send_all(producer, payloads(5))
    consumer.seek(int(time.time() * 1000) + 3_600_000)
    producer.send(b"new")
    assert receive_data(consumer, 1) == [b"new"]


def test_seek_survives_a_new_consumer(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST, start_message_id_inclusive=True)
    values = payloads(10)
    ids = send_all(client.create_producer(topic), values)
    receive_all(consumer, 10)
    consumer.seek(ids[5])
    consumer.close()
    assert receive_data(client.subscribe(topic, "s"), 5) == values[5:]


def test_seek_leaves_other_subscriptions_alone(client: pulsar.Client, topic: str) -> None:
    moved = client.subscribe(topic, "moved", initial_position=EARLIEST)
    fixed = client.subscribe(topic, "fixed", initial_position=EARLIEST)
    values = payloads(5)
    send_all(client.create_producer(topic), values)
    receive_all(fixed, 5)
    receive_all(moved, 5)
    moved.seek(pulsar.MessageId.earliest)
    assert receive_data(moved, 5) == values
    expect_silence(fixed)


def test_seek_forgets_individual_acks(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", SHARED, initial_position=EARLIEST)
    values = payloads(6)
    send_all(client.create_producer(topic), values)
    for message in receive_all(consumer, 6, ack=False)[1::2]:
        consumer.acknowledge(message)
    consumer.seek(pulsar.MessageId.earliest)
    assert receive_data(consumer, 6) == values


def test_seek_on_partitions_by_time(client: pulsar.Client, partitioned_topic: str) -> None:
    consumer = client.subscribe(partitioned_topic, "s", initial_position=EARLIEST)
    producer = client.create_producer(partitioned_topic)
    send_all(producer, payloads(9, "old"))
    border = border_ms()
    fresh = payloads(9, "new")
    send_all(producer, fresh)
    receive_all(consumer, 18)
    consumer.seek(border)
    assert sorted(receive_data(consumer, 9)) == fresh
    expect_silence(consumer)


def test_seek_on_partitions_to_earliest(client: pulsar.Client, partitioned_topic: str) -> None:
    consumer = client.subscribe(partitioned_topic, "s", initial_position=EARLIEST)
    values = payloads(9)
    send_all(client.create_producer(partitioned_topic), values)
    receive_all(consumer, 9)
    consumer.seek(pulsar.MessageId.earliest)
    assert sorted(receive_data(consumer, 9)) == values


def test_last_message_id(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    ids = send_all(client.create_producer(topic), payloads(5))
    assert position(consumer.get_last_message_id())[:2] == position(ids[-1])[:2]


def test_last_message_id_of_a_batch(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    ids = publish_batch(client, topic, payloads(7))
    assert position(consumer.get_last_message_id()) == position(ids[-1])


def test_last_message_id_of_an_empty_topic(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    assert consumer.get_last_message_id().entry_id() == -1
