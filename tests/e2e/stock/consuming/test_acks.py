"""Acknowledgements: individual, cumulative, batch index, many at once; what a new consumer then still gets."""

from __future__ import annotations

from typing import Any

import pulsar
import pytest

from tests.support.traffic.stock_calls import (
    EARLIEST,
    EXCLUSIVE,
    FAILOVER,
    RECEIVE_MS,
    SHARED,
    Rest,
    eventually,
    expect_silence,
    payloads,
    publish_batch,
    receive_all,
    receive_data,
    send_all,
    send_pipelined,
)


def expect_left(client: Any, topic: str, expected: list[bytes], kind: Any = SHARED, **options: Any) -> None:
    """A fresh consumer of subscription `s` gets exactly this."""
    consumer = client.subscribe(topic, "s", kind, **options)
    assert receive_data(consumer, len(expected), ack=False) == expected
    expect_silence(consumer)


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED], ids=lambda kind: kind.name)
def test_individual_acks_leave_holes(client: pulsar.Client, topic: str, kind: pulsar.ConsumerType) -> None:
    consumer = client.subscribe(topic, "s", kind, initial_position=EARLIEST)
    values = payloads(20)
    send_all(client.create_producer(topic), values)
    for index, message in enumerate(receive_all(consumer, 20, ack=False)):
        if index % 2:
            consumer.acknowledge(message)
    consumer.close()
    expect_left(client, topic, values[::2], kind)


