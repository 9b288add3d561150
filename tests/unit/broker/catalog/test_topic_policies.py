"""The table of topic policies, and records merged topic > global > namespace > broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import anabranch
from anabranch.admin.paths import TOPIC_POLICIES as NAMES_OF_THE_CLIENT
from anabranch.admin.paths import topic_policy_query, topic_policy_setter
from anabranch.broker.admin.namespace_rules import ScalableRules
from anabranch.broker.catalog.catalog import Catalog, NamespacePolicies
from anabranch.broker.catalog.policies import Policies, Retention
from anabranch.broker.catalog.topic_policies import BY_PATH, TOPIC_POLICIES, Defaults, TopicPolicy
from anabranch.broker.catalog.topic_policy_records import (
    Level,
    TopicOverrides,
    namespace_at,
    topic_policies_key,
)
from anabranch.broker.schemas.policy import SchemaPolicy
from anabranch.broker.schemas.settings import SchemaSettings
from anabranch.broker.settings import BrokerSettings
from anabranch.metadata.memory.store import MemoryStore
from anabranch.model.errors import NotAllowed
from anabranch.model.names import SegmentDescriptor, TopicName
from anabranch.runtime.clock import SystemClock

SOURCES = Path(anabranch.__file__).parent
TOPIC = TopicName.parse("persistent://t/n/a/b")
RATE = {"dispatchThrottlingRateInMsg": 7, "ratePeriodInSecond": 1}


def test_regular_partitioned_and_scalable_topic_of_a_name_share_a_key() -> None:
    key = "/topic-policies/t/n/persistent/a%2Fb"
    segment = TOPIC.scalable.segment_name(SegmentDescriptor(0, 0xFFFF, 3))
    for name in (TOPIC, TOPIC.partition(4), TOPIC.scalable, segment):
        assert topic_policies_key(name) == key
    assert namespace_at(key) == "t/n"
    assert topic_policies_key(TopicName.parse("non-persistent://t/n/x")) == "/topic-policies/t/n/non-persistent/x"


@pytest.mark.parametrize("policy", TOPIC_POLICIES, ids=lambda policy: policy.path)
def test_row_names_an_existing_module_and_has_a_summary(policy: TopicPolicy) -> None:
    assert policy.rule.summary
    assert not policy.enforced_by or (SOURCES / policy.enforced_by).is_file()
    assert policy.enforced_by or "stored only" in policy.rule.summary


@pytest.mark.parametrize("policy", TOPIC_POLICIES, ids=lambda policy: policy.path)
def test_page_of_topic_policies_states_what_is_enforced(policy: TopicPolicy) -> None:
    page = (SOURCES.parents[1] / "docs/operations/topic-policies.md").read_text().splitlines()
    [row] = [line.split("|") for line in page if line.startswith(f"| `{policy.path}` |")]
    state = {True: "enforced", False: "stored only"}
    assert row[2].split() == ["GET", policy.rule.verb, "DELETE"]
    assert row[3].strip() == state[policy.is_enforced]
    assert row[4].strip() == state[policy.is_enforced and policy.on_segments]


def test_admin_client_knows_every_row_and_how_it_is_set() -> None:
    assert {*NAMES_OF_THE_CLIENT, "{subscription}/dispatchRate"} == BY_PATH.keys()
    for name in NAMES_OF_THE_CLIENT:
        assert topic_policy_setter(name) == BY_PATH[name].rule.verb
        assert bool(topic_policy_query(name, 1)) == bool(BY_PATH[name].query)


def test_levels_resolve_topic_then_global_then_namespace_then_broker() -> None:
    policy, defaults = BY_PATH["maxUnackedMessagesOnConsumer"], Defaults(BrokerSettings(unacked_per_consumer_max=9))
    key = policy.rule.key
    namespace: dict[str, Any] = {key: 3}
    for overrides, record, expected in (
        (TopicOverrides({key: 1}, {key: 2}), namespace, (1, Level.TOPIC)),
        (TopicOverrides({}, {key: 2}), namespace, (2, Level.GLOBAL)),
        (TopicOverrides(), namespace, (3, Level.NAMESPACE)),
        (TopicOverrides(), {}, (9, Level.BROKER)),
    ):
        assert policy.resolve(overrides, record, defaults) == expected
        merged = Policies.of(overrides.over(record), defaults.broker)
        assert merged.unacked_per_consumer_max == expected[0], "what is shown is what is in force"


def test_zero_of_a_topic_lifts_the_limit_of_its_namespace() -> None:
    overrides = TopicOverrides({"max_producers_per_topic": 0})
    assert Policies.of(overrides.over({"max_producers_per_topic": 5}), BrokerSettings()).producers_max == 0


def test_empty_list_of_a_topic_leaves_the_types_of_its_namespace() -> None:
    overrides = TopicOverrides({"subscription_types_enabled": []})
    assert overrides.over({"subscription_types_enabled": ["Shared"]}) == {"subscription_types_enabled": ["Shared"]}


def test_undefined_strategy_leaves_the_one_of_the_namespace() -> None:
    policy = BY_PATH["schemaCompatibilityStrategy"]
    overrides, key = TopicOverrides({policy.rule.key: "UNDEFINED"}), policy.rule.key
    assert policy.resolve(overrides, {key: "BACKWARD"}, Defaults()) == ("BACKWARD", Level.NAMESPACE)
    assert overrides.over({key: "BACKWARD"}) == {key: "BACKWARD"}


def test_validation_that_the_broker_enforces_is_not_switched_off() -> None:
    policy, forced = BY_PATH["schemaValidationEnforced"], Defaults(schema_validation=True)
    off = TopicOverrides({policy.rule.key: False})
    assert policy.resolve(off, {}, forced) == (True, Level.BROKER)
    assert SchemaPolicy.of(off.over({}), SchemaSettings(validation_enforced=True)).validation_enforced
    assert policy.resolve(off, {policy.rule.key: True}, Defaults()) == (False, Level.TOPIC)


def test_maps_are_merged_entry_by_entry() -> None:
    overrides = TopicOverrides({"backlog_quota_map": {"message_age": {"limitTime": 1}}})
    namespace = {"backlog_quota_map": {"message_age": {"limitTime": 9}, "destination_storage": {"limitSize": 2}}}
    merged = {"message_age": {"limitTime": 1}, "destination_storage": {"limitSize": 2}}
    assert overrides.over(namespace)["backlog_quota_map"] == merged
    assert BY_PATH["backlogQuotaMap"].resolve(overrides, namespace, Defaults()) == (merged, Level.TOPIC)


def test_time_based_policies_of_a_topic_reach_the_policies_in_force() -> None:
    overrides = TopicOverrides(
        {
            "subscription_expiration_time_minutes": 4,
            "deduplicationSnapshotIntervalSeconds": 5,
            "subscriptionDispatchRates": {"s": RATE},
        }
    )
    found = Policies.of(overrides.over({}), BrokerSettings())
    assert (found.subscription_expires_minutes, found.dedup_snapshot_seconds) == (4, 5)
    assert found.dispatch_rate_of("s").messages == 7
    assert not found.dispatch_rate_of("other").is_limited


async def test_last_policy_removed_deletes_the_record() -> None:
    async with MemoryStore(SystemClock()) as store:
        records = Catalog(store, BrokerSettings()).topic_policies
        await records.change(TOPIC, lambda before: before.with_part({"a": 1}, is_global=True))
        assert await records.of(TOPIC.partition(2)) == TopicOverrides({}, {"a": 1})
        assert (await records.of_namespace("t/n", [TOPIC.partition(0)])).keys() == {topic_policies_key(TOPIC)}
        assert await records.of_namespace("t/n", []) == {}
        await records.change(TOPIC, lambda before: before.with_part({}, is_global=True))
        assert await store.children("/topic-policies/t/n") == []
        await records.forget(TOPIC)  # safe to repeat


async def test_concurrent_changes_are_both_kept() -> None:
    async with MemoryStore(SystemClock()) as store:
        records = Catalog(store, BrokerSettings()).topic_policies
        other = Catalog(store, BrokerSettings()).topic_policies
        raced = False

        def change(before: TopicOverrides) -> TopicOverrides:
            return before.with_part({**before.local, "mine": 1}, is_global=False)

        get = store.get

        async def get_then_race(key: str) -> Any:
            nonlocal raced
            found = await get(key)
            if not raced:
                raced = True
                await other.change(TOPIC, lambda before: before.with_part({"theirs": 2}, is_global=False))
            return found

        store.get = get_then_race  # type: ignore[method-assign]  # a race at a known moment
        await records.change(TOPIC, change)
        assert (await records.of(TOPIC)).local == {"mine": 1, "theirs": 2}


def test_retention_not_above_the_quota_in_force_is_refused() -> None:
    record = {"backlog_quota_map": {"destination_storage": {"limitSize": 20 << 20}}}
    with pytest.raises(NotAllowed, match="for topic"):
        BY_PATH["retention"].parsed({"retentionTimeInMinutes": 5, "retentionSizeInMB": 20}, None, record)


def test_default_retention_depends_on_the_kind_of_topic() -> None:
    defaults = Defaults(segment_retention=Retention(60_000, -1))
    scalable = Defaults(segment_retention=Retention(60_000, -1), is_scalable=True)
    assert BY_PATH["retention"].default(defaults) == {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
    assert BY_PATH["retention"].default(scalable) == {"retentionTimeInMinutes": 1, "retentionSizeInMB": -1}


async def test_controller_learns_the_retention_of_the_topic() -> None:
    class OnlyCatalog:
        def __init__(self, catalog: Catalog) -> None:
            self.catalog = catalog

    async with MemoryStore(SystemClock()) as store:
        catalog = Catalog(store, BrokerSettings())
        await catalog.ensure_defaults()
        topic = TopicName.parse("topic://public/default/x")
        rules = ScalableRules(lambda: OnlyCatalog(catalog), None, 1)  # type: ignore[arg-type, return-value]
        assert await rules.retention(topic) is None

        def kept(minutes: int) -> dict[str, Any]:
            return {"retention_policies": {"retentionTimeInMinutes": minutes, "retentionSizeInMB": 1}}

        await catalog.change_policies("public/default", lambda _: NamespacePolicies.of(kept(5)))
        assert await rules.retention(topic) == (5, 1)
        await catalog.topic_policies.change(topic, lambda before: before.with_part(kept(7), is_global=False))
        assert await rules.retention(topic) == (7, 1)
