"""Groups: nothing is told before it is durable, a successor takes nothing away, no segment has two readers."""

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


def test_told_only_when_it_is_durable() -> None:
    bench = Bench()
    bench.lead(two())
    (save,) = bench.group.handle(Registered("a", 7), 0)
    assert isinstance(save, SaveGroup)
    assert bench.group.handle(Registered("b", 8), 0) == []  # waits for its own save
    told = bench.group.handle(GroupSaved(50), 0)
    assert [effect.name for effect in told if isinstance(effect, Welcome)] == ["a"]
    assert pushes(told) == {"a": (0, 1)}
    (again,) = [effect for effect in told if isinstance(effect, SaveGroup)]
    assert again.expected == 50
    assert pushes(bench.group.handle(GroupSaved(51), 0))["b"] == ()  # `a` is to let go first


def test_revoke_release_grant() -> None:
    bench = Bench()
    bench.lead(two())
    bench.tell(Registered("a", 7))
    told = bench.tell(Registered("b", 8))
    (due,) = [effect for effect in told if isinstance(effect, AwaitRelease)]
    assert due.consumer == "a"
    assert pushes(bench.tell(Holding("a", due.generation, frozenset({0})))) == {"b": (1,)}


def test_an_overdue_release_is_closed_by_the_owner_first() -> None:
    bench = Bench()
    bench.lead(two())
    bench.tell(Registered("a", 7))
    (due,) = [effect for effect in bench.tell(Registered("b", 8)) if isinstance(effect, AwaitRelease)]
    (close,) = bench.tell(ReleaseOverdue(due.segment_id, due.generation))
    assert isinstance(close, CloseConsumer)
    assert (close.consumer, close.segment_id) == ("a", 1)
    assert pushes(bench.tell(ConsumerClosed(close))) == {"b": (1,)}
    assert bench.tell(ReleaseOverdue(due.segment_id, due.generation)) == []


def test_grace_over_means_closed_everywhere_first() -> None:
    bench = Bench()
    bench.lead(two())
    bench.tell(Registered("a", 7), Registered("b", 8))
    bench.tell(Disconnected(7))
    bench.now_ms = 100
    (close,) = [effect for effect in bench.tell(Ticked()) if isinstance(effect, CloseConsumer)]
    assert (close.consumer, close.segment_id) == ("a", None)
    assert set(pushes(bench.tell(ConsumerClosed(close)))["b"]) == {0, 1}


def test_back_before_it_was_sent_away() -> None:
    bench = Bench()
    bench.lead(two())
    bench.tell(Registered("a", 7))
    bench.tell(Disconnected(7))
    bench.now_ms = 100
    (close,) = [effect for effect in bench.tell(Ticked()) if isinstance(effect, CloseConsumer)]
    told = bench.tell(Registered("a", 9))
    assert pushes(told) == {"a": (0, 1)}
    # the owners let in nothing below what they were told to close it with: it has it under a new generation
    assert {one.generation for one in told if isinstance(one, Push)} == {close.generation}
    assert bench.tell(ConsumerClosed(close)) == []
    assert bench.group.assignment.members == {"a"}


def test_owners_are_told_no_fence_that_a_successor_would_not_know() -> None:
    bench = Bench()
    bench.lead(two())
    bench.tell(Registered("a", 7))
    bench.tell(Disconnected(7))
    (save,) = bench.group.handle(Ticked(), 100)
    assert isinstance(save, SaveGroup)  # first that, then the closing
    (close,) = bench.group.handle(GroupSaved(50), 100)
    assert close == CloseConsumer("a", None, save.record.assignment.generation + 1)
    heir = Bench(2, save.record, 50)
    heir.lead(two())
    told = [one.generation for one in heir.tell(Registered("b", 1)) if isinstance(one, Push)]
    assert min(told) >= close.generation


def test_another_process_of_the_same_name_has_it_under_another_generation() -> None:
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