def test_ack_by_message_id(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", SHARED, initial_position=EARLIEST)
    values = payloads(3)
    send_all(client.create_producer(topic), values)
    messages = receive_all(consumer, 3, ack=False)
    consumer.acknowledge(messages[1].message_id())
    consumer.close()
    expect_left(client, topic, [values[0], values[2]])


def test_ack_by_stored_message_id(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", SHARED, initial_position=EARLIEST)
    values = payloads(3)
    send_all(client.create_producer(topic), values)
    stored = [message.message_id().serialize() for message in receive_all(consumer, 3, ack=False)]
    consumer.acknowledge(pulsar.MessageId.deserialize(stored[0]))
    consumer.close()
    expect_left(client, topic, values[1:])


def test_acking_twice_is_harmless(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", SHARED, initial_position=EARLIEST)
    values = payloads(2)
    send_all(client.create_producer(topic), values)
    messages = receive_all(consumer, 2, ack=False)
    consumer.acknowledge(messages[0])
    consumer.acknowledge(messages[0])
    consumer.close()
    expect_left(client, topic, values[1:])


def test_consumer_may_ack_what_another_received(client: pulsar.Client, topic: str) -> None:
    receiver = client.subscribe(topic, "s", SHARED, initial_position=EARLIEST)
    client.create_producer(topic).send(b"x")
    message_id = receive_all(receiver, 1, ack=False)[0].message_id()
    helper = client.subscribe(topic, "s", SHARED)
    helper.acknowledge(message_id)
    helper.close()
    receiver.close()
    expect_left(client, topic, [])


@pytest.mark.parametrize("kind", [EXCLUSIVE, FAILOVER], ids=lambda kind: kind.name)
def test_cumulative_ack(client: pulsar.Client, topic: str, kind: pulsar.ConsumerType) -> None:
    consumer = client.subscribe(topic, "s", kind, initial_position=EARLIEST)
    values = payloads(20)
    send_all(client.create_producer(topic), values)
    consumer.acknowledge_cumulative(receive_all(consumer, 20, ack=False)[11])
    consumer.close()
    assert receive_data(client.subscribe(topic, "s", kind), 8) == values[12:]


def test_cumulative_ack_is_refused_on_shared(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", SHARED, initial_position=EARLIEST)
    client.create_producer(topic).send(b"x")
    with pytest.raises(pulsar.CumulativeAcknowledgementNotAllowedError):
        consumer.acknowledge_cumulative(consumer.receive(RECEIVE_MS))


def test_cumulative_then_individual(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    values = payloads(10)
    send_all(client.create_producer(topic), values)
    messages = receive_all(consumer, 10, ack=False)
    consumer.acknowledge(messages[7])
    consumer.acknowledge_cumulative(messages[4])
    consumer.close()
    expect_left(client, topic, [values[5], values[6], values[8], values[9]], EXCLUSIVE)


def test_partly_acked_batch_comes_back_whole_without_index_acks(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", SHARED, initial_position=EARLIEST)
    values = payloads(5)
    publish_batch(client, topic, values)
    for message in receive_all(consumer, 5, ack=False)[:4]:
        consumer.acknowledge(message)
    consumer.close()
    expect_left(client, topic, values)


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED], ids=lambda kind: kind.name)
@pytest.mark.conformance("batch index acknowledgement", client="Python")
def test_batch_index_acks_individual(client: pulsar.Client, topic: str, kind: pulsar.ConsumerType) -> None:
    consumer = client.subscribe(topic, "s", kind, initial_position=EARLIEST, batch_index_ack_enabled=True)
    values = payloads(10)
    publish_batch(client, topic, values)
    messages = receive_all(consumer, 10, ack=False)
    for index in (0, 3, 4, 9):
        consumer.acknowledge(messages[index])
    consumer.close()
    expected = [values[index] for index in (1, 2, 5, 6, 7, 8)]
    expect_left(client, topic, expected, kind, batch_index_ack_enabled=True)


def test_batch_index_acks_cumulative(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST, batch_index_ack_enabled=True)
    first, second = payloads(5, "a"), payloads(10, "b")
    publish_batch(client, topic, first)
    publish_batch(client, topic, second)
    consumer.acknowledge_cumulative(receive_all(consumer, 15, ack=False)[8])
    consumer.close()
    expect_left(client, topic, second[4:], EXCLUSIVE, batch_index_ack_enabled=True)


def test_batch_index_acks_of_a_wide_batch(client: pulsar.Client, topic: str) -> None:
    """More than one 64-bit word of indexes."""
    consumer = client.subscribe(topic, "s", SHARED, initial_position=EARLIEST, batch_index_ack_enabled=True)
    values = payloads(150)
    publish_batch(client, topic, values)
    for index, message in enumerate(receive_all(consumer, 150, ack=False)):
        if index not in (0, 63, 64, 127, 128, 149):
            consumer.acknowledge(message)
    consumer.close()
    expected = [values[index] for index in (0, 63, 64, 127, 128, 149)]
    expect_left(client, topic, expected, batch_index_ack_enabled=True)


def test_batch_is_done_when_all_its_indexes_are(client: pulsar.Client, topic: str, rest: Rest) -> None:
    consumer = client.subscribe(topic, "s", SHARED, initial_position=EARLIEST, batch_index_ack_enabled=True)
    publish_batch(client, topic, payloads(6))
    messages = receive_all(consumer, 6, ack=False)
    for message in messages[::2]:
        consumer.acknowledge(message)
    consumer.close()
    consumer = client.subscribe(topic, "s", SHARED, batch_index_ack_enabled=True)
    receive_all(consumer, 3)
    consumer.close()
    eventually(lambda: rest.stats(topic)["subscriptions"]["s"]["msgBacklog"] == 0, what="empty backlog")
    expect_left(client, topic, [], batch_index_ack_enabled=True)


def test_cumulative_ack_in_mid_batch_without_index_acks(client: pulsar.Client, topic: str) -> None:
    """The client then acknowledges up to the entry before; the batch comes back whole."""
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    first, second = payloads(3, "a"), payloads(3, "b")
    publish_batch(client, topic, first)
    publish_batch(client, topic, second)
    consumer.acknowledge_cumulative(receive_all(consumer, 6, ack=False)[4])
    consumer.close()
    expect_left(client, topic, second, EXCLUSIVE)


def test_many_acks_grouped_into_lists(client: pulsar.Client, topic: str, rest: Rest) -> None:
    consumer = client.subscribe(topic, "s", SHARED, initial_position=EARLIEST)
    send_pipelined(client.create_producer(topic), payloads(500))
    messages = receive_all(consumer, 500, ack=False)
    for message in reversed(messages):
        consumer.acknowledge(message)
    eventually(lambda: rest.stats(topic)["subscriptions"]["s"]["msgBacklog"] == 0, what="empty backlog")
    consumer.close()
    expect_left(client, topic, [])


def test_acks_on_one_subscription_leave_the_other(client: pulsar.Client, topic: str) -> None:
    first = client.subscribe(topic, "first", initial_position=EARLIEST)
    second = client.subscribe(topic, "second", initial_position=EARLIEST)
    values = payloads(5)
    send_all(client.create_producer(topic), values)
    first.acknowledge_cumulative(receive_all(first, 5, ack=False)[-1])
    second.close()
    assert receive_data(client.subscribe(topic, "second"), 5) == values
    expect_silence(first)
