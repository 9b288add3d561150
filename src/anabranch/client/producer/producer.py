"""Producer: what applications call. Numbers messages, bounds their memory and sets their futures.

`ProducerState` decides which segment a message takes, and what happens to it when segments are split or merged. It
never awaits, so the order of the calls is the order of the messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from anabranch.client.arguments import check_has
from anabranch.client.config import Seconds, seconds
from anabranch.client.context import ClientContext
from anabranch.client.encryption.data_key_rotation import DataKeyRotation
from anabranch.client.errors import ClientError, Closed, TimedOut
from anabranch.client.messages.message import MessageId
from anabranch.client.messages.outgoing import RECORD_OVERHEAD_BYTES, OutgoingMessage, check, check_tombstone
from anabranch.client.messages.timestamps import Moment, delivery_ms, milliseconds
from anabranch.client.metrics.counters import ProducerCounters
from anabranch.client.metrics.latencies import quantile
from anabranch.client.metrics.metrics import ProducerMetrics, SendLatency
from anabranch.client.metrics.window import Sample, Window
from anabranch.client.producer.bulk_send import Bulk, BulkEntry, Sent
from anabranch.client.producer.memory_limit import MemoryLimit
from anabranch.client.producer.open_batch import OpenBatch
from anabranch.client.producer.options import ProducerOptions
from anabranch.client.producer.producer_state import ProducerState
from anabranch.client.producer.segment_producer import CLOSE_SECONDS
from anabranch.client.producer.segment_producer_state import SegmentProducerState, no_receipt
from anabranch.client.producer.segment_producers import SegmentProducers
from anabranch.client.schema.schema import encoder_of
from anabranch.client.topic.layout_watch import LayoutWatch, LayoutWatches
from anabranch.model.names import TopicName
from anabranch.protocol.keyhash import murmur3_32
from anabranch.runtime.clock import Timer


class Producer:
    """Sends to one topic. Per key, messages are stored in the order of the calls; open it with `client.producer`."""

    def __init__(
        self, topic: TopicName, options: ProducerOptions, context: ClientContext, watches: LayoutWatches
    ) -> None:
        self._asked_topic = topic
        self._options = options
        self._context = context
        self._clock = context.clock
        self._watches = watches
        self._style = options.style()
        self._encode = encoder_of(options.schema)
        self._state = ProducerState(
            lambda: SegmentProducerState(self._style, options.batching), keeps_batches_whole=options.is_name_given
        )
        self._segments = SegmentProducers(
            str(topic), self._state, self._style, options, context, self._on_stored, self._on_failed
        )
        self._memory = MemoryLimit(options.pending_bytes_max)
        self._rotation: DataKeyRotation | None = None
        if options.encryption is not None and self._style.cipher is not None:
            timeout_s = options.operation_timeout_s
            self._rotation = DataKeyRotation(options.encryption, self._style.cipher, context, timeout_s)
        self._counters = ProducerCounters()
        self._window = Window(context.clock.monotonic())
        self._watch: LayoutWatch | None = None
        self._next_sequence = 0
        self._next_order = 0
        self._last_stored = -1
        self._flushes: list[tuple[int, asyncio.Future[None]]] = []
        self._deadline_timer: Timer | None = None
        self._is_closed = False
        self._loop: asyncio.AbstractEventLoop | None = None  # from `open` on

    async def open(self) -> Producer:
        """Returns when every active segment has its producer and the last stored sequence id is known."""
        options = self._options
        self._loop = loop = asyncio.get_running_loop()
        deadline = loop.time() + options.operation_timeout_s
        try:
            if self._rotation is not None:
                await self._rotation.open(self.topic)
            self._watch = self._watches.hold(self._asked_topic, self)
            await self._watch.wait_first(options.operation_timeout_s)
            async with asyncio.timeout_at(deadline):
                known = await self._segments.open(self._watch)
        except TimeoutError as error:
            last = self._segments.last_error
            why = "the broker does not answer" if last is None else last.reason
            await self.close(timeout=0)
            raise TimedOut(f"{self.topic} is not available: {why}") from (last or error)
        except BaseException:
            await self.close(timeout=0)
            raise
        if options.initial_sequence_id is not None:
            known = max(known, options.initial_sequence_id)
        self._last_stored = known
        self._next_sequence = known + 1
        return self

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else f"pending_bytes={self.pending_bytes}"
        return f"<Producer topic={self.topic} name={self.name} {state}>"

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._is_closed

    @property
    def topic(self) -> str:
        """The topic, with its full name."""
        return self._segments.topic

    @property
    def name(self) -> str:
        """The name of this producer, given or generated."""
        return self._options.name

    @property
    def pending_bytes(self) -> int:
        """About how many bytes wait for their receipts."""
        return self._memory.taken

    @property
    def last_sequence_id(self) -> int:
        """The highest one that is stored, by this producer or another of its name; -1 when there is none."""
        return self._last_stored

    def metrics(self) -> ProducerMetrics:
        """Counters, rates and latencies; see `Client.metrics`."""
        counted, latencies = self._counters, self._counters.latencies
        now = Sample(self._clock.monotonic(), counted.messages, counted.bytes, tuple(latencies.counts))
        rates = self._window.rates(now)
        return ProducerMetrics(
            topic=self.topic,
            name=self.name,
            messages=counted.messages,
            bytes=counted.bytes,
            batches=counted.batches,
            failed=counted.failed,
            errors=dict(counted.errors),
            pending_messages=self._next_order - counted.messages - counted.failed,
            pending_bytes=self.pending_bytes,
            message_rate=rates.messages,
            byte_rate=rates.bytes,
            latency=SendLatency(
                p50=quantile(rates.latencies, 0.5, latencies.maximum),
                p99=quantile(rates.latencies, 0.99, latencies.maximum),
                maximum=latencies.maximum if counted.batches else None,
                total=latencies.total,
                count=counted.batches,
            ),
        )

    async def send(
        self,
        value: Any,
        *,
        key: str | bytes | None = None,
        properties: Mapping[str, str] | None = None,
        event_time: Moment | None = None,
        deliver_after: Seconds | None = None,
        deliver_at: Moment | None = None,
        sequence_id: int | None = None,
        timeout: Seconds | None = None,
    ) -> MessageId:
        """Returns when the message is stored. Waits for memory first; waiting sends keep the order of their calls.

        The value None, with a key, is a tombstone: compaction removes the key.

        Moments are milliseconds since 1970 or a datetime with a time zone. A message with `deliver_after` (from now) or
        `deliver_at` is delivered to queue consumers only then; other consumers receive it in its place.

        Cancelled or timed out, the message may be stored or not; what was sent after it keeps its place. With a
        `sequence_id` that is not above what this name has stored, it is not stored again.
        """
        try:
            async with asyncio.timeout(None if timeout is None else seconds(timeout, "timeout")):
                record = self._record(
                    None if value is None else self._encode(value),
                    key,
                    properties,
                    event_time,
                    deliver_after,
                    deliver_at,
                    sequence_id,
                )
                await self._memory.wait(record.size_bytes)
                return await self._append(record)
        except TimeoutError as error:
            trouble = self._state.trouble
            raise no_receipt("the message may be stored or not", trouble) from (trouble or error)

    def send_nowait(
        self,
        value: Any,
        *,
        key: str | bytes | None = None,
        properties: Mapping[str, str] | None = None,
        event_time: Moment | None = None,
        deliver_after: Seconds | None = None,
        deliver_at: Moment | None = None,
        sequence_id: int | None = None,
    ) -> asyncio.Future[MessageId]:
        """Order is fixed now; the future has the id when the message is stored. Raises QueueFull at the limit."""
        data = None if value is None else self._encode(value)
        if (
            data is not None
            and properties is None
            and event_time is None
            and deliver_after is None
            and deliver_at is None
            and sequence_id is None
            and (key is None or (type(key) is str and key.isascii()))
            and (joined := self._join(data, key)) is not None
        ):
            return joined
        record = self._record(data, key, properties, event_time, deliver_after, deliver_at, sequence_id)
        self._memory.check(record.size_bytes)
        return self._append(record)

    async def send_batch(
        self,
        values: Sequence[Any],
        keys: Sequence[str | bytes | None] | None = None,
        *,
        properties: Sequence[Mapping[str, str] | None] | None = None,
        event_times: Sequence[int | None] | None = None,
        timeout: Seconds | None = None,
    ) -> Sent:
        """Many messages in one call, in their order; returns their ids when all are stored. Columns are lists, or Arrow
        arrays with pyarrow installed. Waits for memory first, as `send` does. When it raises, some may be stored."""
        try:
            async with asyncio.timeout(None if timeout is None else seconds(timeout, "timeout")):
                done: asyncio.Future[Sent] = asyncio.get_running_loop().create_future()
                bulk = self._bulk(values, keys, properties, event_times, done)
                await self._memory.wait(bulk.estimated_bytes())
                self._append_bulk(bulk)
                return await done
        except TimeoutError as error:
            trouble = self._state.trouble
            outcome = "any of the messages may be stored or not"
            raise no_receipt(outcome, trouble, "not all receipts in time") from (trouble or error)

    def send_batch_nowait(
        self,
        values: Sequence[Any],
        keys: Sequence[str | bytes | None] | None = None,
        *,
        properties: Sequence[Mapping[str, str] | None] | None = None,
        event_times: Sequence[int | None] | None = None,
    ) -> asyncio.Future[Sent]:
        """Order is fixed now; the future has the ids when all are stored. Raises QueueFull at the limit."""
        done: asyncio.Future[Sent] = asyncio.get_running_loop().create_future()
        bulk = self._bulk(values, keys, properties, event_times, done)
        self._memory.check(bulk.estimated_bytes())
        self._append_bulk(bulk)
        return done

    async def flush(self, timeout: Seconds | None = None) -> None:
        """Returns when every message sent before this call is stored or failed."""
        self._segments.perform(self._state.flush())
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = (self._next_order - 1, done)
        self._flushes.append(waiting)
        self._settle_flushes()
        try:
            async with asyncio.timeout(None if timeout is None else seconds(timeout, "timeout")):
                await done
        except TimeoutError as error:
            trouble = self._state.trouble
            raise no_receipt("some messages have no receipt yet", trouble, "flush timed out") from (trouble or error)
        finally:
            if waiting in self._flushes:
                self._flushes.remove(waiting)

    async def close(self, timeout: Seconds | None = None) -> None:
        """Waits for pending messages up to `timeout`; those left then fail with Closed. Safe to repeat."""
        if self._is_closed:
            return
        self._is_closed = True
        timeout_s = self._options.operation_timeout_s if timeout is None else seconds(timeout, "timeout")
        try:
            await self.flush(timeout_s)
        except TimedOut:
            pass  # the pending messages fail with Closed
        finally:
            # Also after a cancellation.
            await self._end(min(timeout_s, CLOSE_SECONDS))

    async def _end(self, timeout_s: float) -> None:
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
        try:
            await self._segments.close(Closed("the producer is closed"), timeout_s)
        finally:
            self._memory.close()
            if self._rotation is not None:
                await self._rotation.close()
            if self._watch is not None:
                await self._watches.release(self._watch, self)

    # -- sending

    def _join(self, data: bytes, key: str | None) -> asyncio.Future[MessageId] | None:
        """The fast path: adds a message with only value and key to an open batch. None, without any change, when there
        is no such batch; the caller makes a record then."""
        if self._is_closed:
            return None
        sequence, order, memory = self._next_sequence, self._next_order, self._memory
        track = self._state.track_of(key, sequence)
        if track is None:
            return None
        size = len(data) + RECORD_OVERHEAD_BYTES
        if key is not None:
            size += len(key)
        memory.check(size)
        future: asyncio.Future[MessageId] = asyncio.Future(loop=self._loop)  # `create_future` without the call
        effects = track.lane.join(data, key, sequence, order, future, size)
        if effects is None:
            return None
        memory.taken += size
        self._next_sequence, self._next_order = sequence + 1, order + 1
        if effects:
            self._segments.do(track, effects)
        return future

    def _record(
        self,
        data: bytes | None,
        key: str | bytes | None,
        properties: Mapping[str, str] | None,
        event_time: Moment | None,
        deliver_after: Seconds | None,
        deliver_at: Moment | None,
        sequence_id: int | None,
    ) -> OutgoingMessage:
        if self._is_closed:
            raise Closed("the producer is closed")
        check(key, properties, sequence_id)
        if data is None:
            check_tombstone(key)
        now_ms = self._clock.now_ms()
        timeout_s = self._options.send_timeout_s
        return OutgoingMessage(
            -1 if sequence_id is None else sequence_id,
            data,
            key,
            properties,
            0 if event_time is None else milliseconds(event_time, "event_time"),
            now_ms,
            delivery_ms(now_ms, deliver_after, deliver_at)
            if deliver_after is not None or deliver_at is not None
            else 0,
            self._clock.monotonic() + timeout_s if timeout_s else float("inf"),
            hash=-1 if key is None else murmur3_32(key),
        )

    def _bulk(self, values: Any, keys: Any, properties: Any, event_times: Any, done: asyncio.Future[Sent]) -> Bulk:
        def settled(outcome: Sent | ClientError) -> None:
            if done.done():
                return
            if isinstance(outcome, Sent):
                done.set_result(outcome)
            else:
                done.set_exception(outcome)

        check_has(values, ("__len__", "__getitem__"), "values", "a list or an Arrow array")
        if self._options.schema is not None:
            values = [None if value is None else self._encode(value) for value in values]
        return Bulk(values, keys, properties, event_times, self.topic, settled)

    def _append_bulk(self, bulk: Bulk) -> None:
        """Raises, without any change, when it can never be sent."""
        if self._is_closed:
            raise Closed("the producer is closed")
        if not bulk.rows:
            bulk.settle()
            return
        first, order, now_ms = self._next_sequence, self._next_order, self._clock.now_ms()
        timeout_s = self._options.send_timeout_s
        deadline = self._clock.monotonic() + timeout_s if timeout_s else float("inf")
        router = self._state.router(first)
        parts = None
        if router is not None:
            parts = bulk.parts(router, self._style, self._options.batching, first, order, now_ms, deadline)
        if parts is None:  # rows may be stored already, need chunks, or wait for new lanes
            # All records are made before the first is appended, so that an invalid row fails the whole call.
            for record in [bulk.record(row, first, order, now_ms, deadline) for row in range(bulk.rows)]:
                try:
                    self._enqueue(record)
                except ClientError as error:
                    record.ticket.set_exception(error)
            return
        self._next_sequence, self._next_order = first + bulk.rows, order + bulk.rows
        self._memory.take(sum(part.size_bytes for part in parts))
        for part in parts:
            self._segments.do(part.track, part.track.lane.append_entries(part.entries))
        if self._deadline_timer is None and deadline != float("inf"):
            self._arm_deadline()

    def _append(self, record: OutgoingMessage) -> asyncio.Future[MessageId]:
        future: asyncio.Future[MessageId] = asyncio.Future(loop=self._loop)  # `create_future` without the call
        record.ticket = future
        self._enqueue(record)
        return future

    def _enqueue(self, record: OutgoingMessage) -> None:
        if self._is_closed:
            raise Closed("the producer is closed")
        if record.sequence_id < 0:
            record.sequence_id = self._next_sequence
        record.order = self._next_order
        self._memory.take(record.size_bytes)
        try:
            track, effects = self._state.append(record)
        except BaseException:
            self._memory.give(record.size_bytes)
            raise
        self._next_order += 1
        self._next_sequence = max(self._next_sequence, record.sequence_id + 1)
        if track is not None and effects:
            self._segments.do(track, effects)
        if self._deadline_timer is None and record.deadline != float("inf"):
            self._arm_deadline()

    # -- outcomes

    def _on_stored(self, records: Sequence[OutgoingMessage], lane: int, ledger: int, position: int) -> None:
        if isinstance(records, BulkEntry):
            records.stored(lane, ledger, position)
        else:
            records = records if isinstance(records, OpenBatch) else OpenBatch.of(records)
            tickets, topic = records.tickets, self.topic
            size = len(tickets) if len(tickets) > 1 and position >= 0 else 0
            for index, ticket in enumerate(tickets):
                if not ticket.done():
                    ticket.set_result(MessageId(topic, ledger, position, index if size else -1, size, lane))
        self._last_stored = max(self._last_stored, records.highest)
        self._memory.give(records.size_bytes)
        self._counters.stored(len(records), records.size_bytes, self._latency_s(records))
        self._settle_flushes()

    def _latency_s(self, records: OpenBatch | BulkEntry) -> float:
        """Since the call for the first of them. The deadline has the exact time of that call."""
        timeout_s = self._options.send_timeout_s
        if timeout_s:
            return self._clock.monotonic() - records.deadline + timeout_s
        return (self._clock.now_ms() - records.publish_time_ms) / 1000

    def _on_failed(self, records: Sequence[OutgoingMessage], error: ClientError) -> None:
        for record in records:
            if not record.ticket.done():
                record.ticket.set_exception(error)
        self._memory.give(sum(record.size_bytes for record in records))
        self._counters.failed_with(error.code, len(records))
        self._settle_flushes()

    # -- time

    def _settle_flushes(self) -> None:
        if not self._flushes:
            return
        oldest = self._state.oldest()
        waiting = []
        for up_to, done in self._flushes:
            if up_to >= oldest:
                waiting.append((up_to, done))
            elif not done.done():
                done.set_result(None)
        self._flushes = waiting

    def _arm_deadline(self) -> None:
        deadline = self._state.next_deadline()
        if deadline != float("inf"):
            delay = max(0.0, deadline - self._clock.monotonic())
            self._deadline_timer = self._clock.call_later(delay, self._expire)

    def _expire(self) -> None:
        self._deadline_timer = None
        self._segments.perform(self._state.expire(self._clock.monotonic()))
        self._arm_deadline()
