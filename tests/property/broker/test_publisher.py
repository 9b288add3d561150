"""Publishing under any mix of sends, resends, full windows, partial commits, failures and reconnects."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.broker.publish.producer import Producer, Window
from anabranch.broker.publish.sequence_ids import Sequences
from anabranch.protocol.commands import BaseCommand, signed
from anabranch.storage.interface import StorageError
from tests.support.in_memory.broker_fakes import RecordingPeer
from tests.support.in_memory.publisher import PublishWorld, make_producer, send
from tests.support.in_memory.topic_log import read_all

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["new", "new", "old", "other", "commit", "commit", "reconnect", "fail", "turn"]),
        st.integers(0, 30),
        st.integers(1, 3),
    ),
    max_size=50,
)


class Client:
    """A client with one named producer that sends growing ids, and again what it got no receipt for."""

    def __init__(self, world: PublishWorld, name: str, window: int) -> None:
        self.world, self.name, self.window = world, name, window
        self.next = 0
        self.unanswered: list[int] = []  # in SEND order, of this connection
        self.pending: list[int] = []  # without a receipt on any connection
        self.confirmed: set[int] = set()
        self.connect()

    def connect(self) -> None:
        self.peer = RecordingPeer()
        self.producer: Producer = make_producer(self.peer, name=self.name, window=Window(self.window, 100))
        again, self.unanswered = self.pending, []
        for sequence in again:
            self.transmit(sequence)

    def reconnect(self) -> None:
        self.producer.closed = True
        self.producer.drop_pending()
        self.connect()

    def transmit(self, sequence: int) -> None:
        self.unanswered.append(sequence)
        self.world.publisher.publish(send(self.producer, sequence))

    def new(self) -> None:
        self.pending = [*self.pending, self.next]
        self.next += 1
        self.transmit(self.next - 1)

    def old(self, pick: int) -> None:
        if self.next:
            self.transmit(pick % self.next)

    def collect(self) -> None:
        for body in self.peer.bodies(BaseCommand.SEND_RECEIPT):
            assert body.sequence_id == self.unanswered.pop(0), "receipts in SEND order"
            assert signed(body.message_id.ledgerId) >= 0 or self.deduplicates
            self.confirmed.add(body.sequence_id)
            self.pending = [one for one in self.pending if one != body.sequence_id]
        assert self.producer.window.bytes <= self.window + 3

    deduplicates = False


async def run(steps: list[tuple[str, int, int]], deduplicates: bool, window: int) -> None:
    world = PublishWorld(auto=False)
    await world.start(Sequences() if deduplicates else None)
    clients = [Client(world, "a", window), Client(world, "b", window)]
    for client in clients:
        client.deduplicates = deduplicates

    def all_come_back() -> None:
        for client in clients:
            client.producer.closed = True
            client.producer.drop_pending()

    world.on_failed = all_come_back
    for action, pick, count in steps:
        client = clients[pick % 2]
        match action:
            case "new" | "other":
                for _ in range(count):
                    client.new()
            case "old" if deduplicates and not client.producer.closed:
                client.old(pick)
            case "commit":
                world.ledgers.commit(count)
            case "reconnect":
                client.reconnect()
            case "fail":
                world.ledgers.fail_groups = StorageError("broken")
                world.ledgers.commit()
                world.ledgers.fail_groups = None
            case "turn":
                await world.settle(turns=3)
        for one in clients:
            one.collect()
            if one.producer.closed:
                await world.settle(turns=5)
                one.reconnect()
    for _ in range(100):
        await world.settle(turns=5)
        world.ledgers.commit()
        for one in clients:
            one.collect()
            if one.producer.closed:
                one.reconnect()
        if all(one.producer.is_idle and not one.pending for one in clients):
            break
    stored = [int(payload) for payload in await read_all(world.log)]
    for one in clients:
        assert one.confirmed == set(range(one.next)), "everything got its receipt in the end"
        assert one.producer.is_idle
        assert not one.unanswered
        assert one.peer.pending_bytes == 0
    if deduplicates:
        counts = [stored.count(sequence) for sequence in range(max(one.next for one in clients))]
        expected = [sum(sequence < one.next for one in clients) for sequence in range(len(counts))]
        assert counts == expected, "each once per producer"
    await world.log.close()


@settings(max_examples=200, deadline=None)
@given(STEPS, st.booleans(), st.sampled_from([3, 7, 1_000]))
def test_receipts_in_order_nothing_lost_nothing_twice(
    steps: list[tuple[str, int, int]], deduplicates: bool, window: int
) -> None:
    asyncio.run(run(steps, deduplicates, window))
