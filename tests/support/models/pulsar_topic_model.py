"""Model of one topic on Apache Pulsar for tests of Spark's offsets: ledgers with gaps between their ids, empty ledgers,
trimmed heads, and what a broker answers about them after a load. Uses no broker."""

from __future__ import annotations

from dataclasses import dataclass, field

from anabranch.model.position import EARLIEST, Position
from anabranch.spark.offsets import pulsar_topic as shape
from anabranch.spark.offsets.partitions import Range
from anabranch.spark.offsets.pulsar_topic import Heads
from anabranch.spark.offsets.topic_view import LedgerSum, SegmentExtent, View

ENTRY_BYTES = 100


@dataclass
class PaperPulsarTopic:
    """One segment. Entries are numbered in the order of publishing."""

    has_admin: bool
    name: str = "persistent://public/default/paper"
    ledgers: dict[int, list[int]] = field(default_factory=lambda: {5: []})
    confirmed: Position = field(default_factory=lambda: Position(5, -1))
    published: int = 0
    deleted: set[int] = field(default_factory=set)

    @property
    def open(self) -> int:
        return max(self.ledgers)

    def publish(self, count: int) -> None:
        for _ in range(count):
            self.ledgers[self.open].append(self.published)
            self.published += 1
            self.confirmed = Position(self.open, len(self.ledgers[self.open]) - 1)

    def roll(self, gap: int) -> None:
        """Ids are given out for the whole cluster, so they have gaps."""
        self.ledgers[self.open + gap] = []

    def reload(self, gap: int) -> None:
        """The broker lets go of the topic and loads it again: empty ledgers are gone, a new one is open."""
        latest = self.open
        self.ledgers = {one: entries for one, entries in self.ledgers.items() if entries}
        last = max(self.ledgers, default=None)
        self.ledgers[latest + gap] = []
        if last is None:
            self.confirmed = Position(self.open, -1)
        else:
            self.confirmed = Position(last, len(self.ledgers[last]) - 1)

    def trim(self, count: int) -> None:
        """The oldest ledgers, never the open one."""
        for one in sorted(self.ledgers)[:-1][:count]:
            self.deleted |= set(self.ledgers.pop(one))

    def view(self) -> View:
        oldest = min(self.ledgers)
        first = Position(oldest, 0) if oldest <= self.confirmed.ledger else Position(self.confirmed.ledger, 0)
        is_there = self.confirmed.entry >= 0 and self.confirmed.ledger in self.ledgers
        heads = Heads(first, self.confirmed if is_there else EARLIEST, self.confirmed)
        sums = tuple(
            LedgerSum(one, len(entries), None, len(entries) * ENTRY_BYTES)
            for one, entries in sorted(self.ledgers.items())
        )
        listed = sums if self.has_admin else ()
        bounds = shape.bounds(heads, listed)
        segment = SegmentExtent(
            0, (0, 65_535), bounds.first, bounds.end, trimmed_to=bounds.trimmed_to, topic=self.name, ledgers=listed,
            is_trim_exact=False,
        )  # fmt: skip
        return View(self.name, "", {0: segment})

    def read(self, one: Range) -> list[int]:
        """What a reader gets: it goes on in the next ledger where one is gone."""
        return [
            number
            for ledger, entries in sorted(self.ledgers.items())
            for entry, number in enumerate(entries)
            if one.start <= Position(ledger, entry) < one.end
        ]
