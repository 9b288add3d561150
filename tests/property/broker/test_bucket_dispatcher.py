"""The dispatcher of entry buckets under any order of joins, leaves, late claims, flows, acks and reads.

Entry n has the key n; its bucket is n mod 4. Each ninth entry may have keys of all buckets.
"""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from anabranch.broker.subscription.consumer import BucketClaim, Consumer, ConsumerSpec, KeySharedPolicy
from anabranch.broker.subscription.dispatcher_bucket import BucketDispatcher
from anabranch.model.entry_buckets import EVERY, EntryBuckets
from anabranch.model.position import Position
from anabranch.model.segment import bucket_splits
from anabranch.model.subscription_type import SubscriptionType
from anabranch.storage.interface import StoredEntry
from tests.property.broker.test_dispatchers import Scene
from tests.support.in_memory.broker_fakes import ListLog, RecordingPeer, Shell, peer_of

COUNT = 4
BUCKETS = EntryBuckets(bucket_splits(COUNT))
ACTIONS = ("join", "leave", "claim", "claim", "flow", "ack", "ack", "begin", "end", "fail", "append", "full", "room")
STEPS = st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 1_000), st.integers(1, 6)), max_size=70)


def bucket_of(entry: StoredEntry) -> int:
    return slot_at(entry.position)


def slot_at(position: Position) -> int:
    return EVERY if position.entry % 9 == 8 else position.entry % COUNT


def sharing(number: int, claim: BucketClaim, *, permits: int = 0, unacked_max: int = 0) -> Consumer:
    policy = KeySharedPolicy(BUCKETS.ranges, claim=claim)
    spec = ConsumerSpec(number, f"c{number}", SubscriptionType.KEY_SHARED, 0, -1, {}, policy, None)
    consumer = Consumer(RecordingPeer(f"peer:{number}"), spec, unacked_max, 0)
    consumer.permits = permits
    return consumer


