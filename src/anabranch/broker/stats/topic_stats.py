"""Stats of one topic, in the shape of Pulsar's stats JSON. Reads topics, changes nothing.

Rates of topics are over the last minute (`rate_sampler`), those of a producer since it connected. Features that do not
exist (offloading, transactions) are shown as 0, because tools expect the key. What is not measured has no key.
"""

from __future__ import annotations

from typing import Any

from anabranch.broker.publish.producer import Producer
from anabranch.broker.stats.subscription_stats import StatsOptions, rate_since, subscription_stats, when
from anabranch.broker.subscription.subscription import Subscription
from anabranch.broker.topic.backlog_quota import bytes_after
from anabranch.broker.topic.compaction import CompactionStats
from anabranch.broker.topic.non_persistent_topic import MemorySubscription, NonPersistentTopic
from anabranch.broker.topic.topic import Topic
from anabranch.broker.topic_registry.factory import AnyTopic
from anabranch.broker.topic_registry.rate_sampler import SubscriptionSample, TopicSample

_ABSENT_IN_TOPIC = {
    "systemTopicBytesInCounter": 0,
    "bytesOutInternalCounter": 0,
    "offloadedStorageSize": 0,
    "lastOffloadLedgerId": 0,
    "lastOffloadSuccessTimeStamp": 0,
    "lastOffloadFailureTimeStamp": 0,
    "ongoingTxnCount": 0,
    "abortedTxnCount": 0,
    "committedTxnCount": 0,
}
_LARGEST = {  # fields of partitions that are not summed: the largest counts
    "backlogQuotaLimitSize",
    "backlogQuotaLimitTime",
    "oldestBacklogMessageAgeSeconds",
    *(f"lastCompaction{what}" for what in ("SucceedTimestamp", "FailedTimestamp", "DurationTimeInMills")),
    *(f"last{what}Timestamp" for what in ("Expire", "ConsumedFlow", "Consumed", "Acked", "MarkDeleteAdvanced")),
    "lastPublishTimeStamp",
}
_EARLIEST = {"earliestMsgPublishTimeInBacklogs", "earliestMsgPublishTimeInBacklog", "topicCreationTimeStamp"}


async def topic_stats(
    topic: AnyTopic, sample: TopicSample, now_ms: int, broker: str, options: StatsOptions
) -> dict[str, Any]:
    attached: list[Subscription | MemorySubscription] = list(topic.subscriptions.values())
    samples = sample.subscriptions
    subscriptions = {
        one.name: await subscription_stats(topic, one, samples.get(one.name) or SubscriptionSample(), now_ms, options)
        for one in attached
    }
    stored = topic.log.stats() if isinstance(topic, Topic) else None
    earliest = [one["earliestMsgPublishTimeInBacklog"] for one in subscriptions.values()]
    policies = topic.policies
    stats = {
        "msgRateIn": sample.rates[0],
        "msgThroughputIn": sample.rates[1],
        "msgRateOut": sample.rates[2],
        "msgThroughputOut": sample.rates[3],
        "bytesInCounter": topic.bytes_in,
        "msgInCounter": topic.messages_in,
        "bytesOutCounter": sum(s["bytesOutCounter"] for s in subscriptions.values()),
        "msgOutCounter": sum(s["msgOutCounter"] for s in subscriptions.values()),
        "averageMsgSize": topic.bytes_in / topic.messages_in if topic.messages_in else 0.0,
        "storageSize": stored.bytes if stored is not None else 0,
        "backlogSize": _largest_backlog(topic),
        "backlogQuotaLimitSize": policies.size_quota.limit if policies.size_quota is not None else -1,
        "backlogQuotaLimitTime": policies.age_quota.limit if policies.age_quota is not None else -1,
        "oldestBacklogMessageAgeSeconds": await _oldest_age(topic) if options.earliest_time else -1,
        "publishRateLimitedTimes": topic.rates.publish_times,
        "earliestMsgPublishTimeInBacklogs": min((at for at in earliest if at), default=0),
        "publishers": []
        if options.exclude_publishers
        else [_publisher(producer, now_ms) for producer in topic.producers.values()],
        "msgChunkPublished": any(producer.chunks_in for producer in topic.producers.values()),
        "waitingPublishers": topic.waiting_producers,
        "subscriptions": subscriptions,
        "replication": {},
        "nonContiguousDeletedMessagesRanges": sum(
            s["nonContiguousDeletedMessagesRanges"] for s in subscriptions.values()
        ),
        "compaction": _compaction(topic),
        "ownerBroker": broker,
        "lastPublishTimeStamp": sample.published_ms,
        "topicCreationTimeStamp": stored.created_ms if stored is not None else 0,
        **_ABSENT_IN_TOPIC,
    }
    if isinstance(topic, NonPersistentTopic):
        drops = sum(one["msgDropRate"] for one in subscriptions.values())
        return {**stats, "topicCreationTimeStamp": topic.created_ms, "msgDropRate": drops}
    return {**stats, "deduplicationStatus": "Enabled" if topic.deduplication.is_on else "Disabled"}


