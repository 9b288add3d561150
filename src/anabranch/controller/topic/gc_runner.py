"""Garbage collection of one topic, led here: asks what `gc.decide` needs to know, and has pruned what may go.

Owners are only asked about segments that retention would let go: who is through with them, and whose cursors they have.
A cursor that the registry does not know holds a segment like one that it knows. Runs when a sweep comes by, never by
itself; two at a time do not harm each other, because pruning is one compare-and-set.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from anabranch.controller import segment_host as host
from anabranch.controller.group.group_events import (
    GroupSeen,
)
from anabranch.controller.record_store import Records
from anabranch.controller.records.subscription_registry import Registry, SubscriptionState
from anabranch.controller.records.topic_record import TopicRecord
from anabranch.controller.segment_host import SegmentRef, Status
from anabranch.controller.topic import gc_policy as gc
from anabranch.controller.topic import operation_events as steps
from anabranch.controller.topic.gc_policy import Progress, Retention, Verdict
from anabranch.controller.topic.topic_controller import TopicController
from anabranch.model.segment import backing_topic

log = logging.getLogger(__name__)

ASK_TOGETHER = 16


async def collect(
    leader: TopicController, records: Records, *, retention: Retention, sizes: Mapping[int, int], operation_id: str
) -> Verdict | None:
    """What was decided, and done. None: nothing could be decided now. Raises what stores and owners raise."""
    record, registry = await leader.wait_leading(), leader.registry
    if record.operation is not None or registry is None or registry.incarnation != record.incarnation:
        return None
    now_ms = leader.clock.now_ms()
    hopeful = gc.decide(record, now_ms=now_ms, retention=retention, subscriptions={}, sizes=sizes, holds={})
    if not hopeful.prune:
        return hopeful
    statuses = await _statuses(leader, record, hopeful.prune)
    progress = await _progress(leader, records, record, registry, statuses)
    verdict = gc.decide(record, now_ms=now_ms, retention=retention, subscriptions=progress, sizes=sizes, holds={})
    prune = tuple(one for one in verdict.prune if one in statuses)
    if leader.registry is not registry or leader.record is not record or not leader.has_no_pending_calls:
        return None  # a subscription or the layout changed while we asked, or will: the next sweep looks again
    if prune:
        log.info("segments collected", extra={"topic": str(leader.topic), "segments": prune})
        await leader.ask(steps.PruneCall(operation_id, prune))
    return verdict


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
    leader: TopicController, records: Records, record: TopicRecord, registry: Registry, statuses: Mapping[int, Status]
) -> dict[str, Progress]:
    """By subscription: registered ones, and whoever else has a cursor on a segment that would go."""
    drained: dict[str, set[int]] = {}
    unknown: set[str] = set()
    for segment_id, status in statuses.items():
        unknown |= status.cursors - registry.subscriptions.keys()
        for name, _ in status.drained:
            drained.setdefault(name, set()).add(segment_id)
        if not status.exists:  # nothing is there that anybody could read
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


async def _completed(leader: TopicController, records: Records, record: TopicRecord, name: str) -> frozenset[int]:
    """Of a checkpoint group: what its members have said."""
    members = leader.members.get(name)
    if members is not None and members.group.is_ready:
        return members.group.drain.drained
    seen = await records.load_group(leader.topic, record.incarnation, name)
    if isinstance(seen, GroupSeen) and seen.record is not None:
        return frozenset(seen.record.drain.drained)
    return frozenset()