class BucketScene(Scene):
    """A controller that gives each consumer a share, whose claims may reach the dispatcher late."""

    shell: Shell

    def __init__(self, shell: Shell, *, unacked_max: int) -> None:
        super().__init__(shell, SubscriptionType.KEY_SHARED, unacked_max=unacked_max, sends_nacks=False)
        self.generation = 0
        self.unclaimed: dict[Consumer, BucketClaim] = {}

    def spread(self, members: int) -> list[BucketClaim]:
        self.generation += 1
        starts = [index * COUNT // members for index in range(members + 1)]
        return [BucketClaim(self.generation, frozenset(range(starts[at], starts[at + 1]))) for at in range(members)]

    def step(self, action: str, pick: int, count: int) -> None:
        if action == "join":
            claims = self.spread(len(self.consumers) + 1)
            self.unclaimed = dict(zip(self.consumers, claims[1:], strict=True))
            self._number += 1
            made = sharing(self._number, claims[0], permits=count, unacked_max=self.unacked_max)
            self.consumers.append(self.shell.join(made))
            self.collect()
        else:
            super().step(action, pick, count)

    def act(self, action: str, consumer: Consumer, pick: int, count: int) -> None:
        if action == "claim":
            self.claim(consumer)
            return
        super().act(action, consumer, pick, count)
        if action == "leave" and self.consumers:
            self.unclaimed = dict(zip(self.consumers, self.spread(len(self.consumers)), strict=True))

    def claim(self, consumer: Consumer) -> None:
        if (one := self.unclaimed.pop(consumer, None)) is not None:
            assert isinstance(self.shell.dispatcher, BucketDispatcher)
            self.shell.dispatcher.claim(consumer, one.buckets, one.generation)

    def check_delivery(self, consumer: Consumer, position: Position) -> None:
        super().check_delivery(consumer, position)
        slot = slot_at(position)

        def shares_keys(other: Position) -> bool:
            return slot == EVERY or slot_at(other) in (slot, EVERY)

        for other in self.consumers:
            if other is not consumer:
                assert not any(map(shares_keys, self.held[other])), f"{position} of keys that {other} still holds"
        mine = [held.entry for held in self.held[consumer] if shares_keys(held)]
        assert max(mine) == position.entry, "out of order inside a bucket"
        earlier = (Position(position.ledger, entry) for entry in range(position.entry))
        settled = {p.entry for p in self.acked} | set(mine)
        assert all(one.entry in settled for one in earlier if shares_keys(one)), "an earlier entry was overtaken"

    def finish(self) -> None:
        if not self.consumers:
            self.step("join", 0, 1)
        for consumer in self.consumers:
            self.claim(consumer)
        super().finish()


def scene_of(
    count: int, reads: int, *, consumer_max: int = 0, subscription_max: int = 0, ahead: int = 50
) -> BucketScene:
    log = ListLog(count)
    dispatcher = BucketDispatcher(
        log.cursor, BUCKETS, bucket_of=bucket_of, unacked_max=subscription_max, lookahead_max=ahead
    )
    return BucketScene(Shell(dispatcher, log, reads), unacked_max=consumer_max)


@settings(max_examples=300, deadline=None)
@given(
    STEPS, st.integers(0, 30), st.sampled_from([0, 3]), st.sampled_from([0, 1, 5]), st.integers(1, 5),
    st.sampled_from([3, 1_000]),
)  # fmt: skip
@example([("append", 0, 4), ("append", 0, 3), ("append", 0, 3), ("append", 0, 2)], 7, 0, 5, 6, 1_000)
@example([("join", 0, 6), ("begin", 0, 1), ("end", 0, 1), ("join", 0, 6), ("begin", 0, 1)], 20, 0, 0, 5, 1_000)
def test_every_key_is_delivered_completely_in_order(
    steps: list[tuple[str, int, int]], count: int, consumer_max: int, subscription_max: int, reads: int, ahead: int
) -> None:
    scene = scene_of(count, reads, consumer_max=consumer_max, subscription_max=subscription_max, ahead=ahead)
    for step in steps:
        scene.step(*step)
    scene.finish()


def test_a_slow_consumer_holds_only_its_buckets() -> None:
    scene = scene_of(8, 100)
    slow = sharing(1, BucketClaim(1, frozenset({0, 1})))
    busy = sharing(2, BucketClaim(1, frozenset({2, 3})), permits=9)
    for consumer in (slow, busy):
        scene.shell.join(consumer)
    scene.shell.pump()
    assert [one.entry for one in peer_of(busy).messages()] == [2, 3, 6, 7]
    assert peer_of(slow).messages() == []


def test_a_moving_bucket_waits_for_its_former_owner_and_others_do_not() -> None:
    scene = scene_of(4, 100)
    former = scene.shell.join(sharing(1, BucketClaim(1, frozenset(range(COUNT))), permits=9))
    scene.shell.pump()
    heir = scene.shell.join(sharing(2, BucketClaim(2, frozenset({2, 3})), permits=9))
    scene.shell.log.append(4)
    scene.shell.pump()
    assert peer_of(heir).messages() == []
    assert [one.entry for one in peer_of(former).messages()] == [0, 1, 2, 3, 4, 5]
    scene.shell.ack(former, Position(7, 3))
    scene.shell.pump()
    assert [one.entry for one in peer_of(heir).messages()] == [7]
    scene.shell.leave(former)  # its unacknowledged entries of the moved bucket come first
    scene.shell.pump()
    assert [one.entry for one in peer_of(heir).messages()] == [2, 6]


def test_buckets_without_a_claim_wait_and_an_old_claim_takes_nothing_back() -> None:
    scene = scene_of(4, 100)
    former = scene.shell.join(sharing(1, BucketClaim(1, frozenset(range(COUNT)))))
    heir = scene.shell.join(sharing(2, BucketClaim(2, frozenset({2, 3}))))
    scene.shell.leave(heir)  # its connection broke; it is in its grace period
    dispatcher = scene.shell.dispatcher
    assert isinstance(dispatcher, BucketDispatcher)
    dispatcher.claim(former, range(COUNT), 1)
    scene.shell.flow(former, 9)
    scene.shell.pump()
    assert [one.entry for one in peer_of(former).messages()] == [0, 1]
    dispatcher.claim(former, range(COUNT), 3)
    scene.shell.pump()
    assert [one.entry for one in peer_of(former).messages()] == [2, 3]


def test_one_consumer_of_all_buckets_receives_everything_without_acks() -> None:
    scene = scene_of(12, 100)
    consumer = scene.shell.join(sharing(1, BucketClaim(1, frozenset(range(COUNT))), permits=1))
    scene.shell.pump()
    scene.shell.flow(consumer, 20)
    scene.shell.pump()
    received = [one.entry for one in peer_of(consumer).messages()]
    assert sorted(received) == list(range(12))
    assert received.index(8) == 8, "an entry of several buckets stays behind all before it, and before all behind it"
