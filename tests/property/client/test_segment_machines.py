"""`SegmentProducerState` and `SegmentConsumerState` against a model of the broker: any order of receipts, losses and
batch bounds keeps order and loses nothing.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence

from hypothesis import example, given, settings
from hypothesis import strategies as st

from anabranch.client.config import Batching
from anabranch.client.consumer.segment import effects as intakes
from anabranch.client.consumer.segment.effects import Ack, Deliver, Flow, Redeliver
from anabranch.client.consumer.segment.segment_consumer_state import SegmentConsumerState
from anabranch.client.messages.message import Message, MessageId
from anabranch.client.messages.outgoing import Entry, OutgoingMessage
from anabranch.client.producer.segment_producer_state import (
    Arm,
    Effect,
    Failed,
    Reconnect,
    SegmentProducerState,
    Stored,
    Transmit,
)
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.entry import build_batch, build_entry, split_batch

# ------------------------------------------------------------------------------------------------------------ the lane


class LaneWorld:
    """A lane, a wire in both directions, and a broker that may lose either at any moment."""

    def __init__(self, batching: Batching, window: int, is_deduplicating: bool) -> None:
        self.lane = SegmentProducerState("p", batching, in_flight_bytes_max=window)
        self.is_deduplicating = is_deduplicating
        self.is_connected = False
        self.wire: deque[Entry] = deque()
        self.receipts: deque[tuple[int, int]] = deque()
        self.log: list[int] = []  # values in the order the broker stored them
        self.highest = -1
        self.outcomes: list[int] = []
        self.appended = 0
        self.armed: list[int] = []

    def perform(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case Transmit(entry):
                    assert self.is_connected
                    self.wire.append(entry)
                case Stored(records, _, _):
                    self.outcomes += [record.sequence_id for record in records]
                case Arm(batch):
                    self.armed.append(batch)
                case Failed() | Reconnect():
                    raise AssertionError(f"nothing here gives a reason for {effect}")

    def append(self, size: int) -> None:
        record = OutgoingMessage(self.appended, b"%d " % self.appended + b"x" * size, key="k")
        self.appended += 1
        self.perform(self.lane.append(record))

    def due(self) -> None:
        for batch in self.armed:
            self.perform(self.lane.due(batch))
        self.armed.clear()

    def connect(self) -> None:
        if not self.is_connected:
            self.is_connected = True
            self.perform(self.lane.opened())

    def disconnect(self) -> None:
        self.is_connected = False
        self.wire.clear()
        self.receipts.clear()
        self.lane.lost()

    def store(self, count: int) -> None:
        for _ in range(min(count, len(self.wire))):
            entry = self.wire.popleft()
            if not self.is_deduplicating or entry.highest > self.highest:
                self.log += [int(one.data.split()[0]) for one in split_batch(entry.data)]
                self.highest = max(self.highest, entry.highest)
            self.receipts.append((entry.first, len(self.log)))

    def confirm(self, count: int) -> None:
        for _ in range(min(count, len(self.receipts))):
            sequence, position = self.receipts.popleft()
            self.perform(self.lane.receipt(sequence, 1, position))


LANE_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 200)),
        st.tuples(st.sampled_from(["due", "connect", "disconnect"]), st.just(0)),
        st.tuples(st.sampled_from(["store", "confirm"]), st.integers(1, 4)),
    ),
    max_size=80,
)


@settings(max_examples=300, deadline=None)
@given(
    steps=LANE_STEPS,
    messages_max=st.integers(1, 5),
    window=st.sampled_from([1, 400, 1 << 20]),
    is_deduplicating=st.booleans(),
)
def test_segment_producer_keeps_order_and_loses_nothing(
    steps: list[tuple[str, int]], messages_max: int, window: int, is_deduplicating: bool
) -> None:
    world = LaneWorld(Batching(max_messages=messages_max, max_bytes=600), window, is_deduplicating)
    for name, amount in steps:
        if name in ("append", "store", "confirm"):
            getattr(world, name)(amount)
        else:
            getattr(world, name)()
    world.connect()
    world.perform(world.lane.flush())
    while not world.lane.is_idle:
        assert world.wire or world.receipts, "it waits for something that never comes"
        world.store(100)
        world.confirm(100)
    everything = list(range(world.appended))
    assert world.outcomes == everything
    assert list(dict.fromkeys(world.log)) == everything, "first appearances are in order"
    if is_deduplicating:
        assert world.log == everything


# ---------------------------------------------------------------------------------------------------------- the intake


class IntakeWorld:
    """An intake, an application, and a broker with a shared subscription of which it is the only consumer."""

    def __init__(self, sizes: list[int], prefetch: int, takes_parts: bool) -> None:
        """`takes_parts`: the broker supports nacks of single messages."""
        self.state = SegmentConsumerState("t", prefetch=prefetch)
        self.takes_parts = takes_parts
        self.parts: dict[int, int] = {}  # messages of pending entries that were returned
        self.sizes = sizes
        self.unacked = {n: (1 << max(size, 1)) - 1 for n, size in enumerate(sizes)}
        self.ready = deque(range(len(sizes)))
        self.pending: list[int] = []
        self.permits = 0
        self.is_connected = False
        self.buffer: deque[Message] = deque()
        self.held: dict[MessageId, Message] = {}
        self.handed = Counter[MessageId]()
        self.nacked = Counter[MessageId]()
        self.said: deque[Ack] = deque()  # on their way to the broker
        self.answers: deque[int] = deque()  # on their way back

    def perform(self, effects: Sequence[intakes.Effect]) -> None:
        for effect in effects:
            match effect:
                case Flow(permits):
                    self.permits += permits
                case Deliver(messages):
                    self.buffer.extend(messages)
                case Ack():
                    self.said.append(effect)
                case Redeliver(ids):
                    self.hear_acks(len(self.said))  # one connection: earlier commands arrive earlier
                    for one in ids:
                        if one.entryId in self.pending and self.takes_parts and one.ack_set:
                            self.parts[one.entryId] = self.parts.get(one.entryId, 0) | one.ack_set[0]
                        elif one.entryId in self.pending:
                            self.pending.remove(one.entryId)
                            self.ready.appendleft(one.entryId)
                case _:
                    raise AssertionError(f"nothing here gives a reason for {effect}")

    def connect(self) -> None:
        if not self.is_connected:
            self.is_connected = True
            self.permits = 0
            self.perform(self.state.opened())

    def disconnect(self) -> None:
        if self.is_connected:
            self.is_connected = False
            self.said.clear()
            self.answers.clear()
            self.ready.extendleft(sorted(self.pending, reverse=True))
            self.pending.clear()
            self.parts.clear()
            self.state.lost([message.id for message in self.buffer])
            self.buffer.clear()

    def deliver(self) -> None:
        if not self.is_connected or self.permits <= 0:
            return
        while self.ready and not self.unacked[self.ready[0]]:
            self.ready.popleft()
        if self.parts:
            entry, bits = self.parts.popitem()
            bits &= self.unacked[entry]
            if not bits:
                return
        elif self.ready:
            entry = self.ready.popleft()
            bits = self.unacked[entry]
            self.pending.append(entry)
        else:
            return
        size = self.sizes[entry]
        self.permits -= bits.bit_count()
        body = pb.CommandMessage(consumer_id=1, message_id=pb.MessageIdData(ledgerId=1, entryId=entry))
        if bits != (1 << max(size, 1)) - 1:
            body.ack_set.append(bits)
        data = [b"%d" % n for n in range(size)]
        self.perform(self.state.delivered(body, build_batch(data) if size else build_entry(b"x")))

    def hear_acks(self, count: int) -> None:
        for _ in range(min(count, len(self.said))):
            ack = self.said.popleft()
            for one in ack.ids:
                left = one.ack_set[0] if one.ack_set else 0
                self.unacked[one.entryId] &= left
                if not left and one.entryId in self.pending:
                    self.pending.remove(one.entryId)
            self.answers.append(ack.number)

    def confirm(self) -> None:
        if self.answers:
            self.state.confirmed(self.answers.popleft())

    def take(self) -> None:
        if self.buffer:
            message = self.buffer.popleft()
            self.perform(self.state.taken())
            assert message.id not in self.held, "handed out twice"
            self.handed[message.id] += 1
            self.held[message.id] = message

    def ack(self, which: int) -> None:
        if self.held:
            self.state.ack(self.held.pop(list(self.held)[which % len(self.held)]).id)

    def ack_later(self, which: int) -> None:
        for one in list(self.held)[: which % 4]:
            message = self.held.pop(one)
            self.state.ack_later(message.origin if which % 2 else message.id, message.batch_index)

    def nack(self, which: int) -> None:
        if self.held:
            one = self.held.pop(list(self.held)[which % len(self.held)]).id
            self.nacked[one] += 1
            self.perform(self.state.release([one]))


INTAKE_STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["connect", "disconnect", "confirm", "flush"]), st.none()),
        st.tuples(st.sampled_from(["deliver", "take"]), st.none()),
        st.tuples(st.sampled_from(["deliver", "take"]), st.none()),
        st.tuples(st.sampled_from(["ack", "ack_later", "nack", "hear_acks"]), st.integers(1, 9)),
    ),
    max_size=120,
)


@settings(max_examples=300, deadline=None)
@given(
    steps=INTAKE_STEPS,
    sizes=st.lists(st.integers(0, 5), min_size=1, max_size=8),
    prefetch=st.integers(1, 12),
    takes_parts=st.booleans(),
)
@example(  # the first of two acks of one entry is confirmed, and the connection breaks before the second
    steps=[("connect", None), ("deliver", None), ("take", None), ("take", None), ("ack", 1), ("flush", None),
           ("ack", 1), ("flush", None), ("hear_acks", 1), ("confirm", None), ("disconnect", None)],
    sizes=[2], prefetch=5, takes_parts=True,
)  # fmt: skip
def test_segment_consumer_delivers_everything_once(
    steps: list[tuple[str, int | None]], sizes: list[int], prefetch: int, takes_parts: bool
) -> None:
    world = IntakeWorld(sizes, prefetch, takes_parts)
    for name, amount in steps:
        if name == "flush":
            world.perform(world.state.flush())
        elif amount is None:
            getattr(world, name)()
        else:
            getattr(world, name)(amount)
    world.connect()
    for _ in range(20 * (1 + sum(sizes) + len(sizes))):
        world.deliver()
        world.take()
        world.ack(0)
        world.perform(world.state.flush())
        world.hear_acks(9)
        world.confirm()
    assert not any(world.unacked.values()), "something was never handed out, or its ack never arrived"
    assert world.state.is_clean
    expected = {(n, index) for n, size in enumerate(sizes) for index in (range(size) if size else [-1])}
    assert {(one.entry, one.batch_index) for one in world.handed} == expected
    assert all(count <= 1 + world.nacked[one] for one, count in world.handed.items()), "delivered again without a nack"
    assert not world.state._entries, "finished entries are forgotten"
