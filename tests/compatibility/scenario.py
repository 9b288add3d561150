"""A scenario that leaves something of everything in a data directory, and says what must be found there afterwards.

It uses only public ways in: the stock client, the SDK, the admin client. The messages are fixed; where the order in
which a consumer gets them is not, the manifest has what this run has acknowledged. Nothing here may depend on time:
retention is unlimited, so that an old directory has the same messages in ten years.
"""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pulsar

import anabranch
from anabranch.admin.blocking import BlockingAdmin
from anabranch.blocking import BlockingClient
from anabranch.schema import Avro, Json
from tests.support.processes.broker_process import BrokerProcess
from tests.support.traffic.stock_client import new_client

PATIENCE = 30.0
RECEIVE_MS = int(PATIENCE * 1000)
CLUSTER = "standalone"
NAMESPACE = "acme/orders"
PLAIN = f"persistent://{NAMESPACE}/plain"
PARTS = f"persistent://{NAMESPACE}/parts"
PARTITIONS = 3
DEDUPLICATED = "persistent://acme/dedup/once"
DEDUPLICATED_PRODUCER = "once-producer"
COMPACTED = f"persistent://{NAMESPACE}/prices"
CLOSED = f"persistent://{NAMESPACE}/closed"
REMOVED = f"persistent://{NAMESPACE}/removed"
SCHEMAS = {"json": f"persistent://{NAMESPACE}/schema-json", "avro": f"persistent://{NAMESPACE}/schema-avro"}
SCALABLE = f"topic://{NAMESPACE}/scale"
SCALABLE_REMOVED = f"topic://{NAMESPACE}/scale-removed"
KEYS = 6

TYPES = {
    "Exclusive": pulsar.ConsumerType.Exclusive,
    "Shared": pulsar.ConsumerType.Shared,
    "Failover": pulsar.ConsumerType.Failover,
    "Key_Shared": pulsar.ConsumerType.KeyShared,
}
POLICIES: dict[str, Any] = {
    "autoTopicCreation": {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 2},
    "compactionThreshold": 1_000_000,
    "deduplication": True,
    "delayedDelivery": {"active": True, "tickTime": 1000},
    "dispatchRate": {
        "dispatchThrottlingRateInMsg": 100,
        "dispatchThrottlingRateInByte": 1000,
        "ratePeriodInSecond": 1,
        "relativeToPublishRate": False,
    },
    "inactiveTopicPolicies": {
        "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
        "maxInactiveDurationSeconds": 3600,
        "deleteWhileInactive": True,
    },
    "maxConsumersPerSubscription": 7,
    "maxConsumersPerTopic": 8,
    "maxProducersPerTopic": 9,
    "maxUnackedMessagesPerConsumer": 1000,
    "messageTTL": 3600,
    "publishRate": {"publishThrottlingRateInMsg": 500, "publishThrottlingRateInByte": 50000},
    "retention": {"retentionTimeInMinutes": 60, "retentionSizeInMB": 128},
    "schemaCompatibilityStrategy": "BACKWARD",
    "schemaValidationEnforced": True,
    "subscriptionExpirationTime": 90,
    "subscriptionTypesEnabled": ["Shared", "Failover"],
}


@dataclass
class Left:
    """What a subscription still has to deliver."""

    topic: str
    subscription: str
    kind: str
    messages: list[str]


