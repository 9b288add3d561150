"""The state machine of leader terms: events in, effects compared."""

from __future__ import annotations

from anabranch.metadata.interface import ABSENT
from anabranch.metadata.recipes.key_claim import KeyHeld, KeyLost, KeyWritten
from anabranch.metadata.recipes.leader_term import (
    Effect,
    Event,
    NotifyDeposed,
    NotifyElected,
    PauseTerm,
    RaiseTerm,
    ReadTerm,
    TermFailed,
    TermMachine,
    TermPauseEnded,
    TermRaised,
    TermRead,
    TermRecord,
    TermUncertain,
    WriteLeader,
    decode_leader,
    encode_leader,
)


def feed(machine: TermMachine, *events: Event) -> list[Effect]:
    effects: list[Effect] = []
    for event in events:
        effects = machine.handle(event)
    return effects


def test_encodings() -> None:
    assert TermRecord.decode(TermRecord.encode(7, "a-1.1.1"), 3) == TermRecord(7, "a-1.1.1", 3)
    assert decode_leader(encode_leader(7, b"x\ny")) == (7, b"x\ny")
    assert decode_leader(b"by hand") == (0, b"")


def test_first_term_is_valid_once_written_to_the_leader_key() -> None:
    machine = TermMachine(b"me")
    assert feed(machine, KeyHeld("c")) == [ReadTerm("c", sync=False)]
    assert feed(machine, KeyWritten("c", encode_leader(0, b"me"))) == []
    assert feed(machine, TermRead("c", None)) == [RaiseTerm("c", 1, ABSENT)]
    assert feed(machine, TermRaised("c", 1)) == [WriteLeader("c", b"1\nme")]
    assert feed(machine, KeyWritten("c", b"1\nme")) == [NotifyElected("c", 1)]
    assert feed(machine, KeyWritten("c", b"1\nme")) == []
    assert feed(machine, KeyLost("c", "overdue")) == [NotifyDeposed(1, "overdue")]


def test_later_terms_are_above_the_record() -> None:
    machine = TermMachine(b"me")
    seen = TermRead("c", TermRecord(41, "other", 9))
    assert feed(machine, KeyHeld("c"), seen) == [RaiseTerm("c", 42, 9)]
    assert feed(machine, TermUncertain("c")) == [ReadTerm("c", sync=True)]
    assert feed(machine, TermRead("c", TermRecord(43, "third", 11))) == [RaiseTerm("c", 44, 11)]


def test_a_lost_answer_is_decided_by_the_record() -> None:
    machine = TermMachine(b"me")
    feed(machine, KeyHeld("c"), TermRead("c", None), TermUncertain("c"))
    assert feed(machine, TermRead("c", TermRecord(1, "c", 2))) == [WriteLeader("c", b"1\nme")]


def test_unavailable_store_is_retried() -> None:
    machine = TermMachine(b"me")
    assert feed(machine, KeyHeld("c"), TermFailed("c")) == [PauseTerm("c", 1)]
    assert feed(machine, TermPauseEnded("c"), TermFailed("c")) == [PauseTerm("c", 2)]


def test_claim_lost_before_the_term_is_written_does_not_lead() -> None:
    machine = TermMachine(b"me")
    feed(machine, KeyHeld("c"), TermRead("c", None))
    assert feed(machine, KeyLost("c", "lost")) == []
    assert feed(machine, TermRaised("c", 1)) == []
    assert feed(machine, KeyHeld("d")) == [ReadTerm("d", sync=False)]
    assert feed(machine, TermRaised("c", 1)) == [], "a term of the earlier claim"
    assert feed(machine, TermRead("d", TermRecord(1, "c", 2))) == [RaiseTerm("d", 2, 2)]
