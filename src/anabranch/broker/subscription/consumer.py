"""One attached consumer: permits, unacknowledged entries, and MESSAGE frames to its connection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import NamedTuple

from anabranch.broker.client_connection import ClientConnection
from anabranch.model.position import Position
from anabranch.model.routing import RingHash
from anabranch.model.subscription_type import SubscriptionType
from anabranch.protocol import commands
from anabranch.protocol.messages import MessageRuns
from anabranch.storage.topic.topic_log import StoredEntry

PENDING_TRACKED_MAX = 50_000
"""Entries that are tracked per Exclusive or Failover consumer, which may leave any number unacknowledged."""

RUN_BYTES = 512 * 1024
"""Bytes that are sent between two checks of the socket queue."""


@dataclass(frozen=True, slots=True)
class BucketClaim:
    """The entry buckets that a consumer reads under an assignment."""

    generation: int
    buckets: frozenset[int]
    ring_hash: RingHash = RingHash.LOW16  # of the topic


@dataclass(frozen=True, slots=True)
class KeySharedPolicy:
    """`ranges` is empty for auto-split, and has all buckets of the segment if there is a claim."""

    ranges: tuple[tuple[int, int], ...] = ()
    allow_out_of_order: bool = False
    claim: BucketClaim | None = None

    @property
    def is_sticky(self) -> bool:
        return bool(self.ranges)


class SegmentGrant(NamedTuple):
    """The controller's assignment under which a consumer attaches to a segment."""

    incarnation: int
    generation: int


@dataclass(frozen=True, slots=True)
class ConsumerSpec:
    """The consumer's part of SUBSCRIBE."""

    consumer_id: int
    name: str
    type: SubscriptionType
    priority: int
    partition: int
    metadata: Mapping[str, str]
    key_shared: KeySharedPolicy
    epoch: int | None
    read_compacted: bool = False
    grant: SegmentGrant | None = None  # Pulsar's clients send none
    incarnation: int | None = None  # of the scalable topic that the client knows; Pulsar's clients send none
    nacks_messages: bool = False  # the client nacks single messages of a batch; Pulsar's clients nack entries


@dataclass(frozen=True, slots=True)
class SubscribeRequest:
    """The subscription's part of SUBSCRIBE."""

    name: str
    spec: ConsumerSpec
    durable: bool
    from_earliest: bool
    start: Position | None  # non-durable only
    rollback_seconds: int
    create: bool
    properties: Mapping[str, str]


@dataclass(slots=True)
class LastUse:
    """Times of one consumer's activity in ms; 0: never. Deliveries are timed by the samples that see them."""

    first_flow_ms: int = 0
    flow_ms: int = 0
    first_out_ms: int = 0
    out_ms: int = 0
    acked_ms: int = 0
    _seen_out: int = 0
    _seen_acked: int = 0

    def flowed(self, now_ms: int) -> None:
        self.flow_ms = now_ms
        self.first_flow_ms = self.first_flow_ms or now_ms

    def sampled(self, messages_out: int, messages_acked: int, now_ms: int) -> None:
        """The consumer's counters now."""
        if messages_out > self._seen_out:
            self._seen_out, self.out_ms = messages_out, now_ms
            self.first_out_ms = self.first_out_ms or now_ms
        if messages_acked > self._seen_acked:
            self._seen_acked, self.acked_ms = messages_acked, now_ms


class Pending(NamedTuple):
    messages: int  # still unacknowledged in this entry
    slot: int  # hash slot (Key_Shared), else -1
    total: int  # all messages of the entry


