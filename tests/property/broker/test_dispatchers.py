"""Dispatchers under any order of joins, leaves, flows, acks, nacks and reads that end late or fail."""

from __future__ import annotations

from collections import defaultdict, deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.broker.subscription import consumer as consumers
from anabranch.broker.subscription.consumer import RUN_BYTES, Consumer
from anabranch.broker.subscription.dispatcher_key_shared import KeyedDispatcher
from anabranch.broker.subscription.dispatcher_shared import SharedDispatcher
from anabranch.broker.subscription.dispatcher_single_active import SingleDispatcher
from anabranch.model.position import Position
from anabranch.model.subscription_type import SubscriptionType
from anabranch.runtime.net import Buffer
from anabranch.storage.interface import StoredEntry
from tests.support.in_memory.broker_fakes import (
    ListLog,
    RecordingPeer,
    Shell,
    keyed,
    make_consumer,
    numbers,
    peer_of,
    shared,
)

STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "join",
                "leave",
                "flow",
                "ack",
                "ack",
                "nack",
                "begin",
                "end",
                "fail",
                "late ack",
                "append",
                "full",
                "room",
            ]
        ),
        st.integers(0, 1_000),
        st.integers(1, 6),
    ),
    max_size=60,
)
QUICK = settings(max_examples=150, deadline=None)


class Scene:
    """Consumers come and go around one dispatcher; every delivery is written down in order."""

    def __init__(self, shell: Shell, kind: SubscriptionType, *, unacked_max: int = 0, sends_nacks: bool = True) -> None:
        self.shell = shell
        self.kind = kind
        self.unacked_max = unacked_max
        self.sends_nacks = sends_nacks
        self.consumers: list[Consumer] = []
        self.held: dict[Consumer, list[Position]] = defaultdict(list)
        self.delivered: list[tuple[Consumer, Position]] = []
        self.acked: list[Position] = []
        self.returned: list[Position] = []
        self._number = 0

    def collect(self) -> None:
        for consumer in self.consumers:
            for position in peer_of(consumer).messages():
                self.held[consumer].append(position)
                self.delivered.append((consumer, position))
                self.check_delivery(consumer, position)
            most = max((entry.messages for entry in self.shell.log.entries), default=1)
            assert consumer.permits > -most, "permits exceeded by more than one entry"
            assert consumer.unacked_messages == sum(pending.messages for pending in consumer.pending.values())

    def check_delivery(self, consumer: Consumer, position: Position) -> None:
        assert position not in self.acked, "delivered after it was acknowledged"
        for other in self.consumers:
            assert other is consumer or position not in self.held[other], "in two hands at once"

    def step(self, action: str, pick: int, count: int) -> None:
        shell = self.shell
        match action:
            case "join":
                self._number += 1
                consumer = make_consumer(self.kind, self._number, unacked_max=self.unacked_max, permits=count)
                self.consumers.append(shell.join(consumer))
            case "begin":
                shell.begin_read()
            case "end":
                shell.end_read()
            case "fail":
                shell.end_read(fail=True)
            case "append":
                shell.log.append(count)
            case _ if self.consumers:
                self.act(action, self.consumers[pick % len(self.consumers)], pick, count)
        self.collect()

    def act(self, action: str, consumer: Consumer, pick: int, count: int) -> None:
        held = self.held[consumer]
        match action:
            case "leave":
                self.consumers.remove(consumer)
                del self.held[consumer]
                self.shell.leave(consumer)
            case "flow":
                self.shell.flow(consumer, count)
            case "full":
                peer_of(consumer).has_room = False
            case "room":
                peer_of(consumer).has_room = True
            case "ack" if held:
                self.ack(consumer, held[pick % len(held)])
            case "late ack" if self.returned:
                self.ack(consumer, self.returned[pick % len(self.returned)])
            case "nack" if held and self.sends_nacks:
                returned = held[pick % len(held) :][:count]
                self.held[consumer] = [position for position in held if position not in returned]
                self.returned.extend(returned)
                self.shell.dispatcher.redeliver(consumer, returned)

    def ack(self, consumer: Consumer, position: Position) -> None:
        for held in self.held.values():
            if position in held:
                held.remove(position)
        self.returned = [other for other in self.returned if other != position]
        self.acked.append(position)
        self.shell.ack(consumer, position)

    def finish(self) -> None:
        """All consumers are ready and acknowledge: every remaining message must be delivered."""
        if not self.consumers:
            self.step("join", 0, 1)
        for consumer in self.consumers:
            peer_of(consumer).has_room = True
        self.shell.end_read()
        self.collect()
        for _ in range(1_000):
            for consumer in self.consumers:
                consumer.permits = max(consumer.permits, 5)
            self.shell.pump()
            self.collect()
            waiting = [(consumer, position) for consumer in self.consumers for position in self.held[consumer]]
            if not waiting:
                break
            for consumer, position in waiting:
                self.ack(consumer, position)
        everything = [entry.position for entry in self.shell.log.entries]
        assert sorted(self.acked) == everything, "each entry acknowledged exactly once in the end"
        assert isinstance(self.shell.dispatcher, SharedDispatcher | KeyedDispatcher)
        assert not self.shell.dispatcher.redeliveries, "counts of finished entries are forgotten"


