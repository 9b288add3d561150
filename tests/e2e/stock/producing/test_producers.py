"""Producers: names, access modes, batching, compression, message attributes, pipelining."""

from __future__ import annotations

import threading
import time
from typing import Any

import pulsar
import pytest

from tests.support.processes.broker_process import BrokerProcess
from tests.support.traffic.stock_calls import (
    EARLIEST,
    Rest,
    data,
    eventually,
    expect_silence,
    payloads,
    position,
    publish_batch,
    receive_all,
    receive_data,
    send_all,
    send_pipelined,
)
from tests.support.traffic.stock_client import new_client

Mode = pulsar.ProducerAccessMode


def test_generated_names_are_unique(client: pulsar.Client, topic: str) -> None:
    names = [client.create_producer(topic).producer_name() for _ in range(5)]
    assert len(set(names)) == 5
    assert all(names)


def test_given_name_is_kept_and_delivered(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    producer = client.create_producer(topic, producer_name="ledger-writer")
    producer.send(b"x")
    assert producer.producer_name() == "ledger-writer"
    assert receive_all(consumer, 1)[0].producer_name() == "ledger-writer"


def test_duplicate_name_is_refused(client: pulsar.Client, other_client: pulsar.Client, topic: str) -> None:
    first = client.create_producer(topic, producer_name="one")
    with pytest.raises(pulsar.ProducerBusy):
        other_client.create_producer(topic, producer_name="one")
    first.send(b"the first still works")


def test_duplicate_name_on_the_same_connection_is_refused(client: pulsar.Client, topic: str) -> None:
    client.create_producer(topic, producer_name="one")
    with pytest.raises(pulsar.ProducerBusy):
        client.create_producer(topic, producer_name="one")


def test_name_is_free_again_after_close(client: pulsar.Client, other_client: pulsar.Client, topic: str) -> None:
    client.create_producer(topic, producer_name="one").close()
    other_client.create_producer(topic, producer_name="one").send(b"x")


def test_name_is_free_again_when_its_client_is_gone(broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    leaver = new_client(broker.service_url)
    leaver.create_producer(topic, producer_name="one").send(b"x")
    leaver.shutdown()
    client.create_producer(topic, producer_name="one").send(b"y")


def test_same_name_on_two_topics(client: pulsar.Client, topic: str) -> None:
    client.create_producer(topic, producer_name="one").send(b"x")
    client.create_producer(topic + "-b", producer_name="one").send(b"y")


def test_exclusive_refuses_exclusive(client: pulsar.Client, other_client: pulsar.Client, topic: str) -> None:
    client.create_producer(topic, access_mode=Mode.Exclusive).send(b"x")
    with pytest.raises(pulsar.ProducerFenced):
        other_client.create_producer(topic, access_mode=Mode.Exclusive)


def test_exclusive_refuses_shared(client: pulsar.Client, other_client: pulsar.Client, topic: str) -> None:
    client.create_producer(topic, access_mode=Mode.Exclusive).send(b"x")
    with pytest.raises(pulsar.ProducerBusy):
        other_client.create_producer(topic)


def test_shared_producer_refuses_exclusive(client: pulsar.Client, other_client: pulsar.Client, topic: str) -> None:
    client.create_producer(topic).send(b"x")
    with pytest.raises(pulsar.ProducerFenced):
        other_client.create_producer(topic, access_mode=Mode.Exclusive)


def test_exclusive_is_free_after_close(client: pulsar.Client, other_client: pulsar.Client, topic: str) -> None:
    client.create_producer(topic, access_mode=Mode.Exclusive).close()
    other_client.create_producer(topic, access_mode=Mode.Exclusive).send(b"x")


def test_wait_for_exclusive_gets_its_turn(client: pulsar.Client, other_client: pulsar.Client, topic: str) -> None:
    first = client.create_producer(topic, access_mode=Mode.Exclusive)
    first.send(b"first")
    waiting: list[Any] = []

    def wait() -> None:
        waiting.append(other_client.create_producer(topic, access_mode=Mode.WaitForExclusive))

    thread = threading.Thread(target=wait)
    thread.start()
    try:
        thread.join(0.5)
        assert thread.is_alive(), "the second producer did not wait"
        first.send(b"still first")
    finally:
        first.close()
        thread.join(10)
    assert not thread.is_alive()
    waiting[0].send(b"second")
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    assert receive_data(consumer, 3) == [b"first", b"still first", b"second"]


@pytest.mark.conformance("exclusive producers", client="Python")
def test_fencing_takes_over(client: pulsar.Client, other_client: pulsar.Client, topic: str) -> None:
    old = client.create_producer(topic, access_mode=Mode.Exclusive, send_timeout_millis=3_000)
    old.send(b"old")
    new = other_client.create_producer(topic, access_mode=Mode.ExclusiveWithFencing)
    new.send(b"new")
    with pytest.raises(pulsar.PulsarException):
        old.send(b"must not be stored")
    new.send(b"newer")
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    assert receive_data(consumer, 3) == [b"old", b"new", b"newer"]
    expect_silence(consumer)


@pytest.mark.parametrize("batching", [False, True])
def test_pipelined_sends_keep_order(client: pulsar.Client, topic: str, batching: bool) -> None:
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    producer = client.create_producer(topic, batching_enabled=batching, block_if_queue_full=True)
    values = payloads(3_000)
    ids = send_pipelined(producer, values)
    assert [position(each) for each in ids] == sorted({position(each) for each in ids})
    received = receive_all(consumer, len(values))
    assert data(received) == values
    assert [position(each.message_id()) for each in received] == [position(each) for each in ids]


@pytest.mark.parametrize("batching", [False, True])
@pytest.mark.parametrize("name", ["LZ4", "ZLib", "ZSTD", "SNAPPY"])
@pytest.mark.conformance("batches and compression", client="Python")
def test_compression(client: pulsar.Client, topic: str, name: str, batching: bool) -> None:
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    producer = client.create_producer(
        topic, compression_type=getattr(pulsar.CompressionType, name), batching_enabled=batching
    )
    values = [bytes([65 + index]) * 5_000 for index in range(10)]
    send_pipelined(producer, values)
    assert receive_data(consumer, 10) == values


def test_key_based_batching(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_messages=60, batching_type=pulsar.BatchingType.KeyBased
    )
    for index in range(60):
        producer.send_async(str(index).encode(), lambda result, message_id: None, partition_key=f"k{index % 3}")
    producer.flush()
    received = receive_all(consumer, 60)
    for key in range(3):
        mine = [int(each.data()) for each in received if each.partition_key() == f"k{key}"]
        assert mine == list(range(key, 60, 3))


@pytest.mark.parametrize("batching", [False, True])
def test_message_attributes_survive(client: pulsar.Client, topic: str, batching: bool) -> None:
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    producer = client.create_producer(topic, batching_enabled=batching)
    before_ms = int(time.time() * 1000)
    sent_id = producer.send(
        "grüße".encode(),
        properties={"a": "1", "größe": "日本", "empty": ""},
        partition_key="key-ä",
        ordering_key="order",
        event_timestamp=1_234_567_890_123,
    )
    message = receive_all(consumer, 1)[0]
    assert message.data().decode() == "grüße"
    assert message.properties() == {"a": "1", "größe": "日本", "empty": ""}
    assert message.partition_key() == "key-ä"
    assert message.ordering_key() == "order"
    assert message.event_timestamp() == 1_234_567_890_123
    assert before_ms <= message.publish_timestamp() <= int(time.time() * 1000)
    assert message.redelivery_count() == 0
    assert position(message.message_id()) == position(sent_id)


@pytest.mark.parametrize("batching", [False, True])
def test_empty_payload(client: pulsar.Client, topic: str, batching: bool) -> None:
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    producer = client.create_producer(topic, batching_enabled=batching)
    producer.send(b"")
    producer.send(b"after")
    assert receive_data(consumer, 2) == [b"", b"after"]


def test_null_value(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    client.create_producer(topic).send(None, partition_key="gone")
    message = receive_all(consumer, 1)[0]
    assert message.has_null_value()
    assert message.partition_key() == "gone"


def test_ids_of_one_topic_only_grow(client: pulsar.Client, topic: str) -> None:
    producers = [client.create_producer(topic) for _ in range(3)]
    ids = [position(producers[index % 3].send(b"x")) for index in range(30)]
    assert ids == sorted(set(ids))


def test_batch_shares_one_entry(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    ids = publish_batch(client, topic, payloads(10))
    assert [each.batch_index() for each in ids] == list(range(10))
    received = receive_all(consumer, 10)
    assert [position(each.message_id()) for each in received] == [position(each) for each in ids]


def test_flush_waits_for_receipts(client: pulsar.Client, topic: str) -> None:
    receipts: list[Any] = []
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=60_000)
    for value in payloads(50):
        producer.send_async(value, lambda result, message_id: receipts.append(result))
    producer.flush()
    eventually(lambda: len(receipts) == 50, what="all receipts after flush")
    assert set(receipts) == {pulsar.Result.Ok}


def test_send_after_close_fails(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic)
    producer.close()
    with pytest.raises(pulsar.AlreadyClosed):
        producer.send(b"x")


def test_sequence_ids_count_from_zero(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic)
    assert producer.last_sequence_id() == -1
    send_all(producer, payloads(3))
    assert producer.last_sequence_id() == 2


def test_initial_sequence_id(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic, initial_sequence_id=41)
    assert producer.last_sequence_id() == 41
    producer.send(b"x")
    assert producer.last_sequence_id() == 42


def test_given_sequence_ids_are_reported_back(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic)
    producer.send(b"x", sequence_id=100)
    assert producer.last_sequence_id() == 100


def test_producer_properties_show_in_stats(client: pulsar.Client, topic: str, rest: Rest) -> None:
    producer = client.create_producer(topic, producer_name="known", properties={"team": "billing"})
    producer.send(b"x")
    publishers = rest.stats(topic)["publishers"]
    assert [(each["producerName"], each["metadata"]) for each in publishers] == [("known", {"team": "billing"})]


def test_hundred_producers_on_one_connection(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    producers = [client.create_producer(topic) for _ in range(100)]
    done: list[Any] = []
    for index, producer in enumerate(producers):
        for turn in range(5):
            producer.send_async(f"{index}-{turn}".encode(), lambda result, message_id: done.append(result))
    received = receive_data(consumer, 500)
    eventually(lambda: len(done) == 500, what="all receipts")
    assert set(done) == {pulsar.Result.Ok}
    for index in range(100):
        assert [each for each in received if each.startswith(f"{index}-".encode())] == [
            f"{index}-{turn}".encode() for turn in range(5)
        ]


def test_terminated_topic_refuses_producers_but_can_be_read(client: pulsar.Client, topic: str, rest: Rest) -> None:
    producer = client.create_producer(topic, send_timeout_millis=5_000)
    values = payloads(3)
    ids = send_all(producer, values)
    last = rest.expect("POST", f"/admin/v2/{topic.replace('://', '/')}/terminate")
    assert (last["ledgerId"], last["entryId"]) == position(ids[-1])[:2]
    with pytest.raises(pulsar.PulsarException):
        producer.send(b"too late")
    with pytest.raises(pulsar.TopicTerminated):
        client.create_producer(topic)
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    assert receive_data(consumer, 3) == values
    expect_silence(consumer)
