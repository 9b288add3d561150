"""Deduplication marks, and which sequence ids an entry covers."""

from __future__ import annotations

import pytest

from anabranch.broker.publish import sequence_ids as dedup
from anabranch.broker.publish.sequence_ids import DedupDecision, Sequences, highest_of
from anabranch.model.position import EARLIEST, Position


def test_life_of_a_sequence_id() -> None:
    sequences = Sequences()
    assert sequences.check("p", 0) is DedupDecision.NEW
    sequences.push("p", 0)
    assert sequences.check("p", 0) is DedupDecision.IN_FLIGHT
    assert sequences.check("q", 0) is DedupDecision.NEW
    sequences.persist("p", 0)
    assert sequences.check("p", 0) is DedupDecision.DUPLICATE
    assert sequences.check("p", 1) is DedupDecision.NEW
    assert (sequences.last("p"), sequences.last("q")) == (0, -1)


def test_marks_never_go_back() -> None:
    sequences = Sequences()
    sequences.persist("p", 9)
    sequences.persist("p", 3)
    sequences.push("p", 4)
    assert sequences.last("p") == 9
    assert sequences.check("p", 9) is DedupDecision.DUPLICATE


def test_after_a_failed_append_the_sequence_id_is_new_again() -> None:
    sequences = Sequences()
    sequences.persist("p", 3)
    sequences.push("p", 5)
    sequences.forget_pushed("p")
    assert sequences.check("p", 4) is DedupDecision.NEW
    assert sequences.check("p", 3) is DedupDecision.DUPLICATE
    sequences.push("new", 1)
    sequences.forget_pushed("new")
    assert sequences.check("new", 1) is DedupDecision.NEW


def test_snapshot_round_trip() -> None:
    sequences = Sequences()
    sequences.persist("a", 7)
    sequences.persist("ü", 0)
    sequences.push("a", 9)
    loaded, upto = Sequences.load(sequences.dump(Position(3, 14)))
    assert upto == Position(3, 14)
    assert (loaded.last("a"), loaded.last("ü")) == (7, 0)
    assert loaded.check("a", 8) is DedupDecision.NEW, "what was only pushed is not in a snapshot"


def test_no_snapshot_is_an_empty_one() -> None:
    loaded, upto = Sequences.load(None)
    assert (loaded.persisted, upto) == ({}, EARLIEST)


def test_least_recently_used_names_are_dropped_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dedup, "NAMES_MAX", 2)
    sequences = Sequences()
    for name, sequence in (("a", 0), ("b", 0), ("a", 1), ("c", 0)):
        sequences.persist(name, sequence)
    assert sequences.persisted == {"a": 1, "c": 0}
    assert "b" not in sequences.pushed


@pytest.mark.parametrize(
    ("sequence", "highest", "covers"),
    [
        (5, 0, 5),  # the C++ client never says it, and its key-based batches interleave: only the first id is sure
        (5, 8, 8),  # Java does
        (5, 5, 5),
        (5, 3, 5),
        (5, -1, 5),  # not given
        (-1, 0, -1),
        (0, 0, 0),
    ],
)
def test_highest_of(sequence: int, highest: int, covers: int) -> None:
    assert highest_of(sequence, highest) == covers


def test_the_last_note_of_a_producer_is_kept() -> None:
    sequences = Sequences()
    sequences.persist("p", 3, b"three")
    sequences.persist("p", 2, b"late")
    assert sequences.last_of("p") == (3, b"three"), "of the highest"
    assert sequences.last_of("q") == (-1, b"")
    loaded, _ = Sequences.load(sequences.dump(Position(1, 2)))
    assert loaded.last_of("p") == (3, b"three")
    loaded.persist("p", 4)
    assert loaded.last_of("p") == (4, b""), "an entry without one says nothing of what came before"


def test_notes_go_with_the_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dedup, "NAMES_MAX", 1)
    sequences = Sequences()
    sequences.persist("old", 1, b"x")
    sequences.persist("new", 1, b"y")
    assert sequences.notes == {"new": b"y"}
