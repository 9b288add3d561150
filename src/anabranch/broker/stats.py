"""What a topic tells about itself, in the shape of Pulsar's stats JSON. Reads topics, changes nothing."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from anabranch.broker.consumer import Consumer
from anabranch.broker.memorytopic import MemorySubscription
from anabranch.broker.producer import Producer
from anabranch.broker.subscription import Subscription
from anabranch.broker.topic import Topic
from anabranch.broker.topics import AnyTopic


def when(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")


async def topic_stats(topic: AnyTopic, now_ms: int) -> dict[str, Any]:
    attached: list[Subscription | MemorySubscription] = list(topic.subscriptions.values())
    subscriptions = {one.name: await _subscription(one, now_ms) for one in attached}
    stored = topic.log.stats() if isinstance(topic, Topic) else None
    return {
        "msgRateIn": sum(_rate(p.messages_in, p.connected_ms, now_ms) for p in topic.producers.values()),
        "msgThroughputIn": sum(_rate(p.bytes_in, p.connected_ms, now_ms) for p in topic.producers.values()),
        "msgRateOut": sum(s["msgRateOut"] for s in subscriptions.values()),
        "msgThroughputOut": sum(s["msgThroughputOut"] for s in subscriptions.values()),
        "bytesInCounter": topic.bytes_in,
        "msgInCounter": topic.messages_in,
        "bytesOutCounter": sum(s["bytesOutCounter"] for s in subscriptions.values()),
        "msgOutCounter": sum(s["msgOutCounter"] for s in subscriptions.values()),
        "averageMsgSize": topic.bytes_in / topic.messages_in if topic.messages_in else 0.0,
        "storageSize": stored.bytes if stored is not None else 0,
        "backlogSize": stored.bytes
        if stored is not None and any(s["msgBacklog"] for s in subscriptions.values())
        else 0,
        "publishers": [_publisher(producer, now_ms) for producer in topic.producers.values()],
        "subscriptions": subscriptions,
        "replication": {},
        "deduplicationStatus": "Enabled" if topic.deduplicates else "Disabled",
    }


async def _subscription(subscription: Subscription | MemorySubscription, now_ms: int) -> dict[str, Any]:
    consumers = [_consumer(consumer, now_ms) for consumer in subscription.consumers]
    active = subscription.active_consumer
    return {
        "msgRateOut": sum(c["msgRateOut"] for c in consumers),
        "msgThroughputOut": sum(c["msgThroughputOut"] for c in consumers),
        "bytesOutCounter": sum(c["bytesOutCounter"] for c in consumers),
        "msgOutCounter": sum(c["msgOutCounter"] for c in consumers),
        "msgBacklog": await subscription.backlog_messages(),
        "msgDelayed": subscription.delayed_count,
        "unackedMessages": sum(c["unackedMessages"] for c in consumers),
        "type": subscription.type.label if subscription.type is not None and consumers else "None",
        "activeConsumerName": active.name if active is not None else "",
        "consumers": consumers,
        "isDurable": subscription.is_durable,
        "markDeletePosition": str(subscription.mark_delete),
        "subscriptionProperties": dict(subscription.cursor.properties)
        if isinstance(subscription, Subscription)
        else {},
    }


def _consumer(consumer: Consumer, now_ms: int) -> dict[str, Any]:
    return {
        "msgRateOut": _rate(consumer.messages_out, consumer.connected_ms, now_ms),
        "msgThroughputOut": _rate(consumer.bytes_out, consumer.connected_ms, now_ms),
        "bytesOutCounter": consumer.bytes_out,
        "msgOutCounter": consumer.messages_out,
        "consumerName": consumer.name,
        "availablePermits": consumer.permits,
        "unackedMessages": consumer.unacked_messages,
        "blockedConsumerOnUnackedMsgs": consumer.is_blocked,
        "address": consumer.peer.address,
        "connectedSince": when(consumer.connected_ms),
        "clientVersion": consumer.peer.client_version,
        "metadata": dict(consumer.spec.metadata),
    }


def _publisher(producer: Producer, now_ms: int) -> dict[str, Any]:
    return {
        "producerId": producer.producer_id,
        "producerName": producer.name,
        "accessMode": producer.mode.name,
        "msgRateIn": _rate(producer.messages_in, producer.connected_ms, now_ms),
        "msgThroughputIn": _rate(producer.bytes_in, producer.connected_ms, now_ms),
        "averageMsgSize": producer.bytes_in / producer.messages_in if producer.messages_in else 0.0,
        "address": producer.peer.address,
        "connectedSince": when(producer.connected_ms),
        "clientVersion": producer.peer.client_version,
        "metadata": dict(producer.metadata),
    }


def _rate(count: int, since_ms: int, now_ms: int) -> float:
    return count / max(1.0, (now_ms - since_ms) / 1000)


def internal_stats(topic: Topic) -> dict[str, Any]:
    stored = topic.log.stats()
    return {
        "entriesAddedCounter": stored.entries,
        "numberOfEntries": stored.entries,
        "totalSize": stored.bytes,
        "lastConfirmedEntry": str(stored.last_position),
        "state": "Terminated" if stored.is_terminated else "LedgerOpened",
        "corruptEntries": stored.corrupt_entries,
        "ledgers": [
            {"ledgerId": one.id, "entries": one.entries, "size": one.bytes, "messages": one.messages}
            for one in stored.ledgers
        ],
        "cursors": {
            one.name: {
                "markDeletePosition": str(one.mark_delete),
                "individuallyDeletedMessages": one.holes,
                "numberOfEntriesSinceFirstNotAckedMessage": one.backlog_entries,
                "state": "Open" if one.is_durable else "NonDurable",
            }
            for one in stored.cursors
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
            elif isinstance(value, (int, float, list)):
                total[key] = known + value
            elif isinstance(value, dict):
                total[key] = merged([known, value])
    return total
