"""Shared: every entry goes to a ready consumer, in turn. Entries of a consumer that leaves are redelivered.

The chunks of one message go to one consumer, and wait for it. Pure, see `dispatcher`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence

from anabranch.broker.subscription.chunk_affinity import Chunk, ChunkAffinity
from anabranch.broker.subscription.consumer import Consumer
from anabranch.broker.subscription.consumer_selectors import RoundRobin
from anabranch.broker.subscription.delayed_delivery import DelayedEntries
from anabranch.broker.subscription.dispatcher import Acks, EntryBuffer, ReadForward, ReadThese, Want, after, room_left
from anabranch.model.position import Position
from anabranch.storage.topic.topic_log import StoredEntry

REPLAY_STEP = 100


class Replay:
    """Positions to deliver again, smallest first, each once."""

    def __init__(self) -> None:
        self._heap: list[Position] = []
        self._known: set[Position] = set()

    def __len__(self) -> int:
        return len(self._known)

    def add(self, position: Position) -> None:
        if position not in self._known:
            self._known.add(position)
            heapq.heappush(self._heap, position)

    def is_before(self, position: Position) -> bool:
        """Whether an earlier entry is waiting for redelivery."""
        return bool(self._heap) and self._heap[0] < position

    def take(self, count: int) -> tuple[Position, ...]:
        taken = tuple(heapq.heappop(self._heap) for _ in range(min(count, len(self._heap))))
        self._known.difference_update(taken)
        return taken

    def clear(self) -> None:
        self._heap.clear()
        self._known.clear()


class SharedDispatcher:
    def __init__(
        self,
        acks: Acks,
        *,
        unacked_max: int,
        delayed: DelayedEntries,
        deliver_at_of: Callable[[StoredEntry], int],
        chunk_of: Callable[[StoredEntry], Chunk | None],
        now_ms: Callable[[], int],
    ) -> None:
        self.consumers: list[Consumer] = []
        self.read_position = acks.first_unacked()
        self.generation = 0
        self.delayed = delayed
        self.redeliveries: dict[Position, int] = {}
        self._acks = acks
        self.unacked_max = unacked_max
        self._deliver_at_of = deliver_at_of
        self._chunk_of = chunk_of
        self._collectors: ChunkAffinity[Consumer] = ChunkAffinity()
        self._now_ms = now_ms
        self._turns: RoundRobin[Consumer] = RoundRobin(lambda consumer: consumer.spec.priority)
        self._replay = Replay()
        self._buffer = EntryBuffer()

    def join(self, consumer: Consumer) -> None:
        self.consumers.append(consumer)
        self._turns.reset(self.consumers)

    def leave(self, consumer: Consumer) -> None:
        self.consumers.remove(consumer)
        self._turns.reset(self.consumers)
        self._collectors.left(consumer)
        self.redeliver(consumer, None)
        if not self.consumers:
            self.rewind()

    @property
    def is_blocked(self) -> bool:
        """Whether the subscription has too many unacknowledged messages."""
        return room_left(self.unacked_max, self.consumers) <= 0

    @property
    def replay_count(self) -> int:
        return len(self._replay)

    def wants(self) -> Want | None:
        if self._buffer or self.is_blocked or not any(consumer.is_ready for consumer in self.consumers):
            return None
        if self._replay:
            return ReadThese(self._replay.take(REPLAY_STEP))
        if self.delayed.is_full:
            return None
        return ReadForward(self.read_position)

    def offer(self, want: Want, entries: Sequence[StoredEntry]) -> None:
        if isinstance(want, ReadThese) and len(entries) < len(want.positions):
            for position in set(want.positions).difference(entry.position for entry in entries):
                self.redeliveries.pop(position, None)  # no longer in the log
        if entries:
            if isinstance(want, ReadForward):
                self.read_position = after(entries[-1].position)
            self._buffer.extend(entries)
            self.drain()

    def give_back(self, want: Want) -> None:
        if isinstance(want, ReadThese):
            for position in want.positions:
                self._replay.add(position)

    def drain(self) -> None:
        buffer, acks = self._buffer, self._acks
        if not buffer:
            return
        room = room_left(self.unacked_max, self.consumers)
        while buffer:
            entry = buffer.head
            position = entry.position
            if acks.is_acked(position):
                self.redeliveries.pop(position, None)
                buffer.pop()
                continue
            deliver_at = self._deliver_at_of(entry)
            if deliver_at and deliver_at > self._now_ms():
                self.delayed.add(deliver_at, position)
                buffer.pop()
                continue
            chunk = self._chunk_of(entry)
            collector = None if chunk is None else self._collectors.owner(chunk)
            if chunk is not None and chunk.number and collector is None and self._replay.is_before(position):
                self._replay.add(position)  # its first chunk is redelivered before, and decides the consumer
                buffer.pop()
                continue
            if room <= 0 or (collector is not None and not collector.is_ready):
                return
            consumer = collector or self._turns.pick(lambda candidate: candidate.is_ready)
            if consumer is None:
                return
            if chunk is not None:
                self._collectors.delivered(chunk, consumer)
            buffer.pop()
            unacked = consumer.unacked_messages
            consumer.deliver(entry, self.redeliveries.get(position, 0), acks.ack_set(position))
            room -= consumer.unacked_messages - unacked

    def rewind(self) -> None:
        self.generation += 1
        self._buffer.clear()
        self._replay.clear()
        self.delayed.clear()
        self.redeliveries.clear()
        self._collectors.clear()
        self.read_position = self._acks.first_unacked()
        for consumer in self.consumers:
            consumer.pending.clear()
            consumer.unacked_messages = 0

    def redeliver(self, consumer: Consumer, positions: Iterable[Position] | None) -> None:
        for position in list(consumer.pending) if positions is None else positions:
            if consumer.settle(position) is not None:
                self.redeliveries[position] = self.redeliveries.get(position, 0) + 1
                self._replay.add(position)

    def release(self, positions: Iterable[Position]) -> None:
        """Deliver delayed entries that are due."""
        for position in positions:
            self._replay.add(position)

    def settled(self, consumer: Consumer, position: Position) -> None:
        self.redeliveries.pop(position, None)
