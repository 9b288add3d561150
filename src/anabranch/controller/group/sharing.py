"""Decides which members share a segment, and who reads which of its entry buckets. Pure functions.

    members: a, b, c, d, e     segments: 0 (4 buckets), 1 (4 buckets)

    whole segments first:    0 → a             1 → b
    then the members left:   0 → a, c, e       1 → b, d
    then the buckets:        0 → a 0 1, c 2, e 3       1 → b 0 1, d 2 3

A segment is shared only between members whose clients read by buckets, and by at most as many as it has buckets. A
member that reads a whole segment, or follows one, takes no share. Shares are balanced (sharers per segment, and buckets
per sharer, differ by at most one, as far as bucket counts allow), sticky (as few moves as that allows) and
deterministic.

A followed segment is not shared, nor is an ancestor of one: its follower must have all of its keys.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from anabranch.controller.group.assignment import Assignment
from anabranch.model.layout import Layout

Shares = Mapping[str, tuple[int, ...]]
"""The buckets of one segment, by member."""


def shared(layout: Layout, assignment: Assignment, able: frozenset[str]) -> dict[int, Shares]:
    """By shared segment, the buckets of its members. `able`: members whose clients read by buckets."""
    following = assignment.following
    alone = {ancestor for one in following if one in layout for ancestor in layout.ancestors(one)}
    counts: dict[int, int] = {}
    for one in assignment.segments:
        is_new = one not in assignment.shares
        if one not in layout or one in alone or (is_new and assignment.is_leaving(one)):
            continue
        if assignment.owner(one) in able and (splits := layout[one].entry_bucket_splits):
            counts[one] = len(splits) + 1
    surplus = sorted(able.intersection(assignment.without_segments).difference(following.values()))
    kept = {one: [name for name in surplus if name in assignment.shares.get(one, ())] for one in counts}
    sharers = balanced({one: count - 1 for one, count in counts.items()}, surplus, kept)
    found: dict[int, Shares] = {}
    for one, names in sharers.items():
        owner = assignment.owner(one)
        if names and owner is not None:
            former = assignment.shares.get(one) or {owner: tuple(range(counts[one]))}
            found[one] = spread([owner, *names], counts[one], former)
    return found


def balanced(
    room: Mapping[int, int], members: Sequence[str], kept: Mapping[int, Sequence[str]]
) -> dict[int, list[str]]:
    """Members per place, at most `room` each, with counts as even as that allows. `kept`: where members are now."""
    quotas = dict.fromkeys(room, 0)
    ranked = sorted(room, key=lambda one: (-len(kept.get(one, ())), one))
    left = len(members)
    while left and (open_places := [one for one in ranked if quotas[one] < room[one]]):
        lowest = min(quotas[one] for one in open_places)
        for one in [one for one in open_places if quotas[one] == lowest][:left]:
            quotas[one] += 1
            left -= 1
    placed = {one: sorted(kept.get(one, ()))[: quotas[one]] for one in sorted(room)}
    settled = {name for names in placed.values() for name in names}
    free = iter([name for name in members if name not in settled])
    for one, names in placed.items():
        names += [name for _, name in zip(range(quotas[one] - len(names)), free, strict=False)]
    return placed


def spread(members: Collection[str], count: int, former: Shares) -> dict[str, tuple[int, ...]]:
    """Each bucket has one member, and counts differ by at most one. Members keep what they had, as far as possible."""
    share, larger = divmod(count, len(members))
    before = {name: sorted(bucket for bucket in former.get(name, ()) if bucket < count) for name in members}
    ranked = sorted(members, key=lambda name: (-len(before[name]), name))
    quotas = {name: share + (rank < larger) for rank, name in enumerate(ranked)}
    found = {name: before[name][: quotas[name]] for name in ranked}
    taken = {bucket for buckets in found.values() for bucket in buckets}
    free = iter([bucket for bucket in range(count) if bucket not in taken])
    for name in sorted(members):
        found[name] += [bucket for _, bucket in zip(range(quotas[name] - len(found[name])), free, strict=False)]
    return {name: tuple(sorted(found[name])) for name in sorted(members)}
