"""Brokers over HTTP: names, leader, loaded topics, configuration without secrets."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.conftest import StartBroker
from tests.support.processes.broker_process import BrokerProcess
from tests.support.traffic.stock_calls import Rest, eventually

BROKERS = "/admin/v2/brokers"


def test_single_broker_is_leader(broker: BrokerProcess) -> None:
    rest, here = Rest(broker.http_url), broker.http_url.removeprefix("http://")
    assert rest.expect("GET", BROKERS) == [here]
    assert rest.expect("GET", f"{BROKERS}/standalone") == [here]
    assert rest.call("GET", f"{BROKERS}/elsewhere")[0] == 404
    assert rest.expect("GET", f"{BROKERS}/leaderBroker") == {"serviceUrl": broker.http_url, "brokerId": here}


def test_loaded_topics_by_bundle(broker: BrokerProcess, topic: str) -> None:
    rest, here = Rest(broker.http_url), broker.http_url.removeprefix("http://")
    path = topic.replace("://", "/")
    rest.expect("PUT", f"/admin/v2/{path}")
    namespace = "/".join(path.split("/")[1:3])
    tree = rest.expect("GET", "/admin/v2/broker-stats/topics")[namespace]
    [bundle] = [bundle for bundle, domains in tree.items() if topic in domains.get("persistent", ())]
    owned = rest.expect("GET", f"{BROKERS}/standalone/{here}/ownedNamespaces")
    assert owned[f"{namespace}/{bundle}"]["is_active"]
    assert rest.call("GET", f"{BROKERS}/standalone/other:1/ownedNamespaces")[0] == 404


def test_configuration_has_no_secrets(start_broker: StartBroker, tmp_path: Path) -> None:
    secret = "c2VjcmV0LXRoYXQtbm9ib2R5LW1heS1zZWUtMDEyMzQ1Njc4OQ=="
    words = ["--set", f"security.token_secret_key=data:;base64,{secret}", "--set", "broker.sweep_seconds=7.5"]
    rest = Rest(start_broker(arguments=words).http_url)
    values = rest.expect("GET", f"{BROKERS}/configuration/runtime")
    assert values["broker.sweep_seconds"] == "7.5" and values["storage.sync"] == "group"
    assert all(isinstance(value, str) for value in values.values())
    assert values["security.token_secret_key"] == "(set, not shown)"
    assert secret not in str(values)
    assert "broker.auto_create_topics" in rest.expect("GET", f"{BROKERS}/configuration")
    assert rest.expect("GET", f"{BROKERS}/configuration/values") == {}
    for method, path in (("POST", "network.port/1"), ("DELETE", "network.port"), ("POST", "no.such/1")):
        status, body = rest.call(method, f"{BROKERS}/configuration/{path}")
        assert status == 412 and "non-dynamic" in body["reason"]
    status, body = rest.call("POST", f"{BROKERS}/configuration/broker.auto_create_topics/perhaps")
    assert status == 412 and "true or false" in body["reason"]
    assert rest.expect("GET", f"{BROKERS}/internal-configuration")["metadataStoreUrl"].startswith("sqlite:")


def test_quotas_are_checked_on_request(start_broker: StartBroker) -> None:
    rest = Rest(start_broker(arguments=["--set", "broker.sweep_seconds=3600"]).http_url)
    topic = "/admin/v2/persistent/public/default/t"
    rest.expect("PUT", topic)
    rest.expect("PUT", f"{topic}/subscription/s", "earliest")
    rest.expect(
        "POST",
        "/admin/v2/namespaces/public/default/backlogQuota",
        {"limitTime": 1, "policy": "consumer_backlog_eviction"},
    )
    rest.expect(
        "POST",
        "/admin/v2/namespaces/public/default/backlogQuota?backlogQuotaType=message_age",
        {"limitTime": 1, "policy": "consumer_backlog_eviction"},
    )
    rest.expect("POST", "/topics/persistent/public/default/t", {"messages": [{"payload": "old"}]})

    rest.expect("GET", f"{BROKERS}/backlogQuotaCheck")  # what pulsar-admin asks

    def is_evicted() -> bool:
        rest.expect("GET", f"{BROKERS}/backlog-quota-check")
        return bool(rest.expect("GET", f"{topic}/stats")["subscriptions"]["s"]["msgBacklog"] == 0)

    eventually(is_evicted, what="the old message is passed over")


def test_metrics_as_json(broker: BrokerProcess) -> None:
    rest = Rest(broker.http_url)
    rest.expect("PUT", "/admin/v2/persistent/public/default/counted")
    rest.expect("POST", "/topics/persistent/public/default/counted", {"messages": [{"payload": "x"}] * 3})
    found = rest.expect("GET", "/admin/v2/broker-stats/metrics")
    (topic,) = (one for one in found if one["dimensions"].get("topic") == "persistent://public/default/counted")
    assert topic["dimensions"]["namespace"] == "public/default"
    assert topic["metrics"]["pulsar_in_messages_total"] == 3
    assert "public/default" in rest.expect("GET", "/admin/v2/broker-stats/destinations")


def test_bundles_and_their_topics(broker: BrokerProcess) -> None:
    rest = Rest(broker.http_url)
    namespace = "/admin/v2/namespaces/public/bundles"
    rest.expect("PUT", namespace, {"bundles": {"numBundles": 2}})
    for number in range(8):
        rest.expect("PUT", f"/admin/v2/persistent/public/bundles/t{number}")
    halves = ("0x00000000_0x80000000", "0x80000000_0xffffffff")
    positions = [rest.expect("GET", f"{namespace}/{half}/topicHashPositions") for half in halves]
    assert [one["bundle"] for one in positions] == list(halves)
    low, high = (one["topicHashPositions"] for one in positions)
    assert max(low.values()) < 1 << 31 <= min(high.values()) and len(low) + len(high) == 8
    one = next(iter(low))
    assert list(
        rest.expect("GET", f"{namespace}/{halves[0]}/topicHashPositions?topics={one},persistent://x/y/z")[
            "topicHashPositions"
        ]
    ) == [one]
    assert rest.call("GET", f"{namespace}/0x0_0x1/topicHashPositions")[0] == 412
    assert rest.call("DELETE", f"{namespace}/{halves[0]}")[0] == 409
    for topic in low:
        rest.expect("DELETE", f"/admin/v2/{topic.replace('://', '/')}")
    rest.expect("DELETE", f"{namespace}/{halves[0]}")
    assert rest.expect("GET", f"/admin/v2/non-persistent/public/bundles/{halves[1]}") == []


def test_message_id_by_index(broker: BrokerProcess) -> None:
    rest = Rest(broker.http_url)
    topic = "/admin/v2/persistent/public/default/indexed"
    rest.expect("PUT", topic)

    def publish(count: int) -> list[tuple[int, int]]:
        messages = {"messages": [{"payload": "x"}] * count}
        ids = rest.expect("POST", topic.replace("/admin/v2", "/topics"), messages)["messagePublishResults"]
        return [(int(ledger), int(entry)) for ledger, entry, *_ in (one["messageId"].split(":") for one in ids)]

    def at(index: int) -> tuple[int, int]:
        found = rest.expect("GET", f"{topic}/getMessageIdByIndex?index={index}")
        return found["ledgerId"], found["entryId"]

    first = publish(5)
    assert [at(index) for index in range(5)] == first
    rest.expect("DELETE", f"{topic}/truncate")  # the first five are gone
    second = publish(3)
    assert [at(index) for index in (0, 4, 5, 6, 7)] == [second[0], second[0], *second]
    for index in ("8", "-1"):
        assert rest.call("GET", f"{topic}/getMessageIdByIndex?index={index}")[0] == 404
    assert rest.call("GET", f"{topic}/getMessageIdByIndex")[0] == 400
