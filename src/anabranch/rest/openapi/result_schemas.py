"""JSON schemas of successful answers, by method and end of the path. Tests compare them with the routes and with real
answers."""

from __future__ import annotations

from typing import Any

from anabranch.rest.openapi import auto_scale_schemas as auto_scale
from anabranch.rest.openapi import topic_migration_schemas as topic_migration

Schema = dict[str, Any]

FLAG: Schema = {"type": "boolean"}
TEXT: Schema = {"type": "string"}
NUMBER: Schema = {"type": "integer"}
AMOUNT: Schema = {"type": "number"}
TEXT_OR_NULL: Schema = {"type": ["string", "null"]}
TEXTS: Schema = {"type": "array", "items": TEXT}
WORDS: Schema = {"type": "object", "additionalProperties": TEXT}


def _object(**properties: Schema) -> Schema:
    return {"type": "object", "required": sorted(properties), "properties": properties}


def _map(values: Schema) -> Schema:
    return {"type": "object", "additionalProperties": values}


ROLES = _map(TEXTS)
MESSAGE_ID = _object(ledgerId=NUMBER, entryId=NUMBER, partitionIndex=NUMBER, batchIndex=NUMBER, batchSize=NUMBER)
CONSUMER = _object(consumerName=TEXT, availablePermits=NUMBER, unackedMessages=NUMBER, msgOutCounter=NUMBER)
PUBLISHER = _object(producerId=NUMBER, producerName=TEXT, accessMode=TEXT, msgRateIn=AMOUNT)
SUBSCRIPTION = _object(
    msgBacklog=NUMBER,
    msgDelayed=NUMBER,
    unackedMessages=NUMBER,
    type=TEXT,
    msgRateOut=AMOUNT,
    isDurable=FLAG,
    consumers={"type": "array", "items": CONSUMER},
)
STATS = _object(
    msgRateIn=AMOUNT,
    msgInCounter=NUMBER,
    bytesInCounter=NUMBER,
    msgOutCounter=NUMBER,
    storageSize=NUMBER,
    backlogSize=NUMBER,
    publishers={"type": "array", "items": PUBLISHER},
    subscriptions=_map(SUBSCRIPTION),
)
LEDGER = _object(ledgerId=NUMBER, entries=NUMBER, size=NUMBER)
NUMBERS: Schema = {"type": "array", "items": NUMBER}
BOOKKEEPER_LEDGER = _object(
    ledger=NUMBER, state=TEXT, createdMs=NUMBER, isOwn=FLAG, segments={"type": "array"}, away=TEXTS
)
FOUND = _object(count=NUMBER, ledgers={"type": "array", "items": _object(ledger=NUMBER, topic=TEXT_OR_NULL)})
INTERNAL = _object(
    numberOfEntries=NUMBER,
    totalSize=NUMBER,
    lastConfirmedEntry=TEXT,
    state=TEXT,
    ledgers={"type": "array", "items": LEDGER},
    cursors=_map({"type": "object"}),
)
PARTITIONS = _object(partitions=NUMBER, deleted=FLAG)
SCHEMA = _object(version=NUMBER, type=TEXT, timestamp=NUMBER, data=TEXT, properties=WORDS)
BUNDLES = _object(boundaries=TEXTS, numBundles=NUMBER)
POLICIES = _object(
    auth_policies={"type": "object"},
    replication_clusters=TEXTS,
    bundles=BUNDLES,
    backlog_quota_map={"type": "object"},
    properties=WORDS,
    deleted=FLAG,
)
LOOKUP = _object(brokerUrl=TEXT, nativeUrl=TEXT, httpUrl=TEXT, brokerUrlSsl=TEXT)
BROKER = _object(
    id=TEXT,
    brokerId=TEXT,
    serviceUrl=TEXT,
    httpUrl=TEXT,
    slots=NUMBER,
    load=AMOUNT,
    version=TEXT,
    draining=FLAG,
    leader=FLAG,
    startedMs=NUMBER,
)
PUBLISHED = _object(
    schemaVersion=NUMBER,
    messagePublishResults={"type": "array", "items": _object(errorCode=NUMBER, schemaVersion=NUMBER)},
)

