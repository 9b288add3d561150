"""Continuation: which segments a member may follow, and what becomes of them when members and ancestors change."""

from __future__ import annotations

from anabranch.controller.events import Halt
from anabranch.controller.group.assignment import Assignment, AwaitRelease
from anabranch.controller.group.assignment_record import AssignmentRecord, Leaving
from anabranch.controller.group.consumer_sessions import Disconnected, LeftCleanly, Registered, Ticked
from anabranch.controller.group.continuation import followed
from anabranch.controller.group.drain_tracker import Drained, LayoutChanged, Refilled
from anabranch.controller.group.group_events import CloseConsumer, ConsumerClosed, Effect, Push
from anabranch.controller.group.stall_watch import Stalls
from anabranch.controller.segment_host import CursorStats
from anabranch.model.layout import Layout
from tests.support.models.layout_histories import merge, split
from tests.unit.controller.group.test_group_state import Bench, pushes

BOTH = frozenset({"a", "b"})


def one() -> Layout:
    return Layout.initial(1, now_ms=0)


def two() -> Layout:
    return Layout.initial(2, now_ms=0)


def has(**owned: tuple[int, ...]) -> Assignment:
    return Assignment(AssignmentRecord(5, owned))


def after(effects: list[Effect]) -> dict[int, tuple[int, ...]]:
    (push,) = [effect for effect in effects if isinstance(effect, Push)]
    return dict(push.after)


# the decision ---------------------------------------------------------------------------------------------------------
def test_only_member_follows_all_children_at_any_distance() -> None:
    layout = split(split(one(), 0), 1)
    assert followed(layout, frozenset(), has(a=(0,)), BOTH) == {1: "a", 2: "a", 3: "a", 4: "a"}


def test_member_that_does_not_continue_follows_nothing() -> None:
    assert followed(split(one(), 0), frozenset(), has(a=(0,)), frozenset()) == {}


def test_child_that_the_balance_gives_to_another_member_waits() -> None:
    assert followed(split(one(), 0), frozenset(), has(a=(0,), b=()), BOTH) == {1: "a"}


def test_merged_child_is_followed_only_by_the_member_of_all_undrained_parents() -> None:
    layout = merge(two(), 0, 1)
    assert followed(layout, frozenset(), has(a=(0,), b=(1,)), BOTH) == {}
    assert followed(layout, frozenset(), has(a=(0, 1)), BOTH) == {2: "a"}
    assert followed(layout, frozenset({1}), has(a=(0,)), BOTH) == {2: "a"}


def test_nothing_is_followed_while_an_ancestor_is_being_revoked() -> None:
    assignment = Assignment(AssignmentRecord(5, {"a": (0,)}, {0: Leaving("b", 4)}))
    assert followed(split(one(), 0), frozenset(), assignment, BOTH) == {}


def test_child_that_another_member_has_not_released_is_not_followed() -> None:
    assignment = Assignment(AssignmentRecord(5, {"a": (0,)}, {1: Leaving("b", 4)}))
    assert followed(split(one(), 0), frozenset(), assignment, BOTH) == {2: "a"}


def test_drained_child_is_not_followed_and_its_children_are() -> None:
    layout = split(split(one(), 0), 1)
    assert followed(layout, frozenset({1}), has(a=(0,)), BOTH) == {2: "a", 3: "a", 4: "a"}


def test_followed_segment_stays_although_the_balance_has_changed() -> None:
    assignment = Assignment(AssignmentRecord(5, {"a": (0,), "b": ()}, following={1: "a", 2: "a"}))
    assert followed(split(one(), 0), frozenset(), assignment, BOTH) == {1: "a", 2: "a"}


def test_record_with_followed_segments_is_read_back() -> None:
    record = AssignmentRecord(5, {"a": (0,)}, {}, {1: "a", 2: "a"})
    assert AssignmentRecord.from_json(record.to_json()) == record
    assert "following" not in AssignmentRecord(5, {"a": (0,)}).to_json()


# in the group ---------------------------------------------------------------------------------------------------------
def bench_with_split(*consumers: str, continues: bool = True) -> tuple[Bench, list[Effect]]:
    bench = Bench()
    bench.lead(one())
    for number, name in enumerate(consumers):
        bench.tell(Registered(name, number, continues=continues))
    return bench, bench.tell(LayoutChanged(split(one(), 0)))


def test_split_grants_the_children_with_their_undrained_ancestors() -> None:
    _, effects = bench_with_split("a")
    assert pushes(effects) == {"a": (0, 1, 2)}
    assert after(effects) == {1: (0,), 2: (0,)}


