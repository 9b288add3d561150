"""Stream consumers: every key in order, acknowledged cumulatively.

| topic      | who reads what                                                                                        |
|------------|-------------------------------------------------------------------------------------------------------|
| regular    | Failover on every partition: the broker chooses                                                         |
| scalable   | the controller assigns segments, each for one consumer; a child only when its parents are acknowledged |
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from anabranch.client.consumer.assignment_reconciler import (
    AssignmentReconciler,
    Attach,
    Detach,
    Effect,
    Release,
    Stop,
    Void,
)
from anabranch.client.consumer.consumer import Consumer, ConsumerOptions, TopicPart, id_of
from anabranch.client.consumer.controller_session import Assigned, ControllerSession, SessionSpec
from anabranch.client.consumer.cumulative_acks import CumulativeAckLog
from anabranch.client.consumer.segment_consumer import Grant, SegmentConsumer
from anabranch.client.consumer.stream_segment_consumer import StreamChannel
from anabranch.client.context import ClientContext
from anabranch.client.errors import ClientError, ConsumerFenced
from anabranch.client.messages.message import Message, MessageId
from anabranch.client.messages.message_batch import MessageBatch, last_id
from anabranch.client.topic.topic_view import TopicView
from anabranch.model.hashrange import HashRange
from anabranch.model.names import TopicName
from anabranch.model.segment import Segment
from anabranch.protocol import pulsar_pb2 as pb

log = logging.getLogger(__name__)

PARENTS = "parents first"  # why a channel is held


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions(ConsumerOptions):
    release_timeout_s: float = 10.0  # for the application to acknowledge what it has of a segment that is taken away


class StreamPart:
    """The seat of a stream consumer at the controller of one scalable topic."""

    def __init__(self, consumer: StreamConsumer, part: TopicPart) -> None:
        self.part = part
        self.holdings = AssignmentReconciler()
        self.session: ControllerSession | None = None
        self.topics: dict[int, str] = {}  # segments that are assigned, and where they are
        self.grant: Grant | None = None  # what they are read under
        self._consumer = consumer
        self._incarnation = 0

    def assigned(self, assignment: Assigned) -> None:
        if assignment.incarnation != self._incarnation:
            self._incarnation = assignment.incarnation
            self.holdings.restarted()
        effects = self.holdings.assigned(
            assignment.segments,
            generation=assignment.generation,
            epoch=assignment.epoch,
            void_below=assignment.void_below,
        )
        if effects is None:
            return
        self.topics = assignment.segments
        if assignment.generation is not None:
            self.grant = Grant(assignment.incarnation, assignment.generation)
        self._consumer.perform(self, effects)
        if self.grant is not None:
            for segment_id, channel in self.part.channels.items():
                if segment_id in assignment.segments:
                    channel.grant = self.grant  # what is void keeps its own, and is let in nowhere any more

    def holding(self) -> tuple[tuple[int, ...], int | None]:
        return self.holdings.held, self.holdings.generation

    def registered(self) -> None:
        self._consumer.perform(self, self.holdings.registered(self.part.view.layout.segments))

    def refused(self, error: ClientError) -> None:
        self._consumer.refused(error)


class StreamConsumer(Consumer):
    """Every key in order, acknowledged cumulatively. Of several with one subscription, each segment has one."""

    def __init__(self, topics: Sequence[TopicName], options: StreamOptions, ground: ClientContext) -> None:
        super().__init__(topics, options, ground)
        self._stream = options
        self._is_attentive = True
        self._log: CumulativeAckLog[SegmentConsumer] = CumulativeAckLog()
        self._last: dict[SegmentConsumer, MessageId] = {}  # handed out
        self._seats: dict[TopicPart, StreamPart] = {}
        self._ahead: set[SegmentConsumer] = set()  # others wait until everything of these was handed out

    async def ack_cumulative(self, message: Message | MessageId | MessageBatch) -> None:
        """Everything this consumer handed out up to and including `message`, of all segments and topics. With a bare
        id it covers that id's segment, and what the id carries along (see `position`); so it does with one message of a
        batch. A message from before an operator's seek covers nothing: the subscription is elsewhere since."""
        if isinstance(message, MessageBatch):
            if not message:
                return
            one = message.last
        else:
            one = id_of(message)
        channel = self._channel_of(one)
        if not isinstance(message, MessageId) and message.delivery > 0 and channel is not None:
            covered = self._log.covered(message.delivery, channel, one)
        else:
            covered = {}
            for each in (one, *one.covers):
                where = self._channel_of(each)
                if where is not None:
                    covered[where] = each
        for where, last in covered.items():
            where.ack_cumulative(last)
        for seat in self._seats.values():
            for segment_id in seat.holdings.leaving:
                self._look_at(seat, segment_id)

    def position(self, message: Message) -> MessageId:
        """The id of `message` with the vector of all that was handed out before it in other segments: kept as bytes,
        it can be acknowledged later, by another process too."""
        vector = self._log.vector(message.delivery)
        own = self._channel_of(message.id)
        covers = tuple(one for channel, one in vector.items() if channel is not own)
        return replace(message.id, covers=covers)

    def _hand_out(self, channel: SegmentConsumer, message: Message) -> None:
        message.delivery = self._log.handed_out(channel, message.id)
        self._last[channel] = message.id
        if channel in self._ahead:
            self._look_ahead(channel)
        super()._hand_out(channel, message)

    def _hand_out_parcel(self, channel: SegmentConsumer, parcel: Sequence[Message]) -> int:
        super()._hand_out_parcel(channel, parcel)
        self._last[channel] = last = last_id(parcel)
        if channel in self._ahead:
            self._look_ahead(channel)
        return self._log.handed_out(channel, last)

    # -- where messages come from

    def _seen(self, part: TopicPart, view: TopicView) -> None:
        was_synthetic, is_another = part.view.is_synthetic, view.generation != part.view.generation
        part.view = view
        if was_synthetic and (is_another or not view.is_synthetic):
            for channel in list(part.channels.values()):
                self._detach(part, channel)
        if view.is_synthetic:
            for segment_id, segment in view.layout.segments.items():
                if segment_id not in part.channels:
                    spec = self._spec(part, segment, pb.CommandSubscribe.Failover)
                    self._attach(part, SegmentConsumer(spec, self, self._ground, self._options.prefetch))
        elif part not in self._seats:
            self._open_session(part)
        else:
            self._reorder(self._seats[part])
        going = () if view.plan is None else view.plan.parent_ids
        for segment_id, channel in part.channels.items():
            is_sealed = segment_id in view.layout and not view.layout[segment_id].is_active
            channel.hurry(is_sealed or segment_id in going)
            if is_sealed:
                channel.ends_at(view.layout[segment_id].last_position)

    def _open_session(self, part: TopicPart) -> None:
        options = self._options
        seat = self._seats[part] = StreamPart(self, part)
        spec = SessionSpec(
            subscription=options.subscription,
            consumer_name=options.name,
            kind=pb.STREAM,
            from_earliest=options.from_earliest,
        )
        seat.session = ControllerSession(part.watch, spec, seat, self._ground)
        self._tasks.spawn(seat.session.run(), "controller")

    async def _ready(self, part: TopicPart, timeout_s: float) -> None:
        seat = self._seats.get(part)
        if seat is None:
            await super()._ready(part, timeout_s)
        else:
            assert seat.session is not None
            await seat.session.wait_first(timeout_s)

    async def _depart(self, timeout_s: float) -> None:
        for seat in self._seats.values():
            if seat.session is not None:
                await seat.session.leave(timeout_s)

    # -- for the seats

    def refused(self, error: ClientError) -> None:
        self._queue.fail(error)

    def perform(self, seat: StreamPart, effects: Sequence[Effect]) -> None:
        if self._is_closed:
            return  # assignments may still come while it leaves
        part = seat.part
        for effect in effects:
            match effect:
                case Attach(segment_id):
                    segment = _segment(part.view, segment_id, seat.topics[segment_id])
                    # Of a migrated topic M1's controller gives names that do not exist; the layout has the right ones.
                    topic = None if part.view.is_legacy(segment) else seat.topics[segment_id]
                    spec = self._spec(part, segment, pb.CommandSubscribe.Exclusive, topic)
                    channel = StreamChannel(spec, self, self._ground, self._options.prefetch)
                    channel.grant = seat.grant
                    self._attach(part, channel)
                case Stop(segment_id):
                    part.channels[segment_id].stop()
                    self._look_at(seat, segment_id)
                    if segment_id in seat.holdings.leaving:
                        self._tasks.spawn(self._hurry(seat, segment_id, part.channels[segment_id]), "release deadline")
                case Detach(segment_id):
                    leaving = self._drop(part, part.channels[segment_id])
                    if leaving is not None:
                        leaving.add_done_callback(partial(self._closed, seat, segment_id))
                case Void(segment_id):
                    if (void := part.channels.get(segment_id)) is not None:
                        void.void()
                        self._drop(part, void)
                case Release(generation, segment_ids):
                    if seat.session is not None:
                        seat.session.release(generation, segment_ids)
        self._reorder(seat)

    def _drop(self, part: TopicPart, channel: SegmentConsumer) -> asyncio.Task[None] | None:
        self._log.forget(channel)
        self._last.pop(channel, None)
        return self._detach(part, channel)

    def ended(self, channel: SegmentConsumer, error: ClientError) -> None:
        """A segment that is another's now is let go; the next assignment says what is ours. All else is the end."""
        if not isinstance(error, ConsumerFenced):
            super().ended(channel, error)
            return
        segment_id = channel.spec.segment_id
        for part, seat in self._seats.items():
            if part.channels.get(segment_id) is channel:
                log.info("segment is another's", extra={"topic": channel.topic, "reason": error.reason})
                self._drop(part, channel)
                self.perform(seat, seat.holdings.fenced(segment_id))

    def _closed(self, seat: StreamPart, segment_id: int, task: object) -> None:
        if not self._is_closed:
            self.perform(seat, seat.holdings.closed(segment_id))

    async def _hurry(self, seat: StreamPart, segment_id: int, channel: SegmentConsumer) -> None:
        await self._ground.clock.sleep(self._stream.release_timeout_s)
        if seat.part.channels.get(segment_id) is channel:
            self.perform(seat, seat.holdings.overdue(segment_id))

    def _look_at(self, seat: StreamPart, segment_id: int) -> None:
        """Is everything acknowledged that was handed out of a segment that is to go?"""
        channel = seat.part.channels[segment_id]
        last = self._last.get(channel)
        if last is None or channel.intake.is_covered(last):
            self.perform(seat, seat.holdings.settled(segment_id))

    def reached_end(self, channel: SegmentConsumer) -> None:
        super().reached_end(channel)
        self._reorder_all()

    def dropped(self, channel: SegmentConsumer) -> list[MessageId]:
        found = super().dropped(channel)
        self._reorder_all()  # what waited of it is gone, and with it why it was held
        return found

    def _look_ahead(self, channel: SegmentConsumer) -> None:
        if isinstance(channel, StreamChannel) and channel.is_through(self._last[channel]):
            self._reorder_all()

    def _reorder_all(self) -> None:
        for seat in self._seats.values():
            self._reorder(seat)

    def _reorder(self, seat: StreamPart) -> None:
        """Where a controller hands out a child beside its parent, the parent comes first."""
        layout, channels = seat.part.view.layout, seat.part.channels
        ahead: set[SegmentConsumer] = set()
        for segment_id, channel in channels.items():
            before = layout.ancestors(segment_id) if segment_id in layout else set[int]()
            parents = [channels[one] for one in before if one in channels and not self._is_through(channels[one])]
            ahead.update(parents)
            if parents:
                self._queue.hold(channel, PARENTS)
            else:
                self._queue.release(channel, PARENTS)
        self._ahead = self._ahead.difference(channels.values()) | ahead
        for parent in ahead:
            segment = layout[parent.spec.segment_id]
            if isinstance(parent, StreamChannel) and not segment.is_active:
                parent.find_end(segment.last_position, self._reorder_all)

    def _is_through(self, channel: SegmentConsumer) -> bool:
        return isinstance(channel, StreamChannel) and channel.is_through(self._last.get(channel))


def _segment(view: TopicView, segment_id: int, topic: str) -> Segment:
    """As the layout has it; an assignment may be ahead of it."""
    if segment_id in view.layout:
        return view.layout[segment_id]
    name = TopicName.parse(topic)
    if name.segment is None:
        return Segment(segment_id, HashRange(0, 0), legacy_topic_name=topic)
    return Segment(segment_id, HashRange(name.segment.start, name.segment.end))
