"""What a topic's policies do to stock clients: they win over the namespace's, at once, and leave other topics alone.

A partitioned topic has one partition here, so that limits of one partition can be counted.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any

import pulsar
import pytest

from tests.support.processes.broker_process import BrokerProcess
from tests.support.processes.cluster import ClusterProcesses
from tests.support.traffic.stock_calls import (
    EARLIEST,
    EXCLUSIVE,
    SHARED,
    Rest,
    eventually,
    expect_silence,
    payloads,
    receive_all,
    receive_data,
    rests_of,
    send_all,
    send_pipelined,
    topic_path,
)
from tests.support.traffic.stock_client import new_client

BIG = b"x" * 4_000


@pytest.fixture
def client(swift_client: pulsar.Client) -> pulsar.Client:
    return swift_client


class Topic:
    """A topic with policies, beside one in the same namespace without."""

    def __init__(self, broker: BrokerProcess | ClusterProcesses, kind: str) -> None:
        self.rest, self.kind, self._everywhere = Rest(broker.http_url), kind, rests_of(broker)
        self.namespace = f"public/tpw-{uuid.uuid4().hex[:10]}"
        self.rest.expect("PUT", f"/admin/v2/namespaces/{self.namespace}")
        self.name, self.other = (f"persistent://{self.namespace}/{local}" for local in ("t", "other"))
        for name in (self.name, self.other):
            if kind == "regular":
                self.rest.expect("PUT", topic_path(name))
            else:
                self.rest.create_partitioned(name, 1)

    def set(self, policy: str, value: Any, verb: str = "POST") -> None:
        """At each broker: a broker applies it before it answers."""
        for rest in self._everywhere:
            rest.expect(verb, f"{topic_path(self.name)}/{policy}", value)

    def unset(self, policy: str) -> None:
        for rest in self._everywhere:
            rest.expect("DELETE", f"{topic_path(self.name)}/{policy}")

    def set_namespace(self, policy: str, value: Any) -> None:
        for rest in self._everywhere:
            rest.expect("POST", f"/admin/v2/namespaces/{self.namespace}/{policy}", value)

    def part(self, name: str) -> str:
        return name if self.kind == "regular" else f"{name}-partition-0"

    def backlog(self, name: str, subscription: str = "s") -> int:
        return int(self.rest.stats(self.part(name))["subscriptions"][subscription]["msgBacklog"])

    def stored(self, name: str) -> int:
        return int(self.rest.expect("GET", f"{topic_path(self.part(name))}/internalStats")["totalSize"])


@pytest.fixture(params=["regular", "partitioned"])
def topic(swift_broker: BrokerProcess | ClusterProcesses, request: pytest.FixtureRequest) -> Topic:
    return Topic(swift_broker, request.param)


def refused(call: Callable[[], Any], *errors: type[Exception]) -> None:
    with pytest.raises(errors or (pulsar.PulsarException,)):
        call()


def filled(client: pulsar.Client, name: str, count: int = 10) -> None:
    client.subscribe(name, "s", initial_position=EARLIEST).close()
    send_all(client.create_producer(name, batching_enabled=False), [BIG] * count)


@pytest.mark.conformance("policies of a topic: retention", client="Python")
def test_retention_keeps_consumed_messages_of_the_topic_only(client: pulsar.Client, topic: Topic) -> None:
    topic.set("retention", {"retentionTimeInMinutes": -1, "retentionSizeInMB": 1})
    for name in (topic.name, topic.other):
        filled(client, name, 20)
        receive_all(client.subscribe(name, "s"), 20)
    eventually(
        lambda: topic.stored(topic.other) < 10 * len(BIG), what="consumed ledgers of the other topic are dropped"
    )
    assert topic.stored(topic.name) >= 20 * len(BIG)
    topic.unset("retention")
    eventually(lambda: topic.stored(topic.name) < 10 * len(BIG), what="consumed ledgers are dropped")


@pytest.mark.conformance("policies of a topic: TTL", client="Python")
def test_ttl_skips_old_messages_of_the_topic_only(client: pulsar.Client, topic: Topic) -> None:
    for name in (topic.name, topic.other):
        filled(client, name, 3)
    topic.rest.expect("POST", f"{topic_path(topic.name)}/messageTTL?messageTTL=1")
    eventually(lambda: topic.backlog(topic.name) == 0, what="messages expire")
    assert topic.backlog(topic.other) == 3


@pytest.mark.conformance("policies of a topic: backlog quota", client="Python")
def test_size_quota_refuses_producers_until_it_is_removed(client: pulsar.Client, topic: Topic) -> None:
    for name in (topic.name, topic.other):
        filled(client, name)
    topic.set("backlogQuota", {"limitSize": 10_000, "policy": "producer_exception"})
    refused(lambda: client.create_producer(topic.name), pulsar.ProducerBlockedQuotaExceededException)
    client.create_producer(topic.other)
    topic.unset("backlogQuota")
    client.create_producer(topic.name).send(b"again")


def test_age_quota_evicts_the_backlog(client: pulsar.Client, topic: Topic) -> None:
    filled(client, topic.name, 3)
    topic.set("backlogQuota?backlogQuotaType=message_age", {"limitTime": 1, "policy": "consumer_backlog_eviction"})
    eventually(lambda: topic.backlog(topic.name) == 0, what="old messages are evicted")


@pytest.mark.conformance("policies of a topic: publish rate", client="Python")
def test_publish_rate_holds_until_it_is_removed(client: pulsar.Client, topic: Topic) -> None:
    topic.set("publishRate", {"publishThrottlingRateInMsg": 20})
    producer = client.create_producer(topic.name, batching_enabled=False)
    began = time.monotonic()
    send_pipelined(producer, payloads(50))
    assert time.monotonic() - began >= 1.4  # 20 at once, 30 at 20 a second
    topic.unset("publishRate")
    assert topic.rest.stats(topic.part(topic.name))["publishRateLimitedTimes"] == 0


@pytest.mark.parametrize("policy", ["dispatchRate", "subscriptionDispatchRate", "s/dispatchRate"])
@pytest.mark.conformance("policies of a topic: dispatch rate", client="Python")
def test_dispatch_rate_holds(client: pulsar.Client, topic: Topic, policy: str) -> None:
    for name in ("s", "free"):
        client.subscribe(topic.name, name, initial_position=EARLIEST).close()
    send_all(client.create_producer(topic.name, batching_enabled=False), payloads(30))
    topic.set(policy, {"dispatchThrottlingRateInMsg": 10, "ratePeriodInSecond": 1})
    began = time.monotonic()
    receive_all(client.subscribe(topic.name, "s"), 30)
    assert time.monotonic() - began >= 1.8  # 10 at once, 20 at 10 a second
    stats = topic.rest.stats(topic.part(topic.name))["subscriptions"]
    limit = "Topic" if policy == "dispatchRate" else "Subscription"
    assert stats["s"][f"dispatchThrottledMsgEventsBy{limit}Limit"] >= 1


def test_dispatch_rate_of_one_subscription_spares_the_others(client: pulsar.Client, topic: Topic) -> None:
    topic.set("s/dispatchRate", {"dispatchThrottlingRateInMsg": 1, "ratePeriodInSecond": 60})
    consumers = [client.subscribe(topic.name, name, initial_position=EARLIEST) for name in ("s", "free")]
    send_all(client.create_producer(topic.name, batching_enabled=False), payloads(30))
    receive_all(consumers[1], 30)
    assert topic.backlog(topic.name, "s") >= 20
    topic.unset("s/dispatchRate")
    receive_all(consumers[0], 30)


def test_subscribe_rate_refuses_a_consumer_that_returns(
    swift_broker: BrokerProcess | ClusterProcesses, topic: Topic
) -> None:
    topic.set("subscribeRate", {"subscribeThrottlingRatePerConsumer": 1, "ratePeriodInSecond": 600})

    def attach(name: str) -> None:
        stock = new_client(swift_broker.service_url, operation_timeout_seconds=3)
        try:
            stock.subscribe(name, "s", SHARED, consumer_name="one")
        finally:
            stock.close()

    attach(topic.name)
    refused(lambda: attach(topic.name), pulsar.NotAllowedError)
    attach(topic.other)
    attach(topic.other)
    topic.unset("subscribeRate")
    attach(topic.name)


@pytest.mark.conformance("policies of a topic: limits", client="Python")
def test_most_producers_of_the_topic_win_over_the_namespace(client: pulsar.Client, topic: Topic) -> None:
    topic.set_namespace("maxProducersPerTopic", 1)
    topic.set("maxProducers", 2)
    held = [client.create_producer(topic.name) for _ in range(2)]
    refused(lambda: client.create_producer(topic.name), pulsar.ProducerBusy, pulsar.Timeout)
    held.append(client.create_producer(topic.other))
    refused(lambda: client.create_producer(topic.other), pulsar.ProducerBusy, pulsar.Timeout)
    topic.set("maxProducers", 0)  # without a limit, where the namespace has one
    held.append(client.create_producer(topic.name))
    topic.unset("maxProducers")
    refused(lambda: client.create_producer(topic.name), pulsar.ProducerBusy, pulsar.Timeout)


@pytest.mark.parametrize("policy", ["maxConsumers", "maxConsumersPerSubscription"])
def test_most_consumers(client: pulsar.Client, topic: Topic, policy: str) -> None:
    topic.set(policy, 1)
    first = client.subscribe(topic.name, "s", consumer_type=SHARED)
    refused(lambda: client.subscribe(topic.name, "s", consumer_type=SHARED), pulsar.ConsumerBusy)
    both = [client.subscribe(topic.other, "s", consumer_type=SHARED) for _ in range(2)]
    topic.unset(policy)
    both.append(client.subscribe(topic.name, "s", consumer_type=SHARED))
    assert first.is_connected()


def test_most_subscriptions(client: pulsar.Client, topic: Topic) -> None:
    topic.set("maxSubscriptionsPerTopic", 1)
    client.subscribe(topic.name, "a")
    refused(lambda: client.subscribe(topic.name, "b"))
    topic.unset("maxSubscriptionsPerTopic")
    client.subscribe(topic.name, "b")


@pytest.mark.parametrize("policy", ["maxUnackedMessagesOnConsumer", "maxUnackedMessagesOnSubscription"])
def test_most_unacknowledged_messages(client: pulsar.Client, topic: Topic, policy: str) -> None:
    topic.set(policy, 3)
    consumer = client.subscribe(topic.name, "s", consumer_type=SHARED, initial_position=EARLIEST)
    send_all(client.create_producer(topic.name, batching_enabled=False), payloads(10))
    receive_all(consumer, 3, ack=False)
    expect_silence(consumer)
    topic.unset(policy)
    receive_all(consumer, 7, ack=False)


def test_deduplication_drops_repeated_messages_of_the_topic_only(client: pulsar.Client, topic: Topic) -> None:
    topic.set("deduplicationEnabled", True)
    for name, count in ((topic.name, 3), (topic.other, 6)):
        for _ in range(2):
            producer = client.create_producer(name, producer_name="p", initial_sequence_id=0, batching_enabled=False)
            for number in range(1, 4):
                producer.send(b"x", sequence_id=number)
            producer.close()
        assert topic.rest.stats(topic.part(name))["msgInCounter"] == count


def test_compaction_starts_at_the_threshold(client: pulsar.Client, topic: Topic) -> None:
    topic.set("compactionThreshold", 5_000)
    producer = client.create_producer(topic.name, batching_enabled=False)
    for _ in range(3):
        producer.send(BIG, partition_key="k")
    path = f"{topic_path(topic.part(topic.name))}/compaction"
    eventually(lambda: topic.rest.expect("GET", path)["status"] == "SUCCESS", what="the topic is compacted")


def test_inactive_topic_is_deleted_with_its_policies(client: pulsar.Client, topic: Topic) -> None:
    rule = {"inactiveTopicDeleteMode": "delete_when_no_subscriptions", "maxInactiveDurationSeconds": 1}
    for name in (topic.name, topic.other):
        client.create_producer(name).close()
    topic.set("inactiveTopicPolicies", {**rule, "deleteWhileInactive": True})
    listed = f"/admin/v2/persistent/{topic.namespace}"
    other = [topic.part(topic.other)]
    eventually(lambda: topic.rest.expect("GET", listed) == other, what="the unused topic is deleted")
    if topic.kind == "regular":
        topic.rest.expect("PUT", topic_path(topic.name))
        status, answer = topic.rest.call("GET", f"{topic_path(topic.name)}/inactiveTopicPolicies")
        assert (status, answer) == (200, None), "a topic of the same name does not inherit them"


def test_delays_of_the_topic(client: pulsar.Client, topic: Topic) -> None:
    consumer = client.subscribe(topic.name, "s", consumer_type=SHARED, initial_position=EARLIEST)
    producer = client.create_producer(topic.name, batching_enabled=False, send_timeout_millis=5_000)
    producer.send(b"later", deliver_at=int(time.time() * 1000) + 600_000)
    expect_silence(consumer)
    topic.set("delayedDelivery", {"active": False, "tickTime": 1000})
    assert receive_data(consumer, 1) == [b"later"]
    topic.set("delayedDelivery", {"active": True, "tickTime": 1000, "maxDeliveryDelayInMillis": 5_000})
    refused(lambda: producer.send(b"too late", deliver_at=int(time.time() * 1000) + 600_000))


def test_largest_message_of_the_topic(client: pulsar.Client, topic: Topic) -> None:
    topic.set("maxMessageSize", 2_000)
    producer = client.create_producer(topic.name, batching_enabled=False, send_timeout_millis=5_000)
    producer.send(b"small")
    refused(lambda: producer.send(BIG))
    client.create_producer(topic.other, batching_enabled=False).send(BIG)
    topic.unset("maxMessageSize")
    producer.send(BIG)


def test_subscription_types_of_the_topic(client: pulsar.Client, topic: Topic) -> None:
    topic.set("subscriptionTypesEnabled", ["Shared"])
    client.subscribe(topic.name, "a", consumer_type=SHARED)
    refused(lambda: client.subscribe(topic.name, "b", consumer_type=EXCLUSIVE))
    client.subscribe(topic.other, "b", consumer_type=EXCLUSIVE)
    topic.unset("subscriptionTypesEnabled")
    client.subscribe(topic.name, "b", consumer_type=EXCLUSIVE)


def test_subscriptions_are_not_created_where_the_topic_forbids_it(client: pulsar.Client, topic: Topic) -> None:
    topic.set("autoSubscriptionCreation", {"allowAutoSubscriptionCreation": False})
    refused(lambda: client.subscribe(topic.name, "s"), pulsar.SubscriptionNotFound, pulsar.Timeout)
    client.subscribe(topic.other, "s")
    topic.unset("autoSubscriptionCreation")
    client.subscribe(topic.name, "s")


def test_schema_is_required_where_the_topic_enforces_it(client: pulsar.Client, topic: Topic) -> None:
    class Order(pulsar.schema.Record):  # type: ignore[misc]  # the wheel has no types
        number = pulsar.schema.Integer()

    for name in (topic.name, topic.other):
        client.create_producer(name, schema=pulsar.schema.AvroSchema(Order))
    topic.set("schemaValidationEnforced", True)
    refused(lambda: client.create_producer(topic.name), pulsar.IncompatibleSchema)
    client.create_producer(topic.other)
    topic.unset("schemaValidationEnforced")
    client.create_producer(topic.name)


def test_compatibility_strategy_of_the_topic(topic: Topic) -> None:
    def schema(kind: str) -> dict[str, Any]:
        definition = f'{{"type": "record", "name": "R", "fields": [{{"name": "a", "type": "{kind}"}}]}}'
        return {"type": "AVRO", "schema": definition, "properties": {}}

    topic.set("schemaCompatibilityStrategy", "ALWAYS_COMPATIBLE", "PUT")
    for name, status in ((topic.name, 200), (topic.other, 409)):
        path = f"/admin/v2/schemas/{topic_path(name).partition('/persistent/')[2]}/schema"
        topic.rest.expect("POST", path, schema("int"))
        assert topic.rest.call("POST", path, schema("string"))[0] == status


def test_policies_of_a_non_persistent_topic(
    client: pulsar.Client, swift_broker: BrokerProcess | ClusterProcesses
) -> None:
    rest, name = Rest(swift_broker.http_url), f"non-persistent://public/default/np-{uuid.uuid4().hex[:10]}"
    first = client.create_producer(name, batching_enabled=False, send_timeout_millis=5_000)
    rest.expect("POST", f"{topic_path(name)}/maxProducers", 1)
    rest.expect("POST", f"{topic_path(name)}/maxMessageSize", 2_000)
    refused(lambda: client.create_producer(name), pulsar.ProducerBusy, pulsar.Timeout)
    refused(lambda: first.send(BIG))


def test_topic_policies_outlive_a_restart(start_broker: Any) -> None:
    broker = start_broker()
    topic = Topic(broker, "regular")
    topic.set("maxProducers", 1)
    broker.restart()
    stock = new_client(broker.service_url, operation_timeout_seconds=3)
    try:
        held = stock.create_producer(topic.name)
        refused(lambda: stock.create_producer(topic.name), pulsar.ProducerBusy, pulsar.Timeout)
        assert held.is_connected()
    finally:
        stock.close()
