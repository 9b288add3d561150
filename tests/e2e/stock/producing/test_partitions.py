"""Partitioned topics: routing, order per key, growing, lazy producers."""

from __future__ import annotations

import pulsar
import pytest

from tests.support.traffic.stock_calls import (
    EARLIEST,
    KEY_SHARED,
    SHARED,
    Rest,
    by_key,
    collect,
    data,
    payloads,
    receive_all,
    receive_data,
    send_all,
    send_pipelined,
    topic_path,
)


def partitions_of(messages: list[pulsar.Message]) -> set[int]:
    return {message.message_id().partition() for message in messages}


@pytest.mark.conformance("partitioned topics", client="Python")
def test_round_robin_uses_all_partitions(client: pulsar.Client, partitioned_topic: str) -> None:
    consumer = client.subscribe(partitioned_topic, "s", initial_position=EARLIEST)
    values = payloads(30)
    send_all(client.create_producer(partitioned_topic), values)
    received = receive_all(consumer, 30)
    assert sorted(data(received)) == values
    assert partitions_of(received) == {0, 1, 2}
    assert {message.topic_name() for message in received} == {f"{partitioned_topic}-partition-{i}" for i in range(3)}


def test_single_partition_routing(client: pulsar.Client, partitioned_topic: str) -> None:
    consumer = client.subscribe(partitioned_topic, "s", initial_position=EARLIEST)
    producer = client.create_producer(
        partitioned_topic, message_routing_mode=pulsar.PartitionsRoutingMode.UseSinglePartition
    )
    values = payloads(10)
    send_all(producer, values)
    received = receive_all(consumer, 10)
    assert data(received) == values
    assert len(partitions_of(received)) == 1


def test_custom_router(client: pulsar.Client, partitioned_topic: str) -> None:
    consumer = client.subscribe(partitioned_topic, "s", initial_position=EARLIEST)
    producer = client.create_producer(partitioned_topic, message_router=lambda message, count: count - 1)
    values = payloads(5)
    send_all(producer, values)
    received = receive_all(consumer, 5)
    assert partitions_of(received) == {2}
    assert data(received) == values


@pytest.mark.parametrize("batching", [False, True])
def test_keys_keep_their_order(client: pulsar.Client, partitioned_topic: str, batching: bool) -> None:
    consumer = client.subscribe(partitioned_topic, "s", initial_position=EARLIEST)
    producer = client.create_producer(partitioned_topic, batching_enabled=batching)
    for index in range(200):
        producer.send_async(f"{index:04d}".encode(), lambda result, message_id: None, partition_key=f"k{index % 10}")
    producer.flush()
    received = receive_all(consumer, 200)
    for key, values in by_key(received).items():
        assert values == [f"{index:04d}".encode() for index in range(int(key[1:]), 200, 10)]
        assert len(partitions_of([each for each in received if each.partition_key() == key])) == 1


def test_lazy_producers(client: pulsar.Client, partitioned_topic: str) -> None:
    consumer = client.subscribe(partitioned_topic, "s", initial_position=EARLIEST)
    producer = client.create_producer(partitioned_topic, lazy_start_partitioned_producers=True)
    values = payloads(9)
    send_all(producer, values)
    assert sorted(receive_data(consumer, 9)) == values


def test_one_partition_can_be_used_alone(client: pulsar.Client, partitioned_topic: str) -> None:
    consumer = client.subscribe(f"{partitioned_topic}-partition-1", "s", initial_position=EARLIEST)
    values = payloads(9)
    ids = send_all(client.create_producer(partitioned_topic), values)
    mine = [value for value, each in zip(values, ids, strict=True) if each.partition() == 1]
    assert receive_data(consumer, 3) == mine


def test_shared_consumers_over_partitions(
    client: pulsar.Client, other_client: pulsar.Client, partitioned_topic: str
) -> None:
    consumers = [each.subscribe(partitioned_topic, "s", SHARED) for each in (client, other_client)]
    values = payloads(60)
    send_all(client.create_producer(partitioned_topic), values)
    assert sorted(value for each in collect(consumers, 60) for value in data(each)) == values


