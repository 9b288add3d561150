"""Every verb of `anabranch admin` against a real broker, and how its failures are reported."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from anabranch.admin.client import AdminClient
from anabranch.cli.admin import topic_policies
from anabranch.cli.admin.commands import NOUNS, admin
from anabranch.cli.main import main
from anabranch.testing import Broker

pytestmark = pytest.mark.xdist_group("cli_admin")

NS = "acme/orders"
TOPIC = "acme/orders/t"
PARTS = "acme/orders/parts"
SCHEMA = {"type": "JSON", "schema": {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}}

POLICIES: dict[str, tuple[list[str], Any]] = {  # noun: (options of set-, what get- then answers)
    "retention": (["-t", "2h", "-s", "3G"], {"retentionTimeInMinutes": 120, "retentionSizeInMB": 3072}),
    "message-ttl": (["-ttl", "3h"], 10_800),
    "deduplication": (["--enable"], True),
    "auto-topic-creation": (
        ["-e", "-t", "partitioned", "-n", "3"],
        {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 3},
    ),
    "auto-subscription-creation": (["--disable"], {"allowAutoSubscriptionCreation": False}),
    "max-producers-per-topic": (["-p", "7"], 7),
    "max-consumers-per-topic": (["-c", "7"], 7),
    "max-consumers-per-subscription": (["-c", "7"], 7),
    "max-unacked-messages-per-consumer": (["-c", "7"], 7),
    "max-unacked-messages-per-subscription": (["-c", "7"], 7),
    "max-subscriptions-per-topic": (["-m", "7"], 7),
    "max-topics-per-namespace": (["-t", "7"], 7),
    "subscription-expiration-time": (["-t", "7"], 7),
    "compaction-threshold": (["-t", "1000"], 1000),
    "delayed-delivery": (["-e", "-p", "1h"], {"tickTime": 1000, "active": True, "maxDeliveryDelayInMillis": 3_600_000}),
    "persistence": (
        ["-e", "3", "-w", "2", "-a", "1"],
        {
            "bookkeeperEnsemble": 3,
            "bookkeeperWriteQuorum": 2,
            "bookkeeperAckQuorum": 1,
            "managedLedgerMaxMarkDeleteRate": 0.0,
        },
    ),
    **{
        f"{prefix}dispatch-rate": (
            ["-md", "5", "-bd", "6"],
            {
                "dispatchThrottlingRateInMsg": 5,
                "dispatchThrottlingRateInByte": 6,
                "ratePeriodInSecond": 1,
                "relativeToPublishRate": False,
            },
        )
        for prefix in ("", "subscription-", "replicator-")
    },
    "publish-rate": (["-m", "5"], {"publishThrottlingRateInMsg": 5, "publishThrottlingRateInByte": -1}),
    "subscribe-rate": (["-sr", "5"], {"subscribeThrottlingRatePerConsumer": 5, "ratePeriodInSecond": 30}),
    "inactive-topic-policies": (
        ["-e", "-t", "7d"],
        {
            "maxInactiveDurationSeconds": 604_800,
            "deleteWhileInactive": True,
            "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
        },
    ),
    "deduplication-snapshot-interval": (["-i", "120"], 120),
    "subscription-types-enabled": (["-t", "Exclusive,Shared"], ["Exclusive", "Shared"]),
    "schema-compatibility-strategy": (["-c", "BACKWARD"], "BACKWARD"),
    "schema-validation-enforce": (["--enable"], True),
    "is-allow-auto-update-schema": (["--disable"], False),
    "encryption-required": (["--enable"], True),
    "subscription-auth-mode": (["-m", "Prefix"], "Prefix"),
    "anti-affinity-group": (["-g", "blue"], "blue"),
    "clusters": (["-c", "standalone"], ["standalone"]),
}
SUBSCRIPTION_VERBS = {
    "subscriptions": ("list", "create", "delete"),
    "topics": ("subscriptions", "create-subscription", "unsubscribe"),
}


class Shell:
    """`anabranch admin …` in this process: the same code, without a process per verb."""

    def __init__(self, url: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.url = url
        self._capsys = capsys

    tried: ClassVar[set[tuple[str, str]]] = set()  # what has run, in this process

    def __call__(self, noun: str, verb: str, *arguments: str, exits: int = 0) -> str:
        """What it printed; on stderr when it failed."""
        self.tried.add((noun, verb))
        code = main(["admin", noun, verb, *arguments, "--admin-url", self.url])
        out, err = self._capsys.readouterr()
        assert code == exits, f"{noun} {verb} {arguments}: exit code {code}\n{out}{err}"
        return err if exits else out

    def captured(self) -> tuple[str, str]:
        found = self._capsys.readouterr()
        return found.out, found.err

    def forget(self) -> None:
        """What others have printed."""
        self._capsys.readouterr()

    def json(self, noun: str, verb: str, *arguments: str) -> Any:
        return json.loads(self(noun, verb, *arguments, "--json"))


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running, AdminClient(running.http_url) as client:
        client.put("/admin/v2/tenants/acme", {"adminRoles": [], "allowedClusters": ["standalone"]})
        client.put("/admin/v2/namespaces/acme/orders")
        yield running


@pytest.fixture
def shell(broker: Broker, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(broker.http_url, capsys)


def test_tenants(shell: Shell) -> None:
    assert shell("tenants", "create", "one", "-r", "alice,bob") == "created tenant one\n"
    assert shell.json("tenants", "get", "one") == {"adminRoles": ["alice", "bob"], "allowedClusters": ["standalone"]}
    shell("tenants", "update", "one", "--admin-roles", "carol")
    assert shell.json("tenants", "get", "one") == {"adminRoles": ["carol"], "allowedClusters": ["standalone"]}
    assert "one" in shell("tenants", "list").splitlines()
    assert "carol" in shell("tenants", "get", "one")
    shell("tenants", "delete", "one")
    assert "one" not in shell.json("tenants", "list")


def test_clusters_and_brokers(shell: Shell) -> None:
    shell("clusters", "create", "west", "--url", "http://west:8080", "--broker-url", "pulsar://west:6650")
    assert shell.json("clusters", "get", "west")["brokerServiceUrl"] == "pulsar://west:6650"
    shell("clusters", "update", "west", "--url", "http://other:8080")
    found = shell.json("clusters", "get", "west")
    assert (found["serviceUrl"], found["brokerServiceUrl"]) == ("http://other:8080", "pulsar://west:6650")
    assert "west" in shell.json("clusters", "list")
    shell("clusters", "delete", "west")
    assert "west" not in shell.json("clusters", "list")
    assert shell("brokers", "healthcheck") == "ok\n"
    assert shell("brokers", "version").strip()
    [here] = shell.json("brokers", "list", "standalone")
    assert shell.json("brokers", "leader-broker")["brokerId"] == here
    assert shell("brokers", "leader") == f"{here}\n"
    [heads, row] = shell("brokers", "details").splitlines()
    assert heads.split()[:4] == ["ID", "CLIENTS", "HTTP", "SLOTS"]
    assert {here, "256", "serving", "yes"} <= set(row.split())
    assert "no other broker" in shell("brokers", "drain", here, exits=1)
    assert "takes its share" in shell("brokers", "resume", here)
    assert "missing:1" in shell("brokers", "drain", "missing:1", exits=1)
    assert isinstance(shell.json("brokers", "namespaces", "standalone", "--url", here), dict)
    assert isinstance(shell.json("brokers", "topics"), dict)
    assert any(
        one["method"] == "DELETE" and "clusters/west" in one["path"] for one in shell.json("brokers", "operations")
    )
    assert "broker.sweep_seconds" in shell("brokers", "get-runtime-config")
    assert shell.json("brokers", "get-internal-config")["metadataStoreUrl"]
    assert "broker.auto_create_topics" in shell.json("brokers", "list-dynamic-config")
    shell("brokers", "update-dynamic-config", "--config", "broker.sweep_seconds", "--value", "4.5")
    assert shell.json("brokers", "get-all-dynamic-config") == {"broker.sweep_seconds": "4.5"}
    shell("brokers", "delete-dynamic-config", "--config", "broker.sweep_seconds")
    assert shell.json("brokers", "get-all-dynamic-config") == {}
    static = ("--config", "network.port", "--value", "1")
    assert "needs a restart, because the ports" in shell("brokers", "update-dynamic-config", *static, exits=1)
    shell("brokers", "backlog-quota-check")
    assert "nowhere" in shell("brokers", "list", "nowhere", exits=1)


def test_what_is_kept_for_tools(shell: Shell) -> None:
    shell("clusters", "create", "east", "--url", "http://east:8080")
    shell("clusters", "update-peer-clusters", "standalone", "--peer-clusters", "east")
    assert shell.json("clusters", "get-peer-clusters", "standalone") == ["east"]
    domain = ("standalone", "--domain-name", "rack")
    shell("clusters", "create-failure-domain", *domain, "--broker-list", "a:1")
    shell("clusters", "update-failure-domain", *domain, "--broker-list", "a:1,b:2")
    assert shell.json("clusters", "get-failure-domain", *domain) == {"brokers": ["a:1", "b:2"]}
    assert list(shell.json("clusters", "list-failure-domains", "standalone")) == ["rack"]
    shell("clusters", "delete-failure-domain", *domain)
    [here] = shell.json("brokers", "list", "standalone")
    host = here.partition(":")[0]
    policy = ("standalone", "--policy-name", "p")
    shell("ns-isolation-policy", "set", *policy, "--namespaces", "acme/.*", "--primary", host)
    assert shell.json("ns-isolation-policy", "get", *policy)["primary"] == [host]
    assert list(shell.json("ns-isolation-policy", "list", "standalone")) == ["p"]
    wanted = {"brokerName": here, "policyName": "p", "primary": True, "namespaceRegex": ["acme/.*"]}
    assert shell.json("ns-isolation-policy", "brokers", "standalone") == [wanted]
    assert shell.json("ns-isolation-policy", "broker", "standalone", "--broker", here) == wanted
    shell("ns-isolation-policy", "delete", *policy)
    shell("namespaces", "set-offload-policies", NS, "--driver", "aws-s3", "--bucket", "old")
    assert shell.json("namespaces", "get-offload-policies", NS)["managedLedgerOffloadBucket"] == "old"
    shell("namespaces", "remove-offload-policies", NS)
    shell("namespaces", "set-offload-threshold", NS, "--size", "10M")
    assert shell.json("namespaces", "get-offload-threshold", NS) == 10 << 20
    shell("namespaces", "set-offload-deletion-lag", NS, "--lag", "1d")
    assert shell.json("namespaces", "get-offload-deletion-lag", NS) == 86_400_000
    shell("namespaces", "clear-offload-deletion-lag", NS)


def test_namespaces(shell: Shell) -> None:
    shell("namespaces", "create", "acme/two", "--bundles", "2")
    assert shell.json("namespaces", "bundles", "acme/two")["numBundles"] == 2
    bounds = shell.json("namespaces", "bundles", "acme/two")["boundaries"]
    shell("namespaces", "split-bundle", "acme/two", "-b", "_".join(bounds[:2]))
    assert shell.json("namespaces", "bundles", "acme/two")["numBundles"] == 3
    assert "acme/two" in shell.json("namespaces", "list", "acme")
    assert shell.json("namespaces", "policies", "acme/two")["replication_clusters"] == ["standalone"]
    shell("topics", "create", "acme/two/x")
    assert shell("namespaces", "topics", "acme/two") == "persistent://acme/two/x\n"
    shell("topics", "create-subscription", "acme/two/x", "-s", "s")
    shell("namespaces", "clear-backlog", "acme/two", "--sub", "s")
    shell("namespaces", "unload", "acme/two")
    shell("namespaces", "unsubscribe", "acme/two", "-s", "s")
    assert shell.json("topics", "subscriptions", "acme/two/x") == []
    shell("topics", "delete", "acme/two/x")
    shell("namespaces", "delete", "acme/two")
    assert "acme/two" not in shell.json("namespaces", "list", "acme")


def test_scalable_topics(shell: Shell) -> None:
    name = "topic://acme/orders/sc/ü %"
    assert shell("scalable-topics", "create", name, "-s", "2", "-p", "team=a") == f"created {name}\n"
    assert "exists" in shell("scalable-topics", "create", name, exits=1)
    assert shell("scalable-topics", "list", NS, "-p", "team=a") == f"{name}\n"
    assert shell.json("scalable-topics", "list", NS, "-p", "team=b") == []
    shell("scalable-topics", "set-auto-scale-policy", name, "--enabled", "false")
    assert "now: nothing (disabled)" in shell("scalable-topics", "explain", name)
    main(["admin", "topics", "list", NS, "--admin-url", shell.url])
    out, err = shell.captured()
    assert name not in out and err == f"and 1 scalable: anabranch admin scalable-topics list {NS}\n"
    main(["admin", "topics", "list", NS, "--admin-url", shell.url, "--json"])
    assert shell.captured()[1] == ""
    shell("topics", "create-partitioned-topic", f"{NS}/to-migrate", "-p", "2")
    shell("topics", "create-subscription", f"{NS}/to-migrate", "-s", "work")
    plan = shell("scalable-topics", "migrate-to-scalable", f"topic://{NS}/to-migrate", "--check")
    assert f"persistent://{NS}/to-migrate becomes topic://{NS}/to-migrate with 2 segments" in plan
    assert "nothing blocks it" in plan
    assert shell("scalable-topics", "migrate", f"topic://{NS}/to-migrate") == "migrated\n"
    refused = shell("scalable-topics", "migrate", f"topic://{NS}/to-migrate", exits=1)
    assert "a scalable topic has the name" in refused
    shell("scalable-topics", "delete", f"topic://{NS}/to-migrate")

    shell("scalable-topics", "create-subscription", name, "-s", "audit/ü", "--from", "latest")
    split = shell("scalable-topics", "split-segment", name, "-s", "0", "--into", "3")
    assert split == "segment 0 became segments 2, 3, 4\n"
    split = shell.json("scalable-topics", "split-segment", name, "-s", "1", "--at", "c000")
    assert split == {"parentIds": [1], "childIds": [5, 6]}
    assert shell("scalable-topics", "merge-segments", name, "-s", "4,3") == "segments 4, 3 became segment 7\n"
    shell("scalable-topics", "merge-segments", name, "--segment-id-1", "5", "--segment-id-2", "6")
    assert "give either" in shell(
        "scalable-topics", "split-segment", name, "-s", "2", "--into", "2", "--at", "1", exits=2
    )
    assert "neighbours" in shell("scalable-topics", "merge-segments", name, "-s", "2", exits=2)
    assert "sealed since" in shell("scalable-topics", "split-segment", name, "-s", "0", exits=1)
    found = shell.json("scalable-topics", "get-metadata", name)
    assert (found["epoch"], found["nextSegmentId"], found["properties"]) == (4, 9, {"team": "a"})
    text = shell("scalable-topics", "get-metadata", name)
    assert text.startswith("epoch 4, 3 active of 9 segments\n├──")
    assert "no operation is running" in shell("scalable-topics", "stats", name)
    assert shell.json("scalable-topics", "get-subscription", name, "-s", "audit/ü")["type"] == "STREAM"
    assert "no consumers" in shell("scalable-topics", "get-subscription", name, "-s", "audit/ü")
    shell("scalable-topics", "seek", name, "-s", "audit/ü", "-t", "1h")
    shell("scalable-topics", "clear-backlog", name, "-s", "audit/ü")
    assert "missing" in shell("scalable-topics", "seek", name, "-s", "missing", "-t", "1h", exits=1)
    shell("scalable-topics", "delete-subscription", name, "-s", "audit/ü")
    shell("scalable-topics", "delete", name)
    assert shell("scalable-topics", "list", NS) == "(none)\n"
    shell("scalable-topics", "get-metadata", name, exits=1)


@pytest.mark.parametrize(
    ("noun", "verb", "place"),
    [
        ("scalable-topics", "auto-scale-policy", "topic://acme/orders/scaled"),
        ("namespaces", "scalable-topic-auto-scale-policy", NS),
    ],
)
def test_auto_scale_policies(shell: Shell, noun: str, verb: str, place: str) -> None:
    if noun == "scalable-topics":
        shell(noun, "create", place)
    shell(noun, f"set-{verb}", place, "--max-segments", "16", "--enabled", "false", "--split-point", "load")
    assert shell.json(noun, f"get-{verb}", place) == {"enabled": False, "maxSegments": 16, "splitPoint": "load"}
    assert shell.json(noun, f"get-{verb}", place, "--applied")["mergeWindowSeconds"] == 300
    assert "minSegments" in shell(noun, f"set-{verb}", place, "--min-segments", "99", exits=1)
    assert "at least one field" in shell(noun, f"set-{verb}", place, exits=2)
    shell(noun, f"remove-{verb}", place)
    assert shell.json(noun, f"get-{verb}", place) is None
    if noun == "scalable-topics":
        shell(noun, "delete", place)


def test_permissions(shell: Shell) -> None:
    shell("namespaces", "grant-permission", NS, "--role", "al", "--actions", "produce,consume")
    assert sorted(shell.json("namespaces", "permissions", NS)["al"]) == ["consume", "produce"]
    shell("namespaces", "revoke-permission", NS, "--role", "al")
    assert shell.json("namespaces", "permissions", NS) == {}
    shell("namespaces", "grant-subscription-permission", NS, "-s", "s", "--roles", "al,bo")
    assert sorted(shell.json("namespaces", "subscription-permission", NS)["s"]) == ["al", "bo"]
    shell("namespaces", "revoke-subscription-permission", NS, "-s", "s", "--role", "al")
    assert shell.json("namespaces", "subscription-permission", NS) == {"s": ["bo"]}
    shell("topics", "create", "acme/orders/perm")
    shell("topics", "grant-permission", "acme/orders/perm", "--role", "al", "--actions", "produce")
    assert shell.json("topics", "permissions", "acme/orders/perm") == {"al": ["produce"]}
    shell("topics", "revoke-permission", "acme/orders/perm", "--role", "al")
    assert shell.json("topics", "permissions", "acme/orders/perm") == {}


def test_properties(shell: Shell) -> None:
    shell("namespaces", "set-properties", NS, "-p", "a=1,b=2")
    shell("namespaces", "set-property", NS, "-k", "c", "-v", "x y/z")
    assert shell.json("namespaces", "get-properties", NS) == {"a": "1", "b": "2", "c": "x y/z"}
    assert shell("namespaces", "get-property", NS, "-k", "c") == "x y/z\n"
    assert shell("namespaces", "remove-property", NS, "-k", "c") == "x y/z\n"
    assert shell("namespaces", "get-property", NS, "-k", "c") == "not set\n"
    shell("namespaces", "clear-properties", NS)
    assert shell.json("namespaces", "get-properties", NS) == {}


@pytest.mark.parametrize("noun", POLICIES)
def test_policies(shell: Shell, noun: str) -> None:
    options, expected = POLICIES[noun]
    namespace = f"acme/p-{noun}"
    shell("namespaces", "create", namespace)
    before = shell.json("namespaces", f"get-{noun}", namespace)
    shell("namespaces", f"set-{noun}", namespace, *options)
    assert shell.json("namespaces", f"get-{noun}", namespace) == expected
    group = admin.get_command(None, "namespaces")  # type: ignore[arg-type]  # the context is not looked at
    if f"remove-{noun}" in group.commands:  # type: ignore[union-attr]  # it is a group
        shell("namespaces", f"remove-{noun}", namespace)
        assert shell.json("namespaces", f"get-{noun}", namespace) == before
    shell("namespaces", "delete", namespace)


TOPIC_POLICIES: dict[str, tuple[list[str], Any]] = {  # the others have the options of a namespace's
    "deduplication": (["-e"], True),
    "max-producers": (["-p", "7"], 7),
    "max-consumers": (["-c", "7"], 7),
    "max-subscriptions-per-topic": (["-s", "7"], 7),
    "max-unacked-messages-per-consumer": (["-m", "7"], 7),
    "max-unacked-messages-per-subscription": (["-m", "7"], 7),
    "max-message-size": (["-m", "7000"], 7000),
    "dispatcher-pause-on-ack-state-persistent": ([], True),
    "offload-policies": (
        ["-d", "aws-s3"],
        {
            "managedLedgerOffloadDriver": "aws-s3",
            "managedLedgerOffloadThresholdInBytes": -1,
            "managedLedgerOffloadDeletionLagInMillis": None,
        },
    ),
    "entry-filters-per-topic": (["-efn", "a,b"], {"entryFilterNames": "a,b"}),
    "replication-clusters": (["-c", "standalone"], ["standalone"]),
}


@pytest.mark.parametrize("policy", [one.noun for one in topic_policies.TOPIC_POLICIES])
@pytest.mark.parametrize("noun", ["topic-policies", "topics"])
def test_policies_of_topics(shell: Shell, noun: str, policy: str) -> None:
    options, expected = TOPIC_POLICIES.get(policy) or POLICIES[policy]
    name = "max-subscriptions" if (noun, policy) == ("topics", "max-subscriptions-per-topic") else policy
    topic = f"persistent://acme/orders/{noun}-{policy}"
    shell("topics", "create", topic)
    before = shell.json(noun, f"get-{name}", topic)
    applied = shell.json(noun, f"get-{name}", topic, "-ap")
    shell(noun, f"set-{name}", topic, *options)
    shell(noun, f"set-{name}", topic, *options, "--global")
    assert shell.json(noun, f"get-{name}", topic) == expected
    assert shell.json(noun, f"get-{name}", topic, "-g") == expected
    shell(noun, f"remove-{name}", topic)
    assert shell.json(noun, f"get-{name}", topic) == before
    assert shell.json(noun, f"get-{name}", topic, "--applied") == expected, "the global one"
    shell(noun, f"remove-{name}", topic, "-g")
    assert shell.json(noun, f"get-{name}", topic, "-ap") == applied


@pytest.mark.parametrize("noun", ["topic-policies", "topics"])
def test_policies_of_topics_in_parts(shell: Shell, noun: str) -> None:
    topic = f"persistent://acme/orders/{noun}-parts"
    shell("topics", "create", topic)
    quotas = "get-backlog-quotas" if noun == "topics" else "get-backlog-quota"
    shell(noun, "set-backlog-quota", topic, "-l", "2G", "-p", "producer_exception")
    assert shell.json(noun, quotas, topic)["destination_storage"]["limitSize"] == 2 << 30
    shell(noun, "remove-backlog-quota", topic)
    assert shell.json(noun, quotas, topic) == {}
    for verb, words in (("set", ["-md", "5"]), ("get", []), ("remove", [])):
        shell(noun, f"{verb}-subscription-dispatch-rate", topic, "-s", "sub", *words)


def test_policies_of_a_topic_are_shown_with_their_levels(shell: Shell) -> None:
    topic = "persistent://acme/orders/levels"
    shell("topics", "create", topic)
    shell("topic-policies", "set-max-producers", topic, "-p", "7")
    rows = {line.split()[0]: line.split()[1:] for line in shell("topic-policies", "show", topic).splitlines()}
    assert rows["maxProducers"] == ["7", "topic", "yes"]
    assert rows["maxConsumers"] == ["0", "broker", "yes"]
    assert rows["replication"][-3:] == ["broker", "stored", "only"]
    shell("topic-policies", "remove-all", topic)
    assert shell.json("topic-policies", "show", topic)["maxProducers"]["level"] == "broker"


def test_backlog_quotas(shell: Shell) -> None:
    shell("namespaces", "set-backlog-quota", NS, "-l", "2G", "-p", "producer_exception")
    shell("namespaces", "set-backlog-quota", NS, "-lt", "1h", "-p", "consumer_backlog_eviction", "-t", "message_age")
    found = shell.json("namespaces", "get-backlog-quotas", NS)
    assert found["destination_storage"]["limitSize"] == 2 << 30
    assert found["message_age"]["limitTime"] == 3600
    shell("namespaces", "remove-backlog-quota", NS, "-t", "message_age")
    assert list(shell.json("namespaces", "get-backlog-quotas", NS)) == ["destination_storage"]
    shell("namespaces", "remove-backlog-quota", NS)
    assert shell.json("namespaces", "get-backlog-quotas", NS) == {}


def test_topics(shell: Shell) -> None:
    assert shell("topics", "create", TOPIC, "-m", "owner=me") == f"created topic {TOPIC}\n"
    assert f"persistent://{TOPIC}" in shell("topics", "list", NS).splitlines()
    assert f"persistent://{TOPIC}" not in shell.json("topics", "list", NS, "-td", "non-persistent")
    assert shell.json("topics", "lookup", TOPIC)["brokerUrl"].startswith("pulsar://")
    assert shell("topics", "bundle-range", TOPIC).startswith("0x")
    assert shell.json("topics", "stats-internal", TOPIC)["state"] == "LedgerOpened"
    assert "no subscriptions" in shell("topics", "stats", TOPIC)
    assert "LedgerOpened" in shell("topics", "stats-internal", TOPIC)
    shell("topics", "terminate", TOPIC)
    assert shell.json("topics", "stats-internal", TOPIC)["state"] == "Terminated"
    shell("topics", "delete", TOPIC)
    assert f"persistent://{TOPIC}" not in shell.json("topics", "list", NS)


def test_partitioned_topics(shell: Shell) -> None:
    shell("topics", "create-partitioned-topic", PARTS, "-p", "2")
    shell("topics", "update-partitioned-topic", PARTS, "-p", "3")
    shell("topics", "create-missed-partitions", PARTS)
    assert shell.json("topics", "get-partitioned-topic-metadata", PARTS)["partitions"] == 3
    assert f"persistent://{PARTS}" in shell.json("topics", "list-partitioned-topics", NS)
    assert len(shell.json("topics", "partitioned-stats", PARTS, "--per-partition")["partitions"]) == 3
    assert "partitions" in shell("topics", "stats", PARTS), "stats of a partitioned topic are its sums"
    assert "422" not in shell("topics", "update-partitioned-topic", PARTS, "-p", "1", exits=1)
    shell("topics", "delete-partitioned-topic", PARTS)
    assert f"persistent://{PARTS}" not in shell.json("topics", "list-partitioned-topics", NS)


@pytest.mark.parametrize("noun", ["subscriptions", "topics"])
def test_subscriptions(shell: Shell, noun: str) -> None:
    names = SUBSCRIPTION_VERBS[noun]
    topic = f"acme/orders/subs-{noun}"
    shell("topics", "create", topic)
    shell(noun, names[1], topic, "-s", "a b/c", "-m", "earliest")
    shell(noun, names[1], topic, "-s", "end")
    shell(noun, names[1], topic, "-s", "id", "-m", "0:0")
    assert shell.json(noun, names[0], topic) == ["a b/c", "end", "id"]
    assert "a b/c" in shell("topics", "stats", topic)
    shell(noun, names[2], topic, "-s", "a b/c", "--force")
    assert shell(noun, names[0], topic) == "end\nid\n"
    shell(noun, names[1], topic, "-s", "x", "-m", "not an id", exits=2)


@pytest.mark.parametrize("noun", ["subscriptions", "topics"])
def test_cursors(shell: Shell, broker: Broker, noun: str) -> None:
    topic, one = f"acme/orders/cursors-{noun}", ("-s", "s")
    shell("topics", "create", topic)
    shell("topics", "create-subscription", topic, *one, "-m", "earliest")
    for text in ("zero", "one", "two"):
        assert main(["produce", topic, "-m", text, "-m", f"{text}!", "-k", "k", "--url", broker.service_url]) == 0
    shell.forget()

    def backlog() -> int:
        return int(shell.json(noun, "analyze-backlog", topic, *one)["entries"])

    peeked = shell.json(noun, "peek-messages", topic, *one, "-n", "3")
    assert [(m["key"], m["payload"]) for m in peeked] == [("k", "zero"), ("k", "zero!"), ("k", "one")]
    assert len(shell.json(noun, "peek-messages", topic, *one, "-n", "99")) == 6
    assert "zero!" in shell(noun, "peek-messages", topic, *one, "-n", "2")
    shell(noun, "peek-messages", topic, "-s", "missing", exits=1)
    shell(noun, "skip", topic, *one, "-n", "1")
    assert backlog() == 2
    place = peeked[2]["id"].rsplit(":", 1)[0]
    shell(noun, "expire-messages", topic, *one, "-p", place)
    assert backlog() == 1
    shell(noun, "reset-cursor", topic, *one, "-m", place)
    assert backlog() == 2
    shell(noun, "reset-cursor", topic, *one, "-m", place, "-e")
    assert backlog() == 1
    shell(noun, "reset-cursor", topic, *one, "--time", "1h")
    assert backlog() == 3
    shell(noun, "clear-backlog", topic, *one)
    assert backlog() == 0
    shell(noun, "reset-cursor", topic, *one, "-m", "earliest")
    assert backlog() == 3
    shell(noun, "expire-messages", topic, *one, "-t", "1h", exits=1)
    shell(noun, "reset-cursor", topic, *one, exits=2)
    shell(noun, "update-subscription-properties", topic, *one, "-p", "a=b")
    assert shell.json(noun, "get-subscription-properties", topic, *one) == {"a": "b"}


def test_topic_maintenance(shell: Shell, broker: Broker) -> None:
    topic = "acme/orders/care"
    shell("topics", "create", topic, "-m", "a=1")
    shell("topics", "create-subscription", topic, "-s", "s")
    shell("topics", "update-properties", topic, "-p", "b=2")
    shell("topics", "remove-properties", topic, "-k", "a")
    assert shell.json("topics", "get-properties", topic) == {"b": "2"}
    for text in ("x", "y"):
        assert main(["produce", topic, "-m", text, "-k", "k", "--url", broker.service_url]) == 0
    shell.forget()
    last = shell.json("topics", "last-message-id", topic)
    assert last["entryId"] == 1
    ledger = str(last["ledgerId"])
    found = shell.json("topics", "get-message-by-id", topic, "-l", ledger, "-e", "1")
    assert [one["payload"] for one in found] == ["y"]
    assert [one["payload"] for one in shell.json("topics", "examine-messages", topic, "-i", "earliest")] == ["x"]
    assert shell.json("topics", "get-message-id", topic, "-t", "1h")["entryId"] == 0
    assert shell.json("topics", "get-backlog-size", topic, "-m", f"{ledger}:0") > 0
    assert "s" in shell.json("topics", "info-internal", topic)["cursors"]
    shell("topics", "compact", topic)
    assert shell.json("topics", "compaction-status", topic)["status"] in ("RUNNING", "SUCCESS")
    shell("topics", "expire-messages-all-subscriptions", topic, "-t", "1h")
    shell("topics", "trim-topic", topic)
    shell("topics", "truncate", topic)
    assert shell.json("topics", "stats", topic)["subscriptions"]["s"]["msgBacklog"] == 0
    shell("topics", "unload", topic)
    shell("topics", "create-partitioned-topic", "acme/orders/ends", "-p", "2")
    assert len(shell.json("topics", "partitioned-stats-internal", "acme/orders/ends")["partitions"]) == 2
    assert set(shell.json("topics", "partitioned-terminate", "acme/orders/ends")) == {"0", "1"}


def test_schemas(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    file.write_text(json.dumps(SCHEMA))
    topic, given = "acme/orders/s", ("-f", str(file))
    assert shell("schemas", "upload", topic, *given) == "version 0\n"
    assert shell.json("schemas", "version", topic, *given) == {"version": 0}
    assert shell.json("schemas", "compatibility", topic, *given)["compatibility"] is True
    assert shell.json("schemas", "get", topic)["type"] == "JSON"
    assert shell.json("schemas", "get", topic, "-v", "0")["version"] == 0
    assert [one["version"] for one in shell.json("schemas", "list", topic)] == [0]
    assert shell.json("schemas", "metadata", topic)["info"]["version"] == 0
    shell("schemas", "delete", topic)
    assert "anabranch: " in shell("schemas", "get", topic, exits=1)
    file.write_text("{")
    assert "is not JSON" in shell("schemas", "upload", topic, *given, exits=2)


@pytest.mark.parametrize(
    ("noun", "arguments", "words"),
    [
        ("tenants", ["get", "missing"], "Tenant does not exist"),
        ("topics", ["stats", "acme/orders/none"], "none"),
        ("topics", ["create", "a/b"], "neither a short topic name"),
        ("namespaces", ["policies", "acme"], "is not a namespace like"),
        ("subscriptions", ["delete", "acme/orders/none", "-s", "s"], "none"),
        ("namespaces", ["delete", "public/nope"], "nope"),
    ],
)
def test_refusals_are_one_line(shell: Shell, noun: str, arguments: list[str], words: str) -> None:
    text = shell(noun, *arguments, exits=1)
    assert text.startswith("anabranch: ") and text.count("\n") == 1
    assert words in text


@pytest.mark.parametrize(
    ("noun", "arguments"),
    [
        ("namespaces", ["set-retention", NS, "-t", "soon", "-s", "1G"]),
        ("namespaces", ["set-retention", NS, "-t", "1h", "-s", "big"]),
        ("namespaces", ["set-deduplication", NS]),
        ("namespaces", ["set-deduplication", NS, "-e", "-d"]),
        ("topics", ["create-partitioned-topic", PARTS, "-p", "0"]),
        ("topics", ["create-subscription", TOPIC, "-s", "x", "-m", "here"]),
        ("topics", ["stats"]),
        ("namespaces", ["set-inactive-topic-policies", NS, "-e", "-d", "-t", "1h"]),
        ("namespaces", ["set-inactive-topic-policies", NS, "-e"]),
    ],
)
def test_wrong_usage_never_reaches_the_broker(shell: Shell, noun: str, arguments: list[str]) -> None:
    assert "Error: " in shell(noun, *arguments, exits=2)


def test_no_server_there(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        assert main(["admin", "tenants", "list", "--admin-url", url]) == 1
    text = capsys.readouterr().err
    assert url in text and "is the broker running?" in text and text.count("\n") == 1


def test_ledger_verbs_on_files(shell: Shell) -> None:
    for verb in (("list",), ("show", "1"), ("check",), ("check", "--delete-orphans"), ("recover", "1")):
        assert "keeps its ledgers in files" in shell("ledgers", *verb, exits=1)


def test_metadata_migration_verbs_without_a_migration(shell: Shell) -> None:
    assert "no migration" in shell("metadata-migration", "status")
    assert "no migration" in shell("metadata-migration", "abort", exits=1)
    assert "no migration" in shell("metadata-migration", "verify", exits=1)
    assert "no metadata store for" in shell("metadata-migration", "start", "--target", "foo:bar", exits=1)


def test_admin_url_may_stand_anywhere(
    broker: Broker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = broker.http_url
    for arguments in (
        ["admin", "--admin-url", url, "--json", "tenants", "list"],
        ["admin", "tenants", "--admin-url", url, "--json", "list"],
        ["admin", "tenants", "list", "--json", "--admin-url", url],
    ):
        assert main(arguments) == 0
        assert "acme" in json.loads(capsys.readouterr().out)
    monkeypatch.setenv("ANABRANCH_ADMIN_URL", url)
    assert main(["admin", "tenants", "list"]) == 0
    assert "acme" in capsys.readouterr().out
    assert main(["admin", "tenants", "list", "--admin-url", "localhost:8080"]) == 1
    assert "http://localhost:8080" in capsys.readouterr().err


def all_verbs() -> list[tuple[str, str]]:
    context = admin.make_context("admin", ["tenants"], resilient_parsing=True)
    found = []
    for noun in NOUNS:
        group = admin.get_command(context, noun)
        found += [(noun, verb) for verb in group.list_commands(context)]  # type: ignore[union-attr]  # all are groups
    return found


def test_every_verb_has_an_example_or_needs_none(capsys: pytest.CaptureFixture[str]) -> None:
    for noun, verb in all_verbs():
        assert main(["admin", noun, verb, "--help"]) == 0
        text = capsys.readouterr().out
        assert "Example:" in text or ("Usage: anabranch admin" in text and " [OPTIONS]\n" in text), (noun, verb)


def test_every_verb_was_tried() -> None:
    """Runs last, in the same worker as the tests above; on its own it has nothing to look at."""
    if len(Shell.tried) < 50:
        pytest.skip("only after the tests above")
    assert sorted(set(all_verbs()) - Shell.tried) == []
