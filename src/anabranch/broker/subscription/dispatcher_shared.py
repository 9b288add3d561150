"""Shared: every entry goes to a ready consumer, in turn. Entries of a consumer that leaves are redelivered.

Of a batch, single messages can be returned (`redeliver_part`). The entry is divided then: its other messages stay with
their consumer, and each MESSAGE names the messages that it delivers. All messages of one MESSAGE have the same
redelivery count.

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
from anabranch.broker.subscription.divided_entry import DividedEntry
from anabranch.broker.subscription.redelivery_counts import RedeliveryCounts
from anabranch.model.position import Position
from anabranch.storage.cursor.ack_state import mask_of, words_of
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
        redeliveries: RedeliveryCounts,
    ) -> None:
        self.consumers: list[Consumer] = []
        self.read_position = acks.first_unacked()
        self.generation = 0
        self.delayed = delayed
        self.redeliveries = redeliveries
        self._acks = acks
        self.unacked_max = unacked_max
        self._deliver_at_of = deliver_at_of
        self._chunk_of = chunk_of
        self._collectors: ChunkAffinity[Consumer] = ChunkAffinity()
        self._now_ms = now_ms
        self._turns: RoundRobin[Consumer] = RoundRobin(lambda consumer: consumer.spec.priority)
        self._replay = Replay()
        self._buffer = EntryBuffer()
        self._divided: dict[Position, DividedEntry[Consumer]] = {}  # until they are acknowledged

    def join(self, consumer: Consumer) -> None:
        self.consumers.append(consumer)
        self._turns.reset(self.consumers)

    def leave(self, consumer: Consumer) -> None:
        self.consumers.remove(consumer)
        self._turns.reset(self.consumers)
        self._collectors.left(consumer)
        # A departure says nothing about the messages. Pulsar counts it, and clients that nack entries expect that. Of
        # others, messages count that the application had when the connection ended: they may be what killed it.
        is_counted = bool(self.consumers) and not consumer.spec.nacks_messages
        in_hand = dict(consumer.in_hand) if consumer.is_lost and not is_counted else {}
        for position in list(consumer.pending):
            returned = self._give_back(consumer, position, is_counted=is_counted)
            if (bits := in_hand.get(position)) is not None:
                self._count(position, bits, returned)
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
                self._forget(position)  # no longer in the log
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
        are_returned = bool(self._divided or self.redeliveries)
        while buffer:
            entry = buffer.head
            position = entry.position
            if acks.is_acked(position):
                self._forget(position)
                buffer.pop()
                continue
            divided = self._divide_again(entry) if are_returned else None
            if divided is not None and not divided.waiting:
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
            consumer = collector or self._pick(is_part=divided is not None)
            if consumer is None:
                return
            if chunk is not None:
                self._collectors.delivered(chunk, consumer)
            unacked = consumer.unacked_messages
            if divided is None:
                buffer.pop()
                count = self.redeliveries.of(position) if are_returned else 0
                consumer.deliver(entry, count, acks.ack_set(position))
            else:
                count, bits = self.redeliveries.levels(position, divided.waiting)[0]
                divided.deliver(consumer, bits)
                consumer.deliver_part(entry, count, words_of(bits))
            room -= consumer.unacked_messages - unacked

    def _pick(self, *, is_part: bool) -> Consumer | None:
        """The next ready consumer. Parts of an entry go to a client that nacks messages, if one is ready: without
        batch-index acknowledgement other clients cannot acknowledge them, and the broker does not know if they have it.
        """
        if is_part:
            able = self._turns.pick(lambda candidate: candidate.is_ready and candidate.spec.nacks_messages)
            if able is not None:
                return able
        return self._turns.pick(lambda candidate: candidate.is_ready)

    def rewind(self) -> None:
        self.generation += 1
        self._buffer.clear()
        self._replay.clear()
        self.delayed.clear()
        self._divided.clear()
        self._collectors.clear()
        self.read_position = self._acks.first_unacked()
        for consumer in self.consumers:
            consumer.pending.clear()
            consumer.in_hand.clear()
            consumer.unacked_messages = 0

    def redeliver(self, consumer: Consumer, positions: Iterable[Position] | None) -> None:
        for position in list(consumer.pending) if positions is None else positions:
            self._give_back(consumer, position)

    def redeliver_part(self, consumer: Consumer, position: Position, bits: int, size: int) -> None:
        """Redeliver these messages of a batch of `size`; the consumer keeps the others. The size is the client's: if
        the log has another one, the whole entry is redelivered."""
        pending = consumer.pending.get(position)
        if pending is None:
            return
        divided = self._divided.get(position)
        if size != pending.total:
            self._give_back(consumer, position)
        elif divided is not None:
            self._give_back(consumer, position, bits)
        elif mine := self._unacked(position, size) & bits:
            divided = self._divided[position] = DividedEntry(size, waiting=self._unacked(position, size))
            divided.deliver(consumer, divided.waiting)
            self._give_back(consumer, position, mine)

    def _count(self, position: Position, bits: int, returned: int | None) -> None:
        """These messages were tried (0: a message that is no batch), if they were returned (None: the whole entry)."""
        if not bits:
            self.redeliveries.add(position)
        elif tried := bits if returned is None else bits & returned:
            self.redeliveries.add(position, tried)

    def _give_back(
        self, consumer: Consumer, position: Position, bits: int | None = None, *, is_counted: bool = True
    ) -> int | None:
        """The consumer no longer holds these messages (None: what it holds of the entry). Returns which ones; None: the
        whole entry."""
        if position not in consumer.pending:
            return 0
        divided = self._divided.get(position)
        if divided is None:
            consumer.settle(position)
            returned = None
        else:
            returned = divided.give_back(consumer, bits)
            if not returned:
                return 0
            if left := divided.held.get(consumer, 0):
                consumer.settle_partly(position, left.bit_count())
                consumer.taken_back(position, returned)
            else:
                consumer.settle(position)
        if is_counted:
            self.redeliveries.add(position, returned)
        self._replay.add(position)
        return returned

    def _divide_again(self, entry: StoredEntry) -> DividedEntry[Consumer] | None:
        """The entry if it is divided, also by counts that differ."""
        position = entry.position
        divided = self._divided.get(position)
        if divided is None and self.redeliveries.differ(position):
            divided = DividedEntry(entry.messages, waiting=self._unacked(position, entry.messages))
            self._divided[position] = divided
        return divided

    def _unacked(self, position: Position, size: int) -> int:
        words = self._acks.ack_set(position)
        return (1 << size) - 1 if words is None else mask_of(words)

    def divided(self, position: Position) -> DividedEntry[Consumer] | None:
        return self._divided.get(position)

    def acknowledged_part(self, position: Position, divided: DividedEntry[Consumer]) -> int:
        """Messages of the entry were acknowledged. Returns how many of them consumers held."""
        unacked = 0 if self._acks.is_acked(position) else self._unacked(position, divided.size)
        total = 0
        for consumer, left, gone in divided.acknowledge(unacked):
            total += gone
            if left:
                consumer.settle_partly(position, left)
            else:
                consumer.settle(position)
        if not unacked:
            self._forget(position)
        return total

    def _forget(self, position: Position) -> None:
        self.redeliveries.forget(position)
        self._divided.pop(position, None)

    def release(self, positions: Iterable[Position]) -> None:
        """Deliver delayed entries that are due."""
        for position in positions:
            self._replay.add(position)

    def settled(self, consumer: Consumer, position: Position) -> None:
        self._forget(position)
