"""Namespaces, clusters, policies, topics and subscriptions over HTTP: answers as Pulsar gives them, faults excepted."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
import uuid
from typing import Any

import pulsar
import pytest

from anabranch.broker.catalog.policy_fields import ALWAYS, RULES
from tests.support.processes.broker_process import BrokerProcess
from tests.support.traffic.stock_calls import EARLIEST, Rest, eventually, payloads, receive_data, send_all, topic_path

N = "/admin/v2/namespaces"


@pytest.fixture
def rest(broker: BrokerProcess) -> Rest:
    return Rest(broker.http_url)


@pytest.fixture
def namespace(rest: Rest) -> str:
    name = f"public/r-{uuid.uuid4().hex[:10]}"
    rest.expect("PUT", f"{N}/{name}")
    return name


GOOD: dict[str, Any] = {
    "retention": {"retentionTimeInMinutes": 10, "retentionSizeInMB": 100},
    "messageTTL": 3600,
    "deduplication": True,
    "deduplicationSnapshotInterval": 100,
    "autoTopicCreation": {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 3},
    "autoSubscriptionCreation": {"allowAutoSubscriptionCreation": False},
    "delayedDelivery": {"tickTime": 2000, "active": True, "maxDeliveryDelayInMillis": 5000},
    "persistence": {
        "bookkeeperEnsemble": 1,
        "bookkeeperWriteQuorum": 1,
        "bookkeeperAckQuorum": 1,
        "managedLedgerMaxMarkDeleteRate": 0.5,
    },
    "dispatchRate": {
        "dispatchThrottlingRateInMsg": 100,
        "dispatchThrottlingRateInByte": 2048,
        "relativeToPublishRate": False,
        "ratePeriodInSecond": 1,
    },
    "publishRate": {"publishThrottlingRateInMsg": 10, "publishThrottlingRateInByte": 1000},
    "subscribeRate": {"subscribeThrottlingRatePerConsumer": 10, "ratePeriodInSecond": 30},
    "inactiveTopicPolicies": {
        "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
        "maxInactiveDurationSeconds": 60,
        "deleteWhileInactive": False,
    },
    "subscriptionTypesEnabled": ["Exclusive", "Shared"],
    "encryptionRequired": True,
}
GOOD["subscriptionDispatchRate"] = GOOD["replicatorDispatchRate"] = GOOD["dispatchRate"]
BAD: dict[str, list[tuple[Any, int]]] = {
    "retention": [
        ({"retentionTimeInMinutes": 10}, 400),
        ({"retentionTimeInMinutes": -2, "retentionSizeInMB": 1}, 400),
        ([], 400),
    ],
    "messageTTL": [(-1, 412), ("x", 400), (True, 400), (1.5, 400)],
    "deduplication": [("yes", 400), (1, 400)],
    "deduplicationSnapshotInterval": [(-1, 412)],
    "autoTopicCreation": [
        ({"allowAutoTopicCreation": True, "topicType": "zzz"}, 412),
        ({"allowAutoTopicCreation": True, "topicType": "partitioned"}, 412),
        ({"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 0}, 412),
        ({"allowAutoTopicCreation": True, "topicType": "non-partitioned", "defaultNumPartitions": 3}, 412),
    ],
    "autoSubscriptionCreation": [({}, 400)],
    "delayedDelivery": [({"tickTime": -1, "active": True}, 412)],
    "persistence": [({"bookkeeperEnsemble": 1, "bookkeeperWriteQuorum": 2, "bookkeeperAckQuorum": 1}, 400)],
    "dispatchRate": [("x", 400)],
    "inactiveTopicPolicies": [({"inactiveTopicDeleteMode": "zzz", "maxInactiveDurationSeconds": 1}, 400)],
    "subscriptionTypesEnabled": [(["zzz"], 400), ("Shared", 400)],
    "encryptionRequired": [("zzz", 400)],
}


BAD |= {name: [(-1, 400)] for name in GOOD if name.endswith("Rate")}
GOOD["offloadPolicies"] = {"managedLedgerOffloadDriver": "aws-s3"}
BAD |= {name: [("x", 400)] for name in ("offloadThreshold", "offloadThresholdInSeconds", "offloadDeletionLagMs")}
BAD["offloadPolicies"] = [("x", 400), ([], 400)]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.path)
def test_every_policy_can_be_set_shown_and_removed(rest: Rest, namespace: str, rule: Any) -> None:
    path, value = f"{N}/{namespace}/{rule.path}", GOOD.get(rule.path, 5)
    assert rest.call("GET", path) == (200, rule.unset)
    assert rest.call(rule.verb, path, value) == (204, None)
    assert rest.call("GET", path) == (200, value)
    shown = rest.expect("GET", f"{N}/{namespace}")[rule.key]
    assert shown == ({"standalone": value} if rule.per_cluster else value)
    for wrong, status in BAD.get(rule.path, [(-1, 412), ("x", 400)]):
        answered, answer = rest.call(rule.verb, path, wrong)
        assert answered == status and set(answer) == {"reason", "error"}, (wrong, answered, answer)
    if rule.empty_removes:  # as pulsar-admin does it
        assert rest.call(rule.verb, path) == (204, None)
        assert rest.call("GET", path) == (200, rule.unset)
        rest.expect(rule.verb, path, value)
    else:
        assert rest.call(rule.verb, path)[0] == 400, "an empty body is no value"
    assert rest.call("GET", path) == (200, value)
    if rule.removable:
        assert rest.call("DELETE", path) == (204, None)
        assert rest.call("GET", path) == (200, rule.unset)
    else:
        assert rest.call("DELETE", path)[0] == 405
    missing = f"{N}/public/none/{rule.path}"
    assert rest.call("GET", missing)[0] == rest.call(rule.verb, missing, value)[0] == 404


def test_new_namespace_shows_pulsar_defaults(rest: Rest, namespace: str) -> None:
    shown = rest.expect("GET", f"{N}/{namespace}")
    assert shown.pop("bundles") == {
        "boundaries": ["0x00000000", "0x40000000", "0x80000000", "0xc0000000", "0xffffffff"],
        "numBundles": 4,
    }
    assert shown == ALWAYS


def test_a_namespace_created_with_policies(rest: Rest) -> None:
    name = f"public/r-{uuid.uuid4().hex[:10]}"
    body = {
        "message_ttl_in_seconds": 60,
        "retention_policies": {"retentionTimeInMinutes": 10, "retentionSizeInMB": 100},
        "bundles": {"numBundles": 3},
        "replication_clusters": [],
        "deleted": False,
        "publishMaxMessageRate": {},
        "max_producers_per_topic": 2,
        "unknown": 1,
    }
    rest.expect("PUT", f"{N}/{name}", body)
    shown = rest.expect("GET", f"{N}/{name}")
    assert shown["message_ttl_in_seconds"] == 60 and shown["max_producers_per_topic"] == 2
    assert shown["bundles"]["boundaries"] == ["0x00000000", "0x55555555", "0xaaaaaaaa", "0xffffffff"]
    assert shown["replication_clusters"] == ["standalone"] and "unknown" not in shown
    assert rest.call("PUT", f"{N}/{name}", body)[0] == 409
    assert rest.call("PUT", f"{N}/public/x-1", {"message_ttl_in_seconds": -1})[0] == 412
    assert rest.call("PUT", f"{N}/public/x-2", {"replication_clusters": ["zzz"]})[0] == 403
    assert rest.call("PUT", f"{N}/none/x-3")[0] == 404
    assert rest.call("DELETE", f"{N}/{name}?force=true")[0] == 405
    assert rest.call("DELETE", f"{N}/{name}")[0] == 204
    assert rest.call("GET", f"{N}/{name}")[0] == rest.call("DELETE", f"{N}/{name}")[0] == 404


def test_quota_and_retention_are_checked_against_each_other(rest: Rest, namespace: str) -> None:
    base = f"{N}/{namespace}"
    assert rest.expect("GET", f"{base}/backlogQuotaMap") == {}
    quota = {"limitSize": 1_000_000, "policy": "producer_request_hold"}
    rest.expect("POST", f"{base}/backlogQuota", quota)
    shown = {"limit": 1_000_000, "limitSize": 1_000_000, "limitTime": 0, "policy": "producer_request_hold"}
    assert rest.expect("GET", f"{base}/backlogQuotaMap") == {"destination_storage": shown}
    assert rest.call("POST", f"{base}/backlogQuota", {"limitSize": 1})[0] == 400
    assert rest.call("POST", f"{base}/backlogQuota", {**quota, "policy": "zzz"})[0] == 400
    assert rest.call("POST", f"{base}/backlogQuota?backlogQuotaType=zzz", quota)[0] == 400
    rest.expect("POST", f"{base}/retention", {"retentionTimeInMinutes": 10, "retentionSizeInMB": 1})
    too_large = {**quota, "limitSize": 2 * 1024 * 1024}
    assert rest.call("POST", f"{base}/backlogQuota", too_large)[0] == 412
    rest.expect("DELETE", f"{base}/retention")
    rest.expect("POST", f"{base}/backlogQuota", too_large)
    assert rest.call("POST", f"{base}/retention", {"retentionTimeInMinutes": 10, "retentionSizeInMB": 1})[0] == 412
    rest.expect("DELETE", f"{base}/backlogQuota")
    assert rest.expect("GET", f"{base}/backlogQuotaMap") == {}


def test_properties_of_a_namespace(rest: Rest, namespace: str, broker: BrokerProcess) -> None:
    base = f"{N}/{namespace}"
    assert rest.expect("GET", f"{base}/properties") == {}
    rest.expect("PUT", f"{base}/properties", {"a": "1"})
    rest.expect("PUT", f"{base}/properties", {"b": "2"})
    rest.expect("PUT", f"{base}/property/c/3")
    assert rest.expect("GET", f"{base}/properties") == {"a": "1", "b": "2", "c": "3"}
    with urllib.request.urlopen(f"{broker.http_url}{base}/property/c", timeout=30) as answer:
        assert answer.read() == b"3"
    assert rest.call("DELETE", f"{base}/property/c") == (200, 3)
    assert rest.call("GET", f"{base}/property/c") == (200, None)
    assert rest.call("PUT", f"{base}/properties", {"a": 1})[0] == 400
    rest.expect("DELETE", f"{base}/properties")
    assert rest.expect("GET", f"{base}/properties") == {}


def test_clusters(rest: Rest, namespace: str, broker: BrokerProcess) -> None:
    name = f"c-{uuid.uuid4().hex[:8]}"
    path = f"/admin/v2/clusters/{name}"
    assert "standalone" in rest.expect("GET", "/admin/v2/clusters")
    assert rest.expect("GET", "/admin/v2/clusters/standalone")["brokerServiceUrl"] == broker.service_url
    assert rest.call("PUT", path)[0] == 400
    assert rest.call("POST", path, {})[0] == 404
    assert rest.call("PUT", path, {"serviceUrl": "http://x:1"}) == (200, None)
    assert rest.call("PUT", path, {})[0] == 409
    assert rest.call("POST", path, {"serviceUrl": "http://y:1"}) == (200, None)
    assert rest.expect("GET", path)["serviceUrl"] == "http://y:1"
    assert rest.call("PUT", "/admin/v2/clusters/bad!", {})[0] == 412
    tenant = f"t-{uuid.uuid4().hex[:8]}"
    rest.expect("PUT", f"/admin/v2/tenants/{tenant}", {"allowedClusters": ["standalone", name]})
    assert rest.call("DELETE", path)[0] == 412, "a tenant names it"
    rest.expect("POST", f"/admin/v2/tenants/{tenant}", {"allowedClusters": ["standalone"], "adminRoles": ["r"]})
    assert rest.expect("GET", f"/admin/v2/tenants/{tenant}") == {
        "adminRoles": ["r"],
        "allowedClusters": ["standalone"],
    }
    assert rest.call("POST", f"{N}/{namespace}/replication", [name])[0] == 403
    assert rest.call("POST", f"{N}/{namespace}/replication", [])[0] == 412
    assert rest.call("POST", f"{N}/{namespace}/replication", ["standalone"]) == (200, None)
    assert rest.call("PUT", "/admin/v2/tenants/zz1", {"allowedClusters": ["zzz"]})[0] == 412
    assert rest.call("PUT", "/admin/v2/tenants/zz1", {"allowedClusters": []})[0] == 412
    assert rest.call("DELETE", path)[0] == 204
    assert rest.call("DELETE", "/admin/v2/clusters/standalone")[0] == 412
    assert rest.call("DELETE", f"/admin/v2/tenants/{tenant}?force=true")[0] == 405
    assert rest.call("DELETE", f"/admin/v2/tenants/{tenant}")[0] == 204


def test_bundles(rest: Rest, namespace: str, client: pulsar.Client, broker: BrokerProcess) -> None:
    base, topic = f"{N}/{namespace}", f"persistent://{namespace}/t"
    producer = client.create_producer(topic)
    path = f"/lookup/v2/topic/persistent/{namespace}/t/bundle"
    with urllib.request.urlopen(broker.http_url + path, timeout=30) as answer:
        bundle = answer.read().decode()
    assert rest.call("PUT", f"{base}/{bundle}/unload")[0] == 204
    producer.send(b"comes back")
    assert rest.call("PUT", f"{base}/{bundle}/split")[0] == 204
    assert rest.expect("GET", f"{base}/bundles")["numBundles"] == 5
    assert rest.call("PUT", f"{base}/{bundle}/split")[0] == 412
    assert rest.call("PUT", f"{base}/zzz/unload")[0] == 412
    assert rest.call("PUT", f"{base}/unload")[0] == 204
    producer.send(b"and again")


def test_calls_for_all_topics_of_a_namespace(rest: Rest, namespace: str, client: pulsar.Client) -> None:
    topics = [f"persistent://{namespace}/{local}" for local in "ab"]
    for topic in topics:
        client.subscribe(topic, "s", initial_position=EARLIEST).close()
        client.create_producer(topic).send(b"x")
    client.subscribe(topics[0], "only-here").close()
    base = f"{N}/{namespace}"
    assert rest.call("POST", f"{base}/clearBacklog/only-here")[0] == 204
    assert rest.call("POST", f"{base}/clearBacklog")[0] == 204
    assert [rest.stats(topic)["subscriptions"]["s"]["msgBacklog"] for topic in topics] == [0, 0]
    held = client.subscribe(topics[1], "s")
    assert rest.call("POST", f"{base}/unsubscribe/s")[0] == 412
    held.close()
    assert rest.call("POST", f"{base}/unsubscribe/s")[0] == 204
    assert rest.expect("GET", f"{topic_path(topics[0])}/subscriptions") == ["only-here"]


def test_properties_of_topics(rest: Rest, namespace: str) -> None:
    plain, parent = (topic_path(f"persistent://{namespace}/{local}") for local in ("plain", "parent"))
    rest.expect("PUT", plain, {"a": "1"})
    rest.expect("PUT", f"{parent}/partitions", {"partitions": 2, "properties": {"a": "1"}})
    for path in (plain, parent):
        rest.expect("PUT", f"{path}/properties", {"b": "2"})
        assert rest.expect("GET", f"{path}/properties") == {"a": "1", "b": "2"}
        assert rest.call("DELETE", f"{path}/properties")[0] == 400
        rest.expect("DELETE", f"{path}/properties?key=a")
        assert rest.expect("GET", f"{path}/properties") == {"b": "2"}
    assert rest.expect("GET", f"{parent}/partitions") == {"partitions": 2, "deleted": False, "properties": {"b": "2"}}
    rest.expect("POST", f"{parent}/partitions", 3)
    assert rest.expect("GET", f"{parent}/properties") == {"b": "2"}


def raw(broker: BrokerProcess, path: str) -> tuple[int, bytes, dict[str, str]]:
    try:
        with urllib.request.urlopen(broker.http_url + path, timeout=30) as answer:
            return answer.status, answer.read(), dict(answer.headers)
    except urllib.error.HTTPError as error:
        return error.code, error.read(), dict(error.headers)


def test_single_messages(rest: Rest, topic: str, client: pulsar.Client, broker: BrokerProcess) -> None:
    path = topic_path(topic)
    client.subscribe(topic, "s", initial_position=EARLIEST).close()
    producer = client.create_producer(topic, producer_name="prod", batching_enabled=False)
    began = int(time.time() * 1000)
    ids = [
        producer.send(value, partition_key="k", properties={"é": "1"}, event_timestamp=began) for value in payloads(3)
    ]
    status, body, headers = raw(broker, f"{path}/subscription/s/position/2")
    assert (status, body) == (200, b"m-00001")
    assert headers["X-Pulsar-Message-ID"] == f"{ids[1].ledger_id()}:{ids[1].entry_id()}"
    assert headers["X-Pulsar-producer-name"] == "prod" and headers["X-Pulsar-partition-key"] == "k"
    assert json.loads(headers["X-Pulsar-PROPERTY"]) == {"é": "1"}
    assert headers["X-Pulsar-publish-time"].endswith("Z") and "X-Pulsar-event-time" in headers
    assert [raw(broker, f"{path}/subscription/s/position/{n}")[0] for n in (0, 4, 10**30)] == [404, 404, 400]
    assert raw(broker, f"{path}/subscription/none/position/1")[0] == 404
    assert rest.expect("GET", f"{path}/subscriptions") == ["s"], "a peek creates no subscription"
    entry = f"{path}/ledger/{ids[2].ledger_id()}/entry"
    assert raw(broker, f"{entry}/{ids[2].entry_id()}")[1] == b"m-00002"
    assert raw(broker, f"{entry}/99")[0] == raw(broker, f"{path}/ledger/999999/entry/0")[0] == 404
    assert raw(broker, f"{path}/examinemessage")[1] == b"m-00002"
    assert raw(broker, f"{path}/examinemessage?initialPosition=earliest&messagePosition=2")[1] == b"m-00001"
    assert raw(broker, f"{path}/examinemessage?messagePosition=99")[1] == b"m-00000"
    assert raw(broker, f"{path}/examinemessage?initialPosition=zzz")[0] == 400
    last = rest.expect("GET", f"{path}/lastMessageId")
    assert (last["ledgerId"], last["entryId"]) == (ids[2].ledger_id(), ids[2].entry_id())
    first = rest.expect("GET", f"{path}/messageid/{began - 1000}")
    assert (first["ledgerId"], first["entryId"]) == (ids[0].ledger_id(), ids[0].entry_id())
    assert rest.expect("GET", f"{path}/messageid/0")["entryId"] == -1
    assert rest.call("GET", f"{path}/messageid/abc")[0] == 400


def test_stats_of_a_topic(rest: Rest, topic: str, client: pulsar.Client) -> None:
    path = topic_path(topic)
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    ids = send_all(client.create_producer(topic, batching_enabled=False), payloads(4))
    size = rest.expect("PUT", f"{path}/backlogSize", {"ledgerId": -1, "entryId": -1})
    assert size > 0
    half = {"ledgerId": ids[1].ledger_id(), "entryId": ids[1].entry_id()}
    assert rest.expect("PUT", f"{path}/backlogSize", half) == size // 2
    assert rest.call("PUT", f"{path}/backlogSize")[0] == 400
    stats = rest.expect("GET", f"{path}/stats?getEarliestTimeInBacklog=true")
    assert stats["backlogSize"] == stats["storageSize"] == size and stats["publishers"][0]["accessMode"] == "Shared"
    assert stats["subscriptions"]["s"]["earliestMsgPublishTimeInBacklog"] > 0
    lean = rest.expect("GET", f"{path}/stats?excludePublishers=true&excludeConsumers=true")
    assert lean["publishers"] == lean["subscriptions"]["s"]["consumers"] == []
    info = rest.expect("GET", f"{path}/internal-info")
    assert [one["ledgerId"] for one in info["ledgers"]] == [ids[0].ledger_id()] and set(info["cursors"]) == {"s"}
    assert rest.expect("GET", f"{path}/backlog")["messageBacklog"] == 4
    assert rest.call("GET", f"{path}/stats?excludePublishers=maybe")[0] == 400
    consumer.close()


def test_maintenance_of_a_topic(rest: Rest, topic: str, client: pulsar.Client) -> None:
    path = topic_path(topic)
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    producer = client.create_producer(topic, batching_enabled=False)
    send_all(producer, payloads(3))
    assert rest.call("PUT", f"{path}/unload")[0] == 204
    producer.send(b"after")
    assert len(receive_data(consumer, 4, ack=False)) == 4
    assert rest.call("DELETE", f"{path}/truncate")[0] == 204
    assert rest.stats(topic)["subscriptions"]["s"]["msgBacklog"] == 0
    eventually(lambda: rest.expect("GET", f"{path}/internalStats")["numberOfEntries"] == 0)
    producer.send(b"more")
    receive_data(consumer, 1)
    for call in (("PUT", "unload"), ("POST", "trim"), ("DELETE", "truncate"), ("GET", "internal-info")):
        assert rest.call(call[0], f"{path}-none/{call[1]}")[0] == 404


def test_partitioned_topics(rest: Rest, namespace: str, client: pulsar.Client) -> None:
    topic = f"persistent://{namespace}/parts"
    path = topic_path(topic)
    rest.expect("PUT", f"{path}/partitions", 2)
    assert rest.call("PUT", f"{path}/subscription/s", "earliest")[0] == 204
    assert rest.call("PUT", f"{path}/subscription/s")[0] == 409
    assert rest.expect("GET", f"{path}/subscriptions") == ["s"]
    producer = client.create_producer(topic)
    send_all(producer, payloads(6))
    both = rest.expect("GET", f"{path}/partitioned-internalStats")
    assert both["metadata"]["partitions"] == 2 and len(both["partitions"]) == 2
    assert len(rest.expect("GET", f"{path}/internal-info")["partitions"]) == 2
    assert rest.expect("GET", f"{path}/partitioned-stats")["subscriptions"]["s"]["msgBacklog"] == 6
    assert rest.call("POST", f"{path}/subscription/s/skip_all")[0] == 204
    assert rest.expect("GET", f"{path}/partitioned-stats")["subscriptions"]["s"]["msgBacklog"] == 0
    assert rest.call("POST", f"{path}/subscription/s/resetcursor/0")[0] == 204
    assert rest.expect("GET", f"{path}/partitioned-stats")["subscriptions"]["s"]["msgBacklog"] == 6
    for verb, call in (
        ("POST", "subscription/s/skip/1"),
        ("POST", "subscription/s/analyzeBacklog"),
        ("GET", "lastMessageId"),
        ("GET", "messageid/0"),
        ("GET", "examinemessage"),
        ("GET", "subscription/s/position/1"),
    ):
        assert rest.call(verb, f"{path}/{call}")[0] == 405, call
    assert rest.call("DELETE", f"{path}/subscription/s")[0] == 204
    ended = rest.expect("POST", f"{path}/terminate/partitions")
    assert set(ended) == {"0", "1"}


def test_subscription_seek_skip_and_peek(rest: Rest, topic: str, client: pulsar.Client) -> None:
    one = f"{topic_path(topic)}/subscription/s"
    assert rest.call("PUT", one, "earliest")[0] == 204, "creates the topic, too"
    assert rest.call("PUT", f"{topic_path(topic)}/subscription/x", "58:0:-1")[0] == 400
    producer = client.create_producer(topic, batching_enabled=False)
    ids = send_all(producer, payloads(6))
    at = [{"ledgerId": each.ledger_id(), "entryId": each.entry_id()} for each in ids]

    def backlog() -> int:
        return int(rest.stats(topic)["subscriptions"]["s"]["msgBacklog"])

    assert rest.call("POST", f"{one}/skip/2")[0] == 204 and backlog() == 4
    assert rest.call("POST", f"{one}/skip/0")[0] == 204 and backlog() == 4
    assert rest.call("POST", f"{one}/resetcursor", at[1])[0] == 204 and backlog() == 5
    assert rest.call("POST", f"{one}/resetcursor", {**at[1], "excluded": True})[0] == 204 and backlog() == 4
    assert rest.call("POST", f"{one}/resetcursor", "latest")[0] == 204 and backlog() == 0
    assert rest.call("POST", f"{one}/resetcursor", "earliest")[0] == 204 and backlog() == 6
    assert rest.call("POST", f"{one}/resetcursor")[0] == 400
    assert rest.call("POST", f"{one}/resetcursor/abc")[0] == 400
    assert rest.call("POST", f"{one}/expireMessages", at[0])[0] == 204 and backlog() == 5
    assert rest.call("POST", f"{one}/expireMessages", {"ledgerId": 10**9, "entryId": 0})[0] == 409
    assert rest.call("POST", f"{one}/expireMessages/1000")[0] == 409
    found = rest.expect("POST", f"{one}/analyzeBacklog")
    assert (found["entries"], found["messages"], found["aborted"]) == (5, 5, False)
    assert found["firstMessageId"] == f"{ids[1].ledger_id()}:{ids[1].entry_id()}"
    eventually(lambda: rest.call("POST", f"{one}/expireMessages/0")[0] == 204 and backlog() == 0)
    assert rest.stats(topic)["subscriptions"]["s"]["totalMsgExpired"] == 6
    assert rest.call("POST", f"{topic_path(topic)}/all_subscription/expireMessages/0")[0] == 204
    assert rest.expect("GET", f"{one}/properties") == {}
    rest.expect("PUT", f"{one}/properties", {"a": "b"})
    rest.expect("PUT", f"{one}/properties", {"c": "d"})
    assert rest.expect("GET", f"{one}/properties") == {"c": "d"}
    assert rest.expect("GET", f"{one}/replicatedSubscriptionStatus") == {topic: False}
    for verb, call in (("POST", "skip/1"), ("POST", "skip_all"), ("GET", "properties"), ("POST", "resetcursor/0")):
        assert rest.call(verb, f"{topic_path(topic)}/subscription/none/{call}")[0] == 404
    assert rest.call("PUT", f"{topic_path(topic).replace('/persistent/', '/non-persistent/')}/subscription/s")[0] == 400
