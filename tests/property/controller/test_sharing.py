"""Shares of segments: balanced, sticky, complete, without overlap, under any order of joins, leaves and splits."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.controller.group.assignment import (
    Assign,
    Assignment,
    Event,
    Holding,
    Joined,
    Left,
    Released,
    Save,
    SegmentsChanged,
    Shared,
)
from anabranch.controller.group.assignment_record import AssignmentRecord
from anabranch.controller.group.sharing import balanced, shared, spread
from anabranch.model.layout import Layout
from anabranch.model.segment import bucket_splits

NAMES = "abcdefgh"
MEMBERS = st.lists(st.sampled_from(NAMES), min_size=1, unique=True)
STEPS = st.lists(
    st.tuples(st.sampled_from(["join", "leave", "segments", "release", "restart"]), st.sampled_from(NAMES)), max_size=40
)


@given(st.lists(MEMBERS, min_size=1, max_size=6), st.integers(8, 40))
def test_buckets_are_spread_evenly_and_move_as_little_as_possible(changes: list[list[str]], count: int) -> None:
    former: dict[str, tuple[int, ...]] = {}
    for members in changes:
        found = spread(members, count, former)
        counts = [len(buckets) for buckets in found.values()]
        assert sorted(bucket for buckets in found.values() for bucket in buckets) == list(range(count))
        assert max(counts) - min(counts) <= 1
        kept = sum(len(set(found[name]) & set(former.get(name, ()))) for name in members)
        share, larger = divmod(count, len(members))
        had = sorted((len(former.get(name, ())) for name in members), reverse=True)
        assert kept == sum(min(had[rank], share + (rank < larger)) for rank in range(len(members)))
        former = found


@given(
    st.dictionaries(st.integers(0, 5), st.integers(0, 4), max_size=5),
    MEMBERS,
    st.dictionaries(st.sampled_from(NAMES), st.integers(0, 5), max_size=8),
)
def test_sharers_are_divided_evenly_as_far_as_there_is_room(
    room: dict[int, int], members: list[str], where: dict[str, int]
) -> None:
    kept = {one: [name for name in sorted(members) if where.get(name) == one] for one in room}
    found = balanced(room, sorted(members), kept)
    placed = [name for names in found.values() for name in names]
    assert len(placed) == len(set(placed)) == min(len(members), sum(room.values()))
    for one, names in found.items():
        assert len(names) <= room[one]
        for other, others in found.items():
            assert len(names) <= len(others) + 1 or len(others) == room[other], f"{one} has more sharers than {other}"
        assert len(set(names) & set(kept[one])) == min(len(names), len(kept[one])), "a sharer moved needlessly"


class Group:
    """What `GroupState` does with its assignment, and readers that apply what they are sent at once."""

    def __init__(self, able: frozenset[str]) -> None:
        self.able = able
        self.layout = Layout.initial(1, now_ms=0, bucket_budget=6)
        self.assignment = Assignment()
        self.saved = AssignmentRecord()
        self.lists: dict[str, Assign] = {}
        self.tell(SegmentsChanged(self.layout.active))

    def tell(self, event: Event) -> None:
        effects = self.assignment.handle(event)
        shares = shared(self.layout, self.assignment, self.able)
        if shares != self.assignment.shares:
            effects += self.assignment.handle(Shared(shares))
        for effect in effects:
            if isinstance(effect, Save):
                self.saved = self.assignment.record()
            elif isinstance(effect, Assign):
                self.lists[effect.consumer] = effect
        self.check()

    def step(self, action: str, name: str) -> None:
        match action:
            case "join":
                self.tell(Joined(name))
            case "leave":
                self.lists.pop(name, None)
                self.tell(Left(name))
            case "segments":
                widths = {"a": 1, "b": 2, "c": 3}.get(name, 4)
                self.layout = Layout.initial(widths, now_ms=0, bucket_budget=6)
                self.tell(SegmentsChanged(self.layout.active))
            case "release":
                for due in self.assignment.awaited():
                    self.tell(Released(due.consumer, due.segment_id, due.generation))
            case "restart":
                record = AssignmentRecord.from_json(self.saved.to_json())
                assert record.shares == self.assignment.shares, "a new leader would move shares"
                self.assignment = Assignment(record)
                self.tell(SegmentsChanged(self.layout.active))

    def check(self) -> None:
        assignment = self.assignment
        for one, readers in assignment.shares.items():
            count = len(self.layout[one].entry_bucket_splits) + 1
            assert sorted(bucket for buckets in readers.values() for bucket in buckets) == list(range(count))
            assert assignment.owner(one) in readers
            assert self.able.issuperset(readers)
            assert 2 <= len(readers) <= count
            generations = {self.lists[name].generation for name in readers if name in self.lists}
            for name in readers:
                if name in self.lists and one in self.lists[name].segment_ids:
                    assert self.lists[name].buckets[one] == readers[name], f"{name} has an old share of {one}"
            assert generations
        idle = assignment.without_segments - {name for readers in assignment.shares.values() for name in readers}
        room = [
            one for one in self.layout.segments
            if assignment.owner(one) in self.able and not assignment.is_leaving(one)
            and len(assignment.shares.get(one, "x")) <= len(self.layout[one].entry_bucket_splits)
        ]  # fmt: skip
        assert not (idle & self.able) or not room, f"{idle} have nothing to read, {room} have buckets left"


@settings(max_examples=200, deadline=None)
@given(STEPS, st.sets(st.sampled_from(NAMES), min_size=3))
def test_shares_cover_every_bucket_once_whatever_happens(steps: list[tuple[str, str]], able: set[str]) -> None:
    group = Group(frozenset(able))
    for step in steps:
        group.step(*step)
    for _ in range(5):
        group.step("release", "a")
    assert not group.assignment.awaited()


def test_eight_members_share_one_segment_and_the_share_of_a_leaver_is_all_that_moves() -> None:
    group = Group(frozenset(NAMES))
    group.layout = Layout.initial(1, now_ms=0, bucket_budget=16)
    for name in NAMES:
        group.tell(Joined(name))
    before = dict(group.assignment.shares[0])
    assert {name: len(buckets) for name, buckets in before.items()} == dict.fromkeys(NAMES, 2)
    group.tell(Left("c"))
    after = group.assignment.shares[0]
    assert all(set(before[name]) <= set(after[name]) for name in after)
    lists = [group.lists[name] for name in sorted(after)]
    assert all(one.generation == other.generation for one, other in pairwise(lists)), "claims are of one generation"


def test_former_buckets_that_do_not_exist_are_ignored() -> None:
    assert spread(["a", "b"], 2, {"a": (4, 5), "b": (1, 3)}) == {"a": (0,), "b": (1,)}


def test_a_member_that_cannot_share_keeps_its_segment_alone() -> None:
    group = Group(frozenset("b"))
    group.tell(Joined("a"))
    group.tell(Joined("b"))
    assert group.assignment.shares == {}
    group.tell(Left("a"))
    group.tell(Holding("b", group.assignment.generation, frozenset({0})))
    assert group.lists["b"].segment_ids == (0,)


def test_bucket_count_is_kept_in_the_layout() -> None:
    assert Layout.initial(2, now_ms=0, bucket_budget=6)[0].entry_bucket_splits == bucket_splits(3)
