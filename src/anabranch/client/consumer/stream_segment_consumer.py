"""Segment consumer of an ordered subscription that knows when a sealed segment was read to its end.

Anabranch's controllers assign a child after its parents are acknowledged. Apache Pulsar's (5.0.0-M1) may assign both at
once, so the consumer itself must read them in order. Brokers announce the end of a topic only with the last ack, and M1
does not announce it after a cumulative ack. Therefore the end is asked for with GET_LAST_MESSAGE_ID.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from anabranch.client.connection.connection import Connection
from anabranch.client.consumer.segment_consumer import SegmentConsumer
from anabranch.client.messages.message import MessageId
from anabranch.model.position import Position
from anabranch.protocol.commands import BaseCommand, signed


class StreamSegmentConsumer(SegmentConsumer):
    _end: Position | None = None  # its last entry; negative if it is empty
    _on_end_found: Callable[[], None] | None = None  # called when the end is known

    def find_end(self, known: Position | None, on_found: Callable[[], None]) -> None:
        """The segment is sealed and its children wait. `on_found` is called once, when the end is known. The request is
        repeated on every new connection until it is answered."""
        if self._end is not None or self._on_end_found is not None:
            return
        self._on_end_found = on_found
        if known is not None:
            self._found(known)
        elif self._connection is not None:
            self._ask(self._connection)

    def is_read_to_end(self, last: MessageId | None) -> bool:
        """True if everything was handed out, given the last message handed out."""
        if self.is_at_end:
            return True
        if self._end is None:
            return False
        if self._end.ledger < 0 or self._end.entry < 0:
            return True
        if last is None or 0 <= last.batch_index < last.batch_size - 1:
            return False
        return Position(last.ledger, last.entry) >= self._end

    async def _after_subscribe(self, connection: Connection) -> None:
        if self._on_end_found is not None and self._end is None:
            self._ask(connection)

    def _ask(self, connection: Connection) -> None:
        answer = connection.begin(BaseCommand.GET_LAST_MESSAGE_ID, self._pool.answer_timeout_s, consumer_id=self._id)
        answer.add_done_callback(self._answered)

    def _answered(self, answer: asyncio.Future[Any]) -> None:
        if answer.cancelled() or answer.exception() is not None or self._end is not None:
            return  # asked again at the next attach
        last = answer.result().last_message_id
        self._found(Position(signed(last.ledgerId), signed(last.entryId)))

    def _found(self, end: Position) -> None:
        self._end = end
        self.ends_at(end)
        if self._on_end_found is not None:
            self._on_end_found()
