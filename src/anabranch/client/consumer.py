"""Consumers: one buffer over the intakes of a topic's partitions, and what applications do with it. Knows asyncio;
permits, acks and redelivery are decided by `intake`, vectors of positions by `delivery`."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

from anabranch.client.attachment import Attachment
from anabranch.client.connection import Connection
from anabranch.client.delivery import DeliveryLog
from anabranch.client.errors import BadOption, ClientError, Closed, NotReady, Refused, TimedOut, Unreachable
from anabranch.client.intake import Ack, Deliver, Effect, Flow, Intake, Redeliver, Reject
from anabranch.client.link import command
from anabranch.client.message import Message, MessageId
from anabranch.client.policies import Backoff, Seconds, seconds
from anabranch.client.pool import Pool
from anabranch.model.names import TopicName
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.commands import BaseCommand
from anabranch.runtime.chance import Chance
from anabranch.runtime.clock import Clock, Timer
from anabranch.runtime.tasks import TaskOwner

log = logging.getLogger(__name__)

FAREWELL_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions:
    subscription: str
    sub_type: pb.CommandSubscribe.SubType
    name: str
    from_earliest: bool
    prefetch: int
    ack_group_s: float
    nack_delay_s: float
    operation_timeout_s: float
    properties: Mapping[str, str] | None


class IntakeRunner:
    """One intake and its consumer on the wire."""

    def __init__(
        self, consumer: Consumer, topic: str, index: int, base: str, options: ConsumerOptions, pool: Pool, clock: Clock
    ) -> None:
        self.topic = topic
        self.index = index
        shared = options.sub_type == pb.CommandSubscribe.Shared
        self.intake = Intake(base, lane=index, prefetch=options.prefetch, is_shared=shared)
        self.attachment: Attachment | None = None
        self._consumer = consumer
        self._options = options
        self._pool = pool
        self._clock = clock
        self._connection: Connection | None = None
        self._id = 0
        self._ack_timer: Timer | None = None

    # -- attached by an Attachment

    async def attach(self, connection: Connection) -> None:
        self._id, self._connection = connection.new_id(), connection
        connection.listen_consumer(self._id, self)
        options = self._options
        where = pb.CommandSubscribe.Earliest if options.from_earliest else pb.CommandSubscribe.Latest
        pairs = [{"key": name, "value": value} for name, value in (options.properties or {}).items()]
        is_heard = False
        try:
            await connection.ask(
                BaseCommand.SUBSCRIBE,
                self._pool.answer_timeout_s,
                topic=self.topic,
                subscription=options.subscription,
                subType=options.sub_type,
                consumer_id=self._id,
                consumer_name=options.name,
                initialPosition=where,
                metadata=pairs or None,
            )
            is_heard = True
        except Refused:
            is_heard = True
            raise
        finally:
            if not is_heard:  # the broker may have it all the same
                self._say_goodbye()
        if not connection.is_usable:
            raise Unreachable("the connection broke while the consumer was opened")
        self.perform(self.intake.opened())

    def lost(self) -> None:
        if self._connection is not None:
            self._connection.unlisten(self._id)
            self._connection = None
        self.intake.lost(self._consumer.drop_buffered(self.index))

    def ended(self, error: ClientError) -> None:
        self._consumer.fail(error)

    def heard(self, kind: int, body: Any, payload: bytes) -> None:
        if kind == BaseCommand.MESSAGE:
            self.perform(self.intake.delivered(body, payload, self._clock.monotonic()))
        elif kind == BaseCommand.CLOSE_CONSUMER:
            self._lose(NotReady("the broker closed the consumer"))

    def detached(self, error: ClientError) -> None:
        self._lose(error)

    def _lose(self, error: ClientError) -> None:
        assert self.attachment is not None
        self.attachment.lose(error)

    def _say_goodbye(self) -> None:
        if self._connection is not None and self._connection.is_usable:
            # Nobody waits for this answer; reading its error keeps asyncio quiet.
            farewell = self._connection.begin(BaseCommand.CLOSE_CONSUMER, FAREWELL_SECONDS, consumer_id=self._id)
            farewell.add_done_callback(lambda one: one.cancelled() or one.exception())

    # -- effects

    def perform(self, effects: Sequence[Effect]) -> None:
        connection = self._connection
        for effect in effects:
            match effect:
                case Deliver(messages):
                    self._consumer.arrived(messages)
                case _ if connection is None:
                    pass  # detached meanwhile: the broker starts afresh with the next attachment
                case Flow(permits):
                    connection.write(command(BaseCommand.FLOW, consumer_id=self._id, messagePermits=permits))
                case Ack(number, ids, is_cumulative):
                    kind = pb.CommandAck.Cumulative if is_cumulative else pb.CommandAck.Individual
                    answer = connection.begin(
                        BaseCommand.ACK,
                        self._pool.answer_timeout_s,
                        consumer_id=self._id,
                        ack_type=kind,
                        message_id=ids,
                    )
                    answer.add_done_callback(partial(self._confirmed, number))
                case Reject(identity, reason):
                    place = f"{identity.ledgerId}:{identity.entryId}"
                    log.warning("unreadable entry", extra={"topic": self.topic, "id": place, "reason": reason})
                    connection.write(
                        command(
                            BaseCommand.ACK,
                            consumer_id=self._id,
                            ack_type=pb.CommandAck.Individual,
                            message_id=[identity],
                            validation_error=pb.CommandAck.BatchDeSerializeError,
                        )
                    )
                case Redeliver(ids):
                    connection.write(
                        command(BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES, consumer_id=self._id, message_ids=ids)
                    )

    def _confirmed(self, number: int, answer: asyncio.Future[Any]) -> None:
        error = None if answer.cancelled() else answer.exception()
        if isinstance(error, TimedOut):
            self._lose(error)  # attached again, the intake says it again
        elif error is None and not answer.cancelled() and answer.result().HasField("error"):
            log.warning("ack refused", extra={"topic": self.topic, "reason": answer.result().message})
            self.intake.confirmed(number)
        elif error is None:
            self.intake.confirmed(number)

    def acked(self) -> None:
        """Something is to be said; acks of one moment travel together."""
        if self._ack_timer is None:
            self._ack_timer = self._clock.call_later(self._options.ack_group_s, self.flush)

    def flush(self) -> None:
        if self._ack_timer is not None:
            self._ack_timer.cancel()
            self._ack_timer = None
        self.perform(self.intake.flush())

    async def close(self, timeout_s: float) -> None:
        """Says the acks that are due. The broker has handled them before it answers the farewell."""
        self.flush()
        connection = self._connection
        if connection is not None and connection.is_usable and timeout_s > 0:
            try:
                await connection.ask(BaseCommand.CLOSE_CONSUMER, timeout_s, consumer_id=self._id)
            except ClientError:
                pass  # the broker forgets the consumer with its connection


class Consumer:
    """What stream and queue consumers share."""

    def __init__(
        self, topic: TopicName, options: ConsumerOptions, pool: Pool, backoff: Backoff, clock: Clock, chance: Chance
    ) -> None:
        self._topic = topic
        self._options = options
        self._pool = pool
        self._backoff = backoff
        self._clock = clock
        self._chance = chance
        self._tasks = TaskOwner("consumer")
        self._intakes: dict[int, IntakeRunner] = {}
        self._buffer: deque[Message] = deque()
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._failure: ClientError | None = None
        self._is_closed = False

    async def open(self, lanes: int) -> Self:
        """`lanes`: number of partitions, 0 for a topic without."""
        base = str(self._topic)
        names = {index: str(self._topic.partition(index)) for index in range(lanes)} if lanes else {-1: base}
        try:
            for index, name in names.items():
                runner = IntakeRunner(self, name, index, base, self._options, self._pool, self._clock)
                runner.attachment = Attachment(runner, self._pool, self._backoff, self._clock, self._chance)
                self._intakes[index] = runner
                self._tasks.spawn(runner.attachment.run(), name)
            for runner in self._intakes.values():
                assert runner.attachment is not None
                await runner.attachment.wait_first(self._options.operation_timeout_s)
        except BaseException:
            await self.close(timeout=0)
            raise
        return self

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    @property
    def topic(self) -> str:
        return str(self._topic)

    @property
    def subscription(self) -> str:
        return self._options.subscription

    @property
    def name(self) -> str:
        return self._options.name

    async def receive(self, timeout: Seconds | None = None) -> Message | None:
        """The next message; None when there was none in time. Without `timeout` it waits as long as it takes."""
        if message := self._take():
            return message
        try:
            async with asyncio.timeout(None if timeout is None else seconds(timeout)):
                while True:
                    await self._wait_arrival()
                    if message := self._take():
                        return message
        except TimeoutError:
            return None

    async def receive_many(self, count: int, timeout: Seconds | None = None) -> list[Message]:
        """Waits for the first message, then takes what is there, at most `count`. Empty when there was none in time."""
        if count < 1:
            raise BadOption("receive_many takes at least 1")
        first = await self.receive(timeout)
        found = [] if first is None else [first]
        while found and len(found) < count and (message := self._take()):
            found.append(message)
        return found

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

    async def close(self, timeout: Seconds | None = None) -> None:
        """Acknowledges nothing that the application did not; says what it did. Safe to repeat."""
        if self._is_closed:
            return
        self._is_closed = True
        self.fail(Closed("the consumer is closed"))
        timeout_s = FAREWELL_SECONDS if timeout is None else seconds(timeout)
        try:
            await asyncio.gather(*(runner.close(timeout_s) for runner in self._intakes.values()))
        finally:
            await self._tasks.close()
            for runner in self._intakes.values():
                runner.lost()

    # -- for the intakes

    def arrived(self, messages: Sequence[Message]) -> None:
        self._buffer.extend(messages)
        for _ in messages:
            if not self._waiters:
                break
            self._wake_one()

    def drop_buffered(self, lane: int) -> list[MessageId]:
        dropped = [message.id for message in self._buffer if message.id.lane == lane]
        self._buffer = deque(message for message in self._buffer if message.id.lane != lane)
        return dropped

    def fail(self, error: ClientError) -> None:
        self._failure = self._failure or error
        while self._waiters:
            self._wake_one()

    # -- inside

    def _take(self) -> Message | None:
        if self._failure is not None:
            raise self._failure
        if not self._buffer:
            return None
        message = self._buffer.popleft()
        runner = self._intakes[message.id.lane]
        if flow := runner.intake.taken():
            runner.perform(flow)
        return self._handed_out(message)

    def _handed_out(self, message: Message) -> Message:
        return message

    async def _wait_arrival(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except BaseException:
            # Woken and cancelled at once: the message is still in the buffer, so somebody else must look.
            if waiter.done() and not waiter.cancelled() and self._buffer and self._waiters:
                self._wake_one()
            raise
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def _wake_one(self) -> None:
        waiter = self._waiters.popleft()
        if not waiter.done():
            waiter.set_result(None)

    def _runner_of(self, one: MessageId) -> IntakeRunner:
        if self._is_closed:
            raise Closed("the consumer is closed")
        runner = self._intakes.get(one.lane)
        if runner is None or one.topic != str(self._topic):
            raise BadOption(f"{one} is not a message of {self._topic}")
        return runner


class QueueConsumer(Consumer):
    """Shares the messages with every other queue consumer of the subscription; acks are individual."""

    async def ack(self, message: Message | MessageId) -> None:
        """Done with it. Said to the broker within moments, at the latest by `close`; repeated until confirmed."""
        one = _id_of(message)
        runner = self._runner_of(one)
        if runner.intake.ack(one):
            runner.acked()

    async def nack(self, message: Message | MessageId, delay: Seconds | None = None) -> None:
        """Deliver it again, to whomever, after `delay` (otherwise the consumer's `nack_delay`)."""
        one = _id_of(message)
        runner = self._runner_of(one)
        delay_s = self._options.nack_delay_s if delay is None else seconds(delay)
        if delay_s <= 0:
            runner.perform(runner.intake.release([one]))
        else:
            self._tasks.spawn(self._release_later(runner, one, delay_s), "nack")

    async def _release_later(self, runner: IntakeRunner, one: MessageId, delay_s: float) -> None:
        await self._clock.sleep(delay_s)
        runner.perform(runner.intake.release([one]))


class StreamConsumer(Consumer):
    """Every key in order, acknowledged cumulatively. Of several with one subscription, each partition has one."""

    def __init__(
        self, topic: TopicName, options: ConsumerOptions, pool: Pool, backoff: Backoff, clock: Clock, chance: Chance
    ) -> None:
        super().__init__(topic, options, pool, backoff, clock, chance)
        self._log = DeliveryLog()

    def _handed_out(self, message: Message) -> Message:
        message.delivery = self._log.handed_out(message.id)
        return message

    async def ack_cumulative(self, message: Message | MessageId) -> None:
        """Everything this consumer handed out up to and including `message`, of all partitions. With a bare id it
        covers that id's partition only."""
        one = _id_of(message)
        self._runner_of(one)
        covered = {one.lane: one}
        if isinstance(message, Message) and message.delivery > 0:
            covered = self._log.covered(message.delivery, one)
        for place in covered.values():
            runner = self._runner_of(place)
            if runner.intake.ack_cumulative(place):
                runner.acked()


def _id_of(message: Message | MessageId) -> MessageId:
    return message.id if isinstance(message, Message) else message
