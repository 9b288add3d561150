"""The 16-bit hash ring and its inclusive ranges, as PIP-468 writes them.

    0000 ────────── 7fff │ 8000 ────────── ffff        a range never wraps: ffff and 0000 are not neighbours

A *split point* is the first ring position of the upper part: [0000-ffff] split at 8000 gives [0000-7fff] [8000-ffff].
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from anabranch.model.errors import BadRequest
from anabranch.model.keyhash import RING_SIZE

RING_MAX = RING_SIZE - 1


class BadRange(BadRequest):
    """An invalid range, or an invalid division of one."""

    code = "bad-range"


@dataclass(frozen=True, slots=True, order=True)
class HashRange:
    """Ring positions `start` … `end`, both included. Ordered by (start, end)."""

    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.end <= RING_MAX:
            raise BadRange(f"range {self.start:x}-{self.end:x} is not within 0-ffff")

    def __str__(self) -> str:
        return f"{self.start:04x}-{self.end:04x}"

    def __contains__(self, position: int) -> bool:
        return self.start <= position <= self.end

    @property
    def size(self) -> int:
        return self.end - self.start + 1

    def overlaps(self, other: HashRange) -> bool:
        return self.start <= other.end and other.start <= self.end

    def covers(self, other: HashRange) -> bool:
        return self.start <= other.start and other.end <= self.end

    def even_points(self, parts: int) -> tuple[int, ...]:
        """Split points for `parts` ranges of equal width; two parts are split where Pulsar's midpoint is."""
        if not 1 <= parts <= self.size:
            raise BadRange(f"range {self} has {self.size} positions and cannot have {parts} parts")
        return tuple(self.start - (-i * self.size // parts) for i in range(1, parts))

    def split(self, points: Sequence[int]) -> tuple[HashRange, ...]:
        """The parts between ascending split points, lowest first; without points, the whole range."""
        previous = self.start
        for point in points:
            if not previous < point <= self.end:
                raise BadRange(
                    f"split points of {self} ascend within {self.start + 1:04x}-{self.end:04x}, not {point:x}"
                )
            previous = point
        starts = (self.start, *points)
        ends = (*(point - 1 for point in points), self.end)
        return tuple(HashRange(start, end) for start, end in zip(starts, ends, strict=True))


FULL = HashRange(0, RING_MAX)


def initial_ranges(count: int) -> tuple[HashRange, ...]:
    """The ring for `count` new segments as Pulsar divides it: equal floor width, the last one takes the rest."""
    if not 1 <= count <= RING_SIZE:
        raise BadRange(f"a topic has 1 … {RING_SIZE} segments, not {count}")
    width = RING_SIZE // count
    return FULL.split([i * width for i in range(1, count)])


def joined(ranges: Iterable[HashRange]) -> HashRange | None:
    """The range that adjacent `ranges` (in any order) cover exactly; None if there is a gap or an overlap."""
    ordered = sorted(ranges)
    if not ordered or any(low.end + 1 != high.start for low, high in pairwise(ordered)):
        return None
    return HashRange(ordered[0].start, ordered[-1].end)
