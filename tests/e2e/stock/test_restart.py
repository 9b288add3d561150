"""Brokers that go away and come back: what clients notice (nothing) and what is still there (everything confirmed).

A consumer keeps what it has prefetched over a crash; tests that ask what the broker kept drain or close it first.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pulsar
import pytest

from tests.support.processes.broker_process import BrokerProcess
from tests.support.traffic.stock_calls import (
    EARLIEST,
    EXCLUSIVE,
    FAILOVER,
    KEY_SHARED,
    SHARED,
    Rest,
    data,
    eventually,
    expect_silence,
    keep_all,
    payloads,
    position,
    publish_batch,
    read_available,
    receive_all,
    receive_data,
    receive_rest,
    send_all,
    send_pipelined,
)
from tests.support.traffic.stock_client import new_client

TOPIC = "persistent://public/default/kept"
Restart = Callable[[BrokerProcess], None]


def crash(broker: BrokerProcess) -> None:
    broker.kill9()
    broker.start()


def clean(broker: BrokerProcess) -> None:
    broker.restart()


both_ways = pytest.mark.parametrize("again", [crash, clean], ids=["kill9", "sigterm"])


@contextlib.contextmanager
def connected(broker: BrokerProcess) -> Iterator[pulsar.Client]:
    stock = new_client(broker.service_url, operation_timeout_seconds=10)
    try:
        yield stock
    finally:
        stock.close()


def settled(broker: BrokerProcess, backlog: int, *, topic: str = TOPIC, subscription: str = "s") -> None:
    """Wait until the broker counts what the test acknowledged; the client sends acks in groups."""
    rest = Rest(broker.http_url)

    def counted() -> bool:
        return bool(rest.stats(topic)["subscriptions"][subscription]["msgBacklog"] == backlog)

    eventually(counted, what=f"backlog of {backlog}")


@both_ways
def test_confirmed_messages_are_kept(private_broker: BrokerProcess, again: Restart) -> None:
    values = payloads(500)
    with connected(private_broker) as client:
        keep_all(client, TOPIC)
        ids = send_pipelined(client.create_producer(TOPIC), values)
    again(private_broker)
    with connected(private_broker) as client:
        received = receive_all(client.subscribe(TOPIC, "s", initial_position=EARLIEST), 500)
        assert data(received) == values
        assert [position(each.message_id()) for each in received] == [position(each) for each in ids]


@both_ways
def test_ids_go_on_growing(private_broker: BrokerProcess, again: Restart) -> None:
    ids = []
    for _ in range(3):
        with connected(private_broker) as client:
            ids += [position(each) for each in send_all(client.create_producer(TOPIC), payloads(5))]
        again(private_broker)
    assert ids == sorted(set(ids))


@both_ways
def test_connected_producer_and_consumer_go_on(private_broker: BrokerProcess, again: Restart) -> None:
    with connected(private_broker) as client:
        consumer = client.subscribe(TOPIC, "s", initial_position=EARLIEST)
        producer = client.create_producer(TOPIC)
        producer.send(b"before")
        assert receive_data(consumer, 1) == [b"before"]
        settled(private_broker, 0)
        again(private_broker)
        producer.send(b"after")
        received = receive_data(consumer, 1)
        if received == [b"before"]:  # a crash may bring back the newest acks' messages, never lose one
            assert again is crash
            received = receive_data(consumer, 1)
        assert received == [b"after"]


def test_sends_made_while_the_broker_is_down_arrive(private_broker: BrokerProcess) -> None:
    with connected(private_broker) as client:
        client.subscribe(TOPIC, "s", initial_position=EARLIEST).close()
        producer = client.create_producer(TOPIC)
        producer.send(b"m-first")
        private_broker.kill9()
        results: list[Any] = []
        all_done = threading.Event()

        def done(result: Any, message_id: Any) -> None:
            results.append(result)
            if len(results) == 50:
                all_done.set()

        values = payloads(50)
        for value in values:
            producer.send_async(value, done)
        assert results == []
        private_broker.start()
        assert all_done.wait(20)
        assert set(results) == {pulsar.Result.Ok}
        consumer = client.subscribe(TOPIC, "s")
        assert receive_data(consumer, 51) == [b"m-first", *values]
        expect_silence(consumer)


@both_ways
@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED], ids=lambda kind: kind.name)
def test_consumers_of_every_type_come_back(
    private_broker: BrokerProcess, again: Restart, kind: pulsar.ConsumerType
) -> None:
    with connected(private_broker) as client:
        consumer = client.subscribe(TOPIC, "s", kind, initial_position=EARLIEST)
        producer = client.create_producer(TOPIC)
        values = payloads(20)
        send_all(producer, values[:10], partition_key="k")
        receive_all(consumer, 10, ack=False)
        again(private_broker)
        send_all(producer, values[10:], partition_key="k")
        assert receive_data(consumer, 20) == values


def test_durable_acks_survive_a_clean_stop(private_broker: BrokerProcess) -> None:
    with connected(private_broker) as client:
        consumer = client.subscribe(TOPIC, "s", initial_position=EARLIEST)
        values = payloads(30)
        send_all(client.create_producer(TOPIC), values)
        consumer.acknowledge_cumulative(receive_all(consumer, 30, ack=False)[19])
    private_broker.restart()
    with connected(private_broker) as client:
        again = client.subscribe(TOPIC, "s")
        assert receive_data(again, 10) == values[20:]
        expect_silence(again)


def test_individual_acks_survive_a_clean_stop(private_broker: BrokerProcess) -> None:
    with connected(private_broker) as client:
        consumer = client.subscribe(TOPIC, "s", SHARED, initial_position=EARLIEST)
        values = payloads(60)
        send_pipelined(client.create_producer(TOPIC), values)
        for index, message in enumerate(receive_all(consumer, 60, ack=False)):
            if index % 3:
                consumer.acknowledge(message)
    private_broker.restart()
    with connected(private_broker) as client:
        again = client.subscribe(TOPIC, "s", SHARED)
        assert receive_data(again, 20) == values[::3]
        expect_silence(again)


def test_batch_index_acks_survive_a_clean_stop(private_broker: BrokerProcess) -> None:
    with connected(private_broker) as client:
        consumer = client.subscribe(TOPIC, "s", SHARED, initial_position=EARLIEST, batch_index_ack_enabled=True)
        values = payloads(100)
        publish_batch(client, TOPIC, values)
        for index, message in enumerate(receive_all(consumer, 100, ack=False)):
            if index % 10:
                consumer.acknowledge(message)
    private_broker.restart()
    with connected(private_broker) as client:
        again = client.subscribe(TOPIC, "s", SHARED, batch_index_ack_enabled=True)
        assert receive_data(again, 10) == values[::10]
        expect_silence(again)


@pytest.mark.parametrize("batch_index", [False, True])
def test_crash_redelivers_but_never_loses(private_broker: BrokerProcess, batch_index: bool) -> None:
    """What was not acknowledged comes back, whatever happened to the acks of the last moments."""
    with connected(private_broker) as client:
        consumer = client.subscribe(TOPIC, "s", SHARED, initial_position=EARLIEST, batch_index_ack_enabled=batch_index)
        values = payloads(60)
        publish_batch(client, TOPIC, values[:30])
        send_pipelined(client.create_producer(TOPIC), values[30:])
        for index, message in enumerate(receive_all(consumer, 60, ack=False)):
            if index % 3:
                consumer.acknowledge(message)
        consumer.close()
        crash(private_broker)
        again = client.subscribe(TOPIC, "s", SHARED, batch_index_ack_enabled=batch_index)
        came_back: list[bytes] = []
        while not set(values[::3]) <= set(came_back):
            came_back += receive_data(again, 1)
        came_back += data(receive_rest(again))
    assert len(came_back) == len(set(came_back))


@both_ways
def test_subscription_without_consumers_is_kept(private_broker: BrokerProcess, again: Restart) -> None:
    with connected(private_broker) as client:
        client.subscribe(TOPIC, "s").close()
        values = payloads(10)
        send_all(client.create_producer(TOPIC), values)
    again(private_broker)
    with connected(private_broker) as client:
        assert receive_data(client.subscribe(TOPIC, "s"), 10) == values


def test_unsubscribed_stays_forgotten(private_broker: BrokerProcess) -> None:
    with connected(private_broker) as client:
        consumer = client.subscribe(TOPIC, "s", initial_position=EARLIEST)
        producer = client.create_producer(TOPIC)
        producer.send(b"x")
        receive_all(consumer, 1)
        consumer.unsubscribe()
    crash(private_broker)
    assert Rest(private_broker.http_url).stats(TOPIC)["subscriptions"] == {}


@both_ways
def test_partitions_are_kept(private_broker: BrokerProcess, again: Restart) -> None:
    rest = Rest(private_broker.http_url)
    rest.create_partitioned(TOPIC, 4)
    values = payloads(40)
    with connected(private_broker) as client:
        keep_all(client, TOPIC)
        send_all(client.create_producer(TOPIC), values)
    again(private_broker)
    with connected(private_broker) as client:
        assert len(client.get_topic_partitions(TOPIC)) == 4
        assert sorted(receive_data(client.subscribe(TOPIC, "s", initial_position=EARLIEST), 40)) == values


@both_ways
def test_deduplication_survives(private_broker: BrokerProcess, again: Restart) -> None:
    rest = Rest(private_broker.http_url)
    rest.create_namespace("public/dedup-ns")
    rest.expect("POST", "/admin/v2/namespaces/public/dedup-ns/deduplication", True)
    topic = "persistent://public/dedup-ns/kept"
    with connected(private_broker) as client:
        keep_all(client, topic)
        producer = client.create_producer(topic, producer_name="p")
        for sequence_id in range(1, 21):
            producer.send(str(sequence_id).encode(), sequence_id=sequence_id)
    again(private_broker)
    with connected(private_broker) as client:
        producer = client.create_producer(topic, producer_name="p")
        assert producer.last_sequence_id() == 20
        for sequence_id in range(11, 31):
            producer.send(str(sequence_id).encode(), sequence_id=sequence_id)
        consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
        assert receive_data(consumer, 30) == [str(sequence_id).encode() for sequence_id in range(1, 31)]
        expect_silence(consumer)


def test_resent_messages_of_a_live_producer_are_not_doubled(private_broker: BrokerProcess) -> None:
    """With deduplication a crash in the middle of pipelined sends leaves each message exactly once."""
    rest = Rest(private_broker.http_url)
    rest.create_namespace("public/dedup-ns")
    rest.expect("POST", "/admin/v2/namespaces/public/dedup-ns/deduplication", True)
    topic = "persistent://public/dedup-ns/live"
    with connected(private_broker) as client:
        keep_all(client, topic)
        producer = client.create_producer(topic, producer_name="p", block_if_queue_full=True, batching_enabled=True)
        values = payloads(4_000)
        confirmed: list[Any] = []
        half = threading.Event()

        def done(result: Any, message_id: Any) -> None:
            confirmed.append(result)
            if len(confirmed) >= 1_000:
                half.set()

        def send() -> None:
            for value in values:
                producer.send_async(value, done)

        sender = threading.Thread(target=send)
        sender.start()
        assert half.wait(20)
        crash(private_broker)
        sender.join(30)
        assert not sender.is_alive()
        producer.flush()
        eventually(lambda: len(confirmed) == 4_000, within_s=20, what="all receipts")
        assert set(confirmed) == {pulsar.Result.Ok}
        consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
        assert receive_data(consumer, 4_000) == values
        expect_silence(consumer)


@both_ways
def test_reader_goes_on_where_it_was(private_broker: BrokerProcess, again: Restart) -> None:
    with connected(private_broker) as client:
        keep_all(client, TOPIC)
        producer = client.create_producer(TOPIC)
        values = payloads(20)
        send_all(producer, values[:10])
        reader = client.create_reader(TOPIC, pulsar.MessageId.earliest)
        assert [reader.read_next(10_000).data() for _ in range(5)] == values[:5]
        again(private_broker)
        send_all(producer, values[10:])
        assert [reader.read_next(10_000).data() for _ in range(15)] == values[5:]


@both_ways
def test_stored_reader_position_is_still_good(private_broker: BrokerProcess, again: Restart) -> None:
    with connected(private_broker) as client:
        keep_all(client, TOPIC)
        values = payloads(10)
        stored = send_all(client.create_producer(TOPIC), values)[4].serialize()
    again(private_broker)
    with connected(private_broker) as client:
        reader = client.create_reader(TOPIC, pulsar.MessageId.deserialize(stored))
        assert read_available(reader) == values[5:]


@both_ways
def test_answered_seek_is_kept(private_broker: BrokerProcess, again: Restart) -> None:
    with connected(private_broker) as client:
        consumer = client.subscribe(TOPIC, "s", initial_position=EARLIEST)
        values = payloads(10)
        send_all(client.create_producer(TOPIC), values)
        receive_all(consumer, 10)
        settled(private_broker, 0)
        expect_silence(consumer, quiet_ms=1_000)  # the acks are on disk: only the seek can bring the messages back
        consumer.seek(pulsar.MessageId.earliest)
        again(private_broker)
    with connected(private_broker) as client:
        assert receive_data(client.subscribe(TOPIC, "s"), 10) == values


@both_ways
def test_terminated_stays_terminated(private_broker: BrokerProcess, again: Restart) -> None:
    with connected(private_broker) as client:
        producer = client.create_producer(TOPIC)
        producer.send(b"last")
        producer.close()
    Rest(private_broker.http_url).expect("POST", "/admin/v2/persistent/public/default/kept/terminate")
    again(private_broker)
    with connected(private_broker) as client:
        with pytest.raises(pulsar.TopicTerminated):
            client.create_producer(TOPIC)
        assert receive_data(client.subscribe(TOPIC, "s", initial_position=EARLIEST), 1) == [b"last"]


@both_ways
def test_delayed_messages_survive(private_broker: BrokerProcess, again: Restart) -> None:
    with connected(private_broker) as client:
        consumer = client.subscribe(TOPIC, "s", SHARED, initial_position=EARLIEST)
        client.create_producer(TOPIC).send(b"later", deliver_after=timedelta(seconds=3))
        again(private_broker)
        expect_silence(consumer)
        assert receive_data(consumer, 1) == [b"later"]


def test_redelivered_after_crash_keeps_key_order(private_broker: BrokerProcess) -> None:
    with connected(private_broker) as client:
        consumer = client.subscribe(TOPIC, "s", KEY_SHARED, initial_position=EARLIEST)
        producer = client.create_producer(TOPIC)
        for index in range(100):
            producer.send_async(f"{index:03d}".encode(), lambda result, message_id: None, partition_key=f"k{index % 5}")
        producer.flush()
        held = receive_all(
            consumer, 100, ack=False
        )  # nothing stays in the client's own queue, which outlives the crash
        for message in held[:50]:
            consumer.acknowledge(message)
        crash(private_broker)
        seen: dict[str, list[bytes]] = {}
        # At least the second half comes, however long the client takes to find the broker again; then what follows.
        for message in [*receive_all(consumer, 50), *receive_rest(consumer, quiet_ms=1_500)]:
            seen.setdefault(message.partition_key(), []).append(message.data())
        for key, values in seen.items():
            assert values == sorted(set(values))
            assert set(values) >= {f"{index:03d}".encode() for index in range(50, 100) if f"k{index % 5}" == key}
        assert set(seen) == {f"k{index}" for index in range(5)}


def test_three_crashes_in_a_row(private_broker: BrokerProcess) -> None:
    with connected(private_broker) as client:
        keep_all(client, TOPIC)
        producer = client.create_producer(TOPIC)
        values = payloads(30)
        for turn in range(3):
            send_all(producer, values[turn * 10 : turn * 10 + 10])
            crash(private_broker)
        consumer = client.subscribe(TOPIC, "s", initial_position=EARLIEST)
        assert receive_data(consumer, 30) == values


def test_sigterm_with_everything_attached_is_quick(private_broker: BrokerProcess) -> None:
    with connected(private_broker) as client:
        consumers = [client.subscribe(f"{TOPIC}-{index}", "s", SHARED) for index in range(10)]
        producers = [client.create_producer(f"{TOPIC}-{index}") for index in range(10)]
        for producer in producers:
            producer.send(b"x")
        assert [receive_data(consumer, 1) for consumer in consumers] == [[b"x"]] * 10
        for index in range(10):
            settled(private_broker, 0, topic=f"{TOPIC}-{index}")
        private_broker.stop(within_s=15)  # none of the clients' timeouts of 30 s is waited for
        private_broker.start()
        for producer in producers:
            producer.send(b"y")
        assert [receive_data(consumer, 1) for consumer in consumers] == [[b"y"]] * 10