@QUICK
@given(STEPS, st.integers(0, 12), st.sampled_from([0, 3]), st.sampled_from([0, 1, 5]), st.integers(1, 4))
def test_shared_delivers_everything_in_the_end(
    steps: list[tuple[str, int, int]], count: int, consumer_max: int, subscription_max: int, reads: int
) -> None:
    log = ListLog(count)
    shell = Shell(shared(log, unacked_max=subscription_max), log, reads)
    scene = Scene(shell, SubscriptionType.SHARED, unacked_max=consumer_max)
    for step in steps:
        scene.step(*step)
    scene.finish()


class KeyedScene(Scene):
    """The oracle of order: of one slot, a new delivery is behind everything of the slot that others still hold, and in
    one consumer's hands the slot's entries were delivered in ascending order."""

    slots = 3

    def check_delivery(self, consumer: Consumer, position: Position) -> None:
        super().check_delivery(consumer, position)
        slot = position.entry % self.slots
        for other in self.consumers:
            for held in self.held[other]:
                if held.entry % self.slots == slot and other is not consumer:
                    raise AssertionError(f"{position} delivered while {other} still holds {held} of its slot")
        if not self.sends_nacks:
            mine = [held.entry for held in self.held[consumer] if held.entry % self.slots == slot]
            assert mine == sorted(mine), "out of order inside a slot"
            earlier = range(slot, position.entry, self.slots)
            settled = {p.entry for p in self.acked} | set(mine)
            assert all(entry in settled for entry in earlier), "an earlier entry of the slot was overtaken"


@QUICK
@given(
    STEPS, st.integers(0, 15), st.sampled_from([0, 3]), st.sampled_from([0, 1, 5]), st.integers(1, 4),
    st.sampled_from([3, 1_000]), st.booleans(),
)  # fmt: skip
def test_key_shared_delivers_each_slot_completely_in_order(
    steps: list[tuple[str, int, int]],
    count: int,
    consumer_max: int,
    subscription_max: int,
    reads: int,
    lookahead_max: int,
    sends_nacks: bool,
) -> None:
    log = ListLog(count)
    dispatcher = keyed(log, slots=KeyedScene.slots, unacked_max=subscription_max, lookahead_max=lookahead_max)
    scene = KeyedScene(
        Shell(dispatcher, log, reads), SubscriptionType.KEY_SHARED, unacked_max=consumer_max, sends_nacks=sends_nacks
    )
    for step in steps:
        scene.step(*step)
    scene.finish()


