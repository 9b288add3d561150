"""What a namespace's policies do to stock clients: each is set over REST on a running broker and counts at once."""

from __future__ import annotations

import time
import uuid
from typing import Any

import pulsar
import pytest

from tests.support.processes.broker_process import BrokerProcess
from tests.support.processes.cluster import ClusterProcesses
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
    payloads,
    receive_all,
    receive_data,
    rests_of,
    send_all,
    topic_path,
)
from tests.support.traffic.stock_client import new_client

BIG = b"x" * 4_000


@pytest.fixture
def client(swift_client: pulsar.Client) -> pulsar.Client:
    return swift_client


class Namespace:
    def __init__(self, broker: BrokerProcess | ClusterProcesses) -> None:
        self.rest, self._everywhere = Rest(broker.http_url), rests_of(broker)
        self.name = f"public/ns-{uuid.uuid4().hex[:10]}"
        self.rest.expect("PUT", f"/admin/v2/namespaces/{self.name}")

    def topic(self, local: str = "t") -> str:
        return f"persistent://{self.name}/{local}"

    def set(self, policy: str, value: Any, verb: str = "POST") -> None:
        """At each broker: a broker applies it before it answers."""
        for rest in self._everywhere:
            rest.expect(verb, f"/admin/v2/namespaces/{self.name}/{policy}", value)

    def unset(self, policy: str) -> None:
        for rest in self._everywhere:
            rest.expect("DELETE", f"/admin/v2/namespaces/{self.name}/{policy}")

    def backlog(self, topic: str, subscription: str) -> int:
        return int(self.rest.stats(topic)["subscriptions"][subscription]["msgBacklog"])

    def stored(self, topic: str) -> int:
        return int(self.rest.expect("GET", f"{topic_path(topic)}/internalStats")["totalSize"])


@pytest.fixture
def namespace(swift_broker: BrokerProcess | ClusterProcesses) -> Namespace:
    return Namespace(swift_broker)


def refused(call: Any, *errors: type[Exception]) -> Exception:
    with pytest.raises(errors) as caught:
        call()
    return caught.value


def test_retention_by_size_keeps_consumed_messages(client: pulsar.Client, namespace: Namespace) -> None:
    namespace.set("retention", {"retentionTimeInMinutes": -1, "retentionSizeInMB": 1})
    topic = namespace.topic()
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    producer = client.create_producer(topic, batching_enabled=False)
    send_all(producer, [BIG] * 20)
    receive_all(consumer, 20)
    before = namespace.stored(topic)
    assert before >= 20 * len(BIG)
    namespace.set("retention", {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0})
    eventually(lambda: namespace.stored(topic) < before / 2, what="consumed ledgers are dropped")


def test_without_retention_unconsumed_messages_stay(client: pulsar.Client, namespace: Namespace) -> None:
    topic = namespace.topic()
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    producer = client.create_producer(topic, batching_enabled=False)
    send_all(producer, [BIG] * 20)
    namespace.rest.expect("POST", f"{topic_path(topic)}/trim")
    assert len(receive_all(consumer, 20)) == 20


def test_messages_older_than_the_ttl_are_skipped(client: pulsar.Client, namespace: Namespace) -> None:
    topic = namespace.topic()
    client.subscribe(topic, "s", initial_position=EARLIEST).close()
    producer = client.create_producer(topic, batching_enabled=False)
    send_all(producer, payloads(5))
    assert namespace.backlog(topic, "s") == 5
    namespace.set("messageTTL", 1)
    eventually(lambda: namespace.backlog(topic, "s") == 0, what="messages expire")
    namespace.set("messageTTL", 600)
    producer.send(b"young")
    consumer = client.subscribe(topic, "s")
    assert receive_data(consumer, 1) == [b"young"]


def test_quota_with_producer_exception(client: pulsar.Client, namespace: Namespace) -> None:
    topic = namespace.topic()
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    producer = client.create_producer(topic, batching_enabled=False)
    send_all(producer, [BIG] * 10)
    producer.close()
    namespace.set("backlogQuota", {"limitSize": 10_000, "policy": "producer_exception"})
    refused(lambda: client.create_producer(topic), pulsar.ProducerBlockedQuotaExceededException)
    receive_all(consumer, 10)
    eventually(lambda: namespace.backlog(topic, "s") == 0)
    client.create_producer(topic).send(b"again")
    assert receive_data(consumer, 1) == [b"again"]


