"""Group state: effects follow the save, a new leader revokes nothing, no segment has two readers."""

from __future__ import annotations

import pytest

from anabranch.controller.events import Halt, Halted, Resume, Resumed, StepDown
from anabranch.controller.group import drain_tracker as draining
from anabranch.controller.group.assignment import AwaitRelease, Holding
from anabranch.controller.group.consumer_sessions import Disconnected, LeftCleanly, Registered, Ticked, Welcome
from anabranch.controller.group.drain_tracker import LayoutChanged
from anabranch.controller.group.group_events import (
    AskDrained,
    CloseConsumer,
    ConsumerClosed,
    Effect,
    Event,
    GroupDoubtful,
    GroupSaved,
    GroupSeen,
    Push,
    ReadGroup,
    ReleaseOverdue,
    SaveGroup,
)
from anabranch.controller.group.group_record import BadGroup, GroupRecord
from anabranch.controller.group.group_state import GroupState
from anabranch.controller.segment_host import Moved
from anabranch.model.layout import NO_LIMITS, Layout
from anabranch.model.replacement import plan_split, replaced, reserved
from anabranch.model.segment import Seal


class Bench:
    def __init__(self, term: int = 1, stored: GroupRecord | None = None, version: int | None = None) -> None:
        self.group = GroupState("life", term, grace_ms=100)
        self.stored, self.version, self.now_ms = stored, version, 0
        assert self.group.begin() == [ReadGroup()]

    def tell(self, *events: Event) -> list[Effect]:
        """Saves are done at once; the other effects are given back."""
        left: list[Effect] = []
        ahead = list(events)
        while ahead:
            for effect in self.group.handle(ahead.pop(0), self.now_ms):
                if isinstance(effect, SaveGroup):
                    assert effect.expected == self.version
                    self.stored = GroupRecord.decode(effect.record.encode())
                    self.version = (self.version or 0) + 1
                    ahead.append(GroupSaved(self.version))
                else:
                    left.append(effect)
        return left

    def lead(self, layout: Layout) -> list[Effect]:
        return self.tell(GroupSeen(self.stored, self.version), LayoutChanged(layout))


def pushes(effects: list[Effect]) -> dict[str, tuple[int, ...]]:
    return {effect.consumer: effect.segment_ids for effect in effects if isinstance(effect, Push)}


def two() -> Layout:
    return Layout.initial(2, now_ms=0)


def split(layout: Layout) -> Layout:
    plan = plan_split(layout, 0, now_ms=1, limits=NO_LIMITS)
    return replaced(reserved(layout, plan), plan, {0: Seal(5)})


def test_effects_follow_the_save() -> None:
    bench = Bench()
    bench.lead(two())
    (save,) = bench.group.handle(Registered("a", 7), 0)
    assert isinstance(save, SaveGroup)
    assert bench.group.handle(Registered("b", 8), 0) == []  # waits for its own save
    effects = bench.group.handle(GroupSaved(50), 0)
    assert [effect.name for effect in effects if isinstance(effect, Welcome)] == ["a"]
    assert pushes(effects) == {"a": (0, 1)}
    (again,) = [effect for effect in effects if isinstance(effect, SaveGroup)]
    assert again.expected == 50
    assert pushes(bench.group.handle(GroupSaved(51), 0))["b"] == ()  # `a` must release first


def test_segment_moves_by_revoke_release_grant() -> None:
    bench = Bench()
    bench.lead(two())
    bench.tell(Registered("a", 7))
    effects = bench.tell(Registered("b", 8))
    (due,) = [effect for effect in effects if isinstance(effect, AwaitRelease)]
    assert due.consumer == "a"
    assert pushes(bench.tell(Holding("a", due.generation, frozenset({0})))) == {"b": (1,)}


def test_overdue_consumer_is_closed_before_reassignment() -> None:
    bench = Bench()
    bench.lead(two())
    bench.tell(Registered("a", 7))
    (due,) = [effect for effect in bench.tell(Registered("b", 8)) if isinstance(effect, AwaitRelease)]
    (close,) = bench.tell(ReleaseOverdue(due.segment_id, due.generation, due.consumer))
    assert isinstance(close, CloseConsumer)
    assert (close.consumer, close.segment_id) == ("a", 1)
    assert pushes(bench.tell(ConsumerClosed(close))) == {"b": (1,)}
    assert bench.tell(ReleaseOverdue(due.segment_id, due.generation, due.consumer)) == []


def test_expired_consumer_is_closed_everywhere_before_reassignment() -> None:
    bench = Bench()
    bench.lead(two())
    bench.tell(Registered("a", 7), Registered("b", 8))
    bench.tell(Disconnected(7))
    bench.now_ms = 100
    (close,) = [effect for effect in bench.tell(Ticked()) if isinstance(effect, CloseConsumer)]
    assert (close.consumer, close.segment_id) == ("a", None)
    assert set(pushes(bench.tell(ConsumerClosed(close)))["b"]) == {0, 1}


