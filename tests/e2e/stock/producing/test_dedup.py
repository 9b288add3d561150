"""Deduplication by producer name and sequence id, switched on for a namespace."""

from __future__ import annotations

import uuid

import pulsar
import pytest

from tests.support.traffic.stock_calls import (
    EARLIEST,
    expect_silence,
    payloads,
    position,
    receive_data,
    send_all,
    send_pipelined,
)


@pytest.fixture
def dedup_topic(dedup_namespace: str) -> str:
    return f"persistent://{dedup_namespace}/d-{uuid.uuid4().hex[:12]}"


@pytest.mark.conformance("deduplication", client="Python")
def test_repeated_sequence_ids_are_dropped(client: pulsar.Client, dedup_topic: str) -> None:
    consumer = client.subscribe(dedup_topic, "s", initial_position=EARLIEST)
    producer = client.create_producer(dedup_topic, producer_name="p")
    for sequence_id in (1, 2, 2, 1, 3, 3, 4):
        producer.send(str(sequence_id).encode(), sequence_id=sequence_id)
    assert receive_data(consumer, 4) == [b"1", b"2", b"3", b"4"]
    expect_silence(consumer)


def test_receipt_of_a_duplicate_has_no_position(client: pulsar.Client, dedup_topic: str) -> None:
    producer = client.create_producer(dedup_topic, producer_name="p")
    first = producer.send(b"x", sequence_id=5)
    again = producer.send(b"x", sequence_id=5)
    assert first.entry_id() >= 0
    assert position(again)[:2] == (-1, -1)


def test_new_producer_of_the_name_goes_on_counting(client: pulsar.Client, dedup_topic: str) -> None:
    first = client.create_producer(dedup_topic, producer_name="p")
    send_all(first, payloads(5))
    assert first.last_sequence_id() == 4
    first.close()
    second = client.create_producer(dedup_topic, producer_name="p")
    assert second.last_sequence_id() == 4
    second.send(b"next")
    assert second.last_sequence_id() == 5


def test_restarted_sender_repeats_safely(client: pulsar.Client, dedup_topic: str) -> None:
    """The usual recipe: sequence ids are offsets of the source; after a crash some are sent again."""
    consumer = client.subscribe(dedup_topic, "s", initial_position=EARLIEST)
    first = client.create_producer(dedup_topic, producer_name="copier")
    for offset in range(1, 11):
        first.send(str(offset).encode(), sequence_id=offset)
    first.close()
    second = client.create_producer(dedup_topic, producer_name="copier")
    for offset in range(6, 16):
        second.send(str(offset).encode(), sequence_id=offset)
    assert receive_data(consumer, 15) == [str(offset).encode() for offset in range(1, 16)]
    expect_silence(consumer)


def test_names_count_separately(client: pulsar.Client, dedup_topic: str) -> None:
    consumer = client.subscribe(dedup_topic, "s", initial_position=EARLIEST)
    for name in ("a", "b"):
        client.create_producer(dedup_topic, producer_name=name).send(name.encode(), sequence_id=7)
    assert receive_data(consumer, 2) == [b"a", b"b"]


def test_batches_are_deduplicated(client: pulsar.Client, dedup_topic: str) -> None:
    consumer = client.subscribe(dedup_topic, "s", initial_position=EARLIEST)
    values = payloads(20)
    for _ in range(2):
        producer = client.create_producer(
            dedup_topic,
            producer_name="p",
            batching_enabled=True,
            batching_max_messages=20,
            batching_max_publish_delay_ms=5_000,
        )
        for index, value in enumerate(values):
            producer.send_async(value, lambda result, message_id: None, sequence_id=index + 1)
        producer.flush()
        producer.close()
    assert receive_data(consumer, 20) == values
    expect_silence(consumer)


def test_chunks_of_one_message_are_not_duplicates(client: pulsar.Client, dedup_topic: str) -> None:
    consumer = client.subscribe(dedup_topic, "s", initial_position=EARLIEST)
    producer = client.create_producer(dedup_topic, producer_name="p", chunking_enabled=True)
    value = bytes(range(256)) * 4096 * 6
    producer.send(value)
    producer.send(b"small")
    received = receive_data(consumer, 2)
    assert [len(each) for each in received] == [len(value), 5]
    assert received[0] == value


def test_without_the_switch_repeats_are_kept(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    producer = client.create_producer(topic, producer_name="p")
    for _ in range(2):
        producer.send(b"x", sequence_id=1)
    assert receive_data(consumer, 2) == [b"x", b"x"]


def test_pipelined_sends_are_all_kept(client: pulsar.Client, dedup_topic: str) -> None:
    consumer = client.subscribe(dedup_topic, "s", initial_position=EARLIEST)
    values = payloads(1_000)
    send_pipelined(client.create_producer(dedup_topic, block_if_queue_full=True), values)
    assert receive_data(consumer, 1_000) == values
