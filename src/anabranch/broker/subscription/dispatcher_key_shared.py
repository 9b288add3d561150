"""Key_Shared: one owner per hash slot at a time, in order within a slot. Pure, see `dispatcher`.

Three rules keep the order of a slot:
1. an entry goes to the slot's owner only while no *other* consumer has unacknowledged entries of that slot (after a
   join or leave the former owner finishes first);
2. an entry that cannot be delivered now is *stashed* (its position, not its bytes), and later entries of the same slot
   queue behind it;
3. stashed entries are read again when something changes for their slot: an ack, new permits, another owner.
With `allow_out_of_order` rule 1 does not apply. Reading continues past blocked slots, up to a bound of stashed entries.

An entry with a delivery time is put aside and later entries of its slot are delivered, as in Pulsar. When it is due, it
is stashed, so that rules 1 and 3 hold for it again.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable, Sequence

from anabranch.broker.errors import ConsumerBusy
from anabranch.broker.subscription.consumer import Consumer
from anabranch.broker.subscription.consumer_selectors import HashRing, SplitRanges, StickyRanges
from anabranch.broker.subscription.delayed_delivery import DelayedEntries
from anabranch.broker.subscription.dispatcher import Acks, ReadForward, ReadThese, Want, after, room_left
from anabranch.model.position import Position
from anabranch.storage.topic.topic_log import StoredEntry

REPLAY_STEP = 100


class KeyedDispatcher:
    def __init__(
        self,
        acks: Acks,
        *,
        slot_of: Callable[[StoredEntry], int],
        delayed: DelayedEntries,
        deliver_at_of: Callable[[StoredEntry], int],
        now_ms: Callable[[], int],
        sticky: bool,
        consistent_hashing: bool = True,
        allow_out_of_order: bool,
        unacked_max: int,
        lookahead_max: int,
    ) -> None:
        self.consumers: list[Consumer] = []
        self.read_position = acks.first_unacked()
        self.generation = 0
        self.redeliveries: dict[Position, int] = {}
        self._acks = acks
        self._slot_of = slot_of
        self.delayed = delayed
        self._deliver_at_of = deliver_at_of
        self._now_ms = now_ms
        self._delayed_slots: dict[Position, int] = {}
        self._ring: HashRing[Consumer] | SplitRanges[Consumer] = HashRing() if consistent_hashing else SplitRanges()
        self._ranges: StickyRanges[Consumer] | None = StickyRanges() if sticky else None
        self._allow_out_of_order = allow_out_of_order
        self.unacked_max = unacked_max
        self._lookahead_max = lookahead_max
        self._stash: dict[int, list[Position]] = {}  # slot -> positions, ascending
        self._stashed = 0
        self._retry: set[int] = set()  # slots to try again
        self._holders: dict[
            int, tuple[Consumer, int]
        ] = {}  # slot -> consumer with unacked entries of it, and their number
        self._room = 0  # messages that may still be delivered in this step
        self._unready_owners: set[Consumer] = set()  # when one of their slots was tried

    # -- members

    def join(self, consumer: Consumer) -> None:
        policy = consumer.spec.key_shared
        if policy.is_sticky != (self._ranges is not None):
            raise ConsumerBusy("subscription is used with the other Key_Shared mode")
        if self.consumers and policy.allow_out_of_order != self._allow_out_of_order:
            raise ConsumerBusy("subscription is used with another out-of-order setting")
        if self._ranges is not None:
            self._ranges.declare(consumer, policy.ranges)
        self.consumers.append(consumer)
        self._members_changed()

    def leave(self, consumer: Consumer) -> None:
        self.consumers.remove(consumer)
        self._unready_owners.discard(consumer)
        if self._ranges is not None:
            self._ranges.leave(consumer)
        self.redeliver(consumer, None)
        self._members_changed()
        if not self.consumers:
            self.rewind()

    def _members_changed(self) -> None:
        self._ring.reset(
            [
                (f"{consumer.name}/{consumer.peer.address}/{consumer.consumer_id}", consumer)
                for consumer in self.consumers
            ]
        )
        self._retry.update(self._stash)

    def owner(self, slot: int) -> Consumer | None:
        return self._ring.owner(slot) if self._ranges is None else self._ranges.owner(slot)

    def ranges(self) -> dict[Consumer, list[tuple[int, int]]]:
        """Inclusive ranges of the slots that each consumer owns."""
        found: dict[Consumer, list[tuple[int, int]]] = {consumer: [] for consumer in self.consumers}
        for start, end, owner in self._ring.spans() if self._ranges is None else self._ranges.spans():
            found[owner].append((start, end))
        return found

    def draining(self) -> dict[Consumer, list[tuple[int, int, int]]]:
        """Slots that wait for the acks of a consumer that does not own them any more: slot, unacknowledged entries,
        entries behind."""
        found: dict[Consumer, list[tuple[int, int, int]]] = {consumer: [] for consumer in self.consumers}
        for slot, (holder, count) in sorted(self._holders.items(), key=lambda one: one[0]):
            if holder in found and self.owner(slot) is not holder:
                found[holder].append((slot, count, len(self._stash.get(slot, ()))))
        return found

    # -- reading

    @property
    def is_blocked(self) -> bool:
        return room_left(self.unacked_max, self.consumers) <= 0

    @property
    def replay_count(self) -> int:
        return self._stashed

    def wants(self) -> Want | None:
        self._room = room_left(self.unacked_max, self.consumers)
        if self._room <= 0 or not any(consumer.is_ready for consumer in self.consumers):
            return None
        for consumer in [c for c in self._unready_owners if c.is_ready]:
            self._unready_owners.discard(consumer)
            self._retry.update(slot for slot in self._stash if self.owner(slot) is consumer)
        again: list[Position] = []
        while self._retry and len(again) < REPLAY_STEP:
            slot = self._retry.pop()
            if slot in self._stash and self._taker(slot) is not None:
                again.extend(self._stash[slot][:REPLAY_STEP])
        if again:
            return ReadThese(tuple(sorted(again)))
        if self._stashed >= self._lookahead_max or self.delayed.is_full:
            return None
        return ReadForward(self.read_position)

    def _taker(self, slot: int) -> Consumer | None:
        """The consumer that may receive an entry of this slot now."""
        owner = self.owner(slot)
        if owner is None:
            return None
        holder = self._holders.get(slot)
        if holder is not None and holder[0] is not owner and not self._allow_out_of_order:
            return None  # rule 1: tried again when the holder has acknowledged its last entry
        if self._room <= 0:
            self._retry.add(slot)  # nothing is read while blocked; the slot is tried right after
            return None
        if not owner.is_ready:
            self._unready_owners.add(owner)
            return None
        return owner

    # -- delivering

    def offer(self, want: Want, entries: Sequence[StoredEntry]) -> None:
        self._room = room_left(self.unacked_max, self.consumers)
        if isinstance(want, ReadThese):
            self._offer_again(want, entries)
        elif entries:
            self.read_position = after(entries[-1].position)
            for entry in entries:
                if not self._acks.is_acked(entry.position):
                    self._offer_new(entry)

    def _offer_new(self, entry: StoredEntry) -> None:
        slot = self._slot_of(entry)
        deliver_at = self._deliver_at_of(entry)
        if deliver_at and deliver_at > self._now_ms():
            self.delayed.add(deliver_at, entry.position)
            self._delayed_slots[entry.position] = slot
        elif slot not in self._stash and (taker := self._taker(slot)) is not None:
            self._deliver(taker, entry, slot)
        else:
            self._stash_entry(slot, entry.position)

    def _offer_again(self, want: ReadThese, entries: Sequence[StoredEntry]) -> None:
        found = {entry.position: entry for entry in entries}
        for slot in {self._slot_of(entry) for entry in entries}:
            positions = self._stash.get(slot)
            if positions is None:
                continue
            done = self._deliver_stashed(slot, positions, found)
            del positions[:done]
            self._stashed -= done
            if not positions:
                del self._stash[slot]
            elif positions[0] not in found:
                self._retry.add(slot)
        self._drop_missing(want, found)

    def _deliver_stashed(self, slot: int, positions: list[Position], found: dict[Position, StoredEntry]) -> int:
        """Deliver from the head of a slot's queue, as far as it was read and its owner is ready. Returns how many."""
        for done, position in enumerate(positions):
            if position not in found:
                return done
            if self._acks.is_acked(position):
                self.redeliveries.pop(position, None)
            elif (taker := self._taker(slot)) is not None:
                self._deliver(taker, found[position], slot)
            else:
                return done
        return len(positions)

    def _drop_missing(self, want: ReadThese, found: dict[Position, StoredEntry]) -> None:
        """Remove entries that are no longer in the log (trimmed, unreadable), so that they do not block their slot."""
        missing = {position for position in want.positions if position not in found}
        if missing:
            for position in missing:
                self.redeliveries.pop(position, None)
            for slot in list(self._stash):
                kept = [position for position in self._stash[slot] if position not in missing]
                self._stashed -= len(self._stash[slot]) - len(kept)
                if kept:
                    self._stash[slot] = kept
                    self._retry.add(slot)
                else:
                    del self._stash[slot]

    def _deliver(self, taker: Consumer, entry: StoredEntry, slot: int) -> None:
        holder = self._holders.get(slot)
        count = holder[1] if holder is not None and holder[0] is taker else 0
        self._holders[slot] = (taker, count + 1)
        position = entry.position
        unacked = taker.unacked_messages
        taker.deliver(entry, self.redeliveries.get(position, 0), self._acks.ack_set(position), slot)
        self._room -= taker.unacked_messages - unacked

    def _stash_entry(self, slot: int, position: Position) -> None:
        positions = self._stash.setdefault(slot, [])
        if positions and positions[-1] >= position:
            if position in positions:
                return
            insort(positions, position)
        else:
            positions.append(position)
        self._stashed += 1

    def release(self, positions: Iterable[Position]) -> None:
        """Deliver delayed entries that are due."""
        for position in positions:
            slot = self._delayed_slots.pop(position, None)
            if slot is not None:
                self._stash_entry(slot, position)
                self._retry.add(slot)

    def give_back(self, want: Want) -> None:
        """Stashed entries stay stashed until they are delivered; try their slots again."""
        if isinstance(want, ReadThese):
            self._retry.update(self._stash)

    def drain(self) -> None:
        """Nothing is buffered: undelivered entries are stashed by position."""

    def rewind(self) -> None:
        self.generation += 1
        self._stash.clear()
        self._stashed = 0
        self._retry.clear()
        self._holders.clear()
        self._unready_owners.clear()
        self.delayed.clear()
        self._delayed_slots.clear()
        self.redeliveries.clear()
        self.read_position = self._acks.first_unacked()
        for consumer in self.consumers:
            consumer.pending.clear()
            consumer.unacked_messages = 0

    def redeliver(self, consumer: Consumer, positions: Iterable[Position] | None) -> None:
        for position in list(consumer.pending) if positions is None else positions:
            pending = consumer.settle(position)
            if pending is not None:
                self.redeliveries[position] = self.redeliveries.get(position, 0) + 1
                self._stash_entry(pending.slot, position)
                self._release_slot(consumer, pending.slot)
                self._retry.add(pending.slot)

    def settled(self, consumer: Consumer, position: Position) -> None:
        self.redeliveries.pop(position, None)

    def released(self, consumer: Consumer, slot: int) -> None:
        """The holder acknowledged an entry of this slot."""
        self._release_slot(consumer, slot)
        if slot in self._stash:
            self._retry.add(slot)

    def _release_slot(self, consumer: Consumer, slot: int) -> None:
        holder = self._holders.get(slot)
        if holder is not None and holder[0] is consumer:
            if holder[1] <= 1:
                del self._holders[slot]
            else:
                self._holders[slot] = (consumer, holder[1] - 1)
