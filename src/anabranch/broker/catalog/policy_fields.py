"""The policies of a namespace as data: path, verb, key of the record, parser, and the value shown if unset.

A parser takes the body's JSON and the present record, and returns what is stored or raises: BadRequest (400) for
malformed values, NotAllowed (412) for values out of bounds. Unknown fields are dropped, unknown words are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from anabranch.broker.catalog.policies import LOCAL_CLUSTER, MIB, DeleteMode, QuotaPolicy, QuotaType
from anabranch.model.errors import BadRequest, NotAllowed
from anabranch.model.subscription_type import SubscriptionType

Record = Mapping[str, Any]
Parser = Callable[[Any, Record], Any]

NUMBER_MAX = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class PolicyField:
    path: str
    key: str
    parse: Parser
    summary: str
    verb: str = "POST"
    removable: bool = True  # DELETE is served
    unset: Any = None  # what GET answers when nothing is set; None: an empty body
    also: tuple[str, ...] = ()  # keys written with it
    empty_removes: bool = False  # an empty body removes it, because there is no DELETE
    per_cluster: bool = False  # the record holds {cluster: value}

    def shown(self, record: Record) -> Any:
        value = record.get(self.key)
        if self.per_cluster:
            value = (value or {}).get(LOCAL_CLUSTER)
        return self.unset if value is None else value

    def stored(self, record: Record, value: Any) -> dict[str, Any]:
        """The record with the parsed value; None removes it."""
        kept = {key: one for key, one in record.items() if key not in (self.key, *self.also)}
        if value is not None:
            held = {LOCAL_CLUSTER: value} if self.per_cluster else value
            kept.update(dict.fromkeys((self.key, *self.also), held))
        return kept


# ---------------------------------------------------------------------------------------------------------- parsers


def whole(value: Any, what: str) -> int:
    """An integer; Pulsar's clients may send it as a string."""
    if isinstance(value, str) and value.lstrip("-").isdecimal():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) > NUMBER_MAX:
        raise BadRequest(f"{what} must be an integer")
    return value


