"""Progress of a member of a checkpoint group in one segment: a value that is sent and stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from anabranch.model.position import Position


@dataclass(frozen=True, slots=True)
class Reached:
    """Everything up to this message of a segment has been processed safely.

    `since`: a chunked message begins after that entry and is not complete; the next reader must start from there.
    """

    position: Position
    batch_index: int = -1  # -1: the whole entry
    batch_size: int = 0
    since: Position | None = None

    @property
    def passed(self) -> Position:
        """The last entry that is no longer needed."""
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
