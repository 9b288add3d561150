"""Selects the consumer of the next entry. Pure.

* `RoundRobin`: Shared. The lowest priority number first; within one level in turn.
* `HashRing`: Key_Shared auto-split. Consistent hashing: a join or leave moves only the slots it must.
* `SplitRanges`: Key_Shared auto-split without consistent hashing: each consumer has one range of slots.
* `StickyRanges`: Key_Shared sticky. Clients declare their ranges; overlaps are refused.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Generic, TypeVar

from anabranch.broker.errors import ConsumerAssignFailed
from anabranch.protocol.keyhash import murmur3_32

T = TypeVar("T")

Span = tuple[int, int, T]
"""First and last slot of a range, and its owner."""

RING_SIZE = 65_536
POINTS_PER_CONSUMER = 100


class RoundRobin(Generic[T]):
    def __init__(self, priority_of: Callable[[T], int]) -> None:
        self._priority_of = priority_of
        self._levels: list[list[T]] = []
        self._turns: list[int] = []

    def reset(self, members: Iterable[T]) -> None:
        by_level: dict[int, list[T]] = {}
        for member in members:
            by_level.setdefault(self._priority_of(member), []).append(member)
        self._levels = [by_level[level] for level in sorted(by_level)]
        self._turns = [0] * len(self._levels)

    def pick(self, is_ready: Callable[[T], bool]) -> T | None:
        for index, level in enumerate(self._levels):
            turn, count = self._turns[index], len(level)
            for step in range(count):
                candidate = level[(turn + step) % count]
                if is_ready(candidate):
                    self._turns[index] = (turn + step + 1) % count
                    return candidate
        return None


class HashRing(Generic[T]):
    """Members have a stable label, so every broker builds the same ring from the same members. A change costs as much
    as its joins and leaves, however many members there are."""

    def __init__(self) -> None:
        self._points: list[int] = []
        self._owners: list[T] = []  # of the point at the same index
        self._members: dict[str, T] = {}
        # Labels with the same point, ascending: the first one owns it, independent of the order of joining.
        self._claims: dict[int, list[str]] = {}

    def reset(self, members: Sequence[tuple[str, T]]) -> None:
        wanted, known = dict(members), self._members
        for label in [label for label, member in known.items() if wanted.get(label) is not member]:
            self._leave(label)
        for label, member in wanted.items():
            if label not in known:
                self._join(label, member)

    def _join(self, label: str, member: T) -> None:
        self._members[label] = member
        for point in _points_of(label):
            claims = self._claims.setdefault(point, [])
            insort(claims, label)
            place = bisect_left(self._points, point)
            if len(claims) == 1:
                self._points.insert(place, point)
                self._owners.insert(place, member)
            else:
                self._owners[place] = self._members[claims[0]]

    def _leave(self, label: str) -> None:
        del self._members[label]
        for point in _points_of(label):
            claims = self._claims[point]
            claims.remove(label)
            place = bisect_left(self._points, point)
            if claims:
                self._owners[place] = self._members[claims[0]]
            else:
                del self._claims[point], self._points[place], self._owners[place]

    def owner(self, slot: int) -> T | None:
        if not self._points:
            return None
        index = bisect_left(self._points, slot)
        return self._owners[index if index < len(self._points) else 0]

    def spans(self) -> list[Span[T]]:
        """Every slot's owner, as inclusive ranges in ascending order."""
        found: list[Span[T]] = []
        ends = [*self._points, *([RING_SIZE - 1] if self._points and self._points[-1] < RING_SIZE - 1 else [])]
        start = 0
        for index, end in enumerate(ends):
            owner = self._owners[index % len(self._owners)]
            if found and found[-1][2] is owner:
                start = found.pop()[0]
            found.append((start, end, owner))
            start = end + 1
        return found


