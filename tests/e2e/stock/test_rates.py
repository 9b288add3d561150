"""Rates of a namespace and stock clients: they hold, they are fair, and they count from the moment they are set.

Durations are only ever compared from below: a rate that is not enforced is too fast, a slow machine is not an error.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pulsar
import pytest

from tests.support.processes.broker_process import BrokerProcess
from tests.support.traffic.stock_calls import (
    EARLIEST,
    FAILOVER,
    KEY_SHARED,
    SHARED,
    Rest,
    payloads,
    publish_batch,
    receive_all,
    receive_data,
    send_all,
    send_pipelined,
)
from tests.support.traffic.stock_client import new_client


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    process = BrokerProcess(
        tmp_path_factory.mktemp("rates") / "data", arguments=["--set", "broker.sweep_seconds=0.1"]
    ).start()
    try:
        yield process
        process.stop()
    finally:
        process.close()


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[pulsar.Client]:
    stock = new_client(broker.service_url, operation_timeout_seconds=5)
    yield stock
    stock.close()


class Namespace:
    def __init__(self, rest: Rest) -> None:
        self.rest = rest
        self.name = f"public/rates-{uuid.uuid4().hex[:10]}"
        rest.expect("PUT", f"/admin/v2/namespaces/{self.name}")

    def topic(self, domain: str = "persistent") -> str:
        return f"{domain}://{self.name}/t"

    def set(self, policy: str, value: Any) -> None:
        self.rest.expect("POST", f"/admin/v2/namespaces/{self.name}/{policy}", value)

    def unset(self, policy: str) -> None:
        self.rest.expect("DELETE", f"/admin/v2/namespaces/{self.name}/{policy}")


@pytest.fixture
def namespace(broker: BrokerProcess) -> Namespace:
    return Namespace(Rest(broker.http_url))


def took(call: Any) -> float:
    start = time.monotonic()
    call()
    return time.monotonic() - start


@pytest.mark.parametrize("domain", ["persistent", "non-persistent"])
def test_publish_rate_in_messages(client: pulsar.Client, namespace: Namespace, domain: str) -> None:
    namespace.set("publishRate", {"publishThrottlingRateInMsg": 50})
    topic = namespace.topic(domain)
    producer = client.create_producer(topic, batching_enabled=False)
    seconds = took(lambda: send_pipelined(producer, payloads(125)))
    assert seconds >= 1.4  # 50 at once, 75 at 50 a second
    assert namespace.rest.stats(topic)["publishRateLimitedTimes"] >= 1


def test_publish_rate_in_bytes(client: pulsar.Client, namespace: Namespace) -> None:
    namespace.set("publishRate", {"publishThrottlingRateInByte": 10_000})
    producer = client.create_producer(namespace.topic(), batching_enabled=False)
    assert took(lambda: send_pipelined(producer, [b"x" * 1_000] * 20)) >= 0.9


def test_a_publish_rate_ends_without_a_restart(client: pulsar.Client, namespace: Namespace) -> None:
    topic = namespace.topic()
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    producer = client.create_producer(topic, batching_enabled=False)
    send_all(producer, payloads(3, "before"))
    namespace.set("publishRate", {"publishThrottlingRateInMsg": 1})
    lift = threading.Timer(1.0, lambda: namespace.unset("publishRate"))
    lift.start()
    send_pipelined(producer, payloads(60), within_s=30)  # at one a second it would take a minute
    lift.join()
    assert receive_data(consumer, 63) == payloads(3, "before") + payloads(60)


def test_a_held_producer_closes_cleanly_and_loses_nothing(client: pulsar.Client, namespace: Namespace) -> None:
    namespace.set("publishRate", {"publishThrottlingRateInMsg": 20})
    topic = namespace.topic()
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    producer = client.create_producer(topic, batching_enabled=False)
    for value in payloads(40):
        producer.send_async(value, None)
    producer.flush()
    producer.close()
    assert receive_data(consumer, 40) == payloads(40)


@pytest.mark.parametrize("kind", [pulsar.ConsumerType.Exclusive, SHARED, FAILOVER, KEY_SHARED])
@pytest.mark.parametrize("policy", ["dispatchRate", "subscriptionDispatchRate"])
def test_dispatch_rate(client: pulsar.Client, namespace: Namespace, policy: str, kind: Any) -> None:
    topic = namespace.topic()
    client.subscribe(topic, "s", kind, initial_position=EARLIEST).close()
    producer = client.create_producer(topic, batching_enabled=False)
    for index, value in enumerate(payloads(50)):
        producer.send_async(value, None, partition_key=f"k{index % 5}")
    producer.flush()
    namespace.set(policy, {"dispatchThrottlingRateInMsg": 20, "ratePeriodInSecond": 1})
    consumer = client.subscribe(topic, "s", kind)
    got: list[Any] = []
    seconds = took(lambda: got.extend(receive_all(consumer, 50)))
    assert seconds >= 1.3  # 20 at once, 30 at 20 a second
    assert sorted(one.data() for one in got) == sorted(payloads(50))
    limit = "Topic" if policy == "dispatchRate" else "Subscription"
    stats = namespace.rest.stats(topic)["subscriptions"]["s"]
    assert stats[f"dispatchThrottledMsgEventsBy{limit}Limit"] >= 1


def test_dispatch_rate_counts_the_messages_of_batches(client: pulsar.Client, namespace: Namespace) -> None:
    topic = namespace.topic()
    client.subscribe(topic, "s", initial_position=EARLIEST).close()
    for _ in range(10):
        publish_batch(client, topic, payloads(10))
    namespace.set("subscriptionDispatchRate", {"dispatchThrottlingRateInMsg": 40, "ratePeriodInSecond": 1})
    consumer = client.subscribe(topic, "s")
    assert took(lambda: receive_all(consumer, 100)) >= 1.2


def test_the_subscriptions_of_a_topic_share_its_rate(client: pulsar.Client, namespace: Namespace) -> None:
    topic = namespace.topic()
    for name in ("a", "b"):
        client.subscribe(topic, name, initial_position=EARLIEST).close()
    send_all(client.create_producer(topic, batching_enabled=False), payloads(30))
    namespace.set("dispatchRate", {"dispatchThrottlingRateInByte": 100_000, "dispatchThrottlingRateInMsg": 20})
    consumers = [client.subscribe(topic, name) for name in ("a", "b")]
    assert took(lambda: [receive_all(one, 30) for one in consumers]) >= 1.5  # 60 deliveries


def test_a_dispatch_rate_ends_without_a_restart(client: pulsar.Client, namespace: Namespace) -> None:
    namespace.set("subscriptionDispatchRate", {"dispatchThrottlingRateInMsg": 1, "ratePeriodInSecond": 1})
    topic = namespace.topic()
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    send_all(client.create_producer(topic, batching_enabled=False), payloads(100))
    receive_all(consumer, 2)
    namespace.unset("subscriptionDispatchRate")
    assert len(receive_all(consumer, 98)) == 98


def test_subscribe_rate_of_one_consumer(broker: BrokerProcess, namespace: Namespace) -> None:
    namespace.set("subscribeRate", {"subscribeThrottlingRatePerConsumer": 1, "ratePeriodInSecond": 600})
    topic = namespace.topic()

    def attach(name: str) -> None:
        stock = new_client(broker.service_url, operation_timeout_seconds=3)
        try:
            stock.subscribe(topic, "s", SHARED, consumer_name=name)
        finally:
            stock.close()

    attach("one")
    with pytest.raises(pulsar.NotAllowedError):
        attach("one")
    attach("two")
    namespace.unset("subscribeRate")
    attach("one")