class Consumer:
    __slots__ = (
        "peer", "spec", "consumer_id", "name", "permits", "pending", "unacked_messages", "unacked_max", "epoch",
        "messages_out", "bytes_out", "messages_acked", "messages_redelivered", "connected_ms", "times", "_tracks_all",
        "closed", "lost_track", "is_lost", "in_hand", "_runs",
    )  # fmt: skip

    def __init__(self, peer: ClientConnection, spec: ConsumerSpec, unacked_max: int, connected_ms: int) -> None:
        self.peer = peer
        self.spec = spec
        self.consumer_id = spec.consumer_id
        self.name = spec.name
        self.permits = 0
        self.pending: dict[Position, Pending] = {}
        self.unacked_messages = 0
        self.unacked_max = unacked_max
        self.epoch = spec.epoch
        self.messages_out = 0
        self.bytes_out = 0
        self.messages_acked = 0
        self.messages_redelivered = 0
        self.connected_ms = connected_ms
        self.times = LastUse()
        self._tracks_all = spec.type in (SubscriptionType.SHARED, SubscriptionType.KEY_SHARED)
        self.closed = False
        self._runs = MessageRuns(spec.consumer_id, spec.partition)
        self.is_lost = False  # its connection ended; it did not close
        self.in_hand: dict[Position, int] = {}  # pending messages that its application has, as bits; 0: no batch
        self.lost_track = False  # more were delivered than are tracked: `pending` is incomplete

    @property
    def is_blocked(self) -> bool:
        """Whether too many messages are unacknowledged (Shared and Key_Shared only)."""
        return self._tracks_all and 0 < self.unacked_max <= self.unacked_messages

    @property
    def is_ready(self) -> bool:
        return self.permits > 0 and not self.is_blocked and self.peer.has_room and not self.closed

    def deliver(self, entry: StoredEntry, redelivery_count: int, ack_set: Sequence[int] | None, slot: int = -1) -> None:
        """Send one entry. Permits may fall below zero by one batch; clients expect this."""
        messages = entry.messages
        if ack_set:
            messages = sum((word & 0xFFFF_FFFF_FFFF_FFFF).bit_count() for word in ack_set)
        position, payload = entry.position, entry.payload
        self.peer.send(
            commands.message_header(
                len(payload),
                self.consumer_id,
                position.ledger,
                position.entry,
                self.spec.partition,
                redelivery_count,
                ack_set,
                self.epoch,
            ),
            payload,
        )
        self.permits -= messages
        self.messages_out += messages
        self.bytes_out += len(payload)
        if redelivery_count:
            self.messages_redelivered += messages
        if self._tracks_all or len(self.pending) < PENDING_TRACKED_MAX:
            self.pending[position] = Pending(messages, slot, entry.messages)
            self.unacked_messages += messages
        else:
            self.lost_track = True

    def deliver_part(self, entry: StoredEntry, redelivery_count: int, indexes: Sequence[int]) -> None:
        """Send some messages of an entry, of which the consumer may already hold others."""
        held = self.pending.get(entry.position)
        self.deliver(entry, redelivery_count, indexes)
        if held is not None:
            sent = self.pending[entry.position]
            self.pending[entry.position] = sent._replace(messages=held.messages + sent.messages)

    def deliver_run(self, entries: list[StoredEntry], start: int) -> int:
        """Fast path of `deliver` for the entries from `start` on, without acknowledged messages, while the consumer is
        ready. Returns how many were sent; 0 for a consumer with an epoch, which needs `deliver`.
        """
        if self.epoch is not None:
            return 0
        at, end = start, len(entries)
        while at < end and self.is_ready:
            permits = self.permits
            if self._tracks_all and self.unacked_max > 0:
                permits = min(permits, self.unacked_max - self.unacked_messages)
            frames, positions, wire, size, total, each = self._runs.take(entries, at, RUN_BYTES, permits)
            self.peer.send_run(frames, wire)
            self.permits -= total
            self.messages_out += total
            self.bytes_out += size
            upto = at + len(positions)
            if each >= 0 and (self._tracks_all or len(self.pending) + len(positions) <= PENDING_TRACKED_MAX):
                self.pending.update(dict.fromkeys(positions, Pending(each, -1, each)))
                self.unacked_messages += total
            else:
                self._track(entries[at:upto])
            at = upto
        return at - start

    def _track(self, entries: list[StoredEntry]) -> None:
        """Track entries that were delivered completely, up to the limit."""
        if not self._tracks_all and len(entries) > (room := max(PENDING_TRACKED_MAX - len(self.pending), 0)):
            self.lost_track = True
            entries = entries[:room]
        for position, messages, _, _ in entries:
            self.pending[position] = Pending(messages, -1, messages)
            self.unacked_messages += messages

    def handed_out(self, position: Position, bits: int) -> None:
        """The client passed these messages of the entry to its application (0: a message that is no batch)."""
        if position in self.pending:
            self.in_hand[position] = self.in_hand.get(position, 0) | bits

    def taken_back(self, position: Position, bits: int) -> None:
        """The client returned these messages of a batch; it still has others."""
        if left := self.in_hand.pop(position, 0) & ~bits:
            self.in_hand[position] = left

    def settle(self, position: Position) -> Pending | None:
        """Stop tracking the entry."""
        pending = self.pending.pop(position, None)
        if self.in_hand:
            self.in_hand.pop(position, None)
        if pending is not None:
            self.unacked_messages -= pending.messages
        return pending

    def settle_partly(self, position: Position, left: int) -> int:
        """`left` messages of a batch are still unacknowledged. Returns how many were acknowledged now."""
        pending = self.pending.get(position)
        if pending is None or left >= pending.messages:
            return 0
        self.pending[position] = Pending(left, pending.slot, pending.total)
        gone = pending.messages - left
        self.unacked_messages -= gone
        return gone

    def settle_up_to(self, position: Position) -> int:
        """Cumulative acknowledgement. Returns how many messages it covered."""
        done = list(takewhile(position.__ge__, self.pending))  # delivered in order, so pending is in order
        return sum(pending.messages for p in done if (pending := self.settle(p)) is not None)

    def __repr__(self) -> str:
        return f"<Consumer {self.name!r} id={self.consumer_id} permits={self.permits} pending={len(self.pending)}>"


class Departed:
    """Summed counters of former consumers of a subscription, so that totals never shrink."""

    __slots__ = ("bytes_out", "flow_ms", "messages_acked", "messages_out", "messages_redelivered")

    def __init__(self) -> None:
        self.messages_out = 0
        self.bytes_out = 0
        self.messages_acked = 0
        self.messages_redelivered = 0
        self.flow_ms = 0  # the last FLOW of any of them

    def add(self, consumer: Consumer) -> None:
        self.messages_out += consumer.messages_out
        self.bytes_out += consumer.bytes_out
        self.messages_acked += consumer.messages_acked
        self.messages_redelivered += consumer.messages_redelivered
        self.flow_ms = max(self.flow_ms, consumer.times.flow_ms)