def test_quota_with_producer_request_hold(client: pulsar.Client, namespace: Namespace) -> None:
    topic = namespace.topic()
    client.subscribe(topic, "s", initial_position=EARLIEST)
    producer = client.create_producer(topic, batching_enabled=False)
    send_all(producer, [BIG] * 10)
    namespace.set("backlogQuota", {"limitSize": 10_000, "policy": "producer_request_hold"})
    refused(lambda: client.create_producer(topic), pulsar.ProducerBlockedQuotaExceededError)
    eventually(lambda: namespace.rest.stats(topic)["publishers"] == [], what="the open producer is closed")
    namespace.unset("backlogQuota")
    client.create_producer(topic).send(b"again")


def test_quota_with_eviction_drops_the_oldest(client: pulsar.Client, namespace: Namespace) -> None:
    topic = namespace.topic()
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST, receiver_queue_size=1)
    consumer.close()
    producer = client.create_producer(topic, batching_enabled=False)
    namespace.set("backlogQuota", {"limitSize": 20_000, "policy": "consumer_backlog_eviction"})
    sent = [BIG + b"%d" % number for number in range(20)]
    send_all(producer, sent)
    eventually(lambda: namespace.backlog(topic, "s") <= 5, what="the backlog shrinks")
    left = namespace.backlog(topic, "s")
    assert left >= 2
    consumer = client.subscribe(topic, "s")
    assert data(receive_all(consumer, left)) == sent[-left:]


def test_quota_by_age(client: pulsar.Client, namespace: Namespace) -> None:
    topic = namespace.topic()
    client.subscribe(topic, "s", initial_position=EARLIEST).close()
    client.create_producer(topic).send(b"old soon")
    quota = {"limitTime": 1, "policy": "producer_exception"}
    namespace.rest.expect(
        "POST", f"/admin/v2/namespaces/{namespace.name}/backlogQuota?backlogQuotaType=message_age", quota
    )

    def is_refused() -> bool:
        try:
            client.create_producer(topic).close()
        except pulsar.ProducerBlockedQuotaExceededException:
            return True
        return False

    eventually(is_refused, what="producers are refused once the message is a second old")


def test_auto_creation_off_and_on(client: pulsar.Client, namespace: Namespace) -> None:
    namespace.set("autoTopicCreation", {"allowAutoTopicCreation": False})
    refused(lambda: client.create_producer(namespace.topic("a")), pulsar.TopicNotFound, pulsar.Timeout)
    namespace.unset("autoTopicCreation")
    client.create_producer(namespace.topic("a")).send(b"x")


def test_auto_creation_of_partitioned_topics(client: pulsar.Client, namespace: Namespace) -> None:
    policy = {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 3}
    namespace.set("autoTopicCreation", policy)
    client.create_producer(namespace.topic("p")).send(b"x")
    assert client.get_topic_partitions(namespace.topic("p")) == [
        f"{namespace.topic('p')}-partition-{index}" for index in range(3)
    ]


def test_auto_creation_of_subscriptions_off(client: pulsar.Client, namespace: Namespace) -> None:
    topic = namespace.topic()
    client.create_producer(topic)
    namespace.set("autoSubscriptionCreation", {"allowAutoSubscriptionCreation": False})
    refused(lambda: client.subscribe(topic, "s"), pulsar.SubscriptionNotFound, pulsar.Timeout)
    namespace.rest.expect("PUT", f"{topic_path(topic)}/subscription/s")
    client.subscribe(topic, "s")
    client.create_reader(topic, pulsar.MessageId.earliest)  # readers leave nothing behind


def test_most_producers(client: pulsar.Client, namespace: Namespace) -> None:
    namespace.set("maxProducersPerTopic", 2)
    topic = namespace.topic()
    first = client.create_producer(topic)
    client.create_producer(topic)
    refused(lambda: client.create_producer(topic), pulsar.ProducerBusy, pulsar.Timeout)
    first.close()
    client.create_producer(topic).send(b"x")


