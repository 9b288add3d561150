"""One producer on the wire: attaches to a segment, sends the entries of its lane, and reports what it receives.

`SegmentProducerState` decides what an outcome means for the lane, and `ProducerState` what it means for other lanes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from anabranch.client.config import AccessMode, seconds
from anabranch.client.connection.address import Address
from anabranch.client.connection.connection import Connection
from anabranch.client.connection.reconnect import ReconnectLoop
from anabranch.client.context import ClientContext
from anabranch.client.errors import (
    ClientError,
    NotReady,
    ProducerBusy,
    Refused,
    TimedOut,
    TopicNotFound,
    TopicTerminated,
    Unreachable,
    refusal,
)
from anabranch.client.messages.outgoing import EntryFormat, OutgoingMessage
from anabranch.client.producer.ancestry import Ancestry
from anabranch.client.producer.late_receipts import LateReceipt, LateReceiptListener, LateReceiptListeners
from anabranch.client.producer.options import ProducerOptions
from anabranch.client.producer.producer_effects import ProducerEffect, SegmentLane
from anabranch.client.producer.producer_state import ProducerState
from anabranch.client.producer.segment_producer_state import Arm, Credits, Effect, Failed, Reconnect, Stored, Transmit
from anabranch.client.schema.schema_resolver import schema_field
from anabranch.client.topic.topic_view import BrokerUrls, read_brokers, read_segment
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.commands import BaseCommand, signed
from anabranch.protocol.entry import Bytes
from anabranch.protocol.managed_clients import managed
from anabranch.runtime.clock import Timer
from anabranch.runtime.tasks import TaskOwner

CLOSE_SECONDS = 5.0


_ACCESS = {
    AccessMode.SHARED: None,  # the default of brokers
    AccessMode.EXCLUSIVE: pb.Exclusive,
    AccessMode.WAIT_FOR_EXCLUSIVE: pb.WaitForExclusive,
    AccessMode.EXCLUSIVE_WITH_FENCING: pb.ExclusiveWithFencing,
}


DOUBT_SECONDS = 5.0
"""A partition takes nothing more when its topic is migrated, or when it was terminated. It counts as terminated
if no layout with a successor, or a plan for one, has come for this long."""


class SegmentProducerListener(Protocol):
    """Receives what a segment producer reports. Called on the event loop; must not raise."""

    style: EntryFormat
    late_listeners: LateReceiptListeners  # of lanes that are dropped: their messages may wait in other lanes

    def perform(self, effects: Sequence[ProducerEffect]) -> None: ...

    def on_stored(self, records: Sequence[OutgoingMessage], lane: int, ledger: int, position: int) -> None: ...

    def on_failed(self, records: Sequence[OutgoingMessage], error: ClientError) -> None: ...

    def on_child_brokers(self, brokers: Mapping[int, BrokerUrls]) -> None:
        """The segment is sealed, and these brokers serve its children."""

    def on_late_receipts(self, track: SegmentLane, late: Sequence[LateReceipt]) -> None:
        """Receipts of a producer that is closed."""

    def on_opened(self) -> None: ...

    @property
    def is_change_planned(self) -> bool:
        """The layout announces successors of active segments."""

    def on_ended(self, track: SegmentLane, error: ClientError) -> None:
        """It can never be attached: missing rights, wrong options, or a regular topic that was terminated."""


class SegmentProducer:
    def __init__(
        self,
        track: SegmentLane,
        topic: str,
        number: int,
        listener: SegmentProducerListener,
        state: ProducerState,
        options: ProducerOptions,
        context: ClientContext,
        tasks: TaskOwner,
        hint: BrokerUrls | None,
    ) -> None:
        self.topic = topic
        self.track = track
        self.lane = track.lane
        self.last_sequence_id = -1
        self._number = number  # in message ids
        self._listener = listener
        self._state = state
        self._options = options
        self._context = context
        self._hint = hint
        self._is_regular = track.segment.legacy_topic_name is not None
        self._tasks = tasks
        self._task: asyncio.Task[Any] | None = None
        self._attachment: ReconnectLoop | None = None
        self._connection: Connection | None = None
        self._id = 0
        self._late_listener: LateReceiptListener | None = None  # of the previous producer, until there is a new one
        self._epoch = 0
        self._topic_epoch: int | None = None  # of exclusive producers; a later producer has a higher one
        self._delay_s = seconds(options.batching.max_delay)
        self._batch_timer: Timer | None = None
        self._is_patient = False
        self._is_over = False
        self._doubt: Timer | None = None  # runs from the refusal of a partition until its successors are known

    @property
    def last_error(self) -> ClientError | None:
        return None if self._attachment is None else self._attachment.last_error

    def start(self, *, is_patient: bool) -> None:
        """Attach, and stay attached. `is_patient`: the application does not wait for the first answer, so a segment
        that does not exist yet, or a name that is still in use, is retried."""
        self._is_patient = is_patient
        forgives: tuple[type[ClientError], ...] = (TopicNotFound, ProducerBusy) if is_patient else ()
        if not self._is_regular:  # the layout names it: it exists, or will, or a later layout replaces it
            forgives = (*forgives, TopicNotFound)
        context = self._context
        self._attachment = ReconnectLoop(self, self, context.backoff, context.clock, context.chance, forgives)
        self._task = self._tasks.spawn(self._attachment.run(), self.topic)

    # -- called by the ReconnectLoop

    async def serving(self, topic: str) -> Connection:
        """The broker that the layout or a seal named is tried first, and once."""
        pool, hint = self._context.pool, self._hint
        self._hint = None
        try:
            url = "" if hint is None else pool.address_of(hint.url, hint.url_tls)
            return await (pool.connection(Address.parse(url)) if url else pool.serving(topic))
        except TopicNotFound:
            self._listener.perform(self._state.missing(self.track))
            raise

    async def attach(self, connection: Connection) -> None:
        self._id, self._connection = connection.new_id(), connection
        connection.listen_producer(self._id, self)
        self._state.opening(self.track)
        is_answered = False
        try:
            answer = await connection.ask(BaseCommand.PRODUCER, self._patience_s, **self._wanted())
            is_answered = True
        except Refused as error:
            is_answered = True
            if self._is_patient and type(error) is Refused:  # a temporary problem of the broker
                raise NotReady(error.reason) from error
            if isinstance(error, TopicNotFound):
                self._listener.perform(self._state.missing(self.track))
            raise
        finally:
            if not is_answered:  # the broker may have opened it
                self._send_close()
        self._epoch += 1
        if not connection.is_usable:
            raise Unreachable("the connection broke while the producer was opened")
        ancestry = None
        if connection.has_extensions and not self._is_regular:
            ancestry = Ancestry.read(answer.ancestors, self._options.partition_hash)
            self.last_sequence_id = max(self.last_sequence_id, ancestry.highest)
        self.last_sequence_id = max(self.last_sequence_id, answer.last_sequence_id)
        if answer.HasField("topic_epoch"):
            self._topic_epoch = answer.topic_epoch
        if self._options.schema is not None:
            self._listener.style.schema_version = answer.schema_version
        self._stop_late_listener()
        credits = Credits(answer.credit_bytes, answer.credit_messages) if answer.HasField("credit_bytes") else None
        self._listener.perform(self._state.opened(self.track, connection.message_bytes_max, credits, ancestry))
        self._listener.on_opened()

    def _wanted(self) -> dict[str, Any]:
        options = self._options
        metadata = managed(options.properties) if self._is_regular else options.properties or {}
        return {
            "topic": self.topic,
            "producer_id": self._id,
            "producer_name": options.name,
            "user_provided_producer_name": options.is_name_given,
            "epoch": self._epoch,
            "encrypted": True if options.encryption is not None else None,
            "metadata": _pairs(metadata),
            "schema": schema_field(options.schema),
            "producer_access_mode": _ACCESS[options.access],
            "topic_epoch": self._topic_epoch,
        }

    @property
    def _patience_s(self) -> float:
        """With WAIT_FOR_EXCLUSIVE the broker answers only when the producer has become exclusive."""
        is_waiting = self._options.access is AccessMode.WAIT_FOR_EXCLUSIVE
        return self._options.operation_timeout_s if is_waiting else self._context.pool.answer_timeout_s

    def lost(self) -> None:
        self.lane.trouble = self.last_error
        self._listen_for_late_receipts()
        self._listener.perform(self._state.lost(self.track))

    def ended(self, error: ClientError) -> None:
        if self._is_sealed(error):
            self._listener.perform(self._state.terminated(self.track))
        else:
            self._listener.on_ended(self.track, error)

    def on_command(self, kind: int, body: Any, payload: Bytes) -> None:
        if kind == BaseCommand.SEND_RECEIPT:
            identity = body.message_id
            if body.credit_bytes or body.credit_messages:
                self.lane.credited(body.credit_bytes, body.credit_messages)
            self.do(self.lane.receipt(body.sequence_id, signed(identity.ledgerId), signed(identity.entryId)))
        elif kind == BaseCommand.SEND_ERROR:
            error = refusal(body.error, body.message)
            if self._is_sealed(error):
                self._listener.perform(self._state.refused(self.track))
            else:
                self.do(self.lane.refused(body.sequence_id, error))
        elif kind == BaseCommand.SEGMENT_SEALED:
            children = [read_segment(one) for one in body.children]
            self._listener.on_child_brokers(read_brokers(body.child_brokers))
            self._end()
            self._listener.perform(self._state.sealed(self.track, children, body.last_sequence_id))
        elif kind == BaseCommand.CLOSE_PRODUCER and not self.track.is_closing:  # else its answer follows
            reason = refusal(body.error, body.message) if body.HasField("error") else None
            if reason is None or not reason.retryable:
                reason = NotReady("the broker closed the producer" if reason is None else reason.reason)
            self._lose(reason, is_urgent=True)

    def _is_sealed(self, error: ClientError) -> bool:
        """Whether messages wait for a successor of the segment instead of failing."""
        if not isinstance(error, TopicTerminated):
            return False
        if not self._is_regular:
            return True
        if self._connection is None or not self._connection.has_extensions:
            return False  # Apache Pulsar announces no migration
        if self._doubt is None:
            self._doubt = self._context.clock.call_later(DOUBT_SECONDS, partial(self._give_up, error))
        return True

    def _give_up(self, error: ClientError) -> None:
        self._doubt = None
        if self._listener.is_change_planned:
            self._doubt = self._context.clock.call_later(DOUBT_SECONDS, partial(self._give_up, error))
        else:
            self._listener.on_ended(self.track, error)

    def on_detached(self, error: ClientError) -> None:
        self._lose(error)

    def _lose(self, error: ClientError, *, is_urgent: bool = False) -> None:
        if self._attachment is not None:
            self._attachment.lose(error, is_urgent=is_urgent)

    # -- effects

    def do(self, effects: Sequence[Effect]) -> None:
        is_less = False
        for effect in effects:
            match effect:
                case Transmit(entry):
                    if self._connection is not None:
                        self._connection.write(*entry.frame(self._id))
                case Stored(records, ledger, position):
                    self._listener.on_stored(records, self._number, ledger, position)
                    is_less = True
                case Failed(records, error):
                    self._listener.on_failed(records, error)
                    is_less = True
                case Arm(batch):
                    self._batch_timer = self._context.clock.call_later(self._delay_s, partial(self._due, batch))
                case Reconnect(reason):
                    self._send_close()
                    self._lose(NotReady(reason))
        if is_less and self._state.is_changing:
            self._listener.perform(self._state.settled(self.track))

    def _due(self, batch: int) -> None:
        self.do(self.lane.due(batch))

    def reopen(self) -> None:
        """Attach again, at once."""
        self._send_close()
        self._lose(NotReady("the ancestors of the segment are read again"), is_urgent=True)

    def request_close(self) -> None:
        """No entry may be sent after it. The broker answers it after all entries that were sent before."""
        connection = self._connection
        if connection is None:
            return
        timeout_s = self._context.pool.answer_timeout_s
        answer = connection.begin(BaseCommand.CLOSE_PRODUCER, timeout_s, producer_id=self._id)
        answer.add_done_callback(partial(self._on_close_answered, connection, self._id))

    def _on_close_answered(self, connection: Connection, producer_id: int, answer: asyncio.Future[Any]) -> None:
        error = None if answer.cancelled() else answer.exception()
        if answer.cancelled() or self._is_over or (connection, producer_id) != (self._connection, self._id):
            return
        if error is None:
            self._listen_for_late_receipts()
            self._end()
            self._listener.perform(self._state.close_confirmed(self.track))
        elif isinstance(error, ClientError):
            self._lose(error if isinstance(error, TimedOut) else NotReady(str(error)))

    # -- the end

    def _send_close(self) -> None:
        if self._connection is not None and self._connection.is_usable:
            # The answer is not awaited; reading its error avoids a warning of asyncio.
            answer = self._connection.begin(BaseCommand.CLOSE_PRODUCER, CLOSE_SECONDS, producer_id=self._id)
            answer.add_done_callback(lambda one: one.cancelled() or one.exception())

    def _unlisten(self) -> None:
        if self._connection is not None:
            self._connection.unlisten(self._id)
            self._connection = None

    def _listen_for_late_receipts(self) -> None:
        """The producer is closed or will be, and entries without a receipt may still receive one."""
        connection, entries = self._connection, self.lane.unanswered
        self._unlisten()
        if connection is not None and connection.is_usable and self.track.is_attached and entries:
            self._stop_late_listener()
            self._late_listener = LateReceiptListener(
                connection, self._id, entries, partial(self._listener.on_late_receipts, self.track)
            )

    def _stop_late_listener(self) -> None:
        if self._late_listener is not None:
            self._late_listener.close()
            self._late_listener = None

    def _end(self) -> None:
        """The broker has closed the producer; it is not opened again."""
        self._is_over = True
        if self._late_listener is not None:
            self._listener.late_listeners.keep(self._late_listener)
            self._late_listener = None
        if self._task is not None:
            self._task.cancel()
        self._unlisten()

    def drop(self) -> None:
        """Close the producer without waiting for the answer."""
        self._cancel_timers()
        if not self._is_over:
            self._send_close()
            self._end()

    def _cancel_timers(self) -> None:
        for timer in (self._batch_timer, self._doubt):
            if timer is not None:
                timer.cancel()

    async def close(self, timeout_s: float) -> None:
        """Waits at most `timeout_s` for the broker to confirm the close."""
        self._cancel_timers()
        connection = self._connection
        try:
            if connection is not None and connection.is_usable and not self._is_over:
                await connection.ask(BaseCommand.CLOSE_PRODUCER, timeout_s, producer_id=self._id)
        except ClientError:
            pass  # the broker removes the producer when the connection closes
        finally:
            self._end()


def _pairs(values: Mapping[str, str]) -> list[dict[str, str]] | None:
    return [{"key": name, "value": value} for name, value in values.items()] or None
