"""How often each message of a subscription was returned by its consumers. Pure.

A count belongs to a message, not to its entry: of a batch, single messages can be nacked. Messages of an entry that
were returned together share a number, so an entry needs as many numbers as it has different counts.

Counts live as long as the subscription is loaded. They survive the departure of all consumers.
"""

from __future__ import annotations

from collections.abc import Callable

from anabranch.model.position import Position

POSITIONS_MAX = 100_000


class _Counts:
    """`levels` maps a count to the bits of its messages; messages in none of them have the count `base`."""

    __slots__ = ("base", "levels")

    def __init__(self) -> None:
        self.base = 0
        self.levels: dict[int, int] = {}

    def add(self, bits: int) -> None:
        levels: dict[int, int] = {}
        rest = bits
        for count, members in self.levels.items():
            rest &= ~members
            for level, part in ((count, members & ~bits), (count + 1, members & bits)):
                if part:
                    levels[level] = levels.get(level, 0) | part
        if rest:
            levels[self.base + 1] = levels.get(self.base + 1, 0) | rest
        self.levels = levels

    def add_all(self) -> None:
        self.base += 1
        self.levels = {count + 1: members for count, members in self.levels.items()}


class RedeliveryCounts:
    """Bounded: of more than `positions_max` entries the oldest counts are forgotten, and begin at 0 again."""

    def __init__(self, positions_max: int = POSITIONS_MAX) -> None:
        self._positions_max = positions_max
        self._counts: dict[Position, _Counts] = {}

    def __len__(self) -> int:
        return len(self._counts)

    def add(self, position: Position, bits: int | None = None) -> None:
        """These messages of the entry were returned (None: all of them)."""
        counts = self._counts.get(position)
        if counts is None:
            if len(self._counts) >= self._positions_max:
                del self._counts[next(iter(self._counts))]
            counts = self._counts[position] = _Counts()
        if bits is None:
            counts.add_all()
        else:
            counts.add(bits)

    def of(self, position: Position) -> int:
        """The count of all messages of an entry whose messages do not differ."""
        counts = self._counts.get(position)
        return 0 if counts is None else counts.base

    def differ(self, position: Position) -> bool:
        """Whether the messages of the entry have different counts."""
        counts = self._counts.get(position)
        return counts is not None and bool(counts.levels)

    def levels(self, position: Position, bits: int) -> list[tuple[int, int]]:
        """These messages by count, ascending: (count, bits)."""
        counts = self._counts.get(position)
        if counts is None:
            return [(0, bits)]
        found: dict[int, int] = {}
        for count, members in counts.levels.items():
            if members & bits:
                found[count] = members & bits
                bits &= ~members
        if bits:
            found[counts.base] = found.get(counts.base, 0) | bits
        return sorted(found.items())

    def forget(self, position: Position) -> None:
        self._counts.pop(position, None)

    def forget_acked(self, is_acked: Callable[[Position], bool]) -> None:
        for position in [position for position in self._counts if is_acked(position)]:
            del self._counts[position]

    def clear(self) -> None:
        self._counts.clear()
