"""The director: order of table writes and recoveries while brokers die, return or write the table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from anabranch.cluster.director import (
    Director,
    Effect,
    Event,
    MembersSeen,
    ReadTable,
    Recover,
    Recovered,
    RecoveryFailed,
    SaveTable,
    StepDown,
    TableRaced,
    TableSaved,
    TableSeen,
    Waited,
    plan,
)
from anabranch.cluster.slot_assignment import Member
from anabranch.cluster.slot_table import Slot, Table
from anabranch.cluster.slots import SLOTS
from anabranch.model.broker_incarnation import BrokerIncarnation

A, B, C = BrokerIncarnation("a", 1), BrokerIncarnation("b", 1), BrokerIncarnation("c", 1)
A2 = BrokerIncarnation("a", 2)


def there(*incarnations: BrokerIncarnation, draining: BrokerIncarnation | None = None) -> MembersSeen:
    return MembersSeen(
        {incarnation.broker: Member(incarnation, incarnation == draining) for incarnation in incarnations}
    )


def held(*incarnations: BrokerIncarnation, serial: int = 10, term: int = 1) -> Table:
    """Slots dealt out in turn."""
    slots = tuple(Slot(incarnations[number % len(incarnations)], 1) for number in range(SLOTS))
    return Table(slots, term=term, serial=serial)


def saved(effects: list[Effect]) -> Table:
    """The one table that is written."""
    (save,) = [effect for effect in effects if isinstance(effect, SaveTable)]
    return save.table


def after(*events: Event, term: int = 2, is_patient: bool = False) -> tuple[Director, list[Effect]]:
    """A director that has handled these, and what it did about the last."""
    director = Director(term, is_patient)
    effects: list[Effect] = []
    for event in events:
        effects = director.handle(event)
    return director, effects


def sizes(table: Table) -> dict[str, int]:
    found: dict[str, int] = {}
    for slot in table.slots:
        if slot.holder is not None:
            found[slot.holder.broker] = found.get(slot.holder.broker, 0) + 1
    return found


# -- beginning


@pytest.mark.parametrize("first", [TableSeen(Table(), None), there(A), Recovered(A), RecoveryFailed(A), Waited()])
def test_nothing_is_decided_before_table_and_members_are_known(first: Event) -> None:
    assert after(first)[1] == []


def test_the_first_table_is_created() -> None:
    effects = after(TableSeen(Table(), None), there(A, B))[1]
    assert [type(effect) for effect in effects] == [SaveTable]
    save = effects[0]
    assert isinstance(save, SaveTable)
    assert save.expected is None
    assert (save.table.term, save.table.serial) == (2, 1)
    assert sizes(save.table) == {"a": 128, "b": 128}


def test_a_table_that_is_right_is_left_alone() -> None:
    assert after(TableSeen(held(A, B), 5), there(A, B))[1] == []


def test_without_members_only_the_dead_are_recorded() -> None:
    effects = after(TableSeen(held(A, B), 5), there())[1]
    assert saved(effects).dead == {A, B}
    assert saved(effects).slots == held(A, B).slots


# -- a broker dies


def test_dead_broker_is_recovered_before_its_slots_move() -> None:
    director, effects = after(TableSeen(held(A, B), 5), there(A))
    assert effects == [SaveTable(replace(held(A, B), dead=frozenset({B}), term=2, serial=11), 5, "b#1 is gone")]
    assert director.handle(TableSaved(6)) == [Recover(B)], "not before the table names it dead"
    effects = director.handle(Recovered(B))
    table = saved(effects)
    assert (table.dead, table.over) == (frozenset(), {B})
    assert sizes(table) == {"a": 256}
    assert all(table.slots[n].epoch == 2 for n in held(A, B).held_by(B))
    assert all(table.slots[n].epoch == 1 for n in held(A, B).held_by(A))
    assert director.handle(TableSaved(7)) == []


def test_next_director_continues_from_the_table() -> None:
    table = replace(held(A, B), dead=frozenset({B}))
    director, effects = after(TableSeen(table, 5), there(A))
    assert effects == [Recover(B)]
    assert sizes(saved(director.handle(Recovered(B)))) == {"a": 256}


def test_failed_recovery_is_requested_again() -> None:
    director, _ = after(TableSeen(replace(held(A, B), dead=frozenset({B})), 5), there(A))
    assert director.handle(there(A)) == []
    assert director.handle(RecoveryFailed(B)) == [Recover(B)]
    assert director.handle(TableSeen(replace(held(A, B), dead=frozenset({B}), serial=11), 6)) == []


def test_dead_broker_is_recovered_without_other_members() -> None:
    director, effects = after(TableSeen(replace(held(B), dead=frozenset({B})), 5), there())
    assert effects == [Recover(B)]
    assert director.handle(Recovered(B)) == [], "no broker to give them to"
    assert sizes(saved(director.handle(there(A)))) == {"a": 256}


def test_several_brokers_die_together() -> None:
    director, effects = after(TableSeen(held(A, B, C), 5), there(A))
    assert saved(effects).dead == {B, C}
    assert director.handle(TableSaved(6)) == [Recover(B), Recover(C)]
    first = director.handle(Recovered(C))
    assert saved(first).dead == {B}
    assert director.handle(Recovered(B)) == [], "one write at a time"
    assert sizes(saved(director.handle(TableSaved(7)))) == {"a": 256}


def test_vanished_broker_without_slots_is_not_declared_dead() -> None:
    assert after(TableSeen(held(A), 5), there(A, B, draining=B))[0].handle(there(A)) == []


# -- lives


def test_later_incarnation_settles_earlier_ones_without_recovery() -> None:
    effects = after(TableSeen(replace(held(A, B), dead=frozenset({A})), 5), there(A2, B))[1]
    table = saved(effects)
    assert [type(effect) for effect in effects] == [SaveTable]
    assert (table.dead, table.over) == (frozenset(), {A})
    assert table.held_by(A2) == held(A, B).held_by(A), "it gets its own slots again"


def test_dead_incarnation_that_registers_again_stays_dead() -> None:
    dead = replace(held(A, B), dead=frozenset({B}))
    director, effects = after(TableSeen(dead, 5), there(A, B))
    assert effects == [Recover(B)]
    table = saved(director.handle(Recovered(B)))
    assert sizes(table) == {"a": 256}
    director.handle(TableSaved(6))
    assert director.handle(there(A, B)) == [], "it is over, whatever it registers"
    assert director.handle(there(A, BrokerIncarnation("b", 2))) != []


def test_incarnation_before_a_recovered_one_gets_no_slots() -> None:
    table = replace(held(A2), over=frozenset({BrokerIncarnation("b", 3)}))
    assert after(TableSeen(table, 5), there(A2, BrokerIncarnation("b", 2)))[1] == []
    assert after(TableSeen(table, 5), there(A2, BrokerIncarnation("b", 4)))[1] != []


def test_over_keeps_the_last_incarnation_of_each_broker() -> None:
    table = Table().settle([BrokerIncarnation("a", 3), BrokerIncarnation("b", 1)]).settle([BrokerIncarnation("a", 2)])
    assert table.over == {BrokerIncarnation("a", 3), BrokerIncarnation("b", 1)}
    assert table.is_lost(BrokerIncarnation("a", 1))
    assert not table.is_lost(BrokerIncarnation("a", 4))


# -- moves


def test_joining_broker_gets_its_share_by_planned_moves() -> None:
    table = saved(after(TableSeen(held(A), 5), there(A, B))[1])
    assert sizes(table) == {"a": 256}, "nothing is taken from the living"
    assert len(table.moving_from(A)) == 128


def test_planned_move_to_a_dead_broker_is_dropped() -> None:
    director, _ = after(TableSeen(held(A), 5), there(A, B))
    director.handle(TableSaved(6))
    assert saved(director.handle(there(A))) == replace(held(A), term=2, serial=12)


def test_planned_move_to_an_earlier_incarnation_is_replanned() -> None:
    director, _ = after(TableSeen(held(B), 5), there(A, B))
    director.handle(TableSaved(6))
    moving = saved(director.handle(there(A2, B))).moving_from(B)
    assert set(moving.values()) == {A2}


def test_draining_broker_gives_all_slots_and_gets_none() -> None:
    table = saved(after(TableSeen(held(A, B), 5), there(A, B, draining=A))[1])
    assert table.moving_from(A) == dict.fromkeys(held(A, B).held_by(A), B)


def test_no_moves_when_all_brokers_drain() -> None:
    effects = after(TableSeen(held(A), 5), MembersSeen({"a": Member(A, True), "b": Member(B, True)}))[1]
    assert effects == []


# -- races


def test_no_second_write_while_one_is_in_flight() -> None:
    director, _ = after(TableSeen(Table(), None), there(A))
    assert director.handle(there(A, B)) == []
    assert director.handle(TableSeen(held(C), 9)) == []


def test_raced_write_reads_the_table_and_decides_again() -> None:
    director, _ = after(TableSeen(held(A, B), 5), there(A))
    assert director.handle(TableRaced()) == [ReadTable()]
    assert director.handle(there(A)) == [], "on a table that is not known nothing is decided"
    effects = director.handle(TableSeen(held(A, C, serial=11), 6))
    assert saved(effects).dead == {C}


def test_stored_write_with_a_lost_answer() -> None:
    director, effects = after(TableSeen(held(A, B), 5), there(A))
    director.handle(TableRaced())
    assert director.handle(TableSeen(saved(effects), 6)) == [Recover(B)]


def test_later_table_seen_before_the_answer_is_used() -> None:
    """The holder's later write is seen before the director's own write is confirmed."""
    director, effects = after(TableSeen(held(A), 5), there(A, B))
    ours = saved(effects)
    done = replace(ours.with_holders(dict(ours.moving_from(A))), serial=ours.serial + 1)
    assert director.handle(TableSeen(ours, 6)) == []
    assert director.handle(TableSeen(done, 7)) == []
    assert director.handle(TableSaved(6)) == []
    assert saved(director.handle(there(A))).dead == {B}, "b holds half of them by now"


def test_late_table_notification_is_ignored() -> None:
    director, _ = after(TableSeen(held(A, B), 5), there(A, B))
    assert director.handle(TableSeen(held(A, C, serial=9), 4)) == []
    assert saved(director.handle(there(A))).dead == {B}


def test_steps_down_for_a_higher_term() -> None:
    director, effects = after(TableSeen(held(A, B, term=3), 5), there(A))
    assert effects == [StepDown(3)]
    for event in (TableSeen(held(A, serial=99), 9), there(B), TableRaced(), Recovered(B), Waited()):
        assert director.handle(event) == [], "over for good"


def test_steps_down_for_a_higher_term_while_writing() -> None:
    director, _ = after(TableSeen(held(A, B), 5), there(A))
    director.handle(TableRaced())
    assert director.handle(TableSeen(held(A, B, serial=11, term=7), 6)) == [StepDown(7)]


# -- patience


def test_director_that_lost_its_session_waits_for_other_brokers() -> None:
    director, effects = after(TableSeen(held(A, B), 5), there(A), is_patient=True)
    assert effects == [], "the store may have been away for all"
    assert director.handle(there(A, B)) == []
    assert director.handle(Waited()) == []
    director, _ = after(TableSeen(held(A, B), 5), there(A), is_patient=True)
    assert saved(director.handle(Waited())).dead == {B}


def test_waiting_director_still_fills_free_slots() -> None:
    dead = replace(held(A, B), dead=frozenset({B}))
    assert after(TableSeen(dead, 5), there(A), is_patient=True)[1] == [Recover(B)]
    assert saved(after(TableSeen(held(A, B), 5), there(A2), is_patient=True)[1]).over == {A}


def test_plan_has_a_reason() -> None:
    members = there(A2).members
    assert plan(replace(held(A, B), dead=frozenset({A})), members, frozenset())[1] == "b#1 is gone; a#1 is settled"
    assert plan(held(A2), there(A2, B).members, frozenset())[1] == "balance"