HASH_RANGE = _object(start=NUMBER, end=NUMBER)
IDS: Schema = {"type": "array", "items": NUMBER}
SEGMENT = _object(
    segmentId=NUMBER,
    hashRange=HASH_RANGE,
    state=TEXT,
    parentIds=IDS,
    childIds=IDS,
    createdAtEpoch=NUMBER,
    sealedAtEpoch=NUMBER,
    createdAtMs=NUMBER,
    sealedAtMs=NUMBER,
    active=FLAG,
    sealed=FLAG,
    root=FLAG,
    leaf=FLAG,
    legacy=FLAG,
)
SCALABLE = _object(epoch=NUMBER, nextSegmentId=NUMBER, segments=_map(SEGMENT), properties=WORDS)
SEGMENT_POSITION = _object(drained=FLAG, consumers=NUMBER)  # position, backlog and consumer may be null
WAITING: Schema = {
    **_map(IDS),
    "description": "Segments that no consumer gets until their ancestors are acknowledged, and these ancestors. "
    "Only stream and checkpoint subscriptions have some.",
}
SCALABLE_STATS = _object(
    epoch=NUMBER,
    incarnation=NUMBER,
    totalSegments=NUMBER,
    activeSegments=NUMBER,
    sealedSegments=NUMBER,
    segments=_map(
        {
            "type": "object",
            "required": ["hashRange", "name", "state"],
            "properties": {"name": TEXT, "state": TEXT, "hashRange": HASH_RANGE, "load": auto_scale.LOAD},
        }
    ),
    autoScale=auto_scale.IN_STATS,
    subscriptions=_map(_object(type=TEXT, consumerCount=NUMBER, waiting=WAITING, segments=_map(SEGMENT_POSITION))),
    leaderTerm=NUMBER,
    properties=WORDS,
)
SCALABLE_SUBSCRIPTION = _object(
    type=TEXT,
    start=TEXT,
    state=TEXT,
    generation=NUMBER,
    sessions={"type": "array", "items": _object(name=TEXT, connected=FLAG, segments=IDS)},
    drained=IDS,
    waiting=WAITING,
    backlog=_map(NUMBER),
    msgBacklog=NUMBER,
    segments=_map(SEGMENT_POSITION),
)
EVENTS: Schema = {"type": "string", "description": "server-sent events: layout, tick, stale, bye"}
ROW: Schema = {"type": "array"}
TIMELINE = _object(epoch=NUMBER, incarnation=NUMBER, columns=TEXTS, rows={"type": "array", "items": ROW}, count=NUMBER)
TICK = _object(t=NUMBER, epoch=NUMBER, active=NUMBER, segments={"type": "object"}, subscriptions={"type": "object"})

MIGRATION = {
    "type": "object",
    "required": ["phase", "targetUrl", "sourceUrl", "attempt", "counts", "participants", "error", "isBlocked"],
    "properties": {
        "phase": {"type": "string", "enum": ["NOT_STARTED", "PREPARATION", "COPYING", "COMPLETED", "FAILED"]},
        "targetUrl": TEXT,
        "sourceUrl": TEXT,
        "role": {"type": "string", "enum": ["source", "target"]},
        "attempt": NUMBER,
        "run": TEXT,
        "coordinator": TEXT,
        "subPhase": TEXT_OR_NULL,
        "startedMs": NUMBER,
        "timesMs": _map(NUMBER),
        "counts": _object(
            records=NUMBER, value_bytes=NUMBER, changed=NUMBER, ephemerals=NUMBER, verified=NUMBER, expected=NUMBER
        ),
        "error": TEXT_OR_NULL,
        "recordsPerSecond": AMOUNT,
        "restSeconds": {"type": ["number", "null"]},
        "participants": _map(TEXT),
        "isBlocked": FLAG,
        "blockedSeconds": AMOUNT,
        "blockedSinceMs": {"type": ["integer", "null"]},
        "waitingKeys": NUMBER,
        "pending": TEXTS,
        "allSwitched": FLAG,
        "settings": WORDS,
    },
}
COMPARISON = _object(source_records=NUMBER, target_records=NUMBER, different=NUMBER, keys=TEXTS)

MESSAGE = _object(id=TEXT, publishTimeMs=NUMBER, properties=WORDS, size=NUMBER)
MESSAGES: Schema = {"type": "array", "items": MESSAGE}
PUBLISHED = _object(results={"type": "array", "items": _object(segment=NUMBER)})
MESSAGE_PAGE = _object(messages=MESSAGES, next=TEXT, isEnd=FLAG)