def _compaction(topic: AnyTopic) -> dict[str, int]:
    stats = topic.compactor.stats if isinstance(topic, Topic) else CompactionStats()
    return {
        "lastCompactionRemovedEventCount": stats.removed,
        "lastCompactionSucceedTimestamp": stats.succeeded_ms,
        "lastCompactionFailedTimestamp": stats.failed_ms,
        "lastCompactionDurationTimeInMills": stats.duration_ms,
    }


def _largest_backlog(topic: AnyTopic) -> int:
    if isinstance(topic, NonPersistentTopic):
        return 0
    chain = topic.log.chain
    return max((bytes_after(chain, one.mark_delete) for one in topic.subscriptions.values()), default=0)


async def _oldest_age(topic: AnyTopic) -> int:
    """Seconds; -1 without a backlog."""
    age_ms = await topic.housekeeping.oldest_age_ms() if isinstance(topic, Topic) else -1
    return age_ms // 1000 if age_ms >= 0 else -1


def _publisher(producer: Producer, now_ms: int) -> dict[str, Any]:
    return {
        "producerId": producer.producer_id,
        "producerName": producer.name,
        "accessMode": producer.mode.label,
        "msgRateIn": rate_since(producer.messages_in, producer.connected_ms, now_ms),
        "msgThroughputIn": rate_since(producer.bytes_in, producer.connected_ms, now_ms),
        "averageMsgSize": producer.bytes_in / producer.messages_in if producer.messages_in else 0.0,
        "chunkedMessageRate": rate_since(producer.chunks_in, producer.connected_ms, now_ms),
        "supportsPartialProducer": False,
        "address": producer.peer.address,
        "connectedSince": when(producer.connected_ms),
        "clientVersion": producer.peer.client_version,
        "metadata": dict(producer.metadata),
    }


def internal_stats(topic: Topic) -> dict[str, Any]:
    stored = topic.log.stats()
    view = topic.log.compacted
    tail = stored.ledgers[-1] if stored.ledgers and not stored.ledgers[-1].is_sealed else None
    return {
        "entriesAddedCounter": stored.entries,
        "numberOfEntries": stored.entries,
        "totalSize": stored.bytes,
        "currentLedgerEntries": tail.entries if tail is not None else 0,
        "currentLedgerSize": tail.bytes if tail is not None else 0,
        "waitingCursorsCount": 0,
        "pendingAddEntriesCount": 0,
        "lastConfirmedEntry": str(stored.last_position),
        "state": "Terminated" if stored.is_terminated else "LedgerOpened",
        "corruptEntries": stored.corrupt_entries,
        "ledgers": [
            {
                "ledgerId": one.id,
                "entries": one.entries,
                "size": one.bytes,
                "messages": one.messages,
                "offloaded": False,
                "underReplicated": False,
            }
            for one in stored.ledgers
        ],
        "cursors": {
            one.name: {
                "markDeletePosition": str(one.mark_delete),
                "waitingReadOp": False,
                "pendingReadOps": 0,
                "cursorLedger": -1,
                "cursorLedgerLastEntry": -1,
                "individuallyDeletedMessages": one.holes,
                "numberOfEntriesSinceFirstNotAckedMessage": one.backlog_entries,
                "totalNonContiguousDeletedMessagesRange": one.holes,
                "state": "Open" if one.is_durable else "NonDurable",
                "properties": {},
            }
            for one in stored.cursors
        },
        "schemaLedgers": [],
        "compactedLedger": {
            "ledgerId": -1 if view is None else view.row.ledger,
            "entries": -1 if view is None else view.row.entries,
            "size": -1 if view is None else view.row.bytes,
            "offloaded": False,
            "underReplicated": False,
        },
    }


def merged(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Stats of a partitioned topic: numbers add up, subscriptions merge by name, lists are joined."""
    total: dict[str, Any] = {}
    for part in parts:
        for key, value in part.items():
            known = total.get(key)
            if known is None:
                total[key] = merged([value]) if isinstance(value, dict) else value
            elif isinstance(value, (bool, str)):
                continue
            elif key in _LARGEST:
                total[key] = max(known, value)
            elif key in _EARLIEST:
                total[key] = min(known, value) if known and value else known or value
            elif isinstance(value, (int, float, list)):
                total[key] = known + value
            elif isinstance(value, dict):
                total[key] = merged([known, value])
    if total.get("msgInCounter") and "averageMsgSize" in total:
        total["averageMsgSize"] = total["bytesInCounter"] / total["msgInCounter"]
    for key in ("ownerBroker", "deduplicationStatus"):
        total.pop(key, None)
    return total
