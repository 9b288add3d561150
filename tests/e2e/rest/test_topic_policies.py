"""Policies of single topics over HTTP: one contract for every row of the table, on three kinds of topics."""

from __future__ import annotations

import urllib.request
import uuid
from typing import Any

import pytest

from anabranch.broker.catalog.topic_policies import BY_PATH, TOPIC_POLICIES, TopicPolicy
from tests.support.processes.broker_process import BrokerProcess
from tests.support.traffic.stock_calls import Rest

KINDS = ("regular", "partitioned", "scalable")
RATE = {
    "dispatchThrottlingRateInMsg": 100,
    "dispatchThrottlingRateInByte": 2048,
    "relativeToPublishRate": False,
    "ratePeriodInSecond": 1,
}
GOOD: dict[str, Any] = {
    "retention": {"retentionTimeInMinutes": 10, "retentionSizeInMB": 100},
    "messageTTL": 3600,
    "backlogQuotaMap": {"limit": 9000, "limitSize": 9000, "limitTime": 0, "policy": "producer_exception"},
    "publishRate": {"publishThrottlingRateInMsg": 10, "publishThrottlingRateInByte": 1000},
    "dispatchRate": RATE,
    "subscriptionDispatchRate": RATE,
    "replicatorDispatchRate": RATE,
    "{subscription}/dispatchRate": RATE,
    "subscribeRate": {"subscribeThrottlingRatePerConsumer": 10, "ratePeriodInSecond": 30},
    "deduplicationEnabled": True,
    "inactiveTopicPolicies": {
        "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
        "maxInactiveDurationSeconds": 3600,
        "deleteWhileInactive": True,
    },
    "delayedDelivery": {"tickTime": 2000, "active": True, "maxDeliveryDelayInMillis": 5000},
    "maxMessageSize": 10_000,
    "persistence": {
        "bookkeeperEnsemble": 3,
        "bookkeeperWriteQuorum": 2,
        "bookkeeperAckQuorum": 2,
        "managedLedgerMaxMarkDeleteRate": 0.5,
    },
    "subscriptionTypesEnabled": ["Exclusive", "Shared"],
    "schemaCompatibilityStrategy": "BACKWARD",
    "schemaValidationEnforced": True,
    "autoSubscriptionCreation": {"allowAutoSubscriptionCreation": False},
    "dispatcherPauseOnAckStatePersistent": True,
    "offloadPolicies": {"managedLedgerOffloadThresholdInBytes": 1000},
    "entryFilters": {"entryFilterNames": "a,b"},
    "replication": ["standalone"],
}
"""A value per policy; limits not named here take 5."""
OUT_OF_BOUNDS: dict[str, Any] = {
    "messageTTL": -1,
    "publishRate": {"publishThrottlingRateInMsg": -2},
    "subscribeRate": {"subscribeThrottlingRatePerConsumer": -2},
    "inactiveTopicPolicies": {"maxInactiveDurationSeconds": -1},
    "delayedDelivery": {"tickTime": -1, "active": True},
    "maxMessageSize": 1 << 40,
    "entryFilters": {"entryFilterNames": "a,,b"},
    "replication": [],
    **{path: {"dispatchThrottlingRateInMsg": -2} for path, value in GOOD.items() if value is RATE},
}
MALFORMED: dict[str, Any] = {
    "retention": {"retentionTimeInMinutes": -2, "retentionSizeInMB": 1},  # 400, as of a namespace
    "backlogQuotaMap": {"limitSize": 1, "policy": "zzz"},
    "deduplicationEnabled": "yes",
    "persistence": {"bookkeeperEnsemble": 1, "bookkeeperWriteQuorum": 2, "bookkeeperAckQuorum": 1},
    "subscriptionTypesEnabled": ["zzz"],
    "schemaCompatibilityStrategy": "zzz",
    "schemaValidationEnforced": 1,
    "autoSubscriptionCreation": {},
    "dispatcherPauseOnAckStatePersistent": "no",
    "offloadPolicies": [],
}
NAMES = sorted(BY_PATH)


def good(policy: TopicPolicy) -> Any:
    return GOOD.get(policy.path, 5)


