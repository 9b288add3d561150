"""The state machine of a key claim: events in, effects compared."""

from __future__ import annotations

from anabranch.metadata.interface import ABSENT
from anabranch.metadata.recipes.key_claim import (
    Acquire,
    Changed,
    ChangeValue,
    ClaimMachine,
    Delete,
    Deleted,
    Effect,
    Event,
    Failed,
    KeyHeld,
    KeyLost,
    KeyRead,
    KeyReleased,
    KeyWritten,
    Pause,
    PauseEnded,
    PauseKind,
    Put,
    Raced,
    ReadKey,
    Release,
    SessionBegan,
    SessionOver,
    StoredClaim,
    Uncertain,
    Wrote,
    decode_claim,
    encode_claim,
    ticket_of,
)

OTHER = StoredClaim("other-1.1.1", b"theirs", 7)


def feed(machine: ClaimMachine, *events: Event) -> list[Effect]:
    """The effects of the last event."""
    effects: list[Effect] = []
    for event in events:
        effects = machine.handle(event)
    return effects


def alone() -> ClaimMachine:
    return ClaimMachine("me-1", is_contended=False)


def holding(machine: ClaimMachine) -> ClaimMachine:
    feed(machine, SessionBegan(1), Acquire(b"v"), KeyRead(None), Wrote(5))
    assert machine.held == "me-1.1.1"
    return machine


def test_claims_survive_their_encoding() -> None:
    stored = encode_claim("host.example-3.2.1", b"a\nb")
    assert decode_claim(stored, 4) == StoredClaim("host.example-3.2.1", b"a\nb", 4)
    assert ticket_of("host.example-3.2.1") == "host.example-3"
    assert decode_claim(b"by hand", 1) == StoredClaim("", b"by hand", 1)
    assert decode_claim(b"\xff\xfe\n", 1).value == b""


def test_takes_a_free_key() -> None:
    machine = alone()
    assert feed(machine, Acquire(b"v")) == []
    assert feed(machine, SessionBegan(1)) == [ReadKey(sync=False)]
    assert feed(machine, KeyRead(None)) == [Put("me-1.1.1", b"v", ABSENT)]
    assert feed(machine, Wrote(5)) == [KeyHeld("me-1.1.1"), KeyWritten("me-1.1.1", b"v")]


def test_contended_claim_waits_a_random_pause() -> None:
    machine = ClaimMachine("me-1", is_contended=True)
    pause = Pause(1, PauseKind.SCATTER, 0)
    assert feed(machine, Acquire(b"v"), SessionBegan(1), KeyRead(None)) == [pause]
    assert feed(machine, Changed()) == [ReadKey(sync=False)]
    assert feed(machine, PauseEnded(1)) == [], "the pause was for the state before the change"
    assert feed(machine, KeyRead(OTHER)) == []
    assert feed(machine, Changed()) == [ReadKey(sync=False)]
    assert feed(machine, KeyRead(None)) == [Pause(2, PauseKind.SCATTER, 0)]
    assert feed(machine, PauseEnded(2)) == [Put("me-1.1.1", b"v", ABSENT)]
    assert feed(machine, Raced()) == [ReadKey(sync=False)]


def test_a_lost_answer_is_decided_by_reading() -> None:
    machine = alone()
    feed(machine, Acquire(b"v"), SessionBegan(1), KeyRead(None))
    assert feed(machine, Uncertain()) == [ReadKey(sync=True)]
    found = KeyRead(StoredClaim("me-1.1.1", b"v", 9))
    assert feed(machine, found) == [KeyHeld("me-1.1.1"), KeyWritten("me-1.1.1", b"v")]


def test_lost_request_is_repeated_with_the_same_condition() -> None:
    machine = alone()
    feed(machine, Acquire(b"v"), SessionBegan(1), KeyRead(None), Uncertain())
    assert feed(machine, KeyRead(None)) == [Put("me-1.1.1", b"v", ABSENT)]
    assert feed(machine, Uncertain()) == [Pause(1, PauseKind.RETRY, 2)], "the second time in a row with a pause"
    assert feed(machine, Changed()) == []
    assert feed(machine, PauseEnded(1)) == [ReadKey(sync=True)]


def test_failed_reads_are_repeated_after_longer_and_longer_pauses() -> None:
    machine = alone()
    feed(machine, Acquire(b"v"), SessionBegan(1))
    assert feed(machine, Failed()) == [Pause(1, PauseKind.RETRY, 1)]
    assert feed(machine, PauseEnded(1), Failed()) == [Pause(2, PauseKind.RETRY, 2)]
    assert feed(machine, PauseEnded(2), KeyRead(OTHER)) == []
    assert feed(machine, Changed(), Failed()) == [Pause(3, PauseKind.RETRY, 1)]


