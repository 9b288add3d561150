"""Entries of an open batch for a segment with entry buckets: one entry per bucket, stamped, so that brokers can route
them unopened. Pure.

    batch  0:a  1:b  2:a  3:c          ids of the messages, and their buckets
    sent   b(1)  a(0 2)  c(3)          in the order of the highest ids, each under its highest id

Entries of one batch are sent in the order of their highest sequence ids, under that id alone, because the ids in them
interleave. So the broker's last id says which *entries* are stored, not which messages below it. A message that moves
to a child remembers, by segment, the highest id of the entry that it was sent in (`OutgoingMessage.stored_under`).

A producer whose name was given may be restarted, and then continues behind the last stored id. It must not leave holes
below that, so its batches stay whole: stamped, but routed like entries of several buckets.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from anabranch.client.messages.outgoing import Entry, EntryFormat
from anabranch.client.producer.open_batch import OpenBatch, sealed
from anabranch.model.entry_buckets import EntryBuckets
from anabranch.model.routing import RingHash
from anabranch.protocol.keyhash import murmur3_32


@dataclass(frozen=True, slots=True)
class Division:
    """How the batches of a segment are divided."""

    segment_id: int
    buckets: EntryBuckets
    ring_hash: RingHash
    keeps_batches_whole: bool = False

    def positions(self, batch: OpenBatch) -> list[int]:
        """Of the messages on the bucket ring; those without a key count as 0."""
        shift = 16 if self.ring_hash is RingHash.LOW16 else 0
        return [0 if key is None else murmur3_32(key) >> shift & 0xFFFF for key in batch.keys]

    def entries(self, batch: OpenBatch, style: EntryFormat) -> list[Entry]:
        positions = self.positions(batch)
        stamp = min(positions), max(positions)
        if self.keeps_batches_whole or self.buckets.of_stamp(*stamp) >= 0:
            return [sealed(batch, style, stamp)]
        rows: list[list[int]] = [[] for _ in range(self.buckets.count)]
        splits = self.buckets.splits
        for row, position in enumerate(positions):
            rows[bisect_right(splits, position)].append(row)
        made, orders = list[Entry](), batch.orders
        divided = sorted(filter(None, rows), key=lambda mine: mine[-1])
        for mine in divided:
            stamps = [positions[row] for row in mine]
            made.append(sealed(batch.part(mine), style, (min(stamps), max(stamps)), is_part=True))
        oldest = orders[divided[-1][0]]
        for entry, mine in zip(reversed(made), reversed(divided), strict=True):
            entry.oldest = oldest = min(oldest, orders[mine[0]])
            entry.is_continuation = entry is not made[0]
        return made
