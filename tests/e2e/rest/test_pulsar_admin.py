"""The real pulsar-admin (Java) against our broker: every verb that we serve, and a clear no for the rest."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pulsar
import pytest

from tests.services.available import pulsar_admin
from tests.services.pulsar_admin import PulsarAdmin
from tests.support.in_memory.credentials import Authority, token_of, write_secret
from tests.support.processes.broker_process import BrokerProcess, free_port
from tests.support.traffic.stock_calls import Rest, eventually, publish_batch
from tests.support.traffic.stock_client import new_client

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("pulsar_admin")]

NS = "t1/n1"
A = f"persistent://{NS}/a"
P = f"persistent://{NS}/p"

NOT_SERVED = {
    "clusters": {
        *("get-cluster-migration", "update-cluster-migration"),
    },
    "namespaces": {
        *(f"{verb}-bookie-affinity-group" for verb in ("get", "set", "delete")),
        *(f"{verb}-resource-group" for verb in ("get", "set", "remove")),
        *(f"{verb}-entry-filters" for verb in ("get", "set", "remove")),
        *("update-migration-state", "get-topic-positions", "get-anti-affinity-namespaces"),
    },
    "topics": {
        *("offload", "offload-status"),
        *("get-shadow-topics", "set-shadow-topics", "remove-shadow-topics", "create-shadow-topic", "get-shadow-source"),
    },
    "schemas": {"extract"},  # reads a jar, then uploads
    "brokers": {"shutdown"},  # a signal does that
}
"""Geo-replication, offloading, bookies, resource groups and filters: not there."""


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path_factory.mktemp("java-admin") / "data").start()
    try:
        yield process
        process.stop()
    finally:
        process.close()


@pytest.fixture(scope="module")
def admin(process: BrokerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PulsarAdmin]:
    with pulsar_admin(process.http_url, tmp_path_factory.mktemp("java")) as tool:
        tool.ok("tenants", "create", "t1")
        tool.ok("namespaces", "create", NS)
        yield tool


@pytest.fixture
def stock(process: BrokerProcess) -> Iterator[pulsar.Client]:
    client = new_client(process.service_url)
    yield client
    client.close()


def test_clusters(admin: PulsarAdmin) -> None:
    assert admin.ok("clusters", "list").lines == ["standalone"]
    admin.ok("clusters", "create", "other", "--url", "http://o:8080", "--broker-url", "pulsar://o:6650")
    admin.ok("clusters", "update", "other", "--url", "http://p:8080", "--broker-url", "pulsar://o:6650")
    assert admin.ok("clusters", "get", "other").json["serviceUrl"] == "http://p:8080"
    assert "already exists" in admin.refused("clusters", "create", "other", "--url", "http://o:8080").lower()
    admin.ok("clusters", "delete", "other")
    assert "does not exist" in admin.refused("clusters", "get", "other")
    assert "cannot be deleted" in admin.refused("clusters", "delete", "standalone")


def test_records_of_a_cluster_that_are_only_stored(admin: PulsarAdmin) -> None:
    domain = ("standalone", "--domain-name", "rack-1")
    admin.ok("clusters", "create-failure-domain", *domain, "--broker-list", "b1:8080")
    admin.ok("clusters", "update-failure-domain", *domain, "--broker-list", "b1:8080,b2:8080")
    assert "b2:8080" in admin.ok("clusters", "get-failure-domain", *domain).out
    assert "rack-1" in admin.ok("clusters", "list-failure-domains", "standalone").out
    admin.ok("clusters", "delete-failure-domain", *domain)
    admin.ok("clusters", "create", "peer", "--url", "http://peer:8080", "--broker-url", "pulsar://peer:6650")
    admin.ok("clusters", "update-peer-clusters", "standalone", "--peer-clusters", "peer")
    assert "peer" in admin.ok("clusters", "get-peer-clusters", "standalone").out
    words = ("--namespaces", "t9/.*", "--primary", "b1.*", "--secondary", "b2.*", "--auto-failover-policy-type")
    parameters = ("min_available", "--auto-failover-policy-params", "min_limit=1,usage_threshold=80")
    admin.ok("ns-isolation-policy", "set", "standalone", "one", *words, *parameters)
    assert "t9/.*" in admin.ok("ns-isolation-policy", "get", "standalone", "one").out
    assert "one" in admin.ok("ns-isolation-policy", "list", "standalone").out
    admin.ok("ns-isolation-policy", "delete", "standalone", "one")


def test_offload_policies_that_are_only_stored(admin: PulsarAdmin) -> None:
    bucket = ("--driver", "aws-s3", "--region", "eu", "--bucket", "kept")
    admin.ok("namespaces", "set-offload-policies", NS, *bucket)
    assert "kept" in admin.ok("namespaces", "get-offload-policies", NS).out
    admin.ok("namespaces", "remove-offload-policies", NS)
    admin.ok("namespaces", "set-offload-threshold", NS, "--size", "10M")
    assert str(10 << 20) in admin.ok("namespaces", "get-offload-threshold", NS).out
    admin.ok("namespaces", "set-offload-deletion-lag", NS, "--lag", "1d")
    assert admin.ok("namespaces", "get-offload-deletion-lag", NS).out.strip()
    admin.ok("namespaces", "clear-offload-deletion-lag", NS)


def test_tenants(admin: PulsarAdmin) -> None:
    admin.ok("tenants", "create", "t2", "-r", "r1")
    admin.ok("tenants", "update", "t2", "-r", "r1,r2")
    shown = admin.ok("tenants", "get", "t2").json
    assert sorted(shown["adminRoles"]) == ["r1", "r2"] and "standalone" in shown["allowedClusters"]
    assert admin.ok("tenants", "list").lines == ["public", "t1", "t2"]
    assert "already exist" in admin.refused("tenants", "create", "t2")
    admin.ok("tenants", "delete", "t2")
    assert "Tenant" in admin.refused("tenants", "get", "t2")
    assert "active namespaces" in admin.refused("tenants", "delete", "t1")


@pytest.mark.conformance("admin: settings that change at run time", client="pulsar-admin")
def test_brokers(admin: PulsarAdmin, process: BrokerProcess) -> None:
    here = process.http_url.removeprefix("http://")
    assert admin.ok("brokers", "list", "standalone").lines == [here]
    assert "nowhere" in admin.refused("brokers", "list", "nowhere")
    assert admin.ok("brokers", "leader-broker").json == {"serviceUrl": process.http_url, "brokerId": here}
    admin.ok("topics", "create", f"persistent://{NS}/owned")
    assert f"{NS}/0x" in admin.ok("brokers", "namespaces", "standalone", "--url", here).out
    admin.ok("topics", "delete", f"persistent://{NS}/owned")
    assert "broker.auto_create_topics" in admin.ok("brokers", "list-dynamic-config").lines
    dynamic = ("--config", "maxUnackedMessagesPerConsumer")
    admin.ok("brokers", "update-dynamic-config", *dynamic, "--value", "7")
    assert "broker.unacked_per_consumer_max    7" in admin.ok("brokers", "get-all-dynamic-config").out
    assert "broker.unacked_per_consumer_max    7" in admin.ok("brokers", "get-runtime-config").out
    admin.ok("brokers", "delete-dynamic-config", *dynamic)
    assert admin.ok("brokers", "get-all-dynamic-config").lines == []
    assert "sqlite:" in admin.ok("brokers", "get-internal-config").json["metadataStoreUrl"]
    assert "broker.message_bytes_max    5242880" in admin.ok("brokers", "get-runtime-config").out
    for verb, *more in (("update-dynamic-config", "--value", "1"), ("delete-dynamic-config",)):
        assert "Can't update non-dynamic" in admin.refused("brokers", verb, "--config", "x", *more)
    assert admin.ok("brokers", "healthcheck").lines == ["ok"]
    assert admin.ok("brokers", "backlog-quota-check").lines == ["ok"]
    assert admin.ok("brokers", "version").lines == ["0.1.0.dev0"]


def test_namespaces(admin: PulsarAdmin) -> None:
    admin.ok("namespaces", "create", "t1/n2", "-b", "8", "-c", "standalone")
    assert admin.ok("namespaces", "list", "t1").lines == [NS, "t1/n2"]
    assert admin.ok("namespaces", "bundles", "t1/n2").json["numBundles"] == 8
    admin.ok("namespaces", "split-bundle", "t1/n2", "-b", "0x00000000_0x20000000")
    assert admin.ok("namespaces", "bundles", "t1/n2").json["numBundles"] == 9
    assert admin.ok("namespaces", "policies", "t1/n2").json["replication_clusters"] == ["standalone"]
    assert admin.ok("namespaces", "topics", "t1/n2").lines == []
    admin.ok("namespaces", "unload", "t1/n2")
    admin.ok("namespaces", "clear-backlog", "t1/n2", "-force")
    admin.ok("namespaces", "unsubscribe", "t1/n2", "-s", "nobody")
    admin.ok("namespaces", "delete", "t1/n2")
    assert "does not exist" in admin.refused("namespaces", "policies", "t1/n2")
    assert "already exists" in admin.refused("namespaces", "create", NS)


def test_permissions(admin: PulsarAdmin) -> None:
    admin.ok("namespaces", "grant-permission", NS, "--role", "r", "--actions", "produce,consume")
    shown = admin.ok("namespaces", "permissions", NS).out
    assert shown.startswith("r ") and "consume" in shown and "produce" in shown
    admin.ok("namespaces", "revoke-permission", NS, "--role", "r")
    assert admin.ok("namespaces", "permissions", NS).lines == []
    admin.ok("namespaces", "grant-subscription-permission", NS, "--subscription", "s", "--roles", "r1,r2")
    assert "r1" in admin.ok("namespaces", "subscription-permission", NS).out
    admin.ok("namespaces", "revoke-subscription-permission", NS, "--subscription", "s", "--role", "r1")
    assert "r1" not in admin.ok("namespaces", "subscription-permission", NS).out


POLICIES: dict[str, tuple[list[str], str]] = {
    "subscription-types-enabled": (["-t", "Shared,Failover"], "Shared"),
    "persistence": (["-e", "1", "-w", "1", "-a", "1", "-r", "0"], "bookkeeperAckQuorum"),
    "message-ttl": (["-ttl", "60"], "60"),
    "max-subscriptions-per-topic": (["-m", "5"], "5"),
    "subscription-expiration-time": (["-t", "5"], "5"),
    "deduplication": (["-e"], "true"),
    "auto-topic-creation": (["-e", "-t", "partitioned", "-n", "2"], '"defaultNumPartitions" : 2'),
    "auto-subscription-creation": (["-e"], '"allowAutoSubscriptionCreation" : true'),
    "retention": (["-t", "1h", "-s", "10M"], '"retentionTimeInMinutes" : 60'),
    "dispatch-rate": (["-md", "100", "-bd", "1000", "-dt", "2"], '"ratePeriodInSecond" : 2'),
    "subscribe-rate": (["-sr", "10", "-st", "30"], '"subscribeThrottlingRatePerConsumer" : 10'),
    "subscription-dispatch-rate": (["-md", "100", "-bd", "1000", "-dt", "1"], '"dispatchThrottlingRateInMsg" : 100'),
    "publish-rate": (["-m", "100", "-b", "10000"], '"publishThrottlingRateInByte" : 10000'),
    "replicator-dispatch-rate": (["-md", "100", "-bd", "1000", "-dt", "1"], '"dispatchThrottlingRateInByte" : 1000'),
    "delayed-delivery": (["-e", "-t", "1s"], '"active" : true'),
    "inactive-topic-policies": (
        ["-e", "-t", "1h", "-m", "delete_when_no_subscriptions"],
        '"deleteWhileInactive" : true',
    ),
    "max-producers-per-topic": (["-p", "5"], "5"),
    "max-consumers-per-topic": (["-c", "5"], "5"),
    "max-consumers-per-subscription": (["-c", "5"], "5"),
    "max-unacked-messages-per-subscription": (["-c", "5"], "5"),
    "max-unacked-messages-per-consumer": (["-c", "5"], "5"),
    "compaction-threshold": (["-t", "10M"], "10485760"),
    "deduplication-snapshot-interval": (["-i", "100"], "100"),
    "max-topics-per-namespace": (["-t", "50"], "50"),
    "dispatcher-pause-on-ack-state-persistent": ([], "true"),
}
"""set, get, remove: the words of set, and what get shows then."""


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.conformance("admin: policies of namespaces", client="pulsar-admin")
def test_policy(admin: PulsarAdmin, policy: str) -> None:
    words, shown = POLICIES[policy]
    before = admin.ok("namespaces", f"get-{policy}", NS).out
    assert shown not in before
    admin.ok("namespaces", f"set-{policy}", NS, *words)
    assert shown in admin.ok("namespaces", f"get-{policy}", NS).out
    admin.ok("namespaces", f"remove-{policy}", NS)
    assert admin.ok("namespaces", f"get-{policy}", NS).out == before


def test_policies_without_a_remove(admin: PulsarAdmin) -> None:
    admin.ok("namespaces", "set-backlog-quota", NS, "-l", "10M", "-p", "producer_request_hold")
    admin.ok("namespaces", "set-backlog-quota", NS, "-lt", "3600", "-p", "producer_exception", "-t", "message_age")
    shown = admin.ok("namespaces", "get-backlog-quotas", NS).out
    assert "limitSize=10485760" in shown and "limitTime=3600" in shown
    admin.ok("namespaces", "remove-backlog-quota", NS)
    admin.ok("namespaces", "remove-backlog-quota", NS, "-t", "message_age")
    assert admin.ok("namespaces", "get-backlog-quotas", NS).lines == []
    admin.ok("namespaces", "set-clusters", NS, "-c", "standalone")
    assert admin.ok("namespaces", "get-clusters", NS).lines == ["standalone"]
    admin.ok("namespaces", "set-allowed-clusters", NS, "-c", "standalone")
    assert admin.ok("namespaces", "get-allowed-clusters", NS).lines == ["standalone"]
    admin.ok("namespaces", "set-anti-affinity-group", NS, "-g", "g1")
    assert admin.ok("namespaces", "get-anti-affinity-group", NS).lines == ["g1"]
    admin.ok("namespaces", "delete-anti-affinity-group", NS)
    for name in ("encryption-required", "schema-validation-enforce", "is-allow-auto-update-schema"):
        for flag, shown in (("-e", "true"), ("-d", "false")):
            admin.ok("namespaces", f"set-{name}", NS, flag)
            assert admin.ok("namespaces", f"get-{name}", NS).lines == [shown]
    admin.ok("namespaces", "set-is-allow-auto-update-schema", NS, "-e")
    admin.ok("namespaces", "set-subscription-auth-mode", NS, "-m", "Prefix")
    assert admin.ok("namespaces", "get-subscription-auth-mode", NS).lines == ['"Prefix"']
    admin.ok("namespaces", "set-subscription-auth-mode", NS, "-m", "None")
    admin.ok("namespaces", "set-schema-compatibility-strategy", NS, "-c", "BACKWARD")
    assert admin.ok("namespaces", "get-schema-compatibility-strategy", NS).lines == ["BACKWARD"]
    admin.ok("namespaces", "set-schema-autoupdate-strategy", NS, "-c", "Full")
    assert admin.ok("namespaces", "get-schema-autoupdate-strategy", NS).lines == ["FULL"]
    admin.ok("namespaces", "set-property", NS, "-k", "a", "-v", "1")
    assert admin.ok("namespaces", "get-property", NS, "-k", "a").lines == ["1"]
    assert admin.ok("namespaces", "remove-property", NS, "-k", "a").lines == ["1"]
    admin.ok("namespaces", "set-properties", NS, "-p", "b=2")
    assert admin.ok("namespaces", "get-properties", NS).json == {"b": "2"}
    admin.ok("namespaces", "clear-properties", NS)
    assert admin.ok("namespaces", "get-properties", NS).json == {}


def test_inactive_topics_disabled_keeps_the_rest(admin: PulsarAdmin) -> None:
    admin.ok("namespaces", "set-inactive-topic-policies", NS, "-d", "-t", "1h", "-m", "delete_when_no_subscriptions")
    shown = admin.ok("namespaces", "get-inactive-topic-policies", NS).json
    assert not shown["deleteWhileInactive"] and shown["maxInactiveDurationSeconds"] == 3600
    admin.ok("namespaces", "remove-inactive-topic-policies", NS)


@pytest.mark.conformance("admin: topics and subscriptions", client="pulsar-admin")
def test_topics(admin: PulsarAdmin, stock: pulsar.Client, process: BrokerProcess) -> None:
    admin.ok("topics", "create", A)
    assert "already exists" in admin.refused("topics", "create", A)
    assert admin.ok("topics", "list", NS).lines == [A]
    admin.ok("topics", "grant-permission", A, "--role", "r", "--actions", "produce")
    assert admin.ok("topics", "permissions", A).lines == ["r", "[produce]"]
    admin.ok("topics", "revoke-permission", A, "--role", "r")
    assert admin.ok("topics", "lookup", A).lines == [process.service_url]
    assert admin.ok("topics", "bundle-range", A).out.startswith("0x")
    admin.ok("topics", "update-properties", A, "-p", "k=v")
    assert admin.ok("topics", "get-properties", A).lines == ["k", "v"]
    admin.ok("topics", "remove-properties", A, "-k", "k")
    admin.ok("topics", "create-subscription", A, "-s", "s1")
    admin.ok("topics", "create-subscription", A, "-s", "s2", "-m", "earliest", "-p", "x=1")
    assert sorted(admin.ok("topics", "subscriptions", A).lines) == ["s1", "s2"]
    admin.ok("topics", "update-subscription-properties", A, "-s", "s1", "-p", "a=b")
    assert admin.ok("topics", "get-subscription-properties", A, "-s", "s1").json == {"a": "b"}

    producer = stock.create_producer(A, batching_enabled=False)
    ids = [producer.send(b"message %d" % number, properties={"n": str(number)}) for number in range(6)]
    producer.close()
    publish_batch(stock, A, [b"batched 1", b"batched 2"])
    shown = admin.ok("topics", "peek-messages", A, "-s", "s1", "-n", "7").out
    assert all(f"message {number}" in shown for number in range(6)) or "6d 65 73 73" in shown
    assert "Batch Message ID" in shown
    assert "Message ID: " in admin.ok("topics", "examine-messages", A, "-i", "earliest", "-m", "1").out
    first = ids[0]
    by_id = admin.ok("topics", "get-message-by-id", A, "-l", str(first.ledger_id()), "-e", str(first.entry_id())).out
    assert f"{first.ledger_id()}:{first.entry_id()}" in by_id
    assert admin.ok("topics", "get-message-id", A, "-d", "2020-01-01T00:00:00Z").json["entryId"] == first.entry_id()
    assert admin.ok("topics", "last-message-id", A).json["entryId"] == first.entry_id() + 6
    stats = admin.ok("topics", "stats", A).json
    assert stats["msgInCounter"] == 8 and set(stats["subscriptions"]) == {"s1", "s2"}
    assert admin.ok("topics", "stats-internal", A).json["numberOfEntries"] == 7
    assert set(admin.ok("topics", "info-internal", A).json["cursors"]) == {"s1", "s2"}
    assert int(admin.ok("topics", "get-backlog-size", A, "-m", f"{first.ledger_id()}:{first.entry_id()}").out) > 0
    assert A in json.dumps(admin.ok("broker-stats", "topics").json)

    def backlog(name: str) -> int:
        return int(admin.ok("topics", "analyze-backlog", A, "-s", name).json["entries"])

    assert backlog("s1") == 7
    admin.ok("topics", "skip", A, "-s", "s1", "-n", "2")
    assert backlog("s1") == 5
    admin.ok("topics", "clear-backlog", A, "-s", "s1")
    assert backlog("s1") == 0
    admin.ok("topics", "reset-cursor", A, "-s", "s1", "-t", "1h")
    assert backlog("s1") == 7
    admin.ok("topics", "reset-cursor", A, "-s", "s1", "-m", f"{ids[2].ledger_id()}:{ids[2].entry_id()}")
    assert backlog("s1") == 5
    assert "not issued" in admin.refused("topics", "expire-messages", A, "-s", "s1", "-t", "3600")
    admin.ok("topics", "expire-messages", A, "-s", "s1", "-p", f"{ids[3].ledger_id()}:{ids[3].entry_id()}")
    assert backlog("s1") == 3
    admin("topics", "expire-messages-all-subscriptions", A, "-t", "3600")
    admin.ok("topics", "set-replicated-subscription-status", A, "-s", "s1", "-d")
    assert admin.ok("topics", "get-replicated-subscription-status", A, "-s", "s1").lines[-1] == "false"
    admin.ok("topics", "compact", A)
    assert "ompaction" in admin.ok("topics", "compaction-status", A, "-w").out
    admin.ok("topics", "truncate", A)
    assert backlog("s2") == 0
    admin.ok("topics", "trim-topic", A)
    admin.ok("topics", "unsubscribe", A, "-s", "s2")
    assert "not found" in admin.refused("topics", "unsubscribe", A, "-s", "s2")
    admin.ok("topics", "unload", A)
    assert "terminated at" in admin.ok("topics", "terminate", A).out
    admin.ok("topics", "unsubscribe", A, "-s", "s1")
    admin.ok("topics", "delete", A)
    assert admin.ok("topics", "list", NS).lines == []
    assert "not found" in admin.refused("topics", "stats", A).lower()


def test_partitioned_topics(admin: PulsarAdmin, process: BrokerProcess) -> None:
    admin.ok("topics", "create-partitioned-topic", P, "-p", "2")
    admin.ok("topics", "update-partitioned-topic", P, "-p", "3")
    assert admin.ok("topics", "get-partitioned-topic-metadata", P).json["partitions"] == 3
    assert admin.ok("topics", "list-partitioned-topics", NS).lines == [P]
    assert admin.ok("topics", "partitioned-lookup", P).lines[1::2] == [process.service_url] * 3
    admin.ok("topics", "delete", f"{P}-partition-1")
    assert len(admin.ok("topics", "list", NS).lines) == 2
    admin.ok("topics", "create-missed-partitions", P)
    assert len(admin.ok("topics", "list", NS).lines) == 3
    stats = admin.ok("topics", "partitioned-stats", P, "--per-partition").json
    assert stats["metadata"]["partitions"] == 3 and len(stats["partitions"]) == 3
    assert stats["backlogQuotaLimitSize"] == -1  # not the sum of what is not set
    assert len(admin.ok("topics", "partitioned-stats-internal", P).json["partitions"]) == 3
    assert "terminated at" in admin.ok("topics", "partitioned-terminate", P).out
    admin.ok("topics", "delete-partitioned-topic", P)
    assert admin.ok("topics", "list", NS).lines == []


@pytest.mark.conformance("admin: schemas", client="pulsar-admin")
def test_schemas(admin: PulsarAdmin, tmp_path: Path) -> None:
    topic = f"persistent://{NS}/with-schema"
    record = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    first.write_text(json.dumps({"type": "AVRO", "schema": json.dumps(record), "properties": {}}))
    record["fields"].append({"name": "b", "type": "string"})  # type: ignore[attr-defined]  # a list
    second.write_text(json.dumps({"type": "AVRO", "schema": json.dumps(record), "properties": {}}))
    admin.ok("topics", "create", topic)
    admin.ok("namespaces", "set-schema-compatibility-strategy", NS, "-c", "BACKWARD")
    assert "not found" in admin.refused("schemas", "get", topic).lower()
    admin.ok("schemas", "upload", topic, "-f", str(first))
    assert '"a"' in admin.ok("schemas", "get", topic).out
    assert '"a"' in admin.ok("schemas", "get", topic, "-v", "0").out
    assert "not found" in admin.refused("schemas", "get", topic, "-v", "7").lower()
    assert "incompatible" in admin.refused("schemas", "upload", topic, "-f", str(second)).lower()
    admin("schemas", "compatibility", topic, "-f", str(second))
    assert admin.ok("schemas", "metadata", topic).json["info"]["version"] == 0
    admin.ok("schemas", "delete", topic)
    assert "not found" in admin.refused("schemas", "get", topic).lower()
    admin.ok("topics", "delete", topic)


TOPIC_POLICIES: dict[str, tuple[list[str], str]] = {
    "message-ttl": (["-t", "3600"], "3600"),
    "retention": (["-t", "10m", "-s", "100M"], '"retentionTimeInMinutes" : 10'),
    "backlog-quota": (["-l", "1M", "-p", "producer_exception"], "producer_exception"),
    "publish-rate": (["-m", "10"], '"publishThrottlingRateInMsg" : 10'),
    "dispatch-rate": (["-md", "10"], '"dispatchThrottlingRateInMsg" : 10'),
    "subscription-dispatch-rate": (["-md", "10"], '"dispatchThrottlingRateInMsg" : 10'),
    "replicator-dispatch-rate": (["-md", "10"], '"dispatchThrottlingRateInMsg" : 10'),
    "subscribe-rate": (["-sr", "10"], '"subscribeThrottlingRatePerConsumer" : 10'),
    "max-producers": (["-p", "7"], "7"),
    "max-consumers": (["-c", "7"], "7"),
    "max-consumers-per-subscription": (["-c", "7"], "7"),
    "max-subscriptions-per-topic": (["-s", "7"], "7"),
    "max-unacked-messages-per-consumer": (["-m", "7"], "7"),
    "max-unacked-messages-per-subscription": (["-m", "7"], "7"),
    "max-message-size": (["-m", "7000"], "7000"),
    "deduplication": (["-e"], "true"),
    "deduplication-snapshot-interval": (["-i", "120"], "120"),
    "compaction-threshold": (["-t", "1M"], "1048576"),
    "inactive-topic-policies": (["-e", "-t", "1h", "-m", "delete_when_no_subscriptions"], "3600"),
    "delayed-delivery": (["-e", "-t", "2s"], "2000"),
    "persistence": (["-e", "2", "-w", "2", "-a", "1", "-r", "0.5"], '"bookkeeperEnsemble" : 2'),
    "subscription-types-enabled": (["-t", "Shared"], "Shared"),
    "schema-compatibility-strategy": (["-s", "BACKWARD"], "BACKWARD"),
    "auto-subscription-creation": (["-e"], '"allowAutoSubscriptionCreation" : true'),
    "dispatcher-pause-on-ack-state-persistent": ([], "{"),  # the tool prints its future, not the value
    "entry-filters-per-topic": (["-efn", "a,b"], "a,b"),
    "replication-clusters": (["-c", "standalone"], "standalone"),
    "offload-policies": (["-d", "aws-s3", "-r", "here", "-b", "bucket", "-t", "1000000"], "aws-s3"),
}
UNSHOWN = {"dispatcher-pause-on-ack-state-persistent"}
WITHOUT_GLOBAL = {"schema-compatibility-strategy"}
KINDS = (f"persistent://{NS}/policies", f"persistent://{NS}/policies-parts", f"persistent://{NS}/policies-scaled")
"""The scalable one by the name of a regular topic: the tool does not know `topic://`."""


@pytest.fixture(scope="module")
def topics_of_all_kinds(process: BrokerProcess, admin: PulsarAdmin) -> tuple[str, ...]:
    regular, partitioned, scalable = KINDS
    admin.ok("topics", "create", regular)
    admin.ok("topics", "create-partitioned-topic", partitioned, "-p", "2")
    Rest(process.http_url).expect("PUT", f"/admin/v2/scalable/{scalable.removeprefix('persistent://')}")
    return KINDS


@pytest.mark.parametrize("policy", TOPIC_POLICIES)
@pytest.mark.conformance("admin: policies of topics", client="pulsar-admin")
def test_policy_of_topics(admin: PulsarAdmin, topics_of_all_kinds: tuple[str, ...], policy: str) -> None:
    words, shown = TOPIC_POLICIES[policy]
    for topic in topics_of_all_kinds:
        for part in ([], ["-g"]) if policy not in WITHOUT_GLOBAL else ([],):

            def found(topic: str = topic, part: Sequence[str] = part) -> str:
                return admin.ok("topicPolicies", f"get-{policy}", topic, *part).out

            before = None if policy in UNSHOWN else found()
            admin.ok("topicPolicies", f"set-{policy}", topic, *words, *part)
            eventually(lambda: shown in found(), what=f"{topic} {part}: set")  # the tool awaits not all of its requests
            admin.ok("topicPolicies", f"remove-{policy}", topic, *part)
            if before is not None:
                assert found() == before, (topic, part)


def test_policies_of_topics_under_their_older_noun(admin: PulsarAdmin, topics_of_all_kinds: tuple[str, ...]) -> None:
    topic = topics_of_all_kinds[0]
    admin.ok("topics", "set-schema-validation-enforce", topic, "-e")
    assert admin.ok("topics", "get-schema-validation-enforce", topic).lines == ["true"]
    admin.ok("topics", "set-replication-clusters", topic, "-c", "standalone")
    eventually(lambda: "standalone" in admin.ok("topics", "get-replication-clusters", topic).out, what="set")
    admin.ok("topics", "remove-replication-clusters", topic)
    admin.ok("topicPolicies", "set-retention", topic, "-t", "10m", "-s", "100M")
    assert admin.ok("topics", "get-retention", topic).json["retentionTimeInMinutes"] == 10
    rate = ["-md", "5", "-s", "sub"]
    admin.ok("topicPolicies", "set-subscription-dispatch-rate", topic, *rate)
    found = admin.ok("topicPolicies", "get-subscription-dispatch-rate", topic, "-s", "sub").json
    assert found["dispatchThrottlingRateInMsg"] == 5
    admin.ok("topicPolicies", "remove-subscription-dispatch-rate", topic, "-s", "sub")
    admin.ok("topicPolicies", "delete", topic)
    assert admin.ok("topics", "get-retention", topic).out.strip() == "null"
    assert "not found" in admin.refused("topicPolicies", "get-retention", f"persistent://{NS}/missing")
    assert "partition" in admin.refused("topicPolicies", "get-retention", f"{topics_of_all_kinds[1]}-partition-0")


@pytest.mark.parametrize("noun", ["tenants", "clusters", "brokers", "namespaces", "topics", "topicPolicies", "schemas"])
@pytest.mark.conformance("admin: every verb", client="pulsar-admin")
def test_every_verb_was_tried(admin: PulsarAdmin, noun: str) -> None:
    """Runs last, in the same worker as the tests above; on its own it has nothing to look at."""
    if len(admin.tried) < 100:
        pytest.skip("only after the tests above")
    known = admin.verbs(noun)
    left_out = NOT_SERVED.get(noun, set())
    assert len(known) >= 5 and left_out <= known
    assert known - {verb for tried, verb in admin.tried if tried == noun} - left_out == set()


def test_unserved_calls_have_a_clear_error(admin: PulsarAdmin) -> None:
    assert "is not served under" in admin.refused("namespaces", "get-entry-filters", NS)
    assert "nothing is served under" in admin.refused("clusters", "get-cluster-migration", "standalone")


@pytest.mark.conformance("admin: tokens and TLS", client="pulsar-admin")
def test_with_tokens_and_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    files, https = authority.issue("localhost"), free_port()
    words = {
        "security.methods": "token",
        "security.token_secret_key": write_secret(tmp_path),
        "security.authorization": "true",
        "security.superusers": "root",
        "tls.cert_file": files.certificate,
        "tls.key_file": files.key,
        "tls.port": free_port(),
        "tls.http_port": https,
    }
    arguments = [word for name, value in words.items() for word in ("--set", f"{name}={value}")]
    with BrokerProcess(tmp_path / "data", arguments=arguments) as broker:

        def signed_in(url: str, role: str) -> PulsarAdmin:
            plugin = "org.apache.pulsar.client.impl.auth.AuthenticationToken"
            token = f"token:{token_of(role)}"
            trusted = str(authority.path)
            return pulsar_admin(url, tmp_path, authPlugin=plugin, authParams=token, tlsTrustCertsFilePath=trusted)

        with signed_in(f"https://localhost:{https}", "root") as root:
            root.ok("tenants", "create", "acme", "-r", "boss")
            root.ok("namespaces", "create", "acme/n")
            assert root.ok("brokers", "healthcheck").lines == ["ok"]
        with signed_in(broker.http_url, "boss") as boss:
            boss.ok("topics", "create", "persistent://acme/n/t")
            boss.ok("namespaces", "grant-permission", "acme/n", "--role", "worker", "--actions", "produce")
            said = boss.refused("tenants", "list")
            assert "not allowed" in said and token_of("boss") not in said