def test_lost_session_ends_the_holding_and_the_next_starts_another() -> None:
    machine = holding(alone())
    assert feed(machine, SessionOver("overdue")) == [KeyLost("me-1.1.1", "overdue")]
    assert feed(machine, SessionBegan(2)) == [ReadKey(sync=False)]
    leftover = StoredClaim("me-1.1.1", b"v", 5)
    assert feed(machine, KeyRead(leftover)) == [Put("me-1.2.2", b"v", 5)], "our own leftover is replaced"
    assert feed(machine, Wrote(6)) == [KeyHeld("me-1.2.2"), KeyWritten("me-1.2.2", b"v")]


def test_key_taken_while_the_session_was_lost() -> None:
    machine = holding(alone())
    feed(machine, SessionOver("lost"), SessionBegan(2))
    assert feed(machine, KeyRead(OTHER)) == []
    assert machine.held is None


def test_answer_of_the_old_session_is_ignored() -> None:
    machine = alone()
    feed(machine, Acquire(b"v"), SessionBegan(1), KeyRead(None))
    assert feed(machine, SessionOver("lost")) == []
    assert feed(machine, Wrote(5)) == []
    assert machine.held is None
    assert feed(machine, SessionBegan(2)) == [ReadKey(sync=False)]


def test_deleted_key_is_lost_and_claimed_again() -> None:
    machine = holding(alone())
    assert feed(machine, Changed()) == [ReadKey(sync=True)], "who holds it wants to be sure"
    assert feed(machine, KeyRead(None)) == [KeyLost("me-1.1.1", "deleted"), Put("me-1.1.2", b"v", ABSENT)]


def test_taken_by_another() -> None:
    machine = holding(alone())
    assert feed(machine, Changed(), KeyRead(OTHER)) == [KeyLost("me-1.1.1", "taken")]


def test_change_during_a_request_is_followed_by_a_read() -> None:
    machine = alone()
    feed(machine, Acquire(b"v"), SessionBegan(1), KeyRead(None), Changed())
    held = [KeyHeld("me-1.1.1"), KeyWritten("me-1.1.1", b"v"), ReadKey(sync=True)]
    assert feed(machine, Wrote(5)) == held


def test_changed_value_is_written_over_the_known_version() -> None:
    machine = holding(alone())
    assert feed(machine, Acquire(b"w")) == [Put("me-1.1.1", b"w", 5)]
    assert feed(machine, Acquire(b"x")) == []
    assert feed(machine, Wrote(6)) == [Put("me-1.1.1", b"x", 6)]
    assert feed(machine, Wrote(7)) == [KeyWritten("me-1.1.1", b"x")]


def test_changed_value_ends_with_the_holding() -> None:
    machine = holding(alone())
    assert feed(machine, ChangeValue("me-1.0.9", b"stray")) == []
    assert feed(machine, ChangeValue("me-1.1.1", b"")) == [Put("me-1.1.1", b"", 5)]
    assert feed(machine, Wrote(6)) == [KeyWritten("me-1.1.1", b"")]
    feed(machine, SessionOver("lost"), SessionBegan(2))
    assert feed(machine, KeyRead(None)) == [Put("me-1.2.2", b"v", ABSENT)]


def test_release_deletes_the_own_key() -> None:
    machine = holding(alone())
    assert feed(machine, Release()) == [KeyLost("me-1.1.1", "released"), Delete(5)]
    assert feed(machine, Deleted()) == [KeyReleased()]
    assert machine.is_free
    assert feed(machine, Changed()) == [], "no longer of interest"
    assert feed(machine, Acquire(b"v")) == [ReadKey(sync=False)]


def test_release_during_a_write_deletes_what_it_made() -> None:
    machine = alone()
    feed(machine, Acquire(b"v"), SessionBegan(1), KeyRead(None))
    assert feed(machine, Release()) == []
    assert not machine.is_free
    assert feed(machine, Wrote(5)) == [Delete(5)]
    assert feed(machine, Uncertain()) == [ReadKey(sync=True)]
    assert feed(machine, KeyRead(None)) == [KeyReleased()]


def test_late_write_after_release_is_removed() -> None:
    machine = alone()
    feed(machine, Acquire(b"v"), SessionBegan(1), KeyRead(None), Uncertain())
    assert feed(machine, Release()) == []
    assert feed(machine, KeyRead(None)) == [KeyReleased()]
    assert feed(machine, Changed()) == [ReadKey(sync=False)], "it may be the write in doubt"
    assert feed(machine, KeyRead(StoredClaim("me-1.1.1", b"v", 8))) == [Delete(8)]
    assert feed(machine, Deleted()) == [KeyReleased()]


def test_release_without_a_session_is_immediate() -> None:
    machine = alone()
    feed(machine, Acquire(b"v"))
    assert feed(machine, Release()) == [KeyReleased()]
