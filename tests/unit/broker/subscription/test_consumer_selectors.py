"""Consumer selection: round robin with priorities, hash ring, sticky ranges, active consumer of Failover."""

from __future__ import annotations

from collections import Counter

import pytest

from anabranch.broker.errors import ConsumerAssignFailed
from anabranch.broker.subscription import consumer_selectors as selectors
from anabranch.broker.subscription.consumer_selectors import (
    RING_SIZE,
    HashRing,
    RoundRobin,
    SplitRanges,
    StickyRanges,
    failover_active,
)


def turns(*members: tuple[str, int]) -> RoundRobin[tuple[str, int]]:
    robin: RoundRobin[tuple[str, int]] = RoundRobin(lambda member: member[1])
    robin.reset(members)
    return robin


def test_everybody_in_turn() -> None:
    robin = turns(("a", 0), ("b", 0), ("c", 0))
    picked = [robin.pick(lambda member: True) for _ in range(6)]
    assert [member[0] for member in picked if member] == list("abcabc")


def test_consumer_that_is_not_ready_is_skipped() -> None:
    robin = turns(("a", 0), ("b", 0), ("c", 0))
    picked = [robin.pick(lambda member: member[0] != "b") for _ in range(4)]
    assert [member[0] for member in picked if member] == list("acac")
    assert robin.pick(lambda member: False) is None


def test_lower_numbers_first_the_others_only_when_they_cannot() -> None:
    robin = turns(("low", 5), ("a", 1), ("b", 1))
    assert [robin.pick(lambda m: True) for _ in range(2)] == [("a", 1), ("b", 1)]
    assert robin.pick(lambda m: m[1] == 5) == ("low", 5)


def ring(*labels: str) -> HashRing[str]:
    made: HashRing[str] = HashRing()
    made.reset([(label, label) for label in labels])
    return made


def spans(*labels: str) -> list[tuple[int, int, str]]:
    made: SplitRanges[str] = SplitRanges()
    made.reset([(label, label) for label in labels])
    return made.spans()


def test_joining_consumer_takes_the_lower_half_of_the_widest_range() -> None:
    assert spans() == []
    assert spans("a") == [(0, 65_535, "a")]
    assert spans("a", "b") == [(0, 32_767, "b"), (32_768, 65_535, "a")]
    assert spans("a", "b", "c") == [(0, 16_383, "c"), (16_384, 32_767, "b"), (32_768, 65_535, "a")]


def test_range_of_a_leaving_consumer_goes_to_its_neighbour() -> None:
    made: SplitRanges[str] = SplitRanges()
    members = [(label, label) for label in ("a", "b", "c")]
    made.reset(members)
    made.reset(members[:1] + members[2:])
    assert made.spans() == [(0, 16_383, "c"), (16_384, 65_535, "a")]
    made.reset(members[2:])
    assert made.spans() == [(0, 65_535, "c")]
    made.reset([])
    assert (made.spans(), made.owner(7)) == ([], None)


def test_ring_does_not_depend_on_the_order_of_joining() -> None:
    one, two = ring("a", "b", "c"), ring("c", "a", "b")
    assert [one.owner(slot) for slot in range(RING_SIZE)] == [two.owner(slot) for slot in range(RING_SIZE)]


def test_join_and_leave_move_only_the_slots_they_must() -> None:
    before, after = ring("a", "b", "c"), ring("a", "b", "c", "d")
    moved = Counter()  # type: Counter[str | None]
    for slot in range(RING_SIZE):
        if before.owner(slot) != after.owner(slot):
            moved[after.owner(slot)] += 1
    assert set(moved) == {"d"}
    assert 0.1 * RING_SIZE < moved["d"] < 0.4 * RING_SIZE


def test_every_slot_has_an_owner_and_the_load_is_fair() -> None:
    made = ring("a", "b", "c", "d")
    share = Counter(made.owner(slot) for slot in range(RING_SIZE))
    assert set(share) == {"a", "b", "c", "d"}
    assert max(share.values()) < 2 * min(share.values())
    assert ring().owner(5) is None


def test_sticky_ranges_are_inclusive_and_leave_gaps() -> None:
    ranges: StickyRanges[str] = StickyRanges()
    ranges.declare("a", [(0, 9), (20, 29)])
    ranges.declare("b", [(10, 19)])
    assert [ranges.owner(slot) for slot in (0, 9, 10, 19, 20, 29)] == ["a", "a", "b", "b", "a", "a"]
    assert ranges.owner(30) is None
    ranges.leave("a")
    assert [ranges.owner(slot) for slot in (9, 10, 20)] == [None, "b", None]
    ranges.declare("c", [(0, 9)])


@pytest.mark.parametrize(
    "wanted",
    [
        [(9, 9)],
        [(0, 100)],
        [(5, 6)],
        [(-1, 4)],
        [(5, 65_536)],
        [(300, 200)],
        [(100, 200), (200, 300)],
        [(100, 200), (0, 5)],
    ],
)
def test_bad_or_taken_ranges_are_refused_and_change_nothing(wanted: list[tuple[int, int]]) -> None:
    ranges: StickyRanges[str] = StickyRanges()
    ranges.declare("a", [(0, 9)])
    with pytest.raises(ConsumerAssignFailed):
        ranges.declare("b", wanted)
    assert {ranges.owner(slot) for slot in range(400)} == {"a", None}


def active(members: list[tuple[str, int]], partition: int) -> str | None:
    found = failover_active(members, partition, lambda member: member[1], lambda member: member[0])
    return found[0] if found else None


def test_failover_keeps_the_first_consumer_without_partitions() -> None:
    assert active([("z", 0), ("a", 0)], -1) == "z"
    assert active([("z", 1), ("a", 0)], -1) == "a", "unless its priority is worse"
    assert active([], -1) is None


def test_partitions_are_spread_by_name_over_the_best_level() -> None:
    members = [("c", 0), ("a", 0), ("b", 0), ("best-not", 1)]
    assert [active(members, partition) for partition in range(4)] == ["a", "b", "c", "a"]


def test_members_on_the_same_point(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first label by name owns it, independent of the order of joins and leaves."""
    monkeypatch.setattr(selectors, "_points_of", lambda label: {7, 9} if label == "b" else {7})
    shared: HashRing[str] = HashRing()
    for labels, owners in (
        (["b"], "bb"),
        (["b", "a"], "ab"),
        (["b", "a", "c"], "ab"),
        (["c", "b"], "bb"),
        (["c"], "cc"),
    ):
        shared.reset([(label, label) for label in labels])
        assert [shared.owner(7), shared.owner(9)] == list(owners)
    shared.reset([])
    assert shared.owner(7) is None
