"""The drain tracker: all ancestors with common keys block a segment, and late events are ignored."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import count

from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.controller.group.assignment import Assignment, Joined, SegmentsChanged
from anabranch.controller.group.drain_tracker import (
    Drained,
    DrainRecord,
    DrainTracker,
    Effect,
    Event,
    LayoutChanged,
    Open,
    Refilled,
    SaveDrained,
)
from anabranch.model.layout import Layout
from tests.support.models.layout_histories import histories, merge, split

ONE = Layout.initial(1, now_ms=0)


def opened(effects: list[Effect]) -> list[int]:
    (one,) = [effect for effect in effects if isinstance(effect, Open)]
    return [segment.segment_id for segment in one.segments]


def tracker(layout: Layout, *events: Event) -> DrainTracker:
    machine = DrainTracker()
    machine.handle(LayoutChanged(layout))
    for one in events:
        machine.handle(one)
    return machine


def test_children_wait_for_their_parent() -> None:
    machine = DrainTracker()
    assert opened(machine.handle(LayoutChanged(ONE))) == [0]
    after = split(ONE, 0)
    assert machine.handle(LayoutChanged(after)) == [SaveDrained()], "the parent stays open, nothing else is"
    effects = machine.handle(Drained(0))
    assert effects == [Open((after[1], after[2]), frozenset({0})), SaveDrained()]
    assert machine.handle(Drained(0)) == []


def test_grandchildren_wait_for_the_grandparent() -> None:
    """Two quick splits: the reference opens the grandchildren when their parent is drained."""
    layout = split(split(ONE, 0), 1)  # 0 -> 1, 2; 1 -> 3, 4
    machine = tracker(layout)
    assert machine.handle(Drained(1)) == [SaveDrained()]
    assert opened(machine.handle(Drained(0))) == [3, 4, 2]


def test_only_ancestors_with_common_keys_block() -> None:
    layout = merge(split(split(ONE, 0), 1), 4, 2)  # 4 + 2 -> 5
    layout = split(layout, 5, 0x8000)  # 5 -> 6 [4000-7fff], 7 [8000-ffff]
    machine = tracker(layout, Drained(0))
    assert opened(machine.handle(Drained(1))) == [3, 4, 2], "1 is done: 3 and 4; 2 was open already"
    assert opened(machine.handle(Drained(2))) == [3, 4], "5 waits for 4 and 2"
    assert machine.handle(Drained(5)) != []
    assert 7 in opened(tracker_effects(machine.record(), layout)), "4 never had a key of 7"
    assert 6 not in opened(tracker_effects(machine.record(), layout))
    assert opened(machine.handle(Drained(4))) == [3, 6, 7]


def tracker_effects(record: DrainRecord, layout: Layout) -> list[Effect]:
    return DrainTracker(record).handle(LayoutChanged(layout))


def test_seek_closes_the_children_again() -> None:
    layout = split(ONE, 0)
    machine = tracker(layout, Drained(0))
    assert machine.handle(Refilled(0, rewind_count=1)) == [Open((layout[0],), frozenset()), SaveDrained()]
    assert machine.handle(Drained(0, rewind_count=0)) == [], "sent before the seek, received after it"
    assert opened(machine.handle(Drained(0, rewind_count=1))) == [1, 2]
    assert machine.handle(Refilled(0, rewind_count=0)) == []
    assert machine.handle(Refilled(0, rewind_count=1)) == [], "repeated after the later drain"
    assert machine.drained == {0}


def test_drain_before_the_committed_seal_is_kept() -> None:
    machine = tracker(ONE)
    assert machine.handle(Drained(0)) == []
    assert machine.drained == frozenset()
    after = split(ONE, 0)
    assert machine.handle(LayoutChanged(after)) == [Open((after[1], after[2]), frozenset({0})), SaveDrained()]
    again = tracker(ONE, Drained(0), Refilled(0, 1))
    assert again.handle(LayoutChanged(after)) == [SaveDrained()], "it was taken back in between"


def test_events_of_unknown_segments_or_old_rewinds_are_ignored() -> None:
    layout = split(ONE, 0)
    machine = tracker(layout, Drained(0))
    assert machine.handle(Drained(99)) == []
    assert machine.handle(Refilled(99, 3)) == []
    assert machine.handle(LayoutChanged(ONE)) == []
    assert machine.handle(LayoutChanged(layout)) == []
    assert machine.undrained == frozenset()


def test_pruning_changes_no_open_segment() -> None:
    layout = split(split(ONE, 0), 1)
    machine = tracker(layout, Drained(0), Drained(1))
    assert machine.handle(LayoutChanged(layout.pruned([0, 1]))) == [SaveDrained()]
    assert machine.drained == frozenset()
    assert machine.record() == DrainRecord(epoch=3)


def test_new_leader_keeps_segments_open() -> None:
    layout = split(split(ONE, 0), 1)
    machine = tracker(layout, Drained(0), Refilled(1, 2))
    stored = DrainRecord.from_json(json.loads(json.dumps(machine.record().to_json())))
    assert stored == machine.record()
    successor = DrainTracker(stored)
    assert opened(successor.handle(LayoutChanged(layout))) == [1, 2]
    assert successor.undrained == {1}
    assert successor.handle(Drained(1, 1)) == []
    assert DrainTracker(stored).handle(LayoutChanged(split(ONE, 0))) == [], "a layout older than the record"


def test_drain_assigns_a_child_to_the_parents_consumer() -> None:
    """With the assignment: the parent's consumer gets a child, and nothing is revoked."""
    layout = split(ONE, 0)
    gate, assignment = tracker(layout), Assignment()
    for name in ("a", "b"):
        assignment.handle(Joined(name))
    assignment.handle(SegmentsChanged([layout[0]]))
    (change,) = [one for one in gate.handle(Drained(0)) if isinstance(one, Open)]
    assignment.handle(SegmentsChanged(change.segments, change.finished))
    assert (assignment.assigned("a").segment_ids, assignment.assigned("b").segment_ids) == ((1,), (2,))
    assert assignment.awaited() == []


