"""The consumer of one partition or segment on the wire: subscribes, receives, sends permits and acks.

`SegmentConsumerState` decides about permits, acks and redelivery; this shell performs its effects. Messages and events
go to a `SegmentListener`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial, reduce
from operator import or_
from typing import Any, Protocol

from anabranch.client.connection.address import Address
from anabranch.client.connection.connection import Connection
from anabranch.client.connection.connection_state import command
from anabranch.client.connection.reconnect import ReconnectLoop
from anabranch.client.consumer.segment.batch_bits import bit_of, nack_of, whole_entry
from anabranch.client.consumer.segment.effects import Ack, Deliver, Effect, Fail, Flow, Redeliver, Reject
from anabranch.client.consumer.segment.key_wait import KeyWait
from anabranch.client.consumer.segment.segment_consumer_spec import Grant, SegmentConsumerSpec
from anabranch.client.consumer.segment.segment_consumer_state import SegmentConsumerState
from anabranch.client.context import ClientContext
from anabranch.client.encryption.decryptor import Decryptor
from anabranch.client.encryption.key_fetcher import KeyFetcher
from anabranch.client.errors import (
    ClientError,
    ConsumerFenced,
    NotReady,
    Refused,
    TimedOut,
    Unreachable,
    plain,
    refusal,
)
from anabranch.client.messages.entry_contents import DeliveredEntry, set_seek_number
from anabranch.client.messages.message import Message, MessageId, Origin
from anabranch.client.metrics.counters import ConsumerCounters
from anabranch.model.position import Position
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.commands import BaseCommand
from anabranch.protocol.entry import Bytes
from anabranch.protocol.managed_clients import managed
from anabranch.runtime.clock import Timer
from anabranch.runtime.logs import get_logger

log = get_logger(__name__)

CLOSE_TIMEOUT_SECONDS = 5.0
ACK_ANSWER_SECONDS = 0.5  # wait for answers to acks before a consumer that the broker closed subscribes again
OWN_ACK_ANSWER_SECONDS = 0.05  # our brokers do not answer what arrives after they closed it
CHUNK_SECONDS = 15.0  # between checks for incomplete chunked messages that expired


class SegmentListener(Protocol):
    """Receives the messages and events of a segment consumer. Called on the event loop; must not raise."""

    counters: ConsumerCounters
    decryptor: Decryptor
    key_fetcher: KeyFetcher | None  # None: the consumer has no private keys

    def on_messages(self, segment_consumer: SegmentConsumer, messages: Sequence[Message]) -> None: ...

    def drop_messages(self, segment_consumer: SegmentConsumer) -> list[MessageId]:
        """The segment consumer is detached: drop its messages from the receive queue and return their ids."""

    def on_failed(self, segment_consumer: SegmentConsumer, error: ClientError) -> None:
        """It will not be attached again."""

    def on_unreadable(self, segment_consumer: SegmentConsumer, error: ClientError) -> None:
        """It cannot read a message, and delivers nothing more."""

    def on_end_reached(self, segment_consumer: SegmentConsumer) -> None:
        """The segment is sealed and everything in it is acknowledged."""

    def on_rewound(self, segment_consumer: SegmentConsumer) -> None:
        """It had reached its end, and its position was moved back."""

    def on_moved(self, segment_consumer: SegmentConsumer) -> None:
        """A seek moved its position while it was detached. Acks and nacks of earlier messages do not count."""


class SegmentConsumer:
    tracks_hand_outs = False  # `handed_out` is called for each message

    def __init__(
        self, spec: SegmentConsumerSpec, listener: SegmentListener, context: ClientContext, window: int
    ) -> None:
        self.spec = spec
        self._is_shared = spec.sub_type == pb.CommandSubscribe.Shared
        self._window = window
        self._listener = listener
        self.state = self._new_state()
        self.seek_number = 0  # grows when the position is moved; messages of lower numbers came before that
        self._seek_count: int | None = None  # of the broker, when it was attached last
        self.reconnect_loop: ReconnectLoop | None = None
        self.task: asyncio.Task[Any] | None = None  # runs the reconnect loop
        self.is_at_end = False
        self._is_moving = self._is_closed_by_move = False
        self.turn = 0  # how often it was detached; messages of an earlier turn no longer count as buffered
        self.acks_promptly = False
        self.grant: Grant | None = None  # the last assignment; sent only to brokers with Anabranch extensions
        self._hint = spec.hint
        self._counters = listener.counters
        fetcher = listener.key_fetcher
        self._key_wait = None if fetcher is None else KeyWait(fetcher.prepare, self._deliver)
        self._pool = context.pool
        self._clock = context.clock
        self._connection: Connection | None = None
        self._id = 0
        self._ack_timer: Timer | None = None
        self._ack_answers: set[asyncio.Future[Any]] = set()  # awaited from the broker
        self._chunk_timer: Timer | None = None

    def __str__(self) -> str:
        return self.spec.topic

    @property
    def topic(self) -> str:
        return self.spec.topic

    # -- for the reconnect loop

    async def serving(self, topic: str) -> Connection:
        """Try the broker that the layout names, once; then look the topic up."""
        hint, self._hint = self._hint, None
        url = "" if hint is None else self._pool.address_of(hint.url, hint.url_tls)
        return await (self._pool.connection(Address.parse(url)) if url else self._pool.serving(topic))

    async def attach(self, connection: Connection) -> None:
        await self._settle_acks(OWN_ACK_ANSWER_SECONDS if connection.has_extensions else ACK_ANSWER_SECONDS)
        self._id, self._connection = connection.new_id(), connection
        connection.listen_consumer(self._id, self)
        is_answered = False
        try:
            answer = await connection.ask(
                BaseCommand.SUBSCRIBE, self._pool.answer_timeout_s, **self._subscribe_fields()
            )
            is_answered = True
        except ConsumerFenced as error:
            is_answered = True
            if self.grant is not None and connection.has_extensions:
                raise
            raise plain(error) from error  # temporary: Pulsar's brokers send this while they reassign ranges
        except Refused:
            is_answered = True
            raise
        finally:
            if not is_answered:  # the broker may have created the consumer all the same
                self._send_close()
        try:
            await self._after_subscribe(connection)
        except BaseException:
            self._send_close()
            raise
        if not connection.is_usable:
            raise Unreachable("the connection broke while the consumer was opened")
        self._note_seeks(answer.seek_count if answer.HasField("seek_count") else None)
        self.perform(self.state.opened())

    async def _settle_acks(self, timeout_s: float) -> None:
        """Wait for answers to acks of the last attachment. After a seek the broker closes the consumer, and Pulsar's
        broker answers acks when they are durable, which may be later. An ack without an answer is sent again, which
        would undo the seek. A broken connection has no answers left."""
        if self._ack_answers:
            await asyncio.wait(self._ack_answers, timeout=timeout_s)
            self._ack_answers.clear()

    def _new_state(self) -> SegmentConsumerState:
        spec = self.spec
        return SegmentConsumerState(
            spec.identity,
            lane=spec.lane,
            partition=spec.partition,
            prefetch=self._window,
            is_shared=self._is_shared,
            decryptor=self._listener.decryptor,
        )

    def _note_seeks(self, seek_count: int | None) -> None:
        """A seek since the last attach voids all that a queue consumer holds, and its acks. Ordered consumers are
        assigned their segments again instead."""
        known, self._seek_count = self._seek_count, seek_count
        if self._is_shared and known is not None and seek_count is not None and known != seek_count:
            self.state = self._new_state()
            self.seek_number += 1
            self._listener.on_moved(self)

    def _subscribe_fields(self) -> dict[str, Any]:
        spec = self.spec
        metadata = managed(spec.properties) if spec.is_legacy else spec.properties
        where = pb.CommandSubscribe.Earliest if spec.from_earliest else pb.CommandSubscribe.Latest
        ours = self._connection is not None and self._connection.has_extensions
        grant = self.grant if ours else None
        incarnation = spec.incarnation if grant is None else grant.incarnation
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
            "incarnation": incarnation if ours and incarnation else None,
        }

    async def _after_subscribe(self, connection: Connection) -> None:
        """Hook: subscribed, and no permits are sent yet."""

    def lost(self) -> None:
        if self._connection is not None:
            self._connection.unlisten(self._id)
            self._connection = None
        if self._chunk_timer is not None:
            self._chunk_timer.cancel()
            self._chunk_timer = None
        if self._key_wait is not None:
            self._key_wait.clear()
        self.turn += 1
        self.state.lost(self._listener.drop_messages(self))

    def ended(self, error: ClientError) -> None:
        self._listener.on_failed(self, error)

    def on_command(self, kind: int, body: Any, payload: Bytes) -> None:
        if kind == BaseCommand.MESSAGE:
            if self.is_at_end:
                self.is_at_end = False
                self._listener.on_rewound(self)
            counters = self._counters
            counters.batches += 1
            counters.bytes += len(payload)
            if body.redelivery_count:
                counters.redelivered += 1
            counters.arrived_at = self._clock.monotonic()
            if self._key_wait is None:
                self._deliver(body, payload)
            else:
                self._key_wait.add(body, payload)
        elif kind == BaseCommand.CLOSE_CONSUMER:
            if self._is_moving:  # SEEK and UNSUBSCRIBE close it, and the owner decides what follows
                self._is_closed_by_move = True
            else:
                self._lost_connection(NotReady("the broker closed the consumer"))
        elif kind == BaseCommand.REACHED_END_OF_TOPIC:
            self.is_at_end = True
            self._listener.on_end_reached(self)

    def _deliver(self, body: Any, payload: Bytes) -> None:
        """A MESSAGE command, when the data key of its entry is known."""
        self.perform(self.state.delivered(body, payload, self._clock.monotonic()))
        if self.state.has_chunks and self._chunk_timer is None:
            self._chunk_timer = self._clock.call_later(CHUNK_SECONDS, self._expire_chunks)

    def _expire_chunks(self) -> None:
        """Incomplete chunked messages expire even if no other message arrives."""
        self._chunk_timer = None
        self.perform(self.state.expire(self._clock.monotonic()))
        if self.state.has_chunks:
            self._chunk_timer = self._clock.call_later(CHUNK_SECONDS, self._expire_chunks)

    def ends_at(self, last: Position | None) -> None:
        """The segment is sealed; `last` is its last entry, if known."""
        if last is not None:
            self.perform(self.state.ends_at((last.ledger, last.entry)))

    def on_detached(self, error: ClientError) -> None:
        self._lost_connection(error)

    def _lost_connection(self, error: ClientError) -> None:
        assert self.reconnect_loop is not None
        self.reconnect_loop.lose(error)

    def _send_close(self) -> None:
        if self._connection is not None and self._connection.is_usable:
            # The answer is not awaited; reading its error keeps asyncio from logging it.
            closing = self._connection.begin(BaseCommand.CLOSE_CONSUMER, CLOSE_TIMEOUT_SECONDS, consumer_id=self._id)
            closing.add_done_callback(lambda one: one.cancelled() or one.exception())

    # -- effects

    def perform(self, effects: Sequence[Effect]) -> None:
        connection = self._connection
        for effect in effects:
            match effect:
                case Deliver(messages):
                    self._counters.messages += len(messages)
                    if self.seek_number:
                        set_seek_number(messages, self.seek_number)
                    if isinstance(messages, DeliveredEntry):
                        self._counters.publish_time_ms = messages.contents.of.publish_time
                    self._listener.on_messages(self, messages)
                case Fail(error):
                    self._listener.on_unreadable(self, error)
                case _ if connection is None:
                    pass  # detached meanwhile: the broker starts from scratch at the next attach
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
                    self._ack_answers.add(answer)
                    answer.add_done_callback(self._ack_answers.discard)
                    answer.add_done_callback(partial(self._answered_ack, number, self.state))
                case Reject(identity, reason, problem):
                    self._counters.rejected += 1
                    place = f"{identity.ledgerId}:{identity.entryId}"
                    log.warning(
                        "skipping an entry that cannot be read",
                        extra={"topic": self.topic, "id": place, "reason": reason},
                    )
                    connection.write(
                        command(
                            BaseCommand.ACK,
                            consumer_id=self._id,
                            ack_type=pb.CommandAck.Individual,
                            message_id=[identity],
                            validation_error=problem,
                        )
                    )
                case Redeliver(ids):
                    if not connection.supports_message_nacks:
                        ids = [whole_entry(one) for one in ids]
                    connection.write(
                        command(BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES, consumer_id=self._id, message_ids=ids)
                    )

    def _answered_ack(self, number: int, state: SegmentConsumerState, answer: asyncio.Future[Any]) -> None:
        if state is self.state:
            self._confirmed(number, answer)
        elif not answer.cancelled():
            answer.exception()  # a seek voided the ack. Read, so that asyncio does not log it

    def _confirmed(self, number: int, answer: asyncio.Future[Any]) -> None:
        error = None if answer.cancelled() else answer.exception()
        if isinstance(error, TimedOut):
            if not self.state.awaits(number):
                return  # an ack of an earlier attachment; it was sent again, or will be
            self._send_close()  # the connection may live, and the broker would go on to deliver to this consumer
            self._lost_connection(error)  # the state sends the ack again after the next attach
        elif error is None and not answer.cancelled() and answer.result().HasField("error"):
            log.warning(
                "broker refused an ack",
                extra={
                    "topic": self.topic,
                    "subscription": self.spec.subscription,
                    "reason": answer.result().message,
                },
            )
            self.state.refused(number)
        elif error is None:
            self.state.confirmed(number)

    # -- for the consumer

    async def move(self, kind: int, timeout_s: float, **fields: Any) -> None:
        """SEEK or UNSUBSCRIBE. If it succeeds, the broker has closed this consumer, and the owner must drop it."""
        connection = self._connection
        if connection is None or not connection.is_usable:
            raise NotReady("the consumer is not attached at the moment")
        self._is_moving, self._is_closed_by_move, is_moved = True, False, False
        try:
            await connection.ask(kind, timeout_s, consumer_id=self._id, **fields)
            is_moved = True
        finally:
            self._is_moving = False
            if self._is_closed_by_move and not is_moved:
                self._lost_connection(NotReady("the broker closed the consumer"))

    def taken(self, count: int = 1) -> None:
        """Messages were handed out to the application."""
        if flow := self.state.taken(count):
            self.perform(flow)

    def announce(self, messages: Sequence[Message]) -> None:
        """The application gets these messages of one entry now. If its process dies with them, the broker counts that.
        Acks go first, because messages that are done do not count."""
        connection = self._connection
        if connection is not None and connection.supports_hand_outs:
            if self._ack_timer is not None:
                self.flush()
            at, partition = messages[0].id, self.spec.partition
            size = max(at.batch_size, 0) if at.batch_index >= 0 else 0
            bits = reduce(or_, (bit_of(message.id) for message in messages))
            identity = nack_of((at.ledger, at.entry), partition, bits, size)
            flow = command(BaseCommand.FLOW, consumer_id=self._id, messagePermits=0, handed_out=[identity])
            connection.write_now(flow)

    async def backlog(self, timeout_s: float) -> int:
        """Messages that the subscription has not acknowledged here, according to the broker."""
        connection = self._connection
        if connection is None:
            raise NotReady(f"{self.topic} is not attached, so its backlog is not known")
        answer = await connection.ask(BaseCommand.CONSUMER_STATS, timeout_s, consumer_id=self._id)
        if answer.HasField("error_code"):
            raise refusal(answer.error_code, answer.error_message)
        return int(answer.msgBacklog)

    def resize(self, window: int) -> None:
        self._window = window
        self.perform(self.state.resize(window))

    def ack(self, one: MessageId) -> None:
        self.ack_at(one, one.batch_index)

    def ack_at(self, at: Origin | MessageId, batch_index: int) -> None:
        self.state.ack_later(at, batch_index)
        if self._ack_timer is None:
            self._acked()

    def ack_entry(self, entry: DeliveredEntry) -> None:
        if self.state.ack_slots(entry.place, entry.contents.size, entry.wanted):
            self._acked()

    def ack_cumulative(self, one: MessageId) -> None:
        if self.state.ack_cumulative(one):
            self._acked()

    def handed_out(self, one: MessageId) -> None:
        """The application gets this message now."""

    def is_covered(self, last: MessageId) -> bool:
        """Everything that was handed out up to this message is acknowledged."""
        return self.state.is_covered(last)

    def redeliver(self, ones: Sequence[MessageId]) -> None:
        self.perform(self.state.release(ones))

    def stop(self) -> None:
        """Deliver nothing more; acks still count."""
        self.state.stop(self._listener.drop_messages(self))

    def discard(self) -> None:
        """The subscription's position was moved: deliver nothing more, and drop acks that were not sent."""
        self.stop()
        self.state.discard_acks()

    def set_prompt_acks(self, is_prompt: bool) -> None:
        """Send acks at once, or grouped again. Prompt acks let the controller assign the children sooner."""
        self.acks_promptly = is_prompt
        if is_prompt and self._ack_timer is not None:
            self.flush()

    def _acked(self) -> None:
        """There are acks to send. Acks within `ack_group_s` go in one command."""
        if self._ack_timer is None:
            delay_s = 0.0 if self.acks_promptly else self.spec.ack_group_s
            self._ack_timer = self._clock.call_later(delay_s, self.flush)

    def flush(self) -> None:
        if self._ack_timer is not None:
            self._ack_timer.cancel()
            self._ack_timer = None
        self.perform(self.state.flush())

    async def leave(self, timeout_s: float) -> None:
        """Close this segment only: send its acks, then stay detached."""
        await self.close(timeout_s)
        self.lost()

    async def close(self, timeout_s: float) -> None:
        """Send pending acks, then CLOSE_CONSUMER. The broker has handled the acks when it answers."""
        if self.reconnect_loop is not None and not self.state.is_clean and timeout_s > 0:
            try:
                await self.reconnect_loop.wait_first(timeout_s)  # there are acks to send, and it was never attached
            except ClientError as error:
                log.info("closing without sending acks", extra={"topic": self.topic, "reason": error.reason})
        if self.task is not None:
            self.task.cancel()  # otherwise it could attach while this closes
            await asyncio.wait([self.task])
        self.flush()
        connection = self._connection
        if connection is not None and connection.is_usable and timeout_s > 0:
            try:
                await connection.ask(BaseCommand.CLOSE_CONSUMER, timeout_s, consumer_id=self._id)
            except ClientError:
                pass  # the broker removes the consumer when the connection ends


def _pairs(values: Mapping[str, str]) -> list[pb.KeyValue] | None:
    return [pb.KeyValue(key=name, value=value) for name, value in values.items()] or None
