"""What a batch reads: ranges of entries, packed into partitions. The result is a function of (start, end, options)
alone, so that a repeated batch, after a crash or on another driver, reads the same ranges in the same partitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from anabranch.model.names import SegmentDescriptor, TopicName
from anabranch.model.position import Position
from anabranch.model.routing import RingHash
from anabranch.spark.offsets.offset import Cut, Mark, Offset
from anabranch.spark.offsets.topic_view import LedgerSum, View


@dataclass(frozen=True, slots=True, order=True)
class Range:
    """The entries `start <= position < end` of one segment; an end is one past an entry."""

    topic: str  # as the user named it
    segment: int
    start: Position
    end: Position
    backing: str  # the topic that has the entries
    ring_hash: RingHash = RingHash.LOW16

    @property
    def entries(self) -> int:
        """How many; across ledgers at least that many are known to be there."""
        if self.start.ledger == self.end.ledger:
            return self.end.entry - self.start.entry
        return max(self.end.entry, 1)


@dataclass(frozen=True, slots=True)
class Packing:
    """How ranges become partitions."""

    partitions_min: int = 1
    partitions_max: int = 32
    entries_max: int = 0  # per range; 0: any
    keeps_key_order: bool = True  # a segment's entries of a batch stay in one partition


def backing_of(topic: str, segment: int, mark: Mark) -> str:
    if mark.topic is not None:
        return mark.topic
    descriptor = SegmentDescriptor(mark.span[0], mark.span[1], segment)
    return str(TopicName.parse(topic).scalable.segment_name(descriptor))


def ranges(start: Offset, end: Offset) -> list[Range]:
    """What lies between two offsets of a stream. Of a segment that the batch opens, the end says where it begins; an
    end at or before the start is empty (a start that was asked for again may lie further on)."""
    found = []
    for topic, cut in end.items():
        before = start.get(topic, Cut("", {})).marks
        for one, mark in cut.marks.items():
            known = before.get(one)
            begin = mark.base if mark.base is not None else (mark.position if known is None else known.position)
            if begin < mark.position:
                found.append(Range(topic, one, begin, mark.position, backing_of(topic, one, mark)))
    return sorted(found)


def whole(view: View, start: Cut, end: Cut | None) -> list[Range]:
    """What a batch query reads of one topic: every segment from the start cut on, down to the end cut (None: to what
    is there now). Parents and children are read at once: order over segments is in `message_id`."""
    stop = view.ancestors(end.marks) if end is not None else set(view.segments)
    found = []
    for one in set(start.marks) | view.descendants(start.marks):
        segment = view.segments.get(one)
        if segment is None:
            continue
        mark = start.marks.get(one)
        begin = segment.first if mark is None else max(mark.position, segment.first)
        if end is not None and one in end.marks:
            upto = min(end.marks[one].position, segment.end)
        elif one in stop:
            upto = segment.end
        else:
            continue
        if begin < upto:
            found.append(Range(view.topic, one, begin, upto, backing_of(view.topic, one, segment.opened())))
    return sorted(found)


def by_ledger(one: Range, ledgers: Iterable[LedgerSum]) -> list[Range]:
    """The range cut where ledgers end, so that entries can be counted."""
    found = []
    for ledger in ledgers:
        begin = max(one.start, Position(ledger.ledger, 0))
        end = min(one.end, Position(ledger.ledger, ledger.entries))
        if begin < end and begin.ledger == ledger.ledger:
            found.append(replace(one, start=begin, end=end))
    return found or [one]


def partitions(found: Sequence[Range], packing: Packing) -> list[tuple[Range, ...]]:
    """The ranges in as many partitions as asked for: long ones cut (unless keys must stay together), short ones packed,
    the fullest partition first. What is in one partition is read in the order of its ranges."""
    pieces = list(found) if packing.keeps_key_order else _cut(found, packing)
    count = min(len(pieces), max(packing.partitions_max, 1))
    bins: list[list[Range]] = [[] for _ in range(count)]
    loads = [0] * count
    groups = _together(pieces) if packing.keeps_key_order else [[one] for one in pieces]
    for group in sorted(groups, key=lambda group: (-sum(one.entries for one in group), group)):
        lightest = loads.index(min(loads))
        bins[lightest].extend(group)
        loads[lightest] += sum(one.entries for one in group)
    return [tuple(sorted(one)) for one in bins if one]


def _together(pieces: Iterable[Range]) -> list[list[Range]]:
    found: dict[tuple[str, int], list[Range]] = {}
    for one in pieces:
        found.setdefault((one.topic, one.segment), []).append(one)
    return list(found.values())


def _cut(found: Sequence[Range], packing: Packing) -> list[Range]:
    total = sum(one.entries for one in found)
    wanted = max(packing.partitions_min, 1)
    longest = max(-(-total // wanted), 1) if len(found) < wanted else max(total, 1)
    if packing.entries_max:
        longest = min(longest, packing.entries_max)
    pieces = []
    for one in found:
        if one.start.ledger != one.end.ledger or one.entries <= longest:
            pieces.append(one)
            continue
        parts = -(-one.entries // longest)
        for number in range(parts):
            low = one.start.entry + one.entries * number // parts
            high = one.start.entry + one.entries * (number + 1) // parts
            pieces.append(replace(one, start=Position(one.start.ledger, low), end=Position(one.start.ledger, high)))
    return pieces
