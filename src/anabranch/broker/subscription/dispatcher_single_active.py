"""Exclusive and Failover: one active consumer receives everything, in order. Pure, see `dispatcher`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from anabranch.broker.errors import ConsumerBusy
from anabranch.broker.subscription.consumer import Consumer
from anabranch.broker.subscription.consumer_selectors import failover_active
from anabranch.broker.subscription.dispatcher import Acks, EntryBuffer, ReadForward, Want, after
from anabranch.model.position import Position
from anabranch.model.subscription_type import SubscriptionType
from anabranch.storage.topic.topic_log import StoredEntry


class SingleDispatcher:
    def __init__(self, acks: Acks, kind: SubscriptionType, partition: int) -> None:
        self.consumers: list[Consumer] = []
        self.active: Consumer | None = None
        self.read_position = acks.first_unacked()
        self.generation = 0
        self._acks = acks
        self._kind = kind
        self._partition = partition
        self._buffer = EntryBuffer()

    def join(self, consumer: Consumer) -> None:
        if self._kind is SubscriptionType.EXCLUSIVE and self.consumers:
            raise ConsumerBusy("exclusive consumer is already connected")
        self.consumers.append(consumer)
        self._choose()

    def leave(self, consumer: Consumer) -> None:
        self.consumers.remove(consumer)
        self._choose()

    def _choose(self) -> None:
        chosen = failover_active(self.consumers, self._partition, lambda c: c.spec.priority, lambda c: c.name)
        if chosen is not self.active:
            self.active = chosen
            self.rewind()

    @property
    def next_position(self) -> Position:
        """Next position to deliver; everything before was delivered since the last rewind."""
        return self._buffer.head.position if self._buffer else self.read_position

    def wants(self) -> Want | None:
        if self._buffer or self.active is None or not self.active.is_ready:
            return None
        return ReadForward(self.read_position)

    def offer(self, want: Want, entries: Sequence[StoredEntry]) -> None:
        if entries:
            self.read_position = after(entries[-1].position)
            self._buffer.extend(entries)
            self.drain()

    def give_back(self, want: Want) -> None:
        """Nothing to do: `read_position` has not moved."""

    def drain(self) -> None:
        consumer, buffer, acks = self.active, self._buffer, self._acks
        if consumer is not None and len(buffer) > 1 and acks.is_untouched_from(buffer.head.position):
            buffer.drop(consumer.deliver_run(buffer.entries, buffer.at))
        while buffer and consumer is not None and consumer.is_ready:
            entry = buffer.pop()
            if not acks.is_acked(entry.position):
                words = acks.ack_set(entry.position)
                consumer.deliver(entry, 0, words if entry.left is None else _both(entry.left, words))

    def rewind(self) -> None:
        self.generation += 1
        self._buffer.clear()
        self.read_position = self._acks.first_unacked()
        for consumer in self.consumers:
            consumer.pending.clear()
            consumer.unacked_messages = 0

    def redeliver(self, consumer: Consumer, positions: Iterable[Position] | None) -> None:
        if consumer is self.active:
            self.rewind()

    def settled(self, consumer: Consumer, position: Position) -> None:
        """Nothing to do: delivery is in read order and waits for no acknowledgement."""


def _both(left: tuple[int, ...], unacked: tuple[int, ...] | None) -> tuple[int, ...]:
    """Messages that compaction kept and that are not acknowledged."""
    if unacked is None:
        return left
    return tuple(a & b for a, b in zip(left, unacked, strict=False))
