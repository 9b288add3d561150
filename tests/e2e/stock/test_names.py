"""Topic names as the stock client sends them, the binary and the HTTP lookup, and partition metadata."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pulsar
import pytest

from tests.support.processes.broker_process import BrokerProcess
from tests.support.traffic.stock_calls import EARLIEST, SHARED, Rest, payloads, receive_all, receive_data, send_all
from tests.support.traffic.stock_client import new_client


@pytest.fixture
def http_client(broker: BrokerProcess) -> Iterator[pulsar.Client]:
    stock = new_client(broker.http_url, operation_timeout_seconds=10)
    yield stock
    stock.close()


def round_trip(client: pulsar.Client, topic: str) -> None:
    """Two messages through a producer, a durable subscription and a reader of that name."""
    values = payloads(2)
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    producer = client.create_producer(topic)
    send_all(producer, values)
    assert receive_data(consumer, 2) == values
    producer.close()
    consumer.close()


@pytest.mark.parametrize(
    "local",
    [
        "plain-{}",
        "two words {}",
        "grüße-{}",
        "日本-{}",
        "emoji-🚀-{}",
        "per%20cent-{}",
        "percent%-{}",
        "a+b&c=d;e-{}",
        "query?x#y-{}",
        "colon:semi,comma-{}",
        "tilde~star*-{}",
        "UPPER.lower_{}",
        "dots..{}",
        "almost-partition-01-{}",
    ],
)
def test_local_names_work_as_they_are(client: pulsar.Client, local: str) -> None:
    round_trip(client, f"persistent://public/default/{local.format(uuid.uuid4().hex[:8])}")


def test_slash_in_local_name(client: pulsar.Client) -> None:
    round_trip(client, f"persistent://public/default/orders/{uuid.uuid4().hex[:8]}")


def test_names_that_differ_only_in_escaping_are_different_topics(client: pulsar.Client) -> None:
    mark = uuid.uuid4().hex[:8]
    names = [f"persistent://public/default/{mark}{tail}" for tail in (" x", "+x", "%20x", "%2Bx")]
    for index, name in enumerate(names):
        client.create_producer(name).send(f"only {index}".encode())
    for index, name in enumerate(names):
        consumer = client.subscribe(name, "s", initial_position=EARLIEST)
        assert receive_data(consumer, 1) == [f"only {index}".encode()]


def test_short_and_middle_names_mean_the_full_one(client: pulsar.Client) -> None:
    local = f"short-{uuid.uuid4().hex[:8]}"
    consumer = client.subscribe(f"persistent://public/default/{local}", "s", initial_position=EARLIEST)
    client.create_producer(local).send(b"short")
    client.create_producer(f"public/default/{local}").send(b"middle")
    assert receive_data(consumer, 2) == [b"short", b"middle"]
    assert consumer.topic() == f"persistent://public/default/{local}"


def test_message_carries_its_full_topic_name(client: pulsar.Client) -> None:
    local = f"named-{uuid.uuid4().hex[:8]}"
    consumer = client.subscribe(local, "s", initial_position=EARLIEST)
    client.create_producer(local).send(b"x")
    assert receive_all(consumer, 1)[0].topic_name() == f"persistent://public/default/{local}"


def test_subscription_name_with_special_characters(client: pulsar.Client, topic: str) -> None:
    names = ["with space", "slash/inside", "per%cent", "größe"]
    consumers = [client.subscribe(topic, name, initial_position=EARLIEST) for name in names]
    client.create_producer(topic).send(b"to all")
    assert [receive_data(consumer, 1) for consumer in consumers] == [[b"to all"]] * len(names)


def test_other_namespace(client: pulsar.Client, rest: Rest) -> None:
    rest.create_namespace("public/elsewhere")
    round_trip(client, f"persistent://public/elsewhere/t-{uuid.uuid4().hex[:8]}")


def test_missing_namespace_is_refused(client: pulsar.Client) -> None:
    with pytest.raises(pulsar.PulsarException):
        client.create_producer("persistent://public/no-such-namespace/t")


def test_get_topic_partitions_of_plain_topic(client: pulsar.Client, topic: str) -> None:
    client.create_producer(topic)
    assert client.get_topic_partitions(topic) == [topic]


def test_get_topic_partitions_of_partitioned_topic(client: pulsar.Client, partitioned_topic: str) -> None:
    expected = [f"{partitioned_topic}-partition-{index}" for index in range(3)]
    assert client.get_topic_partitions(partitioned_topic) == expected


@pytest.mark.parametrize("local", ["http-{}", "http two words {}", "http-ünïcode-{}", "http-per%20cent-{}"])
def test_http_service_url(http_client: pulsar.Client, local: str) -> None:
    round_trip(http_client, f"persistent://public/default/{local.format(uuid.uuid4().hex[:8])}")


def test_http_service_url_with_partitions(http_client: pulsar.Client, partitioned_topic: str) -> None:
    assert len(http_client.get_topic_partitions(partitioned_topic)) == 3
    consumer = http_client.subscribe(partitioned_topic, "s", SHARED, initial_position=EARLIEST)
    values = payloads(9)
    send_all(http_client.create_producer(partitioned_topic), values)
    assert sorted(receive_data(consumer, 9)) == values


def test_both_service_urls_meet_on_one_topic(client: pulsar.Client, http_client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    http_client.create_producer(topic).send(b"over http lookup")
    assert receive_data(consumer, 1) == [b"over http lookup"]
