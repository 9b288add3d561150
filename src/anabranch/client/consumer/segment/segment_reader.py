"""Segment consumer without a durable cursor: starts at a mark, and detects the end of a sealed segment.

`SegmentTraversal` decides which segments are read when.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

from anabranch.client.connection.connection import Connection
from anabranch.client.consumer.checkpoint import After, FromStart, FromTime, Mark
from anabranch.client.consumer.segment.effects import Deliver, Effect, Reject
from anabranch.client.consumer.segment.segment_consumer import SegmentConsumer, SegmentListener
from anabranch.client.consumer.segment.segment_consumer_spec import SegmentConsumerSpec
from anabranch.client.context import ClientContext
from anabranch.client.errors import NotReady, Unexplained
from anabranch.client.messages.message import Message, MessageId
from anabranch.model.position import EARLIEST, LATEST, Position
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.commands import U64_MASK, BaseCommand, signed
from anabranch.protocol.entry import Bytes
from anabranch.runtime.clock import Timer

ACK_SECONDS = 1.0
"""Readers acknowledge now and then, so that the broker knows what it need not retain for them."""

SLACK_SECONDS = 60
"""Margin for a start by time: brokers count back from their clock in whole seconds. Earlier messages are skipped."""


class SegmentReaderListener(SegmentListener, Protocol):
    def on_start_resolved(self, segment_consumer: SegmentConsumer, mark: Mark) -> None:
        """The reader starts at the end, and has found the position of the end."""

    def on_end_reached(self, segment_consumer: SegmentConsumer) -> None:
        """The segment is sealed, and everything was handed out."""


class SegmentReader(SegmentConsumer):
    def __init__(
        self,
        spec: SegmentConsumerSpec,
        listener: SegmentReaderListener,
        context: ClientContext,
        window: int,
        mark: Mark | None,
    ) -> None:
        super().__init__(spec, listener, context, window)
        self._reader_listener = listener
        self._mark = mark
        self._attaches = 0
        self._waiting = 0  # messages in the receive queue
        self._passed: Position = EARLIEST  # the last entry that was handed out or skipped
        self._is_sealed = False
        self._end: Position | None = None
        self._reader_timer: Timer | None = None
        self._is_probing = False  # asks whether the segment has any entry
        self._restart: Position | None = None  # where to continue, if not directly after the mark
        self._begun_at: Position = EARLIEST  # reading began after this entry
        if isinstance(mark, After):
            self._restart = mark.since
            self.state.start_after(mark.id)
            self._passed = Position(mark.id.ledger, mark.id.entry)
            self._is_mid_batch = 0 <= mark.id.batch_index < mark.id.batch_size - 1
        else:
            self._is_mid_batch = False

    # -- the wire

    async def attach(self, connection: Connection) -> None:
        try:
            await super().attach(connection)
        except Unexplained:
            # Pulsar 5.0.0-M1 fails to find the first entry of an empty sealed segment after a reload. Then every other
            # attempt asks for its end instead.
            self._is_probing = not self._is_probing and self._is_sealed and isinstance(self._mark, FromStart)
            raise

    def _subscribe_fields(self) -> dict[str, Any]:
        fields = super()._subscribe_fields()
        self._attaches += 1
        fields["subscription"] = f"{self.spec.subscription}-{self._attaches}"  # the previous one may still exist
        fields["durable"] = False
        match self._mark:
            case FromTime(at_ms):
                age_s = max(0, self._clock.now_ms() - at_ms) // 1000
                fields["start_message_rollback_duration_sec"] = age_s + SLACK_SECONDS
            case After(one):
                self.state.start_after(one)
                self._begun_at = self._restart or Position(one.ledger, one.entry)
                fields["start_message_id"] = _wire(self._begun_at)
            case FromStart() if not self._is_probing:
                fields["start_message_id"] = _wire(EARLIEST)
            case _:
                fields["start_message_id"] = _wire(LATEST)
                fields["initialPosition"] = pb.CommandSubscribe.Latest
        return fields

    async def _after_subscribe(self, connection: Connection) -> None:
        if self._mark is None:
            self._mark = self._mark_at(await self._last(connection))
            self._reader_listener.on_start_resolved(self, self._mark)
        if self._is_probing:
            last = await self._last(connection)
            end = Position(signed(last.ledgerId), signed(last.entryId))
            if end.ledger >= 0 and end.entry >= 0:
                self._is_probing = False
                raise NotReady("the segment is not empty: reading from its beginning")
            self._end_is(end)
        if self._is_sealed and self._end is None:
            self._ask_end()

    async def _last(self, connection: Connection) -> pb.MessageIdData:
        timeout_s = self._pool.answer_timeout_s
        answer = await connection.ask(BaseCommand.GET_LAST_MESSAGE_ID, timeout_s, consumer_id=self._id)
        last: pb.MessageIdData = answer.last_message_id
        return last

    def _mark_at(self, last: pb.MessageIdData) -> Mark:
        place = Position(signed(last.ledgerId), signed(last.entryId))
        if place.ledger < 0 or place.entry < 0:
            return FromStart()
        size = last.batch_index + 1 if last.batch_index >= 0 else 0
        one = MessageId(self.spec.identity, *place, last.batch_index, size, self.spec.lane)
        self.state.start_after(one)
        self._passed = place
        return After(one)

    # -- the end

    def sealed(self, last: Position | None) -> None:
        """Nothing more is added. `last` is the last entry, if known."""
        if self._is_sealed:
            return
        self._is_sealed = True
        if last is not None:
            self._end_is(last)
        elif self._connection is not None:
            self._ask_end()

    def _ask_end(self) -> None:
        """The answer is final, because the segment is sealed. If it is lost, the next attach asks again."""
        assert self._connection is not None
        answer = self._connection.begin(
            BaseCommand.GET_LAST_MESSAGE_ID, self._pool.answer_timeout_s, consumer_id=self._id
        )
        answer.add_done_callback(self._end_known)

    def _end_known(self, answer: asyncio.Future[Any]) -> None:
        if answer.cancelled() or answer.exception() is not None:
            return
        last = answer.result().last_message_id
        self._end_is(Position(signed(last.ledgerId), signed(last.entryId)))

    def _end_is(self, last: Position) -> None:
        self._end = last
        self.ends_at(last)
        self._check_end()

    def _check_end(self) -> None:
        """Notify the listener once, when the segment was read to its end."""
        end = self._end
        if end is None or self._waiting or self._is_mid_batch or self.is_at_end:
            return
        if end.entry < 0 or end.ledger < 0 or self._passed >= end:
            self.is_at_end = True
            self._reader_listener.on_end_reached(self)

    def on_command(self, kind: int, body: Any, payload: Bytes) -> None:
        if kind != BaseCommand.REACHED_END_OF_TOPIC:
            super().on_command(kind, body, payload)
        elif not self._is_sealed:
            self._is_sealed = True  # the broker was faster than the layout
            if self._connection is not None:
                self._ask_end()

    # -- messages

    def perform(self, effects: Sequence[Effect]) -> None:
        kept: list[Effect] = []
        for effect in effects:
            match effect:
                case Deliver(messages):
                    wanted = self._in_time(messages)
                    self._waiting += len(wanted)
                    if wanted:
                        kept.append(Deliver(wanted))
                    if len(wanted) < len(messages):
                        last = messages[-1].id
                        self._passed = max(self._passed, Position(last.ledger, last.entry))
                        kept += self.state.taken(len(messages) - len(wanted))
                case Reject(identity, _):
                    self._passed = max(self._passed, Position(signed(identity.ledgerId), signed(identity.entryId)))
                    kept.append(effect)
                case _:
                    kept.append(effect)
        super().perform(kept)
        self._check_end()

    def _in_time(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Skip messages before the first one published at the start time or later."""
        if not isinstance(self._mark, FromTime) or self._waiting:
            return messages
        for index, message in enumerate(messages):
            if message.publish_time >= self._mark.at_ms:
                return messages[index:]
        return ()

    def handed_out(self, one: MessageId, count: int = 1) -> None:
        """`count` messages were handed out, of which this is the last."""
        self._mark = After(one)
        self._waiting -= count
        self._passed = max(self._passed, Position(one.ledger, one.entry))
        self._is_mid_batch = 0 <= one.batch_index < one.batch_size - 1
        if self._reader_timer is None:
            self._reader_timer = self._clock.call_later(ACK_SECONDS, self._acknowledge)
        if self._end is not None:
            self._check_end()

    def lost(self) -> None:
        self._restart = self.since(self._mark.id) if isinstance(self._mark, After) else None
        super().lost()
        self._waiting = 0
        if self._reader_timer is not None:
            self._reader_timer.cancel()
            self._reader_timer = None

    def since(self, one: MessageId) -> Position | None:
        """The entry after which a reader that continues after this message must start, so that it gets all chunks of
        messages that begin before this one and end after it. None if there are none."""
        place = (one.ledger, one.entry)
        safe = self.state.safe_floor(place)
        if safe == place:
            return None
        return self._begun_at if safe is None else Position(*safe)

    def _acknowledge(self) -> None:
        self._reader_timer = None
        if isinstance(self._mark, After):
            self.ack_cumulative(self._mark.id)


def _wire(place: Position) -> pb.MessageIdData:
    return pb.MessageIdData(ledgerId=place.ledger & U64_MASK, entryId=place.entry & U64_MASK)
