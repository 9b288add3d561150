"""An administrator's move: the slots get their heir, and the director leaves the table as it is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from anabranch.cluster.director import plan
from anabranch.cluster.planned_moves import plan_move
from anabranch.cluster.slot_assignment import Member
from anabranch.cluster.slot_table import Table
from anabranch.cluster.slots import SLOTS
from anabranch.model.broker_incarnation import BrokerIncarnation

INCARNATIONS = [BrokerIncarnation(f"b{number}", number) for number in range(4)]


def settled(count: int) -> tuple[Table, dict[str, Member]]:
    members = {incarnation.broker: Member(incarnation) for incarnation in INCARNATIONS[:count]}
    table, _ = plan(Table(), members, frozenset())
    return table, members


def done(table: Table) -> Table:
    """Every holder has handed over."""
    return table.with_holders(
        {n: slot.next_holder for n, slot in enumerate(table.slots) if slot.next_holder is not None}
    )


@given(st.integers(2, 4), st.integers(0, 3), st.sets(st.integers(0, SLOTS - 1), max_size=SLOTS // 4))
def test_moved_slots_stay_at_the_chosen_broker(count: int, to: int, slots: set[int]) -> None:
    table, members = settled(count)
    incarnation = INCARNATIONS[to % count]
    planned = plan_move(table, slots, incarnation)
    for number, slot in enumerate(planned.slots):
        if number in slots:
            assert (slot.next_holder or slot.holder) == incarnation
    assert plan_move(planned, slots, incarnation) == planned, "asked twice it changes nothing"
    enough = len(table.held_by(incarnation) - slots) >= len(slots - table.held_by(incarnation))
    if enough:
        assert plan(planned, members, frozenset())[0] == planned, "the director does not undo it"
    after = done(planned)
    assert slots <= after.held_by(incarnation)
    if enough:
        assert plan(after, members, frozenset())[0] == after


def test_slots_of_dead_brokers_are_not_moved() -> None:
    table, _ = settled(2)
    table = table.with_dead([INCARNATIONS[1]])
    assert plan_move(table, range(SLOTS), INCARNATIONS[0]) == table