@settings(max_examples=150, deadline=None)
@given(histories(steps_max=7), st.data())
def test_open_segments_match_a_naive_model(lives: list[Layout], data: st.DataObject) -> None:
    """Fast against naive, over layouts, drains in any order, seeks, and leaders that change in between."""
    machine, drained, is_open, counter = DrainTracker(), set[int](), frozenset[int](), count(1)
    for layout in lives:
        effects = machine.handle(LayoutChanged(layout))
        drained &= layout.segments.keys()
        for _ in range(data.draw(st.integers(0, 5))):
            is_open = check(effects, layout, drained, is_open)
            if data.draw(st.integers(0, 6)) == 0:
                machine = DrainTracker(machine.record())
                effects = machine.handle(LayoutChanged(replace(layout)))
                is_open = frozenset({-1})
                continue
            one = data.draw(st.sampled_from(sorted(layout.segments)))
            is_back = bool(drained) and data.draw(st.integers(0, 3)) == 0
            if is_back:
                one = data.draw(st.sampled_from(sorted(drained)))
                drained.discard(one)
                effects = machine.handle(Refilled(one, next(counter)))
            elif not layout[one].is_active:
                drained.add(one)
                effects = machine.handle(Drained(one, next(counter)))
            else:
                effects = []
        is_open = check(effects, layout, drained, is_open)
        assert machine.drained == drained


def check(effects: list[Effect], layout: Layout, drained: set[int], before: frozenset[int]) -> frozenset[int]:
    naive = frozenset(one for one in layout.segments if one not in drained and layout.ancestors(one) <= drained)
    if any(isinstance(effect, Open) for effect in effects):
        assert frozenset(opened(effects)) == naive
    else:
        assert naive == before, "the open set changed without an event"
    return naive
