"""Structural changes of a layout. Each one replaces N active parents by M children: it is planned, then applied.

| kind      | parents                       | children                                            | routing after |
|-----------|-------------------------------|-----------------------------------------------------|---------------|
| SPLIT     | one                           | k ≥ 2, at even or given points                      | the same      |
| MERGE     | a run of ≥ 2 neighbours       | one                                                 | the same      |
| MIGRATION | all of a synthetic layout (N) | N of a fresh ring; the parents then span all of it  | by range      |

A plan fixes the ids of its children, so a controller that resumes it creates the same segments. Applying it raises the
epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from anabranch.model.hashrange import FULL, BadRange, HashRange, initial_ranges, joined
from anabranch.model.layout import NO_LIMITS, Layout, LayoutLimits
from anabranch.model.routing import RANGE_LOW16, Routing, RoutingKind
from anabranch.model.segment import (
    BadLayout,
    BadMerge,
    BadSplit,
    DagTooDeep,
    Seal,
    Segment,
    SegmentNotActive,
    bucket_splits,
)


class OperationKind(StrEnum):
    SPLIT = "SPLIT"
    MERGE = "MERGE"
    MIGRATION = "MIGRATION"


@dataclass(frozen=True, slots=True)
class Replacement:
    """The plan of one structural change. `children` are the segments as they will be after it."""

    kind: OperationKind
    parent_ids: tuple[int, ...]  # in ring order
    children: tuple[Segment, ...]  # in ring order, ids ascending
    routing: Routing

    @property
    def child_ids(self) -> tuple[int, ...]:
        return tuple(child.segment_id for child in self.children)


def plan_split(
    layout: Layout,
    segment_id: int,
    *,
    ways: int = 2,
    points: Sequence[int] | None = None,
    now_ms: int,
    limits: LayoutLimits,
) -> Replacement:
    """Split one segment into `ways` equal parts, or at the given ring positions (the first of each further part)."""
    parent = _active(layout, segment_id)
    if layout.routing.kind is not RoutingKind.RANGE:
        raise BadSplit(f"segment {segment_id} is a partition of a regular topic: migrate the topic first")
    count = ways if points is None else len(points) + 1
    if count < 2:
        raise BadSplit(f"a split needs at least two parts, not {count}")
    try:
        ranges = parent.hash_range.split(parent.hash_range.even_points(ways) if points is None else points)
    except BadRange as error:
        raise BadSplit(f"segment {segment_id}: {error}") from error
    limits.check_active(len(layout.active) - 1 + count)
    buckets = max(1, (len(parent.entry_bucket_splits) + 1) // count)
    return _plan(layout, OperationKind.SPLIT, [parent], ranges, now_ms, buckets, parent.merge_depth_at(now_ms))


def plan_merge(layout: Layout, segment_ids: Iterable[int], *, now_ms: int, limits: LayoutLimits) -> Replacement:
    """Merge a run of neighbouring active segments, named in any order."""
    parents = sorted((_active(layout, one) for one in segment_ids), key=lambda segment: segment.hash_range)
    named = ", ".join(str(parent.segment_id) for parent in parents)
    if layout.routing.kind is not RoutingKind.RANGE:
        raise BadMerge("the segments are partitions of a regular topic: migrate the topic first")
    if len(parents) < 2:
        raise BadMerge("a merge needs at least two segments")
    whole = joined(parent.hash_range for parent in parents)
    if whole is None:
        raise BadMerge(f"segments {named} are not neighbours on the ring")
    depth = max(parent.merge_depth_at(now_ms) for parent in parents) + 1
    if depth > limits.dag_depth_max:
        raise DagTooDeep(
            f"merging {named} needs {depth} merges upon each other, more than the limit of {limits.dag_depth_max}"
        )
    buckets = sum(len(parent.entry_bucket_splits) + 1 for parent in parents)
    return _plan(
        layout, OperationKind.MERGE, parents, [whole], now_ms, 1 if buckets == len(parents) else buckets, depth
    )


def plan_migration(
    layout: Layout,
    *,
    now_ms: int,
    limits: LayoutLimits = NO_LIMITS,
    routing: Routing = RANGE_LOW16,
    bucket_budget: int = 1,
) -> Replacement:
    """Turn a synthetic layout of N partitions into N real segments. The layout keeps the hash of the partitions. The
    limit of a topic's segments bounds splits only, so a topic may be migrated with more."""
    if layout.routing.kind is not RoutingKind.MOD_N:
        raise BadSplit("the topic is scalable already")
    count = len(layout.active)
    limits.check_active(count)
    buckets = max(1, bucket_budget // count)
    plan = _plan(layout, OperationKind.MIGRATION, list(layout.active), initial_ranges(count), now_ms, buckets, 0)
    return replace(plan, routing=replace(routing, partition_hash=layout.routing.partition_hash))


def reserved(layout: Layout, plan: Replacement) -> Layout:
    """The layout with the plan's ids reserved: they are never used again, even if the plan is aborted."""
    if plan.children[0].segment_id < layout.next_segment_id:
        raise BadLayout(f"segment id {plan.children[0].segment_id} is taken: next is {layout.next_segment_id}")
    return replace(layout, next_segment_id=plan.children[-1].segment_id + 1)


def replaced(layout: Layout, plan: Replacement, seals: Mapping[int, Seal]) -> Layout:
    """Apply the plan: parents SEALED, children ACTIVE, epoch + 1. Needs a seal for every parent."""
    segments = dict(layout.segments)
    parents = [_active(layout, one) for one in plan.parent_ids]
    if any(child.segment_id in segments for child in plan.children):
        raise BadLayout(f"the children {list(plan.child_ids)} exist already")
    if plan.children[-1].segment_id >= layout.next_segment_id:
        raise BadLayout(f"the ids {list(plan.child_ids)} were not reserved")
    before, after = (joined(one.hash_range for one in some) for some in (parents, plan.children))
    if before is None or before != after:
        raise BadLayout(f"children of range {after} do not replace parents of range {before}")
    epoch, child_ids = layout.epoch + 1, plan.child_ids
    for parent in parents:
        done = parent.sealed(epoch, seals[parent.segment_id], child_ids)
        # Mod-n routing puts any key into any partition, so for questions about keys the range is the full ring.
        segments[parent.segment_id] = (
            done if layout.routing.kind is RoutingKind.RANGE else replace(done, hash_range=FULL)
        )
    for child in plan.children:
        segments[child.segment_id] = replace(child, created_at_epoch=epoch)
    return replace(layout, epoch=epoch, segments=segments, routing=plan.routing)


def _active(layout: Layout, segment_id: int) -> Segment:
    segment = layout[segment_id]
    if not segment.is_active:
        raise SegmentNotActive(f"segment {segment_id} is sealed since epoch {segment.sealed_at_epoch}")
    return segment


def _plan(
    layout: Layout,
    kind: OperationKind,
    parents: Sequence[Segment],
    ranges: Sequence[HashRange],
    now_ms: int,
    buckets: int,
    merge_depth: int,
) -> Replacement:
    parent_ids = tuple(sorted(parent.segment_id for parent in parents))
    children = tuple(
        Segment(
            segment_id,
            hash_range,
            parent_ids=parent_ids,
            created_at_epoch=layout.epoch + 1,
            created_at_ms=now_ms,  # children are written to before the change is committed, so they begin with the plan
            entry_bucket_splits=bucket_splits(buckets),
            merge_depth=merge_depth,
        )
        for segment_id, hash_range in enumerate(ranges, layout.next_segment_id)
    )
    return Replacement(kind, tuple(parent.segment_id for parent in parents), children, layout.routing)
