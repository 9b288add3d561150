"""Status of led topics as plain values, for REST, the command line and metrics."""

from __future__ import annotations

from typing import Any

from anabranch.controller.group.group_coordinator import GroupCoordinator
from anabranch.controller.interface import LedGroup, LedTopic, ScalingCounts
from anabranch.controller.records.subscription_registry import SubscriptionKind
from anabranch.controller.records.topic_record import TopicRecord
from anabranch.controller.segment_host import SegmentHost, SegmentRef, SegmentStats
from anabranch.controller.topic.topic_controller import TopicController
from anabranch.model.names import TopicName
from anabranch.model.segment import backing_topic


def topic_status(leader: TopicController) -> dict[str, Any]:
    """`operation` is the running one or None; `subscriptions` by name, ordered ones with their consumers."""
    record = leader.record
    assert record is not None
    running = record.operation
    return {
        "leaderTerm": leader.term,
        "operation": None
        if running is None
        else {
            "id": running.operation_id,
            "kind": running.plan.kind.value,
            "parents": list(running.plan.parent_ids),
            "children": list(running.plan.child_ids),
            "phase": (leader.phase or running.phase).value,
            "startedAtMs": running.started_at_ms,
            "reason": running.reason,
        },
        "garbage": [segment.segment_id for segment in record.garbage],
        "subscriptions": subscriptions_of(leader),
    }


def subscriptions_of(leader: TopicController) -> dict[str, Any]:
    registry = leader.registry
    found: dict[str, Any] = {}
    for name, one in sorted(() if registry is None else registry.subscriptions.items()):
        found[name] = {
            "type": one.kind.value,
            "state": one.state.value,
            "initialPosition": one.start.value,
            "createdAtMs": one.created_at_ms,
            "consumerCount": 0,
            "waiting": {},
        }
        if one.kind is not SubscriptionKind.QUEUE and (members := leader.members.get(name)) is not None:
            found[name] |= _group_of(members)
    return found


def _group_of(members: GroupCoordinator) -> dict[str, Any]:
    group = members.group
    stored, sessions = group.assignment.record(), group.sessions
    leaving = {str(one): it.holder for one, it in sorted(stored.leaving.items())}
    return {
        "consumerCount": len(sessions.names),
        "generation": stored.generation,
        "consumers": {
            name: {
                "connected": sessions.connection(name) is not None,
                "segments": list(group.assignment.assigned(name).segment_ids) if name in stored.owned else [],
            }
            for name in sorted(sessions.names)
        },
        "leaving": leaving,
        "drained": sorted(group.drain.drained),
        "waiting": {str(one): list(ancestors) for one, ancestors in group.waiting.items()},
        "positions": {
            str(one): f"{reached.passed.ledger}:{reached.passed.entry}"
            for one, reached in sorted(group.progress.reached.items())
        },
    }


def led_topic(leader: TopicController) -> LedTopic | None:
    """Statistics of the topic; None before its record is loaded."""
    record = leader.record
    if record is None:
        return None
    active = len(record.layout.active)
    groups = tuple(
        LedGroup(
            name,
            len(members.group.sessions.names),
            members.group.assignment.generation,
            len(members.group.drain.drained),
            len(members.group.waiting),
        )
        for name, members in sorted(leader.members.items())
    )
    is_changing = record.operation is not None or record.is_deleting
    sealed = len(record.segments) - active
    counts = ScalingCounts() if leader.scaler is None else leader.scaler.counts
    return LedTopic(leader.topic, record.epoch, active, sealed, is_changing, groups, counts)


async def segment_stats(host: SegmentHost, topic: TopicName, record: TopicRecord) -> dict[int, SegmentStats]:
    """By segment id. Segments whose owner does not answer are missing."""
    ordered = list(record.segments.values())
    refs = [SegmentRef(backing_topic(topic, one), record.incarnation, one.segment_id) for one in ordered]
    found = zip(ordered, await host.measure(refs), strict=True)
    return {segment.segment_id: stats for segment, stats in found if stats is not None}
