"""Policies as values, as rules and over time, on a manual clock."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from anabranch.broker.catalog import bundles
from anabranch.broker.catalog.catalog import NamespacePolicies
from anabranch.broker.catalog.policies import DeleteMode, InactiveRule, Policies, Quota, QuotaPolicy, Retention
from anabranch.broker.catalog.policy_fields import ALWAYS, BY_KEY, RULES, parse_record, shown_record
from anabranch.broker.errors import TooManyConsumers, TooManyProducers, TooManyTopics
from anabranch.broker.publish.sequence_ids import Sequences
from anabranch.broker.settings import BrokerSettings
from anabranch.broker.topic.backlog_quota import (
    Blocked,
    EvictOlderThan,
    EvictUpTo,
    bytes_after,
    check_age,
    check_size,
    position_leaving,
)
from anabranch.broker.topic.inactive_topics import is_eligible, should_delete
from anabranch.broker.topic.policy_limits import check_consumer, check_producer, check_subscription
from anabranch.broker.topic.topic import Topic
from anabranch.broker.topic_registry.unloaded_scan import LOADS_MAX, REVISIT_SECONDS, ScanHistory, needs_scan
from anabranch.model.errors import BadRequest, NotAllowed, TooManySubscriptions
from anabranch.model.names import TopicName
from anabranch.model.position import Position
from anabranch.model.subscription_type import SubscriptionType
from anabranch.storage.ledger.ledger_chain import ChainLedger
from tests.support.in_memory.broker import NAME, BrokerWorld

SETTINGS = BrokerSettings()


def of(**record: Any) -> Policies:
    return Policies.of(record, SETTINGS)


# -- values


def test_empty_record_means_broker_defaults() -> None:
    holds = of()
    assert holds == Policies(unacked_per_consumer_max=50_000, unacked_per_subscription_max=200_000)
    assert Policies.of({}, BrokerSettings(deduplication=True, auto_create_topics=False)) == Policies(
        deduplicate=True,
        auto_create_topics=False,
        unacked_per_consumer_max=50_000,
        unacked_per_subscription_max=200_000,
    )


def test_record_overrides_settings() -> None:
    holds = of(
        deduplicationEnabled=True,
        retention_policies={"retentionTimeInMinutes": 2, "retentionSizeInMB": -1},
        backlog_quota_map={
            "destination_storage": {"limitSize": 10, "limitTime": 0, "policy": "producer_exception"},
            "message_age": {"limitSize": 0, "limitTime": 7, "policy": "consumer_backlog_eviction"},
        },
        autoTopicCreationOverride={
            "allowAutoTopicCreation": True,
            "topicType": "partitioned",
            "defaultNumPartitions": 3,
        },
        subscription_types_enabled=["Shared"],
        max_unacked_messages_per_consumer=0,
        inactive_topic_policies={"deleteWhileInactive": True, "maxInactiveDurationSeconds": 9},
        replication_clusters=["elsewhere"],
    )
    assert holds.deduplicate and holds.retention == Retention(120_000, -1)
    assert holds.size_quota == Quota(10, QuotaPolicy.REFUSE) and holds.age_quota == Quota(7, QuotaPolicy.EVICT)
    assert holds.auto_create_partitions == 3 and holds.unacked_per_consumer_max == 0
    assert holds.subscription_types == {SubscriptionType.SHARED}
    assert holds.inactive == InactiveRule(DeleteMode.NO_SUBSCRIPTIONS, 9)
    assert not holds.is_local


def test_non_partitioned_type_overrides_broker_partitions() -> None:
    settings = BrokerSettings(auto_create_partitions=4)
    plain = {"autoTopicCreationOverride": {"allowAutoTopicCreation": True, "topicType": "non-partitioned"}}
    assert Policies.of(plain, settings).auto_create_partitions == 0
    assert Policies.of({}, settings).auto_create_partitions == 4


def test_every_policy_field_has_its_own_key() -> None:
    assert len({rule.key for rule in RULES}) == len({rule.path for rule in RULES}) == len(RULES)
    assert {rule.key for rule in RULES} <= set(BY_KEY)


def test_whole_records() -> None:
    assert parse_record({"max_producers_per_topic": "2", "unknown": 1, "properties": {}, "persistence": None}) == {
        "max_producers_per_topic": 2
    }
    with pytest.raises(NotAllowed):
        parse_record({"message_ttl_in_seconds": -1})
    with pytest.raises(BadRequest):
        parse_record({"subscription_types_enabled": ["zzz"]})
    assert shown_record({"message_ttl_in_seconds": 5}, {}) == {**ALWAYS, "bundles": {}, "message_ttl_in_seconds": 5}


# -- quotas


def ledger(number: int, entries: int, size: int, *, sealed: bool = True) -> ChainLedger:
    return ChainLedger(number, entries=entries, bytes=size, sealed=sealed)


CHAIN = [ledger(1, 10, 1_000), ledger(2, 10, 1_000), ledger(4, 5, 500, sealed=False)]


def test_bytes_behind_a_position() -> None:
    assert bytes_after(CHAIN, Position(-1, -1)) == 2_500
    assert bytes_after(CHAIN, Position(1, 4)) == 2_000
    assert bytes_after(CHAIN, Position(3, 7)) == 500
    assert bytes_after(CHAIN, Position(4, 4)) == 0
    assert bytes_after([ledger(1, 0, 0)], Position(-1, -1)) == 0


@pytest.mark.parametrize("left", [0, 1, 99, 500, 501, 1_500, 2_499])
def test_position_that_leaves_a_given_backlog(left: int) -> None:
    position = position_leaving(CHAIN, left)
    assert position is not None and bytes_after(CHAIN, position) <= left < bytes_after(CHAIN, position) + 101
    assert position_leaving(CHAIN, 2_500) is None


def test_verdicts() -> None:
    slowest = Position(1, 4)
    for policy in (QuotaPolicy.HOLD, QuotaPolicy.REFUSE):
        assert check_size(Quota(2_000, policy), CHAIN, slowest) is None
        assert isinstance(check_size(Quota(1_999, policy), CHAIN, slowest), Blocked)
        assert check_age(Quota(1, policy), 1_000) is None and check_age(Quota(1, policy), -1) is None
        assert isinstance(check_age(Quota(1, policy), 1_001), Blocked)
    assert check_size(Quota(1_000, QuotaPolicy.EVICT), CHAIN, slowest) == EvictUpTo(Position(2, 5))
    assert check_age(Quota(3, QuotaPolicy.EVICT), 3_001) == EvictOlderThan(3)


# -- limits


def test_limits() -> None:
    check_producer(Policies(), 10**6, NAME)
    with pytest.raises(TooManyProducers):
        check_producer(Policies(producers_max=2), 2, NAME)
    with pytest.raises(TooManyConsumers):
        check_consumer(Policies(consumers_max=2), 2, 0, NAME)
    with pytest.raises(TooManyConsumers):
        check_consumer(Policies(consumers_per_subscription_max=1), 1, 1, NAME)
    with pytest.raises(TooManySubscriptions):
        check_subscription(Policies(subscriptions_max=1), None, 1, NAME)
    with pytest.raises(NotAllowed):
        check_subscription(Policies(subscription_types=frozenset()), SubscriptionType.SHARED, None, NAME)


# -- bundles


def test_bundles() -> None:
    places = bundles.evenly(4)
    assert bundles.shown(bundles.evenly(7))["boundaries"][1] == "0x24924924"
    for text in ("persistent://public/default/a", "persistent://public/default/b"):
        span = bundles.parse_range(bundles.bundle_of(text, places), places)
        assert bundles.holds(span, text)
        assert sum(bundles.holds(one, text) for one in pairwise(places)) == 1
    assert bundles.split(places, (0, 0x40000000))[:3] == [0, 0x20000000, 0x40000000]
    bad: list[Any] = [{"boundaries": ["0x00000000"]}, {"boundaries": ["x"]}, {"numBundles": 10**9}, []]
    for wrong in bad:
        with pytest.raises(BadRequest):
            bundles.parse_bundles(wrong)
    for wrong_range in ("zzz", "0x0_0x1", "0x00000000_0x80000000"):
        with pytest.raises(NotAllowed):
            bundles.parse_range(wrong_range, places)


# -- inactive topics


def test_inactive_topics_are_deleted() -> None:
    rule = InactiveRule(DeleteMode.NO_SUBSCRIPTIONS, 10)
    assert (
        should_delete(rule, 10, 0, True)
        and not should_delete(rule, 9, 0, True)
        and not should_delete(rule, 99, 1, True)
    )
    rule = InactiveRule(DeleteMode.CAUGHT_UP, 10)
    assert should_delete(rule, 10, 3, True) and not should_delete(rule, 10, 3, False)
    assert not is_eligible(None, 0, True)
    assert needs_scan(Policies(ttl_seconds=1)) and not needs_scan(Policies())


def test_unloaded_scan_loads_each_topic_periodically() -> None:
    names = [TopicName.parse(f"t-{number}") for number in range(LOADS_MAX + 10)]
    history = ScanHistory()
    assert history.choose(names, 0.0) == names[:LOADS_MAX]
    assert history.choose(names, 1.0) == names[LOADS_MAX:]
    assert history.choose(names, 2.0) == []
    assert history.choose(names[:3], REVISIT_SECONDS) == names[:3]


# -- time-based policies


async def governed(world: BrokerWorld, **record: Any) -> Topic:
    """A topic whose namespace says this."""
    topic = await world.topic()
    await world.catalog.change_policies("public/default", lambda _: NamespacePolicies.of(record))
    await world.topics.apply_policies("public/default")
    return topic


async def test_unused_subscriptions_expire() -> None:
    world = await BrokerWorld().start()
    topic = await governed(world, subscription_expiration_time_minutes=2)
    used, consumer = await world.subscribe(topic, "used")
    idle, leaving = await world.subscribe(topic, "idle")
    topic.detach(idle, leaving)
    await topic.sweep()
    world.clock.advance(119)
    await topic.sweep()
    assert set(topic.subscriptions) == {"used", "idle"}
    world.clock.advance(1)
    await topic.sweep()
    assert set(topic.subscriptions) == {"used"}
    topic.detach(used, consumer)
    world.clock.advance(119)
    await topic.sweep()
    assert set(topic.subscriptions) == {"used"}
    world.clock.advance(1)
    await topic.sweep()
    assert topic.subscriptions == {}


async def test_last_use_of_subscription_survives_restart() -> None:
    world = await BrokerWorld().start()
    topic = await governed(world, subscription_expiration_time_minutes=2)
    subscription, consumer = await world.subscribe(topic, "s")
    topic.detach(subscription, consumer)
    await topic.sweep()
    world.clock.advance(119)
    await world.topics.close(topic.name)
    topic = await world.topic()
    await topic.sweep()
    assert set(topic.subscriptions) == {"s"}
    world.clock.advance(1)
    await topic.sweep()
    assert topic.subscriptions == {}


async def test_retention_by_time() -> None:
    world = await BrokerWorld().start()
    topic = await governed(world, retention_policies={"retentionTimeInMinutes": 1, "retentionSizeInMB": -1})
    await world.publish(topic, 1, 2)
    await topic.log.roll()
    world.clock.advance(59)
    await topic.sweep()
    assert topic.log.total_messages == 2
    world.clock.advance(1)
    await topic.sweep()
    assert topic.log.total_messages == 0


async def test_removed_retention_falls_back_to_broker_default() -> None:
    world = await BrokerWorld().start()
    topic = await governed(world, retention_policies={"retentionTimeInMinutes": -1, "retentionSizeInMB": -1})
    await world.publish(topic, 1)
    await topic.log.roll()
    await topic.sweep()
    assert topic.log.total_messages == 1
    await governed(world)
    await topic.sweep()
    assert topic.log.total_messages == 0


async def test_snapshots_of_sequences_by_time() -> None:
    world = await BrokerWorld().start()
    topic = await governed(world, deduplicationEnabled=True, deduplicationSnapshotIntervalSeconds=60)
    producer = world.producer("p")
    positions = await world.publish(topic, 1, 2, 3, producer=producer)
    world.clock.advance(59)
    await topic.sweep()
    assert Sequences.load(topic.log.state("dedup"))[0].last("p") == -1
    world.clock.advance(1)
    await topic.sweep()
    sequences, upto = Sequences.load(topic.log.state("dedup"))
    assert sequences.last("p") == 3 and upto == positions[-1]


async def test_unloaded_topics_are_loaded_for_time_policies() -> None:
    world = await BrokerWorld(idle_topic_seconds=30.0, sweep_seconds=5.0).start()
    topic = await governed(
        world, inactive_topic_policies={"deleteWhileInactive": True, "maxInactiveDurationSeconds": 90}
    )
    await world.topics.close(topic.name)
    assert await world.catalog.exists(topic.name)
    for _ in range(40):
        world.clock.advance(5)
        await world.settle(turns=20)
    assert not await world.catalog.exists(topic.name)


async def test_topic_limit_of_namespace_is_enforced() -> None:
    world = await BrokerWorld().start()
    await governed(world, max_topics_per_namespace=2)
    await world.topic(TopicName.parse("second"))
    with pytest.raises(TooManyTopics):
        await world.topic(TopicName.parse("third"))
    with pytest.raises(TooManyTopics):
        await world.topics.create(TopicName.parse("third"))
    with pytest.raises(TooManyTopics):
        await world.catalog.create_partitioned(TopicName.parse("parts"), 1)


async def test_namespace_of_another_cluster_is_refused() -> None:
    world = await BrokerWorld().start()
    await governed(world, replication_clusters=["elsewhere"])
    with pytest.raises(NotAllowed):
        await world.topic(TopicName.parse("other"))
