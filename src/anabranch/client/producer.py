"""Producer: routes messages to lanes and does what they decide. Knows asyncio; order and batches are the lanes' own."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from anabranch.client.attachment import Attachment
from anabranch.client.compression import Compression
from anabranch.client.connection import Connection
from anabranch.client.credits import Credits
from anabranch.client.errors import ClientError, Closed, NotReady, QueueFull, Refused, TimedOut, Unreachable, refusal
from anabranch.client.lane import Arm, Effect, Failed, Lane, Reconnect, Stored, Transmit
from anabranch.client.message import MessageId
from anabranch.client.policies import Backoff, Batching, Seconds, seconds
from anabranch.client.pool import Pool
from anabranch.client.record import Record, Style
from anabranch.client.schema import Schema, encoder_of
from anabranch.client.tutor import on_wire
from anabranch.model.names import TopicName
from anabranch.protocol.commands import BaseCommand, signed
from anabranch.protocol.keyhash import murmur3_32, partition_of
from anabranch.runtime.chance import Chance
from anabranch.runtime.clock import Clock, Timer
from anabranch.runtime.tasks import TaskOwner

FAREWELL_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOptions:
    name: str
    is_name_given: bool
    batching: Batching
    send_timeout_s: float  # 0: never
    pending_bytes_max: int
    properties: Mapping[str, str] | None
    operation_timeout_s: float
    compression: Compression = Compression.NONE
    chunk_bytes: int | None = None
    schema: Schema | None = None

    def style(self) -> Style:
        return Style(self.name, self.compression, chunk_bytes=self.chunk_bytes)


class LaneRunner:
    """One lane and its producer on the wire."""

    def __init__(
        self, producer: Producer, topic: str, index: int, options: ProducerOptions, pool: Pool, clock: Clock
    ) -> None:
        self.topic = topic
        self.index = index
        self.last_sequence_id = -1
        self._producer = producer
        self._options = options
        self._pool = pool
        self._clock = clock
        self.lane = Lane(producer.style, options.batching)
        self._delay_s = seconds(options.batching.max_delay)
        self.attachment: Attachment | None = None
        self._connection: Connection | None = None
        self._id = 0
        self._epoch = 0
        self._batch_timer: Timer | None = None
        self._deadline_timer: Timer | None = None
        self._flushes: list[tuple[int, asyncio.Future[None]]] = []

    # -- attached by an Attachment

    async def attach(self, connection: Connection) -> None:
        self._id, self._connection = connection.new_id(), connection
        connection.listen_producer(self._id, self)
        options = self._options
        is_heard = False
        try:
            answer = await connection.ask(
                BaseCommand.PRODUCER,
                self._pool.answer_timeout_s,
                topic=self.topic,
                producer_id=self._id,
                producer_name=options.name,
                user_provided_producer_name=options.is_name_given,
                epoch=self._epoch,
                metadata=_pairs(options.properties),
                schema=on_wire(options.schema),
            )
            is_heard = True
        except Refused:
            is_heard = True
            raise
        finally:
            if not is_heard:  # the broker may have it all the same
                self._say_goodbye()
        self._epoch += 1
        if not connection.is_usable:
            raise Unreachable("the connection broke while the producer was opened")
        self.last_sequence_id = max(self.last_sequence_id, answer.last_sequence_id)
        if options.schema is not None:
            self._producer.style.schema_version = answer.schema_version
        credits = Credits(answer.credit_bytes, answer.credit_messages) if answer.HasField("credit_bytes") else None
        self.perform(self.lane.opened(connection.message_bytes_max, credits))

    def lost(self) -> None:
        if self._connection is not None:
            self._connection.unlisten(self._id)
            self._connection = None
        self.lane.lost()

    def ended(self, error: ClientError) -> None:
        self.perform(self.lane.fail(error))

    def heard(self, kind: int, body: Any, payload: bytes) -> None:
        if kind == BaseCommand.SEND_RECEIPT:
            identity = body.message_id
            if body.credit_bytes or body.credit_messages:
                self.lane.credited(body.credit_bytes, body.credit_messages)
            self.perform(self.lane.receipt(body.sequence_id, signed(identity.ledgerId), signed(identity.entryId)))
        elif kind == BaseCommand.SEND_ERROR:
            self.perform(self.lane.refused(body.sequence_id, refusal(body.error, body.message)))
        elif kind == BaseCommand.CLOSE_PRODUCER:
            self._lose(NotReady("the broker closed the producer"))

    def detached(self, error: ClientError) -> None:
        self._lose(error)

    def _lose(self, error: ClientError) -> None:
        assert self.attachment is not None
        self.attachment.lose(error)

    def _say_goodbye(self) -> None:
        if self._connection is not None and self._connection.is_usable:
            # Nobody waits for this answer; reading its error keeps asyncio quiet.
            farewell = self._connection.begin(BaseCommand.CLOSE_PRODUCER, FAREWELL_SECONDS, producer_id=self._id)
            farewell.add_done_callback(lambda one: one.cancelled() or one.exception())

    # -- effects

    def append(self, record: Record) -> None:
        self.perform(self.lane.append(record))
        if self._deadline_timer is None and record.deadline != float("inf"):
            self._arm_deadline()

    def perform(self, effects: Sequence[Effect]) -> None:
        settled = False
        for effect in effects:
            match effect:
                case Transmit(entry):
                    if self._connection is not None:
                        self._connection.write(entry.frame(self._id))
                case Stored(records, ledger, position):
                    self._producer.stored(records, self.index, ledger, position)
                    settled = True
                case Failed(records, error):
                    self._producer.failed(records, error)
                    settled = True
                case Arm(batch):
                    self._batch_timer = self._clock.call_later(self._delay_s, partial(self._due, batch))
                case Reconnect(reason):
                    self._say_goodbye()
                    self._lose(NotReady(reason))
        if settled and self._flushes:
            self._settle_flushes()

    def _due(self, batch: int) -> None:
        self.perform(self.lane.due(batch))

    def _arm_deadline(self) -> None:
        deadline = self.lane.next_deadline()
        if deadline == float("inf"):
            return
        self._deadline_timer = self._clock.call_later(max(0.0, deadline - self._clock.monotonic()), self._expire)

    def _expire(self) -> None:
        self._deadline_timer = None
        self.perform(self.lane.expire(self._clock.monotonic()))
        self._arm_deadline()

    def flushed(self, up_to: int) -> asyncio.Future[None]:
        """Done when every record up to this sequence id has its outcome."""
        self.perform(self.lane.flush())
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._flushes.append((up_to, done))
        self._settle_flushes()
        return done

    def _settle_flushes(self) -> None:
        oldest = self.lane.oldest()
        waiting = []
        for up_to, done in self._flushes:
            if up_to >= oldest:
                waiting.append((up_to, done))
            elif not done.done():
                done.set_result(None)
        self._flushes = waiting

    async def close(self, timeout_s: float) -> None:
        """Nothing is waited for but the broker's farewell, and not for long."""
        for timer in (self._batch_timer, self._deadline_timer):
            if timer is not None:
                timer.cancel()
        self.perform(self.lane.fail(Closed("the producer is closed")))
        connection = self._connection
        if connection is not None and connection.is_usable:
            try:
                await connection.ask(BaseCommand.CLOSE_PRODUCER, timeout_s, producer_id=self._id)
            except ClientError:
                pass  # the broker forgets the producer with its connection


