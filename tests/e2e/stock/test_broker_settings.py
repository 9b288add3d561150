"""What clients see when the broker is set up differently: creation, limits, small ledgers, unloading, sync modes."""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Callable, Iterator

import pulsar
import pytest

from tests.support.processes.broker_process import BrokerProcess
from tests.support.traffic.stock_calls import (
    EARLIEST,
    SHARED,
    Rest,
    by_key,
    collect,
    data,
    eventually,
    expect_silence,
    keep_all,
    payloads,
    position,
    read_available,
    receive_all,
    receive_data,
    send_all,
    send_pipelined,
)
from tests.support.traffic.stock_client import new_client

TOPIC = "persistent://public/default/set"
StartBroker = Callable[..., BrokerProcess]


@contextlib.contextmanager
def connected(broker: BrokerProcess, *, timeout_s: int = 10) -> Iterator[pulsar.Client]:
    stock = new_client(broker.service_url, operation_timeout_seconds=timeout_s)
    try:
        yield stock
    finally:
        stock.close()


def settings(*values: str) -> list[str]:
    return [word for value in values for word in ("--set", value)]


def test_topics_can_be_auto_created_with_partitions(start_broker: StartBroker) -> None:
    broker = start_broker(arguments=settings("broker.auto_create_partitions=3"))
    with connected(broker) as client:
        consumer = client.subscribe(TOPIC, "s", initial_position=EARLIEST)
        values = payloads(9)
        send_all(client.create_producer(TOPIC), values)
        received = receive_all(consumer, 9)
        assert sorted(data(received)) == values
        assert {message.message_id().partition() for message in received} == {0, 1, 2}
        assert len(client.get_topic_partitions(TOPIC)) == 3


def test_missing_topics_can_be_refused(start_broker: StartBroker) -> None:
    broker = start_broker(arguments=settings("broker.auto_create_topics=false"))
    rest = Rest(broker.http_url)
    with connected(broker) as client:
        with pytest.raises(pulsar.TopicNotFound):
            client.create_producer(TOPIC)
        with pytest.raises(pulsar.TopicNotFound):
            client.subscribe(TOPIC, "s")
        rest.expect("PUT", "/admin/v2/persistent/public/default/set")
        consumer = client.subscribe(TOPIC, "s")
        client.create_producer(TOPIC).send(b"x")
        assert receive_data(consumer, 1) == [b"x"]


def test_missing_subscriptions_can_be_refused(start_broker: StartBroker) -> None:
    broker = start_broker(arguments=settings("broker.auto_create_subscriptions=false"))
    with connected(broker, timeout_s=2) as client:
        client.create_producer(TOPIC).send(b"x")
        with pytest.raises(pulsar.PulsarException):
            client.subscribe(TOPIC, "s")
        assert Rest(broker.http_url).stats(TOPIC)["subscriptions"] == {}
        reader = client.create_reader(TOPIC, pulsar.MessageId.earliest)
        assert read_available(reader) == [b"x"]


def test_unacked_limit_holds_a_shared_consumer(start_broker: StartBroker) -> None:
    broker = start_broker(arguments=settings("broker.unacked_per_consumer_max=20"))
    with connected(broker) as client:
        consumer = client.subscribe(TOPIC, "s", SHARED, initial_position=EARLIEST)
        values = payloads(100)
        send_pipelined(client.create_producer(TOPIC), values)
        held = receive_all(consumer, 20, ack=False)
        expect_silence(consumer)
        for message in held:
            consumer.acknowledge(message)
        assert data(held) + receive_data(consumer, 80) == values