@QUICK
@given(STEPS, st.integers(0, 12), st.integers(1, 4), st.integers(-1, 3))
def test_failover_delivers_in_order_to_the_active_consumer_only(
    steps: list[tuple[str, int, int]], count: int, reads: int, partition: int
) -> None:
    log = ListLog(count)
    dispatcher = SingleDispatcher(log.cursor, SubscriptionType.FAILOVER, partition)
    shell = Shell(dispatcher, log, reads)
    consumers: list[Consumer] = []
    run: list[int] = []  # what the active consumer got since it became active or asked for redelivery
    active: Consumer | None = None
    for index, (action, pick, amount) in enumerate(steps):
        consumer = consumers[pick % len(consumers)] if consumers else None
        generation = dispatcher.generation
        match action:
            case "join":
                consumers.append(shell.join(make_consumer(SubscriptionType.FAILOVER, index, permits=amount)))
            case "begin":
                shell.begin_read()
            case "end" | "fail":
                shell.end_read(fail=action == "fail")
            case "append":
                log.append(amount)
            case "leave" if consumer is not None:
                consumers.remove(consumer)
                shell.leave(consumer)
            case "flow" if consumer is not None:
                shell.flow(consumer, amount)
            case "nack" if consumer is not None:
                dispatcher.redeliver(consumer, None)
            case "ack" if run:
                log.cursor.ack_cumulative(Position(7, run[pick % len(run)]))
        if dispatcher.active is not active or dispatcher.generation != generation:
            active, run = dispatcher.active, []
        for one in consumers:
            got = numbers(peer_of(one).messages())
            assert not got or one is active
            assert one.permits >= 0
            run.extend(got)
        assert run == sorted(set(run))
        skipped = set(range(run[0], run[-1])) - set(run) if run else set()
        assert all(log.cursor.is_acked(Position(7, entry)) for entry in skipped)


class NarrowPeer(RecordingPeer):
    """Accepts `capacity` bytes."""

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity = capacity
        self.sent: list[bytes] = []

    def send(self, *buffers: Buffer) -> None:
        self.sent += (bytes(buffer) for buffer in buffers)
        self.capacity -= sum(map(len, buffers))
        self.has_room = self.capacity > 0


@QUICK
@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(0, 90_000), st.booleans()), max_size=30),
    st.sampled_from(list(SubscriptionType)),
    st.integers(0, 60),
    st.sampled_from((0, 7)),
    st.sampled_from((consumers.PENDING_TRACKED_MAX, 0, 5)),
)
def test_a_run_is_delivered_as_one_by_one(
    sizes: list[tuple[int, int, bool]], kind: SubscriptionType, permits: int, unacked_max: int, tracked_max: int
) -> None:
    """One consumer receives the run, the other single entries while it is ready. The socket queue is not the limit
    here, because a run checks it less often."""
    entries = []
    ledger, number = 7, 0
    for messages, size, is_next_ledger in sizes:
        ledger, number = (ledger + 1, 0) if is_next_ledger else (ledger, number + 1)
        entries.append(StoredEntry(Position(ledger, number), messages, bytes(size)))
    peers = NarrowPeer(1 << 40), NarrowPeer(1 << 40)
    run, single = (make_consumer(kind, peer=peer, permits=permits, unacked_max=unacked_max) for peer in peers)
    before = [StoredEntry(Position(7, 0), 1, b"taken")]
    rest = deque(entries)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(consumers, "PENDING_TRACKED_MAX", tracked_max)
        taken = run.deliver_run(before + entries, 1)
        while rest and single.is_ready:
            single.deliver(rest.popleft(), 0, None)
    assert entries[taken:] == list(rest)
    assert b"".join(peers[0].sent) == b"".join(peers[1].sent)
    for name in ("permits", "pending", "unacked_messages", "messages_out", "bytes_out", "lost_track"):
        assert getattr(run, name) == getattr(single, name)
    assert list(run.pending) == list(single.pending)


def test_a_run_stops_soon_after_the_socket_is_full() -> None:
    peer = NarrowPeer(200_000)
    consumer = make_consumer(SubscriptionType.EXCLUSIVE, peer=peer, permits=1_000)
    taken = consumer.deliver_run([StoredEntry(Position(7, number), 1, bytes(10_000)) for number in range(100)], 0)
    assert 200_000 <= sum(map(len, peer.sent)) < 200_000 + RUN_BYTES + 20_000
    assert taken == consumer.messages_out