class Producer:
    """Sends to one topic. Per key, messages are stored in the order of the calls; open it with `client.producer`."""

    def __init__(
        self, topic: TopicName, options: ProducerOptions, pool: Pool, backoff: Backoff, clock: Clock, chance: Chance
    ) -> None:
        self._topic = topic
        self._options = options
        self.style = options.style()
        self._encode = encoder_of(options.schema)
        self._pool = pool
        self._backoff = backoff
        self._clock = clock
        self._chance = chance
        self._tasks = TaskOwner("producer")
        self._lanes: list[LaneRunner] = []
        self._next_sequence = 0
        self._pending_bytes = 0
        self._room: deque[asyncio.Future[None]] = deque()
        self._is_closed = False

    async def open(self, lanes: int) -> Producer:
        """`lanes`: number of partitions, 0 for a topic without."""
        names = [str(self._topic.partition(index)) for index in range(lanes)] if lanes else [str(self._topic)]
        timeout_s = self._options.operation_timeout_s
        try:
            for index, name in enumerate(names):
                runner = LaneRunner(self, name, index if lanes else -1, self._options, self._pool, self._clock)
                runner.attachment = Attachment(runner, self._pool, self._backoff, self._clock, self._chance)
                self._lanes.append(runner)
                self._tasks.spawn(runner.attachment.run(), name)
            for runner in self._lanes:
                assert runner.attachment is not None
                await runner.attachment.wait_first(timeout_s)
        except BaseException:
            await self.close(timeout=0)
            raise
        # One counter for all lanes, past whatever a producer of this name has stored in any of them.
        self._next_sequence = 1 + max(runner.last_sequence_id for runner in self._lanes)
        return self

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    @property
    def topic(self) -> str:
        return str(self._topic)

    @property
    def name(self) -> str:
        return self._options.name

    @property
    def pending_bytes(self) -> int:
        """What waits for its receipt, about."""
        return self._pending_bytes

    async def send(
        self,
        value: Any,
        *,
        key: str | bytes | None = None,
        properties: Mapping[str, str] | None = None,
        event_time: int | None = None,
        deliver_after: Seconds | None = None,
        timeout: Seconds | None = None,
    ) -> MessageId:
        """Returns when the message is stored. Waits for room first; sends that wait keep the order of their calls.

        Cancelled or timed out, the message may be stored or not; what was sent after it keeps its place.
        """
        try:
            async with asyncio.timeout(None if timeout is None else seconds(timeout)):
                record = self._record(value, key, properties, event_time, deliver_after)
                await self._wait_room(record.size_bytes)
                return await self._append(record)
        except TimeoutError as error:
            raise TimedOut("no receipt in time; the message may be stored or not") from error

    def send_nowait(
        self,
        value: Any,
        *,
        key: str | bytes | None = None,
        properties: Mapping[str, str] | None = None,
        event_time: int | None = None,
        deliver_after: Seconds | None = None,
    ) -> asyncio.Future[MessageId]:
        """Order is fixed now; the future has the id when the message is stored. Raises QueueFull without room."""
        record = self._record(value, key, properties, event_time, deliver_after)
        if self._room or self._pending_bytes + record.size_bytes > self._options.pending_bytes_max:
            raise QueueFull(f"{self._pending_bytes} bytes are waiting for their receipts")
        return self._append(record)

    async def flush(self, timeout: Seconds | None = None) -> None:
        """Until every message sent before this call has its outcome."""
        last = self._next_sequence - 1
        waits = [runner.flushed(last) for runner in self._lanes]
        try:
            async with asyncio.timeout(None if timeout is None else seconds(timeout)):
                await asyncio.gather(*waits)
        except TimeoutError as error:
            raise TimedOut("not everything has its receipt yet") from error

    async def close(self, timeout: Seconds | None = None) -> None:
        """Waits for what is pending, as long as `timeout` says; what is left then fails with Closed. Safe to repeat."""
        if self._is_closed:
            return
        self._is_closed = True
        timeout_s = self._options.operation_timeout_s if timeout is None else seconds(timeout)
        try:
            await self.flush(timeout_s)
        except TimedOut:
            pass  # whoever waits for a message hears Closed
        finally:
            # Cut short only by cancellation, and then the end is quick.
            await self._end(min(timeout_s, FAREWELL_SECONDS))

    async def _end(self, timeout_s: float) -> None:
        try:
            await asyncio.gather(*(runner.close(timeout_s) for runner in self._lanes))
        finally:
            for waiter in self._room:
                if not waiter.done():
                    waiter.set_result(None)
            await self._tasks.close()
            for runner in self._lanes:
                runner.lost()

    # -- inside

    def _record(
        self,
        value: Any,
        key: str | bytes | None,
        properties: Mapping[str, str] | None,
        event_time: int | None,
        deliver_after: Seconds | None,
    ) -> Record:
        if self._is_closed:
            raise Closed("the producer is closed")
        now_ms = self._clock.now_ms()
        timeout_s = self._options.send_timeout_s
        return Record(
            -1,
            self._encode(value),
            key,
            properties,
            event_time or 0,
            now_ms,
            now_ms + int(seconds(deliver_after) * 1000) if deliver_after is not None else 0,
            self._clock.monotonic() + timeout_s if timeout_s else float("inf"),
        )

    def _append(self, record: Record) -> asyncio.Future[MessageId]:
        if self._is_closed:
            raise Closed("the producer is closed")
        record.sequence_id = self._next_sequence
        record.ticket = future = asyncio.get_running_loop().create_future()
        self._pending_bytes += record.size_bytes
        try:
            self._lane_of(record).append(record)
        except BaseException:
            self._pending_bytes -= record.size_bytes
            raise
        self._next_sequence += 1
        return future

    def _lane_of(self, record: Record) -> LaneRunner:
        lanes = self._lanes
        if len(lanes) == 1:
            return lanes[0]
        key = record.key
        if key is None:  # by sequence id, so that a later attempt would go the same way
            return lanes[record.sequence_id % len(lanes)]
        return lanes[partition_of(murmur3_32(key.encode() if isinstance(key, str) else key), len(lanes))]

    async def _wait_room(self, size: int) -> None:
        limit = self._options.pending_bytes_max
        if not self._room and (not self._pending_bytes or self._pending_bytes + size <= limit):
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._room.append(turn)
        try:
            # In the order of the calls: only the first in line may look, and stays first until it fits.
            while not self._is_closed and (
                self._room[0] is not turn or (self._pending_bytes and self._pending_bytes + size > limit)
            ):
                if turn.done():
                    index = self._room.index(turn)
                    turn = asyncio.get_running_loop().create_future()
                    self._room[index] = turn
                await turn
        finally:
            self._room.remove(turn)
            self._wake_first()

    def _wake_first(self) -> None:
        if self._room and not self._room[0].done():
            self._room[0].set_result(None)

    def stored(self, records: Sequence[Record], lane: int, ledger: int, position: int) -> None:
        topic, size = str(self._topic), len(records)
        for index, record in enumerate(records):
            self._pending_bytes -= record.size_bytes
            if not record.ticket.done():
                batch = (index, size) if size > 1 else (-1, 0)
                record.ticket.set_result(MessageId(topic, ledger, position, *batch, lane))
        self._wake_first()

    def failed(self, records: Sequence[Record], error: ClientError) -> None:
        for record in records:
            self._pending_bytes -= record.size_bytes
            if not record.ticket.done():
                record.ticket.set_exception(error)
        self._wake_first()


def _pairs(properties: Mapping[str, str] | None) -> list[dict[str, str]] | None:
    return [{"key": name, "value": value} for name, value in properties.items()] if properties else None