RESULTS: dict[tuple[str, str], Schema] = {
    ("GET", "/anabranch/v1/scalable/{tenant}/{namespace}/{topic}/messages"): MESSAGES,
    ("GET", "/anabranch/v1/persistent/{tenant}/{namespace}/{topic}/messages"): MESSAGES,
    ("GET", "/anabranch/v1/access"): _object(
        readOnly=FLAG, calls={"type": "array", "items": _object(allowed=FLAG, reason=TEXT)}
    ),
    ("GET", "/anabranch/v1/machines"): {
        "type": "array",
        "items": _object(broker=TEXT, metadataMs={"type": "number"}, nowMs=NUMBER, clockSkewMs=NUMBER, sync=TEXT),
    },
    ("GET", "/anabranch/v1/operations"): {
        "type": "array",
        "items": _object(atMs=NUMBER, what=TEXT, method=TEXT, path=TEXT, status=NUMBER, error=TEXT, broker=TEXT),
    },
    ("GET", "{topic}/messages/page"): MESSAGE_PAGE,
    ("GET", "{topic}/messages/count"): _object(total=NUMBER, **{"from": NUMBER}),
    ("POST", "/anabranch/v1/scalable/{tenant}/{namespace}/{topic}/messages"): PUBLISHED,
    ("GET", "/anabranch/v1/scalable/{tenant}/{namespace}/{topic}/timeline"): TIMELINE,
    ("GET", "/anabranch/v1/scalable/{tenant}/{namespace}/{topic}/tick"): TICK,
    ("GET", "/anabranch/v1/scalable/{tenant}/{namespace}/{topic}/events"): EVENTS,
    ("GET", "/admin/v2/scalable/{tenant}/{namespace}"): TEXTS,
    ("GET", "/admin/v2/scalable/{tenant}/{namespace}/{topic}"): SCALABLE,
    ("GET", "/admin/v2/scalable/{tenant}/{namespace}/{topic}/stats"): SCALABLE_STATS,
    ("GET", "{topic}/autoscale"): auto_scale.STATUS,
    ("POST", "{topic}/autoscale/try"): auto_scale.TRIED,
    ("GET", "{topic}/autoscaler-metric"): auto_scale.METRIC,
    ("GET", "{topic}/migration"): topic_migration.STATUS,
    ("POST", "{topic}/migrate"): topic_migration.CHECK,
    ("POST", "{topic}/migrate-to-scalable"): topic_migration.CHECK,
    ("GET", "{topic}/subscriptions/{subscription}"): SCALABLE_SUBSCRIPTION,
    ("GET", "{descriptor}/subscription/{subscription}/backlog"): NUMBER,
    ("GET", "/lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}"): LOOKUP,
    ("GET", "/lookup/v2/destination/{domain}/{tenant}/{namespace}/{topic}"): LOOKUP,
    ("GET", "/admin/v2/clusters"): TEXTS,
    ("GET", "/admin/v2/clusters/{cluster}"): {"type": "object"},
    ("GET", "/admin/v2/tenants"): TEXTS,
    ("GET", "/admin/v2/tenants/{tenant}"): _object(allowedClusters=TEXTS),
    ("GET", "/admin/v2/namespaces/{tenant}"): TEXTS,
    ("GET", "/admin/v2/namespaces/{tenant}/{namespace}"): POLICIES,
    ("GET", "/admin/v2/namespaces/{tenant}/{namespace}/topics"): TEXTS,
    ("GET", "/admin/v2/namespaces/{tenant}/{namespace}/bundles"): BUNDLES,
    ("GET", "/admin/v2/namespaces/{tenant}/{namespace}/permissions"): ROLES,
    ("GET", "/admin/v2/namespaces/{tenant}/{namespace}/permissions/subscription"): ROLES,
    ("GET", "/admin/v2/namespaces/{tenant}/{namespace}/properties"): WORDS,
    ("GET", "/admin/v2/namespaces/{tenant}/{namespace}/replication"): TEXTS,
    ("GET", "/admin/v2/namespaces/{tenant}/{namespace}/allowedClusters"): TEXTS,
    ("GET", "/admin/v2/namespaces/{tenant}/{namespace}/backlogQuotaMap"): _map({"type": "object"}),
    ("GET", "/admin/v2/{domain}/{tenant}/{namespace}"): TEXTS,
    ("GET", "/admin/v2/{domain}/{tenant}/{namespace}/partitioned"): TEXTS,
    ("GET", "{topic}/partitions"): PARTITIONS,
    ("GET", "{topic}/policies"): _map({"type": "object", "required": ["enforced", "level", "value"]}),
    ("GET", "{topic}/stats"): STATS,
    ("GET", "{topic}/partitioned-stats"): {**STATS, "required": [*STATS["required"], "partitions", "metadata"]},
    ("GET", "{topic}/internalStats"): INTERNAL,
    ("GET", "{topic}/partitioned-internalStats"): _object(metadata=PARTITIONS, partitions=_map(INTERNAL)),
    ("GET", "{topic}/internal-info"): {"type": "object"},
    ("GET", "{topic}/permissions"): ROLES,
    ("GET", "{topic}/subscriptions"): TEXTS,
    ("GET", "{topic}/lastMessageId"): MESSAGE_ID,
    ("GET", "{topic}/messageid/{timestamp}"): MESSAGE_ID,
    ("POST", "{topic}/terminate"): MESSAGE_ID,
    ("POST", "{topic}/terminate/partitions"): _map(MESSAGE_ID),
    ("GET", "{topic}/compaction"): _object(status=TEXT, lastError=TEXT),
    ("PUT", "{topic}/backlogSize"): NUMBER,
    ("POST", "/analyzeBacklog"): _object(entries=NUMBER, messages=NUMBER, aborted=FLAG),
    ("GET", "/subscription/{subscription}/properties"): WORDS,
    ("GET", "/replicatedSubscriptionStatus"): _map(FLAG),
    ("GET", "{topic}/schema"): SCHEMA,
    ("GET", "{topic}/schema/{version}"): SCHEMA,
    ("GET", "{topic}/schemas"): _object(getSchemaResponses={"type": "array", "items": SCHEMA}),
    ("POST", "{topic}/schema"): _object(version=_object(version=NUMBER)),
    ("POST", "{topic}/compatibility"): _object(compatibility=FLAG, schemaCompatibilityStrategy=TEXT),
    ("POST", "{topic}/version"): _object(version=NUMBER),
    ("DELETE", "{topic}/schema"): _object(version=NUMBER),
    ("GET", "/admin/v2/brokers"): TEXTS,
    ("GET", "/admin/v2/brokers/{cluster}"): TEXTS,
    ("GET", "/admin/v2/brokers/{cluster}/details"): {"type": "array", "items": BROKER},
    ("GET", "/brokers/leaderBroker"): _object(serviceUrl=TEXT, brokerId=TEXT),
    ("GET", "/ownedNamespaces"): _map({"type": "object"}),
    ("GET", "/brokers/configuration"): TEXTS,
    ("GET", "/brokers/configuration/values"): WORDS,
    ("GET", "/brokers/configuration/runtime"): WORDS,
    ("GET", "/brokers/internal-configuration"): WORDS,
    ("GET", "/metadata/migration/status"): MIGRATION,
    ("POST", "/metadata/migration/verify"): COMPARISON,
    ("GET", "/anabranch/v1/ledgers"): _object(
        ledgers={"type": "array", "items": BOOKKEEPER_LEDGER}, next={"type": ["integer", "null"]}
    ),
    ("GET", "/anabranch/v1/ledgers/{ledger}"): {
        **BOOKKEEPER_LEDGER,
        "required": [*BOOKKEEPER_LEDGER["required"], "topic", "use", "replicas"],
    },
    ("POST", "/ledgers/{ledger}/recover"): BOOKKEEPER_LEDGER,
    ("GET", "/ledgers/check"): _object(
        bookies=WORDS, ledgers=NUMBER, foreign=NUMBER, underReplicated=FOUND, orphans=FOUND, missing=FOUND
    ),
    ("DELETE", "/ledgers/orphans"): _object(dryRun=FLAG, orphans=NUMBERS, deleted=NUMBERS, failed=WORDS, left=NUMBER),
    ("GET", "/broker-stats/topics"): _map(_map(_map(_map(STATS)))),
    ("POST", "/topics/{domain}/{tenant}/{namespace}/{topic}"): PUBLISHED,
}
"""Not listed: empty answers, bytes (messages), bare text sent as application/json (`ok`, a bundle's range); policies,
whose body is empty if they are not set."""
