"""Readers: non-durable, from earliest, latest or an id; availability, timeouts, batches, listeners, seek."""

from __future__ import annotations

import queue
import time
from typing import Any

import pulsar
import pytest

from tests.support.traffic.stock_calls import (
    EARLIEST,
    RECEIVE_MS,
    Rest,
    data,
    eventually,
    payloads,
    position,
    publish_batch,
    read_all,
    read_available,
    receive_all,
    send_all,
    send_pipelined,
)


@pytest.mark.conformance("reader", client="Python")
def test_reader_from_earliest(client: pulsar.Client, topic: str) -> None:
    values = payloads(100)
    send_pipelined(client.create_producer(topic), values)
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert data(read_all(reader, 100)) == values


def test_reader_from_latest(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic)
    producer.send(b"before")
    reader = client.create_reader(topic, pulsar.MessageId.latest)
    producer.send(b"after")
    assert data(read_all(reader, 1)) == [b"after"]


def test_reader_from_latest_inclusive_shows_the_last_message(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic)
    send_all(producer, payloads(3))
    reader = client.create_reader(topic, pulsar.MessageId.latest, start_message_id_inclusive=True)
    assert reader.has_message_available()
    assert data(read_all(reader, 1)) == [payloads(3)[-1]]


@pytest.mark.parametrize("inclusive", [False, True])
def test_reader_from_an_id(client: pulsar.Client, topic: str, inclusive: bool) -> None:
    values = payloads(10)
    ids = send_all(client.create_producer(topic), values)
    reader = client.create_reader(topic, ids[4], start_message_id_inclusive=inclusive)
    assert read_available(reader) == (values[4:] if inclusive else values[5:])


@pytest.mark.parametrize("inclusive", [False, True])
def test_reader_from_the_middle_of_a_batch(client: pulsar.Client, topic: str, inclusive: bool) -> None:
    values = payloads(10)
    ids = publish_batch(client, topic, values)
    reader = client.create_reader(topic, ids[4], start_message_id_inclusive=inclusive)
    assert read_available(reader) == (values[4:] if inclusive else values[5:])


def test_reader_from_a_stored_id(client: pulsar.Client, topic: str) -> None:
    values = payloads(6)
    send_all(client.create_producer(topic), values)
    first = client.create_reader(topic, pulsar.MessageId.earliest)
    stored = read_all(first, 3)[-1].message_id().serialize()
    first.close()
    second = client.create_reader(topic, pulsar.MessageId.deserialize(stored))
    assert read_available(second) == values[3:]


def test_reader_from_the_last_id_waits_for_more(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic)
    ids = send_all(producer, payloads(3))
    reader = client.create_reader(topic, ids[-1])
    assert not reader.has_message_available()
    producer.send(b"more")
    assert reader.has_message_available()
    assert data(read_all(reader, 1)) == [b"more"]


def test_availability_on_an_empty_topic(client: pulsar.Client, topic: str) -> None:
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert not reader.has_message_available()
    client.create_producer(topic).send(b"x")
    assert reader.has_message_available()
    assert read_available(reader) == [b"x"]


def test_availability_at_latest(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic)
    producer.send(b"before")
    reader = client.create_reader(topic, pulsar.MessageId.latest)
    assert not reader.has_message_available()
    producer.send(b"after")
    assert reader.has_message_available()


def test_availability_walks_through_batches(client: pulsar.Client, topic: str) -> None:
    first, second = payloads(7, "a"), payloads(5, "b")
    publish_batch(client, topic, first)
    publish_batch(client, topic, second)
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert read_available(reader) == first + second


def test_read_next_times_out(client: pulsar.Client, topic: str) -> None:
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    began = time.monotonic()
    with pytest.raises(pulsar.Timeout):
        reader.read_next(200)
    assert 0.15 < time.monotonic() - began < 5


