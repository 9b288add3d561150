"""Base of the three kinds of consumers: watched topics, a segment consumer per segment, one receive queue over all.

The kinds (`queue_consumer`, `stream_consumer`, `checkpoint_consumer`) decide which segments are read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Self

from anabranch.client.arguments import check_type, check_whole
from anabranch.client.config import Seconds, seconds
from anabranch.client.connection.reconnect import ReconnectLoop
from anabranch.client.consumer.consumer_options import ConsumerOptions
from anabranch.client.consumer.namespace_topics import NamespaceTopics
from anabranch.client.consumer.receive_queue import ReceiveQueue
from anabranch.client.consumer.segment.segment_consumer import CLOSE_TIMEOUT_SECONDS, SegmentConsumer
from anabranch.client.consumer.subscription_calls import (
    SubscriptionCalls,
    Target,
    check_known,
    publish_time,
    seek_fields,
)
from anabranch.client.consumer.topic_part import TopicPart
from anabranch.client.context import ClientContext
from anabranch.client.encryption.key_fetcher import decryption_of
from anabranch.client.errors import (
    BadOption,
    ClientError,
    Closed,
    ConsumerBusy,
    TopicNotFound,
)
from anabranch.client.messages.message import Message, MessageId
from anabranch.client.messages.message_batch import MessageBatch
from anabranch.client.metrics.counters import ConsumerCounters
from anabranch.client.metrics.metrics import ConsumerMetrics
from anabranch.client.metrics.window import Sample, Window
from anabranch.client.processing.handler_runs import HandlerRuns
from anabranch.client.schema.schema_resolver import SchemaResolver
from anabranch.client.topic.topic_view import TopicView
from anabranch.model.layout import Layout
from anabranch.model.names import TopicName
from anabranch.protocol.commands import BaseCommand
from anabranch.runtime.tasks import TaskOwner

BATCH_ROWS = 10_000


class Consumer:
    """Opened by a client. Messages of one partition or segment are received in order; segments take turns."""

    def __init__(self, topics: Sequence[TopicName], options: ConsumerOptions, context: ClientContext) -> None:
        self._topics = tuple(topics)
        self._options = options
        self._context = context
        self.counters = ConsumerCounters()
        self._window = Window(context.clock.monotonic())
        self._lag: int | None = None
        self._tasks = TaskOwner("consumer")
        timeout_s = options.operation_timeout_s
        self.decryptor, self.key_fetcher = decryption_of(options.decryption, context, self._tasks, timeout_s)
        self._queue: ReceiveQueue[SegmentConsumer] = ReceiveQueue()
        self._parts: list[TopicPart] = []
        self._namespace: NamespaceTopics | None = None
        if options.namespace is not None:
            self._namespace = NamespaceTopics(options.namespace, self, context, self._tasks, timeout_s)
        self._ended: set[SegmentConsumer] = set()  # those at the end of their segments
        self._share = options.prefetch  # of the prefetch, for each of the others
        # By topic and lane, as message ids have them.
        self._segment_consumers: dict[tuple[str, int], SegmentConsumer] = {}
        self._is_closed = False
        self._subscription_calls = SubscriptionCalls(options.subscription, context)
        self._schema_waits = 0
        self._schema_resolver = None if options.schema is None else SchemaResolver(options.schema, context, self._tasks)
        self._tracing = context.tracing
        self._sees_each_message = self._schema_resolver is not None or self._tracing is not None
        self._handler_runs = HandlerRuns(self.receive, self._queue.fail, context, options.subscription)
        self._on_receive: Callable[[], None] | None = None  # called first by every receive, if the kind needs it

    async def open(self) -> Self:
        """Returns when all segments that can be read now are attached."""
        clock = self._context.clock
        deadline = clock.monotonic() + self._options.operation_timeout_s
        try:
            if self.key_fetcher is not None:
                await self.key_fetcher.check()
            if self._namespace is not None:
                await self._namespace.open()
            for topic in self._topics:
                await self.open_part(topic, max(0.0, deadline - clock.monotonic()))
            for part in () if self._namespace is not None else self._parts:
                await self.wait_attached(part, max(0.0, deadline - clock.monotonic()))
        except BaseException:
            await self.close(timeout=0)
            raise
        return self

    async def open_part(
        self, topic: TopicName, timeout_s: float, *, creates: bool = True, is_new: bool = False
    ) -> TopicPart:
        watch = self._context.watches.hold(topic, self, creates=creates)
        try:
            part = TopicPart(watch, await watch.wait_first(timeout_s), is_new=is_new)
        except BaseException:
            await self._context.watches.release(watch, self)
            raise
        self._parts.append(part)
        part.unfollow = watch.follow(partial(self._on_layout, part), partial(self._on_gone, part))
        return part

    async def close_part(self, part: TopicPart) -> None:
        """Its messages that were not handed out are dropped, and later acks of others do nothing."""
        if self._is_closed or part not in self._parts:
            return  # `close` does it
        self._parts.remove(part)
        part.unfollow()
        self._end_part(part)
        leaving = [self._drop(part, one) for one in list(part.segment_consumers.values())]
        await asyncio.gather(*(one for one in leaving if one is not None))
        await self._context.watches.release(part.watch, self)

    def _end_part(self, part: TopicPart) -> None:
        """Hook: the topic is read no longer."""

    def __repr__(self) -> str:
        state = " closed" if self._is_closed else ""
        where = f"topic={self.topic} subscription={self.subscription} name={self.name}"
        return f"<{type(self).__name__} {where}{state}>"

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._is_closed

    @property
    def topic(self) -> str:
        """The topic; several topics are separated by commas. Of a namespace: `namespace://T/N`."""
        if (one := self._options.namespace) is not None:
            return f"namespace://{one.namespace}"
        return ",".join(map(str, self._topics))

    @property
    def subscription(self) -> str:
        """The name of the subscription."""
        return self._options.subscription

    @property
    def name(self) -> str:
        """The name of this consumer, given or generated."""
        return self._options.name

    @property
    def layouts(self) -> Mapping[str, Layout]:
        """The current layout of each topic: its segments, or its partitions as segments. Changes with a split."""
        return {str(part.view.topic): part.view.layout for part in self._parts}

    def metrics(self) -> ConsumerMetrics:
        """Counters, rates and what is in memory; see `Client.metrics`."""
        clock, counted = self._context.clock, self.counters
        states = [segment_consumer.state for segment_consumer in self._segment_consumers.values()]
        return counted.metrics(
            topic=self.topic,
            subscription=self.subscription,
            name=self.name,
            rates=self._window.rates(Sample(clock.monotonic(), counted.messages, counted.bytes)),
            age=counted.age_s(clock.now_ms(), clock.monotonic()),
            prefetched=sum(state.buffered for state in states),
            unacknowledged=sum(state.unacknowledged for state in states),
            segments=len(states),
            lag=self._lag,
        )

    async def _ask_lag(self, timeout: Seconds | None) -> int:
        if self._is_closed:
            raise Closed("the consumer is closed")
        timeout_s = self._options.operation_timeout_s if timeout is None else seconds(timeout)
        asked = [segment_consumer.backlog(timeout_s) for segment_consumer in self._segment_consumers.values()]
        self._lag = sum(await asyncio.gather(*asked))
        return self._lag

    async def receive(self, timeout: Seconds | None = None) -> Message | None:
        """The next message, or None after `timeout`. Without `timeout` it waits without a limit."""
        if self._on_receive is not None:
            self._on_receive()
        found = self._queue.take()  # usually there is one, and no coroutine is needed
        if found is None:
            found = await self._queue.wait(None if timeout is None else seconds(timeout, "timeout"))
            if found is None:
                return None
        segment_consumer, message = found
        if flow := segment_consumer.state.taken():
            segment_consumer.perform(flow)
        if self._sees_each_message:
            self._hand_out(segment_consumer, message)
        return message

    async def receive_many(self, count: int, timeout: Seconds | None = None) -> list[Message]:
        """Waits for the first message, then takes what is available, at most `count`. Empty after `timeout`."""
        check_whole(count, "count", 1)
        first = await self.receive(timeout)
        found = [] if first is None else [first]
        while found and len(found) < count and (more := self._queue.take()):
            segment_consumer, message = more
            segment_consumer.taken()
            if self._sees_each_message:
                self._hand_out(segment_consumer, message)
            found.append(message)
        return found

    async def receive_batch(self, count: int = BATCH_ROWS, timeout: Seconds | None = None) -> MessageBatch:
        """Waits for the first message, then takes whole entries that are available until it has at least `count`
        messages. Empty after `timeout`. Much cheaper per message than `receive`, above all when read as columns."""
        check_whole(count, "count", 1)
        if self._on_receive is not None:
            self._on_receive()
        await self._queue.wait_filled(None if timeout is None else seconds(timeout, "timeout"))
        parts: list[Sequence[Message]] = []
        numbers = -1
        while count > 0 and (found := self._queue.take_entry()):
            segment_consumer, entry = found
            numbers = self._hand_out_entry(segment_consumer, entry)
            parts.append(entry)
            count -= len(entry)
        return MessageBatch(parts, numbers)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        """Ends when the consumer is closed."""
        try:
            message = await self.receive()
        except Closed as error:
            raise StopAsyncIteration from error
        assert message is not None
        return message

    async def seek(self, to: Target, timeout: Seconds | None = None) -> None:
        """Move the subscription for all its consumers: to its earliest or latest message, to a publish time, or (on
        scalable topics) behind a message id. Returns when this consumer reads from there. Messages received before
        count no longer: they may come again, and their acks are ignored.

        An id covers its own segment with the ancestors, and the positions that it carries (see `position` of stream
        consumers); segments that it says nothing about stay where they are.
        """
        deadline = self._check_movable(timeout)
        if isinstance(to, MessageId):
            check_known(to, [part.view for part in self._parts], self.topic)
        else:
            publish_time(to)  # raises before anything is moved
        for part in self._parts:
            if part.view.is_synthetic:
                assert not isinstance(to, MessageId)
                await self._move(part, BaseCommand.SEEK, deadline, **seek_fields(to))
            elif (generation := await self._subscription_calls.seek(part, to, deadline)) is not None:
                await self._moved(part, generation, deadline)
        for part in self._parts:
            await self.wait_attached(part, max(0.0, deadline - self._context.clock.monotonic()))

    async def unsubscribe(self, timeout: Seconds | None = None) -> None:
        """Delete the subscription, then close this consumer. Raises Refused, and stays open, if other consumers are
        attached."""
        deadline = self._check_movable(timeout)
        watches = [part.watch for part in self._parts if not part.view.is_synthetic]
        calls, holder = self._subscription_calls, object()
        for watch in watches:
            await calls.check_unused(watch, self.name, deadline)
        for part in self._parts:
            if part.view.is_synthetic:
                await self._move(part, BaseCommand.UNSUBSCRIBE, deadline)
        held = [self._context.watches.hold(watch.topic, holder) for watch in watches]
        try:
            await self.close()  # first: it would attach again, and so create the subscription again
            for watch in held:
                await calls.unsubscribe(watch, deadline)
        finally:
            for watch in held:
                await self._context.watches.release(watch, holder)

    def _check_movable(self, timeout: Seconds | None) -> float:
        """Returns the deadline of a seek or unsubscribe."""
        if self._is_closed:
            raise Closed("the consumer is closed")
        timeout_s = self._options.operation_timeout_s if timeout is None else seconds(timeout, "timeout")
        return self._context.clock.monotonic() + timeout_s

    async def _move(self, part: TopicPart, kind: int, deadline: float, **fields: Any) -> None:
        """SEEK or UNSUBSCRIBE on a regular topic."""
        for old in list(part.segment_consumers.values()):
            await old.move(kind, deadline - self._context.clock.monotonic(), **fields)
            old.discard()
            if kind == BaseCommand.SEEK:
                self._replace(part, old)

    async def _moved(self, part: TopicPart, generation: int, deadline: float) -> None:
        """The subscription of a scalable topic was moved. Returns when nothing from before is handed out any more."""
        raise NotImplementedError

    def _replace(self, part: TopicPart, old: SegmentConsumer) -> None:
        """The position was moved: attach a new one, because the old one knows what it delivered before."""
        self._drop(part, old)
        new = SegmentConsumer(old.spec, self, self._context, self._options.prefetch)
        new.seek_number = old.seek_number + 1
        self._attach(part, new)

    async def close(self, timeout: Seconds | None = None) -> None:
        """Sends pending acks, then closes. Messages that were not acknowledged stay unacknowledged. Safe to repeat.

        Handlers of `run` may finish first, within `timeout`.
        """
        if not self._is_closed:
            await self.stop_handlers(CLOSE_TIMEOUT_SECONDS if timeout is None else seconds(timeout, "timeout"))
        if self._is_closed:
            return
        self._is_closed = True
        self._queue.fail(Closed("the consumer is closed"))
        timeout_s = CLOSE_TIMEOUT_SECONDS if timeout is None else seconds(timeout, "timeout")
        for part in self._parts:
            part.unfollow()
            self._on_gone(part, None)
        segment_consumers = [
            segment_consumer for part in self._parts for segment_consumer in part.segment_consumers.values()
        ]
        try:
            await self._send_ordered_acks(timeout_s)
            await asyncio.gather(*(segment_consumer.close(timeout_s) for segment_consumer in segment_consumers))
            await self._close_rest(timeout_s)
        finally:
            self._tasks.cancel()
            for segment_consumer in segment_consumers:
                segment_consumer.lost()
            try:
                await self._tasks.close()
            finally:
                await asyncio.gather(*(self._context.watches.release(part.watch, self) for part in self._parts))

    async def stop_handlers(self, timeout_s: float | None = None) -> None:
        """For `close` and the blocking form: end `run` as a cancellation does, and wait for that."""
        await self._handler_runs.stop(timeout_s)

    # -- for the segment consumers

    def on_messages(self, segment_consumer: SegmentConsumer, messages: Sequence[Message]) -> None:
        if self._schema_resolver is not None:
            self._schema_waits += 1
            reason = f"schema {self._schema_waits}"  # a schema version may have to be fetched first
            if not self._schema_resolver.prepare(messages, partial(self._queue.release, segment_consumer, reason)):
                self._queue.hold(segment_consumer, reason)
        self._queue.add(segment_consumer, messages)

    def drop_messages(self, segment_consumer: SegmentConsumer) -> list[MessageId]:
        return [message.id for message in self._queue.drop(segment_consumer)]

    def on_failed(self, segment_consumer: SegmentConsumer, error: ClientError) -> None:
        self._fail(segment_consumer.spec.identity, error)

    def _fail(self, topic: str, error: ClientError) -> None:
        """A topic cannot be read: that fails the consumer, or the topic is opened again."""
        if self._namespace is None:
            self._queue.fail(error)
        else:
            self._namespace.failed(topic, error)

    def on_unreadable(self, segment_consumer: SegmentConsumer, error: ClientError) -> None:
        self._queue.end(error)

    def on_end_reached(self, segment_consumer: SegmentConsumer) -> None:
        self._ended.add(segment_consumer)
        self._divide_prefetch(segment_consumer)

    def on_rewound(self, segment_consumer: SegmentConsumer) -> None:
        self._ended.discard(segment_consumer)
        self._divide_prefetch(segment_consumer)

    def on_moved(self, segment_consumer: SegmentConsumer) -> None:
        """Its position was moved while it was detached: nothing that it delivered before counts any more."""

    # -- for the kinds

    def _on_layout(self, part: TopicPart, view: TopicView) -> None:
        """Called with the current layout at once, and with every change. Must not raise."""
        raise NotImplementedError

    def _on_gone(self, part: TopicPart, error: ClientError | None) -> None:
        """The topic was deleted, or exists again (None). The consumer fails if it does not come back in time."""
        if part.gone_timer is not None:
            part.gone_timer.cancel()
            part.gone_timer = None
        if error is not None and self._namespace is None:  # else the namespace's list says so
            fail = partial(self.on_refused, error)
            part.gone_timer = self._context.clock.call_later(self._options.operation_timeout_s, fail)

    def on_refused(self, error: ClientError, part: TopicPart | None = None) -> None:
        """The consumer has failed for good: every `receive` raises this. In a namespace only this topic has."""
        if part is None:
            self._queue.fail(error)
        else:
            self._fail(str(part.view.topic), error)

    async def wait_attached(self, part: TopicPart, timeout_s: float) -> None:
        """Wait until the segments of the first layout are attached."""
        segment_consumers = list(part.segment_consumers.values())
        for segment_consumer in segment_consumers:
            assert segment_consumer.reconnect_loop is not None
            if part.segment_consumers.get(segment_consumer.spec.segment_id) is segment_consumer:
                await segment_consumer.reconnect_loop.wait_first(timeout_s)

    async def _send_ordered_acks(self, timeout_s: float) -> None:
        """Hook: send acks that must be confirmed before those of other segments are sent."""

    async def _close_rest(self, timeout_s: float) -> None:
        """Hook: all segment consumers are closed; close sessions and producers."""

    def _hand_out(self, segment_consumer: SegmentConsumer, message: Message) -> None:
        """Hook for each message that is handed out. Called only with `_sees_each_message`, because it costs time."""
        if self._schema_resolver is not None:
            self._schema_resolver.set_decoder(message)
        if self._tracing is not None:
            self._tracing.receive(message.topic, self.subscription, [message])

    def _hand_out_entry(self, segment_consumer: SegmentConsumer, entry: Sequence[Message]) -> int:
        """Hand out messages that arrived together. Returns their running number, if the kind counts, or -1."""
        segment_consumer.taken(len(entry))
        if self._schema_resolver is not None:
            for message in entry:
                self._schema_resolver.set_decoder(message)
        if self._tracing is not None:
            self._tracing.receive(entry[0].topic, self.subscription, entry)
        return -1

    def _attach(
        self, part: TopicPart, segment_consumer: SegmentConsumer, forgives: tuple[type[ClientError], ...] | None = None
    ) -> None:
        """Start to attach. Does nothing while the consumer closes, because nothing would close what is opened now."""
        if self._is_closed:
            return
        spec, context = segment_consumer.spec, self._context
        if forgives is None:
            # In a scalable topic the layout decides: a listed segment that is missing or busy will become available.
            forgives = () if part.view.is_synthetic else (TopicNotFound, ConsumerBusy)
        segment_consumer.reconnect_loop = ReconnectLoop(
            segment_consumer, segment_consumer, context.backoff, context.clock, context.chance, forgives=forgives
        )
        part.segment_consumers[spec.segment_id] = segment_consumer
        self._segment_consumers[spec.identity, spec.lane] = segment_consumer
        self._divide_prefetch(segment_consumer)
        if (segment := part.view.layout.segments.get(spec.segment_id)) is not None and not segment.is_active:
            segment_consumer.ends_at(segment.last_position)
        segment_consumer.task = self._tasks.spawn(segment_consumer.reconnect_loop.run(), spec.topic)

    def _drop(self, part: TopicPart, segment_consumer: SegmentConsumer) -> asyncio.Task[None] | None:
        """Detach it, and forget what is known of its messages."""
        return self._detach(part, segment_consumer)

    def _detach(self, part: TopicPart, segment_consumer: SegmentConsumer) -> asyncio.Task[None] | None:
        """The segment is no longer assigned to this consumer, or no longer exists."""
        if part.segment_consumers.get(segment_consumer.spec.segment_id) is segment_consumer:
            del part.segment_consumers[segment_consumer.spec.segment_id]
        if (
            self._segment_consumers.get((segment_consumer.spec.identity, segment_consumer.spec.lane))
            is segment_consumer
        ):
            del self._segment_consumers[segment_consumer.spec.identity, segment_consumer.spec.lane]
        self._ended.discard(segment_consumer)
        self._divide_prefetch()
        return self._tasks.spawn(segment_consumer.leave(CLOSE_TIMEOUT_SECONDS), f"leave {segment_consumer}")

    def _divide_prefetch(self, changed: SegmentConsumer | None = None) -> None:
        """Divide the prefetch among the segments that are not at their end. `changed` came, ended or goes on."""
        share = max(1, self._options.prefetch // max(1, len(self._segment_consumers) - len(self._ended)))
        others = self._segment_consumers.values() if share != self._share else () if changed is None else (changed,)
        self._share = share
        for one in others:
            one.resize(1 if one in self._ended else share)

    def _segment_consumer_of(self, one: MessageId) -> SegmentConsumer | None:
        """None if the segment is no longer attached. Raises BadOption for a message of another topic."""
        if self._is_closed:
            raise Closed("the consumer is closed")
        segment_consumer = self._segment_consumers.get((one.topic, one.lane))
        if segment_consumer is not None:
            return segment_consumer
        if self._namespace is not None and self._namespace.covers(one.topic):
            return None  # perhaps of a topic that was deleted
        if not any(part.is_of_scalable(one) for part in self._parts):
            raise BadOption(f"{one} is not a message of {self.topic}")
        return next((found for part in self._parts if (found := part.former_partition(one))), None)


def id_of(message: Message | MessageId) -> MessageId:
    """Raises BadOption for anything else, such as the value of a message."""
    if isinstance(message, Message):
        return message.id
    check_type(message, MessageId, "message", "a Message or MessageId")
    return message
