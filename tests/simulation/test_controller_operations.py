"""Splits, merges, pruning, subscriptions and deletion while leaders crash and freeze: all guarantees hold."""

from __future__ import annotations

import os
from collections import defaultdict
from typing import Any

import pytest

from anabranch.controller.records.subscription_registry import SubscriptionKind
from anabranch.controller.segment_host import SegmentMissing, SegmentRef, SegmentSealed, Start
from anabranch.controller.topic.operation_events import DeleteCall, MergeCall, PruneCall, SplitCall
from anabranch.controller.topic.subscription_events import MoveCall, SubscribeCall, UnsubscribeCall
from anabranch.model.errors import Error
from anabranch.model.segment import Segment
from tests.support.simulation.controller import LINES_SHOWN, Broken, Leader, World, name_of
from tests.support.simulation.metadata_processes import seeds

SEEDS = int(os.environ.get("ANABRANCH_SEEDS", "1500"))
CHAOS_MS = 4_000
ORDERED = ("first", "early", "late")  # never moved: their consumers check order and loss


class Producer:
    """One key, one message after another; each is sent until it is confirmed, wherever it belongs by then."""

    def __init__(self, life: Life, number: int) -> None:
        self._life, self.name = life, f"key-{number}"
        self.ring = life.chance.randrange(1 << 16)
        self.confirmed = -1  # the last sequence id
        self._target: SegmentRef | None = None
        self._incarnation = 0

    def send(self) -> None:
        life, record = self._life, self._life.record
        if not life.is_chaotic and life.on_its_way.get(self.name) == self.confirmed:
            return  # enough
        if record is None or record.is_deleting or record.leader_term == 0:
            life.at(100, self.send)
            return
        if record.incarnation != self._incarnation:  # another topic: it starts anew
            self._incarnation, self._target, self.confirmed = record.incarnation, None, -1
        sequence_id = self.confirmed + 1
        if self._target is None:
            segment = record.layout.at(self.ring)
            self._target = SegmentRef(name_of(segment), record.incarnation, segment.segment_id)
        target = self._target
        life.on_its_way[self.name] = sequence_id

        def publish() -> None:
            stored = life.shelf.segments.get(target.name)
            if stored is None or stored.ref.incarnation != target.incarnation:
                raise SegmentMissing("gone")
            if stored.sealed is None:
                life.check_publish(target, self.ring)
            life.shelf.publish(target.name, self.name, sequence_id, b"%d" % sequence_id, life.now_ms)

        def confirmed(_: Any) -> None:
            if target.incarnation == life.incarnation:
                self.confirmed = life.sent_until[self.name] = sequence_id
            life.at(life.chance.randint(1, 120), self.send)

        def failed(error: Error) -> None:
            self._target = None
            if isinstance(error, SegmentSealed):  # the owner names the children
                for child in life.shelf.children_of(target.name):
                    descriptor = child.name.segment
                    assert descriptor is not None
                    if descriptor.start <= self.ring <= descriptor.end:
                        self._target = child
            life.at(2, self.send)

        life.send(publish, confirmed, failed, lambda _: life.at(1, self.send))


