"""Entry buckets of a segment: ranges of the hash half that does not choose the segment. Values only.

splits 0x4000, 0x8000, 0xc000  ──▶  buckets 0: 0000–3fff, 1: 4000–7fff, 2: 8000–bfff, 3: c000–ffff
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from anabranch.model.errors import Error
from anabranch.model.keyhash import RING_SIZE

EVERY = -1
"""Bucket of an entry whose messages may belong to several buckets."""


class BadBuckets(Error):
    """Not a list of buckets that cover the ring."""

    code = "bad-buckets"


class EntryBuckets:
    """The buckets of one segment. `splits`: first hashes of all buckets but the first, ascending."""

    __slots__ = ("splits",)

    def __init__(self, splits: Sequence[int] = ()) -> None:
        self.splits = tuple(splits)
        if any(not 0 < one < RING_SIZE for one in self.splits) or sorted(set(self.splits)) != list(self.splits):
            raise BadBuckets(f"not ascending split points of the bucket ring: {list(self.splits)}")

    @classmethod
    def of_ranges(cls, ranges: Sequence[tuple[int, int]]) -> EntryBuckets:
        """Inclusive ranges as they are sent on the wire."""
        made = cls([start for start, _ in ranges[1:]])
        if made.ranges != tuple(ranges):
            raise BadBuckets(f"ranges of entry buckets must cover 0-{RING_SIZE - 1} without gaps: {list(ranges)}")
        return made

    @property
    def count(self) -> int:
        return len(self.splits) + 1

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        """Inclusive."""
        return tuple(zip((0, *self.splits), (*(one - 1 for one in self.splits), RING_SIZE - 1), strict=True))

    def bucket(self, position: int) -> int:
        """Of a position on the bucket ring."""
        return bisect_right(self.splits, position)

    def of_stamp(self, lowest: int, highest: int) -> int:
        """Of an entry stamped with the lowest and highest positions of its messages."""
        bucket = bisect_right(self.splits, lowest)
        return bucket if bisect_right(self.splits, highest) == bucket else EVERY

    def __str__(self) -> str:
        return ", ".join(f"{start}-{end}" for start, end in self.ranges)