def test_most_consumers_of_a_topic(client: pulsar.Client, namespace: Namespace) -> None:
    namespace.set("maxConsumersPerTopic", 2)
    topic = namespace.topic()
    client.subscribe(topic, "a")
    client.subscribe(topic, "b")
    refused(lambda: client.subscribe(topic, "c"), pulsar.ConsumerBusy)
    namespace.set("maxConsumersPerTopic", 3)
    client.subscribe(topic, "c")


def test_most_consumers_of_a_subscription(client: pulsar.Client, namespace: Namespace) -> None:
    namespace.set("maxConsumersPerSubscription", 1)
    topic = namespace.topic()
    client.subscribe(topic, "a", consumer_type=SHARED)
    refused(lambda: client.subscribe(topic, "a", consumer_type=SHARED), pulsar.ConsumerBusy)
    client.subscribe(topic, "b", consumer_type=SHARED)


def test_most_subscriptions(client: pulsar.Client, namespace: Namespace) -> None:
    namespace.set("maxSubscriptionsPerTopic", 1)
    topic = namespace.topic()
    client.subscribe(topic, "a")
    refused(lambda: client.subscribe(topic, "b"), pulsar.PulsarException)
    client.create_reader(topic, pulsar.MessageId.earliest)
    status, answer = namespace.rest.call("PUT", f"{topic_path(topic)}/subscription/c")
    assert status == 409 and "maximum" in answer["reason"]


def test_most_topics(client: pulsar.Client, namespace: Namespace) -> None:
    namespace.set("maxTopicsPerNamespace", 2)
    client.create_producer(namespace.topic("a"))
    client.create_producer(namespace.topic("b"))
    refused(lambda: client.create_producer(namespace.topic("c")), pulsar.PulsarException)
    assert namespace.rest.call("PUT", f"{topic_path(namespace.topic('d'))}/partitions", 2)[0] == 412
    assert namespace.rest.call("PUT", topic_path(namespace.topic("e")))[0] == 412


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
def test_most_unacknowledged_of_a_consumer(client: pulsar.Client, namespace: Namespace, kind: Any) -> None:
    namespace.set("maxUnackedMessagesPerConsumer", 3)
    topic = namespace.topic()
    consumer = client.subscribe(topic, "s", consumer_type=kind, initial_position=EARLIEST)
    producer = client.create_producer(topic, batching_enabled=False)
    send_all(producer, payloads(10))
    held = receive_all(consumer, 3, ack=False)
    expect_silence(consumer)
    namespace.set("maxUnackedMessagesPerConsumer", 100)
    assert len(receive_all(consumer, 7, ack=False)) == 7
    assert len(held) == 3


def test_most_unacknowledged_of_a_subscription(client: pulsar.Client, namespace: Namespace) -> None:
    namespace.set("maxUnackedMessagesPerSubscription", 4)
    topic = namespace.topic()
    consumer = client.subscribe(topic, "s", consumer_type=SHARED, initial_position=EARLIEST)
    producer = client.create_producer(topic, batching_enabled=False)
    send_all(producer, payloads(10))
    held = receive_all(consumer, 4, ack=False)
    expect_silence(consumer)
    for message in held:
        consumer.acknowledge(message)
    assert len(receive_all(consumer, 4)) == 4


def test_delayed_delivery_off(client: pulsar.Client, namespace: Namespace) -> None:
    topic = namespace.topic()
    consumer = client.subscribe(topic, "s", consumer_type=SHARED, initial_position=EARLIEST)
    producer = client.create_producer(topic, batching_enabled=False)
    producer.send(b"later", deliver_at=int(time.time() * 1000) + 60_000)
    expect_silence(consumer)
    namespace.set("delayedDelivery", {"active": False, "tickTime": 1000})
    assert receive_data(consumer, 1) == [b"later"]