def test_deduplication_for_all(start_broker: StartBroker) -> None:
    broker = start_broker(arguments=settings("broker.deduplication=true", "broker.dedup_snapshot_entries=10"))
    with connected(broker) as client:
        keep_all(client, TOPIC)
        producer = client.create_producer(TOPIC, producer_name="p")
        for sequence_id in range(1, 41):
            producer.send(str(sequence_id).encode(), sequence_id=sequence_id)
        producer.close()
        broker.kill9()
        broker.start()
        producer = client.create_producer(TOPIC, producer_name="p")
        assert producer.last_sequence_id() == 40
        for sequence_id in (39, 40, 41):
            producer.send(str(sequence_id).encode(), sequence_id=sequence_id)
        consumer = client.subscribe(TOPIC, "s", initial_position=EARLIEST)
        assert receive_data(consumer, 41) == [str(sequence_id).encode() for sequence_id in range(1, 42)]
        expect_silence(consumer)


def test_small_ledgers_are_one_topic_to_clients(start_broker: StartBroker) -> None:
    """Ids stay ordered over roll-over; readers, seeks by id and time, and restarts cross the borders."""
    broker = start_broker(arguments=settings("topics.ledger_bytes_max=65536"))
    with connected(broker) as client:
        client.subscribe(TOPIC, "keeper", initial_position=EARLIEST).close()
        producer = client.create_producer(TOPIC)
        values = [value + os.urandom(4_000) for value in payloads(200)]
        first = send_all(producer, values[:100])
        border_ms = int(time.time() * 1000) + 1
        eventually(lambda: int(time.time() * 1000) > border_ms, what="the next millisecond")
        second = send_all(producer, values[100:])
        ids = [position(each) for each in first + second]
        assert ids == sorted(set(ids))
        assert len({ledger for ledger, _, _ in ids}) >= 3, "the ledger never rolled over"
        assert read_available(client.create_reader(TOPIC, pulsar.MessageId.earliest)) == values
        assert read_available(client.create_reader(TOPIC, first[60])) == values[61:]
        broker.kill9()
        broker.start()
        keeper = client.subscribe(TOPIC, "keeper")  # a new one: an old one would answer from its own queue
        assert receive_data(keeper, 200) == values
        keeper.seek(border_ms)
        assert receive_data(keeper, 100) == values[100:]


def test_unused_topics_are_unloaded_and_come_back(start_broker: StartBroker) -> None:
    broker = start_broker(arguments=settings("broker.idle_topic_seconds=0.2"))
    with connected(broker) as client:
        consumer = client.subscribe(TOPIC, "s", SHARED, initial_position=EARLIEST)
        producer = client.create_producer(TOPIC)
        values = payloads(10)
        ids = send_all(producer, values)
        for message in receive_all(consumer, 10, ack=False)[::2]:
            consumer.acknowledge(message)
        producer.close()
        consumer.close()
        other = client.subscribe(TOPIC + "-busy", "s")
        expect_silence(other, quiet_ms=1_000)
        again = client.subscribe(TOPIC, "s", SHARED)
        assert receive_data(again, 5) == values[1::2]
        assert position(client.create_producer(TOPIC).send(b"more")) > position(ids[-1])
        assert receive_data(again, 1) == [b"more"]


@pytest.mark.parametrize("mode", ["group", "linger:5ms", "none"])
def test_sync_modes(start_broker: StartBroker, mode: str) -> None:
    broker = start_broker(arguments=["--sync", mode])
    values = payloads(200)
    with connected(broker) as client:
        keep_all(client, TOPIC)
        send_pipelined(client.create_producer(TOPIC), values)
    broker.restart()
    with connected(broker) as client:
        assert receive_data(client.subscribe(TOPIC, "s", initial_position=EARLIEST), 200) == values


def test_acks_older_than_the_flush_window_survive_a_crash(start_broker: StartBroker) -> None:
    broker = start_broker(arguments=settings("topics.cursor_flush_ms=50"))
    with connected(broker) as client:
        consumer = client.subscribe(TOPIC, "s", SHARED, initial_position=EARLIEST, batch_index_ack_enabled=True)
        values = payloads(30)
        send_all(client.create_producer(TOPIC), values)
        for message in receive_all(consumer, 30, ack=False)[::2]:
            consumer.acknowledge(message)
        expect_silence(consumer, quiet_ms=1_000)  # the contract is about time: twenty windows pass
        consumer.close()
        broker.kill9()
        broker.start()
        again = client.subscribe(TOPIC, "s", SHARED, batch_index_ack_enabled=True)
        assert receive_data(again, 15) == values[1::2]
        expect_silence(again)


