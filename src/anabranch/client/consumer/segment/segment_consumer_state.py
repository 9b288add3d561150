"""State machine of a consumer of one partition or segment: entries, permits, messages held and acknowledged.

An entry is a batch; the application sees messages. Each message of a known entry is in one of three states:

| state  | meaning                                              | a redelivery of it is         |
|--------|------------------------------------------------------|-------------------------------|
| open   | the application does not have it                     | delivered                     |
| held   | buffered, or handed out and not yet acknowledged     | dropped, because it is there  |
| acked  | acknowledged, confirmed by the broker or not         | dropped, and acked again      |

An application therefore sees a message twice only after a `nack`, or after another consumer had it. This holds across
reconnects, because acks that the broker has not confirmed are sent again.

Flow control: `_permits` is what the broker may still send, `_buffered` what waits for the application. The sum stays
within the window, which may change while messages flow. A batch may exceed it once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from anabranch.client.consumer.segment import batch_bits
from anabranch.client.consumer.segment.batch_bits import ack_of, all_of, bit_of, bits_of, covered, nack_of, wire_of
from anabranch.client.consumer.segment.chunk_tracker import ChunkTracker, IncompleteMessage, Place, is_chunk
from anabranch.client.consumer.segment.effects import Ack, Deliver, Effect, Fail, Flow, Redeliver, Reject
from anabranch.client.encryption.decryptor import WITHOUT_KEYS, Decryptor
from anabranch.client.errors import DecryptionFailed
from anabranch.client.messages.compression import unpacked
from anabranch.client.messages.entry_contents import DeliveredEntry, EntryContents
from anabranch.client.messages.message import Message, MessageId, Origin
from anabranch.model.errors import Error
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.commands import signed
from anabranch.protocol.entry import Bytes

QUEUED_ACKS_MAX = 1000
CHUNK_TRIES_MAX = 10  # deliveries after which an incomplete chunked message is rejected


@dataclass(slots=True)
class _Held:
    """One entry with messages that are held or not confirmed. Bits stand for messages."""

    size: int  # 0: not a batch
    unacked: int
    held: int = 0
    ack_number: int = 0  # the last ack of it that was sent


class SegmentConsumerState:
    def __init__(
        self,
        topic: str,
        *,
        lane: int = -1,
        partition: int | None = None,
        prefetch: int = 1000,
        is_shared: bool = False,
        decryptor: Decryptor = WITHOUT_KEYS,
    ) -> None:
        """`partition` of the topic on the wire, if it differs from the lane. `is_shared`: other consumers share the
        subscription, so they may get chunks of a message."""
        assert prefetch >= 1
        self._topic = topic
        self._lane = lane
        self._partition = lane if partition is None else partition
        self._window = prefetch
        self._is_open = False
        self._is_stopped = False
        self._permits = 0
        self._buffered = 0
        self._entries: dict[Place, _Held] = {}
        self._unsent: dict[Place, None] = {}  # entries with acks to send, in this order
        self._unsent_cumulative: pb.MessageIdData | None = None  # cumulative ack to send
        self._floor: tuple[int, int, int] | None = None  # everything up to here is acknowledged cumulatively
        self._is_floor_whole = False  # the floor is the end of an entry
        self._covered: tuple[int, int, int] | None = None  # the application's farthest cumulative ack
        self._unconfirmed: dict[int, Sequence[Place]] = {}  # acks sent: number to places
        self._unconfirmed_cumulative: dict[int, pb.MessageIdData] = {}
        self._last_ack = 0
        self._holds_acks = False  # acks are kept until ancestors of the segment are acknowledged
        self._is_refused = False  # the broker refused the last cumulative ack
        self._received: Place | None = None  # the last entry that the broker sent on this connection
        self._is_shared = is_shared
        self._decryptor = decryptor
        self._chunks = ChunkTracker(is_shared=is_shared)
        self._withheld: MessageId | None = None  # cumulative ack of the application of which the broker got less
        self._queued_acks: list[tuple[Origin | MessageId, int]] = []  # not looked at yet; see `_apply_queued_acks`

    # -- events of the broker

    def opened(self) -> list[Effect]:
        """Subscribed: the broker counts permits from 0. Acks that were not confirmed until now are sent again."""
        assert not self._is_open
        self._is_open = True
        self._permits = 0
        for places in self._unconfirmed.values():
            self._unsent.update((place, None) for place in places if place in self._entries)
        self._unconfirmed.clear()
        if self._unsent_cumulative is None and self._unconfirmed_cumulative:
            self._unsent_cumulative = self._unconfirmed_cumulative[max(self._unconfirmed_cumulative)]
        self._unconfirmed_cumulative.clear()
        if self._unsent_cumulative is None and self._withheld is None and self._is_floor_whole:
            self._floor = None  # the broker has the ack; anything delivered from below it was requested by a seek
        return [*self.flush(), *self._flow()]

    def lost(self, buffered: Iterable[MessageId]) -> None:
        """Detached. `buffered` was never handed out: the broker sends it again, to this or another consumer.

        A broker that closes the consumer may still answer acks, and an ack that it has must not be sent again: after a
        seek it would undo the seek.
        """
        if self._queued_acks:
            self._apply_queued_acks()
        self._is_open, self._is_refused, self._received = False, False, None
        self._buffered = 0
        self._chunks.clear()
        self._reopen(buffered)

    def delivered(self, body: Any, payload: Bytes, now: float = 0.0) -> list[Effect]:
        """A MESSAGE command and its entry. `now` is used for the expiry of chunked messages."""
        if self._queued_acks:
            self._apply_queued_acks()
        if self._is_stopped:
            return []
        identity = body.message_id
        self._received = place = (signed(identity.ledgerId), signed(identity.entryId))
        try:
            of, data, encryption = self._decryptor.read(payload)
            if is_chunk(of):
                effects = self._chunk(body, of, data, place, now)
            else:
                effects = self._entry(body, EntryContents(of, unpacked(of, data), encryption), place)
        except DecryptionFailed as error:
            if self._decryptor.is_failure_final:
                self._is_stopped = True
                return [Fail(error)]
            problem = pb.CommandAck.DecryptionError
            effects = [Reject(wire_of(place, self._partition), error.reason, problem), *self._skip(1)]
        except Error as error:
            effects = [Reject(wire_of(place, self._partition), error.reason), *self._skip(1)]
        if self._chunks.on_entry(place) and self._withheld is not None:
            self._queue_cumulative(self._withheld)
            effects = [*effects, *self.flush()]
        return [*effects, *self.expire(now)] if self._chunks.has_begun else effects

    def _chunk(self, body: Any, of: pb.MessageMetadata, data: Bytes, place: Place, now: float) -> list[Effect]:
        known = self._entries.get(place)
        if known is not None:
            if not known.unacked:
                self._unsent[place] = None
            return self._skip(1)
        if self._chunks.is_resent_chunk(of):
            self._entries[place] = _Held(0, 0)
            self._unsent[place] = None
            return self._skip(1)
        whole = self._chunks.add(of, data, place, now, body.redelivery_count)
        if whole is None:
            return self._skip(1)
        if covered(self._floor, place, 0):  # already acked cumulatively; its first chunks were kept for other messages
            for part in whole.places:
                self._entries[part] = _Held(0, 0)
                self._unsent[part] = None
            return self._skip(1)
        try:
            held = EntryContents(of, unpacked(of, whole.body))
        except Error as error:
            rejected = [Reject(wire_of(part, self._partition), error.reason) for part in whole.places]
            return [*rejected, *self._skip(1)]
        for part in whole.places[:-1]:
            self._entries[part] = _Held(0, 1, held=1)
        self._chunks.keep(whole)
        return self._entry(body, held, place)

    @property
    def buffered(self) -> int:
        """Messages that wait for the application."""
        return self._buffered

    @property
    def unacknowledged(self) -> int:
        """Messages that the application has and did not acknowledge. Counted on request."""
        if self._queued_acks:
            self._apply_queued_acks()
        held = (one.held & ~covered(self._floor, place, one.size) for place, one in self._entries.items())
        return max(0, sum(bits.bit_count() for bits in held) - self._buffered)

    @property
    def has_chunks(self) -> bool:
        """There are incomplete chunked messages, so `expire` may have work later."""
        return self._chunks.has_begun

    def ends_at(self, last: Place) -> list[Effect]:
        """Sealed: `last` is the last entry. Chunked messages that are incomplete after it are given up."""
        self._chunks.ends_at(last)
        return self._give_up(self._chunks.late(0.0)) if self._chunks.is_at_end else []

    def expire(self, now: float) -> list[Effect]:
        """Give up chunked messages that stayed incomplete for too long, because they hold back cumulative acks."""
        return self._give_up(self._chunks.late(now))

    def _give_up(self, late: Sequence[IncompleteMessage]) -> list[Effect]:
        if not late:
            return []
        effects: list[Effect] = []
        for one in late:
            ids = [wire_of(place, self._partition) for place in one.places]
            if self._is_shared and one.tries < CHUNK_TRIES_MAX:
                effects.append(Redeliver(ids))  # the other chunks may have gone to another consumer
            else:
                effects += [Reject(identity, "chunk of a message that was never completed") for identity in ids]
        if self._withheld is not None:
            self._queue_cumulative(self._withheld)
        return [*effects, *self.flush()]

    def _entry(self, body: Any, held: EntryContents, place: Place) -> list[Effect]:
        size = held.size
        entry = self._entries.get(place) or _Held(size, all_of(size))
        sent = bits_of(body.ack_set) & all_of(size) if body.ack_set else all_of(size)
        fresh = sent & entry.unacked & ~entry.held & ~covered(self._floor, place, size)
        entry.unacked &= ~(fresh & held.compacted)  # removed by compaction: nothing to deliver
        messages: Sequence[Message] = ()
        if wanted := fresh & ~held.compacted:
            messages = DeliveredEntry(held, self._topic, self._lane, place, wanted, body.redelivery_count)
        effects: list[Effect] = []
        if messages:
            entry.held |= fresh & entry.unacked
            if self._covered is not None and place < self._covered[:2]:
                self._covered = None  # the position was moved back
            self._entries[place] = entry
            effects.append(Deliver(messages))
        elif not entry.unacked or covered(self._floor, place, size) == all_of(size):
            entry.unacked = 0
            self._entries[place] = entry
            self._unsent[place] = None
        self._permits -= sent.bit_count()
        self._buffered += len(messages)
        return effects if len(messages) == sent.bit_count() else [*effects, *self._flow()]

    def confirmed(self, number: int) -> None:
        """The broker has this ack."""
        if self._queued_acks:
            self._apply_queued_acks()
        if self._unconfirmed_cumulative.pop(number, None) is not None:
            self._is_refused = False
        for place in self._unconfirmed.pop(number, ()):
            entry = self._entries.get(place)
            if entry is not None:
                self._forget_settled(place, entry)

    def refused(self, number: int) -> None:
        """The broker refused this ack. It is not sent again, unless it was refused because the consumer is closed."""
        if not self._is_open:
            return
        is_cumulative = number in self._unconfirmed_cumulative
        self.confirmed(number)
        self._is_refused |= is_cumulative

    def awaits(self, number: int) -> bool:
        """This ack was sent on the present attachment and is not answered."""
        return self._is_open and (number in self._unconfirmed or number in self._unconfirmed_cumulative)

    def has_received(self, last: Place) -> bool:
        """True if everything up to this entry arrived and nothing of it waits for the application."""
        return (self._received or (-1, -1)) >= last and not self._buffered and not self._chunks.has_begun

    # -- calls of the application

    def taken(self, count: int = 1) -> list[Effect]:
        """Messages were handed out, so there is room for as many more."""
        self._buffered -= count
        if (self._window - self._buffered - self._permits) * 2 < self._window:  # asked once per message
            return []
        return self._flow()

    def resize(self, window: int) -> list[Effect]:
        """Set another share of the prefetch. Permits that the broker already has stay valid."""
        assert window >= 1
        self._window = window
        return self._flow()

    def start_after(self, one: MessageId) -> None:
        """Do not deliver anything up to and including this message.

        Unlike the floor of an ack, `opened` keeps this floor: the broker starts a reader at the entry of the message.
        """
        if self._floor is None or self._floor <= one.place:
            self._floor, self._is_floor_whole = one.place, False

    def stop(self, buffered: Iterable[MessageId]) -> None:
        """Deliver nothing more; acks of delivered messages still count. `buffered` was never handed out."""
        if self._queued_acks:
            self._apply_queued_acks()
        self._is_stopped = True
        self._buffered = 0
        self._chunks.clear()
        self._reopen(buffered)

    def discard_acks(self) -> None:
        """Drop all acks that the broker has not confirmed; they are never sent."""
        self._queued_acks.clear()
        self._unsent.clear()
        self._unconfirmed.clear()
        self._unconfirmed_cumulative.clear()
        self._unsent_cumulative = self._withheld = self._covered = None

    def hold_acks(self, is_held: bool) -> list[Effect]:
        """Keep acks, or send them again, those that were kept included."""
        self._holds_acks = is_held
        return self.flush()

    def ack_to_end(self, last: Place) -> bool:
        """Like `ack_cumulative` for everything up to the end of this entry, the last one of the segment."""
        if self._is_covered_through(last):
            return False
        size = self._entries[last].size if last in self._entries else 0
        return self.ack_cumulative(MessageId(self._topic, *last, size - 1, size, self._lane))

    def is_settled(self, last: Place) -> bool:
        """True if everything up to the end of this entry is acknowledged, and the broker has confirmed it."""
        return self._is_covered_through(last) and self.is_clean and self._withheld is None and not self._is_refused

    def _is_covered_through(self, last: Place) -> bool:
        acked = self._covered
        return acked is not None and (acked[:2] > last or (acked[:2] == last and self._is_floor_whole))

    def is_covered(self, one: MessageId) -> bool:
        """True if a cumulative ack covers this message."""
        return self._covered is not None and one.place <= self._covered

    def ack(self, one: MessageId) -> bool:
        """Returns True if `flush` has something to send now."""
        index = one.batch_index
        size, bit = (one.batch_size, 1 << index) if index >= 0 else (0, 1)
        return self.ack_slots((one.ledger, one.entry), size, bit)

    def ack_later(self, at: Origin | MessageId, batch_index: int) -> None:
        """Queue an individual ack. Cheaper than `ack`: queued acks are applied together, at the latest by `flush`."""
        self._queued_acks.append((at, batch_index))
        if len(self._queued_acks) >= QUEUED_ACKS_MAX:
            self._apply_queued_acks()

    def _apply_queued_acks(self) -> None:
        """Apply queued acks, runs of one entry at once. Every method that reads acks calls this first."""
        queued, self._queued_acks = self._queued_acks, []
        for at, first, after in batch_bits.runs_of(queued):
            size, bits = (at.batch_size, (1 << after) - (1 << first)) if first >= 0 else (0, 1)
            self.ack_slots((at.ledger, at.entry), size, bits)

    def ack_slots(self, place: Place, size: int, bits: int) -> bool:
        """Like `ack` for several messages of one entry. `size` is the batch size, 0 for a single message."""
        if self._queued_acks:
            self._apply_queued_acks()
        if self._floor is not None:
            bits &= ~covered(self._floor, place, size)
        entry = self._entries.get(place)
        if entry is not None:
            bits &= entry.unacked
        if not bits:
            return False
        if entry is None:
            entry = self._entries[place] = _Held(size, all_of(size))
        entry.unacked ^= bits
        entry.held &= ~bits
        if self._chunks.has_complete:
            for part in self._chunks.done(place)[:-1]:
                self._entries[part] = _Held(0, 0)
                self._unsent[part] = None
        self._unsent[place] = None
        return True

    def ack_cumulative(self, one: MessageId) -> bool:
        """Acknowledge everything up to and including this message. Returns True if there is something to send."""
        if self._queued_acks:
            self._apply_queued_acks()
        floor = (one.ledger, one.entry, one.batch_index)
        if self._floor is not None and floor <= self._floor:
            return False
        self._floor = self._covered = floor
        self._is_floor_whole = one.batch_index < 0 or one.batch_index == one.batch_size - 1
        place = floor[:2]
        collected = self._chunks.done_up_to(place)
        for known in self._known_up_to(place):
            if known in collected:
                continue
            if known < place or one.batch_index < 0 or one.batch_index == one.batch_size - 1:
                del self._entries[known]
                self._unsent.pop(known, None)
        return self._queue_cumulative(one)

    def _queue_cumulative(self, one: MessageId) -> bool:
        place = (one.ledger, one.entry)
        self._withheld = None
        if self._chunks and (safe := self._chunks.safe_floor(place)) != place:
            # A chunked message that is not finished begins before this one: the broker must keep its first chunks.
            self._withheld = one
            if safe is None:
                return False
            self._unsent_cumulative = wire_of(safe, self._partition)
            return True
        left = 0
        if 0 <= one.batch_index < one.batch_size - 1:
            left = all_of(one.batch_size) & ~((2 << one.batch_index) - 1)
        self._unsent_cumulative = ack_of(place, self._partition, left, one.batch_size)
        return True

    def safe_floor(self, place: Place) -> Place | None:
        """See `ChunkTracker.safe_floor`."""
        return self._chunks.safe_floor(place)

    def flush(self) -> list[Effect]:
        """Send pending acks. While detached they wait."""
        if self._queued_acks:
            self._apply_queued_acks()
        if not self._is_open or self._holds_acks:
            return []
        effects: list[Effect] = []
        if self._unsent_cumulative is not None:
            self._last_ack += 1
            effects.append(Ack(self._last_ack, [self._unsent_cumulative], is_cumulative=True))
            self._unconfirmed_cumulative[self._last_ack] = self._unsent_cumulative
            self._unsent_cumulative = None
        if self._unsent:
            places, entries = list(self._unsent), self._entries
            self._unsent.clear()
            self._last_ack += 1
            self._unconfirmed[self._last_ack] = places
            ids = []
            for place in places:
                entry = entries[place]
                entry.ack_number = self._last_ack
                ids.append(ack_of(place, self._partition, entry.unacked, entry.size))
            effects.append(Ack(self._last_ack, ids))
        return effects

    def release(self, ones: Iterable[MessageId]) -> list[Effect]:
        """Return these to the broker, which delivers them again. Other messages of their entries stay held."""
        if self._queued_acks:
            self._apply_queued_acks()
        returned: dict[Place, tuple[int, int]] = {}  # bits and size
        for one in ones:
            for place in self._chunks.done((one.ledger, one.entry)):
                entry = self._entries.get(place)
                if entry is not None and entry.held & bit_of(one):
                    entry.held &= ~bit_of(one)
                    returned[place] = (returned.get(place, (0, 0))[0] | bit_of(one), entry.size)
                    self._forget_settled(place, entry)
        if not returned or not self._is_open:
            return []  # detached: the broker redelivers everything anyway
        ids = [nack_of(place, self._partition, bits, size) for place, (bits, size) in returned.items()]
        return [*self.flush(), Redeliver(ids)]

    @property
    def is_clean(self) -> bool:
        """All acks are confirmed by the broker."""
        if self._queued_acks:
            self._apply_queued_acks()
        return not (
            self._unsent or self._unconfirmed or self._unconfirmed_cumulative or self._unsent_cumulative is not None
        )

    # -- inside

    def _known_up_to(self, place: Place) -> list[Place]:
        """Entries of ordered subscriptions are known in order, so the search stops at the first later one."""
        found = []
        for known in self._entries:
            if known > place:
                break
            found.append(known)
        return found

    def _reopen(self, ones: Iterable[MessageId]) -> None:
        for one in ones:
            for place in self._chunks.done((one.ledger, one.entry)):
                if (entry := self._entries.get(place)) is not None:
                    entry.held &= ~bit_of(one)
                    self._forget_settled(place, entry)

    def _forget_settled(self, place: Place, entry: _Held) -> None:
        """Forget an entry of which nothing is held and whose acks the broker has. Its other messages are open, and may
        go to another consumer; then nothing would remove it here."""
        if not entry.held and place not in self._unsent and entry.ack_number not in self._unconfirmed:
            self._entries.pop(place, None)

    def _skip(self, count: int) -> list[Effect]:
        """Entries arrived of which nothing is delivered: they used up permits."""
        self._permits -= count
        return self._flow()

    def _flow(self) -> list[Effect]:
        """Permits are sent half a window at a time, to save commands."""
        permits = self._window - self._buffered - self._permits
        if not self._is_open or self._is_stopped or permits * 2 < self._window or permits <= 0:
            return []
        self._permits += permits
        return [Flow(permits)]
