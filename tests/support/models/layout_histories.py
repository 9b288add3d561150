"""Random histories of layouts for property tests: any mix of k-way splits, merges, migrations and prunings."""

from __future__ import annotations

from hypothesis import strategies as st

from anabranch.model.layout import NO_LIMITS, Layout
from anabranch.model.position import Position
from anabranch.model.replacement import Replacement, plan_merge, plan_migration, plan_split, replaced, reserved
from anabranch.model.routing import RANGE_HIGH16, RANGE_LOW16, RoutingKind
from anabranch.model.segment import Seal


def applied(layout: Layout, plan: Replacement, at_ms: int = 0) -> Layout:
    """The plan reserved and applied, as by a workflow without failures."""
    return replaced(reserved(layout, plan), plan, {one: Seal(at_ms, Position(one, at_ms)) for one in plan.parent_ids})


def split(layout: Layout, segment_id: int, *points: int, ways: int = 2, at_ms: int = 0) -> Layout:
    plan = plan_split(layout, segment_id, ways=ways, points=points or None, now_ms=at_ms, limits=NO_LIMITS)
    return applied(layout, plan, at_ms)


def merge(layout: Layout, *segment_ids: int, at_ms: int = 0) -> Layout:
    return applied(layout, plan_merge(layout, segment_ids, now_ms=at_ms, limits=NO_LIMITS), at_ms)


@st.composite
def histories(draw: st.DrawFn, *, steps_max: int = 12, prunes: bool = True) -> list[Layout]:
    """Every layout of one topic's history, oldest first."""
    count = draw(st.integers(1, 5))
    if draw(st.booleans()):
        layout = Layout.initial(count, now_ms=0, routing=draw(st.sampled_from([RANGE_LOW16, RANGE_HIGH16])))
    else:
        layout = Layout.synthetic([f"persistent://public/default/x-partition-{i}" for i in range(count)], now_ms=0)
    lives = [layout]
    for at_ms in range(1, draw(st.integers(1, steps_max)) + 1):
        lives.append(_step(draw, lives[-1], at_ms, prunes))
    return lives


def _step(draw: st.DrawFn, layout: Layout, at_ms: int, prunes: bool) -> Layout:
    if layout.routing.kind is RoutingKind.MOD_N:
        return applied(layout, plan_migration(layout, now_ms=at_ms, limits=NO_LIMITS), at_ms)
    what = draw(st.sampled_from(["split", "split", "merge", "prune"] if prunes else ["split", "split", "merge"]))
    if what == "prune":
        roots = sorted(segment.segment_id for segment in layout.sealed if not segment.parent_ids)
        return layout.pruned(draw(st.sets(st.sampled_from(roots)))) if roots else layout
    if what == "merge" and len(layout.active) > 1:
        low = draw(st.integers(0, len(layout.active) - 2))
        high = draw(st.integers(low + 1, min(low + 3, len(layout.active) - 1)))
        chosen = [segment.segment_id for segment in layout.active[low : high + 1]]
        return merge(layout, *draw(st.permutations(chosen)), at_ms=at_ms)
    able = [segment for segment in layout.active if segment.hash_range.size > 1]
    segment = draw(st.sampled_from(able))
    inner = st.integers(segment.hash_range.start + 1, segment.hash_range.end)
    if draw(st.booleans()):
        points = sorted(draw(st.sets(inner, min_size=1, max_size=3)))
        return split(layout, segment.segment_id, *points, at_ms=at_ms)
    ways = draw(st.integers(2, min(4, segment.hash_range.size)))
    return split(layout, segment.segment_id, ways=ways, at_ms=at_ms)