def test_keep_alive_leaves_idle_clients_connected(start_broker: StartBroker) -> None:
    broker = start_broker(arguments=settings("broker.keep_alive_seconds=0.2"))
    with connected(broker) as client:
        consumer = client.subscribe(TOPIC, "s")
        producer = client.create_producer(TOPIC)
        expect_silence(consumer, quiet_ms=1_500)
        assert consumer.is_connected()
        producer.send(b"still here")
        assert receive_data(consumer, 1) == [b"still here"]


def test_small_producer_bound_slows_but_loses_nothing(start_broker: StartBroker) -> None:
    broker = start_broker(arguments=settings("broker.producer_bytes_max=65536", "broker.producer_messages_max=10"))
    with connected(broker) as client:
        consumer = client.subscribe(TOPIC, "s", initial_position=EARLIEST)
        values = [value + bytes(2_000) for value in payloads(500)]
        send_pipelined(client.create_producer(TOPIC), values)
        assert receive_data(consumer, 500) == values


def test_terminated_topic_outlives_the_sweep(start_broker: StartBroker) -> None:
    """Its last ledger is closed but stays, also while no subscription asks for it."""
    broker = start_broker(arguments=settings("broker.sweep_seconds=0.1"))
    with connected(broker) as client:
        producer = client.create_producer(TOPIC)
        values = payloads(3)
        send_all(producer, values)
        producer.close()
        Rest(broker.http_url).expect("POST", "/admin/v2/persistent/public/default/set/terminate")
        other = client.subscribe(TOPIC + "-busy", "s")
        expect_silence(other, quiet_ms=1_000)  # ten sweeps pass
        assert receive_data(client.subscribe(TOPIC, "s", initial_position=EARLIEST), 3, within_s=5) == values


def test_key_shared_ranges_are_split_without_consistent_hashing(start_broker: StartBroker) -> None:
    """Pulsar's subscriptionKeySharedUseConsistentHashing=false."""
    broker = start_broker(arguments=["--set", "broker.key_shared_consistent_hashing=false"])
    rest, topic = Rest(broker.http_url), "persistent://public/default/split"
    client = new_client(broker.service_url)

    def ranges() -> list[list[list[int]]]:
        consumers = rest.stats(topic)["subscriptions"]["s"]["consumers"]
        return sorted(one["keyHashRangeArrays"] for one in consumers)

    try:
        consumers = [client.subscribe(topic, "s", pulsar.ConsumerType.KeyShared, consumer_name=name) for name in "abc"]
        assert ranges() == [[[0, 16383]], [[16384, 32767]], [[32768, 65535]]]
        producer = client.create_producer(topic, batching_enabled=False)
        for number in range(60):
            producer.send(str(number).encode(), partition_key=f"k{number % 12}")
        found = collect(consumers, 60)
        owners = [{message.partition_key() for message in mine} for mine in found]
        assert sum(map(len, owners)) == 12, "each key has one consumer"
        for values in by_key([message for mine in found for message in mine]).values():
            assert values == sorted(values, key=int)
        consumers[0].close()
        eventually(lambda: ranges() == [[[0, 16383]], [[16384, 65535]]], what="the neighbour has the range")
    finally:
        client.close()


def test_chunks_are_counted_in_stats(broker: BrokerProcess) -> None:
    rest, topic = Rest(broker.http_url), f"persistent://public/default/chunks-{uuid.uuid4().hex[:8]}"
    client = new_client(broker.service_url)
    try:
        producer = client.create_producer(topic, chunking_enabled=True, batching_enabled=False)
        producer.send(b"x")
        assert rest.stats(topic)["msgChunkPublished"] is False
        producer.send(b"x" * (12 << 20))
        found = rest.stats(topic)
        assert found["msgChunkPublished"] is True and found["publishers"][0]["chunkedMessageRate"] > 0
    finally:
        client.close()
