"""`SegmentTraversal` and `AssignmentReconciler` under random splits, merges and deletions, against models.

Oracle: wherever a run stops, the messages handed out before and after the checkpoint are all messages, exactly once,
and every key is in order.
"""

from __future__ import annotations

import random
from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.client.consumer.assignment_reconciler import AssignmentReconciler, Attach, Detach, Effect, Release, Stop
from anabranch.client.consumer.checkpoint import After, Checkpoint, Done, FromStart, FromTime, Kind, Mark
from anabranch.client.consumer.segment_traversal import CheckpointMismatch, Close, Open, SegmentTraversal
from anabranch.client.consumer.segment_traversal import Effect as TraversalEffect
from anabranch.client.messages.message import MessageId
from anabranch.model.layout import Layout
from tests.support.models.keyed_topic_model import KEYS, KeyedTopic
from tests.support.models.layout_histories import split

TOPIC = "topic://public/default/t"


class ReaderWorld:
    """A checkpoint consumer without a broker: opens what the machine says, hands out what is stored there."""

    def __init__(self, topic: KeyedTopic, start: Checkpoint) -> None:
        self.topic = topic
        self.traversal = SegmentTraversal(TOPIC, start)
        self.at: dict[int, int] = {}  # open segments -> next index
        self.handed: list[tuple[int, int]] = []
        self.seen = topic.layout
        self.perform(self.traversal.on_layout(topic.layout))

    def perform(self, effects: list[TraversalEffect]) -> None:
        for effect in effects:
            match effect:
                case Open(segment, mark):
                    stored = self.topic.stored[segment.segment_id]
                    self.at[segment.segment_id] = start_of(mark, len(stored))
                    if mark is None:
                        self.traversal.resolved(segment.segment_id, mark_at(segment.segment_id, len(stored)))
                case Close(segment_id):
                    del self.at[segment_id]

    def see(self) -> None:
        self.seen = self.topic.layout
        self.perform(self.traversal.on_layout(self.topic.layout))

    def take(self, which: int) -> bool:
        """One message of some open segment; or, where a sealed one has no more, its end."""
        for segment_id in [*list(self.at)[which % len(self.at) :], *self.at] if self.at else []:
            stored = self.topic.stored[segment_id]
            if segment_id not in self.at:
                continue
            at = self.at[segment_id]
            if at < len(stored):
                self.at[segment_id] += 1
                self.handed.append(stored[at])
                self.traversal.handed_out(segment_id, MessageId(TOPIC, 0, at, lane=segment_id))
                return True
            if segment_id in self.seen and not self.seen[segment_id].is_active:
                self.perform(self.traversal.ended(segment_id))
                return True
        return False


def start_of(mark: Mark | None, stored: int) -> int:
    match mark:
        case None:
            return stored
        case After(one):
            return one.entry + 1
        case FromStart() | FromTime():
            return 0
        case Done():
            raise AssertionError("what is done is not opened")


def mark_at(segment_id: int, stored: int) -> Mark:
    return After(MessageId(TOPIC, 0, stored - 1, lane=segment_id)) if stored else FromStart()


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["publish"] * 6 + ["take"] * 5 + ["split", "merge", "see", "restart", "collect"]),
        st.integers(0, 1000),
    ),
    max_size=150,
)


@settings(max_examples=250, deadline=None)
@given(steps=STEPS, segments=st.integers(1, 3), is_latest=st.booleans())
def test_checkpoints_are_exact_and_keys_in_order(steps: list[tuple[str, int]], segments: int, is_latest: bool) -> None:
    """Scenarios 46, 76, 77, 83: resume(checkpoint) after what came before it is everything, exactly once, in order."""
    topic = KeyedTopic(segments)
    before = 40 if is_latest else 0
    for n in range(before):
        topic.publish(n % KEYS)
    skipped = list(topic.next_number)
    reader = ReaderWorld(topic, Checkpoint.latest() if is_latest else Checkpoint.earliest())
    handed: list[tuple[int, int]] = []
    for name, amount in steps:
        if name == "publish":
            topic.publish(amount % KEYS)
        elif name == "split":
            topic.split(amount)
        elif name == "merge":
            topic.merge(amount)
        elif name == "see":
            reader.see()
        elif name == "take":
            reader.take(amount)
        elif name == "collect":
            reader.see()
            topic.collect({one for one, mark in reader.traversal.cut().marks.items() if isinstance(mark, Done)})
        else:
            handed += reader.handed
            saved = Checkpoint.from_bytes(Checkpoint(Kind.RUN, (reader.traversal.cut(),)).to_bytes())
            reader = ReaderWorld(topic, saved)
    reader.see()
    while reader.take(0):
        pass
    handed += reader.handed
    assert not reader.traversal.missing
    by_key: dict[int, list[int]] = defaultdict(list)
    for key, number in handed:
        by_key[key].append(number)
    for key in range(KEYS):
        assert by_key[key] == list(range(skipped[key], topic.next_number[key])), f"key {key}"


def test_start_time_skips_segments_sealed_before() -> None:
    layout = split(Layout.initial(1, now_ms=0), 0, at_ms=1000)
    traversal = SegmentTraversal(TOPIC, Checkpoint.at_time(500))
    (opened,) = traversal.on_layout(layout)
    assert opened == Open(layout[0], FromTime(500))
    assert [one for one in traversal.ended(0) if isinstance(one, Open)] == [
        Open(layout[1], FromTime(500)),
        Open(layout[2], FromTime(500)),
    ]
    later = SegmentTraversal(TOPIC, Checkpoint.at_time(1500))
    assert later.on_layout(layout) == [Open(layout[1], FromTime(1500)), Open(layout[2], FromTime(1500))]


