"""Garbage collection of one led topic: gathers the input of `gc_policy.decide` and prunes what it allows.

Owners are asked only about segments whose retention is over: which subscriptions have drained them, and which cursors
they have. A cursor that the registry does not know keeps a segment like a known one. It runs in the periodic sweep; two
concurrent runs are harmless, because pruning is one compare-and-set.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from anabranch.controller import segment_host as host
from anabranch.controller.group.group_events import (
    GroupSeen,
)
from anabranch.controller.record_store import RecordStore
from anabranch.controller.records.subscription_registry import Registry, SubscriptionState
from anabranch.controller.records.topic_record import TopicRecord
from anabranch.controller.segment_host import SegmentRef, Status
from anabranch.controller.topic import gc_policy as gc
from anabranch.controller.topic import operation_events as steps
from anabranch.controller.topic.gc_policy import GcDecision, Progress, Retention
from anabranch.controller.topic.topic_controller import TopicController
from anabranch.model.segment import backing_topic
from anabranch.runtime.logs import get_logger

log = get_logger(__name__)

ASK_TOGETHER = 16


async def collect(
    leader: TopicController, records: RecordStore, *, retention: Retention, sizes: Mapping[int, int], operation_id: str
) -> GcDecision | None:
    """The decision, after it is carried out. None: no decision is possible now. Raises errors of store and owners."""
    record, registry = await leader.wait_leading(), leader.registry
    if record.operation is not None or registry is None or registry.incarnation != record.incarnation:
        return None
    now_ms = leader.clock.now_ms()
    hopeful = gc.decide(record, now_ms=now_ms, retention=retention, subscriptions={}, sizes=sizes, holds={})
    if not hopeful.prune:
        return hopeful
    statuses = await _statuses(leader, record, hopeful.prune)
    progress = await _progress(leader, records, record, registry, statuses)
    decision = gc.decide(record, now_ms=now_ms, retention=retention, subscriptions=progress, sizes=sizes, holds={})
    prune = tuple(one for one in decision.prune if one in statuses)
    if leader.registry is not registry or leader.record is not record or not leader.has_no_pending_calls:
        return None  # subscriptions or layout have changed meanwhile, or will: the next sweep decides
    if prune:
        log.info("deleting sealed segments past their retention", extra={"topic": str(leader.topic), "segments": prune})
        await leader.ask(steps.PruneCall(operation_id, prune))
    return decision


async def _statuses(leader: TopicController, record: TopicRecord, segment_ids: tuple[int, ...]) -> dict[int, Status]:
    async def ask(segment_id: int) -> Status:
        ref = SegmentRef(backing_topic(leader.topic, record.segments[segment_id]), record.incarnation, segment_id)
        status = await leader.ask_host(host.Fence("collect", ref))
        assert isinstance(status, Status)
        return status

    found: dict[int, Status] = {}
    for start in range(0, len(segment_ids), ASK_TOGETHER):
        some = segment_ids[start : start + ASK_TOGETHER]
        found.update(zip(some, await asyncio.gather(*map(ask, some)), strict=True))
    return found


async def _progress(
    leader: TopicController,
    records: RecordStore,
    record: TopicRecord,
    registry: Registry,
    statuses: Mapping[int, Status],
) -> dict[str, Progress]:
    """By subscription: registered ones, and unknown ones with a cursor on one of these segments."""
    drained: dict[str, set[int]] = {}
    unknown: set[str] = set()
    for segment_id, status in statuses.items():
        unknown |= status.cursors - registry.subscriptions.keys()
        for name, _ in status.drained:
            drained.setdefault(name, set()).add(segment_id)
        if not status.exists:  # there is nothing to read
            for name in registry.subscriptions:
                drained.setdefault(name, set()).add(segment_id)
    found = {name: Progress(frozenset(drained.get(name, ()))) for name in unknown}
    for name, one in registry.subscriptions.items():
        is_settled = one.state is SubscriptionState.READY and one.move is None
        through = frozenset(drained.get(name, ()))
        if not one.kind.has_cursors:
            through = await _completed(leader, records, record, name)
        found[name] = Progress(through, is_settled)
    return found


async def _completed(leader: TopicController, records: RecordStore, record: TopicRecord, name: str) -> frozenset[int]:
    """Segments that the members of a checkpoint group have reported as completed."""
    members = leader.members.get(name)
    if members is not None and members.group.is_ready:
        return members.group.drain.drained
    seen = await records.load_group(leader.topic, record.incarnation, name)
    if isinstance(seen, GroupSeen) and seen.record is not None:
        return frozenset(seen.record.drain.drained)
    return frozenset()
