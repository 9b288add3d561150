"""A producer lane: what goes to one partition or segment, in the order it was given. Never awaits, reads no clock;
receipts, disconnects and the passing of time come in as calls, and what is to be done comes back as effects.

    append --> open batch --seal--> waiting --Transmit--> in flight --receipt--> Stored
                                       ^----- lost, in the same order, as the same bytes -----'

Invariants: sequence ids only grow along the lane; nothing is transmitted while an earlier entry is not; every record
gets exactly one outcome, Stored or Failed, and Stored ones get theirs in order - or is taken out of the lane, in order,
to be put into others (`take_unsent`, `take_all`, `put`). A lane that is held takes records and transmits none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from anabranch.client.config import Batching
from anabranch.client.errors import ClientError, NotAllowed, Refused, TimedOut
from anabranch.client.messages.chunking import entries_of
from anabranch.client.messages.outgoing import Entry, EntryFormat, OutgoingMessage
from anabranch.client.producer.credits import Credits
from anabranch.client.producer.open_batch import OpenBatch, sealed
from anabranch.protocol.frames import MESSAGE_BYTES_MAX
from anabranch.protocol.server_errors import ServerError

IN_FLIGHT_BYTES_MAX = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Transmit:
    entry: Entry


@dataclass(frozen=True, slots=True)
class Stored:
    """The records of one entry are safe. A duplicate, which the broker dropped, has position (-1, -1)."""

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
    """Broker and lane disagree: give the producer up and attach again."""

    reason: str


Effect = Transmit | Stored | Failed | Arm | Reconnect
NOTHING: Sequence[Effect] = ()


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
        self._batch: OpenBatch | None = None
        self._batch_number = 0
        self._waiting: deque[Entry] = deque()
        self._in_flight: deque[Entry] = deque()
        self._in_flight_bytes = 0
        self._credits: Credits | None = None  # the broker's, where it gives any

    # -- what the application does

    def append(self, record: OutgoingMessage) -> Sequence[Effect]:
        """Raises, and takes nothing, when the record can never be sent."""
        if self._dead is not None:
            raise self._dead
        effects: list[Effect] = []
        self._add(record, effects)
        return self._transmit(effects) if self._waiting else effects

    def join(
        self, value: bytes, key: str | bytes | None, sequence_id: int, order: int, ticket: Any, size_bytes: int
    ) -> Sequence[Effect] | None:
        """A message that has nothing else to say of itself, into the batch that is open; its times are the batch's.
        None, and nothing is taken: there is no such batch, or it is full. `append` knows what to do then."""
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
        if size > self._message_bytes_max:  # several entries, which nothing may come between
            entries = entries_of(record, self._style, self._message_bytes_max)
            if batch is not None:
                self._seal(batch)
            self._waiting.extend(entries)
            return
        if batch is not None and (
            batch.size_bytes + size > self._batch_bytes_max
            or record.sequence_id <= batch.highest  # repeated by the application: for the broker to see
        ):
            self._seal(batch)
            batch = None
        if record.deliver_at_ms:  # has a time of its own, so an entry of its own
            if batch is not None:
                self._seal(batch)
            self._waiting.append(sealed((record,), self._style))
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
        """Entries that are sealed already, behind what is there."""
        if self._dead is not None:
            raise self._dead
        if self._batch is not None:
            self._seal(self._batch)
        self._waiting.extend(entries)
        return self._transmit([])

    @property
    def message_bytes_max(self) -> int:
        """What the broker takes in one entry."""
        return self._message_bytes_max

    @property
    def unanswered(self) -> list[Entry]:
        """What a broker has got and given no receipt for, in order."""
        return [*self._in_flight, *(entry for entry in self._waiting if entry.was_sent)]

    @property
    def dead(self) -> ClientError | None:
        """Why nothing can be appended any more."""
        return self._dead

    def due(self, batch: int) -> Sequence[Effect]:
        """The delay of this batch has passed; one that is sealed already is none of our business."""
        return self.flush() if batch == self._batch_number else NOTHING

    def flush(self) -> Sequence[Effect]:
        if self._batch is None:
            return NOTHING
        self._seal(self._batch)
        return self._transmit([])

    # -- what the broker does

    def opened(self, message_bytes_max: int = MESSAGE_BYTES_MAX, credits: Credits | None = None) -> Sequence[Effect]:
        """The broker has our producer: everything without a receipt goes out, in order."""
        assert not self._in_flight
        self._message_bytes_max = message_bytes_max
        self._batch_bytes_max = min(self._batching.max_bytes, message_bytes_max)
        self._credits = credits
        self._is_open = True
        return self._transmit([])

    def lost(self) -> None:
        """Connection or producer are gone; the outcome of what was in flight is unknown, so it goes first again."""
        self._is_open = False
        self._waiting.extendleft(reversed(self._in_flight))
        self._in_flight.clear()
        self._in_flight_bytes = 0

    def credited(self, size: int, messages: int) -> None:
        """The broker gave room back; call it before the `receipt` that came with it."""
        if self._credits is not None:
            self._credits.give(size, messages)

    def receipt(self, sequence_id: int, ledger: int, position: int) -> Sequence[Effect]:
        if not self._in_flight or sequence_id < self._in_flight[0].first:
            return NOTHING  # of an entry that was given up
        if sequence_id > self._in_flight[0].first:
            return (Reconnect(f"receipt for {sequence_id} where {self._in_flight[0].first} is next"),)
        entry = self._landed()
        if not entry.records:  # a chunk; the message is stored when its last one is
            return self._transmit([])
        return self._transmit([Stored(entry.records, ledger, position)])

    def late_receipt(self, sequence_id: int, ledger: int, position: int) -> Sequence[Effect]:
        """From a producer that was lost while its connection lives: the broker had stored this before it closed it."""
        if self._is_open or not self._waiting:
            return NOTHING
        entry = self._waiting[0]
        if not entry.was_sent or entry.first != sequence_id:
            return NOTHING
        self._waiting.popleft()
        return (Stored(entry.records, ledger, position),) if entry.records else NOTHING

    def refused(self, sequence_id: int, error: Refused) -> Sequence[Effect]:
        """SEND_ERROR: about one entry, about the topic, or about the moment."""
        if error.retryable:
            return (Reconnect(error.reason),)
        if not isinstance(error, NotAllowed) and error.server_error != ServerError.ChecksumError:
            return self.fail(error)
        doomed = [one for one in (*self._in_flight, *self._waiting) if sequence_id in (one.first, one.highest)]
        if not doomed:
            return NOTHING
        for entry in doomed:  # more than one only of a message in chunks, which stands or falls as a whole
            if entry in self._in_flight:
                self._in_flight.remove(entry)
                self._in_flight_bytes -= entry.size
                self.credited(entry.size, len(entry.records) or 1)  # no receipt will
            else:
                self._waiting.remove(entry)
        return self._transmit([Failed([record for entry in doomed for record in entry.records], error)])

    # -- time and the end

    def expire(self, now: float) -> Sequence[Effect]:
        """Give up what is past its deadline, the oldest first. Its receipt, should it still come, is ignored."""
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
        return self._transmit([Failed(late, TimedOut("no receipt in time; the message may be stored or not"))])

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
                if entry.records:  # all but the first chunks of a message
                    return entry.records[0].order
        return self._batch[0].order if self._batch is not None else float("inf")

    def fail(self, error: ClientError) -> Sequence[Effect]:
        """The end of this lane: every record fails, in order, and so does every later `append`."""
        self._dead = self._dead or error
        self._is_open = False
        records = [
            record for entries in (self._in_flight, self._waiting) for entry in entries for record in entry.records
        ]
        records += self._new_batch()
        self._in_flight.clear()
        self._waiting.clear()
        self._in_flight_bytes = 0
        return (Failed(records, error),) if records else NOTHING

    # -- handing over

    def hold(self) -> None:
        """Transmit nothing until `release`: what was sent before this elsewhere has no outcome yet."""
        self.is_held = True

    def release(self) -> Sequence[Effect]:
        self.is_held = False
        return self._transmit([]) if self._waiting else NOTHING

    def take_unsent(self) -> list[OutgoingMessage]:
        """What no broker has ever seen, in order; it is no longer in this lane."""
        unsent = [entry for entry in self._waiting if not entry.was_sent]
        self._waiting = deque(entry for entry in self._waiting if entry.was_sent)
        return [record for entry in unsent for record in entry.records] + self._new_batch()

    def withdraw(self, orders: Collection[int]) -> Sequence[Effect]:
        """Of what was not sent from here: these are stored elsewhere, as it turned out."""
        unsent = (record for entry in self._waiting if not entry.was_sent for record in entry.records)
        if not any(record.order in orders for record in chain(unsent, self._batch or ())):
            return NOTHING
        found: list[OutgoingMessage] = []
        left: list[OutgoingMessage] = []
        for record in self.take_unsent():
            (found if record.order in orders else left).append(record)
        return [Stored(found, -1, -1), *self.put(left)]

    def take_all(self) -> list[OutgoingMessage]:
        """Everything without an outcome, in order; the lane is empty then."""
        self.lost()
        records = [record for entry in self._waiting for record in entry.records] + self._new_batch()
        self._waiting.clear()
        return records

    def settle(self, up_to: int) -> Sequence[Effect]:
        """The broker says that it has everything up to this sequence id, receipts or not."""
        effects: list[Effect] = []
        while self._in_flight and self._in_flight[0].highest <= up_to:
            if (entry := self._landed()).records:
                effects.append(Stored(entry.records, -1, -1))
        return effects

    def put(self, records: Sequence[OutgoingMessage]) -> Sequence[Effect]:
        """Records of other lanes, put where they belong among what this one has not sent yet. They have waited: no
        batch is kept open for more."""
        if self._dead is not None:
            return (Failed(records, self._dead),) if records else NOTHING
        effects: list[Effect] = []
        for record in sorted([*self.take_unsent(), *records], key=_order):
            try:
                self._add(record, effects)
            except ClientError as error:  # this broker takes less at once than the one before
                effects.append(Failed((record,), error))
        if self._batch is not None:
            self._seal(self._batch)
        return self._transmit([effect for effect in effects if isinstance(effect, Failed)])

    def drop_stored(self, is_stored: Callable[[OutgoingMessage], bool]) -> Sequence[Effect]:
        """Of what was not sent here: which of it is stored elsewhere and need not be."""
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

    # -- inside

    def _seal(self, batch: OpenBatch) -> None:
        self._waiting.append(sealed(batch, self._style))
        self._batch = None
        self._batch_number += 1

    def _new_batch(self) -> list[OutgoingMessage]:
        """The open batch is none any more; what was in it."""
        batch, self._batch = self._batch, None
        self._batch_number += 1
        return [] if batch is None else list(batch)

    def _landed(self) -> Entry:
        entry = self._in_flight.popleft()
        self._in_flight_bytes -= entry.size
        return entry

    def _transmit(self, effects: list[Effect]) -> Sequence[Effect]:
        # One entry may always go, however large: otherwise it would wait for ever.
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


def _order(record: OutgoingMessage) -> int:
    return record.order
