"""Segment consumer of an ordered subscription that knows when a sealed segment was read, and when it was acknowledged,
to its end.

Controllers may assign a child together with its parents, so the consumer itself must read them in order. Brokers
announce the end of a topic only with the last ack, and Apache Pulsar (5.0.0-M1) does not announce it after a cumulative
ack. Therefore the end is taken from the layout, or asked for with GET_LAST_MESSAGE_ID. `OrderedSegments` sends the acks
of a child after those of its ancestors are confirmed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from anabranch.client.connection.connection import Connection
from anabranch.client.consumer.assignment_reconciler import SegmentOrder
from anabranch.client.consumer.receive_queue import ReceiveQueue
from anabranch.client.consumer.segment.segment_consumer import SegmentConsumer, SegmentListener
from anabranch.client.consumer.segment.segment_consumer_spec import SegmentConsumerSpec
from anabranch.client.consumer.topic_part import TopicPart
from anabranch.client.context import ClientContext
from anabranch.client.messages.message import MessageId
from anabranch.model.position import Position
from anabranch.protocol.commands import BaseCommand, signed
from anabranch.protocol.entry import Bytes
from anabranch.runtime.clock import Clock
from anabranch.runtime.logs import get_logger

log = get_logger(__name__)

STALL_SECONDS = 5.0  # between two looks; a segment that waits for acks at both is reported
PARENTS = "parents first"  # reason for holding a segment in the receive queue


class StreamSegmentConsumer(SegmentConsumer):
    def __init__(
        self,
        spec: SegmentConsumerSpec,
        listener: SegmentListener,
        context: ClientContext,
        window: int,
        on_confirmed: Callable[[], None],
    ) -> None:
        """`on_confirmed` is called when the broker confirms an ack of the sealed segment."""
        super().__init__(spec, listener, context, window)
        self._on_confirmed = on_confirmed
        self._end: Position | None = None  # its last entry, if it is sealed; negative if it is empty
        self._on_end_found: Callable[[], None] | None = None  # called when the end is known, and when it was received

    def find_end(self, known: Position | None, on_found: Callable[[], None]) -> None:
        """The segment is sealed and its children wait. `on_found` is called once, when the end is known. The request is
        repeated on every new connection until it is answered."""
        if self._on_end_found is not None:
            return
        self._on_end_found = on_found
        if known is not None or self._end is not None:
            self._found(known or self._end)
        elif self._connection is not None:
            self._ask(self._connection)

    def ends_at(self, last: Position | None) -> None:
        super().ends_at(last)
        self._end = self._end or last

    @property
    def _is_empty(self) -> bool:
        return self._end is not None and (self._end.ledger < 0 or self._end.entry < 0)

    def is_read_to_end(self, last: MessageId | None) -> bool:
        """True if everything was handed out, given the last message handed out."""
        if self.is_at_end or self._is_empty:
            return True
        if self._end is None:
            return False
        if self.state.has_received((self._end.ledger, self._end.entry)):
            return True  # the last entry may be one that is not delivered, for example an unreadable one
        if last is None or 0 <= last.batch_index < last.batch_size - 1:
            return False
        return Position(last.ledger, last.entry) >= self._end

    @property
    def is_settled(self) -> bool:
        """True if everything is acknowledged to the end, and the broker has confirmed it."""
        return self._is_empty or (self._end is not None and self.state.is_settled((self._end.ledger, self._end.entry)))

    def ack_to_end(self) -> None:
        """Acknowledge everything, handed out or not. Does nothing before the end is known."""
        if self._end is not None and not self._is_empty:
            if self.state.ack_to_end((self._end.ledger, self._end.entry)):
                self._acked()

    def hold_acks(self, is_held: bool) -> None:
        """Keep acks until ancestors of the segment are acknowledged."""
        self.perform(self.state.hold_acks(is_held))

    def _deliver(self, body: Any, payload: Bytes) -> None:
        super()._deliver(body, payload)
        if self._end is not None and self._on_end_found is not None:
            if self.state.has_received((self._end.ledger, self._end.entry)):
                self._on_end_found()

    def _confirmed(self, number: int, answer: asyncio.Future[Any]) -> None:
        super()._confirmed(number, answer)
        if self._end is not None:
            self._on_confirmed()

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

    def _found(self, end: Position | None) -> None:
        self.ends_at(end)
        if self._on_end_found is not None:
            self._on_end_found()


def is_read_to_end(segment_consumer: SegmentConsumer, last: MessageId | None) -> bool:
    return isinstance(segment_consumer, StreamSegmentConsumer) and segment_consumer.is_read_to_end(last)


class OrderedSegments:
    """Delivers and acknowledges the segments of one topic in the order that layout and `SegmentOrder` demand."""

    def __init__(self, part: TopicPart, order: SegmentOrder) -> None:
        self._part, self._order = part, order

    def hold_children(
        self, queue: ReceiveQueue[SegmentConsumer], last: Mapping[SegmentConsumer, MessageId]
    ) -> set[SegmentConsumer]:
        """Holds segments in the queue while an ancestor is still being read. `last`: the last messages handed out.
        Returns the ancestors that other segments wait for."""
        layout, segment_consumers = self._part.view.layout, self._part.segment_consumers
        unread: set[SegmentConsumer] = set()

        def is_read(segment_id: int) -> bool:
            found = segment_consumers.get(segment_id)
            return found is not None and is_read_to_end(found, last.get(found))

        for segment_id, segment_consumer in segment_consumers.items():
            before = layout.ancestors(segment_id) if segment_id in layout else set[int]()
            before |= self._order.after(segment_id)  # the assignment may be newer than the layout
            parents = {segment_consumers[one] for one in before if one in segment_consumers and not is_read(one)}
            unread |= parents
            if parents or not self._order.may_deliver(segment_id, is_read):
                queue.hold(segment_consumer, PARENTS)
            else:
                queue.release(segment_consumer, PARENTS)
        return unread

    def find_ends(self, segment_consumers: Iterable[SegmentConsumer], on_found: Callable[[], None]) -> None:
        layout = self._part.view.layout
        for one in segment_consumers:
            segment = layout.segments.get(one.spec.segment_id)
            if segment is not None and isinstance(one, StreamSegmentConsumer) and not segment.is_active:
                one.find_end(segment.last_position, on_found)

    def stalls(self, last: Mapping[SegmentConsumer, MessageId]) -> dict[int, tuple[int, list[int]]]:
        """Sealed segments that are read, not acknowledged, and that children wait for which are not attached here: by
        segment, the number of messages and the children."""
        layout, segment_consumers = self._part.view.layout, self._part.segment_consumers
        found = {}
        for segment_id, one in segment_consumers.items():
            segment = layout.segments.get(segment_id)
            if segment is None or segment.is_active or one.is_at_end or not is_read_to_end(one, last.get(one)):
                continue
            children = [child for child in segment.child_ids if child not in segment_consumers]
            if children and one.state.unacknowledged:
                found[segment_id] = one.state.unacknowledged, children
        return found

    async def watch_stalls(
        self,
        last: Mapping[SegmentConsumer, MessageId],
        clock: Clock,
        subscription: str,
        is_over: Callable[[], bool],
    ) -> None:
        """Warn once about each sealed segment that is read and not acknowledged while its children wait for that."""
        before: set[int] = set()
        warned: set[int] = set()
        while not is_over():
            await clock.sleep(STALL_SECONDS)
            now = self.stalls(last)
            for segment_id in sorted((now.keys() & before) - warned):
                unacknowledged, children = now[segment_id]
                log.warning(
                    "segment %d is sealed and read; %d messages are not acknowledged; segments %s wait for them",
                    segment_id,
                    unacknowledged,
                    ", ".join(map(str, children)),
                    extra={"topic": str(self._part.view.topic), "subscription": subscription},
                )
                warned.add(segment_id)
            before, warned = set(now), warned & now.keys()

    def ack_ancestors(self, covered: Iterable[SegmentConsumer]) -> None:
        """A cumulative ack of a segment covers all of its ancestors."""
        segment_consumers = self._part.segment_consumers
        for segment_consumer in covered:
            segment_id = segment_consumer.spec.segment_id
            if segment_consumers.get(segment_id) is segment_consumer:
                for one in self._order.unsettled(segment_id):
                    if isinstance(ancestor := segment_consumers.get(one), StreamSegmentConsumer):
                        ancestor.ack_to_end()

    def order_acks(self) -> None:
        """Acks of a segment are sent when its ancestors are settled."""
        ordered = {
            segment_id: segment_consumer
            for segment_id, segment_consumer in self._part.segment_consumers.items()
            if isinstance(segment_consumer, StreamSegmentConsumer)
        }
        for segment_id, segment_consumer in ordered.items():
            if segment_consumer.is_settled:
                self._order.settled(segment_id)
        for segment_id, segment_consumer in ordered.items():
            segment_consumer.hold_acks(bool(self._order.unsettled(segment_id)))

    def has_waiting_acks(self, segment_id: int) -> bool:
        """Acks of this segment wait for its ancestors, or acks of other segments wait for this one."""
        for one, segment_consumer in self._part.segment_consumers.items():
            unsettled = self._order.unsettled(one)
            if unsettled and (one == segment_id or segment_id in unsettled) and not segment_consumer.state.is_clean:
                return True
        return False

    def waiting(self) -> list[str]:
        """The segments whose acks wait for acks of their ancestors."""
        return [
            str(segment_consumer)
            for one, segment_consumer in self._part.segment_consumers.items()
            if self._order.unsettled(one) and not segment_consumer.state.is_clean
        ]