class Life(World):
    """The topic is used and changed while things go wrong."""

    def __init__(self, seed: int) -> None:
        self.is_chaotic = False
        self.sent_until: dict[str, int] = {}  # confirmed
        self.on_its_way: dict[str, int] = {}  # sent, confirmed or not
        self.seen: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        self.from_then: dict[
            str, dict[str, int]
        ] = {}  # subscription -> the last of each key that was sent when it was confirmed
        self.deletes = seed % 4 == 3
        super().__init__(seed, trouble=[0.0, 0.05, 0.2][seed % 3], segments=1 + seed % 3)

    # chaos ------------------------------------------------------------------------------------------------------------
    def between_effects(self, leader: Leader) -> None:
        if not self.is_chaotic or leader is not self.leader or self.chance.random() >= 0.03:
            return
        if self.chance.random() < 0.5:
            leader.kill()
        else:
            leader.freeze()
            self.at(self.chance.choice([20, 200, 2_000]), leader.thaw)
        self.at(self.chance.randint(0, 100), self.elect_once)

    def elect_once(self) -> None:
        self.elect()

    def trouble_hosts(self) -> None:
        if self.is_chaotic:
            self.downs[self.chance.randrange(3)] = self.now_ms + self.chance.choice([50, 400, 2_000])
            self.at(self.chance.randint(100, 2_000), self.trouble_hosts)

    # what people do ---------------------------------------------------------------------------------------------------
    def act(self) -> None:
        if not self.is_chaotic:
            return
        self.at(self.chance.randint(1, 200), self.act)
        if self.leader.is_dead and self.record is not None and self.chance.random() < 0.1:
            self.elect()
        record = self.record
        if record is None:
            if not self.shelf.segments:
                self.say("created again")
                self.sent_until.clear()
                self.on_its_way.clear()
                self.seen.clear()
                self.from_then.clear()
                self.create_topic(self.chance.randint(1, 3))
                self.elect()
                self.subscribe("first", Start.EARLIEST)
            return
        active = [segment.segment_id for segment in record.layout.active]
        match self.chance.randrange(20):
            case 0 | 1 | 2 | 3 | 4:
                call = SplitCall(
                    self.new_id("split"), self.chance.choice(active), ways=self.chance.choice([2, 2, 3, 5])
                )
                if self.chance.random() < 0.1:
                    self.refusals[call.operation_id] = 1
                self.ask(call)
            case 5 | 6 | 7 | 8 | 9:
                first = self.chance.randrange(len(active))
                self.ask(MergeCall(self.new_id("merge"), tuple(active[first : first + self.chance.randint(2, 4)])))
            case 10 | 11:
                self.subscribe("early", Start.EARLIEST)
            case 12 | 13:
                self.subscribe("late", Start.LATEST)
            case 14:
                self.ask(SubscribeCall(self.new_id("sub"), "queue", SubscriptionKind.QUEUE, Start.LATEST))
            case 15:
                self.ask(UnsubscribeCall(self.new_id("unsub"), "queue"))
            case 16:
                past = self.chance.choice([None, 0, self.now_ms - 500])
                self.ask(MoveCall(self.new_id("move"), "queue", past))
            case 17:
                if self.deletes:
                    self.ask(DeleteCall(self.new_id("delete")))
            case _:
                self.collect()

    def subscribe(self, name: str, start: Start) -> None:
        if name not in self.from_then:
            self.ask(SubscribeCall(self.new_id(f"sub-{name}"), name, SubscriptionKind.STREAM, start))

    def replied(self, operation_id: str, error: Error | None) -> None:
        super().replied(operation_id, error)
        asking = self.askings[operation_id]
        call = asking.call
        if asking.incarnation != self.incarnation:
            return  # sent late by a leader that was frozen, about a former incarnation of the topic
        if isinstance(call, SubscribeCall) and error is None and call.name not in self.from_then:
            self.from_then[call.name] = dict(self.on_its_way)

    def collect(self) -> None:
        """Garbage collection by the leader: sealed, no parents left, drained by all subscriptions."""
        leader, record = self.leader, self.record
        if (
            record is None
            or record.is_deleting
            or leader.is_dead
            or leader.is_frozen
            or not leader.ops.is_idle
            or self.registry is None
        ):
            return
        if leader.ops.record is not record and leader.ops.record != record:
            return
        if leader.subs.registry != self.registry:
            return
        wanted = self.registry.cursors
        done = [
            segment.segment_id
            for segment in record.layout.sealed
            if not segment.parent_ids
            and self.now_ms - segment.sealed_at_ms > 1_000
            and all(
                cursor.is_drained
                for name, cursor in self.shelf.segments[name_of(segment)].cursors.items()
                if name in wanted
            )
        ]
        if done:
            self.ask(PruneCall(self.new_id("prune"), tuple(done)))

    # consumers --------------------------------------------------------------------------------------------------------
    def read(self) -> None:
        if not self.is_chaotic:
            return
        self.at(self.chance.randint(1, 100), self.read)
        record = self.record
        if record is None or record.is_deleting:
            return
        for name in ORDERED:
            self.read_one(name)

    def read_one(self, name: str, share: float = 0.5) -> bool:
        """Whatever is open for the subscription: a segment whose ancestors have nothing left."""
        record, found = self.record, False
        assert record is not None
        for one in sorted(record.segments):
            segment = name_of(record.segments[one])
            stored = self.shelf.segments.get(segment)
            if stored is None or name not in stored.cursors or stored.cursors[name].next == len(stored.entries):
                continue
            if self.chance.random() > share:
                continue
            if all(self.is_drained(record.segments[above], name) for above in record.layout.ancestors(one)):
                for position, entry in self.shelf.unread(segment, name)[:5]:
                    self.deliver(name, entry.producer, entry.sequence_id, one)
                    self.shelf.acknowledge(segment, name, position)
                    found = True
        return found

    def is_drained(self, segment: Segment, name: str) -> bool:
        stored = self.shelf.segments.get(name_of(segment))
        return stored is not None and name in stored.cursors and stored.cursors[name].is_drained

    def deliver(self, name: str, key: str, sequence_id: int, segment_id: int) -> None:
        before = self.seen[name][key]
        if before:
            self.must(
                sequence_id == before[-1] + 1,
                f"{name} gets {key}:{sequence_id} from segment {segment_id} after {key}:{before[-1]}",
            )
        before.append(sequence_id)

    # the whole story --------------------------------------------------------------------------------------------------
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
        self.run(CHAOS_MS)
        self.is_chaotic = False
        self.finish()
        for name in ORDERED:
            while self.record is not None and self.read_one(name, 1.0):
                pass
        self.check_complete()

    def check_complete(self) -> None:
        if self.record is None:
            return
        for name, before in self.from_then.items():
            if name not in ORDERED:
                continue
            for key, last in self.sent_until.items():
                got = self.seen[name][key]
                if last > before.get(key, -1):
                    self.must(bool(got), f"{name} got nothing of {key}, {last} was confirmed")
                    self.must(got[-1] >= last, f"{name} got {key} until {got[-1]}, {last} was confirmed")
                    self.must(got[0] <= before.get(key, -1) + 1, f"{name} got {key} only from {got[0]} on")
        self.must(self.sent_until != {}, "nothing was published")


def run_life(seed: int) -> Life:
    life = Life(seed)
    try:
        life.live()
    except Exception as error:
        shown = "\n".join(life.lines[-LINES_SHOWN:])
        pytest.fail(f"seed {seed}: {type(error).__name__}: {error}\n{shown}", pytrace=not isinstance(error, Broken))
    return life


@pytest.mark.parametrize("part", seeds(SEEDS, 10))
def test_operations_under_faults(part: range) -> None:
    for seed in part:
        run_life(seed)


def test_operations_simulation_reaches_all_outcomes() -> None:
    """Operations are committed and aborted, leaders change, topics are deleted."""
    lives = [run_life(seed) for seed in range(12)]
    ends = [str(outcome) for life in lives for outcome in life.outcomes.values()]
    assert ends.count("COMMITTED") > 50
    assert ends.count("ABORTED") > 3
    assert sum(len(life.leaders) for life in lives) > 40
    assert any(life.incarnation > 1 for life in lives)
    assert sum(max(life.sent_until.values(), default=0) for life in lives) > 100