def test_longest_delay(client: pulsar.Client, namespace: Namespace) -> None:
    namespace.set("delayedDelivery", {"active": True, "tickTime": 1000, "maxDeliveryDelayInMillis": 5_000})
    topic = namespace.topic()
    consumer = client.subscribe(topic, "s", consumer_type=SHARED, initial_position=EARLIEST)
    producer = client.create_producer(topic, batching_enabled=False, send_timeout_millis=5_000)
    producer.send(b"soon", deliver_at=int(time.time() * 1000) + 100)
    refused(
        lambda: producer.send(b"too late", deliver_at=int(time.time() * 1000) + 60_000),
        pulsar.ChecksumError,
    )
    producer.send(b"at once")
    assert sorted(receive_data(consumer, 2)) == [b"at once", b"soon"]


def test_inactive_topics_are_deleted(client: pulsar.Client, namespace: Namespace) -> None:
    kept, gone = namespace.topic("kept"), namespace.topic("gone")
    client.subscribe(kept, "s").close()
    client.create_producer(kept).close()
    client.create_producer(gone).close()
    rule = {"inactiveTopicDeleteMode": "delete_when_no_subscriptions", "maxInactiveDurationSeconds": 1}
    listed = f"/admin/v2/persistent/{namespace.name}"
    assert namespace.rest.expect("GET", listed) == [gone, kept]
    namespace.set("inactiveTopicPolicies", {**rule, "deleteWhileInactive": True})
    eventually(lambda: namespace.rest.expect("GET", listed) == [kept], what="the unused topic is deleted")
    namespace.set(
        "inactiveTopicPolicies",
        {**rule, "inactiveTopicDeleteMode": "delete_when_subscriptions_caught_up", "deleteWhileInactive": True},
    )
    eventually(lambda: namespace.rest.expect("GET", listed) == [], what="the topic with a read-up backlog is deleted")


def test_a_topic_with_a_backlog_is_not_inactive(client: pulsar.Client, namespace: Namespace) -> None:
    topic = namespace.topic()
    client.subscribe(topic, "s", initial_position=EARLIEST).close()
    producer = client.create_producer(topic)
    producer.send(b"unread")
    producer.close()
    mode = "delete_when_subscriptions_caught_up"
    namespace.set(
        "inactiveTopicPolicies",
        {"inactiveTopicDeleteMode": mode, "maxInactiveDurationSeconds": 1, "deleteWhileInactive": True},
    )
    swept = namespace.topic("swept")
    client.create_producer(swept).close()  # goes with the same rule: when it is gone, the other one was looked at too
    listed = f"/admin/v2/persistent/{namespace.name}"
    eventually(lambda: namespace.rest.expect("GET", listed) == [topic])
    assert receive_data(client.subscribe(topic, "s"), 1) == [b"unread"]


def test_subscription_types(client: pulsar.Client, namespace: Namespace) -> None:
    namespace.set("subscriptionTypesEnabled", ["Shared", "Failover"])
    topic = namespace.topic()
    client.subscribe(topic, "a", consumer_type=SHARED)
    client.subscribe(topic, "b", consumer_type=FAILOVER)
    for kind in (EXCLUSIVE, KEY_SHARED):
        refused(lambda kind=kind: client.subscribe(topic, "c", consumer_type=kind), pulsar.PulsarException)
    namespace.unset("subscriptionTypesEnabled")
    client.subscribe(topic, "c", consumer_type=EXCLUSIVE)


def test_encryption_required(client: pulsar.Client, namespace: Namespace) -> None:
    namespace.set("encryptionRequired", True)
    refused(lambda: client.create_producer(namespace.topic()), pulsar.PulsarException)
    namespace.set("encryptionRequired", False)
    client.create_producer(namespace.topic()).send(b"x")


def test_policies_outlive_a_restart(start_broker: Any) -> None:
    broker = start_broker()
    namespace = Namespace(broker)
    namespace.set("maxProducersPerTopic", 1)
    broker.restart()
    stock = new_client(broker.service_url, operation_timeout_seconds=3)
    try:
        stock.create_producer(namespace.topic())
        refused(lambda: stock.create_producer(namespace.topic()), pulsar.ProducerBusy, pulsar.Timeout)
    finally:
        stock.close()
