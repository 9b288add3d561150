"""Successors of sealed segments, and what the ancestors of a segment have stored of a producer. Values only.

A sealed segment names its children before the topic's layout does. `successors` applies these seals to the last known
layout, so that producers continue at once. The layout that follows contains the same change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from anabranch.client.errors import NotSupported
from anabranch.client.messages.outgoing import OutgoingMessage
from anabranch.model.hashrange import BadRange, HashRange
from anabranch.model.layout import Layout
from anabranch.model.partition_hash import PartitionHash
from anabranch.model.routing import RingHash, RoutingKind, keyless_position, partition_of
from anabranch.model.segment import BadLayout, Segment, SegmentState
from anabranch.protocol import pulsar_pb2 as pb


def successors(layout: Layout, sealed: Mapping[int, Sequence[Segment]]) -> Layout:
    """The layout after these seals: segment id -> its children. A seal that does not fit, because a layout in between
    was missed, is left out; the next layout contains it."""
    for parent in sorted(sealed):  # children have higher ids than their parents
        children = sealed[parent]
        if not children or parent not in layout or not layout[parent].is_active:
            continue
        if layout.routing.kind is RoutingKind.MOD_N:
            continue  # a migration: only the new layout says which half of the hash is used from now on
        replaced = {
            one.segment_id
            for one in layout.active
            if any(one.hash_range.overlaps(child.hash_range) for child in children)
        }
        segments = dict(layout.segments)
        for one in replaced:
            segments[one] = replace(segments[one], state=SegmentState.SEALED)
        segments |= {child.segment_id: replace(child, state=SegmentState.ACTIVE) for child in children}
        try:
            layout = replace(layout, segments=segments, next_segment_id=max(layout.next_segment_id, *segments) + 1)
        except BadLayout:
            continue
    return layout


@dataclass(frozen=True, slots=True)
class Ancestor:
    """What one ancestor of a segment has stored of this producer."""

    segment_id: int
    hash_range: HashRange
    last_sequence_id: int
    ring_hash: RingHash | None  # None: it was a partition, and its messages were routed modulo
    partition_hash: PartitionHash = PartitionHash.MURMUR3  # of a partition


class Ancestry:
    """What all ancestors have stored. No sequence id above `highest` is stored in any of them."""

    def __init__(self, ancestors: Iterable[Ancestor] = ()) -> None:
        self._all = tuple(ancestors)
        self._modulo = sorted(one.segment_id for one in self._all if one.ring_hash is None)
        self.highest = max((one.last_sequence_id for one in self._all), default=-1)

    def knowing(self, finals: Iterable[Ancestor]) -> Ancestry:
        """A copy with these final values, which were received when the segments were sealed."""
        known = {one.segment_id: one for one in self._all}
        for one in finals:
            if one.segment_id not in known or known[one.segment_id].last_sequence_id < one.last_sequence_id:
                known[one.segment_id] = one
        return Ancestry(known.values())

    @classmethod
    def read(cls, ancestors: Iterable[pb.AncestorSequence], partition_hash: PartitionHash | None = None) -> Ancestry:
        """`partition_hash`: the one that the producer has chosen. Raises NotSupported when an ancestor has an unknown
        hash or hash range."""
        try:
            return cls._read(ancestors, partition_hash)
        except (ValueError, BadRange) as cause:
            raise NotSupported(f"cannot decode the ancestors of the segment: {cause}") from cause

    @classmethod
    def _read(cls, ancestors: Iterable[pb.AncestorSequence], chosen: PartitionHash | None) -> Ancestry:
        return cls(
            Ancestor(
                one.segment_id,
                HashRange(one.hash_start, one.hash_end),
                one.last_sequence_id,
                RingHash(one.ring_hash) if one.ring_hash else None,
                chosen or PartitionHash(one.partition_hash or PartitionHash.MURMUR3),
            )
            for one in ancestors
        )

    def has(self, record: OutgoingMessage) -> bool:
        """Is the record stored in an ancestor? Each ancestor stored its entries in the order of their highest ids."""
        if record.sequence_id > self.highest:
            return False
        under = record.stored_under or {}
        return any(
            one.last_sequence_id >= under.get(one.segment_id, record.sequence_id) and self._routes(one, record)
            for one in self._all
        )

    def _routes(self, one: Ancestor, record: OutgoingMessage) -> bool:
        if one.ring_hash is None:
            count = len(self._modulo)
            index = partition_of(one.partition_hash, record.key, record.hash, record.sequence_id, count)
            return self._modulo[index] == one.segment_id
        if record.hash < 0:
            return keyless_position(record.sequence_id) in one.hash_range
        return one.ring_hash.ring_position(record.hash) in one.hash_range