def test_key_shared_over_partitions(client: pulsar.Client, partitioned_topic: str) -> None:
    consumers = [client.subscribe(partitioned_topic, "s", KEY_SHARED) for _ in range(2)]
    producer = client.create_producer(partitioned_topic)
    for index in range(100):
        producer.send(f"{index:03d}".encode(), partition_key=f"k{index % 10}")
    first, second = map(by_key, collect(consumers, 100))
    assert not set(first) & set(second)
    for key, values in {**first, **second}.items():
        assert values == [f"{index:03d}".encode() for index in range(int(key[1:]), 100, 10)]


def test_acks_are_per_partition(client: pulsar.Client, partitioned_topic: str) -> None:
    consumer = client.subscribe(partitioned_topic, "s", initial_position=EARLIEST)
    values = payloads(12)
    send_all(client.create_producer(partitioned_topic), values)
    received = receive_all(consumer, 12, ack=False)
    done = [message for message in received if message.message_id().partition() == 0]
    for message in done:
        consumer.acknowledge(message)
    consumer.close()
    again = client.subscribe(partitioned_topic, "s")
    assert sorted(receive_data(again, 8)) == sorted(set(values) - set(data(done)))


def test_growing_partitions(client: pulsar.Client, other_client: pulsar.Client, rest: Rest, topic: str) -> None:
    rest.create_partitioned(topic, 2)
    old_producer = client.create_producer(topic)
    old_consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    before = payloads(6, "before")
    send_all(old_producer, before)
    rest.grow_partitions(topic, 5)
    assert len(other_client.get_topic_partitions(topic)) == 5
    old_producer.send(b"the old producer goes on")
    assert sorted(receive_data(old_consumer, 7)) == sorted([*before, b"the old producer goes on"])
    after = payloads(10, "after")
    new_consumer = other_client.subscribe(topic, "t", initial_position=EARLIEST)
    send_all(other_client.create_producer(topic), after)
    received = receive_all(new_consumer, 17)
    assert sorted(data(received)) == sorted([*before, b"the old producer goes on", *after])
    assert partitions_of(received) == {0, 1, 2, 3, 4}


def test_new_partitions_hold_the_existing_subscriptions(client: pulsar.Client, rest: Rest, topic: str) -> None:
    """What is published to a new partition before the subscriber knows of it is not lost."""
    rest.create_partitioned(topic, 1)
    client.subscribe(topic, "s").close()
    rest.grow_partitions(topic, 3)
    values = payloads(6)
    send_all(client.create_producer(topic), values)
    assert sorted(receive_data(client.subscribe(topic, "s"), 6)) == values


def test_shrinking_is_refused(rest: Rest, topic: str) -> None:
    rest.create_partitioned(topic, 3)
    status, answer = rest.call("POST", f"{topic_path(topic)}/partitions", 2)
    assert status == 422, answer


def test_unicode_name_with_partitions(client: pulsar.Client, rest: Rest, topic: str) -> None:
    name = f"{topic} größe %20 x"
    rest.create_partitioned(name, 2)
    assert client.get_topic_partitions(name) == [f"{name}-partition-0", f"{name}-partition-1"]
    consumer = client.subscribe(name, "s", initial_position=EARLIEST)
    values = payloads(4)
    send_all(client.create_producer(name), values)
    assert sorted(receive_data(consumer, 4)) == values


def test_pipelined_over_partitions_is_complete(client: pulsar.Client, partitioned_topic: str) -> None:
    consumer = client.subscribe(partitioned_topic, "s", initial_position=EARLIEST)
    producer = client.create_producer(partitioned_topic, batching_enabled=True, block_if_queue_full=True)
    values = payloads(3_000)
    send_pipelined(producer, values)
    assert sorted(receive_data(consumer, 3_000)) == values
