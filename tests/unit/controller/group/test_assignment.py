"""Examples of assignment: balance, the order of revoke, release and grant, and late releases."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from anabranch.controller.group.assignment import (
    Assign,
    Assignment,
    AwaitRelease,
    Evict,
    Holding,
    Joined,
    Left,
    Released,
    ReleaseTimedOut,
    Save,
    SegmentsChanged,
)
from anabranch.controller.group.assignment_record import AssignmentRecord, Leaving
from anabranch.model.layout import Layout
from anabranch.model.segment import Segment
from tests.support.models.layout_histories import merge, split


def begun(layout: Layout, *consumers: str) -> Assignment:
    """Every consumer is there from the start: nothing is on the move."""
    machine = Assignment()
    for name in consumers:
        machine.handle(Joined(name))
    machine.handle(SegmentsChanged(layout.active))
    assert machine.awaited() == []
    return machine


def lists(machine: Assignment) -> dict[str, list[int]]:
    return {name: list(machine.assigned(name).segment_ids) for name in sorted(machine.members)}


def live(layout: Layout, *ids: int) -> list[Segment]:
    return [layout[one] for one in ids]


FOUR = Layout.initial(4, now_ms=0)


def test_second_consumer_gets_half_after_the_release() -> None:
    machine = begun(FOUR, "a")
    generation = machine.generation
    assert lists(machine) == {"a": [0, 1, 2, 3]}
    assert machine.handle(Joined("b")) == [
        Save(generation + 1),
        Assign("a", generation + 1, (0, 1)),
        Assign("b", generation + 1, ()),
        AwaitRelease(2, "a", generation + 1),
        AwaitRelease(3, "a", generation + 1),
    ]
    assert machine.handle(Released("a", 3, generation + 1)) == [Save(generation + 2), Assign("b", generation + 2, (3,))]
    assert machine.handle(Holding("a", generation + 2, frozenset({0, 1}))) == [
        Save(generation + 3),
        Assign("b", generation + 3, (2, 3)),
    ]
    assert machine.awaited() == []


def test_consumer_without_release_is_evicted_before_the_next_assignment() -> None:
    machine = begun(Layout.initial(2, now_ms=0), "a")
    (awaited,) = [one for one in machine.handle(Joined("b")) if isinstance(one, AwaitRelease)]
    late = machine.handle(ReleaseTimedOut(awaited.segment_id, awaited.generation))
    assert late == [Evict(1, "a"), Save(machine.generation), Assign("b", machine.generation, (1,))]
    assert machine.handle(ReleaseTimedOut(awaited.segment_id, awaited.generation)) == []
    assert machine.handle(Released("a", 1, awaited.generation)) == []


def test_segments_of_a_leaving_consumer_are_assigned_at_once() -> None:
    machine = begun(Layout.initial(2, now_ms=0), "a")
    machine.handle(Joined("b"))
    effects = machine.handle(Left("a"))
    assert effects == [Save(machine.generation), Assign("b", machine.generation, (0, 1))]
    assert machine.handle(Left("a")) == []
    machine.handle(Left("b"))
    assert machine.members == frozenset()
    assert Assign("c", machine.generation + 1, (0, 1)) in machine.handle(Joined("c"))


def test_segment_given_back_before_its_release_is_not_moved() -> None:
    machine = begun(Layout.initial(2, now_ms=0), "a")
    machine.handle(Joined("b"))
    assert lists(machine) == {"a": [0], "b": []}
    machine.handle(Left("b"))
    assert lists(machine) == {"a": [0, 1]}
    assert machine.awaited() == []


def test_awaited_segments_are_reassigned_first() -> None:
    machine = begun(FOUR, "a")
    machine.handle(Joined("b"))
    machine.handle(Released("a", 3, machine.generation))  # b reads 3 and waits for 2
    machine.handle(Joined("c"))
    assert lists(machine) == {"a": [0, 1], "b": [3], "c": []}
    assert [due.segment_id for due in machine.awaited()] == [2]
    machine.handle(Released("a", 2, machine.generation))
    assert lists(machine) == {"a": [0, 1], "b": [3], "c": [2]}


def test_release_of_an_older_generation_is_ignored() -> None:
    machine = begun(Layout.initial(2, now_ms=0), "a")
    machine.handle(Joined("b"))
    old = machine.generation
    machine.handle(Left("b"))  # a has 1 again …
    machine.handle(Joined("b"))  # … and is asked once more
    assert machine.handle(Released("a", 1, old)) == []
    assert machine.handle(Holding("a", old, frozenset())) == []
    assert lists(machine)["b"] == []
    machine.handle(Released("a", 1, machine.generation))
    assert lists(machine) == {"a": [0], "b": [1]}


def test_release_by_another_consumer_is_ignored() -> None:
    machine = begun(Layout.initial(2, now_ms=0), "a")
    machine.handle(Joined("b"))
    assert machine.handle(Released("b", 1, machine.generation)) == []
    assert machine.handle(Released("a", 0, machine.generation)) == []
    assert machine.handle(Holding("a", machine.generation, frozenset({1}))) == []


class TestChildren:
    def test_consumer_of_a_drained_parent_gets_a_child(self) -> None:
        layout = Layout.initial(2, now_ms=0)
        machine = begun(layout, "a", "b")
        assert lists(machine) == {"a": [0], "b": [1]}
        after = split(layout, 1)
        machine.handle(SegmentsChanged(after.active, frozenset({1})))
        assert lists(machine) == {"a": [0, 3], "b": [2]}, "b read 1 and goes on with 2"

    def test_child_stays_with_the_parents_consumer_despite_idle_consumers(self) -> None:
        layout = Layout.initial(1, now_ms=0)
        machine = begun(layout, "z")
        for name in ("a", "b", "c"):
            machine.handle(Joined(name))
        assert lists(machine)["z"] == [0]
        after = split(layout, 0)
        machine.handle(SegmentsChanged(after.active, frozenset({0})))
        assert lists(machine) == {"a": [2], "b": [], "c": [], "z": [1]}

    def test_consumer_of_two_parents_gets_a_child_of_each(self) -> None:
        machine = begun(FOUR, "a", "b")
        assert lists(machine) == {"a": [0, 1], "b": [2, 3]}
        after = split(split(FOUR, 0), 1)
        machine.handle(SegmentsChanged(after.active, frozenset({0, 1})))
        assert lists(machine) == {"a": [4, 5, 6], "b": [7, 2, 3]}

    def test_merged_child_goes_to_a_consumer_of_its_parents(self) -> None:
        machine = begun(FOUR, "a", "b", "c", "d")
        after = merge(FOUR, 2, 3)
        machine.handle(SegmentsChanged(after.active, frozenset({2, 3})))
        assert lists(machine) == {"a": [0], "b": [1], "c": [4], "d": []}


def test_unfinished_segment_is_reassigned_only_after_its_release() -> None:
    """After a seek a child is gated again while its consumer may still read it."""
    machine = begun(FOUR, "a", "b")
    effects = machine.handle(SegmentsChanged(live(FOUR, 0, 1, 2)))
    assert AwaitRelease(3, "b", machine.generation) in effects
    machine.handle(Left("a"))
    machine.handle(Joined("c"))
    machine.handle(SegmentsChanged(FOUR.active))
    holders = [name for name, ids in lists(machine).items() if 3 in ids]
    assert holders in ([], ["b"])


def test_new_leader_revokes_nothing() -> None:
    machine = begun(FOUR, "a")
    machine.handle(Joined("b"))
    machine.handle(Released("a", 3, machine.generation))
    successor = Assignment(machine.record())
    assert successor.handle(SegmentsChanged(FOUR.active)) == []
    assert lists(successor) == lists(machine) == {"a": [0, 1], "b": [3]}
    assert successor.awaited() == machine.awaited() == [AwaitRelease(2, "a", machine.generation - 1)]
    assert successor.record() == machine.record()
    assert successor.handle(Joined("a")) == []


def test_event_without_effect_keeps_the_generation() -> None:
    machine = begun(FOUR, "a", "b")
    generation = machine.generation
    assert machine.handle(SegmentsChanged(FOUR.active)) == []
    assert machine.handle(Joined("a")) == []
    assert machine.handle(Left("nobody")) == []
    assert machine.generation == generation


@given(
    st.builds(
        AssignmentRecord,
        st.integers(0, 1 << 60),
        st.dictionaries(st.text(max_size=5), st.lists(st.integers(0, 1 << 40), max_size=5).map(tuple), max_size=5),
        st.dictionaries(st.integers(0, 99), st.builds(Leaving, st.text(max_size=3), st.integers(0, 99)), max_size=4),
    )
)
def test_record_survives_encoding(record: AssignmentRecord) -> None:
    assert AssignmentRecord.from_json(json.loads(json.dumps(record.to_json()))) == record
