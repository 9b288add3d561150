"""Progress of a checkpoint group, by segment: up to where its members no longer need the data. Never awaits.

A checkpoint group has no cursors; the application keeps its own checkpoints. The reported positions are stored with the
group's assignment. The next consumer of a segment continues from there, and retention keeps what lies behind it. Only
the current holder of a segment may report; reports of a consumer that was replaced are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from anabranch.model.position import EARLIEST, Position
from anabranch.model.reached import Reached


@dataclass(frozen=True, slots=True)
class Report:
    """Progress in one segment, reported by its holder. `reached` None: nothing yet."""

    segment_id: int
    reached: Reached | None = None
    completed: bool = False  # the segment is sealed, and none of it is needed any more


class Progress:
    """Positions of one group."""

    def __init__(self, reached: Mapping[int, Reached] | None = None) -> None:
        self._reached = dict(reached or {})

    @property
    def reached(self) -> Mapping[int, Reached]:
        return self._reached

    def note(self, segment_id: int, reached: Reached) -> bool:
        """The last report counts, also when it is lower, because a member may have restarted from an older checkpoint.
        True if the position has changed."""
        if self._reached.get(segment_id) == reached:
            return False
        self._reached[segment_id] = reached
        return True

    def forget(self, segment_id: int) -> None:
        """The segment is completed or deleted."""
        self._reached.pop(segment_id, None)

    def passed(self, segment_id: int) -> Position:
        """The last entry of the segment that the group no longer needs."""
        found = self._reached.get(segment_id)
        return EARLIEST if found is None else found.passed