def test_consumer_that_returns_before_its_close_keeps_its_segments() -> None:
    bench = Bench()
    bench.lead(two())
    bench.tell(Registered("a", 7))
    bench.tell(Disconnected(7))
    bench.now_ms = 100
    (close,) = [effect for effect in bench.tell(Ticked()) if isinstance(effect, CloseConsumer)]
    effects = bench.tell(Registered("a", 9))
    assert pushes(effects) == {"a": (0, 1)}
    # owners admit nothing below the generation of the close, so the consumer gets a new generation
    assert {one.generation for one in effects if isinstance(one, Push)} == {close.generation}
    assert bench.tell(ConsumerClosed(close)) == []
    assert bench.group.assignment.members == {"a"}


def test_fence_is_at_most_one_above_the_durable_generation() -> None:
    bench = Bench()
    bench.lead(two())
    bench.tell(Registered("a", 7))
    bench.tell(Disconnected(7))
    (save,) = bench.group.handle(Ticked(), 100)
    assert isinstance(save, SaveGroup)  # first that, then the closing
    (close,) = bench.group.handle(GroupSaved(50), 100)
    assert close == CloseConsumer("a", None, save.record.assignment.generation + 1)
    successor = Bench(2, save.record, 50)
    successor.lead(two())
    generations = [one.generation for one in successor.tell(Registered("b", 1)) if isinstance(one, Push)]
    assert min(generations) >= close.generation


def test_new_process_of_a_name_gets_a_new_generation() -> None:
    bench = Bench()
    bench.lead(two())
    (first,) = {one.generation for one in bench.tell(Registered("a", 7)) if isinstance(one, Push)}
    taken_over = {one.generation for one in bench.tell(Registered("a", 8)) if isinstance(one, Push)}
    assert taken_over == {first + 1}
    bench.tell(Disconnected(8))
    back = {one.generation for one in bench.tell(Registered("a", 9)) if isinstance(one, Push)}
    assert back == {first + 1}  # the same process, as far as anybody can tell: nothing is written
    bench.tell(Disconnected(9))
    new = {one.generation for one in bench.tell(Registered("a", 10, is_new=True)) if isinstance(one, Push)}
    assert new == {first + 2}


def test_new_incarnation_starts_above_all_old_generations() -> None:
    old = Bench()
    old.lead(two())
    old.tell(Registered("a", 1))
    successor = GroupState("another", 2, first_generation=1 << 32)
    (save,) = successor.handle(GroupSeen(old.stored, old.version), 0)
    assert isinstance(save, SaveGroup)
    assert save.record.assignment.generation == 1 << 32


def test_children_wait_for_their_parent() -> None:
    bench = Bench()
    bench.lead(two())
    bench.tell(Registered("a", 7))
    layout = split(two())
    bench.tell(LayoutChanged(layout))
    assert set(bench.group.assignment.assigned("a").segment_ids) == {0, 1}
    assert set(pushes(bench.tell(draining.Drained(0)))["a"]) == {1, 2, 3}


class TestSeek:
    """A parent that is read again closes its children before anything of them is."""

    def read_on(self) -> Bench:
        bench = Bench()
        bench.lead(split(two()))
        bench.tell(Registered("a", 7), Registered("b", 8), draining.Drained(0))
        bench.tell(Holding("a", bench.group.assignment.generation, frozenset()))
        bench.tell(Holding("b", bench.group.assignment.generation, frozenset()))
        owned = bench.group.assignment.record().owned
        assert sorted(one for ids in owned.values() for one in ids) == [1, 2, 3]
        return bench

    def test_all_segments_are_revoked_before_a_cursor_moves(self) -> None:
        bench = self.read_on()
        (save,) = bench.group.handle(Halt("s", "seek"), 0)
        assert isinstance(save, SaveGroup), "effects follow the save"
        assert save.record.assignment.owned == {"a": (), "b": ()}
        effects = bench.group.handle(GroupSaved((bench.version or 0) + 1), 0)
        assert pushes(effects) == {"a": (), "b": ()}
        assert Halted("seek", save.record.assignment.generation) in effects
        assert bench.group.void_below == save.record.assignment.generation

    def test_nothing_is_assigned_during_a_seek(self) -> None:
        bench = self.read_on()
        bench.tell(Halt("s", "seek"))
        effects = bench.tell(
            draining.Refilled(0, rewind_count=1),
            draining.Drained(0, rewind_count=1),
            Registered("c", 9),
            LeftCleanly("a", 7),
        )
        assert set(pushes(effects).values()) <= {()}

    def test_after_a_seek_the_parent_is_assigned_first(self) -> None:
        bench = self.read_on()
        bench.tell(Halt("s", "seek"))
        moved = {0: Moved(False, 1), 1: Moved(False, 0), 2: Moved(False, 0), 3: Moved(False, 0)}
        effects = bench.tell(Resume("s", "seek", moved))
        assert sorted(one for ids in pushes(effects).values() for one in ids) == [0, 1]
        assert all(e.generation > bench.group.void_below for e in effects if isinstance(e, Push))
        assert effects[-1] == Resumed("seek")
        assert not bench.tell(draining.Drained(0, rewind_count=0)), "sent before the seek, received after it"
        again = bench.tell(draining.Drained(0, rewind_count=1))
        assert {one for ids in pushes(again).values() for one in ids} >= {2, 3}

    def test_seek_to_the_end_keeps_children_open(self) -> None:
        bench = self.read_on()
        bench.tell(Halt("s", "seek"))
        effects = bench.tell(Resume("s", "seek", {0: Moved(True, 0), 1: Moved(False, 0)}))
        assert sorted(one for ids in pushes(effects).values() for one in ids) == [1, 2, 3]

    def test_new_leader_continues_a_seek(self) -> None:
        old = self.read_on()
        (halted,) = [e for e in old.tell(Halt("s", "seek")) if isinstance(e, Halted)]
        successor = Bench(2, old.stored, old.version)
        successor.lead(split(two()))
        assert pushes(successor.tell(Registered("a", 17), Registered("b", 18))) == {"a": (), "b": ()}
        assert successor.tell(Halt("s", "seek")) == [halted]
        effects = successor.tell(Resume("s", "seek", {0: Moved(False, 1)}))
        assert sorted(one for ids in pushes(effects).values() for one in ids) == [0, 1]
        last = Bench(3, successor.stored, successor.version)
        last.lead(split(two()))
        assert last.tell(Halt("s", "seek")) == [Resumed("seek")], "a finished seek is not repeated"


