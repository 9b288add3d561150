"""Recovery of a ledger: events in, effects out. Whole stories are in `tests/simulation/test_bookkeeper_ledgers.py`."""

from __future__ import annotations

from collections.abc import Sequence

from anabranch.storage.bookkeeper.entry_body import EntryBody
from anabranch.storage.bookkeeper.errors import NotEnoughBookies
from anabranch.storage.bookkeeper.ledger_metadata import LedgerMetadata, Quorums, Segment
from anabranch.storage.bookkeeper.recovery_state import (
    Absent,
    FenceRead,
    LedgerRecoveryState,
    ReadEntry,
    ReadMetadata,
    Recovered,
    RecoveryAdd,
    RecoveryEffect,
    RecoveryFailed,
)
from anabranch.storage.bookkeeper.writer_state import SaveLedger
from anabranch.storage.interface import LedgerNotFound

OPEN = LedgerMetadata(Quorums(), (Segment(0, ("a", "b", "c")),))


def body(entry: int, last_confirmed: int, payload: bytes = b"xx") -> EntryBody:
    return EntryBody(7, entry, last_confirmed, 2 * (entry + 1), memoryview(payload))


def fencing() -> LedgerRecoveryState:
    state = LedgerRecoveryState(7)
    assert state.start() == [ReadMetadata()]
    assert state.stored(OPEN, 3) == [SaveLedger(OPEN.recovering(), 3)]
    assert state.saved(4) == [FenceRead("a"), FenceRead("b"), FenceRead("c")]
    return state


def looking_for_first() -> LedgerRecoveryState:
    """An empty ledger so far: entry 0 is looked for."""
    state = fencing()
    assert state.fence_answered("a", Absent.EXPLICIT) == []
    assert state.fence_answered("b", Absent.EXPLICIT) == [ReadEntry(one, 0, fences=True) for one in "abc"]
    return state


def failure(effects: Sequence[RecoveryEffect]) -> str:
    (failed,) = effects
    assert isinstance(failed, RecoveryFailed)
    assert isinstance(failed.error, NotEnoughBookies)
    return str(failed.error)


def test_closed_ledger_is_left_as_it_is() -> None:
    closed = OPEN.closed(4, 10)
    assert LedgerRecoveryState(7).stored(closed, 1) == [Recovered(closed)]


def test_deleted_ledger_cannot_be_recovered() -> None:
    (failed,) = LedgerRecoveryState(7).stored(None, 0)
    assert isinstance(failed, RecoveryFailed)
    assert isinstance(failed.error, LedgerNotFound)


def test_empty_ledger_is_closed_without_entries() -> None:
    state = looking_for_first()
    assert state.read_answered("a", 0, Absent.EXPLICIT) == []
    assert state.read_answered("c", 0, Absent.EXPLICIT) == [SaveLedger(OPEN.recovering().closed(-1, 0), 4)]
    assert state.saved(5) == [Recovered(OPEN.recovering().closed(-1, 0))]


def test_timeouts_are_no_answers_and_never_end_a_ledger() -> None:
    state = looking_for_first()
    state.read_answered("a", 0, Absent.EXPLICIT)
    state.read_answered("b", 0, Absent.UNKNOWN)
    assert "entry 0" in failure(state.read_answered("c", 0, Absent.UNKNOWN))


def test_too_few_fenced_bookies_fail_the_recovery() -> None:
    state = fencing()
    state.fence_answered("a", body(3, 2))
    state.fence_answered("b", Absent.UNKNOWN)
    assert "fenced" in failure(state.fence_answered("c", Absent.UNKNOWN))


def test_entry_on_one_replica_is_stored_on_all_before_the_next_is_looked_for() -> None:
    state = fencing()
    state.fence_answered("a", body(1, 0))
    assert state.fence_answered("b", body(0, -1)) == [ReadEntry(one, 0, fences=False) for one in "abc"]
    assert state.read_answered("b", 0, body(0, -1)) == [ReadEntry(one, 1, fences=True) for one in "bca"]
    adds = state.read_answered("a", 1, body(1, 0))
    assert [(one.bookie, one.entry) for one in adds if isinstance(one, RecoveryAdd)] == [("b", 1), ("c", 1), ("a", 1)]
    assert state.added("b", 1) == []
    assert state.added("a", 1) == [ReadEntry(one, 2, fences=True) for one in "cab"]
    state.read_answered("a", 2, Absent.EXPLICIT)
    assert state.read_answered("b", 2, Absent.EXPLICIT) == [SaveLedger(OPEN.recovering().closed(1, 4), 4)]


def test_entries_of_earlier_segments_are_final() -> None:
    two = OPEN.with_ensemble(5, ("a", "b", "d"))
    state = LedgerRecoveryState(7)
    assert state.stored(two.recovering(), 9) == [FenceRead("a"), FenceRead("b"), FenceRead("d")]
    state.fence_answered("a", Absent.EXPLICIT)
    reads = state.fence_answered("b", Absent.EXPLICIT)
    assert reads == [ReadEntry(one, 4, fences=False) for one in "bca"], (
        "the length up to the segment, from its replicas"
    )
    assert state.read_answered("c", 4, body(4, 3)) == [ReadEntry(one, 5, fences=True) for one in "dab"]


def test_bookie_that_cannot_store_a_recovered_entry_is_replaced_in_the_last_write() -> None:
    state = looking_for_first()
    state.read_answered("a", 0, body(0, -1))
    (again,) = state.bookie_failed("c", 0, ["a", "d"])
    assert isinstance(again, RecoveryAdd)
    assert again.bookie == "d"
    state.added("a", 0)
    state.added("d", 0)
    state.read_answered("a", 1, Absent.EXPLICIT)
    (save,) = state.read_answered("b", 1, Absent.EXPLICIT)
    assert isinstance(save, SaveLedger)
    assert save.metadata.segments == (Segment(0, ("a", "b", "d")),)


def test_recovery_without_enough_bookies_to_store_on_fails() -> None:
    state = looking_for_first()
    state.read_answered("a", 0, body(0, -1))
    assert state.bookie_failed("c", 0, []) == []
    assert "stored entry 0" in failure(state.bookie_failed("b", 0, []))


def test_recovery_that_lost_the_last_write_adopts_the_end_of_the_other() -> None:
    state = looking_for_first()
    state.read_answered("a", 0, Absent.EXPLICIT)
    state.read_answered("b", 0, Absent.EXPLICIT)
    closed = OPEN.closed(2, 6)
    assert state.stored(closed, 6) == [Recovered(closed)]


def test_spares_are_chosen_beside_the_bookies_that_still_store() -> None:
    state = looking_for_first()
    state.read_answered("a", 0, body(0, -1))
    assert state.healthy == ("a", "b", "c")
    state.bookie_failed("b", 0, ["d"])
    assert state.healthy == ("a", "d", "c")
    state.bookie_failed("c", 0, [])
    assert state.healthy == ("a", "d")
