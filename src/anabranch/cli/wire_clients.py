"""Producing and consuming over a `wire.Link`: entries out and receipts in, messages in and acks out. No terminals."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from anabranch.cli.wire import Link, WireError, refusal
from anabranch.cli.wire import command as command_frame
from anabranch.model.errors import Error
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.commands import BaseCommand, frame_with_payload
from anabranch.protocol.entry import build_batch, metadata, split_batch
from anabranch.runtime.clock import Clock

_WORD = (1 << 64) - 1

OnStored = Callable[[str], None]
"""Told the message id (`ledger:entry`) when an entry is stored."""


class Closed(WireError):
    code = "closed"


class Producer:
    """One producer of one topic or partition. Receipts come in the order of sends."""

    def __init__(self, link: Link, topic: str, clock: Clock) -> None:
        self.topic = topic
        self._link = link
        self._clock = clock
        self._id = link.new_id()
        self._name = ""
        self._next_sequence = 0
        self._in_flight: deque[tuple[int, int, OnStored]] = deque()  # sequence, messages, who is told
        self._failure: WireError | None = None
        self._news = asyncio.Event()
        self.messages_in_flight = 0

    async def open(self) -> None:
        self._link.listen_producer(self._id, self._heard, self._fail)
        answer = await self._link.ask(BaseCommand.PRODUCER, topic=self.topic, producer_id=self._id)
        self._name = answer.producer_name
        self._next_sequence = answer.last_sequence_id + 1

    def send(self, messages: Sequence[bytes], keys: Sequence[str | None] | None, on_stored: OnStored) -> None:
        """One entry with these messages; returns at once."""
        if self._failure is not None:
            raise self._failure
        first = self._next_sequence
        self._next_sequence += len(messages)
        entry = build_batch(
            messages, producer_name=self._name, sequence_id=first, publish_time=self._clock.now_ms(), keys=keys
        )
        if len(entry) > self._link.message_bytes_max:
            raise WireError(
                f"{len(entry)} bytes are more than the {self._link.message_bytes_max} that the broker takes"
            )
        send = pb.CommandSend(
            producer_id=self._id,
            sequence_id=first,
            num_messages=len(messages),
            highest_sequence_id=self._next_sequence - 1,
        )
        self._link.write(frame_with_payload(BaseCommand(type=BaseCommand.SEND, send=send), entry))
        self._in_flight.append((first, len(messages), on_stored))
        self.messages_in_flight += len(messages)

    async def wait_below(self, messages: int) -> None:
        """Until fewer than this many messages have no receipt yet."""
        await self._link.drain()
        while self.messages_in_flight >= messages:
            self._news.clear()
            if self._failure is not None:
                raise self._failure
            await self._news.wait()
        if self._failure is not None:
            raise self._failure

    async def close(self) -> None:
        """After everything has its receipt."""
        await self.wait_below(1)
        await self._link.ask(BaseCommand.CLOSE_PRODUCER, producer_id=self._id)

    def _heard(self, kind: int, body: Any, payload: bytes) -> None:
        if kind == BaseCommand.CLOSE_PRODUCER:
            self._fail(Closed("the broker closed the producer; what has no receipt may be lost"))
        elif kind == BaseCommand.SEND_ERROR:
            self._fail(refusal(body.error, body.message))
        elif self._in_flight:
            sequence, messages, on_stored = self._in_flight.popleft()
            if sequence != body.sequence_id:
                self._fail(WireError(f"receipt for {body.sequence_id} where {sequence} was next"))
                return
            self.messages_in_flight -= messages
            on_stored(f"{body.message_id.ledgerId}:{body.message_id.entryId}")
            self._news.set()

    def _fail(self, failure: WireError) -> None:
        self._failure = self._failure or failure
        self._news.set()


@dataclass(frozen=True, slots=True)
class Message:
    """One message as an application sees it."""

    topic: str
    id: str  # ledger:entry:index in its batch
    data: bytes
    key: str | None
    properties: Mapping[str, str] = field(default_factory=dict)
    publish_time_ms: int = 0
    event_time_ms: int = 0
    redeliveries: int = 0


@dataclass(slots=True)
class Delivery:
    """One entry on its way through: its messages, and how many of them have been taken."""

    consumer: Consumer
    identity: pb.MessageIdData
    messages: list[Message]
    indexes: list[int]  # of the messages in their batch …
    batch_size: int  # … which has so many
    taken: int = 0


class Consumer:
    """One consumer of one topic or partition. What it receives goes to a queue that several may share."""

    def __init__(
        self, link: Link, topic: str, inbox: asyncio.Queue[Delivery | WireError], *, permits: int = 1000
    ) -> None:
        self.topic = topic
        self._link = link
        self._id = link.new_id()
        self._inbox = inbox
        self._permits_max = permits
        self._given = 0  # permits to hand back

    async def open(self, subscription: str, kind: int, *, from_earliest: bool, name: str | None = None) -> None:
        self._link.listen_consumer(self._id, self._heard, self._inbox.put_nowait)
        where = pb.CommandSubscribe.Earliest if from_earliest else pb.CommandSubscribe.Latest
        await self._link.ask(
            BaseCommand.SUBSCRIBE,
            topic=self.topic,
            subscription=subscription,
            subType=kind,
            consumer_id=self._id,
            consumer_name=name,
            initialPosition=where,
        )

    def start(self, permits: int | None = None) -> None:
        self._link.write(
            command_frame(BaseCommand.FLOW, consumer_id=self._id, messagePermits=permits or self._permits_max)
        )

    def done(self, delivery: Delivery) -> None:
        """Acknowledge what was taken of an entry, and let the broker send as many more."""
        if not delivery.taken:
            return
        identity = pb.MessageIdData()
        identity.CopyFrom(delivery.identity)
        if left := sum(1 << index for index in delivery.indexes[delivery.taken :]):
            words = [(left >> shift) & _WORD for shift in range(0, delivery.batch_size, 64)]
            identity.ack_set.extend(word - (1 << 64) if word >> 63 else word for word in words)
            identity.batch_size = delivery.batch_size
        self._link.write(
            command_frame(
                BaseCommand.ACK, consumer_id=self._id, ack_type=pb.CommandAck.Individual, message_id=[identity]
            )
        )
        self._given += delivery.taken
        if self._given * 2 >= self._permits_max:
            self.start(self._given)
            self._given = 0

    async def close(self) -> None:
        """The broker has handled every ack before it answers."""
        await self._link.ask(BaseCommand.CLOSE_CONSUMER, consumer_id=self._id)

    def _heard(self, kind: int, body: Any, payload: bytes) -> None:
        if kind == BaseCommand.CLOSE_CONSUMER:
            self._inbox.put_nowait(Closed("the broker closed the consumer"))
        elif kind == BaseCommand.MESSAGE:
            try:
                self._inbox.put_nowait(self._delivery(body, payload))
            except Error as error:
                place = f"{body.message_id.ledgerId}:{body.message_id.entryId}"
                self._inbox.put_nowait(WireError(f"message {place} of {self.topic} cannot be read: {error.reason}"))

    def _delivery(self, body: Any, payload: bytes) -> Delivery:
        of, place = metadata(payload), f"{body.message_id.ledgerId}:{body.message_id.entryId}"
        words = [word & _WORD for word in body.ack_set]
        messages: list[Message] = []
        indexes: list[int] = []
        batch = split_batch(payload)
        for index, (single, data) in enumerate(batch):
            if words and not (words[index // 64] >> (index % 64)) & 1:
                continue  # acknowledged before
            indexes.append(index)
            messages.append(
                Message(
                    topic=self.topic,
                    id=f"{place}:{index}",
                    data=data,
                    key=single.partition_key if single.HasField("partition_key") else None,
                    properties={pair.key: pair.value for pair in single.properties},
                    publish_time_ms=of.publish_time,
                    event_time_ms=single.event_time,
                    redeliveries=body.redelivery_count,
                )
            )
        identity = pb.MessageIdData(ledgerId=body.message_id.ledgerId, entryId=body.message_id.entryId)
        if body.message_id.HasField("partition"):
            identity.partition = body.message_id.partition
        return Delivery(self, identity, messages, indexes, len(batch))