class TestSuccessor:
    def test_new_leader_revokes_nothing(self) -> None:
        old = Bench()
        old.lead(two())
        old.tell(Registered("a", 1), Registered("b", 2), LeftCleanly("b", 2))
        successor = Bench(2, old.stored, old.version)
        successor.lead(two())
        assert pushes(successor.tell(Registered("a", 9))) == {"a": (0, 1)}
        # one above what it found: whatever the owners were told last, nobody is locked out
        assert successor.group.assignment.generation == old.group.assignment.generation + 1

    def test_new_leader_asks_once_for_drained_segments(self) -> None:
        successor = Bench(2)
        assert successor.lead(split(two())) == [AskDrained((0,))]
        assert successor.tell(LayoutChanged(split(two()))) == []

    def test_new_leader_finishes_closing_expired_consumers(self) -> None:
        old = Bench()
        old.lead(two())
        old.tell(Registered("a", 7))
        old.tell(Disconnected(7))
        old.now_ms = 100
        old.tell(Ticked())  # and dies before the owners have closed it
        successor = Bench(2, old.stored, old.version)
        (close,) = [effect for effect in successor.lead(two()) if isinstance(effect, CloseConsumer)]
        successor.tell(ConsumerClosed(close))
        assert successor.group.assignment.members == frozenset()

    def test_late_write_of_the_last_leader_is_adopted(self) -> None:
        old = Bench()
        old.lead(two())
        successor = GroupState("life", 2, grace_ms=100)
        (save,) = successor.handle(GroupSeen(old.stored, old.version), 0)
        assert isinstance(save, SaveGroup)
        old.tell(Registered("a", 1))  # answered, so it must be kept
        assert successor.handle(GroupDoubtful(), 0) == [ReadGroup()]
        (save,) = successor.handle(GroupSeen(old.stored, old.version), 0)
        assert isinstance(save, SaveGroup)
        assert list(save.record.sessions.joined_at_ms) == ["a"]

    def test_old_leader_steps_down(self) -> None:
        old = Bench()
        old.lead(two())
        (save,) = old.group.handle(Registered("a", 1), 0)
        successor = Bench(2, old.stored, old.version)
        successor.lead(two())
        old.group.handle(GroupDoubtful(), 0)
        (effect,) = old.group.handle(GroupSeen(successor.stored, successor.version), 0)
        assert isinstance(save, SaveGroup)
        assert isinstance(effect, StepDown)

    @pytest.mark.parametrize("is_applied", [True, False])
    def test_doubtful_save_is_settled_by_a_read(self, is_applied: bool) -> None:
        bench = Bench()
        bench.lead(two())
        (save,) = bench.group.handle(Registered("a", 1), 0)
        assert isinstance(save, SaveGroup)
        bench.group.handle(GroupDoubtful(), 0)
        if is_applied:
            bench.stored, bench.version = GroupRecord.decode(save.record.encode()), 77
        assert pushes(bench.tell(GroupSeen(bench.stored, bench.version))) == {"a": (0, 1)}

    def test_record_of_another_incarnation_is_ignored(self) -> None:
        old = Bench()
        old.lead(two())
        old.tell(Registered("a", 1))
        successor = GroupState("another", 2)
        (save,) = successor.handle(GroupSeen(old.stored, old.version), 0)
        assert isinstance(save, SaveGroup)
        assert save.record == GroupRecord("another", 2)


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"life":"x","leaderTerm":"y"}'])
def test_damaged_record_is_refused(data: bytes) -> None:
    with pytest.raises(BadGroup):
        GroupRecord.decode(data)
