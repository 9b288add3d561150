"""Redelivery counts of messages, against a model that has one number per message."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from anabranch.broker.subscription.redelivery_counts import RedeliveryCounts
from anabranch.model.position import Position

SIZE = 5
ALL = (1 << SIZE) - 1
AT = Position(3, 4)


@given(st.lists(st.one_of(st.none(), st.integers(0, ALL)), max_size=20), st.integers(1, ALL))
def test_each_message_has_the_number_of_its_returns(returns: list[int | None], asked: int) -> None:
    counts, model = RedeliveryCounts(), [0] * SIZE
    for bits in returns:
        counts.add(AT, bits)
        for index in range(SIZE):
            model[index] += bits is None or bits >> index & 1
    levels = counts.levels(AT, asked)
    assert levels == sorted(levels) and len({count for count, _ in levels}) == len(levels)
    found = {index: count for count, bits in levels for index in range(SIZE) if bits >> index & 1}
    assert found == {index: model[index] for index in range(SIZE) if asked >> index & 1}
    if not counts.differ(AT):
        assert set(model) == {counts.of(AT)}


def test_forgotten_and_unknown_entries_have_count_0() -> None:
    counts = RedeliveryCounts()
    assert counts.levels(AT, 0b101) == [(0, 0b101)] and counts.of(AT) == 0 and not counts.differ(AT)
    counts.add(AT, 0b1)
    counts.add(Position(3, 5))
    counts.forget_acked(lambda position: position == AT)
    assert len(counts) == 1 and not counts.differ(AT) and counts.of(Position(3, 5)) == 1
    counts.forget(Position(3, 5))
    assert len(counts) == 0


def test_oldest_counts_are_forgotten_above_the_bound() -> None:
    counts = RedeliveryCounts(positions_max=2)
    for entry in (1, 2, 1, 3):
        counts.add(Position(0, entry))
    assert [counts.of(Position(0, entry)) for entry in (1, 2, 3)] == [0, 1, 1]


def test_memory_of_a_message_returned_for_ever_is_constant() -> None:
    counts = RedeliveryCounts()
    for _ in range(10_000):
        counts.add(AT, 0b10)
    assert counts.levels(AT, 0b11) == [(0, 0b01), (10_000, 0b10)]
