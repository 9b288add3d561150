"""How far a member of a checkpoint group is with one segment: a value that travels and is stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from anabranch.model.position import Position


@dataclass(frozen=True, slots=True)
class Reached:
    """Everything up to this message of a segment is safe.

    `since`: a message in chunks begins behind that entry and is not safe yet; who goes on must read from there.
    """

    position: Position
    batch_index: int = -1  # -1: the whole entry
    batch_size: int = 0
    since: Position | None = None

    @property
    def passed(self) -> Position:
        """The last entry that nobody needs any more."""
        is_whole = self.batch_index < 0 or self.batch_index >= self.batch_size - 1
        ledger, entry = self.position
        passed = self.position if is_whole else Position(ledger, entry - 1)
        return passed if self.since is None else min(passed, self.since)

    def to_json(self) -> list[int]:
        since = () if self.since is None else tuple(self.since)
        return [*self.position, self.batch_index, self.batch_size, *since]

    @classmethod
    def from_json(cls, value: list[Any]) -> Reached:
        ledger, entry, index, size, *since = map(int, value)
        return cls(Position(ledger, entry), index, size, Position(*since) if since else None)
