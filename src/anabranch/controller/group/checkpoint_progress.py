"""How far the members of a checkpoint group are: what they say is safe with them, by segment. A machine; never awaits.

A group has no cursors: the application keeps its own checkpoints. What its members report is kept beside the group's
assignment, so that whoever is given a segment next goes on where the last one was, and segments keep what is not safe.
Only who has a segment may say how far it is: one that was replaced without noticing changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from anabranch.model.position import EARLIEST, Position
from anabranch.model.reached import Reached


@dataclass(frozen=True, slots=True)
class Report:
    """Of one segment, by the member that has it. `reached` None: nothing of it yet."""

    segment_id: int
    reached: Reached | None = None
    completed: bool = False  # it is sealed, and all of it is safe


class Progress:
    """Of one group."""

    def __init__(self, reached: Mapping[int, Reached] | None = None) -> None:
        self._reached = dict(reached or {})

    @property
    def reached(self) -> Mapping[int, Reached]:
        return self._reached

    def note(self, segment_id: int, reached: Reached) -> bool:
        """The last word counts: a member that began again from an older checkpoint needs what is behind that. True: it
        is another one than before."""
        if self._reached.get(segment_id) == reached:
            return False
        self._reached[segment_id] = reached
        return True

    def forget(self, segment_id: int) -> None:
        """All of it is safe, or it is gone."""
        self._reached.pop(segment_id, None)

    def passed(self, segment_id: int) -> Position:
        """The last entry of the segment that the group does not need."""
        found = self._reached.get(segment_id)
        return EARLIEST if found is None else found.passed