def table(value: Any, example: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise BadRequest(f"the body is an object like {example}")
    return value


def one_of(value: Any, words: Sequence[str], what: str) -> str:
    if not isinstance(value, str) or value not in words:
        raise BadRequest(f"{what} is one of {', '.join(words)}")
    return str(value)


def limit(name: str) -> Parser:
    def parse(value: Any, record: Record) -> int:
        number = whole(value, name)
        if number < 0:
            raise NotAllowed(f"{name} must be 0 or more")
        return number

    return parse


def flag(value: Any, record: Record) -> bool:
    if not isinstance(value, bool):
        raise BadRequest("the body must be true or false")
    return value


def ttl(value: Any, record: Record) -> int:
    seconds = whole(value, "messageTTL")
    if seconds < 0:
        raise NotAllowed("Invalid value for message TTL, message TTL must >= 0")
    return seconds


def retention(value: Any, record: Record, of: str = "namespace") -> dict[str, int]:
    body = table(value, '{"retentionTimeInMinutes": 10, "retentionSizeInMB": 100}')
    minutes = whole(body.get("retentionTimeInMinutes", 0), "retentionTimeInMinutes")
    mib = whole(body.get("retentionSizeInMB", 0), "retentionSizeInMB")
    if minutes < -1:
        raise BadRequest("Invalid retention policy: time limit must be >= -1")
    if mib < -1:
        raise BadRequest("Invalid retention policy: size limit must be >= -1")
    if (minutes == 0) != (mib == 0):
        raise BadRequest("Invalid retention policy: time and size are both 0 or both not 0")
    stored = {"retentionTimeInMinutes": minutes, "retentionSizeInMB": mib}
    for kind, quota in (record.get("backlog_quota_map") or {}).items():
        if _conflict(stored, kind, quota):
            raise NotAllowed(f"Retention Quota must exceed configured backlog quota for {of}.")
    return stored


def quota(value: Any, kind: str, record: Record, of: str = "namespace") -> dict[str, Any]:
    """One entry of the map; `limit` is the old name of limitSize."""
    body = table(value, '{"limitSize": 1000000, "limitTime": 60, "policy": "producer_request_hold"}')
    policy = one_of(body.get("policy"), list(QuotaPolicy), "policy")
    size = whole(body.get("limitSize", body.get("limit", 0)), "limitSize")
    seconds = whole(body.get("limitTime", 0), "limitTime")
    stored = {"limit": size, "limitSize": size, "limitTime": seconds, "policy": policy}
    kept = record.get("retention_policies")
    if kept is not None and _conflict(kept, kind, stored):
        raise NotAllowed(
            f"Backlog Quota exceeds configured retention quota for {of}. Please increase retention quota and retry"
        )
    return stored


def quota_map(value: Any, record: Record) -> dict[str, Any]:
    body = table(value, '{"destination_storage": {"limitSize": 1000000, "policy": "producer_exception"}}')
    return {one_of(kind, list(QuotaType), "quota type"): quota(one, kind, record) for kind, one in body.items()}


def _conflict(retained: Record, kind: str, quota_of: Record) -> bool:
    """Whether the backlog may grow beyond what retention keeps."""
    if kind == QuotaType.SIZE:
        kept, allowed = int(retained["retentionSizeInMB"]) * MIB, int(quota_of["limitSize"])
    else:
        kept, allowed = int(retained["retentionTimeInMinutes"]) * 60, int(quota_of["limitTime"])
    return kept > 0 and allowed > 0 and kept <= allowed


def topic_creation(value: Any, record: Record) -> dict[str, Any]:
    body = table(value, '{"allowAutoTopicCreation": true, "topicType": "non-partitioned"}')
    allowed = flag(body.get("allowAutoTopicCreation", False), record)
    kind, count = body.get("topicType"), body.get("defaultNumPartitions")
    if not allowed and not kind:  # the type matters only where creation is allowed; tools send ""
        return {"allowAutoTopicCreation": False}
    kind = "non-partitioned" if kind is None else kind
    if kind not in ("partitioned", "non-partitioned"):
        raise NotAllowed(f"unknown topic type {kind!r}: partitioned or non-partitioned")
    if kind == "non-partitioned":
        if count is not None:
            raise NotAllowed("defaultNumPartitions is not allowed to be set when the type is non-partitioned.")
        return {"allowAutoTopicCreation": allowed, "topicType": kind}
    count = 0 if count is None else whole(count, "defaultNumPartitions")
    if count <= 0:
        raise NotAllowed("defaultNumPartitions cannot be less than 1 for partition type.")
    return {"allowAutoTopicCreation": allowed, "topicType": kind, "defaultNumPartitions": count}


def subscription_creation(value: Any, record: Record) -> dict[str, Any]:
    body = table(value, '{"allowAutoSubscriptionCreation": false}')
    return {"allowAutoSubscriptionCreation": flag(body.get("allowAutoSubscriptionCreation"), record)}


def delayed_delivery(value: Any, record: Record) -> dict[str, Any]:
    body = table(value, '{"tickTime": 1000, "active": true, "maxDeliveryDelayInMillis": 0}')
    tick = whole(body.get("tickTime", 1000), "tickTime")
    longest = whole(body.get("maxDeliveryDelayInMillis", 0), "maxDeliveryDelayInMillis")
    if tick < 0 or longest < 0:
        raise NotAllowed("tickTime and maxDeliveryDelayInMillis must be 0 or more")
    active = flag(body.get("active", False), record)
    return {"tickTime": tick, "active": active, "maxDeliveryDelayInMillis": longest}


def persistence(value: Any, record: Record) -> dict[str, Any]:
    body = table(value, '{"bookkeeperEnsemble": 1, "bookkeeperWriteQuorum": 1, "bookkeeperAckQuorum": 1}')
    names = ("bookkeeperEnsemble", "bookkeeperWriteQuorum", "bookkeeperAckQuorum")
    ensemble, write, ack = (whole(body.get(name, 0), name) for name in names)
    if not ensemble >= write >= ack > 0:
        raise BadRequest("ensemble >= write quorum >= ack quorum > 0 must hold")
    rate = body.get("managedLedgerMaxMarkDeleteRate", 0.0)
    if not isinstance(rate, int | float) or isinstance(rate, bool) or rate < 0:
        raise BadRequest("managedLedgerMaxMarkDeleteRate is a number, 0 or more")
    return {**dict(zip(names, (ensemble, write, ack), strict=True)), "managedLedgerMaxMarkDeleteRate": float(rate)}


def dispatch_rate(value: Any, record: Record) -> dict[str, Any]:
    body = table(value, '{"dispatchThrottlingRateInMsg": 100, "dispatchThrottlingRateInByte": 2048}')
    numbers = ("dispatchThrottlingRateInMsg", "dispatchThrottlingRateInByte", "ratePeriodInSecond")
    stored: dict[str, Any] = {name: whole(body.get(name, 0), name) for name in numbers}
    stored["relativeToPublishRate"] = flag(body.get("relativeToPublishRate", False), record)
    return stored


def publish_rate(value: Any, record: Record) -> dict[str, Any]:
    body = table(value, '{"publishThrottlingRateInMsg": 10, "publishThrottlingRateInByte": 1000}')
    numbers = ("publishThrottlingRateInMsg", "publishThrottlingRateInByte")
    return {name: whole(body.get(name, -1), name) for name in numbers}


def subscribe_rate(value: Any, record: Record) -> dict[str, Any]:
    body = table(value, '{"subscribeThrottlingRatePerConsumer": 10, "ratePeriodInSecond": 30}')
    return {
        "subscribeThrottlingRatePerConsumer": whole(body.get("subscribeThrottlingRatePerConsumer", 0), "the rate"),
        "ratePeriodInSecond": whole(body.get("ratePeriodInSecond", 30), "ratePeriodInSecond"),
    }


def inactive_topics(value: Any, record: Record) -> dict[str, Any]:
    body = table(value, '{"inactiveTopicDeleteMode": "delete_when_no_subscriptions", "maxInactiveDurationSeconds": 60}')
    mode = body.get("inactiveTopicDeleteMode")
    seconds = whole(body.get("maxInactiveDurationSeconds", 0), "maxInactiveDurationSeconds")
    deletes = flag(body.get("deleteWhileInactive", False), record)
    if seconds < 0 or (deletes and seconds == 0):
        raise NotAllowed("maxInactiveDurationSeconds must be more than 0 where topics are deleted")
    stored: dict[str, Any] = {"maxInactiveDurationSeconds": seconds, "deleteWhileInactive": deletes}
    if mode is not None:
        stored["inactiveTopicDeleteMode"] = one_of(mode, list(DeleteMode), "inactiveTopicDeleteMode")
    return stored


def subscription_types(value: Any, record: Record) -> list[str]:
    labels = [kind.label for kind in SubscriptionType]
    if not isinstance(value, list):
        raise BadRequest(f"the body is a list of {', '.join(labels)}")
    return sorted({one_of(one, labels, "a subscription type") for one in value})


def cluster_names(value: Any, record: Record) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(one, str) and one for one in value):
        raise BadRequest("the body is a list of cluster names")
    return sorted(set(value))


