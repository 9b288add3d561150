"""Checkpoint consumers: readers whose positions the application keeps. Knows asyncio; order is decided by `traversal`.

Alone it reads every segment of the topic; in a group the controller deals segments out among the members, and what a
member has stored (`saved`) opens the children of what it finished.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from anabranch.client.config import Seconds, seconds
from anabranch.client.consumer.assignment_reconciler import AssignmentReconciler, Attach, Detach, Release, Stop
from anabranch.client.consumer.assignment_reconciler import Effect as HoldingsEffect
from anabranch.client.consumer.checkpoint import Checkpoint, Kind, Mark, reach
from anabranch.client.consumer.consumer import Consumer, ConsumerOptions, TopicPart
from anabranch.client.consumer.controller_session import Assigned, ControllerSession, SessionSpec
from anabranch.client.consumer.segment_consumer import SegmentConsumer
from anabranch.client.consumer.segment_reader import Reader
from anabranch.client.consumer.segment_traversal import Close, Effect, Open, PositionGone, Traversal, described
from anabranch.client.context import ClientContext
from anabranch.client.errors import BadOption, ClientError, Closed, ConsumerBusy, NotSupported, TopicNotFound
from anabranch.client.messages.message import Message
from anabranch.client.messages.message_batch import last_id
from anabranch.client.topic.topic_view import TopicView
from anabranch.model.names import TopicName
from anabranch.protocol import pulsar_pb2 as pb

log = logging.getLogger(__name__)

Restore = Callable[[], Checkpoint | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointOptions(ConsumerOptions):
    start: Checkpoint
    group: str | None = None
    restore: Restore | None = None  # asked when the group gives this member more segments
    is_loss_fatal: bool = False  # retention was faster than we: an error, or a line in the log
    release_timeout_s: float = 10.0  # for the application to store what it has of a segment that is taken away


class CheckpointPart:
    """What is read of one topic; in a group also the seat at its controller."""

    def __init__(self, consumer: CheckpointConsumer, part: TopicPart, options: CheckpointOptions) -> None:
        self.part = part
        self.reading = Traversal(str(part.view.topic), options.start, is_group=options.group is not None)
        self.holdings = AssignmentReconciler()
        self.session: ControllerSession | None = None
        self.told_missing: frozenset[int] = frozenset()
        self.mine: set[int] = set()
        self.stored: dict[int, Mark] = {}  # of the segments that are ours: what the application has made safe
        self.reported: dict[int, Mark] = {}  # how far the group was, as the controller said last
        self._consumer = consumer

    def assigned(self, assignment: Assigned) -> None:
        effects = self.holdings.assigned(assignment.segments, generation=assignment.generation, epoch=assignment.epoch)
        if effects is not None:
            self.reported = assignment.marks
            self._consumer.moved(self, effects)

    def holding(self) -> tuple[tuple[int, ...], int | None]:
        return self.holdings.held, self.holdings.generation

    def registered(self) -> None:
        self._consumer.moved(self, self.holdings.registered(self.part.view.layout.segments))

    def refused(self, error: ClientError) -> None:
        self._consumer.refused(error)

    def is_stored(self, segment_id: int) -> bool:
        """Has the application stored everything that it was handed of this segment?"""
        mark, stored = self.reading.mark(segment_id), self.stored.get(segment_id)
        return mark is None or (stored is not None and reach(stored) >= reach(mark))


class CheckpointConsumer(Consumer):
    """Reads in the order of every key, across splits and merges, and says at any moment exactly how far it is."""

    def __init__(self, topics: Sequence[TopicName], options: CheckpointOptions, ground: ClientContext) -> None:
        super().__init__(topics, options, ground)
        self._is_attentive = True
        self._reader = options
        self._readings: dict[TopicPart, CheckpointPart] = {}
        self._failure: ClientError | None = None

    @property
    def group(self) -> str | None:
        return self._reader.group

    def checkpoint(self) -> Checkpoint:
        """What was received so far, exactly: a consumer that starts with it receives the rest and nothing else."""
        cuts = tuple(one.reading.cut() for one in self._readings.values())
        return Checkpoint(Kind.RUN, cuts, created_ms=self._ground.clock.now_ms())

    async def saved(self, checkpoint: Checkpoint, timeout: Seconds | None = None) -> None:
        """For groups: the application has stored this checkpoint. Returns when the controller knows: what is finished
        in it opens the segments behind it, and what moves to another member moves without being read twice."""
        if self._is_closed:
            raise Closed("the consumer is closed")
        timeout_s = self._options.operation_timeout_s if timeout is None else seconds(timeout)
        for one in list(self._readings.values()):
            cut = checkpoint.cut_of(str(one.part.view.topic))
            if one.session is None or cut is None:
                continue
            marks = {segment: mark for segment, mark in cut.marks.items() if segment in one.mine}
            one.stored.update(marks)
            if marks:
                await one.session.progress(marks, timeout_s)
            for segment_id in one.holdings.leaving:
                self._look_at(one, segment_id)

    def _hand_out(self, channel: SegmentConsumer, message: Message) -> None:
        assert isinstance(channel, Reader)
        one = self._of(channel)
        if one is not None:
            one.reading.handed_out(channel.spec.segment_id, message.id, channel.since(message.id))
        super()._hand_out(channel, message)
        channel.handed_out(message.id)

    def _hand_out_parcel(self, channel: SegmentConsumer, parcel: Sequence[Message]) -> int:
        assert isinstance(channel, Reader)
        one, last = self._of(channel), last_id(parcel)
        if one is not None:
            one.reading.handed_out(channel.spec.segment_id, last, channel.since(last))
        number = super()._hand_out_parcel(channel, parcel)
        channel.handed_out(last, len(parcel))
        return number

    # -- what is read

    def _seen(self, part: TopicPart, view: TopicView) -> None:
        part.view = view
        if (one := self._readings.get(part)) is None:
            one = self._readings[part] = CheckpointPart(self, part, self._reader)
        try:
            self._perform(one, one.reading.saw(view.layout, view.incarnation))
        except ClientError as error:
            self.refused(error)
            return
        self._notice(one)
        for segment_id, channel in list(part.channels.items()):
            segment = view.layout.segments.get(segment_id)
            if isinstance(channel, Reader) and segment is not None and not segment.is_active:
                channel.sealed(segment.last_position)
        if self._reader.group is not None and one.session is None:
            self._open_session(one)

    def _notice(self, one: CheckpointPart) -> None:
        news = one.reading.missing - one.told_missing
        if not news:
            return
        one.told_missing |= news
        topic = str(one.part.view.topic)
        if self._reader.is_loss_fatal:
            self.refused(PositionGone(f"{topic}: retention deleted segments that were not read: {described(news)}"))
        else:
            log.warning("retention deleted segments that were not read", extra={"topic": topic, "segments": [*news]})

    def _perform(self, one: CheckpointPart, effects: Sequence[Effect]) -> None:
        part = one.part
        for effect in effects:
            match effect:
                case Open(segment, mark):
                    spec = self._spec(part, segment, pb.CommandSubscribe.Exclusive)
                    reader = Reader(spec, self, self._ground, self._options.prefetch, mark)
                    forgives: tuple[type[ClientError], ...] = ()
                    if not part.view.is_synthetic:
                        forgives = (ConsumerBusy, TopicNotFound) if segment.is_active else (ConsumerBusy,)
                    self._attach(part, reader, forgives)
                    if not segment.is_active:
                        reader.sealed(segment.last_position)
                case Close(segment_id):
                    if (channel := part.channels.get(segment_id)) is not None:
                        leaving = self._detach(part, channel)
                        if leaving is not None:
                            leaving.add_done_callback(partial(self._closed, one, segment_id))
                    else:
                        self._closed(one, segment_id)

    async def _ready(self, part: TopicPart, timeout_s: float) -> None:
        one = self._readings[part]
        if one.session is not None:
            await one.session.wait_first(timeout_s)
        if self._failure is not None:
            raise self._failure
        await super()._ready(part, timeout_s)

    def _of(self, channel: SegmentConsumer) -> CheckpointPart | None:
        for part, one in self._readings.items():
            if part.channels.get(channel.spec.segment_id) is channel:
                return one
        return None

    # -- for the readers

    def resolved(self, channel: SegmentConsumer, mark: Mark) -> None:
        if (one := self._of(channel)) is not None:
            one.reading.resolved(channel.spec.segment_id, mark)

    def reached_end(self, channel: SegmentConsumer) -> None:
        if (one := self._of(channel)) is not None:
            self._perform(one, one.reading.ended(channel.spec.segment_id))

    def ended(self, channel: SegmentConsumer, error: ClientError) -> None:
        one = self._of(channel)
        if one is None:
            return
        if isinstance(error, TopicNotFound) and not one.part.view.is_synthetic:
            log.warning("a segment is gone", extra={"topic": channel.topic, "reason": error.reason})
            self._perform(one, one.reading.ended(channel.spec.segment_id))
        else:
            self.refused(error)

    # -- groups

    def refused(self, error: ClientError) -> None:
        self._failure = self._failure or error
        self._queue.fail(error)

    def _open_session(self, one: CheckpointPart) -> None:
        group = self._reader.group
        assert group is not None
        if one.part.view.is_synthetic:
            self.refused(NotSupported(f"{self.topic}: groups need a scalable topic, which has a controller"))
            return
        spec = SessionSpec(subscription=group, consumer_name=self.name, kind=pb.CHECKPOINT, from_earliest=True)
        one.session = ControllerSession(one.part.watch, spec, one, self._ground)
        self._tasks.spawn(one.session.run(), "controller")

    def moved(self, one: CheckpointPart, effects: Sequence[HoldingsEffect]) -> None:
        """What the controller's word means for the readers."""
        if self._is_closed:
            return  # it may still come while we leave
        come = {effect.segment_id for effect in effects if isinstance(effect, Attach)}
        if come:
            stored = None if self._reader.restore is None else self._reader.restore()
            self._take_over(one, come, stored)
        for effect in effects:
            match effect:
                case Attach():
                    pass
                case Stop(segment_id):
                    if (channel := one.part.channels.get(segment_id)) is not None:
                        channel.stop()
                    self._look_at(one, segment_id)
                    if segment_id in one.holdings.leaving:
                        self._tasks.spawn(self._hurry(one, segment_id), "release deadline")
                case Detach(segment_id):
                    one.mine.discard(segment_id)
                    one.stored.pop(segment_id, None)
                    closing = one.reading.assigned(one.mine)
                    self._perform(one, closing)
                    if Close(segment_id) not in closing:
                        self._closed(one, segment_id)
                case Release(generation, segment_ids):
                    if one.session is not None:
                        one.session.release(generation, segment_ids)

    def _take_over(self, one: CheckpointPart, segment_ids: set[int], stored: Checkpoint | None) -> None:
        one.mine |= segment_ids
        effects = one.reading.assigned(one.mine, stored, one.reported)
        for segment_id in segment_ids:
            mark = one.reading.mark(segment_id)
            if mark is not None:
                one.stored[segment_id] = mark
        self._perform(one, effects)

    def _look_at(self, one: CheckpointPart, segment_id: int) -> None:
        if one.is_stored(segment_id):
            self.moved(one, one.holdings.settled(segment_id))

    async def _hurry(self, one: CheckpointPart, segment_id: int) -> None:
        await self._ground.clock.sleep(self._reader.release_timeout_s)
        self.moved(one, one.holdings.overdue(segment_id))

    def _closed(self, one: CheckpointPart, segment_id: int, task: asyncio.Task[None] | None = None) -> None:
        if not self._is_closed:
            self.moved(one, one.holdings.closed(segment_id))

    async def _depart(self, timeout_s: float) -> None:
        for one in self._readings.values():
            if one.session is not None:
                await one.session.leave(timeout_s)


def check_start(start: Checkpoint) -> Checkpoint:
    if not isinstance(start, Checkpoint):
        raise BadOption(f"start is a Checkpoint, not {start!r}")
    return start
