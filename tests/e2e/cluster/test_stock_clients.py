"""What only one client of Apache Pulsar met once, with that client on three brokers: a topic of each of them.

Grants and the anonymous role on three brokers are in `test_permissions.py`.
"""

from __future__ import annotations

import base64
import json
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest
from pulsar.schema import AvroSchema, JsonSchema, Record, String

from tests.services.available import pulsar_admin, pulsar_go, pulsar_java
from tests.services.pulsar_go import GoClient
from tests.services.pulsar_java import JavaClient
from tests.support.processes.cluster import ClusterProcesses, rest
from tests.support.spark.not_activated import run_not_activated
from tests.support.spark.session import Traffic
from tests.support.traffic.stock_calls import EARLIEST, KEY_SHARED, SHARED, eventually, receive_all, topic_path
from tests.support.traffic.stock_client import new_client

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("cluster")]

NO_COORDINATOR = "The broker doesn't enable the transaction coordinator"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    with ClusterProcesses(tmp_path_factory.mktemp("stock"), 3) as started:
        yield started
        assert started.log_complaints() == []


@pytest.fixture
def topics(cluster: ClusterProcesses) -> list[str]:
    """One of each broker."""
    return cluster.topics_of_each(prefix=f"s-{uuid.uuid4().hex[:8]}-")


@pytest.fixture
def client(cluster: ClusterProcesses) -> Iterator[pulsar.Client]:
    stock = new_client(cluster.service_url)
    yield stock
    stock.close()


@pytest.fixture
def go(cluster: ClusterProcesses) -> GoClient:
    return pulsar_go(cluster.service_url)


@pytest.fixture(scope="module")
def java(cluster: ClusterProcesses, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaClient]:
    made = pulsar_java(cluster.service_url, tmp_path_factory.mktemp("java"))
    yield made
    made.close()


@pytest.mark.conformance("schema: bytes", client="Go", brokers=3)
def test_bytes_schema_of_go(cluster: ClusterProcesses, go: GoClient, topics: list[str]) -> None:
    for topic in topics:
        found = go("schema", topic, "bytes")
        assert (found["payload"], base64.b64decode(found["version"] or "")) in (("text", b""), ("text", bytes(8)))
        path = topic_path(topic).replace("/persistent/", "/schemas/")
        assert [rest(broker, "GET", f"{path}/schema")["type"] for broker in cluster.alive] == ["NONE"] * 3


@pytest.mark.conformance("delayed delivery, Shared and Key_Shared", client="Go", brokers=3)
@pytest.mark.conformance("delayed delivery, Shared and Key_Shared", client="Java", brokers=3)
@pytest.mark.conformance("delayed delivery, Shared and Key_Shared", client="Python", brokers=3)
def test_delayed_messages_are_put_aside(
    go: GoClient, java: JavaClient, client: pulsar.Client, topics: list[str]
) -> None:
    """Go, Python and Java each with a topic of another broker; Shared and Key_Shared."""
    processes = [go.start("delayed", f"{topic}-{kind}", kind) for topic in topics for kind in ("shared", "key-shared")]
    for topic in topics:
        for kind in (SHARED, KEY_SHARED):
            consumer = client.subscribe(f"{topic}-{kind.name}", "s", kind, initial_position=EARLIEST)
            producer = client.create_producer(f"{topic}-{kind.name}")
            producer.send(b"later", partition_key="k", deliver_at=int(time.time() * 1000) + 500)
            producer.send(b"now", partition_key="k")
            assert [message.data() for message in receive_all(consumer, 2)] == [b"now", b"later"]
    assert java("delayed", f"{topics[0]}-java", "Shared") == ["now", "later"]
    assert java("delayed", f"{topics[1]}-java", "Key_Shared") == ["now", "later"]
    for process in processes:
        out, complaint = process.communicate(timeout=90)
        assert process.returncode == 0, complaint
        assert json.loads(out)["received"] == ["now", "later"]


@pytest.mark.parametrize("schema_class", [AvroSchema, JsonSchema], ids=lambda schema: schema.__name__)
@pytest.mark.parametrize("strategy", ["FULL_TRANSITIVE", "BACKWARD", "FORWARD"])
@pytest.mark.conformance("schema: renamed record, strategies", client="Python", brokers=3)
def test_renamed_record_class_of_python(
    cluster: ClusterProcesses, client: pulsar.Client, schema_class: Any, strategy: str
) -> None:
    class Before(Record):  # type: ignore[misc]  # the wheel has no types
        street = String(required=True)

    class After(Record):  # type: ignore[misc]  # the wheel has no types
        street = String(required=True)

    namespace = f"public/s-{uuid.uuid4().hex[:8]}"
    rest(cluster.alive[0], "PUT", f"/admin/v2/namespaces/{namespace}")
    rest(cluster.alive[0], "PUT", f"/admin/v2/namespaces/{namespace}/schemaCompatibilityStrategy", strategy)
    for topic in cluster.topics_of_each(namespace):
        client.create_producer(topic, schema=schema_class(Before)).send(Before(street="Main"))
        consumer = client.subscribe(topic, "s", schema=schema_class(After), initial_position=EARLIEST)
        client.create_producer(topic, schema=schema_class(After)).send(After(street="Side"))
        assert [message.value().street for message in receive_all(consumer, 2)] == ["Main", "Side"]