class Topic:
    """One topic of any kind, and its policies over HTTP."""

    def __init__(self, broker: BrokerProcess, kind: str) -> None:
        self.http_url = broker.http_url
        self.rest = rest = Rest(broker.http_url)
        self.namespace = f"public/tp-{uuid.uuid4().hex[:10]}"
        rest.expect("PUT", f"/admin/v2/namespaces/{self.namespace}")
        self.path = f"/admin/v2/{'topic' if kind == 'scalable' else 'persistent'}/{self.namespace}/t"
        self.kind = kind
        self.create()

    def create(self) -> None:
        match self.kind:
            case "regular":
                self.rest.expect("PUT", self.path)
            case "partitioned":
                self.rest.expect("PUT", f"{self.path}/partitions", 3)
            case _:
                self.rest.expect("PUT", f"/admin/v2/scalable/{self.namespace}/t?numInitialSegments=2")

    def delete(self) -> None:
        match self.kind:
            case "regular":
                self.rest.expect("DELETE", self.path)
            case "partitioned":
                self.rest.expect("DELETE", f"{self.path}/partitions")
            case _:
                self.rest.expect("DELETE", f"/admin/v2/scalable/{self.namespace}/t")

    def url(self, policy: TopicPolicy, query: str = "") -> str:
        return f"{self.path}/{policy.path.format(subscription='s')}{query}"

    def change_url(self, policy: TopicPolicy, query: str = "") -> str:
        return f"{self.path}/{policy.entries_path}{query}" if policy.entries_path else self.url(policy, query)

    def set(self, policy: TopicPolicy, value: Any, query: str = "") -> None:
        if policy.query:
            query = f"{query}{'&' if query else '?'}{policy.query}={value}"
            self.rest.expect(policy.rule.verb, self.change_url(policy, query))
        else:
            self.rest.expect(policy.rule.verb, self.change_url(policy, query), value)

    def get(self, policy: TopicPolicy, query: str = "") -> Any:
        found = self.rest.expect("GET", self.url(policy, query))
        return found.get("destination_storage") if policy.entries_path and found else found

    def level(self, policy: TopicPolicy) -> str:
        with urllib.request.urlopen(f"{self.http_url}{self.url(policy, '?applied=true')}", timeout=10) as answer:
            return str(answer.headers["X-Anabranch-Policy-Level"])

    def refused(self, verb: str, url: str, value: Any = None) -> int:
        status, answer = self.rest.call(verb, url, value)
        assert status >= 400 and answer["reason"], answer
        return status


@pytest.fixture(params=KINDS)
def topic(broker: BrokerProcess, request: pytest.FixtureRequest) -> Topic:
    return Topic(broker, request.param)


@pytest.mark.parametrize("name", NAMES)
def test_policy_is_set_shown_applied_and_removed(topic: Topic, name: str) -> None:
    policy, value = BY_PATH[name], good(BY_PATH[name])
    unset = policy.rule.unset or None
    assert (topic.get(policy) or None) == unset
    default = topic.get(policy, "?applied=true")
    assert topic.level(policy) == "broker"
    topic.set(policy, value)
    assert topic.get(policy) == value
    assert topic.get(policy, "?applied=true") == value
    assert topic.level(policy) == "topic"
    assert (topic.get(policy, "?isGlobal=true") or None) == unset, "the global part is separate"
    topic.rest.expect("DELETE", topic.change_url(policy))
    assert (topic.get(policy) or None) == unset
    assert topic.get(policy, "?applied=true") == default


@pytest.mark.parametrize("name", NAMES)
def test_global_policy_is_applied_until_the_topic_sets_its_own(topic: Topic, name: str) -> None:
    policy, value = BY_PATH[name], good(BY_PATH[name])
    topic.set(policy, value, "?isGlobal=true")
    assert topic.get(policy, "?isGlobal=true") == value
    assert topic.get(policy, "?applied=true") == value
    assert topic.level(policy) == "topic-global"
    assert (topic.get(policy) or None) == (policy.rule.unset or None)
    topic.set(policy, value)
    assert topic.level(policy) == "topic"
    topic.rest.expect("DELETE", topic.change_url(policy, "?isGlobal=true"))
    assert topic.get(policy) == value


