"""Segment consumer of a stream consumer that shares its segment with others: it reads some of the entry buckets.

It may receive entries in another order than they were stored, for example when a bucket moves to it. So a cumulative
ack of the application stands for what was handed out up to that message, and is sent as individual acks. The controller
assigns children of a shared segment after it is drained, so the consumer itself has no order between segments to keep.
"""

from __future__ import annotations

import asyncio
from typing import Any

from anabranch.client.connection.connection import Connection
from anabranch.client.consumer.segment.batch_bits import bit_of
from anabranch.client.consumer.segment.segment_consumer_spec import Grant
from anabranch.client.consumer.segment.segment_consumer_state import SegmentConsumerState
from anabranch.client.consumer.segment.stream_segment_consumer import StreamSegmentConsumer
from anabranch.client.errors import ClientError, ConsumerFenced
from anabranch.client.messages.message import MessageId
from anabranch.model.entry_buckets import EntryBuckets
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.commands import BaseCommand
from anabranch.runtime.logs import get_logger

log = get_logger(__name__)


class HandedOut:
    """Messages of a segment that were handed out and not acknowledged: bits by entry, in the order of handing out."""

    def __init__(self) -> None:
        self._entries: dict[tuple[int, int], tuple[int, int]] = {}  # place -> batch size (0: no batch), bits

    def __bool__(self) -> bool:
        return bool(self._entries)

    def add(self, one: MessageId) -> None:
        place = (one.ledger, one.entry)
        size, bits = self._entries.get(place, (one.batch_size if one.batch_index >= 0 else 0, 0))
        self._entries[place] = (size, bits | bit_of(one))

    def take(self, one: MessageId) -> list[tuple[tuple[int, int], int, int]]:
        """Remove and return everything up to and including this message: place, batch size and bits. For a message that
        is not among them: everything stored up to it."""
        place = (one.ledger, one.entry)
        found: list[tuple[tuple[int, int], int, int]] = []
        if place in self._entries:
            for known, (size, bits) in self._entries.items():
                upto = (bit_of(one) << 1) - 1 if known == place else bits
                found.append((known, size, bits & upto))
                if known == place:
                    break
        else:
            found = [(known, size, bits) for known, (size, bits) in self._entries.items() if known < place]
        for known, size, bits in found:
            if left := self._entries[known][1] & ~bits:
                self._entries[known] = (size, left)
            else:
                del self._entries[known]
        return found


class SharedSegmentConsumer(StreamSegmentConsumer):
    tracks_hand_outs = True
    buckets: tuple[int, ...] = ()  # that the last assignment named
    _claimed: tuple[tuple[int, ...], int] | None = None  # buckets and generation that the broker was sent last
    _is_attached = False

    def _new_state(self) -> SegmentConsumerState:
        self._handed_out = HandedOut()
        spec = self.spec
        return SegmentConsumerState(
            spec.identity,
            lane=spec.lane,
            partition=spec.partition,
            prefetch=self._window,
            is_shared=True,
            decryptor=self._listener.decryptor,
        )

    # -- claims

    def claim(self, buckets: tuple[int, ...], grant: Grant | None) -> None:
        """The assignment names these buckets. A new claim is sent if they have changed."""
        has_changed = buckets != self.buckets
        self.buckets, self.grant = buckets, grant
        if has_changed and self._is_attached:
            self._send_claim()

    def _subscribe_fields(self) -> dict[str, Any]:
        fields = super()._subscribe_fields()
        meta = pb.KeySharedMeta(keySharedMode=pb.STICKY, entryBucketDispatch=True)
        ranges = EntryBuckets(self.spec.bucket_splits).ranges
        meta.hashRanges.extend(pb.IntRange(start=start, end=end) for start, end in ranges)
        self._claimed = (self.buckets, 0 if self.grant is None else self.grant.generation)
        return fields | {"keySharedMeta": meta, "buckets": self.buckets or None, "ring_hash": self.spec.ring_hash}

    async def _after_subscribe(self, connection: Connection) -> None:
        await super()._after_subscribe(connection)
        self._is_attached = True
        if self._claimed is not None and self._claimed[0] != self.buckets:  # changed while it was attached
            self._send_claim()

    def _send_claim(self) -> None:
        if self._connection is not None and self._connection.is_usable:
            answer = self._connection.begin(
                BaseCommand.SUBSCRIBE, self._pool.answer_timeout_s, **self._subscribe_fields()
            )
            answer.add_done_callback(self._claim_answered)

    def _claim_answered(self, answer: asyncio.Future[Any]) -> None:
        error = None if answer.cancelled() else answer.exception()
        if isinstance(error, ConsumerFenced):
            log.info("claim of buckets is over; a newer assignment follows", extra={"topic": self.topic})
        elif isinstance(error, ClientError) and self._is_attached:
            self._send_close()  # it is not known which buckets the broker has
            self._lost_connection(error)

    def lost(self) -> None:
        self._is_attached = False
        super().lost()

    # -- acks

    def handed_out(self, one: MessageId) -> None:
        self._handed_out.add(one)

    def ack_cumulative(self, one: MessageId) -> None:
        has_acks = False
        for place, size, bits in self._handed_out.take(one):
            has_acks |= self.state.ack_slots(place, size, bits)
        if has_acks:
            self._acked()

    def is_covered(self, last: MessageId) -> bool:
        return not self._handed_out

    def is_read_to_end(self, last: MessageId | None) -> bool:
        return True  # children are assigned after the segment is drained