def test_split_grants_nothing_to_a_client_without_the_flag() -> None:
    bench, effects = bench_with_split("a", continues=False)
    assert pushes(effects) == {}
    assert pushes(bench.tell(Drained(0))) == {"a": (1, 2)}


def test_children_become_ordinary_segments_when_the_parent_is_drained() -> None:
    bench, _ = bench_with_split("a")
    effects = bench.tell(Drained(0))
    assert pushes(effects) == {"a": (1, 2)}
    assert after(effects) == {}
    assert not bench.group.assignment.following


def test_second_member_gets_its_child_when_the_parent_is_drained() -> None:
    bench, effects = bench_with_split("a", "b")
    assert pushes(effects) == {"a": (0, 1)}
    assert pushes(bench.tell(Drained(0))) == {"a": (1,), "b": (2,)}


def test_join_takes_a_followed_child_only_after_the_parent_is_drained() -> None:
    bench, _ = bench_with_split("a")
    assert pushes(bench.tell(Registered("b", 9, continues=True))) == {"b": ()}
    effects = bench.tell(Drained(0))
    assert pushes(effects) == {"a": (1,)}
    assert [one.segment_id for one in effects if isinstance(one, AwaitRelease)] == [2]


def test_new_leader_keeps_the_followed_segments() -> None:
    bench, _ = bench_with_split("a")
    successor = Bench(2, bench.stored, bench.version)
    successor.lead(split(one(), 0))
    effects = successor.tell(Registered("a", 3, continues=True))
    assert pushes(effects) == {"a": (0, 1, 2)}
    assert after(effects) == {1: (0,), 2: (0,)}


def test_client_that_returns_without_the_flag_loses_the_followed_segments() -> None:
    bench, _ = bench_with_split("a")
    effects = bench.tell(Registered("a", 3))
    assert pushes(effects) == {"a": (0,)}
    assert [one.segment_id for one in effects if isinstance(one, AwaitRelease)] == [1, 2]


def test_successor_of_a_member_that_left_gets_the_parent_and_follows() -> None:
    bench, _ = bench_with_split("a", "b")
    assert pushes(bench.tell(LeftCleanly("a", 0))) == {"b": (0, 1, 2)}


def test_expired_member_is_closed_at_followed_segments_before_its_successor_reads() -> None:
    bench, _ = bench_with_split("a", "b")
    bench.tell(Disconnected(0))
    bench.now_ms = 100
    effects = bench.tell(Ticked())
    (close,) = [effect for effect in effects if isinstance(effect, CloseConsumer)]
    assert pushes(effects) == {}
    assert bench.group.assignment.holder(0) == bench.group.assignment.holder(1) == "a"
    assert pushes(bench.tell(ConsumerClosed(close))) == {"b": (0, 1, 2)}


def test_child_is_followed_again_after_its_parent_was_rewound_and_it_was_released() -> None:
    bench, _ = bench_with_split("a")
    bench.tell(Drained(0))
    effects = bench.tell(Refilled(0, 1))
    assert pushes(effects) == {"a": (0,)}
    assert bench.group.assignment.holder(1) == "a"
    bench.tell(LeftCleanly("a", 0))
    assert pushes(bench.tell(Registered("a", 3, continues=True))) == {"a": (0, 1, 2)}


def test_seek_revokes_followed_segments_with_the_others() -> None:
    bench, _ = bench_with_split("a")
    assert pushes(bench.tell(Halt("first", "op"))) == {"a": ()}
    assert bench.group.assignment.holder(1) == "a"
    assert bench.group.void_below == bench.group.assignment.generation


# stalls ---------------------------------------------------------------------------------------------------------------
def test_waiting_segments_are_those_that_no_member_follows() -> None:
    bench, _ = bench_with_split("a", "b")
    assert bench.group.waiting == {2: (0,)}
    bench.tell(Drained(0))
    assert bench.group.waiting == {}


def test_stall_is_found_once_when_a_cursor_with_consumers_does_not_move() -> None:
    stalls = Stalls()
    assert stalls.look({0: CursorStats(3, 1)}) == []
    assert stalls.look({0: CursorStats(2, 1)}) == [], "it moves"
    assert stalls.look({0: CursorStats(2, 1), 1: CursorStats(5, 0)}) == [0]
    assert stalls.look({0: CursorStats(2, 1), 1: CursorStats(5, 0)}) == [], "segment 1 has no consumer"
    assert stalls.look({}) == []
    assert stalls.look({0: CursorStats(2, 1)}) == []
    assert stalls.look({0: CursorStats(2, 1)}) == [0], "drained and rewound meanwhile"