def test_checkpoint_of_a_deleted_topic_is_refused() -> None:
    first = SegmentTraversal(TOPIC, Checkpoint.earliest())
    first.on_layout(Layout.initial(1, now_ms=0), incarnation=7)
    saved = Checkpoint(Kind.RUN, (first.cut(),))
    with pytest.raises(CheckpointMismatch):
        SegmentTraversal(TOPIC, saved).on_layout(Layout.initial(1, now_ms=0), incarnation=8)


def test_deleted_segment_is_reported_and_children_are_read() -> None:
    """Scenario 82."""
    layout = Layout.initial(1, now_ms=0)
    first = SegmentTraversal(TOPIC, Checkpoint.earliest())
    first.on_layout(layout)
    first.handed_out(0, MessageId(TOPIC, 0, 3, lane=0))
    saved = Checkpoint(Kind.RUN, (first.cut(),))
    later = split(layout, 0).pruned([0])
    second = SegmentTraversal(TOPIC, saved)
    opened = second.on_layout(later)
    assert second.missing == {0}
    assert opened == [Open(later[1], FromStart()), Open(later[2], FromStart())]


def test_recreated_topic_is_read_from_its_beginning() -> None:
    traversal = SegmentTraversal(TOPIC, Checkpoint.latest())
    traversal.on_layout(Layout.initial(1, now_ms=0), incarnation=1)
    traversal.resolved(0, After(MessageId(TOPIC, 9, 9, lane=0)))
    again = Layout.initial(2, now_ms=5)
    assert traversal.on_layout(again, incarnation=2) == [
        Close(0),
        Open(again[0], FromStart()),
        Open(again[1], FromStart()),
    ]


def test_group_member_reads_assigned_segments() -> None:
    """Scenario 79."""
    layout = Layout.initial(2, now_ms=0)
    traversal = SegmentTraversal(TOPIC, Checkpoint.earliest(), is_group=True)
    assert traversal.on_layout(layout) == []
    assert traversal.assigned([1]) == [Open(layout[1], FromStart())]
    traversal.handed_out(1, MessageId(TOPIC, 0, 0, lane=1))
    assert traversal.cut().marks == {1: After(MessageId(TOPIC, 0, 0, lane=1))}
    assert traversal.assigned([0]) == [Close(1), Open(layout[0], FromStart())]
    assert traversal.cut().marks.keys() == {0, 1}


# ----------------------------------------------------------------------------------------------------------- holdings


class HoldingsWorld:
    """A consumer that performs the effects, with answers at any time."""

    def __init__(self) -> None:
        self.reconciler = AssignmentReconciler()
        self.attached: set[int] = set()
        self.stopped: set[int] = set()
        self.closing: set[int] = set()
        self.released: list[tuple[int, int]] = []

    def perform(self, effects: list[Effect] | None) -> None:
        for effect in effects or []:
            match effect:
                case Attach(one):
                    assert one not in self.attached
                    self.attached.add(one)
                case Stop(one):
                    assert one in self.attached and one not in self.stopped
                    self.stopped.add(one)
                case Detach(one):
                    assert one in self.stopped
                    self.stopped.discard(one)
                    self.closing.add(one)
                case Release(generation, ones):
                    self.released += [(generation, one) for one in ones]

    def settle(self) -> None:
        while self.stopped or self.closing:
            for one in sorted(self.stopped):
                self.perform(self.reconciler.settled(one))
            for one in sorted(self.closing):
                self.closing.discard(one)
                self.attached.discard(one)
                self.perform(self.reconciler.closed(one))


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 1 << 30), has_generations=st.booleans())
def test_consumer_converges_to_the_last_assignment(seed: int, has_generations: bool) -> None:
    """Scenarios 48, 54: whatever comes late or twice, nothing is attached twice, nothing kept or released wrongly."""
    chance = random.Random(seed)
    world = HoldingsWorld()
    sent: list[tuple[int, frozenset[int]]] = []
    for generation in range(1, 12):
        ids = frozenset(chance.sample(range(6), chance.randint(0, 5)))
        sent.append((generation, ids))
        late = chance.choice(sent) if chance.random() < 0.3 else None
        for number, segments in filter(None, (late, sent[-1])):
            number_or_none = number if has_generations else None
            world.perform(world.reconciler.assigned(segments, generation=number_or_none, epoch=number))
        for _ in range(chance.randint(0, 3)):
            if world.stopped and chance.random() < 0.5:
                one = chance.choice(sorted(world.stopped))
                world.perform(chance.choice([world.reconciler.settled, world.reconciler.overdue])(one))
            elif world.closing:
                one = chance.choice(sorted(world.closing))
                world.closing.discard(one)
                world.attached.discard(one)
                world.perform(world.reconciler.closed(one))
    world.settle()
    assert world.attached == sent[-1][1] == set(world.reconciler.held)
    if has_generations:
        assert all(generation <= 11 for generation, _ in world.released)
    else:
        assert not world.released, "a controller that does not count has no use for it"


def test_segment_reassigned_while_leaving_is_attached_again() -> None:
    reconciler = AssignmentReconciler()
    assert reconciler.assigned([1, 2], generation=1, epoch=0) == [Attach(1), Attach(2)]
    assert reconciler.assigned([1], generation=2, epoch=0) == [Stop(2)]
    assert reconciler.assigned([1, 2], generation=3, epoch=0) == []
    assert reconciler.leaving == (2,) and reconciler.held == (1, 2)
    assert reconciler.settled(2) == [Detach(2)]
    assert reconciler.closed(2) == [Attach(2)]
    assert reconciler.assigned([], generation=2, epoch=0) is None
    assert reconciler.assigned([1], generation=4, epoch=0) == [Stop(2)]
    assert reconciler.overdue(2) == [Detach(2)]
    assert reconciler.closed(2) == [Release(4, (2,))]