@pytest.mark.conformance("pattern of a missing namespace", client="Go", brokers=3)
@pytest.mark.conformance("pattern of a missing namespace", client="Java", brokers=3)
def test_pattern_of_a_missing_namespace(
    cluster: ClusterProcesses, go: GoClient, java: JavaClient, topics: list[str]
) -> None:
    """Created at one broker, with a topic of each; the consumer finds them all."""
    namespace = f"public/s-{uuid.uuid4().hex[:8]}"
    process = go.start("pattern", topics[0], namespace, "3")
    assert process.stderr is not None
    assert any("subscribed" in line for line in process.stderr)
    rest(cluster.alive[1], "PUT", f"/admin/v2/namespaces/{namespace}")
    for topic in cluster.topics_of_each(namespace):
        rest(cluster.alive[2], "PUT", topic_path(topic))
        path = topic.replace("persistent://", "/topics/persistent/")
        rest(cluster.alive[2], "POST", path, {"messages": [{"payload": "found"}]})
    out, complaint = process.communicate(timeout=90)
    assert process.returncode == 0, complaint
    assert json.loads(out)["received"] == ["found"] * 3
    assert java("pattern", topics[0], f"public/s-{uuid.uuid4().hex[:8]}") == ["subscribed"]


@pytest.mark.conformance("pattern: topics created later, by a topic-list watch", client="Java", brokers=3)
def test_pattern_consumer_of_java_learns_of_topics_of_every_broker(
    cluster: ClusterProcesses, java: JavaClient, topics: list[str]
) -> None:
    """Each topic is created by the broker that owns it, after the subscription; the client does not poll."""
    created = cluster.topics_of_each(prefix=f"new-{uuid.uuid4().hex[:8]}-")
    assert java("pattern-watch", topics[0], *created) == created


@pytest.mark.conformance("admin client", client="Go", brokers=3)
def test_admin_client_of_go_switches_topic_creation_off(cluster: ClusterProcesses) -> None:
    for broker in cluster.alive:
        assert pulsar_go(broker.http_url)("admin", f"public/s-{uuid.uuid4().hex[:8]}")["partitions"] == 2


@pytest.mark.conformance("stats: times of topics and consumers", client="Python", brokers=3)
def test_times_in_stats(cluster: ClusterProcesses, client: pulsar.Client, topics: list[str]) -> None:
    began = int(time.time() * 1000) - 1
    for topic in topics:
        consumer = client.subscribe(topic, "s")
        client.create_producer(topic).send(b"x")
        consumer.acknowledge(consumer.receive(10_000))
    for topic in topics:
        for broker in cluster.alive:  # those that do not own it send the caller on

            def stats(topic: str = topic, broker: Any = broker) -> Any:
                return rest(broker, "GET", f"{topic_path(topic)}/stats")

            def its(stats: Any = stats) -> Any:
                return stats()["subscriptions"]["s"]["consumers"][0]

            def is_acked(its: Any = its) -> bool:
                return bool(its()["lastAckedTimestamp"] >= began)

            eventually(is_acked, within_s=20, what="the ack")
            assert stats()["topicCreationTimeStamp"] >= began
            assert its()["lastConsumedFlowTimestamp"] >= began and its()["lastConsumedTimestamp"] >= began


@pytest.mark.conformance("admin: backlog-quota-check, terminate", client="pulsar-admin", brokers=3)
def test_pulsar_admin_checks_quotas_and_terminates_topics_of_each_broker(
    cluster: ClusterProcesses, topics: list[str], client: pulsar.Client, tmp_path: Path
) -> None:
    """Termination logs no error: the fixture reads the logs."""
    producers = [client.create_producer(topic, send_timeout_millis=5_000) for topic in topics]
    with pulsar_admin(cluster.alive[1].http_url, tmp_path) as admin:
        assert admin.ok("brokers", "backlog-quota-check").lines == ["ok"]
        for topic in topics:
            assert "terminated at" in admin.ok("topics", "terminate", topic).out
    for producer in producers:
        with pytest.raises(pulsar.PulsarException):
            producer.send(b"too late")


@pytest.mark.conformance("transactions: told that there are none", client="Go", brokers=3)
@pytest.mark.conformance("transactions: told that there are none", client="Java", brokers=3)
def test_clients_with_transactions_are_told_that_there_are_none(
    go: GoClient, java: JavaClient, topics: list[str]
) -> None:
    assert NO_COORDINATOR in go("transactions", topics[0])["error"]
    assert NO_COORDINATOR in java("transactions", topics[0])[0]


@pytest.mark.soak
def test_register_from_an_environment_that_is_not_activated(cluster: ClusterProcesses, tmp_path: Path) -> None:
    Traffic(cluster.service_url, "not-activated", keys=4).publish(5)
    done = run_not_activated(tmp_path, cluster.service_url, "local[1]")
    assert "rows 20" in done.stdout, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
