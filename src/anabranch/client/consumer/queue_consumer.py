"""Queue consumers: messages of all partitions and segments, shared with the other consumers of the subscription."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from anabranch.client.arguments import check_concurrency, check_function, check_optional, check_type
from anabranch.client.config import Backoff, ProcessingTimeout, Seconds, seconds
from anabranch.client.consumer.consumer import Consumer, id_of
from anabranch.client.consumer.consumer_options import ConsumerOptions, segment_spec
from anabranch.client.consumer.dead_letters import DeadLetters
from anabranch.client.consumer.redelivery import Redelivery
from anabranch.client.consumer.segment.segment_consumer import SegmentConsumer
from anabranch.client.consumer.topic_part import TopicPart
from anabranch.client.context import ClientContext
from anabranch.client.messages.entry_contents import DeliveredEntry
from anabranch.client.messages.message import Message, MessageId
from anabranch.client.messages.message_batch import MessageBatch
from anabranch.client.processing.handler_runner import Handler
from anabranch.client.processing.handler_state import UnorderedHandlers
from anabranch.client.topic.topic_view import TopicView
from anabranch.model.names import TopicName
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.runtime.clock import Timer


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOptions(ConsumerOptions):
    nack_delay_s: float = 60.0
    nack_backoff: Backoff | None = None  # by redelivery count; replaces the delay
    processing_timeout: ProcessingTimeout | None = None


class QueueConsumer(Consumer):
    """Shares messages with the other queue consumers of the subscription; acks are individual."""

    def __init__(
        self,
        topics: Sequence[TopicName],
        options: QueueOptions,
        context: ClientContext,
        dead_letters: DeadLetters | None = None,
    ) -> None:
        super().__init__(topics, options, context)
        self._queue_options = options
        self._dead_letters = dead_letters
        limit = options.processing_timeout
        self._redelivery: Redelivery[SegmentConsumer] = Redelivery(None if limit is None else seconds(limit.timeout))
        self._sees_each_message |= limit is not None or dead_letters is not None
        self._timer: Timer | None = None
        self._timer_at = float("inf")

    async def ack(self, message: Message | MessageId | MessageBatch) -> None:
        """Acknowledge a message or a batch. Acks are grouped, sent at the latest by `close`, and resent on a loss."""
        if isinstance(message, Message):  # usual case: avoids creating the message id
            at = message.origin
            segment_consumer = self._segment_consumers.get(at.where)
            if segment_consumer is None or self._is_closed:
                segment_consumer = self._segment_consumer_of(message.id)
            if segment_consumer is not None and at.seek_number >= segment_consumer.seek_number:
                if len(self._redelivery):
                    self._redelivery.done(segment_consumer, message.id)
                segment_consumer.ack_at(at, message.batch_index)
        elif isinstance(message, MessageId):
            if (segment_consumer := self._segment_consumer_of(message)) is not None:
                self._redelivery.done(segment_consumer, message)
                segment_consumer.ack(message)
        else:
            self._ack_batch(message)

    def _ack_batch(self, batch: MessageBatch) -> None:
        check_type(batch, MessageBatch, "message", "a Message, MessageId or MessageBatch")
        for part in batch.parts:
            if isinstance(part, DeliveredEntry) and not len(self._redelivery):  # no timeouts to cancel
                segment_consumer = self._segment_consumer_of(part.last)
                if segment_consumer is not None and part.seek_number >= segment_consumer.seek_number:
                    segment_consumer.ack_entry(part)
                continue
            for message in part:
                segment_consumer = self._segment_consumer_of(message.id)
                if segment_consumer is not None and message.origin.seek_number >= segment_consumer.seek_number:
                    self._redelivery.done(segment_consumer, message.id)
                    segment_consumer.ack(message.id)

    async def nack(self, message: Message | MessageId, delay: Seconds | None = None) -> None:
        """Deliver the message again, to any consumer, after `delay` (default: `nack_backoff` or `nack_delay`). Other
        messages of its batch stay with the consumers that have them."""
        one = id_of(message)
        segment_consumer = self._segment_consumer_of(one)
        if segment_consumer is None:
            return
        if isinstance(message, Message) and message.origin.seek_number < segment_consumer.seek_number:
            return  # the subscription was moved since
        self.counters.nacks += 1
        count = message.redelivery_count if isinstance(message, Message) else 0
        self._redeliver_after(
            segment_consumer, one, self._nack_delay_s(count) if delay is None else seconds(delay, "delay")
        )

    async def lag(self, timeout: Seconds | None = None) -> int:
        """Ask the brokers how many messages of the topic this subscription has not acknowledged; `metrics` shows the
        answer. Raises NotReady while a segment is not attached. Apache Pulsar counts entries."""
        return await self._ask_lag(timeout)

    async def run(
        self,
        handler: Handler,
        *,
        concurrency: int = 8,
        retry: Backoff | None = None,
        drain_timeout: Seconds = 30.0,
    ) -> None:
        """Call `handler` with every message, at most `concurrency` at a time, in no order.

        A message is acknowledged when its handler returns. When it raises, the message is nacked: it comes again after
        a delay of `retry` by its redelivery count (default: `nack_backoff` or `nack_delay`), until `dead_letter` takes
        it. Returns when the consumer is closed. Cancelled, it receives nothing more, lets the handlers that run finish
        within `drain_timeout`, acknowledges their messages, and raises CancelledError; handlers that take longer are
        cancelled, and their messages nacked.
        """
        check_function(handler, "handler", "a function of a message")
        check_optional(retry, Backoff, "retry", "a Backoff")
        state = UnorderedHandlers(concurrency=check_concurrency(concurrency))
        await self._handler_runs.run(handler, state, self.ack, self.nack, retry, drain_timeout)

    def _nack_delay_s(self, count: int) -> float:
        if self._queue_options.nack_backoff is None:
            return self._queue_options.nack_delay_s
        return self._queue_options.nack_backoff.delay(count, self._context.chance.random())

    def _redeliver_after(self, segment_consumer: SegmentConsumer, one: MessageId, delay_s: float) -> None:
        due = self._context.clock.monotonic() + delay_s
        if delay_s <= 0 or not self._redelivery.nacked(segment_consumer, one, due):
            self._redelivery.done(segment_consumer, one)
            segment_consumer.redeliver([one])
        else:
            self._arm()

    # -- time

    def _arm(self) -> None:
        """One timer for all redeliveries; it is only moved to an earlier time."""
        at = self._redelivery.next_due()
        if at is None or at >= self._timer_at or self._is_closed:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._context.clock.call_later(max(0.0, at - self._context.clock.monotonic()), self._tick)

    def _tick(self) -> None:
        self._timer, self._timer_at = None, float("inf")
        if self._is_closed:
            return
        for segment_consumer, ones in self._redelivery.due(self._context.clock.monotonic()).items():
            segment_consumer.redeliver(ones)
        self._arm()

    def _hand_out(self, segment_consumer: SegmentConsumer, message: Message) -> None:
        if self._dead_letters is not None:
            segment_consumer.announce((message,))
        if self._queue_options.processing_timeout is not None:
            self._start_timeout(segment_consumer, message, self._queue_options.processing_timeout)
            self._arm()
        super()._hand_out(segment_consumer, message)

    def _hand_out_entry(self, segment_consumer: SegmentConsumer, entry: Sequence[Message]) -> int:
        if self._dead_letters is not None:
            segment_consumer.announce(entry)
        if self._queue_options.processing_timeout is not None:
            for message in entry:
                self._start_timeout(segment_consumer, message, self._queue_options.processing_timeout)
            self._arm()
        return super()._hand_out_entry(segment_consumer, entry)

    def _start_timeout(self, segment_consumer: SegmentConsumer, message: Message, limit: ProcessingTimeout) -> None:
        extra_s = 0.0
        if limit.backoff is not None and message.redelivery_count:
            extra_s = limit.backoff.delay(message.redelivery_count - 1, self._context.chance.random())
        self._redelivery.handed_out(segment_consumer, message.id, self._context.clock.monotonic() + extra_s)

    # -- dead letters

    def on_messages(self, segment_consumer: SegmentConsumer, messages: Sequence[Message]) -> None:
        dead_letters = self._dead_letters
        if dead_letters is None or not dead_letters.takes(messages[0]):  # messages delivered together have one count
            super().on_messages(segment_consumer, messages)
            return
        for message in messages:
            self._tasks.spawn(self._send_dead_letter(dead_letters, segment_consumer, message), "dead letter")

    async def _send_dead_letter(
        self, dead_letters: DeadLetters, segment_consumer: SegmentConsumer, message: Message
    ) -> None:
        """The message counts as prefetched until its copy is stored; only then the original is acknowledged."""
        turn, seek_number = segment_consumer.turn, segment_consumer.seek_number
        is_stored = await dead_letters.send(message)
        if segment_consumer.turn == turn:  # otherwise it was detached meanwhile, and its counts were reset
            segment_consumer.taken()
        if is_stored:
            self.counters.dead_letters += 1
        current = self._segment_consumers.get(message.origin.where)
        if current is not segment_consumer or segment_consumer.seek_number != seek_number:
            return  # the subscription was moved meanwhile
        if is_stored:
            segment_consumer.ack(message.id)
        else:
            self._redeliver_after(segment_consumer, message.id, max(1.0, self._nack_delay_s(message.redelivery_count)))

    async def close(self, timeout: Seconds | None = None) -> None:
        """Sends pending acks and nacks, then closes. Messages that were not acknowledged stay unacknowledged. Safe to
        repeat."""
        if not self._is_closed:
            for segment_consumer, ones in self._redelivery.take_nacks().items():
                segment_consumer.redeliver(ones)  # so that they are counted; the delay ends with the consumer
        await super().close(timeout)

    async def _close_rest(self, timeout_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._dead_letters is not None:
            await self._tasks.close()  # messages whose copy is not stored yet stay unacknowledged
            await self._dead_letters.close(timeout_s)

    # -- segments

    async def _moved(self, part: TopicPart, generation: int, deadline: float) -> None:
        for old in list(part.segment_consumers.values()):
            old.discard()
            self._replace(part, old)

    def on_moved(self, segment_consumer: SegmentConsumer) -> None:
        self._redelivery.forget(segment_consumer)

    def _drop(self, part: TopicPart, segment_consumer: SegmentConsumer) -> asyncio.Task[None] | None:
        self._redelivery.forget(segment_consumer)
        return self._detach(part, segment_consumer)

    def _on_layout(self, part: TopicPart, view: TopicView) -> None:
        """Attach to every segment of the layout, also sealed ones, because late acks and seeks may concern them."""
        is_another = part.advance(view)
        for segment_id, segment_consumer in list(part.segment_consumers.items()):
            if is_another or segment_id not in view.layout:
                self._drop(part, segment_consumer)
        for segment_id, segment in view.layout.segments.items():
            if segment_id not in part.segment_consumers:
                spec = segment_spec(self._options, part, segment, pb.CommandSubscribe.Shared)
                self._attach(part, SegmentConsumer(spec, self, self._context, self._options.prefetch))
