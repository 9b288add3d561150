"""A topic at one moment, as a value: its segments, their ancestors, and what of them can be read.
`anabranch.spark.client.cluster_client` makes it; every decision takes it as an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from anabranch.model.position import EARLIEST, Position
from anabranch.model.routing import RingHash
from anabranch.spark.offsets.offset import Mark


@dataclass(frozen=True, slots=True)
class LedgerSum:
    """One ledger of a segment: how much it has."""

    ledger: int
    entries: int
    messages: int | None  # None: the cluster does not say
    bytes: int


def ledger_after(ledgers: Sequence[LedgerSum], position: Position) -> Position:
    """The same place in a later ledger, where the position is the end of a ledger that takes no more entries. The last
    one of them may take more."""
    for one, later in pairwise(ledgers):
        if position == Position(one.ledger, one.entries):
            position = Position(later.ledger, 0)
    return position


@dataclass(frozen=True, slots=True)
class SegmentExtent:
    """One segment: which entries of it there are. `[first, end)` can be read; an end is one past an entry, or
    0:0 when there never was one."""

    segment_id: int
    span: tuple[int, int]
    first: Position
    end: Position
    is_sealed: bool = False
    parent_ids: tuple[int, ...] = ()  # those that still exist
    child_ids: tuple[int, ...] = ()
    trimmed_to: Position = EARLIEST  # the last entry that retention has taken
    topic: str | None = None  # the topic with its entries, where the segment's name does not say it
    ledgers: tuple[LedgerSum, ...] = ()
    is_trim_exact: bool = True  # `trimmed_to` names an entry; else one may have been there, or not

    def opened(self) -> Mark:
        """A mark at its beginning."""
        return self.mark_at(self.first)

    def mark_at(self, position: Position) -> Mark:
        """A fresh mark: reading begins there."""
        return Mark(position, self.span, position, self.is_read(position), self.topic)

    def upto(self, end: Position | None) -> SegmentExtent:
        """Without what comes at or after `end`."""
        return self if end is None or end >= self.end else replace(self, end=end, is_sealed=False)

    def without_gap(self, position: Position) -> Position:
        """The same place in a later ledger, where there is certainly nothing between. Only where deleted ledgers are
        not known exactly: a position at the end of one may look like a loss when that ledger is deleted."""
        if self.is_trim_exact:
            return position
        further = ledger_after(self.ledgers, position)
        return self.first if further < self.first else further

    def is_read(self, position: Position) -> bool:
        """Sealed, and nothing is left from there on."""
        return self.is_sealed and position >= self.end


@dataclass(frozen=True, slots=True)
class View:
    topic: str
    uid: str
    segments: Mapping[int, SegmentExtent]
    ring_hash: RingHash = RingHash.LOW16
    former_uid: str = ""  # that it had as a regular topic without partitions, before its migration

    def bounded(self, ends: Mapping[int, Position]) -> View:
        """What of it lies before these ends. Segments before one that is named are there as a whole; those that are
        neither are not there at all. What is cut short is not sealed here: something of it stays unread."""
        kept = set(ends) | self.ancestors(ends)
        cut = {one: self.segments[one].upto(ends.get(one)) for one in self.segments if one in kept}
        return replace(self, segments=cut)

    @property
    def roots(self) -> Iterable[int]:
        """Segments that no retained one comes before."""
        return [one for one, segment in self.segments.items() if not self.known(segment.parent_ids)]

    def known(self, ids: Iterable[int]) -> list[int]:
        return [one for one in ids if one in self.segments]

    def descendants(self, ids: Iterable[int]) -> set[int]:
        """The segments after these, at any distance."""
        return self._reached(ids, lambda one: one.child_ids)

    def ancestors(self, ids: Iterable[int]) -> set[int]:
        return self._reached(ids, lambda one: one.parent_ids)

    def _reached(self, ids: Iterable[int], step: Callable[[SegmentExtent], tuple[int, ...]]) -> set[int]:
        found: set[int] = set()
        ahead = [follower for one in ids if one in self.segments for follower in self.known(step(self.segments[one]))]
        while ahead:
            one = ahead.pop()
            if one not in found:
                found.add(one)
                ahead.extend(self.known(step(self.segments[one])))
        return found
