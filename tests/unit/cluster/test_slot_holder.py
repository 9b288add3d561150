"""The holder: it serves what the table gives it, hands over in the right order, and gives up when it was replaced."""

from __future__ import annotations

from dataclasses import replace

import pytest

from anabranch.cluster.director import ReadTable, SaveTable, TableRaced, TableSaved, TableSeen
from anabranch.cluster.slot_holder import Close, Closed, CloseFailed, Effect, Event, Serve, SlotHolder, StopServing
from anabranch.cluster.slot_table import Slot, Table
from anabranch.cluster.slots import SLOTS
from anabranch.model.broker_incarnation import BrokerIncarnation

A, B, C = BrokerIncarnation("a", 1), BrokerIncarnation("b", 1), BrokerIncarnation("c", 1)
ALL = frozenset(range(SLOTS))
SOME = frozenset({0, 1, 2})
REST = ALL - SOME


def of(incarnation: BrokerIncarnation, *, serial: int = 10) -> Table:
    return Table((Slot(incarnation, 1),) * SLOTS, serial=serial)


def moving(next_holder: BrokerIncarnation | None = B, slots: frozenset[int] = SOME, *, serial: int = 11) -> Table:
    return replace(of(A), serial=serial).with_next_holders(dict.fromkeys(slots, next_holder))


def after(*events: Event) -> tuple[SlotHolder, list[Effect]]:
    holder = SlotHolder(A)
    effects: list[Effect] = holder.begin()
    for event in events:
        effects = holder.handle(event)
    return holder, effects


def handing_over() -> tuple[SlotHolder, Table]:
    """Closed what moves, and asked for the write."""
    holder, effects = after(TableSeen(of(A), 5), TableSeen(moving(), 6), Closed(SOME))
    (save,) = effects
    assert isinstance(save, SaveTable)
    return holder, save.table


def test_reads_the_table_first() -> None:
    holder, effects = after()
    assert effects == [ReadTable()]
    assert not holder.is_empty, "it does not know yet"


def test_serves_the_slots_it_holds() -> None:
    holder, effects = after(TableSeen(of(A), 5))
    assert effects == [Serve(ALL)]
    assert holder.serving == ALL
    assert holder.handle(TableSeen(of(A, serial=11), 6)) == [], "nothing changed"


def test_table_without_this_broker_has_no_effect() -> None:
    holder, effects = after(TableSeen(of(B), 5))
    assert effects == []
    assert holder.is_empty


# -- handing over


def test_stop_serving_then_close_then_write_then_done() -> None:
    holder, effects = after(TableSeen(of(A), 5), TableSeen(moving(), 6))
    assert effects == [Serve(REST), Close(((0, B), (1, B), (2, B)))]
    assert holder.unsettled == SOME
    effects = holder.handle(Closed(SOME))
    table = replace(moving().with_holders(dict.fromkeys(SOME, B)), serial=12)
    assert effects == [SaveTable(table, 6, "handed over")]
    assert holder.unsettled == SOME, "their clients wait until the heir holds them"
    assert holder.handle(TableSaved(7)) == []
    assert holder.unsettled == frozenset()
    assert holder.serving == REST
    assert all(table.slots[n] == Slot(B, 2) for n in SOME)


def test_table_is_not_written_before_topics_are_closed() -> None:
    holder, _ = after(TableSeen(of(A), 5), TableSeen(moving(), 6))
    assert holder.handle(TableSeen(moving(serial=12), 7)) == []
    assert holder.handle(TableRaced()) == [ReadTable()]
    assert holder.handle(TableSeen(moving(serial=12), 7)) == []


def test_further_moves_planned_while_closing() -> None:
    holder, _ = after(TableSeen(of(A), 5), TableSeen(moving(), 6))
    more = SOME | {7}
    assert holder.handle(TableSeen(moving(slots=more, serial=12), 7)) == [Serve(ALL - more), Close(((7, B),))]
    effects = holder.handle(Closed(frozenset({7})))
    (save,) = effects
    assert isinstance(save, SaveTable)
    assert save.table.held_by(B) == {7}, "what is ready goes at once"


def test_slot_that_was_never_served_is_handed_over() -> None:
    _, effects = after(TableSeen(moving(slots=ALL), 6))
    assert effects == [Close(tuple((n, B) for n in range(SLOTS)))]


def test_is_empty_after_all_slots_moved() -> None:
    holder, _ = after(TableSeen(moving(slots=ALL), 6), Closed(ALL), TableSaved(7))
    assert holder.is_empty
    assert holder.serving == frozenset()


# -- plans that change


def test_move_dropped_while_closing_serves_again_when_closed() -> None:
    holder, _ = after(TableSeen(of(A), 5), TableSeen(moving(), 6))
    assert holder.handle(TableSeen(of(A, serial=12), 7)) == [], "it is closing: it cannot be served now"
    assert holder.handle(Closed(SOME)) == [Serve(ALL)]
    assert holder.unsettled == frozenset()