def words(value: Any, record: Record) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(one, str) for one in value.values()):
        raise BadRequest('properties must be an object of strings, for example {"owner": "me"}')
    return dict(value)


def rate_map(parse: Parser) -> Parser:
    """{cluster: rate} of a whole record."""

    def parse_map(value: Any, record: Record) -> dict[str, Any]:
        return {str(cluster): parse(one, record) for cluster, one in table(value, '{"standalone": {}}').items()}

    return parse_map


# ------------------------------------------------------------------------------------------------------------ table

RULES: tuple[PolicyField, ...] = (
    PolicyField("retention", "retention_policies", retention, "How long consumed messages are kept"),
    PolicyField("messageTTL", "message_ttl_in_seconds", ttl, "Seconds after which messages count as consumed"),
    PolicyField("deduplication", "deduplicationEnabled", flag, "Are repeated messages dropped?"),
    PolicyField(
        "deduplicationSnapshotInterval",
        "deduplicationSnapshotIntervalSeconds",
        limit("deduplicationSnapshotInterval"),
        "Seconds between snapshots of sequence ids",
        removable=False,
        empty_removes=True,
    ),
    PolicyField(
        "autoTopicCreation", "autoTopicCreationOverride", topic_creation, "May clients create topics, and which?"
    ),
    PolicyField(
        "autoSubscriptionCreation",
        "autoSubscriptionCreationOverride",
        subscription_creation,
        "May consumers create subscriptions?",
    ),
    *(
        PolicyField(path, key, limit(path), f"Most {what}; 0: no limit", unset=unset)
        for path, key, what, unset in (
            ("maxProducersPerTopic", "max_producers_per_topic", "producers of a topic", None),
            ("maxConsumersPerTopic", "max_consumers_per_topic", "consumers of a topic", None),
            ("maxConsumersPerSubscription", "max_consumers_per_subscription", "consumers of a subscription", None),
            (
                "maxUnackedMessagesPerConsumer",
                "max_unacked_messages_per_consumer",
                "unacknowledged messages of a consumer",
                None,
            ),
            (
                "maxUnackedMessagesPerSubscription",
                "max_unacked_messages_per_subscription",
                "unacknowledged messages of a subscription",
                None,
            ),
            ("maxSubscriptionsPerTopic", "max_subscriptions_per_topic", "subscriptions of a topic", None),
            ("maxTopicsPerNamespace", "max_topics_per_namespace", "topics of the namespace", 0),
        )
    ),
    PolicyField(
        "subscriptionExpirationTime",
        "subscription_expiration_time_minutes",
        limit("subscriptionExpirationTime"),
        "Minutes after which unused subscriptions go; 0: never",
    ),
    PolicyField(
        "delayedDelivery", "delayed_delivery_policies", delayed_delivery, "Are messages delayed, and how long?"
    ),
    PolicyField("persistence", "persistence", persistence, "Copies of ledgers (kept for tools; one copy is made)"),
    PolicyField(
        "dispatchRate",
        "topicDispatchRate",
        dispatch_rate,
        "Delivery rate of a topic, all its subscriptions together",
        also=("clusterDispatchRate",),
        per_cluster=True,
    ),
    PolicyField(
        "subscriptionDispatchRate",
        "subscriptionDispatchRate",
        dispatch_rate,
        "Delivery rate of each subscription",
        per_cluster=True,
    ),
    PolicyField(
        "replicatorDispatchRate",
        "replicatorDispatchRate",
        dispatch_rate,
        "Replication rate (kept, not enforced)",
        per_cluster=True,
    ),
    PolicyField("publishRate", "publishMaxMessageRate", publish_rate, "Publish rate of a topic", per_cluster=True),
    PolicyField(
        "subscribeRate", "clusterSubscribeRate", subscribe_rate, "How often a consumer may subscribe", per_cluster=True
    ),
    PolicyField("inactiveTopicPolicies", "inactive_topic_policies", inactive_topics, "When unused topics are deleted"),
    PolicyField(
        "compactionThreshold",
        "compaction_threshold",
        limit("compactionThreshold"),
        "Bytes after which a topic is compacted; 0: never by itself",
        verb="PUT",
    ),
    PolicyField(
        "subscriptionTypesEnabled",
        "subscription_types_enabled",
        subscription_types,
        "Which types of subscription are allowed; empty: all",
        unset=[],
    ),
    PolicyField(
        "offloadThreshold",
        "offload_threshold",
        lambda value, _: whole(value, "offloadThreshold"),
        "Bytes after which ledgers are offloaded (stored only)",
        verb="PUT",
        removable=False,
        unset=-1,
    ),
    PolicyField(
        "offloadThresholdInSeconds",
        "offload_threshold_in_seconds",
        lambda value, _: whole(value, "offloadThresholdInSeconds"),
        "Age after which ledgers are offloaded (stored only)",
        verb="PUT",
        removable=False,
        unset=-1,
    ),
    PolicyField(
        "offloadDeletionLagMs",
        "offload_deletion_lag_ms",
        lambda value, _: whole(value, "offloadDeletionLagMs"),
        "How long offloaded ledgers stay in the store, too (stored only)",
        verb="PUT",
    ),
    PolicyField(
        "offloadPolicies",
        "offload_policies",
        lambda value, _: dict(table(value, '{"managedLedgerOffloadDriver": "aws-s3"}')),
        "Where and when ledgers are offloaded (stored only)",
        removable=False,
    ),
    PolicyField(
        "encryptionRequired",
        "encryption_required",
        flag,
        "Must producers encrypt?",
        removable=False,
        unset=False,
    ),
)

