"""Redelivery: negative acks, the unacked timeout, dead letters, delayed delivery."""

from __future__ import annotations

import time
from collections import Counter
from datetime import timedelta

import pulsar
import pytest

import anabranch.blocking
from tests.support.processes.broker_process import BrokerProcess
from tests.support.traffic.stock_calls import (
    EARLIEST,
    EXCLUSIVE,
    FAILOVER,
    KEY_SHARED,
    RECEIVE_MS,
    SHARED,
    Rest,
    data,
    eventually,
    expect_silence,
    payloads,
    publish_batch,
    receive_all,
    receive_data,
    receive_rest,
    send_all,
)

NACK_MS = 100


@pytest.mark.conformance("negative acknowledgement", client="Python")
def test_nack_brings_one_message_back(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", SHARED, initial_position=EARLIEST, negative_ack_redelivery_delay_ms=NACK_MS)
    values = payloads(5)
    send_all(client.create_producer(topic), values)
    for index, message in enumerate(receive_all(consumer, 5, ack=False)):
        if index == 2:
            consumer.negative_acknowledge(message)
        else:
            consumer.acknowledge(message)
    again = receive_all(consumer, 1)[0]
    assert again.data() == values[2]
    assert again.redelivery_count() == 1
    expect_silence(consumer)


def test_nack_waits_for_its_delay(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", SHARED, initial_position=EARLIEST, negative_ack_redelivery_delay_ms=1_000)
    client.create_producer(topic).send(b"x")
    consumer.negative_acknowledge(receive_all(consumer, 1, ack=False)[0])
    expect_silence(consumer, quiet_ms=500)
    assert receive_data(consumer, 1) == [b"x"]


@pytest.mark.parametrize("kind", [EXCLUSIVE, FAILOVER], ids=lambda kind: kind.name)
def test_nack_on_ordered_types_rewinds_to_the_first_unacked(
    client: pulsar.Client, topic: str, kind: pulsar.ConsumerType
) -> None:
    consumer = client.subscribe(topic, "s", kind, initial_position=EARLIEST, negative_ack_redelivery_delay_ms=NACK_MS)
    values = payloads(5)
    send_all(client.create_producer(topic), values)
    messages = receive_all(consumer, 5, ack=False)
    consumer.acknowledge(messages[0])
    consumer.negative_acknowledge(messages[2])
    assert receive_data(consumer, 4) == values[1:]


def test_redelivery_count_grows(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", SHARED, initial_position=EARLIEST, negative_ack_redelivery_delay_ms=NACK_MS)
    client.create_producer(topic).send(b"x")
    counts = []
    for _ in range(4):
        message = receive_all(consumer, 1, ack=False)[0]
        counts.append(message.redelivery_count())
        consumer.negative_acknowledge(message)
    assert counts == [0, 1, 2, 3]


def test_nack_of_a_batch_message_brings_the_batch_back(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", SHARED, initial_position=EARLIEST, negative_ack_redelivery_delay_ms=NACK_MS)
    values = payloads(4)
    publish_batch(client, topic, values)
    consumer.negative_acknowledge(receive_all(consumer, 4, ack=False)[1])
    assert receive_data(consumer, 4) == values


def test_nack_with_index_acks_brings_back_what_is_left(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(
        topic,
        "s",
        SHARED,
        initial_position=EARLIEST,
        negative_ack_redelivery_delay_ms=500,
        batch_index_ack_enabled=True,
    )
    values = payloads(4)
    publish_batch(client, topic, values)
    messages = receive_all(consumer, 4, ack=False)
    for message in messages[1:]:
        consumer.acknowledge(message)
    consumer.negative_acknowledge(messages[0])
    assert receive_data(consumer, 1) == values[:1]
    expect_silence(consumer)


def test_stock_consumer_gets_only_what_a_worker_of_the_sdk_nacked(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    """Both share the subscription, and the worker still holds the rest of the batch."""
    with (
        anabranch.blocking.connect(broker.service_url) as sdk,
        sdk.queue_consumer(topic, subscription="s", start="earliest", prefetch=1) as worker,
    ):
        values = payloads(6)
        publish_batch(client, topic, values)
        held = worker.receive_many(6, timeout=RECEIVE_MS / 1000)
        assert [message.data for message in held] == values
        client.create_producer(topic).send(b"filler")  # the worker's prefetch is used up, so it gets nothing more
        stock = client.subscribe(
            topic, "s", SHARED, batch_index_ack_enabled=True, negative_ack_redelivery_delay_ms=NACK_MS
        )
        worker.nack(held[2], delay=0)
        (message,) = receive_all(stock, 1, ack=False)
        assert (message.data(), message.redelivery_count()) == (values[2], 1)
        stock.negative_acknowledge(message)
        (message,) = receive_all(stock, 1)
        assert (message.data(), message.redelivery_count()) == (values[2], 2)
        expect_silence(stock)
        stock.close()
        for one in [*held[:2], *held[3:], *worker.receive_many(1, timeout=RECEIVE_MS / 1000)]:
            worker.ack(one)
    assert receive_rest(client.subscribe(topic, "s", SHARED)) == []


def test_nacked_message_may_go_to_another_consumer(client: pulsar.Client, topic: str) -> None:
    refusing = client.subscribe(
        topic, "s", SHARED, initial_position=EARLIEST, negative_ack_redelivery_delay_ms=NACK_MS, receiver_queue_size=1
    )
    client.create_producer(topic).send(b"x")
    message = receive_all(refusing, 1, ack=False)[0]
    taker = client.subscribe(topic, "s", SHARED)
    refusing.negative_acknowledge(message)
    refusing.close()
    assert receive_data(taker, 1) == [b"x"]


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED], ids=lambda kind: kind.name)
def test_redeliver_all(client: pulsar.Client, rest: Rest, topic: str, kind: pulsar.ConsumerType) -> None:
    consumer = client.subscribe(topic, "s", kind, initial_position=EARLIEST)
    values = payloads(10)
    send_all(client.create_producer(topic), values, partition_key="k")
    messages = receive_all(consumer, 10, ack=False)
    for message in messages[:4]:
        consumer.acknowledge(message)
    # the client sends acks a little later; a redelivery before them would bring these messages back, too
    eventually(lambda: rest.stats(topic)["subscriptions"]["s"]["msgBacklog"] == 6, what="the acks")
    consumer.redeliver_unacknowledged_messages()
    assert receive_data(consumer, 6) == values[4:]
    expect_silence(consumer)


@pytest.mark.slow
def test_unacked_timeout_redelivers(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(
        topic, "s", SHARED, initial_position=EARLIEST, unacked_messages_timeout_ms=10_000, receiver_queue_size=10
    )
    values = payloads(3)
    send_all(client.create_producer(topic), values)
    messages = receive_all(consumer, 3, ack=False)
    consumer.acknowledge(messages[1])
    assert sorted(receive_data(consumer, 2, within_s=25)) == [values[0], values[2]]


@pytest.mark.conformance("dead letters", client="Python")
def test_dead_letter_topic_gets_what_fails_too_often(client: pulsar.Client, topic: str) -> None:
    dead_topic = f"{topic}-graveyard"
    dead = client.subscribe(dead_topic, "undertaker", initial_position=EARLIEST)
    consumer = client.subscribe(
        topic,
        "s",
        SHARED,
        initial_position=EARLIEST,
        negative_ack_redelivery_delay_ms=NACK_MS,
        dead_letter_policy=pulsar.ConsumerDeadLetterPolicy(2, dead_topic),
    )
    values = payloads(4)
    producer = client.create_producer(topic)
    for value in values:
        producer.send(value, properties={"origin": value.decode()}, partition_key="k")
    tries: Counter[bytes] = Counter()
    while tries[values[1]] < 3:
        message = consumer.receive(RECEIVE_MS)
        tries[message.data()] += 1
        if message.data() == values[1]:
            consumer.negative_acknowledge(message)
        else:
            consumer.acknowledge(message)
    dead_letter = receive_all(dead, 1)[0]
    assert dead_letter.data() == values[1]
    assert dead_letter.properties()["origin"] == values[1].decode()
    expect_silence(consumer)
    expect_silence(dead)
    assert tries == Counter({values[0]: 1, values[1]: 3, values[2]: 1, values[3]: 1})


def test_dead_letter_default_topic_and_initial_subscription(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(
        topic,
        "s",
        SHARED,
        initial_position=EARLIEST,
        negative_ack_redelivery_delay_ms=NACK_MS,
        dead_letter_policy=pulsar.ConsumerDeadLetterPolicy(1, initial_subscription_name="kept"),
    )
    client.create_producer(topic).send(b"poison")
    for _ in range(2):
        consumer.negative_acknowledge(consumer.receive(RECEIVE_MS))
    expect_silence(consumer, quiet_ms=1_000)
    dead = client.subscribe(f"{topic}-s-DLQ", "kept")
    assert receive_data(dead, 1) == [b"poison"], "the initial subscription starts before the first dead letter"


def test_dead_letter_acks_the_original(client: pulsar.Client, topic: str) -> None:
    options = {
        "initial_position": EARLIEST,
        "negative_ack_redelivery_delay_ms": NACK_MS,
        "dead_letter_policy": pulsar.ConsumerDeadLetterPolicy(1, f"{topic}-dead"),
    }
    dead = client.subscribe(f"{topic}-dead", "s", initial_position=EARLIEST)
    consumer = client.subscribe(topic, "s", SHARED, **options)
    client.create_producer(topic).send(b"poison")
    for _ in range(2):
        consumer.negative_acknowledge(consumer.receive(RECEIVE_MS))
    receive_all(dead, 1)
    expect_silence(consumer)
    consumer.close()
    assert receive_rest(client.subscribe(topic, "s", SHARED)) == []


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED], ids=lambda kind: kind.name)
@pytest.mark.conformance("delayed delivery, Shared and Key_Shared", client="Python")
def test_deliver_after_lets_the_next_message_pass(client: pulsar.Client, topic: str, kind: pulsar.ConsumerType) -> None:
    consumer = client.subscribe(topic, "s", kind, initial_position=EARLIEST)
    producer = client.create_producer(topic)
    began = time.monotonic()
    producer.send(b"later", partition_key="k", deliver_after=timedelta(seconds=1.5))
    producer.send(b"now", partition_key="k")
    received = []
    for _ in range(2):
        message = consumer.receive(RECEIVE_MS)
        received.append((message.data(), time.monotonic() - began))
        consumer.acknowledge(message)
    assert [value for value, _ in received] == [b"now", b"later"]
    assert 1.45 <= received[1][1] < 10.0


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED], ids=lambda kind: kind.name)
def test_deliver_at_orders_by_time(client: pulsar.Client, topic: str, kind: pulsar.ConsumerType) -> None:
    consumer = client.subscribe(topic, "s", kind, initial_position=EARLIEST)
    producer = client.create_producer(topic)
    now_ms = int(time.time() * 1000)
    for delay_ms in (1_800, 600, 1_200):
        producer.send(str(delay_ms).encode(), partition_key="k", deliver_at=now_ms + delay_ms)
    assert receive_data(consumer, 3) == [b"600", b"1200", b"1800"]
    assert int(time.time() * 1000) >= now_ms + 1_800


def test_deliver_at_in_the_past_is_immediate(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", SHARED, initial_position=EARLIEST)
    client.create_producer(topic).send(b"x", deliver_at=int(time.time() * 1000) - 10_000)
    assert receive_data(consumer, 1) == [b"x"]


@pytest.mark.parametrize("kind", [EXCLUSIVE, FAILOVER], ids=lambda kind: kind.name)
def test_ordered_types_do_not_delay(client: pulsar.Client, topic: str, kind: pulsar.ConsumerType) -> None:
    consumer = client.subscribe(topic, "s", kind, initial_position=EARLIEST)
    producer = client.create_producer(topic)
    producer.send(b"first", deliver_after=timedelta(seconds=60))
    producer.send(b"second")
    assert data(receive_all(consumer, 2)) == [b"first", b"second"]


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED], ids=lambda kind: kind.name)
def test_delayed_message_waits_for_a_late_consumer(
    client: pulsar.Client, topic: str, kind: pulsar.ConsumerType
) -> None:
    client.subscribe(topic, "s", kind, initial_position=EARLIEST).close()
    began = time.monotonic()
    client.create_producer(topic).send(b"x", deliver_after=timedelta(seconds=1))
    consumer = client.subscribe(topic, "s", kind)
    assert receive_data(consumer, 1) == [b"x"]
    assert time.monotonic() - began >= 0.95
