"""The policies of single topics as data: path, verb, key of the record, parser, default, and where each is enforced.

A topic's record has the keys of the namespace's record, so one value is resolved topic > namespace > broker by its key
alone, and `Policies.of` reads the merged record. Adding a policy is adding a row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from anabranch.broker.catalog import policy_fields as fields
from anabranch.broker.catalog.policies import (
    LOCAL_CLUSTER,
    MIB,
    MINUTE_MS,
    SCHEMA_STRATEGY,
    SCHEMA_VALIDATION,
    Retention,
)
from anabranch.broker.catalog.policy_fields import PolicyField, Record, limit
from anabranch.broker.catalog.topic_policy_records import Level, TopicOverrides, is_set
from anabranch.broker.settings import BrokerSettings
from anabranch.model.errors import BadRequest, NotAllowed
from anabranch.model.schema import Strategy

NOT_KEPT = Retention(0, 0)
MAX_MESSAGE_SIZE, REPLICATION, RETENTION = "max_message_size", "replication_clusters", "retention_policies"


@dataclass(frozen=True, slots=True)
class Defaults:
    """Settings of the broker that hold where no level sets a policy."""

    broker: BrokerSettings = field(default_factory=BrokerSettings)
    schema_strategy: Strategy = Strategy.FULL
    schema_validation: bool = False
    retention: Retention = NOT_KEPT
    segment_retention: Retention = NOT_KEPT
    is_scalable: bool = False  # the topic that is asked for


@dataclass(frozen=True, slots=True)
class TopicPolicy:
    rule: PolicyField
    default: Callable[[Defaults], Any]
    enforced_by: str = ""  # module; empty: stored and shown only
    on_segments: bool = True  # also in force on scalable topics, there for each segment by itself
    query: str = ""  # the value is sent as this query parameter
    bare: Any = None  # what an empty body sets; None: a body is needed
    is_empty_no_content: bool = False  # GET answers 204 instead of an empty 200 if nothing is set
    is_forced_by_broker: bool = False  # a flag that no level can switch off if the broker's settings switch it on
    entry: str = ""  # the value is a map; this parameter names the entry that a call is about
    entries_path: str = ""  # GET shows the whole map at `rule.path`; entries are set and removed here
    parse_entry: Callable[[Any, str, Record], Any] | None = None

    @property
    def path(self) -> str:
        return self.rule.path

    @property
    def is_enforced(self) -> bool:
        return bool(self.enforced_by)

    def stored(self, part: Record, value: Any, entry: str | None) -> dict[str, Any]:
        """The record with the parsed value; None removes it."""
        if entry is None:
            return self.rule.stored(part, value)
        known = {name: one for name, one in (part.get(self.rule.key) or {}).items() if name != entry}
        if value is not None:
            known[entry] = value
        return self.rule.stored(part, known or None)

    def shown(self, part: Record, entry: str | None) -> Any:
        """What one level sets; None if nothing."""
        value = part.get(self.rule.key)
        if self.rule.per_cluster:
            value = (value or {}).get(LOCAL_CLUSTER)
        return value if entry is None else (value or {}).get(entry)

    def parsed(self, value: Any, entry: str | None, record: Record) -> Any:
        """The value as it is stored. `record`: of the topic, with its namespace's policies. Raises BadRequest for a
        malformed value, NotAllowed for one out of bounds."""
        if entry is not None and self.parse_entry is not None:
            return self.parse_entry(value, entry, record)
        return self.rule.parse(value, record)

    def resolve(
        self, overrides: TopicOverrides, namespace: Record, defaults: Defaults, entry: str | None = None
    ) -> tuple[Any, Level]:
        """The value in force, and the level that sets it (of a map: the strongest that sets an entry)."""
        shown = [(level, self.shown(part, entry)) for level, part in overrides.levels(namespace)]
        found = [(level, value) for level, value in shown if is_set(value)]
        if not found or (self.is_forced_by_broker and self.default(defaults)):
            return self.default(defaults), Level.BROKER
        if self.entry and entry is None:
            return {name: one for _, value in reversed(found) for name, one in value.items()}, found[0][0]
        return found[0][1], found[0][0]


# ---------------------------------------------------------------------------------------------------------- parsers


def strategy(value: Any, record: Record) -> str:
    return fields.one_of(value, list(Strategy), "the strategy")


def offload(value: Any, record: Record) -> dict[str, Any]:
    return dict(fields.table(value, '{"managedLedgerOffloadThresholdInBytes": 1000000}'))


def entry_filters(value: Any, record: Record) -> dict[str, str]:
    names = fields.table(value, '{"entryFilterNames": "a,b"}').get("entryFilterNames")
    if not isinstance(names, str):
        raise BadRequest("entryFilterNames is a text of names with commas")
    if not all(name.strip() for name in names.split(",")):
        raise NotAllowed("entryFilterNames has an empty name")
    return {"entryFilterNames": names}


def clusters(value: Any, record: Record) -> list[str]:
    names = fields.cluster_names(value, record)
    if not names:
        raise NotAllowed("ReplicationClusters should not be null or empty")
    return names


def dispatch_rate(value: Any, record: Record) -> dict[str, Any]:
    """As Pulsar, -1 is no limit; anything below is refused."""
    stored = fields.dispatch_rate(value, record)
    _check_at_least(stored, -1)
    return stored


def publish_rate(value: Any, record: Record) -> dict[str, Any]:
    stored = fields.publish_rate(value, record)
    _check_at_least(stored, -1)
    return stored


def subscribe_rate(value: Any, record: Record) -> dict[str, Any]:
    stored = fields.subscribe_rate(value, record)
    _check_at_least(stored, -1)
    return stored


def _check_at_least(stored: Mapping[str, Any], least: int) -> None:
    for name, number in stored.items():
        if number < least:
            raise NotAllowed(f"{name} must be {least} or more")


def retention(value: Any, record: Record) -> dict[str, int]:
    return fields.retention(value, record, "topic")


def quota(value: Any, kind: str, record: Record) -> dict[str, Any]:
    return fields.quota(value, kind, record, "topic")


# ------------------------------------------------------------------------------------------------------------ table

NO_RATE = {
    "dispatchThrottlingRateInMsg": 0,
    "dispatchThrottlingRateInByte": 0,
    "relativeToPublishRate": False,
    "ratePeriodInSecond": 1,
}
ONE_COPY = {
    "bookkeeperEnsemble": 1,
    "bookkeeperWriteQuorum": 1,
    "bookkeeperAckQuorum": 1,
    "managedLedgerMaxMarkDeleteRate": 0.0,
}
NOT_DELETED = {
    "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
    "maxInactiveDurationSeconds": 60,
    "deleteWhileInactive": False,
}
DELAYS = {"tickTime": 1000, "active": True, "maxDeliveryDelayInMillis": 0}
LIMITS, RATES = "broker/topic/policy_limits.py", "broker/topic/topic_rate_limits.py"
HOUSEKEEPING, SUBSCRIPTION = "broker/topic/housekeeping.py", "broker/subscription/subscription.py"


def _unset(defaults: Defaults) -> None:
    return None


def _kept(defaults: Defaults) -> dict[str, int]:
    kept = defaults.segment_retention if defaults.is_scalable else defaults.retention
    return {
        "retentionTimeInMinutes": kept.time_ms // MINUTE_MS if kept.time_ms >= 0 else -1,
        "retentionSizeInMB": kept.size_bytes // MIB if kept.size_bytes >= 0 else -1,
    }


def _always(value: Any) -> Callable[[Defaults], Any]:
    return lambda defaults: value


def _limit(path: str, key: str, summary: str, default: Any, enforced_by: str = LIMITS, **more: Any) -> TopicPolicy:
    return TopicPolicy(
        PolicyField(path, key, limit(path), summary),
        default if callable(default) else _always(default),
        enforced_by,
        **more,
    )


def _rate(path: str, key: str, summary: str, parse: fields.Parser, default: Any, **more: Any) -> TopicPolicy:
    return TopicPolicy(
        PolicyField(path, key, parse, summary, per_cluster=True), _always(default), **{"enforced_by": RATES, **more}
    )


TOPIC_POLICIES: tuple[TopicPolicy, ...] = (
    TopicPolicy(
        PolicyField("retention", RETENTION, retention, "How long consumed messages are kept"),
        _kept,
        "storage/topic/retention.py",
    ),
    TopicPolicy(
        PolicyField(
            "messageTTL", "message_ttl_in_seconds", fields.ttl, "Seconds after which messages count as consumed"
        ),
        _always(0),
        HOUSEKEEPING,
        query="messageTTL",
    ),
    TopicPolicy(
        PolicyField("backlogQuotaMap", "backlog_quota_map", fields.quota_map, "Backlog quotas: size and age", unset={}),
        _always({}),
        "broker/topic/backlog_quota.py",
        entry="backlogQuotaType",
        entries_path="backlogQuota",
        parse_entry=quota,
    ),
    _rate("publishRate", "publishMaxMessageRate", "Publish rate", publish_rate, None, is_empty_no_content=True),
    _rate("dispatchRate", "topicDispatchRate", "Delivery rate, all subscriptions together", dispatch_rate, NO_RATE),
    _rate(
        "subscriptionDispatchRate",
        "subscriptionDispatchRate",
        "Delivery rate of each subscription",
        dispatch_rate,
        NO_RATE,
        enforced_by=SUBSCRIPTION,
    ),
    TopicPolicy(
        PolicyField(
            "{subscription}/dispatchRate", "subscriptionDispatchRates", dispatch_rate, "Delivery rate of a subscription"
        ),
        _unset,
        SUBSCRIPTION,
        entry="subscription",
    ),
    _rate(
        "subscribeRate",
        "clusterSubscribeRate",
        "How often a consumer may subscribe",
        subscribe_rate,
        {"subscribeThrottlingRatePerConsumer": 0, "ratePeriodInSecond": 30},
    ),
    _rate(
        "replicatorDispatchRate",
        "replicatorDispatchRate",
        "Replication rate (stored only)",
        dispatch_rate,
        NO_RATE,
        enforced_by="",
    ),
    _limit("maxProducers", "max_producers_per_topic", "Most producers; 0: no limit", 0),
    _limit("maxConsumers", "max_consumers_per_topic", "Most consumers; 0: no limit", 0),
    _limit(
        "maxConsumersPerSubscription",
        "max_consumers_per_subscription",
        "Most consumers of a subscription; 0: no limit",
        None,
        is_empty_no_content=True,
    ),
    _limit(
        "maxSubscriptionsPerTopic",
        "max_subscriptions_per_topic",
        "Most subscriptions; 0: no limit",
        None,
        is_empty_no_content=True,
    ),
    _limit(
        "maxUnackedMessagesOnConsumer",
        "max_unacked_messages_per_consumer",
        "Most unacknowledged messages of a consumer; 0: no limit",
        lambda defaults: defaults.broker.unacked_per_consumer_max,
        SUBSCRIPTION,
    ),
    _limit(
        "maxUnackedMessagesOnSubscription",
        "max_unacked_messages_per_subscription",
        "Most unacknowledged messages of a subscription; 0: no limit",
        lambda defaults: defaults.broker.unacked_per_subscription_max,
        SUBSCRIPTION,
    ),
    TopicPolicy(
        PolicyField("deduplicationEnabled", "deduplicationEnabled", fields.flag, "Are repeated messages dropped?"),
        lambda defaults: defaults.broker.deduplication,
        "broker/publish/deduplication.py",
        on_segments=False,
    ),
    _limit(
        "deduplicationSnapshotInterval",
        "deduplicationSnapshotIntervalSeconds",
        "Seconds between snapshots of sequence ids",
        None,
        "broker/publish/deduplication.py",
    ),
    _limit(
        "compactionThreshold",
        "compaction_threshold",
        "Bytes after which the topic is compacted; 0: never by itself",
        0,
        "broker/topic/topic.py",
        on_segments=False,
    ),
    TopicPolicy(
        PolicyField(
            "inactiveTopicPolicies",
            "inactive_topic_policies",
            fields.inactive_topics,
            "When the unused topic is deleted",
        ),
        _always(NOT_DELETED),
        "broker/topic/inactive_topics.py",
        on_segments=False,
    ),
    TopicPolicy(
        PolicyField(
            "delayedDelivery",
            "delayed_delivery_policies",
            fields.delayed_delivery,
            "Are messages delayed, and how long?",
        ),
        _always(DELAYS),
        SUBSCRIPTION,
    ),
    TopicPolicy(
        PolicyField("maxMessageSize", MAX_MESSAGE_SIZE, limit("maxMessageSize"), "Largest message; 0: the broker's"),
        _unset,
        LIMITS,
        is_empty_no_content=True,
    ),
    TopicPolicy(
        PolicyField("persistence", "persistence", fields.persistence, "Copies of ledgers (stored only)"),
        _always(ONE_COPY),
    ),
    TopicPolicy(
        PolicyField(
            "subscriptionTypesEnabled",
            "subscription_types_enabled",
            fields.subscription_types,
            "Which types of subscription are allowed; empty: all",
            unset=[],
        ),
        _always([]),
        LIMITS,
    ),
    TopicPolicy(
        PolicyField("schemaCompatibilityStrategy", SCHEMA_STRATEGY, strategy, "How schemas may change", verb="PUT"),
        lambda defaults: defaults.schema_strategy.value,
        "broker/schemas/registry.py",
    ),
    TopicPolicy(
        PolicyField(
            "schemaValidationEnforced", SCHEMA_VALIDATION, fields.flag, "Must producers have a schema?", unset=False
        ),
        lambda defaults: defaults.schema_validation,
        "broker/schemas/registry.py",
        is_forced_by_broker=True,
    ),
    TopicPolicy(
        PolicyField(
            "autoSubscriptionCreation",
            "autoSubscriptionCreationOverride",
            fields.subscription_creation,
            "May consumers create subscriptions?",
        ),
        lambda defaults: {"allowAutoSubscriptionCreation": defaults.broker.auto_create_subscriptions},
        "broker/topic/topic.py",
    ),
    _limit(
        "subscriptionExpirationTime",
        "subscription_expiration_time_minutes",
        "Minutes after which unused subscriptions go; 0: never",
        0,
        HOUSEKEEPING,
        on_segments=False,
        query="subscriptionExpirationTime",
    ),
    TopicPolicy(
        PolicyField(
            "dispatcherPauseOnAckStatePersistent",
            "dispatcherPauseOnAckStatePersistentEnabled",
            fields.flag,
            "Pause dispatch on unsaved acknowledgements (stored only)",
            unset=False,
        ),
        _always(False),
        bare=True,
    ),
    TopicPolicy(
        PolicyField("offloadPolicies", "offload_policies", offload, "Offloading to other storage (stored only)"), _unset
    ),
    TopicPolicy(PolicyField("entryFilters", "entry_filters", entry_filters, "Entry filters (stored only)"), _unset),
    TopicPolicy(
        PolicyField("replication", REPLICATION, clusters, "Replication clusters (stored only)"),
        _always([LOCAL_CLUSTER]),
    ),
)

BY_PATH: dict[str, TopicPolicy] = {policy.path: policy for policy in TOPIC_POLICIES}
