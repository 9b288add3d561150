"""Several topics at once: lists, patterns, listeners, table views, non-persistent topics, two hundred topics."""

from __future__ import annotations

import queue
import re
import threading
import uuid
from typing import Any

import _pulsar
import pulsar
import pytest

from tests.support.processes.broker_process import BrokerProcess
from tests.support.traffic.stock_calls import (
    EARLIEST,
    SHARED,
    Rest,
    data,
    eventually,
    expect_silence,
    payloads,
    receive_all,
    receive_data,
    receive_rest,
    send_all,
    send_pipelined,
)
from tests.support.traffic.stock_client import new_client


def test_list_of_topics(client: pulsar.Client, topic: str) -> None:
    topics = [f"{topic}-{index}" for index in range(4)]
    consumer = client.subscribe(topics, "s", initial_position=EARLIEST)
    for name in topics:
        send_all(client.create_producer(name), payloads(5, name[-1]))
    received = receive_all(consumer, 20)
    for name in topics:
        assert [each.data() for each in received if each.topic_name() == name] == payloads(5, name[-1])


def test_list_of_topics_remembers_acks(client: pulsar.Client, topic: str) -> None:
    topics = [f"{topic}-a", f"{topic}-b"]
    consumer = client.subscribe(topics, "s", SHARED, initial_position=EARLIEST)
    for name in topics:
        send_all(client.create_producer(name), payloads(5, name[-1]))
    messages = receive_all(consumer, 10, ack=False)
    for message in messages:
        if message.topic_name() == topics[0]:
            consumer.acknowledge(message)
    consumer.close()
    assert receive_data(client.subscribe(topics, "s", SHARED), 5) == payloads(5, "b")


def test_list_mixes_partitioned_and_plain(client: pulsar.Client, topic: str, partitioned_topic: str) -> None:
    consumer = client.subscribe([topic, partitioned_topic], "s", initial_position=EARLIEST)
    send_all(client.create_producer(topic), payloads(3, "plain"))
    send_all(client.create_producer(partitioned_topic), payloads(6, "parts"))
    assert sorted(receive_data(consumer, 9)) == sorted(payloads(3, "plain") + payloads(6, "parts"))


def test_pattern(client: pulsar.Client) -> None:
    mark = uuid.uuid4().hex[:8]
    base = f"persistent://public/default/{mark}"
    for name in ("in-1", "in-2", "out-1"):
        client.create_producer(f"{base}-{name}").send(name.encode())
    consumer = client.subscribe(re.compile(f"{base}-in-.*"), "s", initial_position=EARLIEST)
    assert sorted(receive_data(consumer, 2)) == [b"in-1", b"in-2"]
    expect_silence(consumer)


def test_pattern_with_partitioned_topics(client: pulsar.Client, rest: Rest) -> None:
    base = f"persistent://public/default/{uuid.uuid4().hex[:8]}"
    rest.create_partitioned(f"{base}-in-parts", 3)
    consumer = client.subscribe(re.compile(f"{base}-in-.*"), "s", initial_position=EARLIEST)
    values = payloads(9)
    send_all(client.create_producer(f"{base}-in-parts"), values)
    assert sorted(receive_data(consumer, 9)) == values


def test_pattern_finds_new_topics(client: pulsar.Client) -> None:
    """The wheel's own `subscribe` drops the discovery period, so the configuration is built by hand."""
    base = f"persistent://public/default/{uuid.uuid4().hex[:8]}"
    settings = _pulsar.ConsumerConfiguration()
    settings.subscription_initial_position(EARLIEST)
    settings.pattern_auto_discovery_period(1)
    consumer = client._client.subscribe_pattern(f"{base}-.*", "s", settings)
    client.create_producer(f"{base}-born-later").send(b"found")
    assert consumer.receive(15_000).data() == b"found"
    consumer.close()


def test_pattern_over_http(broker: BrokerProcess, client: pulsar.Client) -> None:
    base = f"persistent://public/default/{uuid.uuid4().hex[:8]}"
    client.create_producer(f"{base}-x").send(b"x")
    stock = new_client(broker.http_url, operation_timeout_seconds=10)
    consumer = stock.subscribe(re.compile(f"{base}-.*"), "s", initial_position=EARLIEST)
    assert receive_data(consumer, 1) == [b"x"]
    stock.close()


def test_pattern_for_non_persistent_topics_only(client: pulsar.Client) -> None:
    mark = uuid.uuid4().hex[:8]
    volatile = client.create_producer(f"non-persistent://public/default/{mark}-a")
    lasting = client.create_producer(f"persistent://public/default/{mark}-b")
    consumer = client.subscribe(
        re.compile(f"public/default/{mark}-.*"),
        "s",
        regex_subscription_mode=pulsar.RegexSubscriptionMode.NonPersistentOnly,
    )
    lasting.send(b"not me")
    volatile.send(b"me")
    assert receive_data(consumer, 1) == [b"me"]
    expect_silence(consumer)


def test_listener(client: pulsar.Client, topic: str) -> None:
    received: queue.Queue[bytes] = queue.Queue()

    def listen(consumer: Any, message: Any) -> None:
        consumer.acknowledge(message)
        received.put(message.data())  # after the ack, because the test closes the consumer after the last message

    consumer = client.subscribe(topic, "s", message_listener=listen)
    values = payloads(100)
    send_pipelined(client.create_producer(topic), values)
    assert [received.get(timeout=10) for _ in values] == values
    consumer.close()
    assert receive_rest(client.subscribe(topic, "s")) == []