@pytest.mark.parametrize("name", NAMES)
def test_bad_value_is_refused_and_changes_nothing(topic: Topic, name: str) -> None:
    policy = BY_PATH[name]
    if name in MALFORMED:
        bad, status = MALFORMED[name], 400
    else:
        bad, status = OUT_OF_BOUNDS.get(name, -1), 412
    query, body = (f"?{policy.query}={bad}", None) if policy.query else ("", bad)
    assert topic.refused(policy.rule.verb, topic.change_url(policy, query), body) == status
    assert (topic.get(policy) or None) == (policy.rule.unset or None)


@pytest.mark.parametrize("name", NAMES)
def test_policy_of_missing_topic_is_not_found(broker: BrokerProcess, name: str) -> None:
    policy, missing = BY_PATH[name], Topic(broker, "regular")
    missing.delete()
    assert missing.refused("GET", missing.url(policy)) == 404
    query, body = (f"?{policy.query}={good(policy)}", None) if policy.query else ("", good(policy))
    assert missing.refused(policy.rule.verb, missing.change_url(policy, query), body) == 404
    assert missing.refused("DELETE", missing.change_url(policy)) == 404


@pytest.mark.parametrize("name", NAMES)
def test_policy_of_one_partition_is_refused(broker: BrokerProcess, name: str) -> None:
    policy, whole = BY_PATH[name], Topic(broker, "partitioned")
    whole.path += "-partition-0"
    assert whole.refused("GET", whole.url(policy)) == 412


def test_level_of_a_namespace_policy_is_the_namespace(topic: Topic) -> None:
    topic.rest.expect("POST", f"/admin/v2/namespaces/{topic.namespace}/maxProducersPerTopic", 7)
    assert topic.get(BY_PATH["maxProducers"]) is None
    assert topic.get(BY_PATH["maxProducers"], "?applied=true") == 7
    assert topic.level(BY_PATH["maxProducers"]) == "namespace"


def test_all_policies_are_shown_with_their_levels_and_unset_at_once(topic: Topic) -> None:
    for policy in TOPIC_POLICIES:
        topic.set(policy, good(policy))
    shown = topic.rest.expect("GET", f"{topic.path}/policies")
    assert shown.keys() == BY_PATH.keys()
    assert {one["level"] for one in shown.values()} == {"topic"}
    on_segments = {one.path for one in TOPIC_POLICIES if one.is_enforced and one.on_segments}
    enforced = on_segments if topic.kind == "scalable" else {one.path for one in TOPIC_POLICIES if one.is_enforced}
    assert {name for name, one in shown.items() if one["enforced"]} == enforced
    topic.rest.expect("DELETE", f"{topic.path}/policies")
    shown = topic.rest.expect("GET", f"{topic.path}/policies")
    assert {one["level"] for one in shown.values()} == {"broker"}


def test_topic_that_is_created_again_has_no_policies(topic: Topic) -> None:
    topic.set(BY_PATH["maxProducers"], 5)
    topic.delete()
    topic.create()
    assert topic.get(BY_PATH["maxProducers"]) is None


def test_retention_below_the_quota_of_the_topic_is_refused(topic: Topic) -> None:
    quota = {"limitSize": 50 << 20, "policy": "producer_exception"}
    topic.set(BY_PATH["backlogQuotaMap"], quota)
    small = {"retentionTimeInMinutes": 10, "retentionSizeInMB": 10}
    assert topic.refused("POST", topic.url(BY_PATH["retention"]), small) == 412


def test_quotas_of_topic_and_namespace_are_merged_by_type(topic: Topic) -> None:
    age = {"limitTime": 60, "policy": "consumer_backlog_eviction"}
    topic.rest.expect("POST", f"/admin/v2/namespaces/{topic.namespace}/backlogQuota?backlogQuotaType=message_age", age)
    topic.set(BY_PATH["backlogQuotaMap"], GOOD["backlogQuotaMap"])
    applied = topic.rest.expect("GET", f"{topic.path}/backlogQuotaMap?applied=true")
    assert applied.keys() == {"destination_storage", "message_age"}