class Scenario:
    """`write` on an empty broker; `write_more` on one that has been started again. Both return a manifest."""

    def __init__(self, broker: BrokerProcess, look: Callable[[], None] = lambda: None) -> None:
        """`look` is called while consumers of every kind are connected."""
        self._broker = broker
        self._look = look
        self._left: list[Left] = []
        self._facts: dict[str, Any] = {}

    def write(self) -> dict[str, Any]:
        with Connections(self._broker) as (stock, sdk, admin):
            self._administer(admin)
            self._plain(stock, admin)
            self._partitioned(stock, admin)
            self._deduplicated(stock)
            self._compacted(stock, admin)
            self._terminated(stock, admin)
            self._deleted(stock, admin)
            self._schemas(sdk)
            self._scalable(sdk, admin)
            return self._manifest(admin)

    def write_more(self) -> dict[str, Any]:
        """Messages and a split that only the log of the broker knows when the process dies behind this."""
        with Connections(self._broker) as (stock, sdk, admin):
            self._add_subscriptions(admin)
            values = texts("late", 12)
            producer = stock.create_producer(PLAIN, batching_enabled=False)
            for number, value in enumerate(values):
                producer.send(value.encode(), partition_key=f"key-{number % KEYS}")
            self._left_everywhere(PLAIN, values)
            segments = admin.scalable_topics.metadata(SCALABLE)["segments"].values()
            active = min(one["segmentId"] for one in segments if one["state"] == "ACTIVE")
            admin.scalable_topics.split(SCALABLE, active, into=3)
            late = self._publish_scalable(sdk, "late", 12)
            self._left_everywhere(SCALABLE, late)
            self._facts["after the checkpoint"] += late
            return self._manifest(admin)

    def _add_subscriptions(self, admin: BlockingAdmin) -> None:
        """The first change after a start, so that the cursors of these topics are stored as a whole, not as changes."""
        admin.subscriptions.create(PLAIN, "added", at="latest")
        self._remember(PLAIN, "added", "Exclusive", [])
        admin.scalable_topics.create_subscription(SCALABLE, "added", kind="STREAM", start="latest")
        self._remember(SCALABLE, "added", "STREAM", [])

    def _left_everywhere(self, topic: str, values: Sequence[str]) -> None:
        for left in self._left:
            if left.topic == topic:
                left.messages += values

    # -- administration

    def _administer(self, admin: BlockingAdmin) -> None:
        admin.tenants.create("acme", admin_roles=["ops", "shop"], allowed_clusters=[CLUSTER])
        admin.tenants.create("globex", allowed_clusters=[CLUSTER])
        for namespace in (NAMESPACE, "acme/dedup"):
            admin.namespaces.create(namespace)
            forever = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
            admin.namespaces.set_policy(namespace, "retention", forever)
        admin.namespaces.set_policy("acme/dedup", "deduplication", True)
        admin.namespaces.create("globex/policies")
        for name, value in POLICIES.items():
            admin.namespaces.set_policy("globex/policies", name, value)
        quota = {"limitSize": 1 << 20, "policy": "producer_request_hold"}
        admin.namespaces.set_backlog_quota("globex/policies", quota)
        admin.namespaces.add_properties("globex/policies", {"team": "shop", "cost": "12"})
        admin.namespaces.grant(NAMESPACE, "reader", ["consume"])
        admin.namespaces.grant(NAMESPACE, "writer", ["produce", "functions"])
        admin.namespaces.grant_subscription(NAMESPACE, "individual", ["reader", "auditor"])

    # -- regular topics

    def _plain(self, stock: Any, admin: BlockingAdmin) -> None:
        """Twenty entries of one message, one of ten; a subscription of each type and kind of acknowledgement."""
        admin.topics.create(PLAIN, properties={"owner": "shop"})
        admin.namespaces.grant_on_topic(PLAIN, "auditor", ["consume"])
        singles, batch = texts("single", 20), texts("batch", 10)
        values = singles + batch
        names = {
            "cumulative": "Exclusive",
            "individual": "Shared",
            "batch-index": "Shared",
            "failover": "Failover",
            "key-shared": "Key_Shared",
        }
        consumers = {name: subscribe(stock, PLAIN, name, kind) for name, kind in names.items()}
        admin.subscriptions.create(PLAIN, "untouched", at="earliest")
        admin.subscriptions.set_properties(PLAIN, "untouched", {"made": "by hand"})
        producer = stock.create_producer(PLAIN, batching_enabled=False)
        for number, value in enumerate(singles):
            producer.send(
                value.encode(), partition_key=f"key-{number % KEYS}", properties={"n": str(number)}, event_timestamp=7
            )
        send_batch(stock, PLAIN, batch)
        received = {name: receive(consumer, len(values)) for name, consumer in consumers.items()}
        by_text = {name: {text_of(one): one for one in messages} for name, messages in received.items()}
        consumers["cumulative"].acknowledge_cumulative(by_text["cumulative"][singles[7]])
        acked: dict[str, Collection[str]] = {
            "individual": [singles[index] for index in (0, 1, 3, 4, 10, 19)],
            "batch-index": [*singles, *(batch[index] for index in (0, 3, 4, 9))],
            "failover": singles[:5],
            "key-shared": singles[1::KEYS],
        }
        for name, wanted in acked.items():
            for text in wanted:
                consumers[name].acknowledge(by_text[name][text])
        acked["cumulative"] = singles[:8]
        for name, kind in names.items():
            consumers[name].close()
            self._remember(PLAIN, name, kind, without(values, acked[name]))
        self._remember(PLAIN, "untouched", "Exclusive", values)
        admin.subscriptions.create(PLAIN, "at-the-end", at="latest")
        self._remember(PLAIN, "at-the-end", "Failover", [])

    def _partitioned(self, stock: Any, admin: BlockingAdmin) -> None:
        admin.topics.create(PARTS, partitions=PARTITIONS - 1)
        admin.topics.add_partitions(PARTS, PARTITIONS)
        for partition in range(PARTITIONS):
            topic = f"{PARTS}-partition-{partition}"
            consumer = subscribe(stock, topic, "half", "Shared")
            values = texts(f"part-{partition}", 8)
            send_each(stock, topic, values)
            for message in receive(consumer, len(values))[::2]:
                consumer.acknowledge(message)
            consumer.close()
            self._remember(topic, "half", "Shared", values[1::2])

    def _deduplicated(self, stock: Any) -> None:
        subscribe(stock, DEDUPLICATED, "all", "Exclusive").close()
        producer = stock.create_producer(DEDUPLICATED, DEDUPLICATED_PRODUCER, batching_enabled=False)
        values = texts("once", 6)
        for number, value in enumerate([*values, values[-1]]):
            producer.send(value.encode(), sequence_id=10 + min(number, len(values) - 1))
        producer.close()
        self._remember(DEDUPLICATED, "all", "Exclusive", values)
        self._facts["last sequence id"] = 10 + len(values) - 1

    def _compacted(self, stock: Any, admin: BlockingAdmin) -> None:
        subscribe(stock, COMPACTED, "all", "Exclusive").close()
        producer = stock.create_producer(COMPACTED, batching_enabled=False)
        values = texts("compacted", 9)
        for number, value in enumerate(values):
            producer.send(value.encode(), partition_key=f"key-{number % 3}")
        producer.close()
        admin.topics.compact(COMPACTED)
        eventually(lambda: admin.topics.compaction(COMPACTED)["status"] == "SUCCESS", "compaction ends")
        self._remember(COMPACTED, "all", "Exclusive", values)
        self._facts["compacted"] = values[-3:]

    def _terminated(self, stock: Any, admin: BlockingAdmin) -> None:
        subscribe(stock, CLOSED, "all", "Exclusive").close()
        values = texts("terminated", 3)
        send_each(stock, CLOSED, values)
        admin.topics.terminate(CLOSED)
        self._facts["terminated"] = values

    def _deleted(self, stock: Any, admin: BlockingAdmin) -> None:
        """Deleted regular and scalable topics leave tombstones."""
        subscribe(stock, REMOVED, "all", "Exclusive").close()
        send_each(stock, REMOVED, texts("deleted", 3))
        admin.topics.delete(REMOVED, force=True)
        admin.scalable_topics.create(SCALABLE_REMOVED, segments=2)
        admin.scalable_topics.create_subscription(SCALABLE_REMOVED, "s", kind="STREAM", start="earliest")
        admin.scalable_topics.delete(SCALABLE_REMOVED)

    # -- schemas

    def _schemas(self, sdk: BlockingClient) -> None:
        """Two versions of a record, each with a message of its own."""
        values = [{"customer": "Ann"}, {"customer": "Bob", "city": "Oslo"}]
        for kind, topic in SCHEMAS.items():
            sdk.queue_consumer(topic, subscription="all", start="earliest").close()
            for version, value in zip((OrderV1, OrderV2), values, strict=True):
                schema = Json(version) if kind == "json" else Avro(version)
                with sdk.producer(topic, schema=schema) as producer:
                    producer.send(version(**value), key="k")
        self._facts["schema values"] = [["Ann", None], ["Bob", "Oslo"]]

    # -- scalable topics

    def _scalable(self, sdk: BlockingClient, admin: BlockingAdmin) -> None:
        """Two segments; a split, a merge; a stream, a queue and a checkpoint subscription, each consumed in part."""
        topics = admin.scalable_topics
        topics.create(SCALABLE, segments=2, properties={"owner": "shop", "tier": "gold"})
        for subscription, kind in (("stream", "STREAM"), ("queue", "QUEUE"), ("group", "CHECKPOINT")):
            topics.create_subscription(SCALABLE, subscription, kind=kind, start="earliest")
        topics.create_subscription(SCALABLE, "untouched", kind="STREAM", start="earliest")
        with (
            sdk.stream_consumer(SCALABLE, subscription="stream", name="stream-1") as stream,
            sdk.queue_consumer(SCALABLE, subscription="queue") as queue,
            sdk.checkpoint_consumer(
                SCALABLE, group="group", name="group-1", start=anabranch.Checkpoint.earliest()
            ) as group,
            sdk.checkpoint_consumer(SCALABLE, start=anabranch.Checkpoint.earliest()) as reader,
        ):
            first = self._publish_scalable(sdk, "first", 24)
            stream_acked = self._ack_stream(stream, len(first), len(first))
            queue_acked = self._ack_queue(queue, len(first))
            read(group, len(first))
            group.saved(group.checkpoint())
            read(reader, len(first))
            self._facts["checkpoint"] = reader.checkpoint().to_bytes().hex()
            topics.split(SCALABLE, 0)
            second = self._publish_scalable(sdk, "second", 24)
            stream_acked += self._ack_stream(stream, len(second), len(second) // 2)
            queue_acked += self._ack_queue(queue, len(second))
            self._look()
        topics.merge(SCALABLE, [3, 1])
        third = self._publish_scalable(sdk, "third", 24)
        later = second + third
        everything = first + later
        self._remember(SCALABLE, "stream", "STREAM", without(everything, stream_acked))
        self._remember(SCALABLE, "queue", "QUEUE", without(everything, queue_acked))
        self._remember(SCALABLE, "group", "CHECKPOINT", later)
        self._remember(SCALABLE, "untouched", "STREAM", everything)
        self._facts["after the checkpoint"] = later

    def _publish_scalable(self, sdk: BlockingClient, prefix: str, count: int) -> list[str]:
        """Texts end with their key; order is checked by key."""
        values = [f"{text} key-{number % KEYS}" for number, text in enumerate(texts(prefix, count))]
        with sdk.producer(SCALABLE, name=f"scale-{prefix}") as producer:
            for value in values:
                producer.send(value.encode(), key=key_of(value))
        return values

    def _ack_stream(self, consumer: Any, count: int, acked: int) -> list[str]:
        """Receive `count`, acknowledge the first `acked` of them."""
        messages = read(consumer, count)
        consumer.ack_cumulative(messages[acked - 1])
        return [one.data.decode() for one in messages[:acked]]

    def _ack_queue(self, consumer: Any, count: int) -> list[str]:
        """Receive `count`, acknowledge those with an odd number."""
        done = [one for one in read(consumer, count) if int(one.data.decode().split()[0][-3:]) % 2]
        for one in done:
            consumer.ack(one)
        return [one.data.decode() for one in done]

    # -- the manifest

    def _remember(self, topic: str, subscription: str, kind: str, messages: Iterable[str]) -> None:
        self._left.append(Left(topic, subscription, kind, list(messages)))

    def _manifest(self, admin: BlockingAdmin) -> dict[str, Any]:
        return {
            "facts": copy.deepcopy(self._facts),
            "left": [asdict(one) for one in self._left],
            "answers": answers(admin),
        }


@dataclass
class OrderV1:
    customer: str | None


@dataclass
class OrderV2:
    customer: str | None
    city: str | None = None


OrderV1.__name__ = OrderV2.__name__ = "Order"  # two versions of one record


class Connections:
    """The stock client, the SDK and the admin client on one broker."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._stock = new_client(broker.service_url)
        self._sdk = anabranch.blocking.connect(broker.service_url)
        self._admin = anabranch.admin.blocking.connect(broker.http_url)

    def __enter__(self) -> tuple[Any, BlockingClient, BlockingAdmin]:
        return self._stock, self._sdk, self._admin

    def __exit__(self, *error: object) -> None:
        self._admin.close()
        self._sdk.close()
        self._stock.close()


# ---------------------------------------------------------------------------------------------------------- answers


def answers(admin: BlockingAdmin) -> dict[str, Any]:
    """What administration says that must be the same on the same data, whoever serves it and however often."""
    found: dict[str, Any] = {"tenants": {one: admin.tenants.get(one) for one in sorted(admin.tenants.list())}}
    namespaces = sorted(name for tenant in found["tenants"] for name in admin.namespaces.list(tenant))
    found["namespaces"] = {one: admin.namespaces.get(one) for one in namespaces}
    found["policies"] = {name: admin.namespaces.policy("globex/policies", name) for name in sorted(POLICIES)}
    found["backlog quotas"] = admin.namespaces.backlog_quotas("globex/policies")
    found["namespace properties"] = admin.namespaces.properties("globex/policies")
    found["permissions"] = {one: admin.namespaces.permissions(one) for one in namespaces}
    found["subscription permissions"] = admin.namespaces.subscription_permissions(NAMESPACE)
    found["topic permissions"] = admin.namespaces.topic_permissions(PLAIN)
    found["topics"] = {one: sorted(admin.topics.list(one)) for one in namespaces}
    found["partitioned"] = {one: sorted(admin.topics.list_partitioned(one)) for one in namespaces}
    found["partitions"] = admin.topics.partitions(PARTS)
    found["topic properties"] = admin.topics.properties(PLAIN)
    found["subscriptions"] = {
        one: sorted(admin.subscriptions.list(one)) for one in found["topics"][NAMESPACE] + found["topics"]["acme/dedup"]
    }
    found["subscription properties"] = admin.subscriptions.properties(PLAIN, "untouched")
    found["schemas"] = {one: admin.schemas.versions(topic) for one, topic in SCHEMAS.items()}
    found["scalable topics"] = {one: sorted(admin.scalable_topics.list(one)) for one in namespaces}
    layout = admin.scalable_topics.metadata(SCALABLE)
    found["layout"] = {name: layout[name] for name in ("epoch", "segments", "properties")}
    return found


# ------------------------------------------------------------------------------------------------------------- parts


def texts(prefix: str, count: int) -> list[str]:
    return [f"{prefix}-{number:03d}" for number in range(count)]


def without(values: Iterable[str], gone: Collection[str]) -> list[str]:
    return [one for one in values if one not in gone]


def key_of(text: str) -> str:
    """Of a message of the scalable topic."""
    return text.rpartition(" ")[2]


def text_of(message: Any) -> str:
    data: bytes = message.data()
    return data.decode()


def subscribe(stock: Any, topic: str, subscription: str, kind: str) -> Any:
    return stock.subscribe(
        topic,
        subscription,
        TYPES[kind],
        initial_position=pulsar.InitialPosition.Earliest,
        batch_index_ack_enabled=True,
        unacked_messages_timeout_ms=None,
    )


def receive(consumer: Any, count: int) -> list[Any]:
    return [consumer.receive(RECEIVE_MS) for _ in range(count)]


def read(consumer: Any, count: int) -> list[anabranch.Message]:
    """The next messages of a consumer of the SDK."""
    found: list[anabranch.Message] = []
    while len(found) < count:
        message = consumer.receive(timeout=PATIENCE)
        assert message is not None, f"{len(found)} of {count} messages: {[one.data for one in found]}"
        found.append(message)
    return found


def send_each(stock: Any, topic: str, values: Sequence[str]) -> None:
    producer = stock.create_producer(topic, batching_enabled=False)
    for value in values:
        producer.send(value.encode())
    producer.close()


def send_batch(stock: Any, topic: str, values: Sequence[str]) -> None:
    """As one entry."""
    producer = stock.create_producer(
        topic, batching_enabled=True, batching_max_messages=len(values), batching_max_publish_delay_ms=5_000
    )
    places: list[tuple[int, int]] = []
    is_done = threading.Event()

    def receipt(result: Any, message_id: Any) -> None:
        places.append((message_id.ledger_id(), message_id.entry_id()))
        if len(places) == len(values):
            is_done.set()

    for value in values:
        producer.send_async(value.encode(), receipt)
    assert is_done.wait(PATIENCE)
    producer.close()
    assert len(set(places)) == 1, "the client split the batch"


def eventually(check: Callable[[], bool], what: str) -> None:
    """Ask again until it holds; a poll of the outside world, bounded by a deadline."""
    deadline = time.monotonic() + PATIENCE
    while not check():
        assert time.monotonic() < deadline, f"{what}: not within {PATIENCE} s"
        time.sleep(0.02)