def test_move_dropped_after_closing_serves_again_at_once() -> None:
    holder, _ = handing_over()
    assert holder.handle(TableRaced()) == [ReadTable()]
    assert holder.handle(TableSeen(of(A, serial=12), 7)) == [Serve(ALL)]
    assert holder.handle(TableSeen(moving(serial=13), 8)) == [
        Serve(REST),
        Close(((0, B), (1, B), (2, B))),
    ], "a new plan closes anew"


def test_changed_next_holder_needs_no_second_close() -> None:
    holder, _ = handing_over()
    holder.handle(TableRaced())
    (save,) = holder.handle(TableSeen(moving(C, serial=12), 7))
    assert isinstance(save, SaveTable)
    assert save.table.held_by(C) == SOME
    assert save.expected == 7


# -- races


def test_stored_write_with_a_lost_answer() -> None:
    holder, table = handing_over()
    assert holder.handle(TableRaced()) == [ReadTable()]
    assert holder.handle(TableSeen(table, 7)) == []
    assert (holder.serving, holder.unsettled) == (REST, frozenset())


def test_lost_write_is_repeated() -> None:
    holder, table = handing_over()
    holder.handle(TableRaced())
    assert holder.handle(TableSeen(moving(), 6)) == [SaveTable(table, 6, "handed over")]


def test_later_table_seen_before_the_answer_is_used() -> None:
    holder, table = handing_over()
    later = replace(table.with_next_holders({9: B}), serial=13)
    assert holder.handle(TableSeen(table, 7)) == []
    assert holder.handle(TableSeen(later, 8)) == []
    assert holder.handle(TableSaved(7)) == [Serve(REST - {9}), Close(((9, B),))]


def test_late_notification_does_not_bring_back_handed_over_slots() -> None:
    holder, _ = handing_over()
    holder.handle(TableSaved(7))
    assert holder.handle(TableSeen(of(A), 5)) == []
    assert holder.handle(TableSeen(moving(), 6)) == []
    assert holder.serving == REST


def test_slots_that_come_back_are_served_again() -> None:
    holder, table = handing_over()
    holder.handle(TableSaved(7))
    back = replace(table.with_holders(dict.fromkeys(SOME, A)), serial=14)
    assert holder.handle(TableSeen(back, 9)) == [Serve(ALL)]


# -- giving up


LOST = [
    pytest.param(replace(of(A, serial=20), dead=frozenset({A})), "declared dead", id="dead"),
    pytest.param(replace(of(B, serial=20), over=frozenset({A})), "declared dead", id="over"),
    pytest.param(
        replace(of(B, serial=20), over=frozenset({BrokerIncarnation("a", 2)})), "declared dead", id="a-later-life-over"
    ),
    pytest.param(of(B, serial=20), "slots were taken away", id="taken"),
]


@pytest.mark.parametrize(("table", "reason"), LOST)
def test_replaced_broker_stops_serving_for_good(table: Table, reason: str) -> None:
    holder, effects = after(TableSeen(of(A), 5), TableSeen(table, 9))
    assert effects == [Serve(frozenset()), StopServing(reason)]
    assert holder.serving == frozenset()
    events: list[Event] = [TableSeen(of(A, serial=30), 10), Closed(SOME), TableRaced(), CloseFailed("")]
    assert [holder.handle(event) for event in events] == [[]] * 4


@pytest.mark.parametrize(("table", "reason"), LOST[:3])
def test_replaced_while_writing(table: Table, reason: str) -> None:
    holder, _ = handing_over()
    assert holder.handle(TableSeen(table, 9)) == [Serve(frozenset()), StopServing(reason)], (
        "not only when the answer comes"
    )
    assert holder.handle(TableSaved(7)) == []


def test_broker_that_never_served_detects_its_replacement() -> None:
    """Frozen between registering and its first look: its slots came and went."""
    _, effects = after(TableSeen(replace(of(B), over=frozenset({A})), 5))
    assert effects == [Serve(frozenset()), StopServing("declared dead")]


def test_dead_earlier_incarnation_is_ignored() -> None:
    table = replace(of(A), dead=frozenset({BrokerIncarnation("a", 0)}), over=frozenset({BrokerIncarnation("b", 9)}))
    assert after(TableSeen(table, 5))[1] == [Serve(ALL)]


def test_slots_that_cannot_be_closed_are_never_handed_over() -> None:
    holder, _ = after(TableSeen(of(A), 5), TableSeen(moving(), 6))
    assert holder.handle(CloseFailed("disk")) == [Serve(frozenset()), StopServing("disk")]
    assert holder.unsettled == frozenset()
