"""Checkpoint consumers: readers whose positions the application stores.

A single consumer reads every segment of the topic. In a group the controller assigns segments to the members. When a
member reports a stored checkpoint (`saved`), the children of its finished segments become available.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from anabranch.client.arguments import check_type
from anabranch.client.config import Seconds, seconds
from anabranch.client.consumer.assignment_reconciler import AssignmentReconciler, Attach, Detach, Release, Stop
from anabranch.client.consumer.assignment_reconciler import Effect as AssignmentEffect
from anabranch.client.consumer.checkpoint import Checkpoint, Kind, Mark, reach
from anabranch.client.consumer.consumer import Consumer
from anabranch.client.consumer.consumer_options import ConsumerOptions, segment_spec
from anabranch.client.consumer.controller_session import Assignment, ControllerSession, SessionSpec
from anabranch.client.consumer.segment.segment_consumer import SegmentConsumer
from anabranch.client.consumer.segment.segment_reader import SegmentReader
from anabranch.client.consumer.segment_traversal import Close, Effect, Open, PositionGone, SegmentTraversal, described
from anabranch.client.consumer.topic_part import TopicPart
from anabranch.client.context import ClientContext
from anabranch.client.errors import ClientError, Closed, ConsumerBusy, NotSupported, TopicNotFound
from anabranch.client.messages.message import Message
from anabranch.client.messages.message_batch import last_id
from anabranch.client.metrics.metrics import ConsumerMetrics
from anabranch.client.topic.topic_view import TopicView
from anabranch.model.names import TopicName
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.runtime.logs import get_logger

log = get_logger(__name__)

Restore = Callable[[], Checkpoint | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointOptions(ConsumerOptions):
    start: Checkpoint
    group: str | None = None
    restore: Restore | None = None  # called when more segments are assigned to this member
    is_loss_fatal: bool = False  # segments deleted by retention before they were read: fail, or only log
    release_timeout_s: float = 10.0  # time to store the rest of a segment that is unassigned


class CheckpointTopic:
    """State of one topic: its traversal and, in a group, the session with its controller."""

    def __init__(self, consumer: CheckpointConsumer, part: TopicPart, options: CheckpointOptions) -> None:
        self.part = part
        start = options.start
        if part.is_new and start.kind is Kind.LATEST:  # all of it came after the consumer was opened
            start = Checkpoint.earliest()
        self.traversal = SegmentTraversal(str(part.view.topic), start, is_group=options.group is not None)
        self.reconciler = AssignmentReconciler()
        self.controller_session: ControllerSession | None = None
        self.session_task: asyncio.Task[None] | None = None  # runs it
        self.reported_missing: frozenset[int] = frozenset()
        self.mine: set[int] = set()
        self.stored: dict[int, Mark] = {}  # marks of the assigned segments that the application has stored
        self.reported: dict[int, Mark] = {}  # progress of the group in the last assignment
        self._consumer = consumer

    def restart(self) -> None:
        """The topic was deleted and created again; the traversal closes its readers."""
        self.reconciler.restarted()
        self.reported_missing = frozenset()
        self.mine, self.stored, self.reported = set(), {}, {}

    def on_assigned(self, assignment: Assignment) -> None:
        effects = self.reconciler.assigned(
            assignment.segments, generation=assignment.generation, epoch=assignment.epoch
        )
        if effects is not None:
            self.reported = assignment.marks
            self._consumer.apply_assignment(self, effects)

    def held_segments(self) -> tuple[tuple[int, ...], int | None]:
        return self.reconciler.held, self.reconciler.generation

    def on_registered(self) -> None:
        self._consumer.apply_assignment(self, self.reconciler.registered(self.part.view.layout.segments))

    def on_refused(self, error: ClientError) -> None:
        self._consumer.on_refused(error, self.part)

    def is_stored(self, segment_id: int) -> bool:
        """True if the application has stored everything that was handed out of this segment."""
        mark, stored = self.traversal.mark(segment_id), self.stored.get(segment_id)
        return mark is None or (stored is not None and reach(stored) >= reach(mark))


class CheckpointConsumer(Consumer):
    """Reads every key in order, across splits and merges. Its exact progress is available at any time."""

    def __init__(self, topics: Sequence[TopicName], options: CheckpointOptions, context: ClientContext) -> None:
        super().__init__(topics, options, context)
        self._sees_each_message = True
        self._reader = options
        self._checkpoint_topics: dict[TopicPart, CheckpointTopic] = {}
        self._failure: ClientError | None = None

    @property
    def group(self) -> str | None:
        """The group that shares the segments; None: this consumer reads all of them."""
        return self._reader.group

    def metrics(self) -> ConsumerMetrics:
        """The subscription is the group; empty without one. Acknowledgements do not exist."""
        return replace(super().metrics(), subscription=self.group or "", unacknowledged=0)

    def checkpoint(self) -> Checkpoint:
        """Exactly what was received so far. A consumer that starts with it receives the rest and nothing else."""
        cuts = tuple(one.traversal.cut() for one in self._checkpoint_topics.values())
        return Checkpoint(Kind.RUN, cuts, created_ms=self._context.clock.now_ms())

    async def saved(self, checkpoint: Checkpoint, timeout: Seconds | None = None) -> None:
        """For groups: report that the application has stored this checkpoint. Returns when the controller has it. The
        children of finished segments become available, and segments move to other members without being read twice.
        Raises CheckpointMismatch for a checkpoint of a topic that was created again since."""
        if self._is_closed:
            raise Closed("the consumer is closed")
        if self._failure is not None:
            raise self._failure
        check_type(checkpoint, Checkpoint, "checkpoint", "a Checkpoint")
        timeout_s = self._options.operation_timeout_s if timeout is None else seconds(timeout, "timeout")
        for one in list(self._checkpoint_topics.values()):
            cut = one.traversal.cut_in(checkpoint)
            if one.controller_session is None or cut is None:
                continue
            marks = {segment: mark for segment, mark in cut.marks.items() if segment in one.mine}
            one.stored.update(marks)
            if marks:
                await one.controller_session.progress(marks, timeout_s)
            for segment_id in one.reconciler.leaving:
                self._check_settled(one, segment_id)

    def _check_movable(self, timeout: Seconds | None) -> float:
        raise NotSupported("a checkpoint consumer keeps its position itself; open another one with start=")

    def _hand_out(self, segment_consumer: SegmentConsumer, message: Message) -> None:
        assert isinstance(segment_consumer, SegmentReader)
        one = self._of(segment_consumer)
        if one is not None:
            one.traversal.handed_out(segment_consumer.spec.segment_id, message.id, segment_consumer.since(message.id))
        super()._hand_out(segment_consumer, message)
        segment_consumer.handed_out(message.id)

    def _hand_out_entry(self, segment_consumer: SegmentConsumer, entry: Sequence[Message]) -> int:
        assert isinstance(segment_consumer, SegmentReader)
        one, last = self._of(segment_consumer), last_id(entry)
        if one is not None:
            one.traversal.handed_out(segment_consumer.spec.segment_id, last, segment_consumer.since(last))
        number = super()._hand_out_entry(segment_consumer, entry)
        segment_consumer.handed_out(last, len(entry))
        return number

    # -- segments

    def _on_layout(self, part: TopicPart, view: TopicView) -> None:
        is_another = part.advance(view)
        if (one := self._checkpoint_topics.get(part)) is None:
            one = self._checkpoint_topics[part] = CheckpointTopic(self, part, self._reader)
        if is_another:
            one.restart()
            if self._reader.group is not None and view.is_synthetic:
                self._refuse_group()
        try:
            self._perform(one, one.traversal.on_layout(view.layout, view.incarnation, is_another=is_another))
        except ClientError as error:
            self.on_refused(error, part)
            return
        self._notice(one)
        for segment_id, segment_consumer in list(part.segment_consumers.items()):
            segment = view.layout.segments.get(segment_id)
            if isinstance(segment_consumer, SegmentReader) and segment is not None and not segment.is_active:
                segment_consumer.sealed(segment.last_position)
        if self._reader.group is not None and one.controller_session is None:
            self._open_session(one)

    def _notice(self, one: CheckpointTopic) -> None:
        news = one.traversal.missing - one.reported_missing
        if not news:
            return
        one.reported_missing |= news
        topic = str(one.part.view.topic)
        if self._reader.is_loss_fatal:
            self.on_refused(PositionGone(f"{topic}: retention deleted unread segments: {described(news)}"))
        else:
            log.warning("retention deleted unread segments", extra={"topic": topic, "segments": [*news]})

    def _perform(self, one: CheckpointTopic, effects: Sequence[Effect]) -> None:
        part = one.part
        for effect in effects:
            match effect:
                case Open(segment, mark):
                    spec = segment_spec(self._options, part, segment, pb.CommandSubscribe.Exclusive)
                    reader = SegmentReader(spec, self, self._context, self._options.prefetch, mark)
                    forgives: tuple[type[ClientError], ...] = ()
                    if not part.view.is_synthetic:
                        forgives = (ConsumerBusy, TopicNotFound) if segment.is_active else (ConsumerBusy,)
                    self._attach(part, reader, forgives)
                    if not segment.is_active:
                        reader.sealed(segment.last_position)
                case Close(segment_id):
                    if (segment_consumer := part.segment_consumers.get(segment_id)) is not None:
                        leaving = self._detach(part, segment_consumer)
                        if leaving is not None:
                            leaving.add_done_callback(partial(self._closed, one, segment_id))
                    else:
                        self._closed(one, segment_id)

    async def wait_attached(self, part: TopicPart, timeout_s: float) -> None:
        one = self._checkpoint_topics[part]
        if one.controller_session is not None:
            await one.controller_session.wait_first(timeout_s)
        if self._failure is not None:
            raise self._failure
        await super().wait_attached(part, timeout_s)

    def _of(self, segment_consumer: SegmentConsumer) -> CheckpointTopic | None:
        for part, one in self._checkpoint_topics.items():
            if part.segment_consumers.get(segment_consumer.spec.segment_id) is segment_consumer:
                return one
        return None

    # -- for the readers

    def on_start_resolved(self, segment_consumer: SegmentConsumer, mark: Mark) -> None:
        if (one := self._of(segment_consumer)) is not None:
            one.traversal.resolved(segment_consumer.spec.segment_id, mark)

    def on_end_reached(self, segment_consumer: SegmentConsumer) -> None:
        if (one := self._of(segment_consumer)) is not None:
            self._perform(one, one.traversal.ended(segment_consumer.spec.segment_id))

    def on_failed(self, segment_consumer: SegmentConsumer, error: ClientError) -> None:
        one = self._of(segment_consumer)
        if one is None:
            return
        if isinstance(error, TopicNotFound) and not one.part.view.is_synthetic:
            log.warning(
                "segment was deleted while it was read", extra={"topic": segment_consumer.topic, "reason": error.reason}
            )
            self._perform(one, one.traversal.ended(segment_consumer.spec.segment_id))
        else:
            self.on_refused(error, one.part)

    # -- groups

    def on_refused(self, error: ClientError, part: TopicPart | None = None) -> None:
        if self._namespace is None or part is None:
            self._failure = self._failure or error
            self._queue.fail(error)
        else:
            super().on_refused(error, part)

    def _end_part(self, part: TopicPart) -> None:
        one = self._checkpoint_topics.pop(part, None)
        if one is not None and one.session_task is not None:
            one.session_task.cancel()

    def _open_session(self, one: CheckpointTopic) -> None:
        group = self._reader.group
        assert group is not None
        if one.part.view.is_synthetic:
            self._refuse_group()
            return
        spec = SessionSpec(subscription=group, consumer_name=self.name, kind=pb.CHECKPOINT, from_earliest=True)
        one.controller_session = ControllerSession(one.part.watch, spec, one, self._context)
        one.session_task = self._tasks.spawn(one.controller_session.run(), "controller")

    def _refuse_group(self) -> None:
        self.on_refused(
            NotSupported(f"{self.topic}: groups need a scalable topic, because its controller assigns the segments")
        )

    def apply_assignment(self, one: CheckpointTopic, effects: Sequence[AssignmentEffect]) -> None:
        """Apply effects of an assignment to the readers."""
        if self._is_closed:
            return  # assignments may still arrive while it closes
        come = {effect.segment_id for effect in effects if isinstance(effect, Attach)}
        if come:
            try:
                stored = None if self._reader.restore is None else self._reader.restore()
                self._take_over(one, come, stored)
            except ClientError as error:  # what the application has stored does not belong to this topic
                self.on_refused(error)
                return
        for effect in effects:
            match effect:
                case Attach():
                    pass
                case Stop(segment_id):
                    if (segment_consumer := one.part.segment_consumers.get(segment_id)) is not None:
                        segment_consumer.stop()
                    self._check_settled(one, segment_id)
                    if segment_id in one.reconciler.leaving:
                        self._tasks.spawn(self._release_overdue(one, segment_id), "release deadline")
                case Detach(segment_id):
                    one.mine.discard(segment_id)
                    one.stored.pop(segment_id, None)
                    closing = one.traversal.assigned(one.mine)
                    self._perform(one, closing)
                    if Close(segment_id) not in closing:
                        self._closed(one, segment_id)
                case Release(generation, segment_ids):
                    if one.controller_session is not None:
                        one.controller_session.release(generation, segment_ids)

    def _take_over(self, one: CheckpointTopic, segment_ids: set[int], stored: Checkpoint | None) -> None:
        effects = one.traversal.assigned(one.mine | segment_ids, stored, one.reported)
        one.mine |= segment_ids
        for segment_id in segment_ids:
            mark = one.traversal.mark(segment_id)
            if mark is not None:
                one.stored[segment_id] = mark
        self._perform(one, effects)

    def _check_settled(self, one: CheckpointTopic, segment_id: int) -> None:
        if one.is_stored(segment_id):
            self.apply_assignment(one, one.reconciler.settled(segment_id))

    async def _release_overdue(self, one: CheckpointTopic, segment_id: int) -> None:
        await self._context.clock.sleep(self._reader.release_timeout_s)
        self.apply_assignment(one, one.reconciler.overdue(segment_id))

    def _closed(self, one: CheckpointTopic, segment_id: int, task: asyncio.Task[None] | None = None) -> None:
        if not self._is_closed:
            self.apply_assignment(one, one.reconciler.closed(segment_id))

    async def _close_rest(self, timeout_s: float) -> None:
        for one in self._checkpoint_topics.values():
            if one.controller_session is not None:
                await one.controller_session.leave(timeout_s)


def check_start(start: Checkpoint) -> Checkpoint:
    check_type(start, Checkpoint, "start", "a Checkpoint")
    return start
