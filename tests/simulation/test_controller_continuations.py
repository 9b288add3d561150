"""Consumers that continue with a child before they have acknowledged its parents, and never acknowledge the rest.

They acknowledge every few messages, cumulatively, and decide with the SDK's own `SegmentOrder` what is delivered and
which acks are sent. Consumers, leaders and owners of segments crash; an owner's crash loses the acks that it has not
stored yet. Segments split and merge, and an operator rewinds a subscription. Some consumers do not continue and follow
the strict rule.

- A message is delivered only if the one before it (same key) was acknowledged, or was handed out to the same consumer.
  So every key arrives in order, and after a crash the rest of the ancestors is delivered again before a child.
- The stored cursor of a child never moves before all its ancestors are acknowledged.
- Nothing is lost, and nothing stalls: the last consumer of a group gets everything, although it leaves a rest
  unacknowledged in every segment.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import partial

import pytest

from anabranch.client.consumer.assignment_reconciler import SegmentOrder
from anabranch.controller.group.group_events import Push
from anabranch.controller.segment_host import Start
from anabranch.controller.topic.subscription_events import MoveCall
from tests.simulation.test_controller_groups import Consumer, GroupLife
from tests.simulation.test_controller_operations import CHAOS_MS, SEEDS, Producer
from tests.support.models.memory_segment_host import Entry, StoredSegment
from tests.support.simulation.controller import LINES_SHOWN, Broken, name_of
from tests.support.simulation.metadata_processes import seeds

FLUSH_MS = 30


class ContinuingConsumer(Consumer):
    """`handed_out` and `to_ack`: by segment, the next entry. Both begin again when a segment is attached anew."""

    def __init__(self, life: ContinuationLife, subscription: str, name: str, *, continues: bool) -> None:
        super().__init__(life, subscription, name)
        self.life = life
        self.continues = continues
        self.order = life.order_type()
        self.handed_out: dict[int, int] = {}
        self.to_ack: dict[int, int] = {}
        self.confirmed: dict[int, int] = {}
        self._after: dict[int, tuple[int, ...]] = {}
        self._ack_every = life.chance.randint(2, 9) if continues else 1
        self._unacked = 0

    def on_applied(self, push: Push) -> None:
        self._after = dict(push.after)
        self.order.assigned(self.wanted, self._after)

    def detach(self, segment_id: int) -> None:
        super().detach(segment_id)
        self._forget(segment_id)

    def fenced(self, segment_id: int, generation: int) -> None:
        if self.life.reader(self.subscription, segment_id) is not self:
            self._forget(segment_id)
            self.order.assigned(self.wanted, self._after)
        super().fenced(segment_id, generation)

    def _forget(self, segment_id: int) -> None:
        for known in (self.handed_out, self.to_ack, self.confirmed):
            known.pop(segment_id, None)
        self.order.detached(segment_id)

    def read(self) -> bool:
        if self.is_hanging or self.life.record is None:
            return False
        found = False
        for one in sorted(self.held):
            stored = self.life.stored(self.subscription, one)
            if stored is None or self.life.reader(self.subscription, one) is not self:
                continue
            if not self.order.may_deliver(one, self._is_read):
                continue
            start = self._next(one)
            for index in range(start, min(start + 5, len(stored.entries))):
                self.life.check_delivery(self, one, stored.entries[index])
                self.handed_out[one] = index + 1
                found = True
                self._unacked += 1
                if self._unacked >= self._ack_every:
                    self._unacked = 0
                    self.to_ack |= self.handed_out
        self._send_acks()
        return found

    def _next(self, segment_id: int) -> int:
        """The next entry to hand out. The owner sends what is not acknowledged; what is in hand is skipped."""
        return max(self.handed_out.get(segment_id, 0), self.life.cursor(self.subscription, segment_id))

    def _is_read(self, segment_id: int) -> bool:
        stored = self.life.stored(self.subscription, segment_id)
        is_attached = self.life.reader(self.subscription, segment_id) is self
        return is_attached and stored is not None and self._next(segment_id) == len(stored.entries)

    def _send_acks(self) -> None:
        life = self.life
        for one, upto in sorted(self.to_ack.items()):
            if upto <= self.confirmed.get(one, 0):
                continue
            unsettled = self.order.unsettled(one)
            for ancestor in sorted(unsettled & self.held):
                stored = life.stored(self.subscription, ancestor)
                if stored is not None and not stored.entries:
                    self.order.settled(ancestor)
                elif stored is not None:
                    self.to_ack[ancestor] = len(stored.entries)
            if not unsettled and life.reader(self.subscription, one) is self:
                attached = life.readers[self.subscription, one]
                life.at(life.chance.randint(0, 5), partial(life.acked, self, attached, one, upto))

    def on_confirmed(self, segment_id: int, upto: int) -> None:
        stored = self.life.stored(self.subscription, segment_id)
        if segment_id in self.handed_out or segment_id in self.to_ack:
            self.confirmed[segment_id] = max(upto, self.confirmed.get(segment_id, 0))
            if stored is not None and stored.sealed is not None and upto == len(stored.entries):
                self.order.settled(segment_id)


class ContinuationLife(GroupLife):
    order_type: Callable[[], SegmentOrder] = SegmentOrder
    all_continue = True

    def __init__(self, seed: int) -> None:
        self.unstored: dict[tuple[str, int], int] = {}  # by cursor: acks that the owner has in memory only
        self.crashes: dict[tuple[str, int], int] = defaultdict(int)  # of the segment's owner
        self.followed = 0  # segments that were read before their ancestors were drained
        super().__init__(seed)
        self.shelf.on_close(lambda ref, subscription, _: self.lose_unstored(subscription, ref.segment_id))

    def act(self) -> None:
        if self.is_chaotic and self.chance.random() < 0.1 and "first" in self.from_then:
            self.ask(MoveCall(self.new_id("rewind"), "first", 0))
        super().act()

    def new_consumer(self, subscription: str, name: str, before: Consumer | None) -> Consumer:
        continues = self.all_continue and self.chance.random() < 0.8
        return ContinuingConsumer(self, subscription, name, continues=continues)

    # owners -----------------------------------------------------------------------------------------------------------
    def stored(self, subscription: str, segment_id: int) -> StoredSegment | None:
        segment = None if self.record is None else self.record.segments.get(segment_id)
        found = None if segment is None else self.shelf.segments.get(name_of(segment))
        return None if found is None or subscription not in found.cursors else found

    def cursor(self, subscription: str, segment_id: int) -> int:
        stored = self.stored(subscription, segment_id)
        durable = 0 if stored is None else stored.cursors[subscription].next
        return max(durable, self.unstored.get((subscription, segment_id), 0))

    def acked(self, consumer: ContinuingConsumer, attached: tuple[Consumer, int], segment_id: int, upto: int) -> None:
        key = consumer.subscription, segment_id
        if self.readers.get(key) is not attached:
            return  # closed meanwhile; sent again after the next attach
        self.unstored[key] = max(upto, self.unstored.get(key, 0))
        crashes = self.crashes[key]
        self.at(self.chance.randint(0, FLUSH_MS), lambda: self.flushed(consumer, segment_id, upto, crashes))

    def flushed(self, consumer: ContinuingConsumer, segment_id: int, upto: int, crashes: int) -> None:
        subscription = consumer.subscription
        stored = self.stored(subscription, segment_id)
        if self.crashes[subscription, segment_id] != crashes or stored is None or self.record is None:
            return
        for above in self.record.layout.ancestors(segment_id):
            ancestor = self.stored(subscription, above)
            is_drained = ancestor is None or ancestor.cursors[subscription].next == len(ancestor.entries)
            self.must(is_drained, f"{subscription}: the cursor of {segment_id} moves before {above} is acknowledged")
        self.shelf.acknowledge(stored.ref.name, subscription, stored.position(upto - 1))
        self.at(self.chance.randint(0, 5), lambda: consumer.on_confirmed(segment_id, upto))

    def lose_unstored(self, subscription: str, segment_id: int) -> None:
        self.crashes[subscription, segment_id] += 1
        self.unstored.pop((subscription, segment_id), None)

    def crash_owner(self) -> None:
        """The owner of a segment is restarted: what it had not stored is lost, and its reader attaches again."""
        if not self.is_chaotic:
            return
        self.at(self.chance.randint(20, 400), self.crash_owner)
        if self.readers:
            key = self.chance.choice(sorted(self.readers))
            self.say(f"  host: the owner of {key} crashes")
            self.lose_unstored(*key)
            consumer, _ = self.readers.pop(key)
            consumer.closed(key[1])

    # checks -----------------------------------------------------------------------------------------------------------
    def check_delivery(self, consumer: ContinuingConsumer, segment_id: int, entry: Entry) -> None:
        subscription, key, number = consumer.subscription, entry.producer, entry.sequence_id
        seen = self.seen[subscription][key]
        if not seen or number == seen[-1] + 1:
            seen.append(number)
        self.must(number <= seen[-1], f"{subscription}: {key}:{number} comes after {key}:{seen[-1]}")
        self.followed += bool(consumer.order.unsettled(segment_id))
        before = self.place_of(key, number - 1)
        if before is not None:
            where, index = before
            is_acked = self.stored(subscription, where) is None or self.cursor(subscription, where) > index
            is_in_hand = consumer.handed_out.get(where, 0) > index
            self.must(
                is_acked or is_in_hand,
                f"{consumer.name} gets {key}:{number} from {segment_id}; the one before, in {where}, is unacknowledged",
            )

    def place_of(self, key: str, number: int) -> tuple[int, int] | None:
        for segment in self.shelf.segments.values():
            if segment.sequence_ids.get(key, -1) >= number:
                for index, entry in enumerate(segment.entries):
                    if entry.producer == key and entry.sequence_id == number:
                        return segment.ref.segment_id, index
        return None

    def live(self) -> None:
        producers = [Producer(self, number) for number in range(5)]
        self.elect()
        self.subscribe("first", Start.EARLIEST)
        self.run(200)
        self.is_chaotic = True
        for producer in producers:
            producer.send()
        self.read()
        self.act()
        self.trouble_hosts()
        self.trouble_consumers()
        self.crash_owner()
        self.run(CHAOS_MS)
        self.is_chaotic = False
        for consumer in self.all_consumers:
            if not consumer.is_gone:
                consumer.is_hanging = False
                consumer.die()
        for name in self.groups_known:
            last = ContinuingConsumer(self, name, f"{name}-last", continues=self.all_continue)
            last._ack_every = 7
            self.all_consumers.append(last)
            last.connect()
        self.finish()
        for _ in range(500):
            self.run(self.now_ms + 50)
            if not sum(self.read_one(name, 1.0) for name in self.groups_known) and self.is_settled():
                break
        self.check_complete()

    def check_assigned(self) -> None:
        raise NotImplementedError


def run_life(seed: int, kind: type[ContinuationLife] = ContinuationLife) -> ContinuationLife:
    life = kind(seed)
    try:
        life.live()
    except Exception as error:
        shown = "\n".join(life.lines[-LINES_SHOWN:])
        pytest.fail(f"seed {seed}: {type(error).__name__}: {error}\n{shown}", pytrace=not isinstance(error, Broken))
    return life


@pytest.mark.parametrize("part", seeds(max(1, SEEDS // 10), 5))
def test_continuing_consumers_keep_order_and_miss_nothing(part: range) -> None:
    for seed in part:
        run_life(seed)


def test_children_are_read_before_their_parents_are_acknowledged() -> None:
    lives = [run_life(seed) for seed in range(8)]
    assert sum(life.followed for life in lives) > 200
    assert sum(len(life.leaders) for life in lives) > 50
    assert sum(sum(life.crashes.values()) for life in lives) > 30


class DeliversAtOnce(SegmentOrder):
    def may_deliver(self, segment_id: int, is_read: Callable[[int], bool]) -> bool:
        return True


class AcksAtOnce(SegmentOrder):
    def unsettled(self, segment_id: int) -> frozenset[int]:
        return frozenset()


class LifeThatDeliversAtOnce(ContinuationLife):
    order_type = DeliversAtOnce


class LifeThatAcksAtOnce(ContinuationLife):
    order_type = AcksAtOnce


class LifeWithoutContinuation(ContinuationLife):
    all_continue = False

    def new_consumer(self, subscription: str, name: str, before: Consumer | None) -> Consumer:
        made = super().new_consumer(subscription, name, before)
        assert isinstance(made, ContinuingConsumer)
        made._ack_every = 7
        return made


@pytest.mark.parametrize("kind", [LifeThatDeliversAtOnce, LifeThatAcksAtOnce, LifeWithoutContinuation])
def test_simulation_detects_a_consumer_that_breaks_the_rule_or_stalls(kind: type[ContinuationLife]) -> None:
    """Delivering a child at once fails, acknowledging it at once, and the strict rule with an unacknowledged rest."""
    found = 0
    for seed in range(8):
        try:
            kind(seed).live()
        except Broken:
            found += 1
    assert found >= 4