def test_generations_of_a_new_life_begin_above_those_of_the_old() -> None:
    old = Bench()
    old.lead(two())
    old.tell(Registered("a", 1))
    heir = GroupState("another", 2, first_generation=1 << 32)
    (save,) = heir.handle(GroupSeen(old.stored, old.version), 0)
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

    def test_everything_is_taken_back_before_a_cursor_moves(self) -> None:
        bench = self.read_on()
        (save,) = bench.group.handle(Halt("s", "seek"), 0)
        assert isinstance(save, SaveGroup), "nothing is told before it is durable"
        assert save.record.assignment.owned == {"a": (), "b": ()}
        told = bench.group.handle(GroupSaved((bench.version or 0) + 1), 0)
        assert pushes(told) == {"a": (), "b": ()}
        assert Halted("seek", save.record.assignment.generation) in told
        assert bench.group.void_below == save.record.assignment.generation

    def test_nothing_is_given_out_meanwhile(self) -> None:
        bench = self.read_on()
        bench.tell(Halt("s", "seek"))
        told = bench.tell(
            draining.Refilled(0, rewind_count=1),
            draining.Drained(0, rewind_count=1),
            Registered("c", 9),
            LeftCleanly("a", 7),
        )
        assert set(pushes(told).values()) <= {()}

    def test_afterwards_the_parent_comes_first(self) -> None:
        bench = self.read_on()
        bench.tell(Halt("s", "seek"))
        moved = {0: Moved(False, 1), 1: Moved(False, 0), 2: Moved(False, 0), 3: Moved(False, 0)}
        told = bench.tell(Resume("s", "seek", moved))
        assert sorted(one for ids in pushes(told).values() for one in ids) == [0, 1]
        assert all(e.generation > bench.group.void_below for e in told if isinstance(e, Push))
        assert told[-1] == Resumed("seek")
        assert not bench.tell(draining.Drained(0, rewind_count=0)), "told before the seek, heard after it"
        again = bench.tell(draining.Drained(0, rewind_count=1))
        assert {one for ids in pushes(again).values() for one in ids} >= {2, 3}

    def test_a_seek_to_the_end_closes_nothing(self) -> None:
        bench = self.read_on()
        bench.tell(Halt("s", "seek"))
        told = bench.tell(Resume("s", "seek", {0: Moved(True, 0), 1: Moved(False, 0)}))
        assert sorted(one for ids in pushes(told).values() for one in ids) == [1, 2, 3]

    def test_a_successor_goes_on_where_it_was(self) -> None:
        old = self.read_on()
        (halted,) = [e for e in old.tell(Halt("s", "seek")) if isinstance(e, Halted)]
        heir = Bench(2, old.stored, old.version)
        heir.lead(split(two()))
        assert pushes(heir.tell(Registered("a", 17), Registered("b", 18))) == {"a": (), "b": ()}
        assert heir.tell(Halt("s", "seek")) == [halted]
        told = heir.tell(Resume("s", "seek", {0: Moved(False, 1)}))
        assert sorted(one for ids in pushes(told).values() for one in ids) == [0, 1]
        last = Bench(3, heir.stored, heir.version)
        last.lead(split(two()))
        assert last.tell(Halt("s", "seek")) == [Resumed("seek")], "done is not done twice"


class TestSuccessor:
    def test_takes_nothing_from_anybody(self) -> None:
        old = Bench()
        old.lead(two())
        old.tell(Registered("a", 1), Registered("b", 2), LeftCleanly("b", 2))
        heir = Bench(2, old.stored, old.version)
        heir.lead(two())
        assert pushes(heir.tell(Registered("a", 9))) == {"a": (0, 1)}
        # one above what it found: whatever the owners were told last, nobody is locked out
        assert heir.group.assignment.generation == old.group.assignment.generation + 1

    def test_asks_once_who_is_drained(self) -> None:
        heir = Bench(2)
        assert heir.lead(split(two())) == [AskDrained((0,))]
        assert heir.tell(LayoutChanged(split(two()))) == []

    def test_finishes_sending_away(self) -> None:
        old = Bench()
        old.lead(two())
        old.tell(Registered("a", 7))
        old.tell(Disconnected(7))
        old.now_ms = 100
        old.tell(Ticked())  # and dies before the owners have closed it
        heir = Bench(2, old.stored, old.version)
        (close,) = [effect for effect in heir.lead(two()) if isinstance(effect, CloseConsumer)]
        heir.tell(ConsumerClosed(close))
        assert heir.group.assignment.members == frozenset()

    def test_adopts_what_its_predecessor_wrote_at_the_last_moment(self) -> None:
        old = Bench()
        old.lead(two())
        heir = GroupState("life", 2, grace_ms=100)
        (save,) = heir.handle(GroupSeen(old.stored, old.version), 0)
        assert isinstance(save, SaveGroup)
        old.tell(Registered("a", 1))  # told, so it must hold
        assert heir.handle(GroupDoubtful(), 0) == [ReadGroup()]
        (save,) = heir.handle(GroupSeen(old.stored, old.version), 0)
        assert isinstance(save, SaveGroup)
        assert list(save.record.sessions.joined_at_ms) == ["a"]

    def test_ends_the_old_leader(self) -> None:
        old = Bench()
        old.lead(two())
        (save,) = old.group.handle(Registered("a", 1), 0)
        heir = Bench(2, old.stored, old.version)
        heir.lead(two())
        old.group.handle(GroupDoubtful(), 0)
        (effect,) = old.group.handle(GroupSeen(heir.stored, heir.version), 0)
        assert isinstance(save, SaveGroup)
        assert isinstance(effect, StepDown)

    @pytest.mark.parametrize("is_applied", [True, False])
    def test_a_doubtful_save(self, is_applied: bool) -> None:
        bench = Bench()
        bench.lead(two())
        (save,) = bench.group.handle(Registered("a", 1), 0)
        assert isinstance(save, SaveGroup)
        bench.group.handle(GroupDoubtful(), 0)
        if is_applied:
            bench.stored, bench.version = GroupRecord.decode(save.record.encode()), 77
        assert pushes(bench.tell(GroupSeen(bench.stored, bench.version))) == {"a": (0, 1)}

    def test_another_life_of_the_subscription(self) -> None:
        old = Bench()
        old.lead(two())
        old.tell(Registered("a", 1))
        heir = GroupState("another", 2)
        (save,) = heir.handle(GroupSeen(old.stored, old.version), 0)
        assert isinstance(save, SaveGroup)
        assert save.record == GroupRecord("another", 2)


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"life":"x","leaderTerm":"y"}'])
def test_unreadable(data: bytes) -> None:
    with pytest.raises(BadGroup):
        GroupRecord.decode(data)
