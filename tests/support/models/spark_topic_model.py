"""Model of a topic for tests of Spark's offsets: keyed messages in written order, splits, merges, rolled and trimmed
ledgers, deleted segment records. Uses no broker."""

from __future__ import annotations

from dataclasses import dataclass, field

from anabranch.model.position import EARLIEST, Position
from anabranch.spark.offsets.partitions import Range
from anabranch.spark.offsets.topic_view import SegmentExtent, View

RING = 65_536
Message = tuple[int, int]
"""Key (a ring position) and its running number."""


@dataclass
class PaperSegment:
    one: int
    span: tuple[int, int]
    parents: tuple[int, ...]
    children: tuple[int, ...] = ()
    is_sealed: bool = False
    ledger: int = 0
    entries: dict[Position, list[Message]] = field(default_factory=dict)
    last: Position = EARLIEST
    trimmed_to: Position = EARLIEST

    def stretch(self, known: set[int], topic: str | None) -> SegmentExtent:
        end = Position(self.last.ledger, self.last.entry + 1) if self.last != EARLIEST else Position(0, 0)
        first = min(self.entries, default=max(Position(self.ledger, 0), end))
        return SegmentExtent(
            self.one,
            self.span,
            first,
            end,
            self.is_sealed,
            tuple(parent for parent in self.parents if parent in known),
            tuple(child for child in self.children if child in known),
            self.trimmed_to,
            topic,
        )


class PaperTopic:
    def __init__(self, segments: int = 1, name: str = "topic://public/default/paper", uid: str = "1") -> None:
        self.name, self.uid = name, uid
        self.segments: dict[int, PaperSegment] = {}
        self._ledgers = 0
        self._numbers: dict[int, int] = {}
        for i in range(segments):
            self._open((i * RING // segments, (i + 1) * RING // segments - 1), ())

    def _open(self, span: tuple[int, int], parents: tuple[int, ...]) -> int:
        one = max(self.segments, default=-1) + 1
        self._ledgers += 1
        self.segments[one] = PaperSegment(one, span, parents, ledger=self._ledgers)
        return one

    @property
    def active(self) -> list[PaperSegment]:
        return sorted((one for one in self.segments.values() if not one.is_sealed), key=lambda one: one.span)

    def publish(self, keys: list[int]) -> None:
        """One entry per segment that these keys fall into."""
        for segment in self.active:
            mine = [key for key in keys if segment.span[0] <= key <= segment.span[1]]
            if mine:
                messages = []
                for key in mine:
                    self._numbers[key] = self._numbers.get(key, -1) + 1
                    messages.append((key, self._numbers[key]))
                at = segment.last.entry + 1 if segment.last.ledger == segment.ledger else 0
                segment.last = Position(segment.ledger, at)
                segment.entries[segment.last] = messages

    def split(self, index: int) -> None:
        parent = self.active[index % len(self.active)]
        low, high = parent.span
        if low < high:
            middle = (low + high + 1) // 2
            self._replace([parent], [(low, middle - 1), (middle, high)])

    def merge(self, index: int) -> None:
        if len(self.active) > 1:
            at = index % (len(self.active) - 1)
            pair = self.active[at : at + 2]
            self._replace(pair, [(pair[0].span[0], pair[1].span[1])])

    def _replace(self, parents: list[PaperSegment], spans: list[tuple[int, int]]) -> None:
        ids = tuple(parent.one for parent in parents)
        children = tuple(self._open(span, ids) for span in spans)
        for parent in parents:
            parent.is_sealed, parent.children = True, children

    def roll(self, index: int) -> None:
        self._ledgers += 1
        self.active[index % len(self.active)].ledger = self._ledgers

    def trim(self, one: int) -> None:
        """All ledgers but the last one that has entries."""
        segment = self.segments[one]
        gone = [at for at in segment.entries if at.ledger < segment.last.ledger]
        if gone:
            segment.trimmed_to = max(gone)
            segment.entries = {at: mine for at, mine in segment.entries.items() if at not in gone}

    def forget(self, one: int) -> None:
        """The record of a sealed segment whose parents are gone; it may be gone itself."""
        segment = self.segments.get(one)
        if segment is not None and segment.is_sealed and not any(parent in self.segments for parent in segment.parents):
            del self.segments[one]

    def view(self) -> View:
        known = set(self.segments)
        return View(self.name, self.uid, {i: one.stretch(known, None) for i, one in self.segments.items()})

    def read(self, one: Range) -> list[Message]:
        segment = self.segments[one.segment]
        return [m for at, mine in sorted(segment.entries.items()) if one.start <= at < one.end for m in mine]

    @property
    def written(self) -> dict[int, int]:
        """Key to how many messages it has."""
        return {key: last + 1 for key, last in self._numbers.items()}
