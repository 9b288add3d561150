"""Stream consumers: every key in order, acknowledged cumulatively.

| topic    | how segments are divided among the consumers of a subscription                                          |
|----------|---------------------------------------------------------------------------------------------------------|
| regular  | Failover subscription on every partition; the broker chooses the active consumer                        |
|          | (v4 consumers of the subscription take part)                                                             |
| scalable | the controller assigns each segment to one consumer. A child that goes to another consumer is assigned  |
|          | after its parents are acknowledged, a child that goes to the consumer of its parents at once.           |
|          | With `fan_out="auto"` several consumers share a segment that has entry buckets, key by key              |

In the second case the consumer reads parents and children in order, and sends acks of a child after those of its
parents are confirmed (`SegmentOrder`). An application that acknowledges every N messages continues over a split.

When a regular topic is migrated, its partitions become sealed segments. The consumer keeps the partitions of which it
has handed out messages, and registers with them; a partition that is assigned to another consumer is acknowledged
first, like any segment that moves. So nothing is delivered twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from anabranch.client.arguments import check_choice, check_concurrency, check_function, check_optional, check_type
from anabranch.client.config import AckEvery, Retry, Seconds
from anabranch.client.consumer.assignment_reconciler import (
    Attach,
    Detach,
    Discard,
    Effect,
    Release,
    Stop,
)
from anabranch.client.consumer.consumer import Consumer, id_of
from anabranch.client.consumer.consumer_options import ConsumerOptions, segment_spec, shared_spec
from anabranch.client.consumer.controller_session import ControllerSession, SessionSpec
from anabranch.client.consumer.cumulative_acks import CumulativeAckLog
from anabranch.client.consumer.segment.segment_consumer import SegmentConsumer
from anabranch.client.consumer.segment.segment_consumer_spec import SegmentConsumerSpec
from anabranch.client.consumer.segment.shared_segment_consumer import SharedSegmentConsumer
from anabranch.client.consumer.segment.stream_segment_consumer import (
    StreamSegmentConsumer,
    is_read_to_end,
)
from anabranch.client.consumer.stream_session import StreamSession
from anabranch.client.consumer.topic_part import TopicPart
from anabranch.client.context import ClientContext
from anabranch.client.errors import BadOption, ClientError, ConsumerFenced, TimedOut
from anabranch.client.messages.message import Message, MessageId
from anabranch.client.messages.message_batch import MessageBatch, last_id
from anabranch.client.processing.auto_acks import AutoAcks
from anabranch.client.processing.handler_runner import Handler
from anabranch.client.processing.handler_state import OrderedHandlers
from anabranch.client.topic.topic_view import TopicView
from anabranch.model.hashrange import HashRange
from anabranch.model.names import TopicName
from anabranch.model.segment import Segment
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.runtime.logs import get_logger

log = get_logger(__name__)

PENDING_PER_HANDLER = 64  # messages that `run` receives ahead, so that it finds other keys while one is busy


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions(ConsumerOptions):
    release_timeout_s: float = 10.0  # time to acknowledge the rest of a segment that is unassigned
    ack_every: AckEvery | None = None
    fan_out: str = "off"  # "auto": it may share a segment with other consumers

    def __post_init__(self) -> None:
        check_choice(self.fan_out, "fan_out", ("auto", "off"))


class StreamConsumer(Consumer):
    """Receives every key in order, with cumulative acks. Each segment is read by one consumer of the subscription."""

    def __init__(self, topics: Sequence[TopicName], options: StreamOptions, context: ClientContext) -> None:
        super().__init__(topics, options, context)
        self._stream = options
        self._sees_each_message = True
        self._log: CumulativeAckLog[SegmentConsumer] = CumulativeAckLog()
        self._last: dict[SegmentConsumer, MessageId] = {}  # last message handed out
        self._sessions: dict[TopicPart, StreamSession] = {}
        self._acks_sent = asyncio.Event()  # set when acks of an ancestor are confirmed
        self._unread_parents: set[SegmentConsumer] = set()  # their children are held until these are read to the end
        self._auto_acks: AutoAcks[tuple[int, SegmentConsumer, MessageId]] | None = None
        if options.ack_every is not None:
            self._auto_acks = AutoAcks(options.ack_every, self._ack_position, context.clock)
            self._on_receive = self._auto_acks.receive_called

    async def ack_cumulative(self, message: Message | MessageId | MessageBatch) -> None:
        """Acknowledge everything this consumer handed out up to and including `message`, of all segments and topics.

        A bare id, or one message of a batch, covers its own segment with its ancestors, and the positions that the id
        carries (see `position`). A message received before a seek covers nothing, because the position was moved.
        """
        if isinstance(message, MessageBatch):
            if not message:
                return
            one = message.last
        else:
            one = id_of(message)
        segment_consumer = self._segment_consumer_of(one)
        if not isinstance(message, MessageId) and message.delivery > 0 and segment_consumer is not None:
            covered = self._log.covered(message.delivery, segment_consumer, one)
        else:
            covered = {}
            for each in (one, *one.covers):
                where = self._segment_consumer_of(each)
                if where is not None:
                    covered[where] = each
        self._ack_covered(covered)

    def _ack_covered(self, covered: Mapping[SegmentConsumer, MessageId]) -> None:
        for where, last in covered.items():
            where.ack_cumulative(last)
        for session in self._sessions.values():
            if session.order.has_unsettled:
                session.ordered.ack_ancestors(covered)
        self._check_leaving()

    async def lag(self, timeout: Seconds | None = None) -> int:
        """Ask the brokers how many messages of this consumer's segments are not acknowledged; `metrics` shows the
        answer. Raises NotReady while a segment is not attached. Apache Pulsar counts entries."""
        return await self._ask_lag(timeout)

    async def run(
        self,
        handler: Handler,
        *,
        concurrency: int = 8,
        retry: Retry | None = None,
        drain_timeout: Seconds = 30.0,
    ) -> None:
        """Call `handler` with every message, at most `concurrency` at a time. Messages of one key are processed one
        after another, in order; those without a key in the order of their segment.

        What handlers finished is acknowledged, per segment, up to the first message that is not finished. When a
        handler raises, its message is processed again as `retry` says; other keys go on. Returns when the consumer is
        closed.

        Cancelled, it receives nothing more, lets the handlers that run finish within `drain_timeout`, acknowledges, and
        raises CancelledError. If messages were received that are not processed then, the consumer can only be closed;
        they are delivered again.
        """
        if self._auto_acks is not None:
            raise BadOption("`run` acknowledges by itself; open the consumer without ack_every")
        check_function(handler, "handler", "a function of a message")
        check_optional(retry, Retry, "retry", "a Retry")
        policy = Retry() if retry is None else retry
        state = OrderedHandlers(
            concurrency=check_concurrency(concurrency),
            pending_max=1 + PENDING_PER_HANDLER * (concurrency - 1),
            attempts=policy.attempts,
            skips=policy.then == "skip",
            ancestors_of=self._ancestors_of,
        )
        await self._handler_runs.run(handler, state, self._ack_segment, _cannot_nack, policy.backoff, drain_timeout)

    async def _ack_segment(self, message: Message) -> None:
        """Acknowledge up to this message, in its own segment only."""
        segment_consumer = self._segment_consumer_of(message.id)
        if segment_consumer is not None and self._log.covers_alone(message.delivery, segment_consumer):
            segment_consumer.ack_cumulative(message.id)
        self._check_leaving()

    def _ancestors_of(self, where: Hashable) -> Collection[Hashable]:
        """The ancestors of a segment, as topic and lane."""
        for part in self._parts:
            view = part.view
            for segment_id, segment_consumer in part.segment_consumers.items():
                if (segment_consumer.spec.identity, segment_consumer.spec.lane) == where and segment_id in view.layout:
                    earlier = view.layout.ancestors(segment_id)
                    return {part.source(view.layout[one]) for one in earlier}
        return ()

    def _ack_position(self, position: tuple[int, SegmentConsumer, MessageId]) -> None:
        self._ack_covered(self._log.covered(*position))

    def _check_urgent(self) -> None:
        """Segments that are sealed or unassigned wait for acks; `ack_every` does not hold those back."""
        if self._auto_acks is None:
            return
        is_moving = any(session.reconciler.leaving for session in self._sessions.values())
        self._auto_acks.set_urgent(
            is_moving or any(one.acks_promptly and not one.is_at_end for one in self._segment_consumers.values())
        )

    async def close(self, timeout: Seconds | None = None) -> None:
        if self._auto_acks is not None:
            self._auto_acks.close()
        await super().close(timeout)

    close.__doc__ = Consumer.close.__doc__

    def _check_leaving(self) -> None:
        for session in self._sessions.values():
            for segment_id in session.reconciler.leaving:
                self._check_settled(session, segment_id)

    def position(self, message: Message) -> MessageId:
        """The id of `message` with the positions handed out before it in other segments. Stored as bytes, it can be
        acknowledged later, also by another process."""
        check_type(message, Message, "message", "a Message that this consumer received")
        vector = self._log.vector(message.delivery)
        own = self._segment_consumer_of(message.id)
        covers = tuple(one for segment_consumer, one in vector.items() if segment_consumer is not own)
        return replace(message.id, covers=covers)

    def _hand_out(self, segment_consumer: SegmentConsumer, message: Message) -> None:
        message.delivery = self._log.handed_out(segment_consumer, message.id)
        self._last[segment_consumer] = message.id
        if segment_consumer.tracks_hand_outs:
            segment_consumer.handed_out(message.id)
        if self._auto_acks is not None:
            self._auto_acks.handed_out((message.delivery, segment_consumer, message.id))
        if segment_consumer in self._unread_parents:
            self._check_parent(segment_consumer)
        super()._hand_out(segment_consumer, message)

    def _hand_out_entry(self, segment_consumer: SegmentConsumer, entry: Sequence[Message]) -> int:
        super()._hand_out_entry(segment_consumer, entry)
        self._last[segment_consumer] = last = last_id(entry)
        if segment_consumer.tracks_hand_outs:
            for message in entry:
                segment_consumer.handed_out(message.id)
        if segment_consumer in self._unread_parents:
            self._check_parent(segment_consumer)
        number = self._log.handed_out(segment_consumer, last)
        if self._auto_acks is not None:
            self._auto_acks.handed_out((number, segment_consumer, last), len(entry))
        return number

    # -- segments

    def _on_layout(self, part: TopicPart, view: TopicView) -> None:
        was_synthetic, is_another = part.view.is_synthetic, part.advance(view)
        if was_synthetic and (is_another or not view.is_synthetic):
            for segment_consumer in list(part.segment_consumers.values()):
                if is_another or segment_consumer not in self._last:
                    self._drop(part, segment_consumer)
        if is_another and (session := self._sessions.get(part)) is not None:
            session.restart()
            if view.is_synthetic:  # a regular topic has the name now
                self._end_session(session)
        if view.is_synthetic:
            for segment_id, segment in view.layout.segments.items():
                if segment_id not in part.segment_consumers:
                    spec = segment_spec(self._options, part, segment, pb.CommandSubscribe.Failover)
                    self._attach(part, self._ordered_consumer(part, spec))
        elif part not in self._sessions:
            self._open_session(part)
        else:
            self._hold_children(self._sessions[part])
        going = () if view.plan is None else view.plan.parent_ids
        for segment_id, segment_consumer in part.segment_consumers.items():
            is_sealed = segment_id in view.layout and not view.layout[segment_id].is_active
            segment_consumer.set_prompt_acks(is_sealed or segment_id in going)
            if is_sealed:
                segment_consumer.ends_at(view.layout[segment_id].last_position)
        self._check_urgent()
        if part in self._sessions:
            self._sessions[part].ordered.order_acks()  # the ends of sealed segments are known now

    def _ordered_consumer(self, part: TopicPart, spec: SegmentConsumerSpec) -> StreamSegmentConsumer:
        confirmed = partial(self._on_confirmed, part)
        kind = SharedSegmentConsumer if spec.bucket_splits else StreamSegmentConsumer
        return kind(spec, self, self._context, self._options.prefetch, confirmed)

    def _open_session(self, part: TopicPart) -> None:
        options = self._stream
        session = self._sessions[part] = StreamSession(self, part)
        spec = SessionSpec(
            subscription=options.subscription,
            consumer_name=options.name,
            kind=pb.STREAM,
            from_earliest=options.from_earliest,
            generation=part.first_generation,
            shares_buckets=options.fan_out == "auto",
        )
        session.reconciler.adopted(part.segment_consumers)
        session.controller_session = ControllerSession(part.watch, spec, session, self._context)
        watch = session.ordered.watch_stalls(
            self._last, self._context.clock, options.subscription, lambda: self._sessions.get(part) is not session
        )
        self._tasks.spawn(watch, "stalls")
        session.task = self._tasks.spawn(session.controller_session.run(), "controller")

    def _end_part(self, part: TopicPart) -> None:
        if (session := self._sessions.get(part)) is not None:
            self._end_session(session)

    def _end_session(self, session: StreamSession) -> None:
        del self._sessions[session.part]
        if session.task is not None:
            session.task.cancel()

    async def wait_attached(self, part: TopicPart, timeout_s: float) -> None:
        session = self._sessions.get(part)
        if session is None:
            await super().wait_attached(part, timeout_s)
        else:
            assert session.controller_session is not None
            await session.controller_session.wait_first(timeout_s)

    async def _moved(self, part: TopicPart, generation: int, deadline: float) -> None:
        session = self._sessions.get(part)
        if session is not None:
            try:
                async with asyncio.timeout(max(0.0, deadline - self._context.clock.monotonic())):
                    await session.wait_assigned(generation)
            except TimeoutError:
                raise TimedOut("the subscription was moved, but this consumer has no new assignment yet") from None

    async def _close_rest(self, timeout_s: float) -> None:
        for session in self._sessions.values():
            if session.controller_session is not None:
                await session.controller_session.leave(timeout_s)

    # -- for the sessions

    def apply_assignment(self, session: StreamSession, effects: Sequence[Effect]) -> None:
        if self._is_closed:  # assignments may still arrive while it closes; they may release acks
            session.ordered.order_acks()
            self._acks_sent.set()
            return
        part = session.part
        for effect in effects:
            match effect:
                case Attach(segment_id):
                    segment = _segment(part.view, segment_id, session.topics[segment_id])
                    # For a migrated topic, Pulsar M1's controller sends names that do not exist; the layout is right.
                    topic = None if part.view.is_legacy(segment) else session.topics[segment_id]
                    spec = segment_spec(self._options, part, segment, pb.CommandSubscribe.Exclusive, topic)
                    if segment_id in session.buckets:
                        spec = shared_spec(spec, part, segment)
                    segment_consumer = self._ordered_consumer(part, spec)
                    session.grant_to(segment_consumer)
                    session.order.assigned((segment_id,), session.after)
                    self._attach(part, segment_consumer)
                case Stop(segment_id):
                    part.segment_consumers[segment_id].stop()
                    self._check_settled(session, segment_id)
                    if segment_id in session.reconciler.leaving:
                        self._tasks.spawn(
                            self._release_overdue(session, segment_id, part.segment_consumers[segment_id]),
                            "release deadline",
                        )
                case Detach(segment_id):
                    leaving = self._drop(part, part.segment_consumers[segment_id])
                    if leaving is not None:
                        leaving.add_done_callback(partial(self._closed, session, segment_id))
                case Discard(segment_id):
                    if (outdated := part.segment_consumers.get(segment_id)) is not None:
                        outdated.discard()
                        self._drop(part, outdated)
                case Release(generation, segment_ids):
                    if session.controller_session is not None:
                        session.controller_session.release(generation, segment_ids)
        self._hold_children(session)
        self._check_urgent()
        session.ordered.order_acks()

    def _drop(self, part: TopicPart, segment_consumer: SegmentConsumer) -> asyncio.Task[None] | None:
        if (session := self._sessions.get(part)) is not None:
            session.order.detached(segment_consumer.spec.segment_id)
        self._log.forget(segment_consumer)
        self._last.pop(segment_consumer, None)
        return self._detach(part, segment_consumer)

    def on_failed(self, segment_consumer: SegmentConsumer, error: ClientError) -> None:
        """A fenced segment is detached until a later assignment contains it. Any other error fails the consumer."""
        if not isinstance(error, ConsumerFenced):
            super().on_failed(segment_consumer, error)
            return
        segment_id = segment_consumer.spec.segment_id
        for part, session in self._sessions.items():
            if part.segment_consumers.get(segment_id) is segment_consumer:
                log.info(
                    "segment was assigned to another consumer",
                    extra={"topic": segment_consumer.topic, "reason": error.reason},
                )
                self._drop(part, segment_consumer)
                self.apply_assignment(session, session.reconciler.fenced(segment_id))

    def _closed(self, session: StreamSession, segment_id: int, task: object) -> None:
        if not self._is_closed:
            self.apply_assignment(session, session.reconciler.closed(segment_id))

    async def _release_overdue(
        self, session: StreamSession, segment_id: int, segment_consumer: SegmentConsumer
    ) -> None:
        await self._context.clock.sleep(self._stream.release_timeout_s)
        if session.part.segment_consumers.get(segment_id) is segment_consumer:
            self.apply_assignment(session, session.reconciler.overdue(segment_id))

    def _check_settled(self, session: StreamSession, segment_id: int) -> None:
        """Detach a leaving segment once everything that was handed out of it is acknowledged."""
        segment_consumer = session.part.segment_consumers[segment_id]
        last = self._last.get(segment_consumer)
        if session.ordered.has_waiting_acks(segment_id):
            return
        if last is None or segment_consumer.is_covered(last):
            self.apply_assignment(session, session.reconciler.settled(segment_id))

    # -- order of acks

    def _on_confirmed(self, part: TopicPart) -> None:
        session = self._sessions.get(part)
        if session is not None and session.order.has_unsettled:
            session.ordered.order_acks()
            self._acks_sent.set()
            self._check_leaving()

    async def _send_ordered_acks(self, timeout_s: float) -> None:
        """Wait until acks of ancestors are confirmed, so that those of their children can be sent."""

        def waiting() -> list[str]:
            return [topic for session in self._sessions.values() for topic in session.ordered.waiting()]

        if not waiting():
            return
        for session in self._sessions.values():
            for segment_consumer in session.part.segment_consumers.values():
                segment_consumer.flush()
        try:
            async with asyncio.timeout(timeout_s):
                while waiting():
                    self._acks_sent.clear()
                    await self._acks_sent.wait()
        except TimeoutError:
            log.info("closing without sending acks, because earlier ones are missing", extra={"topics": waiting()})

    # -- order of delivery

    def on_end_reached(self, segment_consumer: SegmentConsumer) -> None:
        super().on_end_reached(segment_consumer)
        self._hold_all_children()

    def on_rewound(self, segment_consumer: SegmentConsumer) -> None:
        super().on_rewound(segment_consumer)
        for part, session in self._sessions.items():
            if part.segment_consumers.get(segment_consumer.spec.segment_id) is segment_consumer:
                session.order.rewound(segment_consumer.spec.segment_id)
                self._hold_children(session)
                session.ordered.order_acks()

    def drop_messages(self, segment_consumer: SegmentConsumer) -> list[MessageId]:
        found = super().drop_messages(segment_consumer)
        self._hold_all_children()  # its children may be released now
        return found

    def _check_parent(self, segment_consumer: SegmentConsumer) -> None:
        if is_read_to_end(segment_consumer, self._last.get(segment_consumer)):
            self._hold_all_children()

    def _hold_all_children(self) -> None:
        for session in self._sessions.values():
            self._hold_children(session)

    def _hold_children(self, session: StreamSession) -> None:
        """Hold children while an ancestor is still being read."""
        unread = session.ordered.hold_children(self._queue, self._last)
        self._unread_parents = self._unread_parents.difference(session.part.segment_consumers.values()) | unread
        session.ordered.find_ends(unread, self._hold_all_children)


def _segment(view: TopicView, segment_id: int, topic: str) -> Segment:
    """The segment from the layout, or made from its topic name if the assignment is newer than the layout."""
    if segment_id in view.layout:
        return view.layout[segment_id]
    name = TopicName.parse(topic)
    if name.segment is None:
        return Segment(segment_id, HashRange(0, 0), legacy_topic_name=topic)
    return Segment(segment_id, HashRange(name.segment.start, name.segment.end))


async def _cannot_nack(message: Message, delay_s: float | None) -> None:
    raise AssertionError("an ordered subscription has no nacks")
