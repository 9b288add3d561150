"""The layout of a scalable topic: a DAG of hash-range segments. Immutable: every change is a new value.

    epoch 0            epoch 1: split of 0     epoch 2: merge of 1 and 2       ── sealed   ══ active
    ═══ 0 ═══          ─── 0 ──┬══ 1 ══        ─── 0 ──┬── 1 ──┬══ 3 ══
                               └══ 2 ══                └── 2 ──┘

Invariants. The first is checked when a layout is built; `check` verifies all of them for layouts read from outside:

* the active segments tile the ring exactly;
* ids are below `next_segment_id` and never used twice;
* edges are mutual and lead from a sealed segment to a newer one, so there is no cycle;
* siblings have the same parents, do not overlap, and together cover each parent. That they cover nothing else is
  ensured by `replaced`, because a parent that was garbage collected can no longer be compared.

Changes of a layout are in `anabranch.model.replacement`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from anabranch.model.hashrange import RING_MAX, HashRange, initial_ranges, joined
from anabranch.model.keyhash import RING_SIZE
from anabranch.model.routing import MOD_N, RANGE_LOW16, Routing, RoutingKind, keyless_position, mod_n
from anabranch.model.segment import BadLayout, Segment, TooManySegments, UnknownSegment, bucket_splits


@dataclass(frozen=True, slots=True)
class LayoutLimits:
    """Limits of a topic's growth. The defaults are Pulsar's."""

    segments_max: int = 64  # active at the same time
    dag_depth_max: int = 10  # merges among the ancestors of a segment

    def check_active(self, count: int) -> None:
        if count > min(self.segments_max, RING_SIZE):
            raise TooManySegments(f"{count} active segments exceed the limit of {self.segments_max}")


NO_LIMITS = LayoutLimits(RING_SIZE, 1 << 31)


@dataclass(frozen=True, slots=True)
class Layout:
    epoch: int
    next_segment_id: int
    segments: Mapping[int, Segment]  # by id
    routing: Routing = RANGE_LOW16
    active: tuple[Segment, ...] = field(init=False, compare=False, repr=False)  # in ring order
    _starts: tuple[int, ...] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        active = sorted((s for s in self.segments.values() if s.is_active), key=lambda s: s.hash_range.start)
        position = 0
        for segment in active:
            if segment.hash_range.start != position:
                raise BadLayout(f"epoch {self.epoch}: active segments do not tile the ring at {position:04x}")
            position = segment.hash_range.end + 1
        if position != RING_SIZE:
            raise BadLayout(f"epoch {self.epoch}: no active segment at {position:04x}")
        object.__setattr__(self, "active", tuple(active))
        object.__setattr__(self, "_starts", tuple(segment.hash_range.start for segment in active))

    @classmethod
    def initial(
        cls,
        count: int,
        *,
        now_ms: int,
        routing: Routing = RANGE_LOW16,
        bucket_budget: int = 1,
        limits: LayoutLimits = NO_LIMITS,
    ) -> Layout:
        """A new topic of `count` segments that share `bucket_budget` entry buckets."""
        limits.check_active(count)
        splits = bucket_splits(max(1, bucket_budget // max(1, count)))
        ranges = enumerate(initial_ranges(count))
        made = {i: Segment(i, one, created_at_ms=now_ms, entry_bucket_splits=splits) for i, one in ranges}
        return cls(0, count, made, routing)

    @classmethod
    def synthetic(cls, topics: Sequence[str], *, now_ms: int, routing: Routing = MOD_N, epoch: int = 0) -> Layout:
        """The partitions of a regular topic (or the topic itself) as segments, routed mod-n; ranges are unused."""
        made = {
            i: Segment(i, one, created_at_ms=now_ms, legacy_topic_name=topic)
            for i, (one, topic) in enumerate(zip(initial_ranges(len(topics)), topics, strict=True))
        }
        return cls(epoch, len(topics), made, routing)

    def __getitem__(self, segment_id: int) -> Segment:
        try:
            return self.segments[segment_id]
        except KeyError:
            raise UnknownSegment(f"no segment {segment_id} in epoch {self.epoch}") from None

    def __contains__(self, segment_id: int) -> bool:
        return segment_id in self.segments

    @property
    def sealed(self) -> Iterator[Segment]:
        return (segment for segment in self.segments.values() if not segment.is_active)

    @property
    def migrated_edges(self) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """Parents and children of the migration of a regular topic: each of the parents, which were its partitions, has
        all of the children. None: it was none, or no partition is left."""
        for segment in self.segments.values():
            if segment.legacy_topic_name is not None and segment.child_ids:
                return self.segments[segment.child_ids[0]].parent_ids, segment.child_ids
        return None

    # routing ----------------------------------------------------------------------------------------------------------
    def at(self, position: int) -> Segment:
        """The active segment that contains this ring position."""
        assert 0 <= position <= RING_MAX
        return self.active[bisect_right(self._starts, position) - 1]

    def route(self, raw: int) -> Segment:
        """The active segment for a key with this raw hash; of mod-n routing the hash is the partition hash."""
        if self.routing.kind is RoutingKind.MOD_N:
            return self.active[mod_n(raw, len(self.active))]
        return self.at(self.routing.ring_hash.ring_position(raw))

    def route_keyless(self, sequence_id: int) -> Segment:
        """The active segment for a message without key."""
        if self.routing.kind is RoutingKind.MOD_N:
            return self.active[sequence_id % len(self.active)]
        return self.at(keyless_position(sequence_id))

    # ancestors --------------------------------------------------------------------------------------------------------
    def ancestors(self, segment_id: int) -> set[int]:
        """All ancestors, at any distance, that may have had a key of this segment: those that overlap it.

        After a merge there are ancestors that do not overlap, because their keys went elsewhere; they do not count.
        """
        return self._walk(segment_id, lambda segment: segment.parent_ids)

    def descendants(self, segment_id: int) -> set[int]:
        """The segments that have this one among their `ancestors`."""
        return self._walk(segment_id, lambda segment: segment.child_ids)

    def _walk(self, segment_id: int, step: _Edges) -> set[int]:
        start = self[segment_id]
        seen: set[int] = set()
        found: set[int] = set()
        ahead = list(step(start))
        while ahead:
            one = self.segments[ahead.pop()]
            if one.segment_id in seen:
                continue
            seen.add(one.segment_id)
            ahead.extend(step(one))
            if one.hash_range.overlaps(start.hash_range):
                found.add(one.segment_id)
        return found

    def pruned(self, segment_ids: Iterable[int]) -> Layout:
        """The layout without these sealed segments and their edges. A segment must stay while a parent stays."""
        gone = set(segment_ids)
        for one in gone:
            if self[one].is_active:
                raise BadLayout(f"segment {one} is active and cannot be removed")
            if not gone.issuperset(self[one].parent_ids):
                raise BadLayout(f"segment {one} cannot be removed before its parents {list(self[one].parent_ids)}")
        if not gone:
            return self
        touched = {child for one in gone for child in self[one].child_ids} - gone
        kept = {i: segment for i, segment in self.segments.items() if i not in gone}
        for one in touched:
            kept[one] = replace(kept[one], parent_ids=tuple(p for p in kept[one].parent_ids if p not in gone))
        return replace(self, epoch=self.epoch + 1, segments=kept)

    # invariants -------------------------------------------------------------------------------------------------------
    def check(self) -> None:
        """Raises BadLayout unless all invariants of the module docstring hold."""
        for segment_id, segment in self.segments.items():
            if segment.segment_id != segment_id or not 0 <= segment_id < self.next_segment_id:
                raise BadLayout(f"segment {segment_id} has an invalid id (next is {self.next_segment_id})")
            if segment.created_at_epoch > self.epoch or segment.sealed_at_epoch > self.epoch:
                raise BadLayout(f"segment {segment_id} is of a later epoch than {self.epoch}")
            if segment.is_active and segment.child_ids:
                raise BadLayout(f"segment {segment_id} is active and has children")
            if not segment.is_active and not segment.child_ids:
                raise BadLayout(f"segment {segment_id} is sealed and has no children")
        self._check_edges()

    def _check_edges(self) -> None:
        """All parents of a migration have the same children, so what depends on a tuple of ids is computed once."""
        childhoods: dict[tuple[int, ...], tuple[frozenset[int], HashRange]] = {}
        parenthoods: dict[tuple[int, ...], list[frozenset[int]]] = {}
        for one, segment in self.segments.items():
            parents, children = segment.parent_ids, segment.child_ids
            if parents and parents not in parenthoods:
                parenthoods[parents] = self._children_of(one, parents)
            if parents and (parents[-1] >= one or any(one not in some for some in parenthoods[parents])):
                raise BadLayout(f"an edge of {_shown(parents)} -> {one} is not mutual or not forward")
            if not children:
                continue
            if children not in childhoods:
                childhoods[children] = self._parents_of(one, children)
            known, covered = childhoods[children]
            if children[0] <= one or one not in known:
                raise BadLayout(f"an edge of {one} -> {_shown(children)} is not mutual or not forward")
            if not covered.covers(segment.hash_range):
                raise BadLayout(f"the children of segment {one} do not cover it exactly once")

    def _children_of(self, one: int, parents: tuple[int, ...]) -> list[frozenset[int]]:
        """The children of each of these segments, without repetition."""
        if not self.segments.keys() >= set(parents):
            raise BadLayout(f"an edge of {_shown(parents)} -> {one} is not mutual or not forward")
        return [frozenset(some) for some in {self.segments[parent].child_ids for parent in parents}]

    def _parents_of(self, one: int, children: tuple[int, ...]) -> tuple[frozenset[int], HashRange]:
        """The parents that all of these segments have, and the range that they cover."""
        if not self.segments.keys() >= set(children):
            raise BadLayout(f"an edge of {one} -> {_shown(children)} is not mutual or not forward")
        known = {self.segments[child].parent_ids for child in children}
        if len(known) > 1:
            raise BadLayout(f"the children of segment {one} have different parents")
        covered = joined(self.segments[child].hash_range for child in children)
        if covered is None:
            raise BadLayout(f"the children of segment {one} do not cover it exactly once")
        return frozenset(known.pop()), covered


def _shown(ids: tuple[int, ...]) -> str:
    return ", ".join(map(str, ids[:8])) + (" …" if len(ids) > 8 else "")


_Edges = Callable[[Segment], tuple[int, ...]]