BY_KEY: dict[str, Parser] = {
    **{rule.key: rate_map(rule.parse) if rule.per_cluster else rule.parse for rule in RULES},
    "clusterDispatchRate": rate_map(dispatch_rate),
    "backlog_quota_map": quota_map,
    "properties": words,
    "replication_clusters": cluster_names,
    "allowed_clusters": cluster_names,
}
"""How each key of a whole record is read when a namespace is created with one."""

RATE_MAPS = (
    "clusterDispatchRate",
    "topicDispatchRate",
    "subscriptionDispatchRate",
    "replicatorDispatchRate",
    "clusterSubscribeRate",
    "publishMaxMessageRate",
)
ALWAYS: dict[str, Any] = {
    "auth_policies": {"namespace_auth": {}, "destination_auth": {}, "subscription_auth_roles": {}},
    "replication_clusters": [LOCAL_CLUSTER],
    "allowed_clusters": [],
    "backlog_quota_map": {},
    **{key: {} for key in RATE_MAPS},
    "latency_stats_sample_rate": {},
    "deleted": False,
    "encryption_required": False,
    "subscription_auth_mode": "None",
    "offload_threshold": -1,
    "offload_threshold_in_seconds": -1,
    "schema_compatibility_strategy": "UNDEFINED",
    "is_allow_auto_update_schema": True,
    "is_allow_auto_update_schema_with_replicator": True,
    "schema_validation_enforced": False,
    "subscription_types_enabled": [],
    "properties": {},
    "migrated": False,
}
"""Keys that Pulsar shows for every namespace, set or not."""


def shown_record(record: Record, bundles: Mapping[str, Any]) -> dict[str, Any]:
    """The whole record as `GET` of a namespace answers it."""
    return {**ALWAYS, "bundles": bundles, **{key: value for key, value in record.items() if value is not None}}


def parse_record(body: Record) -> dict[str, Any]:
    """The initial policies of a namespace. Empty lists and maps mean "not set": pulsar-admin sends them."""
    record: dict[str, Any] = {}
    for key, parse in BY_KEY.items():
        value = body.get(key)
        if value is not None and value != {} and value != []:
            record[key] = parse(value, record)
    return record
