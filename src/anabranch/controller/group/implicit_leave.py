"""Detects that a client without a LEAVE command is gone. Pulsar's clients have none, so a client counts as gone when it
has closed its readers of all segments that it was assigned.

The segment's owner reports each close as a hint, also when the client only closes a segment that was revoked. So a
segment that is assigned again counts as not closed, and a close of a segment that is not assigned is ignored.
"""

from __future__ import annotations

from collections.abc import Iterable


class ImplicitLeaveDetector:
    """For one link of a consumer."""

    def __init__(self) -> None:
        self._assigned: frozenset[int] = frozenset()
        self._closed: set[int] = set()

    def on_assigned(self, segment_ids: Iterable[int]) -> None:
        """`segment_ids` is the complete assignment."""
        before, self._assigned = self._assigned, frozenset(segment_ids)
        self._closed &= self._assigned & before

    def on_closed(self, segment_id: int) -> bool:
        """The client closed its reader of this segment. True if that was the last one, so the client is gone."""
        if segment_id not in self._assigned:
            return False  # it was revoked
        self._closed.add(segment_id)
        return self._closed >= self._assigned
