"""The policies in force for a topic: its namespace's record (Pulsar's names) over the broker's settings. What the topic
sets itself is merged into the record before (`topic_policy_records`).

`Policies.of` accepts every record that `policy_fields` accepts. Limits: 0 = no limit. Times carry their unit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from anabranch.broker.settings import BrokerSettings
from anabranch.broker.token_bucket import NO_LIMIT, Rate
from anabranch.model.subscription_type import SubscriptionType

LOCAL_CLUSTER = "standalone"
SCHEMA_STRATEGY, SCHEMA_VALIDATION = "schema_compatibility_strategy", "schema_validation_enforced"  # keys of a record
MINUTE_MS = 60_000
MIB = 1024 * 1024


class QuotaType(StrEnum):
    SIZE = "destination_storage"
    AGE = "message_age"


class QuotaPolicy(StrEnum):
    HOLD = "producer_request_hold"
    REFUSE = "producer_exception"
    EVICT = "consumer_backlog_eviction"


class DeleteMode(StrEnum):
    NO_SUBSCRIPTIONS = "delete_when_no_subscriptions"
    CAUGHT_UP = "delete_when_subscriptions_caught_up"


@dataclass(frozen=True, slots=True)
class Quota:
    limit: int  # bytes or seconds
    policy: QuotaPolicy


@dataclass(frozen=True, slots=True)
class Retention:
    """-1: without limit."""

    time_ms: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class InactiveRule:
    mode: DeleteMode
    seconds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Policies:
    deduplicate: bool = False
    retention: Retention | None = None  # None: as the broker's storage is configured
    ttl_seconds: int = 0
    size_quota: Quota | None = None
    age_quota: Quota | None = None
    auto_create_topics: bool = True
    auto_create_partitions: int = 0
    auto_create_subscriptions: bool = True
    producers_max: int = 0
    consumers_max: int = 0
    consumers_per_subscription_max: int = 0
    subscriptions_max: int = 0
    topics_max: int = 0
    unacked_per_consumer_max: int = 0
    unacked_per_subscription_max: int = 0
    delays: bool = True
    delay_ms_max: int = 0
    inactive: InactiveRule | None = None
    subscription_expires_minutes: int = 0
    subscription_types: frozenset[SubscriptionType] = frozenset(SubscriptionType)
    encryption_required: bool = False
    compaction_threshold_bytes: int = 0
    publish_rate: Rate = NO_LIMIT
    dispatch_rate: Rate = NO_LIMIT  # of a topic, all its subscriptions together
    subscription_dispatch_rate: Rate = NO_LIMIT  # of each subscription
    subscription_rates: Mapping[str, Rate] = field(default_factory=dict)  # of single subscriptions, instead of it
    subscribe_rate: Rate = NO_LIMIT  # of each consumer, in "messages"
    message_bytes_max: int = 0  # below the broker's
    dedup_snapshot_seconds: int = 0  # besides the broker's every so many entries
    is_local: bool = True  # the namespace lives on this cluster

    @classmethod
    def of(cls, record: Mapping[str, Any], settings: BrokerSettings) -> Policies:
        def number(key: str, default: int = 0) -> int:
            value = record.get(key)
            return default if value is None else int(value)

        creation = record.get("autoTopicCreationOverride")
        subscribing = record.get("autoSubscriptionCreationOverride") or {}
        delays = record.get("delayed_delivery_policies") or {}
        deduplicate = record.get("deduplicationEnabled")
        types = record.get("subscription_types_enabled")
        return cls(
            deduplicate=settings.deduplication if deduplicate is None else bool(deduplicate),
            retention=_retention(record.get("retention_policies")),
            ttl_seconds=number("message_ttl_in_seconds"),
            size_quota=_quota(record, QuotaType.SIZE, "limitSize"),
            age_quota=_quota(record, QuotaType.AGE, "limitTime"),
            auto_create_topics=settings.auto_create_topics
            if not creation
            else bool(creation.get("allowAutoTopicCreation")),
            auto_create_partitions=settings.auto_create_partitions
            if not creation or creation.get("topicType") is None
            else int(creation.get("defaultNumPartitions") or 0),
            auto_create_subscriptions=bool(
                subscribing.get("allowAutoSubscriptionCreation", settings.auto_create_subscriptions)
            ),
            producers_max=number("max_producers_per_topic"),
            consumers_max=number("max_consumers_per_topic"),
            consumers_per_subscription_max=number("max_consumers_per_subscription"),
            subscriptions_max=number("max_subscriptions_per_topic"),
            topics_max=number("max_topics_per_namespace"),
            unacked_per_consumer_max=number("max_unacked_messages_per_consumer", settings.unacked_per_consumer_max),
            unacked_per_subscription_max=number(
                "max_unacked_messages_per_subscription", settings.unacked_per_subscription_max
            ),
            delays=bool(delays.get("active", True)),
            delay_ms_max=int(delays.get("maxDeliveryDelayInMillis") or 0),
            inactive=_inactive(record.get("inactive_topic_policies")),
            subscription_expires_minutes=number("subscription_expiration_time_minutes"),
            subscription_types=frozenset(kind for kind in SubscriptionType if not types or kind.label in types),
            encryption_required=bool(record.get("encryption_required")),
            compaction_threshold_bytes=number("compaction_threshold"),
            publish_rate=_rate(record, "publishMaxMessageRate", "publishThrottlingRate"),
            dispatch_rate=_rate(record, "topicDispatchRate", "dispatchThrottlingRate"),
            subscription_dispatch_rate=_rate(record, "subscriptionDispatchRate", "dispatchThrottlingRate"),
            subscription_rates={
                name: _rate_of(rate, "dispatchThrottlingRate")
                for name, rate in (record.get("subscriptionDispatchRates") or {}).items()
            },
            subscribe_rate=_subscribe_rate(record),
            message_bytes_max=number("max_message_size"),
            dedup_snapshot_seconds=number("deduplicationSnapshotIntervalSeconds"),
            is_local=LOCAL_CLUSTER in (record.get("replication_clusters") or [LOCAL_CLUSTER]),
        )

    def dispatch_rate_of(self, subscription: str) -> Rate:
        """The dispatch rate of one subscription."""
        return self.subscription_rates.get(subscription, self.subscription_dispatch_rate)


def _rate(record: Mapping[str, Any], key: str, name: str) -> Rate:
    return _rate_of((record.get(key) or {}).get(LOCAL_CLUSTER) or {}, name)


def _rate_of(value: Mapping[str, Any], name: str) -> Rate:
    period = int(value.get("ratePeriodInSecond") or 1)
    rate = Rate(max(0, int(value.get(f"{name}InMsg") or 0)), max(0, int(value.get(f"{name}InByte") or 0)))
    return Rate(rate.messages, rate.bytes, float(max(1, period))) if rate.is_limited else NO_LIMIT


def _subscribe_rate(record: Mapping[str, Any]) -> Rate:
    value = (record.get("clusterSubscribeRate") or {}).get(LOCAL_CLUSTER) or {}
    times = int(value.get("subscribeThrottlingRatePerConsumer") or 0)
    return Rate(times, 0, float(max(1, int(value.get("ratePeriodInSecond") or 30)))) if times > 0 else NO_LIMIT


def _retention(value: Mapping[str, Any] | None) -> Retention | None:
    if value is None:
        return None
    minutes, mib = int(value.get("retentionTimeInMinutes", 0)), int(value.get("retentionSizeInMB", 0))
    return Retention(minutes * MINUTE_MS if minutes >= 0 else -1, mib * MIB if mib >= 0 else -1)


def _quota(record: Mapping[str, Any], kind: QuotaType, field: str) -> Quota | None:
    value = (record.get("backlog_quota_map") or {}).get(kind)
    if value is None or int(value.get(field, 0)) <= 0:
        return None
    return Quota(int(value[field]), QuotaPolicy(value["policy"]))


def _inactive(value: Mapping[str, Any] | None) -> InactiveRule | None:
    if value is None or not value.get("deleteWhileInactive"):
        return None
    mode = DeleteMode(value.get("inactiveTopicDeleteMode") or DeleteMode.NO_SUBSCRIPTIONS)
    return InactiveRule(mode, int(value.get("maxInactiveDurationSeconds") or 0))


def segment_policies(policies: Policies, kept: Retention) -> Policies:
    """Policies of the segments of scalable topics. `kept` is their retention unless the namespace has one."""
    return for_segments(replace(policies, retention=policies.retention or kept))


def for_segments(policies: Policies) -> Policies:
    """Without policies that delete or compact topics: the topic's layout decides how long a segment exists."""
    return replace(
        policies,
        deduplicate=True,
        inactive=None,
        subscription_expires_minutes=0,
        compaction_threshold_bytes=0,
    )