def test_readers_do_not_share_a_position(client: pulsar.Client, topic: str) -> None:
    values = payloads(5)
    send_all(client.create_producer(topic), values)
    readers = [client.create_reader(topic, pulsar.MessageId.earliest) for _ in range(3)]
    assert [read_available(reader) for reader in readers] == [values] * 3


def test_readers_leave_no_subscription_behind(client: pulsar.Client, topic: str, rest: Rest) -> None:
    client.create_producer(topic).send(b"x")
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    read_all(reader, 1)
    reader.close()
    eventually(lambda: rest.stats(topic)["subscriptions"] == {}, what="no subscriptions")


def test_reader_does_not_move_a_durable_subscription(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    values = payloads(5)
    send_all(client.create_producer(topic), values)
    assert read_available(client.create_reader(topic, pulsar.MessageId.earliest)) == values
    assert data(receive_all(consumer, 5)) == values


def test_reader_with_queue_size_one(client: pulsar.Client, topic: str) -> None:
    values = payloads(20)
    send_pipelined(client.create_producer(topic), values)
    reader = client.create_reader(topic, pulsar.MessageId.earliest, receiver_queue_size=1)
    assert data(read_all(reader, 20)) == values


def test_reader_listener(client: pulsar.Client, topic: str) -> None:
    values = payloads(20)
    send_pipelined(client.create_producer(topic), values)
    received: queue.Queue[bytes] = queue.Queue()

    def listen(reader: Any, message: Any) -> None:
        received.put(message.data())

    client.create_reader(topic, pulsar.MessageId.earliest, reader_listener=listen)
    assert [received.get(timeout=10) for _ in values] == values


def test_reader_seek_by_id(client: pulsar.Client, topic: str) -> None:
    values = payloads(10)
    ids = send_all(client.create_producer(topic), values)
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    read_all(reader, 10)
    reader.seek(ids[3])
    assert read_available(reader) == values[4:]
    reader.seek(pulsar.MessageId.earliest)
    assert read_available(reader) == values


def test_reader_seek_by_id_inclusive(client: pulsar.Client, topic: str) -> None:
    values = payloads(10)
    ids = send_all(client.create_producer(topic), values)
    reader = client.create_reader(topic, pulsar.MessageId.earliest, start_message_id_inclusive=True)
    reader.seek(ids[3])
    assert read_available(reader) == values[3:]


def test_reader_seek_to_latest(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic)
    send_all(producer, payloads(5))
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    reader.seek(pulsar.MessageId.latest)
    assert not reader.has_message_available()
    producer.send(b"new")
    assert data(read_all(reader, 1)) == [b"new"]


def test_reader_seek_by_time(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic)
    send_all(producer, payloads(3, "old"))
    border_ms = int(time.time() * 1000) + 1
    eventually(lambda: int(time.time() * 1000) > border_ms, what="the next millisecond")
    fresh = payloads(3, "new")
    send_all(producer, fresh)
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    reader.seek(border_ms)
    assert read_available(reader) == fresh


def test_reader_on_a_partitioned_topic(client: pulsar.Client, partitioned_topic: str) -> None:
    values = payloads(30)
    send_all(client.create_producer(partitioned_topic), values)
    reader = client.create_reader(partitioned_topic, pulsar.MessageId.earliest)
    assert sorted(data(read_all(reader, 30))) == values


def test_reader_ids_equal_the_receipts(client: pulsar.Client, topic: str) -> None:
    ids = send_all(client.create_producer(topic), payloads(5))
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert [position(each.message_id()) for each in read_all(reader, 5)] == [position(each) for each in ids]


def test_reader_is_connected_until_closed(client: pulsar.Client, topic: str) -> None:
    reader = client.create_reader(topic, pulsar.MessageId.earliest, reader_name="r", subscription_role_prefix="audit")
    assert reader.is_connected()
    assert reader.topic() == topic
    reader.close()
    assert not reader.is_connected()
    with pytest.raises(pulsar.AlreadyClosed):
        reader.read_next(RECEIVE_MS)
