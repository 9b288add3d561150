"""Stats of one subscription and its consumers, in the shape of Pulsar's stats JSON. Reads, changes nothing.

Rates of the subscription are over the last minute (`rate_sampler`), those of a consumer since it connected. Features
that do not exist (filters, replication) are shown as 0 or False, because tools expect the key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from anabranch.broker.subscription.consumer import Consumer
from anabranch.broker.subscription.subscription import Subscription
from anabranch.broker.topic.backlog_quota import bytes_after
from anabranch.broker.topic.non_persistent_topic import MemorySubscription
from anabranch.broker.topic.topic import Topic
from anabranch.broker.topic_registry.factory import AnyTopic
from anabranch.broker.topic_registry.rate_sampler import SubscriptionSample, delivery_totals
from anabranch.model.subscription_type import SubscriptionType
from anabranch.protocol.entry import publish_time_of

_READ_BYTES = 64 * 1024
_DRAINING = {"drainingHashesCount": 0, "drainingHashesUnackedMessages": 0}
_DRAINING_SHOWN_MAX = 1_000  # of one consumer
_ABSENT = {
    "isReplicated": False,
    "replicated": False,
    **{f"filter{what}MsgCount": 0 for what in ("Processed", "Accepted", "Rejected", "Rescheduled")},
}
_WITHOUT_LOG = {  # of a subscription without storage
    "backlogSize": 0,
    "earliestMsgPublishTimeInBacklog": 0,
    "msgRateExpired": 0.0,
    "msgExpired": 0,
    "totalMsgExpired": 0,
    "lastExpireTimestamp": 0,
    "nonContiguousDeletedMessagesRanges": 0,
    **{
        f"dispatchThrottled{what}EventsBy{by}Limit": 0
        for by in ("Subscription", "Topic", "Broker")
        for what in ("Msg", "Bytes")
    },
}


@dataclass(frozen=True, slots=True)
class StatsOptions:
    subscription_backlog_size: bool = True
    earliest_time: bool = False  # publish time of the oldest message of each backlog, read from the log
    exclude_publishers: bool = False
    exclude_consumers: bool = False


async def subscription_stats(
    topic: AnyTopic,
    subscription: Subscription | MemorySubscription,
    sample: SubscriptionSample,
    now_ms: int,
    options: StatsOptions,
) -> dict[str, Any]:
    consumers = [consumer_stats(consumer, now_ms) for consumer in subscription.consumers]
    keyed = subscription.key_shared if isinstance(subscription, Subscription) else None
    if keyed is not None:
        ranges, draining = keyed.ranges(), keyed.draining()
        for consumer, shown in zip(subscription.consumers, consumers, strict=True):
            shown.update(_slots(ranges[consumer], draining[consumer]))
    stats = {
        **{key: sum(one[key] for one in consumers) for key in _DRAINING},
        **_flow(subscription, sample),
        **await _waiting(subscription, consumers),
        **_kind(subscription),
        "consumers": [] if options.exclude_consumers else consumers,
        "consumersAfterMarkDeletePosition": {},
        "markDeletePosition": str(subscription.mark_delete),
        "subscriptionProperties": {},
        **_WITHOUT_LOG,
        **_ABSENT,
    }
    if isinstance(subscription, MemorySubscription):
        return {**stats, "msgDropRate": sample.rates[4]}
    assert isinstance(topic, Topic)
    return {**stats, **await _stored(topic, subscription, sample, options)}


def _flow(subscription: Subscription | MemorySubscription, sample: SubscriptionSample) -> dict[str, Any]:
    """Delivered messages, rates, and times of last activity."""
    messages_out, bytes_out = delivery_totals(subscription)[:2]
    return {
        "msgRateOut": sample.rates[0],
        "msgThroughputOut": sample.rates[1],
        "bytesOutCounter": bytes_out,
        "msgOutCounter": messages_out,
        "msgRateRedeliver": sample.rates[3],
        "messageAckRate": sample.rates[2],
        "lastConsumedFlowTimestamp": max(
            [subscription.departed.flow_ms, *(one.times.flow_ms for one in subscription.consumers)]
        ),
        "lastConsumedTimestamp": sample.out_ms,
        "lastAckedTimestamp": sample.acked_ms,
        "lastMarkDeleteAdvancedTimestamp": sample.mark_ms,
    }


async def _waiting(subscription: Subscription | MemorySubscription, consumers: list[dict[str, Any]]) -> dict[str, Any]:
    """The backlog and its state."""
    backlog, delayed = await subscription.backlog_messages(), subscription.delayed_count
    is_shared = subscription.type in (SubscriptionType.SHARED, SubscriptionType.KEY_SHARED)
    return {
        "msgBacklog": backlog,
        "msgBacklogNoDelayed": max(backlog - delayed, 0),
        "blockedSubscriptionOnUnackedMsgs": bool(consumers) and is_shared and subscription.is_blocked,
        "msgDelayed": delayed,
        "msgInReplay": subscription.replay_count,
        "unackedMessages": sum(one["unackedMessages"] for one in consumers),
    }


def _kind(subscription: Subscription | MemorySubscription) -> dict[str, Any]:
    kind, active = subscription.type, subscription.active_consumer
    stats: dict[str, Any] = {
        "type": kind.label if kind is not None else "None",
        "isDurable": subscription.is_durable,
        "durable": subscription.is_durable,
        "allowOutOfOrderDelivery": False,
    }
    if active is not None:
        stats["activeConsumerName"] = active.name
    if kind is SubscriptionType.KEY_SHARED and subscription.consumers:
        policy = subscription.consumers[0].spec.key_shared
        stats["keySharedMode"] = "STICKY" if policy.is_sticky else "AUTO_SPLIT"
        stats["allowOutOfOrderDelivery"] = policy.allow_out_of_order
    return stats


async def _stored(
    topic: Topic, subscription: Subscription, sample: SubscriptionSample, options: StatsOptions
) -> dict[str, Any]:
    """Fields of a subscription with a cursor."""
    size = bytes_after(topic.log.chain, subscription.mark_delete) if options.subscription_backlog_size else -1
    return {
        "backlogSize": size,
        "earliestMsgPublishTimeInBacklog": await _earliest(topic, subscription) if options.earliest_time else 0,
        "msgRateExpired": sample.rates[4],
        "msgExpired": subscription.entries_expired,
        "totalMsgExpired": subscription.entries_expired,
        "lastExpireTimestamp": subscription.last_expired_ms,
        "nonContiguousDeletedMessagesRanges": subscription.cursor.state.holes,
        "subscriptionProperties": dict(subscription.cursor.properties),
        "dispatchThrottledMsgEventsBySubscriptionLimit": subscription.throttled_times,
        "dispatchThrottledMsgEventsByTopicLimit": topic.rates.dispatch_times,
    }


async def _earliest(topic: Topic, subscription: Subscription) -> int:
    """Publish time of the oldest unacknowledged message; 0 without one."""
    if not subscription.cursor.has_backlog:
        return 0
    found = await topic.log.read(subscription.cursor.first_unacked(), 1, _READ_BYTES, topic.log.last_position)
    return publish_time_of(found[0].payload) if found else 0


def consumer_stats(consumer: Consumer, now_ms: int) -> dict[str, Any]:
    since, times = consumer.connected_ms, consumer.times
    return {
        "msgRateOut": rate_since(consumer.messages_out, since, now_ms),
        "msgThroughputOut": rate_since(consumer.bytes_out, since, now_ms),
        "bytesOutCounter": consumer.bytes_out,
        "msgOutCounter": consumer.messages_out,
        "msgRateRedeliver": rate_since(consumer.messages_redelivered, since, now_ms),
        "messageAckRate": rate_since(consumer.messages_acked, since, now_ms),
        **_DRAINING,
        "consumerName": consumer.name,
        "availablePermits": consumer.permits,
        "unackedMessages": consumer.unacked_messages,
        "blockedConsumerOnUnackedMsgs": consumer.is_blocked,
        "firstConsumedFlowTimestamp": times.first_flow_ms,
        "lastConsumedFlowTimestamp": times.flow_ms,
        "firstMessagesSentTimestamp": times.first_out_ms,
        "lastConsumedTimestamp": times.out_ms,
        "lastConsumedTime": when(times.out_ms),
        "lastAckedTimestamp": times.acked_ms,
        "lastAckedTime": when(times.acked_ms),
        "address": consumer.peer.address,
        "connectedSince": when(since),
        "clientVersion": consumer.peer.client_version,
        "metadata": dict(consumer.spec.metadata),
    }


def _slots(ranges: Sequence[tuple[int, int]], draining: Sequence[tuple[int, int, int]]) -> dict[str, Any]:
    """A consumer's part of the hash slots, and those that it must acknowledge before another owner gets them."""
    return {
        "keyHashRangeArrays": [list(one) for one in ranges],
        "drainingHashesCount": len(draining),
        "drainingHashesUnackedMessages": sum(unacked for _, unacked, _ in draining),
        "drainingHashes": [
            {"hash": slot, "unackMsgs": unacked, "blockedAttempts": behind}
            for slot, unacked, behind in draining[:_DRAINING_SHOWN_MAX]
        ],
    }


def when(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def rate_since(count: int, since_ms: int, now_ms: int) -> float:
    """Per second, over at least one second."""
    return count / max(1.0, (now_ms - since_ms) / 1000)
