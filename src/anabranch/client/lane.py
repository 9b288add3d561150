"""A producer lane: what goes to one partition (later: one segment), in the order it was given. Never awaits, reads no
clock; receipts, disconnects and the passing of time come in as calls, and what is to be done comes back as effects.

    append --> open batch --seal--> waiting --Transmit--> in flight --receipt--> Stored
                                       ^----- lost, in the same order, as the same bytes -----'

Invariants: sequence ids only grow along the lane; nothing is transmitted while an earlier entry is not; every record
gets exactly one outcome, Stored or Failed, and Stored ones get theirs in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from anabranch.client.chunking import entries_of
from anabranch.client.credits import Credits
from anabranch.client.errors import ClientError, NotAllowed, Refused, TimedOut
from anabranch.client.policies import Batching
from anabranch.client.record import Entry, Record, Style, sealed
from anabranch.protocol.frames import MESSAGE_BYTES_MAX
from anabranch.protocol.server_errors import ServerError

IN_FLIGHT_BYTES_MAX = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Transmit:
    entry: Entry


@dataclass(frozen=True, slots=True)
class Stored:
    """The records of one entry are safe. A duplicate, which the broker dropped, has position (-1, -1)."""

    records: Sequence[Record]
    ledger: int
    position: int


@dataclass(frozen=True, slots=True)
class Failed:
    records: Sequence[Record]
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


class Lane:
    def __init__(
        self, producer: str | Style, batching: Batching, *, in_flight_bytes_max: int = IN_FLIGHT_BYTES_MAX
    ) -> None:
        self._style = Style(producer) if isinstance(producer, str) else producer
        self._batching = batching
        self._in_flight_bytes_max = in_flight_bytes_max
        self._message_bytes_max = MESSAGE_BYTES_MAX
        self._is_open = False
        self._dead: ClientError | None = None
        self._batch: list[Record] = []
        self._batch_bytes = 0
        self._batch_number = 0
        self._waiting: deque[Entry] = deque()
        self._in_flight: deque[Entry] = deque()
        self._in_flight_bytes = 0
        self._credits: Credits | None = None  # the broker's, where it gives any

    # -- what the application does

    def append(self, record: Record) -> Sequence[Effect]:
        """Raises, and takes nothing, when the record can never be sent."""
        if self._dead is not None:
            raise self._dead
        size = record.size_bytes
        limits = self._batching
        effects: list[Effect] = []
        batch = self._batch
        if size > self._message_bytes_max:  # several entries, which nothing may come between
            entries = entries_of(record, self._style, self._message_bytes_max)
            if batch:
                self._seal()
            self._waiting.extend(entries)
            return self._transmit(effects)
        if batch and (self._batch_bytes + size > min(limits.max_bytes, self._message_bytes_max)):
            self._seal()
            batch = self._batch
        if record.deliver_at_ms:  # has a time of its own, so an entry of its own
            if batch:
                self._seal()
            self._waiting.append(sealed((record,), self._style))
            return self._transmit(effects)
        batch.append(record)
        self._batch_bytes += size
        if len(batch) >= limits.max_messages or self._batch_bytes >= limits.max_bytes:
            self._seal()
        elif len(batch) == 1:
            effects.append(Arm(self._batch_number))
        return self._transmit(effects) if self._waiting else effects

    def due(self, batch: int) -> Sequence[Effect]:
        """The delay of this batch has passed; one that is sealed already is none of our business."""
        return self.flush() if batch == self._batch_number else NOTHING

    def flush(self) -> Sequence[Effect]:
        if not self._batch:
            return NOTHING
        self._seal()
        return self._transmit([])

    # -- what the broker does

    def opened(self, message_bytes_max: int = MESSAGE_BYTES_MAX, credits: Credits | None = None) -> Sequence[Effect]:
        """The broker has our producer: everything without a receipt goes out, in order."""
        assert not self._in_flight
        self._message_bytes_max = message_bytes_max
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
                self._in_flight_bytes -= len(entry.data)
                self.credited(len(entry.data), len(entry.records) or 1)  # no receipt will
            else:
                self._waiting.remove(entry)
        return self._transmit([Failed([record for entry in doomed for record in entry.records], error)])

    # -- time and the end

    def expire(self, now: float) -> Sequence[Effect]:
        """Give up what is past its deadline, the oldest first. Its receipt, should it still come, is ignored."""
        late: list[Record] = []
        for entries in (self._in_flight, self._waiting):
            while entries and entries[0].deadline <= now:
                entry = entries.popleft()
                late += entry.records
                if entries is self._in_flight:
                    self._in_flight_bytes -= len(entry.data)
        if self._batch and self._batch[0].deadline <= now:
            late += self._batch
            self._new_batch()
        if not late:
            return NOTHING
        return self._transmit([Failed(late, TimedOut("no receipt in time; the message may be stored or not"))])

    def next_deadline(self) -> float:
        """Of the oldest record; infinite when there is none."""
        if self._in_flight:
            return self._in_flight[0].deadline
        if self._waiting:
            return self._waiting[0].deadline
        return self._batch[0].deadline if self._batch else float("inf")

    def oldest(self) -> float:
        """Sequence id of the oldest record without an outcome; infinite when there is none."""
        for entries in (self._in_flight, self._waiting):
            if entries:
                return entries[0].first
        return self._batch[0].sequence_id if self._batch else float("inf")

    def fail(self, error: ClientError) -> Sequence[Effect]:
        """The end of this lane: every record fails, in order, and so does every later `append`."""
        self._dead = self._dead or error
        self._is_open = False
        records = [
            record for entries in (self._in_flight, self._waiting) for entry in entries for record in entry.records
        ]
        records += self._batch
        self._in_flight.clear()
        self._waiting.clear()
        self._in_flight_bytes = 0
        self._new_batch()
        return (Failed(records, error),) if records else NOTHING

    @property
    def is_idle(self) -> bool:
        return not (self._batch or self._waiting or self._in_flight)

    # -- inside

    def _seal(self) -> None:
        self._waiting.append(sealed(self._batch, self._style))
        self._new_batch()

    def _new_batch(self) -> None:
        self._batch, self._batch_bytes = [], 0
        self._batch_number += 1

    def _landed(self) -> Entry:
        entry = self._in_flight.popleft()
        self._in_flight_bytes -= len(entry.data)
        return entry

    def _transmit(self, effects: list[Effect]) -> Sequence[Effect]:
        # One entry may always go, however large: otherwise it would wait for ever.
        while (
            self._is_open
            and self._waiting
            and (not self._in_flight or self._in_flight_bytes + len(self._waiting[0].data) <= self._in_flight_bytes_max)
            and (self._credits is None or self._credits.is_open)
        ):
            entry = self._waiting.popleft()
            if self._credits is not None:
                self._credits.take(len(entry.data), len(entry.records) or 1)
            self._in_flight.append(entry)
            self._in_flight_bytes += len(entry.data)
            effects.append(Transmit(entry))
        return effects
