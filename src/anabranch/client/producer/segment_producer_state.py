"""The messages of a producer for one partition or segment, in their order. Never awaits, reads no clock: receipts,
disconnects and deadlines come in as calls, and effects go out.

    append --> open batch --seal--> waiting --Transmit--> in flight --receipt--> Stored
                                       ^----- lost, in the same order, as the same bytes -----'

Invariants: sequence ids only grow along the lane. No entry is transmitted before an earlier one. Every record gets one
outcome, Stored or Failed, and Stored records get it in order; or it is taken out of the lane, in order, and put into
other lanes (`take_unsent`, `take_all`, `put`). A held lane accepts records and transmits none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from anabranch.client.config import Batching
from anabranch.client.errors import ClientError, NotAllowed, Refused, TimedOut
from anabranch.client.messages.chunking import entries_of
from anabranch.client.messages.outgoing import NEVER_SENT, Entry, EntryFormat, OutgoingMessage
from anabranch.client.producer.bucket_entries import Division
from anabranch.client.producer.open_batch import OpenBatch, sealed
from anabranch.protocol.frames import MESSAGE_BYTES_MAX
from anabranch.protocol.server_errors import ServerError

IN_FLIGHT_BYTES_MAX = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Transmit:
    entry: Entry


@dataclass(frozen=True, slots=True)
class Stored:
    """The records of one entry are stored. A duplicate, which the broker dropped, has position (-1, -1)."""

    records: Sequence[OutgoingMessage]
    ledger: int
    position: int


@dataclass(frozen=True, slots=True)
class Failed:
    records: Sequence[OutgoingMessage]
    error: ClientError


@dataclass(frozen=True, slots=True)
class Arm:
    """Call `due(batch)` after the batching delay."""

    batch: int


@dataclass(frozen=True, slots=True)
class Reconnect:
    """Close the producer and attach again, because broker and lane disagree or the broker cannot serve it now."""

    reason: str


Effect = Transmit | Stored | Failed | Arm | Reconnect
NOTHING: Sequence[Effect] = ()


@dataclass(slots=True)
class Credits:
    """Flow control: how much a broker still accepts from one producer before it stores something.

    Brokers that announce `anabranch_extensions` grant a window when a producer is opened, and return credits with every
    receipt. As in the broker, an entry may be sent while any credit is left, so a large entry can overdraw the window.
    """

    bytes: int
    messages: int

    @property
    def is_open(self) -> bool:
        return self.bytes > 0 and self.messages > 0

    def take(self, size: int, messages: int) -> None:
        self.bytes -= size
        self.messages -= messages

    def give(self, size: int, messages: int) -> None:
        self.bytes += size
        self.messages += messages


class SegmentProducerState:
    def __init__(
        self, producer: str | EntryFormat, batching: Batching, *, in_flight_bytes_max: int = IN_FLIGHT_BYTES_MAX
    ) -> None:
        self._style = EntryFormat(producer) if isinstance(producer, str) else producer
        self._batching = batching
        self._in_flight_bytes_max = in_flight_bytes_max
        self._message_bytes_max = MESSAGE_BYTES_MAX
        self._batch_bytes_max = min(batching.max_bytes, MESSAGE_BYTES_MAX)
        self._is_open = False
        self.is_held = False
        self._dead: ClientError | None = None
        self.trouble: ClientError | None = None  # why it was detached last, since the last receipt
        self.division: Division | None = None  # set before the first message, for a segment with entry buckets
        self._batch: OpenBatch | None = None
        self._batch_number = 0
        self._waiting: deque[Entry] = deque()
        self._in_flight: deque[Entry] = deque()
        self._in_flight_bytes = 0
        self._credits: Credits | None = None  # None: the broker has no flow control

    # -- called by the application

    def append(self, record: OutgoingMessage) -> Sequence[Effect]:
        """Raises, without any change, when the record can never be sent."""
        if self._dead is not None:
            raise self._dead
        effects: list[Effect] = []
        self._add(record, effects)
        return self._transmit(effects) if self._waiting else effects

    def join(
        self, value: bytes, key: str | bytes | None, sequence_id: int, order: int, ticket: Any, size_bytes: int
    ) -> Sequence[Effect] | None:
        """Add a message with only value and key to the open batch; it takes the times of the batch. None, without any
        change, when there is no open batch or it is full: use `append` then."""
        batch = self._batch
        if batch is None or batch.size_bytes + size_bytes > self._batch_bytes_max or sequence_id <= batch.highest:
            return None
        batch.join(value, key, sequence_id, order, ticket, size_bytes)
        if len(batch.values) >= self._batching.max_messages or batch.size_bytes >= self._batching.max_bytes:
            self._seal(batch)
            return self._transmit([])
        return NOTHING

    def _add(self, record: OutgoingMessage, effects: list[Effect]) -> None:
        size = record.size_bytes
        limits = self._batching
        batch = self._batch
        if size > self._message_bytes_max:  # several consecutive entries
            entries = entries_of(record, self._style, self._message_bytes_max)
            if batch is not None:
                self._seal(batch)
            self._waiting.extend(entries)
            return
        if batch is not None and (
            batch.size_bytes + size > self._batch_bytes_max
            or record.sequence_id <= batch.highest  # repeated by the application: the broker deduplicates it
        ):
            self._seal(batch)
            batch = None
        if record.deliver_at_ms:  # delivery times belong to entries, so it is not batched
            if batch is not None:
                self._seal(batch)
            self._seal(OpenBatch(record))
            return
        is_first = batch is None
        if batch is None:
            batch = self._batch = OpenBatch(record)
        else:
            batch.add(record)
        if len(batch.values) >= limits.max_messages or batch.size_bytes >= limits.max_bytes:
            self._seal(batch)
        elif is_first:
            effects.append(Arm(self._batch_number))

    def append_entries(self, entries: Sequence[Entry]) -> Sequence[Effect]:
        """Append sealed entries."""
        if self._dead is not None:
            raise self._dead
        if self._batch is not None:
            self._seal(self._batch)
        self._waiting.extend(entries)
        return self._transmit([])

    @property
    def message_bytes_max(self) -> int:
        """The largest entry that the broker accepts."""
        return self._message_bytes_max

    @property
    def unanswered(self) -> list[Entry]:
        """Entries that were sent and have no receipt, in order."""
        return [*self._in_flight, *(entry for entry in self._waiting if entry.was_sent)]

    @property
    def dead(self) -> ClientError | None:
        """The error that every `append` raises; None while the lane works."""
        return self._dead

    def due(self, batch: int) -> Sequence[Effect]:
        """The delay of this batch has passed. No effect when it is sealed already."""
        return self.flush() if batch == self._batch_number else NOTHING

    def flush(self) -> Sequence[Effect]:
        if self._batch is None:
            return NOTHING
        self._seal(self._batch)
        return self._transmit([])

    # -- events from the broker

    def opened(self, message_bytes_max: int = MESSAGE_BYTES_MAX, credits: Credits | None = None) -> Sequence[Effect]:
        """The producer is attached: transmits everything without a receipt, in order."""
        assert not self._in_flight
        self._message_bytes_max = message_bytes_max
        self._batch_bytes_max = min(self._batching.max_bytes, message_bytes_max)
        self._credits = credits
        self._is_open = True
        if self.is_idle:
            self.trouble = None
        return self._transmit([])

    def lost(self) -> None:
        """The connection or producer is lost. Entries in flight have no known outcome and are sent again first."""
        self._is_open = False
        self._waiting.extendleft(reversed(self._in_flight))
        self._in_flight.clear()
        self._in_flight_bytes = 0

    def credited(self, size: int, messages: int) -> None:
        """The broker returned credits; call it before the `receipt` that carried them."""
        if self._credits is not None:
            self._credits.give(size, messages)

    def receipt(self, sequence_id: int, ledger: int, position: int) -> Sequence[Effect]:
        if not self._in_flight or sequence_id < self._in_flight[0].first:
            return NOTHING  # of an entry that expired
        if sequence_id > self._in_flight[0].first:
            return (Reconnect(f"receipt for {sequence_id} where {self._in_flight[0].first} is next"),)
        entry = self._pop_in_flight()
        self.trouble = None
        if not entry.records:  # a chunk: the message is stored with its last chunk
            return self._transmit([])
        return self._transmit([Stored(entry.records, ledger, position)])

    def late_receipt(self, sequence_id: int, ledger: int, position: int) -> Sequence[Effect]:
        """A receipt after `lost`, on a live connection: the broker stored the entry before it closed the producer."""
        if self._is_open or not self._waiting:
            return NOTHING
        entry = self._waiting[0]
        if not entry.was_sent or entry.first != sequence_id:
            return NOTHING
        self._waiting.popleft()
        return (Stored(entry.records, ledger, position),) if entry.records else NOTHING

    def refused(self, sequence_id: int, error: Refused) -> Sequence[Effect]:
        """SEND_ERROR: fails one entry, fails the lane, or is retryable."""
        if error.retryable:
            return (Reconnect(error.reason),)
        if not isinstance(error, NotAllowed) and error.server_error != ServerError.ChecksumError:
            return self.fail(error)
        doomed = [one for one in (*self._in_flight, *self._waiting) if sequence_id in (one.first, one.highest)]
        if not doomed:
            return NOTHING
        for entry in doomed:  # several only for the chunks of one message
            if entry in self._in_flight:
                self._in_flight.remove(entry)
                self._in_flight_bytes -= entry.size
                self.credited(entry.size, len(entry.records) or 1)  # no receipt will return them
            else:
                self._waiting.remove(entry)
        return self._transmit([Failed([record for entry in doomed for record in entry.records], error)])

    # -- deadlines and close

    def expire(self, now: float) -> Sequence[Effect]:
        """Fail messages past their deadline, the oldest first. Their receipts are ignored."""
        late: list[OutgoingMessage] = []
        for entries in (self._in_flight, self._waiting):
            while entries and entries[0].deadline <= now:
                entry = entries.popleft()
                late += entry.records
                if entries is self._in_flight:
                    self._in_flight_bytes -= entry.size
        if self._batch is not None and self._batch.deadline <= now:
            late += self._new_batch()
        if not late:
            return NOTHING
        return self._transmit([Failed(late, no_receipt("the message may be stored or not", self.trouble))])

    def next_deadline(self) -> float:
        """Of the oldest record; infinite when there is none."""
        if self._in_flight:
            return self._in_flight[0].deadline
        if self._waiting:
            return self._waiting[0].deadline
        return self._batch.deadline if self._batch is not None else float("inf")

    def oldest(self) -> float:
        """`order` of the oldest record without an outcome; infinite when there is none."""
        for entries in (self._in_flight, self._waiting):
            for entry in entries:
                if entry.records:  # only the last chunk of a message has records
                    return entry.records[0].order if entry.oldest < 0 else entry.oldest
        return self._batch[0].order if self._batch is not None else float("inf")

    def fail(self, error: ClientError) -> Sequence[Effect]:
        """Fails every record, in order, and every later `append`."""
        self._dead = self._dead or error
        self._is_open = False
        return self.abandon(error)

    def abandon(self, error: ClientError) -> Sequence[Effect]:
        """Fails every record, in order. Later ones are accepted."""
        records = [
            record for entries in (self._in_flight, self._waiting) for entry in entries for record in entry.records
        ]
        records += self._new_batch()
        self._in_flight.clear()
        self._waiting.clear()
        self._in_flight_bytes = 0
        return (Failed(records, error),) if records else NOTHING

    # -- moving messages

    def hold(self) -> None:
        """Transmit nothing until `release`, because earlier messages in other lanes have no outcome yet."""
        self.is_held = True

    def release(self) -> Sequence[Effect]:
        self.is_held = False
        return self._transmit([]) if self._waiting else NOTHING

    def take_unsent(self) -> list[OutgoingMessage]:
        """Remove the messages that were never sent, and return them in order."""
        kept, unsent = deque[Entry](), list[Entry]()
        for entry in self._waiting:  # parts of a batch stay together: ids in them lie below those that were sent
            (kept if entry.was_sent or (entry.is_continuation and not unsent) else unsent).append(entry)
        self._waiting = kept
        return self._taken(unsent)

    def _taken(self, entries: Iterable[Entry]) -> list[OutgoingMessage]:
        """Records of these entries and of the open batch, in order."""
        taken = [(entry.highest if entry.was_sent else NEVER_SENT, entry.records) for entry in entries]
        taken.append((NEVER_SENT, self._new_batch()))
        found = [record for _, records in taken for record in records]
        if self.division is None or self.division.keeps_batches_whole:
            return found
        for known_as, records in taken:
            for record in records:
                record.stored_under = (record.stored_under or {}) | {self.division.segment_id: known_as}
        return sorted(found, key=_order)

    def withdraw(self, orders: Collection[int]) -> Sequence[Effect]:
        """Remove unsent messages that another segment has stored, by `order`, as Stored."""
        unsent = (record for entry in self._waiting if not entry.was_sent for record in entry.records)
        if not any(record.order in orders for record in chain(unsent, self._batch or ())):
            return NOTHING
        found: list[OutgoingMessage] = []
        left: list[OutgoingMessage] = []
        for record in self.take_unsent():
            (found if record.order in orders else left).append(record)
        return [*([Stored(found, -1, -1)] if found else []), *self.put(left)]

    def take_all(self) -> list[OutgoingMessage]:
        """Remove all messages without an outcome, and return them in order."""
        self.lost()
        records = self._taken(self._waiting)
        self._waiting.clear()
        return records

    def settle(self, up_to: int) -> Sequence[Effect]:
        """The broker has stored everything up to this sequence id, with or without receipts."""
        effects: list[Effect] = []
        while self._in_flight and self._in_flight[0].highest <= up_to:
            if (entry := self._pop_in_flight()).records:
                effects.append(Stored(entry.records, -1, -1))
        return effects

    def put(self, records: Sequence[OutgoingMessage]) -> Sequence[Effect]:
        """Insert records of other lanes among the unsent ones, by `order`. No batch stays open, because they have
        waited already."""
        if self._dead is not None:
            return (Failed(records, self._dead),) if records else NOTHING
        effects: list[Effect] = []
        for record in sorted([*self.take_unsent(), *records], key=_order):
            try:
                self._add(record, effects)
            except ClientError as error:  # this broker has a smaller message size limit
                effects.append(Failed((record,), error))
        if self._batch is not None:
            self._seal(self._batch)
        return self._transmit([effect for effect in effects if isinstance(effect, Failed)])

    def drop_stored(self, is_stored: Callable[[OutgoingMessage], bool]) -> Sequence[Effect]:
        """Remove unsent messages that are stored in other segments, as Stored."""
        stored: list[OutgoingMessage] = []
        left: list[OutgoingMessage] = []
        for record in self.take_unsent():
            (stored if is_stored(record) else left).append(record)
            record.is_doubtful = False
        effects: list[Effect] = [Stored(stored, -1, -1)] if stored else []
        return [*effects, *self.put(left)]

    @property
    def is_idle(self) -> bool:
        return not (self._batch is not None or self._waiting or self._in_flight)

    # -- internals

    def _seal(self, batch: OpenBatch) -> None:
        if self.division is None:
            self._waiting.append(sealed(batch, self._style))
        else:
            self._waiting.extend(self.division.entries(batch, self._style))
        self._batch = None
        self._batch_number += 1

    def _new_batch(self) -> list[OutgoingMessage]:
        """Remove the open batch, and return its records."""
        batch, self._batch = self._batch, None
        self._batch_number += 1
        return [] if batch is None else list(batch)

    def _pop_in_flight(self) -> Entry:
        entry = self._in_flight.popleft()
        self._in_flight_bytes -= entry.size
        return entry

    def _transmit(self, effects: list[Effect]) -> Sequence[Effect]:
        # One entry may always be in flight, however large, because it would wait for ever otherwise.
        while (
            self._is_open
            and not self.is_held
            and self._waiting
            and (not self._in_flight or self._in_flight_bytes + self._waiting[0].size <= self._in_flight_bytes_max)
            and (self._credits is None or self._credits.is_open)
        ):
            entry = self._waiting.popleft()
            if self._credits is not None:
                self._credits.take(entry.size, len(entry.records) or 1)
            entry.was_sent = True
            self._in_flight.append(entry)
            self._in_flight_bytes += entry.size
            effects.append(Transmit(entry))
        return effects


def no_receipt(outcome: str, trouble: ClientError | None, what: str = "no receipt in time") -> TimedOut:
    """The error of a deadline, with the last reason why nothing could be sent."""
    if trouble is None:
        return TimedOut(f"{what}; {outcome}")
    error = TimedOut(f"{what}: {trouble.reason}; {outcome}")
    error.__cause__ = trouble
    return error


def _order(record: OutgoingMessage) -> int:
    return record.order
