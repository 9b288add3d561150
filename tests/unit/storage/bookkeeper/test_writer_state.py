"""The writer of a ledger: events in, effects out. Whole stories: `tests/simulation/test_bookkeeper_ledgers.py`."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from anabranch.storage.bookkeeper.errors import NotEnoughBookies
from anabranch.storage.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState, Quorums, Segment
from anabranch.storage.bookkeeper.writer_state import (
    Closed,
    CloseFailed,
    Confirm,
    FailAppends,
    LedgerWriterState,
    SaveLedger,
    SendAdd,
    WriterEffect,
    WriterPhase,
)
from anabranch.storage.interface import Fenced

OPEN = LedgerMetadata(Quorums(), (Segment(0, ("a", "b", "c")),))


def writer(entries: int = 0) -> LedgerWriterState:
    state = LedgerWriterState(7, OPEN, 0)
    for number in range(entries):
        state.append(b"%d" % number)
    return state


def sent(effects: Sequence[WriterEffect]) -> list[tuple[str, int]]:
    return [(one.bookie, one.entry) for one in effects if isinstance(one, SendAdd)]


def saves(effects: Sequence[WriterEffect]) -> SaveLedger:
    (found,) = [one for one in effects if isinstance(one, SaveLedger)]
    return found


def test_entries_are_confirmed_in_order_by_the_ack_quorum() -> None:
    state = writer()
    assert sent(state.append(b"x")) == [("a", 0), ("b", 0), ("c", 0)]
    state.append(b"yy")
    assert state.added("a", 1) == []
    assert state.added("b", 1) == [], "entry 0 is not confirmed"
    assert state.added("a", 0) == []
    assert state.added("a", 0) == [], "the same answer again"
    assert state.added("c", 0) == [Confirm(1)]
    assert (state.last_confirmed, state.confirmed_length, state.pending) == (1, 3, 0)
    assert state.added("b", 0) == [], "the third replica"


def test_failed_bookie_is_replaced_from_the_first_unconfirmed_entry_on() -> None:
    state = writer(entries=3)
    for bookie in "ab":
        state.added(bookie, 0)
    state.added("c", 1)
    change = saves(state.bookie_failed("c", "connection lost", ["a", "b", "c", "d"]))
    assert change == SaveLedger(OPEN.with_ensemble(1, ("a", "b", "d")), 0)
    assert state.added("a", 1) == []
    assert state.added("b", 1) == [], "nothing is confirmed while the change is not stored"
    assert sent(state.append(b"z")) == [("a", 3), ("b", 3)]
    effects = state.saved(1)
    assert sent(effects) == [("d", 1), ("d", 2), ("d", 3)]
    assert effects[-1] == Confirm(1)
    assert state.added("c", 2) == [], "an answer of a replaced bookie does not count"


def test_acks_of_a_replaced_bookie_do_not_count() -> None:
    state = writer(entries=1)
    state.added("c", 0)
    state.bookie_failed("c", "connection lost", ["d"])
    assert state.added("a", 0) == []
    assert not any(isinstance(one, Confirm) for one in state.saved(1))
    assert state.added("d", 0) == [Confirm(0)]


def test_writer_without_a_spare_goes_on_with_fewer_replicas_and_uses_a_spare_later() -> None:
    state = writer(entries=1)
    assert state.bookie_failed("c", "connection lost", ["a", "b"]) == []
    assert sent(state.append(b"y")) == [("b", 1), ("a", 1)]
    state.added("a", 0)
    assert state.added("b", 0) == [Confirm(0)]
    assert saves(state.bookies_changed(["a", "b", "d"])).metadata.segments[-1] == Segment(1, ("a", "b", "d"))


def test_restored_bookie_gets_what_is_pending() -> None:
    state = writer(entries=1)
    state.bookie_failed("c", "connection lost", [])
    state.append(b"y")
    assert sent(state.bookie_restored("c")) == [("c", 0), ("c", 1)]
    assert state.failed_bookies == frozenset()


def test_writer_without_an_ack_quorum_fails_and_closes_at_the_last_confirmed_entry() -> None:
    state = writer(entries=3)
    for bookie in "ab":
        state.added(bookie, 0)
    state.bookie_failed("c", "connection lost", [])
    (failed,) = state.bookie_failed("b", "no answer in time", [])
    assert isinstance(failed, FailAppends)
    assert failed.first_entry == 1
    assert isinstance(failed.error, NotEnoughBookies)
    assert "b (no answer in time)" in str(failed.error)
    with pytest.raises(NotEnoughBookies):
        state.append(b"z")
    close = saves(state.close())
    assert (close.metadata.state, close.metadata.last_entry, close.metadata.length) == (LedgerState.CLOSED, 0, 1)
    assert state.saved(1) == [Closed(0, 1)]


def test_fenced_writer_never_touches_the_metadata() -> None:
    state = writer(entries=2)
    (failed,) = state.fenced("bookie a refused an add")
    assert isinstance(failed, FailAppends)
    assert isinstance(failed.error, Fenced)
    (closing,) = state.close()
    assert isinstance(closing, CloseFailed)
    assert state.phase is WriterPhase.FAILED


def test_change_that_lost_against_a_recovery_fences_the_writer() -> None:
    state = writer(entries=1)
    state.bookie_failed("c", "connection lost", ["d"])
    (failed,) = state.stored(OPEN.recovering(), 1)
    assert isinstance(failed, FailAppends)
    assert isinstance(failed.error, Fenced)


def test_deleted_ledger_fences_the_writer() -> None:
    state = writer(entries=1)
    state.bookie_failed("c", "connection lost", ["d"])
    (failed,) = state.stored(None, 0)
    assert isinstance(failed, FailAppends)
    assert "deleted" in str(failed.error)


def test_lost_answer_of_a_change_is_recognized_in_what_is_stored() -> None:
    state = writer(entries=1)
    change = saves(state.bookie_failed("c", "connection lost", ["d"]))
    assert sent(state.stored(change.metadata, 1)) == [("d", 0)]
    assert state.phase is WriterPhase.OPEN


def test_change_is_repeated_on_metadata_that_autorecovery_has_changed() -> None:
    state = writer(entries=1)
    for bookie in "ab":
        state.added(bookie, 0)
    state.append(b"y")
    state.bookie_failed("c", "connection lost", ["d"])
    first = state.saved(1)
    assert sent(first) == [("d", 1)]
    state.bookie_failed("d", "connection lost", ["e"])
    other = LedgerMetadata(Quorums(), (Segment(0, ("a", "b", "x")), Segment(1, ("a", "b", "d"))))
    again = saves(state.stored(other, 2))
    assert again == SaveLedger(other.with_ensemble(1, ("a", "b", "e")), 2)


def test_close_waits_until_everything_is_confirmed() -> None:
    state = writer(entries=1)
    assert state.close() == []
    state.added("a", 0)
    confirm, close = state.added("b", 0)
    assert confirm == Confirm(0)
    assert close == SaveLedger(OPEN.closed(0, 1), 0)
    assert state.saved(1) == [Closed(0, 1)]


def test_close_of_an_empty_ledger() -> None:
    state = writer()
    assert saves(state.close()).metadata == OPEN.closed(-1, 0)


def test_close_that_finds_the_ledger_closed_at_another_entry_fails() -> None:
    state = writer(entries=1)
    for bookie in "ab":
        state.added(bookie, 0)
    state.close()
    (failed,) = state.stored(OPEN.closed(3, 9), 2)
    assert isinstance(failed, CloseFailed)
    assert isinstance(failed.error, Fenced)
