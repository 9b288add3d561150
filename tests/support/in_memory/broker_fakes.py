"""Small real parts for tests of the broker's machines: a peer that remembers its frames, a log in a list, and a shell
that reads for a dispatcher step by step, so that anything can happen between asking for a read and getting it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from anabranch.broker.publish.producer import Producer
from anabranch.broker.subscription.acknowledgement import ack_entry
from anabranch.broker.subscription.chunk_affinity import Chunk
from anabranch.broker.subscription.consumer import Consumer, ConsumerSpec, KeySharedPolicy
from anabranch.broker.subscription.delayed_delivery import DelayedEntries
from anabranch.broker.subscription.dispatcher import Dispatcher, ReadForward, Want
from anabranch.broker.subscription.dispatcher_key_shared import KeyedDispatcher
from anabranch.broker.subscription.dispatcher_shared import SharedDispatcher
from anabranch.broker.subscription.redelivery_counts import RedeliveryCounts
from anabranch.model.position import EARLIEST, Position
from anabranch.model.subscription_type import SubscriptionType
from anabranch.protocol.commands import BaseCommand, position_of, read_command
from anabranch.protocol.frames import FrameDecoder
from anabranch.runtime.net import Buffer
from anabranch.storage.cursor.ack_state import AckState, words_of
from anabranch.storage.cursor.cursor import Cursor
from anabranch.storage.ledger.ledger_chain import LedgerChain
from anabranch.storage.topic.topic_log import StoredEntry

FRAME_MAX = 6 * 1024 * 1024


class RecordingPeer:
    """A peer in memory: decodes what it is sent, counts what the broker holds for it."""

    def __init__(self, address: str = "peer:1") -> None:
        self.address = address
        self.client_version = "test"
        self.protocol_version = 21
        self.knows_end_of_topic = True
        self.is_open = True
        self.has_room = True
        self.answers_probes = True
        self.pending_bytes = 0
        self.closed_producers: list[int] = []
        self.closed_consumers: list[int] = []
        self._sent = bytearray()

    def send(self, *buffers: Buffer) -> None:
        for buffer in buffers:
            self._sent += buffer

    def send_run(self, buffers: list[Buffer], size: int) -> None:
        assert size == sum(map(len, buffers))
        self.send(*buffers)

    def frames(self) -> list[tuple[int, Any]]:
        """What was sent since the last call, as (command, body)."""
        data, self._sent = bytes(self._sent), bytearray()
        return [read_command(bytes(frame.command)) for frame in FrameDecoder(FRAME_MAX).feed(data)]

    def bodies(self, kind: int) -> list[Any]:
        """As `frames`, of one command; the others are dropped."""
        return [body for found, body in self.frames() if found == kind]

    def messages(self) -> list[Position]:
        return [position_of(body.message_id) for body in self.bodies(BaseCommand.MESSAGE)]

    async def is_alive(self) -> bool:
        return self.is_open and self.answers_probes

    def add_pending_bytes(self, size: int) -> None:
        self.pending_bytes += size

    def producer_closed(self, producer_id: int) -> None:
        self.closed_producers.append(producer_id)

    def consumer_closed(self, consumer_id: int) -> None:
        self.closed_consumers.append(consumer_id)


def make_consumer(
    kind: SubscriptionType,
    number: int = 1,
    *,
    peer: RecordingPeer | None = None,
    permits: int = 0,
    priority: int = 0,
    name: str = "",
    unacked_max: int = 0,
    ranges: tuple[tuple[int, int], ...] = (),
    allow_out_of_order: bool = False,
    nacks_messages: bool = False,
) -> Consumer:
    spec = ConsumerSpec(
        consumer_id=number,
        name=name or f"c{number}",
        type=kind,
        priority=priority,
        partition=-1,
        metadata={},
        key_shared=KeySharedPolicy(ranges, allow_out_of_order),
        epoch=None,
        nacks_messages=nacks_messages,
    )
    consumer = Consumer(peer or RecordingPeer(f"peer:{number}"), spec, unacked_max, 0)
    consumer.permits = permits
    return consumer


def peer_of(consumer: Consumer | Producer) -> RecordingPeer:
    assert isinstance(consumer.peer, RecordingPeer)
    return consumer.peer


class ListLog:
    """Entries of one open ledger, and a cursor on them. The payload of entry n is its decimal number."""

    def __init__(self, count: int = 0, messages: int = 1) -> None:
        self.chain = LedgerChain()
        self._ledger = self.chain.open(7)
        self.entries: list[StoredEntry] = []
        self.cursor = Cursor(self, "s", AckState(self.chain), {}, durable=False)
        self.cursor.seek(EARLIEST)
        self.append(count, messages)

    def append(self, count: int, messages: int = 1) -> None:
        for _ in range(count):
            number = len(self.entries)
            self.entries.append(StoredEntry(Position(7, number), messages, b"%d" % number))
            self._ledger.entries += 1
            self._ledger.messages += messages
            self.chain.last = Position(7, number)

    def cursor_changed(self, cursor: Cursor) -> None:
        """Not durable: nothing to write."""

    async def flush_state(self) -> None:
        return

    async def messages_upto(self, p: Position) -> int:
        return sum(entry.messages for entry in self.entries if entry.position <= p)

    def read(self, want: Want, entries_max: int) -> list[StoredEntry]:
        if isinstance(want, ReadForward):
            return self.entries[want.start.entry : want.start.entry + entries_max]
        return [self.entries[position.entry] for position in want.positions]


class Shell:
    """What a subscription does around its dispatcher, in single steps."""

    def __init__(self, dispatcher: Dispatcher, log: ListLog, entries_max: int = 1_000) -> None:
        self.dispatcher = dispatcher
        self.log = log
        self.entries_max = entries_max
        self._reading: tuple[Want, int, list[StoredEntry]] | None = None

    @property
    def is_reading(self) -> bool:
        return self._reading is not None

    def begin_read(self) -> bool:
        """Ask the dispatcher and read; False when there is nothing to do."""
        if self._reading is not None:
            return False
        self.dispatcher.drain()
        want = self.dispatcher.wants()
        if want is None:
            return False
        entries = self.log.read(want, self.entries_max)
        if not entries and isinstance(want, ReadForward):
            return False
        self._reading = (want, self.dispatcher.generation, entries)
        return True

    def end_read(self, *, fail: bool = False) -> None:
        if self._reading is None:
            return
        (want, generation, entries), self._reading = self._reading, None
        if fail:
            self.dispatcher.give_back(want)
        elif generation == self.dispatcher.generation:
            self.dispatcher.offer(want, entries)

    def pump(self, steps: int = 10_000) -> None:
        """Read and deliver until nothing moves any more."""
        self.end_read()
        for _ in range(steps):
            if not self.begin_read():
                return
            self.end_read()
        raise AssertionError("the dispatcher never comes to rest")

    def flow(self, consumer: Consumer, permits: int) -> None:
        consumer.permits += permits

    def ack(self, consumer: Consumer, position: Position) -> None:
        """Through any consumer, not only the one that received the entry."""
        ack_entry(self.log.cursor, self.dispatcher, consumer, position, (), 1)

    def ack_part(self, consumer: Consumer, position: Position, bits: int, size: int) -> None:
        ack_entry(self.log.cursor, self.dispatcher, consumer, position, words_of((1 << size) - 1 & ~bits), size)

    def join(self, consumer: Consumer) -> Consumer:
        self.dispatcher.join(consumer)
        return consumer

    def leave(self, consumer: Consumer) -> None:
        consumer.closed = True
        self.dispatcher.leave(consumer)


def positions(numbers: Iterable[int]) -> list[Position]:
    return [Position(7, number) for number in numbers]


def numbers(found: Sequence[Position]) -> list[int]:
    return [position.entry for position in found]


def shared(
    log: ListLog,
    *,
    unacked_max: int = 0,
    delay: Callable[[StoredEntry], int] | None = None,
    chunk_of: Callable[[StoredEntry], Chunk | None] = lambda entry: None,
) -> SharedDispatcher:
    return SharedDispatcher(
        log.cursor,
        unacked_max=unacked_max,
        delayed=DelayedEntries(1_000),
        deliver_at_of=delay or (lambda entry: 0),
        chunk_of=chunk_of,
        now_ms=lambda: 1_000,
        redeliveries=RedeliveryCounts(),
    )


def keyed(
    log: ListLog,
    *,
    slots: int = 1,
    unacked_max: int = 0,
    lookahead_max: int = 1_000,
    sticky: bool = False,
    allow_out_of_order: bool = False,
    delay: Callable[[StoredEntry], int] | None = None,
    delayed_max: int = 1_000,
) -> KeyedDispatcher:
    """Entry n has one of `slots` slots, spread over the ring."""
    step = 65_536 // slots
    return KeyedDispatcher(
        log.cursor,
        slot_of=lambda entry: entry.position.entry % slots * step,
        delayed=DelayedEntries(delayed_max),
        deliver_at_of=delay or (lambda entry: 0),
        now_ms=lambda: 1_000,
        sticky=sticky,
        allow_out_of_order=allow_out_of_order,
        unacked_max=unacked_max,
        lookahead_max=lookahead_max,
    )
