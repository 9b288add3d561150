"""One intake and its consumer on the wire: subscribes, passes deliveries on, says acks. Knows connections and timers;
permits, acks and redelivery are decided by `intake`. Whom it works for is told of everything through an
`SegmentListener`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from anabranch.client.connection.address import Address
from anabranch.client.connection.connection import Connection
from anabranch.client.connection.connection_state import command
from anabranch.client.connection.reconnect import ReconnectLoop
from anabranch.client.consumer.segment_consumer_effects import Ack, Deliver, Effect, Flow, Redeliver, Reject
from anabranch.client.consumer.segment_consumer_state import SegmentConsumerState
from anabranch.client.context import ClientContext
from anabranch.client.errors import ClientError, ConsumerFenced, NotReady, Refused, TimedOut, Unreachable, plain
from anabranch.client.messages.entry_contents import DeliveredEntry
from anabranch.client.messages.message import Message, MessageId, Origin
from anabranch.client.topic.topic_view import MANAGED, Served
from anabranch.model.position import Position
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.commands import BaseCommand
from anabranch.protocol.entry import Bytes
from anabranch.runtime.clock import Timer

log = logging.getLogger(__name__)

FAREWELL_SECONDS = 5.0
CHUNK_SECONDS = 15.0  # between looks at messages in chunks that are not complete


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelSpec:
    """How a consumer introduces itself on one partition or segment."""

    topic: str  # on the wire
    identity: str  # the topic that the application knows
    lane: int = -1  # the number in message ids
    segment_id: int = 0
    partition: int = -1
    is_legacy: bool = True  # a regular topic, not a segment
    subscription: str
    sub_type: pb.CommandSubscribe.SubType
    consumer_name: str
    from_earliest: bool = False
    priority: int = 0
    properties: Mapping[str, str] = field(default_factory=dict)
    subscription_properties: Mapping[str, str] = field(default_factory=dict)
    ack_group_s: float = 0.01
    hint: Served | None = None  # who is said to serve it
    schema: pb.Schema | None = None


@dataclass(frozen=True, slots=True)
class Grant:
    """The assignment that a segment is read under: brokers refuse it when a newer one gave the segment away."""

    incarnation: int
    generation: int


class SegmentListener(Protocol):
    """Whom a channel works for. Called on the event loop; must not raise."""

    def arrived(self, channel: SegmentConsumer, messages: Sequence[Message]) -> None: ...

    def dropped(self, channel: SegmentConsumer) -> list[MessageId]:
        """The channel is detached: what waits of it for the application is forgotten, and named."""

    def ended(self, channel: SegmentConsumer, error: ClientError) -> None:
        """It can never be attached again."""

    def reached_end(self, channel: SegmentConsumer) -> None:
        """Everything that will ever be in it is acknowledged."""

    def refilled(self, channel: SegmentConsumer) -> None:
        """It had reached its end, and its position was taken back."""


class SegmentConsumer:
    def __init__(self, spec: ChannelSpec, outlet: SegmentListener, ground: ClientContext, window: int) -> None:
        self.spec = spec
        shared = spec.sub_type == pb.CommandSubscribe.Shared
        self.intake = SegmentConsumerState(
            spec.identity, lane=spec.lane, partition=spec.partition, prefetch=window, is_shared=shared
        )
        self.attachment: ReconnectLoop | None = None
        self.task: asyncio.Task[Any] | None = None  # of the attachment
        self.is_at_end = False
        self.turn = 0  # how often it was detached: what arrived before counts no more
        self._is_hasty = False
        self.grant: Grant | None = None  # what the controller gave it with, last; said to brokers that know the word
        self._hint = spec.hint
        self._outlet = outlet
        self._pool = ground.pool
        self._clock = ground.clock
        self._connection: Connection | None = None
        self._id = 0
        self._ack_timer: Timer | None = None
        self._chunk_timer: Timer | None = None

    def __str__(self) -> str:
        return self.spec.topic

    @property
    def topic(self) -> str:
        return self.spec.topic

    # -- attached by an Attachment

    async def serving(self, topic: str) -> Connection:
        """The broker that was named with the segment is asked first, and once."""
        hint, self._hint = self._hint, None
        url = "" if hint is None else self._pool.address_of(hint.url, hint.url_tls)
        return await (self._pool.connection(Address.parse(url)) if url else self._pool.serving(topic))

    async def attach(self, connection: Connection) -> None:
        self._id, self._connection = connection.new_id(), connection
        connection.listen_consumer(self._id, self)
        is_heard = False
        try:
            await connection.ask(BaseCommand.SUBSCRIBE, self._pool.answer_timeout_s, **self._introduction())
            is_heard = True
        except ConsumerFenced as error:
            is_heard = True
            if self.grant is not None and connection.has_extensions:
                raise
            raise plain(error) from error  # brokers of Pulsar say this while ranges are given out anew: it passes
        except Refused:
            is_heard = True
            raise
        finally:
            if not is_heard:  # the broker may have it all the same
                self._say_goodbye()
        try:
            await self._settle(connection)
        except BaseException:
            self._say_goodbye()
            raise
        if not connection.is_usable:
            raise Unreachable("the connection broke while the consumer was opened")
        self.perform(self.intake.opened())

    def _introduction(self) -> dict[str, Any]:
        spec = self.spec
        metadata = dict(spec.properties) | ({MANAGED: "true"} if spec.is_legacy else {})
        where = pb.CommandSubscribe.Earliest if spec.from_earliest else pb.CommandSubscribe.Latest
        grant = self.grant if self._connection is not None and self._connection.has_extensions else None
        return {
            "topic": spec.topic,
            "subscription": spec.subscription,
            "subType": spec.sub_type,
            "consumer_id": self._id,
            "consumer_name": spec.consumer_name,
            "initialPosition": where,
            "priority_level": spec.priority or None,
            "metadata": _pairs(metadata),
            "subscription_properties": _pairs(spec.subscription_properties),
            "schema": spec.schema,
            "generation": None if grant is None else grant.generation,
            "incarnation": None if grant is None else grant.incarnation,
        }

    async def _settle(self, connection: Connection) -> None:
        """Subscribed, and nothing flows yet."""

    def lost(self) -> None:
        if self._connection is not None:
            self._connection.unlisten(self._id)
            self._connection = None
        if self._chunk_timer is not None:
            self._chunk_timer.cancel()
            self._chunk_timer = None
        self.turn += 1
        self.intake.lost(self._outlet.dropped(self))

    def ended(self, error: ClientError) -> None:
        self._outlet.ended(self, error)

    def heard(self, kind: int, body: Any, payload: Bytes) -> None:
        if kind == BaseCommand.MESSAGE:
            if self.is_at_end:
                self.is_at_end = False
                self._outlet.refilled(self)
            self.perform(self.intake.delivered(body, payload, self._clock.monotonic()))
            if self.intake.has_chunks and self._chunk_timer is None:
                self._chunk_timer = self._clock.call_later(CHUNK_SECONDS, self._look_at_chunks)
        elif kind == BaseCommand.CLOSE_CONSUMER:
            self._lose(NotReady("the broker closed the consumer"))
        elif kind == BaseCommand.REACHED_END_OF_TOPIC:
            self.is_at_end = True
            self._outlet.reached_end(self)

    def _look_at_chunks(self) -> None:
        """Messages in chunks that are not completed: they grow old also where nothing else comes."""
        self._chunk_timer = None
        self.perform(self.intake.expire(self._clock.monotonic()))
        if self.intake.has_chunks:
            self._chunk_timer = self._clock.call_later(CHUNK_SECONDS, self._look_at_chunks)

    def ends_at(self, last: Position | None) -> None:
        """Sealed; `last` is its last entry, as far as it is known."""
        if last is not None:
            self.perform(self.intake.ends_at((last.ledger, last.entry)))

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
                    self._outlet.arrived(self, messages)
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

    # -- what the consumer does

    def taken(self, count: int = 1) -> None:
        """Messages of this channel went to the application."""
        if flow := self.intake.taken(count):
            self.perform(flow)

    def resize(self, window: int) -> None:
        self.perform(self.intake.resize(window))

    def ack(self, one: MessageId) -> None:
        self.ack_at(one, one.batch_index)

    def ack_at(self, at: Origin | MessageId, batch_index: int) -> None:
        self.intake.ack_later(at, batch_index)
        if self._ack_timer is None:
            self._acked()

    def ack_parcel(self, parcel: DeliveredEntry) -> None:
        if self.intake.ack_slots(parcel.place, parcel.contents.size, parcel.wanted):
            self._acked()

    def ack_cumulative(self, one: MessageId) -> None:
        if self.intake.ack_cumulative(one):
            self._acked()

    def redeliver(self, ones: Sequence[MessageId]) -> None:
        self.perform(self.intake.release(ones))

    def stop(self) -> None:
        """Hand out nothing more; acks still count."""
        self.intake.stop(self._outlet.dropped(self))

    def void(self) -> None:
        """The position was moved: nothing more is handed out, and what was acknowledged and not said is forgotten."""
        self.stop()
        self.intake.void()

    def hurry(self, is_hasty: bool) -> None:
        """Somebody waits for its last ack, or no longer does: so long acks are said at once."""
        self._is_hasty = is_hasty
        if is_hasty and self._ack_timer is not None:
            self.flush()

    def _acked(self) -> None:
        """Something is to be said; acks of one moment travel together."""
        if self._ack_timer is None:
            delay_s = 0.0 if self._is_hasty else self.spec.ack_group_s
            self._ack_timer = self._clock.call_later(delay_s, self.flush)

    def flush(self) -> None:
        if self._ack_timer is not None:
            self._ack_timer.cancel()
            self._ack_timer = None
        self.perform(self.intake.flush())

    async def leave(self, timeout_s: float) -> None:
        """Closed while the consumer goes on: says its acks, then stays detached for good."""
        await self.close(timeout_s)
        self.lost()

    async def close(self, timeout_s: float) -> None:
        """Says the acks that are due. The broker has handled them before it answers the farewell."""
        if self.attachment is not None and not self.intake.is_clean and timeout_s > 0:
            try:
                await self.attachment.wait_first(timeout_s)  # there are acks, and it was not attached yet
            except ClientError as error:
                log.info("acks were not said", extra={"topic": self.topic, "reason": error.reason})
        if self.task is not None:
            self.task.cancel()  # or it would attach while we are leaving
            await asyncio.wait([self.task])
        self.flush()
        connection = self._connection
        if connection is not None and connection.is_usable and timeout_s > 0:
            try:
                await connection.ask(BaseCommand.CLOSE_CONSUMER, timeout_s, consumer_id=self._id)
            except ClientError:
                pass  # the broker forgets the consumer with its connection


def _pairs(values: Mapping[str, str]) -> list[pb.KeyValue] | None:
    return [pb.KeyValue(key=name, value=value) for name, value in values.items()] or None
