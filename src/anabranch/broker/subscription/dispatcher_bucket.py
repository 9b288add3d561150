"""Key_Shared by entry buckets: the stream consumers that share a segment. Pure, see `dispatcher_key_shared`.

A producer keeps one batch per bucket, a range of the half of the key's hash that does not choose the segment, and
stamps each entry with the hashes of its messages. So an entry belongs to one bucket and is dispatched unopened:

    entry ── stamp, or the key of a single message ──▶ bucket ── claims ──▶ consumer

Each consumer *claims* the buckets that its assignment names, under the assignment's generation. The claim of the
highest generation counts, bucket by bucket. So a bucket moves with the claim of its new owner, and a claim from an
assignment that is over takes nothing back. An unclaimed bucket waits: its owner is attaching, or is in its
grace period. The rules of `KeyedDispatcher` do the rest: the new owner receives entries of the bucket when the former
one has acknowledged its entries, or is gone; other buckets do not wait; a slow consumer holds only its own buckets.

An entry that may have keys of several buckets (a batch without a stamp, or with a wide one) has the slot `EVERY`. It
goes to the owner of the first bucket after everything before it was acknowledged elsewhere, and everything after it
waits in the same way. So it keeps the order of each key, at the price of the fan-out around it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from anabranch.broker.errors import ConsumerAssignFailed, ConsumerBusy
from anabranch.broker.subscription.consumer import Consumer
from anabranch.broker.subscription.delayed_delivery import DelayedEntries
from anabranch.broker.subscription.dispatcher import Acks, ReadThese
from anabranch.broker.subscription.dispatcher_key_shared import KeyedDispatcher
from anabranch.model.entry_buckets import EVERY, EntryBuckets
from anabranch.model.position import Position
from anabranch.storage.topic.topic_log import StoredEntry

NEVER = -1


class BucketDispatcher(KeyedDispatcher):
    def __init__(
        self,
        acks: Acks,
        buckets: EntryBuckets,
        *,
        bucket_of: Callable[[StoredEntry], int],
        unacked_max: int,
        lookahead_max: int,
    ) -> None:
        super().__init__(
            acks,
            slot_of=bucket_of,
            delayed=DelayedEntries(1),
            deliver_at_of=lambda _: 0,  # ordered consumers ignore delivery times
            now_ms=lambda: 0,
            sticky=True,
            allow_out_of_order=False,
            unacked_max=unacked_max,
            lookahead_max=lookahead_max,
        )
        self.buckets = buckets
        self._claims: list[tuple[int, Consumer | None]] = [(NEVER, None)] * buckets.count

    # -- members

    def join(self, consumer: Consumer) -> None:
        policy = consumer.spec.key_shared
        if policy.claim is None:
            raise ConsumerBusy("subscription is used with entry buckets")
        if policy.ranges != self.buckets.ranges:
            raise ConsumerAssignFailed(f"the segment's entry buckets are {self.buckets}")
        self.consumers.append(consumer)
        self.claim(consumer, policy.claim.buckets, policy.claim.generation)

    def leave(self, consumer: Consumer) -> None:
        self.consumers.remove(consumer)
        self._unready_owners.discard(consumer)
        self._claims = [(generation, None if one is consumer else one) for generation, one in self._claims]
        self.redeliver(consumer, None)
        self._retry.update(self._stash)
        if not self.consumers:
            self.rewind()

    def claim(self, consumer: Consumer, buckets: Collection[int], generation: int) -> None:
        """The consumer reads these buckets now, and no others. Buckets that were claimed under a higher generation
        stay with that claim."""
        for bucket, (known, owner) in enumerate(self._claims):
            if generation >= known and bucket in buckets:
                self._claims[bucket] = (generation, consumer)
            elif owner is consumer and bucket not in buckets:
                self._claims[bucket] = (known, None)
        self._retry.update(self._stash)

    def owner(self, slot: int) -> Consumer | None:
        return self._claims[max(slot, 0)][1]

    def ranges(self) -> dict[Consumer, list[tuple[int, int]]]:
        found: dict[Consumer, list[tuple[int, int]]] = {consumer: [] for consumer in self.consumers}
        for span, (_, owner) in zip(self.buckets.ranges, self._claims, strict=True):
            if owner is not None:
                found[owner].append(span)
        return found

    # -- entries of several buckets

    def _taker(self, slot: int) -> Consumer | None:
        owner = self.owner(slot)
        if slot == EVERY:
            if any(holder is not owner for holder, _ in self._holders.values()):
                return None
        elif EVERY in self._holders and self._holders[EVERY][0] is not owner:
            return None
        return super()._taker(slot)

    def _offer_new(self, entry: StoredEntry) -> None:
        slot = self._slot_of(entry)
        if self._stash and (slot == EVERY or EVERY in self._stash):
            self._stash_entry(slot, entry.position)
        else:
            super()._offer_new(entry)

    def _deliver_stashed(self, slot: int, positions: list[Position], found: dict[Position, StoredEntry]) -> int:
        if slot == EVERY:
            others = (one[0] for other, one in self._stash.items() if other != EVERY)
            limit = min(others, default=None)
        else:
            limit = self._stash[EVERY][0] if EVERY in self._stash else None
        if limit is None or positions[-1] < limit:
            return super()._deliver_stashed(slot, positions, found)
        return super()._deliver_stashed(slot, [one for one in positions if one < limit], found)

    def _offer_again(self, want: ReadThese, entries: Sequence[StoredEntry]) -> None:
        was_mixed, before = EVERY in self._stash, self._stashed
        super()._offer_again(want, entries)
        if was_mixed and self._stashed < before:
            self._retry.update(self._stash)  # what was delivered may have been the limit of other slots

    def _release_slot(self, consumer: Consumer, slot: int) -> None:
        super()._release_slot(consumer, slot)
        if slot == EVERY or EVERY in self._stash:
            self._retry.update(self._stash)