def test_listener_can_pause(client: pulsar.Client, topic: str) -> None:
    received: queue.Queue[bytes] = queue.Queue()
    consumer = client.subscribe(topic, "s", message_listener=lambda _, message: received.put(message.data()))
    producer = client.create_producer(topic)
    producer.send(b"one")
    assert received.get(timeout=10) == b"one"
    consumer.pause_message_listener()
    producer.send(b"two")
    with pytest.raises(queue.Empty):
        received.get(timeout=0.3)
    consumer.resume_message_listener()
    assert received.get(timeout=10) == b"two"


def test_listeners_of_a_shared_subscription(client: pulsar.Client, other_client: pulsar.Client, topic: str) -> None:
    received: queue.Queue[tuple[str, bytes]] = queue.Queue()

    def listener(name: str) -> Any:
        def listen(consumer: Any, message: Any) -> None:
            consumer.acknowledge(message)
            received.put((name, message.data()))

        return listen

    for each, name in ((client, "a"), (other_client, "b")):
        each.subscribe(topic, "s", SHARED, message_listener=listener(name), receiver_queue_size=5)
    values = payloads(200)
    send_pipelined(client.create_producer(topic), values)
    got = [received.get(timeout=10) for _ in values]
    assert sorted(value for _, value in got) == values
    assert {name for name, _ in got} == {"a", "b"}


def test_table_view(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic)
    for turn in range(3):
        for key in ("a", "b", "c"):
            producer.send(f"{key}{turn}".encode(), partition_key=key)
    view = client.create_table_view(topic)
    assert {key: view.get(key) for key in "abc"} == {"a": b"a2", "b": b"b2", "c": b"c2"}
    assert len(view) == 3
    assert view.get("missing") is None
    producer.send(b"fresh", partition_key="b")
    eventually(lambda: bool(view.get("b") == b"fresh"), what="the view follows")
    view.close()


def test_table_view_on_partitions(client: pulsar.Client, partitioned_topic: str) -> None:
    producer = client.create_producer(partitioned_topic)
    for index in range(30):
        producer.send(str(index).encode(), partition_key=f"k{index % 10}")
    view = client.create_table_view(partitioned_topic)
    found: dict[str, bytes] = {}
    view.for_each(lambda key, value: found.update({key: value}))
    assert found == {f"k{index}": str(20 + index).encode() for index in range(10)}
    view.close()


def test_non_persistent_round_trip(client: pulsar.Client) -> None:
    name = f"non-persistent://public/default/np-{uuid.uuid4().hex[:8]}"
    consumer = client.subscribe(name, "s")
    values = payloads(20)
    send_all(client.create_producer(name), values)
    assert receive_data(consumer, 20) == values


def test_non_persistent_keeps_nothing(client: pulsar.Client) -> None:
    name = f"non-persistent://public/default/np-{uuid.uuid4().hex[:8]}"
    producer = client.create_producer(name)
    producer.send(b"before the consumer")
    consumer = client.subscribe(name, "s", initial_position=EARLIEST)
    producer.send(b"after the consumer")
    assert receive_data(consumer, 1) == [b"after the consumer"]


def test_non_persistent_subscriptions_each_get_all(client: pulsar.Client) -> None:
    name = f"non-persistent://public/default/np-{uuid.uuid4().hex[:8]}"
    consumers = [client.subscribe(name, f"s{index}", SHARED) for index in range(3)]
    values = payloads(10)
    send_all(client.create_producer(name), values)
    assert [receive_data(consumer, 10) for consumer in consumers] == [values] * 3


def test_non_persistent_and_persistent_of_one_name_are_two_topics(client: pulsar.Client) -> None:
    local = f"same-name-{uuid.uuid4().hex[:8]}"
    lasting = client.subscribe(f"persistent://public/default/{local}", "s")
    volatile = client.subscribe(f"non-persistent://public/default/{local}", "s")
    client.create_producer(f"persistent://public/default/{local}").send(b"p")
    client.create_producer(f"non-persistent://public/default/{local}").send(b"n")
    assert receive_data(lasting, 1) == [b"p"]
    assert receive_data(volatile, 1) == [b"n"]
    expect_silence(lasting, quiet_ms=100)
    expect_silence(volatile, quiet_ms=100)


@pytest.mark.slow
def test_two_hundred_topics(client: pulsar.Client, topic: str) -> None:
    topics = [f"{topic}-{index:03d}" for index in range(200)]
    consumer = client.subscribe(topics, "s", initial_position=EARLIEST)
    producers = [client.create_producer(name) for name in topics]
    lock = threading.Lock()
    receipts: list[Any] = []

    def done(result: Any, message_id: Any) -> None:
        with lock:
            receipts.append(result)

    for turn in range(3):
        for index, producer in enumerate(producers):
            producer.send_async(f"{index:03d}.{turn}".encode(), done)
    received = receive_data(consumer, 600)
    eventually(lambda: len(receipts) == 600, what="all receipts")
    assert set(receipts) == {pulsar.Result.Ok}
    assert sorted(received) == sorted(f"{index:03d}.{turn}".encode() for index in range(200) for turn in range(3))
    assert [value for value in received if value.startswith(b"100.")] == [b"100.0", b"100.1", b"100.2"]


def test_topics_are_listed_and_deleted_over_rest(client: pulsar.Client, rest: Rest, topic: str) -> None:
    producer = client.create_producer(topic)
    producer.send(b"x")
    assert topic in rest.expect("GET", "/admin/v2/persistent/public/default")
    producer.close()
    rest.expect("DELETE", f"/admin/v2/{topic.replace('://', '/')}")
    assert topic not in rest.expect("GET", "/admin/v2/persistent/public/default")
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    client.create_producer(topic).send(b"a new life")
    assert data(receive_all(consumer, 1)) == [b"a new life"]
