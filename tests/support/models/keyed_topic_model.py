"""Model of a scalable topic: a layout that changes, and messages with keys in its segments."""

from __future__ import annotations

from collections import defaultdict

from anabranch.model.layout import Layout
from tests.support.models.layout_histories import merge, split

KEYS = 24


class KeyedTopic:
    """The publisher counts per key; a segment has (key, number) pairs in the order they were published."""

    def __init__(self, segments: int) -> None:
        self.layout = Layout.initial(segments, now_ms=0)
        self.stored: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self.next_number = [0] * KEYS

    def publish(self, key: int) -> None:
        segment = self.layout.at(key * 65536 // KEYS)
        self.stored[segment.segment_id].append((key, self.next_number[key]))
        self.next_number[key] += 1

    def split(self, which: int) -> None:
        active = [one for one in self.layout.active if one.hash_range.end > one.hash_range.start]
        if active and len(self.layout.active) < 8:
            self.layout = split(self.layout, active[which % len(active)].segment_id)

    def merge(self, which: int) -> None:
        if len(self.layout.active) > 1:
            at = which % (len(self.layout.active) - 1)
            self.layout = merge(self.layout, *(one.segment_id for one in self.layout.active[at : at + 2]))

    def collect(self, read: set[int]) -> None:
        """Retention: the oldest sealed ones that the reader is through with."""
        gone = {
            one.segment_id
            for one in self.layout.sealed
            if one.segment_id in read and read.issuperset(self.layout.ancestors(one.segment_id))
        }
        self.layout = self.layout.pruned({one for one in gone if gone.issuperset(self.layout[one].parent_ids)})
