"""Resolves what clients name without a position to positions of one log: earliest, latest, a time, the last message."""

from __future__ import annotations

from anabranch.broker.subscription.entry_metadata import batch_size_of
from anabranch.model.position import EARLIEST, LATEST, Position
from anabranch.protocol.errors import ProtocolError
from anabranch.runtime.clock import Clock
from anabranch.storage.topic.topic_log import TopicLog


class PositionResolver:
    def __init__(self, topic_log: TopicLog, clock: Clock) -> None:
        self._log, self._clock = topic_log, clock

    def resolve(self, position: Position, compacted: bool) -> Position:
        """The next position to read. The compacted view may begin before the log."""
        last, view = self._log.last_position, self._log.compacted
        if compacted and view is not None and position <= view.horizon:
            return Position(max(position.ledger, 0), max(position.entry, 0))
        if position == LATEST or position > last:
            return self._log.after(last)
        if position == EARLIEST or position < self._log.first_position:
            return self._log.first_position
        return Position(position.ledger, max(position.entry, 0))

    async def ago(self, seconds: int) -> Position:
        """The first entry published within the last `seconds`."""
        return await self._log.position_at_time(max(0, self._clock.now_ms() - seconds * 1000))

    async def last_message(self, last: Position, compacted: bool, read_bytes: int) -> tuple[Position, int]:
        """`last` and, for a batch, the index of its last message (otherwise -1). With `compacted`: those of the view,
        if it reaches as far."""
        view = self._log.compacted
        if compacted and view is not None and view.horizon >= last:
            return view.row.last, view.row.last_index
        if last == EARLIEST or last < self._log.first_position:
            return last, -1
        found = await self._log.read(last, 1, read_bytes, last)
        if not found or found[0].position != last:
            return last, -1
        try:
            return last, batch_size_of(found[0].payload) - 1
        except ProtocolError:
            return last, -1
