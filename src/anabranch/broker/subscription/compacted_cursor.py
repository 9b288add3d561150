"""A cursor for a reader of the compacted view, where positions that the log has trimmed still count. Pure."""

from __future__ import annotations

from anabranch.model.position import Position
from anabranch.storage.cursor.cursor import Cursor
from anabranch.storage.topic.topic_log import TopicLog


class CompactedAcks:
    """Implements `dispatcher.Acks`."""

    def __init__(self, cursor: Cursor, topic_log: TopicLog) -> None:
        self._cursor = cursor
        self._log = topic_log

    def is_acked(self, p: Position) -> bool:
        """Trimming moves the cursors of readers; entries that the view still has must stay visible to them."""
        if not self._cursor.durable and not self._log.chain.contains(p):
            return False
        return self._cursor.is_acked(p)

    def ack_set(self, p: Position) -> tuple[int, ...] | None:
        return self._cursor.ack_set(p)

    def is_untouched_from(self, p: Position) -> bool:
        return False  # entries of the view have an ack set of their own: they are delivered one by one

    def first_unacked(self) -> Position:
        view, mark = self._log.compacted, self._cursor.mark_delete
        start = Position(max(mark.ledger, 0), mark.entry + 1)
        return start if view is not None and start <= view.horizon else self._cursor.first_unacked()
