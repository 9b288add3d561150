"""Decides which segments a member may follow: read a child before its parents are acknowledged. Pure functions.

    member has 0 (sealed, unacknowledged rest) ── split ──▶ 1, 2      0: open, assigned as usual
                                                                      1, 2: followed by the member that has 0

A segment that is not open is followed by member M if

- the client of M announced that it continues (it reads in order, and acknowledges the child after the ancestors), and
- M has every undrained ancestor of the segment, itself assigned or followed, with all of its entry buckets, and none of
  them is being revoked, and
- the balance will give the segment to M once these ancestors are drained; otherwise M would have to release it again.

A segment that goes to another member waits until its ancestors are drained, as for clients that do not continue. A
followed segment stays with M while the first two conditions hold, also if the balance changes meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable

from anabranch.controller.group.assignment import Assignment, SegmentsChanged
from anabranch.model.layout import Layout


def followed(
    layout: Layout, drained: frozenset[int], assignment: Assignment, continuing: frozenset[str]
) -> dict[int, str]:
    """By followed segment, the member. `continuing`: members whose clients continue."""
    kept: dict[int, str] = {}

    def has_ancestors(segment_id: int, member: str) -> bool:
        ancestors = layout.ancestors(segment_id) - drained
        return bool(ancestors) and all(
            not assignment.is_shared(one)
            and (kept.get(one) == member or (assignment.owner(one) == member and not assignment.is_leaving(one)))
            for one in ancestors
        )

    for one, member in sorted(assignment.following.items()):  # a parent has a lower number than its children
        is_there = one in layout and one not in drained and member in continuing and member in assignment.members
        if is_there and has_ancestors(one, member):
            kept[one] = member
    for one, member in _heirs(layout, drained, assignment.copy(kept), continuing):
        if one not in kept and not assignment.is_leaving(one) and has_ancestors(one, member):
            kept[one] = member
    return kept


def _heirs(
    layout: Layout, drained: frozenset[int], trial: Assignment, continuing: frozenset[str]
) -> Iterable[tuple[int, str]]:
    """The members that will get the waiting segments, parents first, if the sealed segments of continuing members are
    drained now, layer by layer. Changes `trial`."""
    is_done = set(drained)
    opened = {one for one in layout.segments if one not in is_done and layout.ancestors(one) <= is_done}
    while True:
        layer = {
            one
            for one in opened
            if not layout[one].is_active and trial.owner(one) in continuing and not trial.is_leaving(one)
        }
        if not layer:
            return
        is_done |= layer
        behind = {child for one in layer for child in layout.descendants(one)} - is_done
        fresh = {one for one in behind if layout.ancestors(one) <= is_done}
        opened = (opened - layer) | fresh
        trial.handle(SegmentsChanged(tuple(layout[one] for one in sorted(opened)), frozenset(layer)))
        for one in sorted(fresh):
            member = trial.owner(one)
            if member in continuing and not trial.is_leaving(one):
                yield one, member