class SplitRanges(Generic[T]):
    """Like `HashRing`, with one range of slots for each member, as Pulsar has it without consistent hashing: a member
    that joins takes the lower half of the widest range; the range of one that leaves goes to its upper neighbour, the
    last range to its lower neighbour. So ranges depend on the order of joins and leaves."""

    def __init__(self) -> None:
        self._ends: list[int] = []  # last slot of each range, ascending
        self._labels: list[str] = []  # owner of the range at the same index
        self._members: dict[str, T] = {}

    def reset(self, members: Sequence[tuple[str, T]]) -> None:
        wanted, known = dict(members), self._members
        for label in [label for label, member in known.items() if wanted.get(label) is not member]:
            self._leave(label)
        for label, member in wanted.items():
            if label not in known:
                self._join(label, member)

    def _join(self, label: str, member: T) -> None:
        if not self._ends:
            self._ends, self._labels = [RING_SIZE - 1], [label]
        else:
            starts = [0, *(end + 1 for end in self._ends)]
            widest = max(range(len(self._ends)), key=lambda index: self._ends[index] - starts[index])
            if self._ends[widest] == starts[widest]:
                raise ConsumerAssignFailed(f"no range of the {RING_SIZE} slots can be split for another consumer")
            self._ends.insert(widest, (starts[widest] + self._ends[widest]) // 2)
            self._labels.insert(widest, label)
        self._members[label] = member

    def _leave(self, label: str) -> None:
        del self._members[label]
        index = self._labels.index(label)
        if index and index == len(self._ends) - 1:
            self._ends[index - 1] = self._ends[index]
        del self._ends[index], self._labels[index]

    def owner(self, slot: int) -> T | None:
        return self._members[self._labels[bisect_left(self._ends, slot)]] if self._ends else None

    def spans(self) -> list[Span[T]]:
        """Every slot's owner, as inclusive ranges in ascending order."""
        starts = [0, *(end + 1 for end in self._ends)]
        return [
            (start, end, self._members[label])
            for start, end, label in zip(starts[:-1], self._ends, self._labels, strict=True)
        ]


def _points_of(label: str) -> set[int]:
    return {murmur3_32(f"{label}#{index}".encode()) % RING_SIZE for index in range(POINTS_PER_CONSUMER)}


class StickyRanges(Generic[T]):
    """Declared inclusive ranges. Undeclared slots have no owner: their entries wait."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._spans: list[Span[T]] = []

    def declare(self, member: T, ranges: Sequence[tuple[int, int]]) -> None:
        for start, end in ranges:
            if not 0 <= start <= end < RING_SIZE:
                raise ConsumerAssignFailed(f"hash range {start}-{end} is not inside 0-{RING_SIZE - 1}")
        ordered = sorted(ranges)
        for (_, low_end), (high_start, _) in pairwise(ordered):
            if high_start <= low_end:
                raise ConsumerAssignFailed("a consumer's own hash ranges overlap")
        for start, end in ordered:
            for taken_start, taken_end, _ in self._spans:
                if start <= taken_end and taken_start <= end:
                    raise ConsumerAssignFailed(
                        f"hash range {start}-{end} overlaps {taken_start}-{taken_end} of another consumer"
                    )
        self._spans.extend((start, end, member) for start, end in ordered)
        self._sort()

    def spans(self) -> list[Span[T]]:
        return list(self._spans)

    def leave(self, member: T) -> None:
        self._spans = [span for span in self._spans if span[2] is not member]
        self._sort()

    def _sort(self) -> None:
        self._spans.sort(key=lambda span: span[0])
        self._starts = [span[0] for span in self._spans]

    def owner(self, slot: int) -> T | None:
        index = bisect_right(self._starts, slot) - 1
        if index < 0:
            return None
        _, end, member = self._spans[index]
        return member if slot <= end else None


def failover_active(
    members: Sequence[T], partition: int, priority_of: Callable[[T], int], name_of: Callable[[T], str]
) -> T | None:
    """The active consumer of a Failover subscription.

    Only the best priority level counts. A topic without partitions keeps its first consumer; a join does not take over.
    Partitions are spread over the consumers by name.
    """
    if not members:
        return None
    best = min(map(priority_of, members))
    level = [member for member in members if priority_of(member) == best]
    if partition < 0:
        return level[0]
    return sorted(level, key=name_of)[partition % len(level)]
