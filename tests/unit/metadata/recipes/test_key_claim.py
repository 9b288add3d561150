"""The machine under locks, elections and registrations: events in, effects compared."""

from __future__ import annotations

from anabranch.metadata.interface import ABSENT
from anabranch.metadata.recipes.key_claim import (
    Amend,
    Changed,
    ClaimMachine,
    Delete,
    Deleted,
    Effect,
    Event,
    Failed,
    Holding,
    Look,
    Pause,
    Paused,
    PauseKind,
    Put,
    Raced,
    Seen,
    SessionBegan,
    SessionOver,
    TellFree,
    TellHeld,
    TellLost,
    TellOther,
    TellWritten,
    Unknown,
    Unwant,
    Want,
    Wrote,
    decode_claim,
    encode_claim,
    ticket_of,
)

OTHER = Holding("other-1.1.1", b"theirs", 7)


def feed(machine: ClaimMachine, *events: Event) -> list[Effect]:
    """The effects of the last event."""
    effects: list[Effect] = []
    for event in events:
        effects = machine.handle(event)
    return effects


def alone() -> ClaimMachine:
    return ClaimMachine("me-1", is_contended=False)


def holding(machine: ClaimMachine) -> ClaimMachine:
    feed(machine, SessionBegan(1), Want(b"v"), Seen(None), Wrote(5))
    assert machine.held == "me-1.1.1"
    return machine


def test_claims_survive_their_encoding() -> None:
    stored = encode_claim("host.example-3.2.1", b"a\nb")
    assert decode_claim(stored, 4) == Holding("host.example-3.2.1", b"a\nb", 4)
    assert ticket_of("host.example-3.2.1") == "host.example-3"
    assert decode_claim(b"by hand", 1) == Holding("", b"by hand", 1)
    assert decode_claim(b"\xff\xfe\n", 1).value == b""


def test_takes_a_free_key() -> None:
    machine = alone()
    assert feed(machine, Want(b"v")) == []
    assert feed(machine, SessionBegan(1)) == [Look(sync=False)]
    assert feed(machine, Seen(None)) == [Put("me-1.1.1", b"v", ABSENT)]
    assert feed(machine, Wrote(5)) == [TellHeld("me-1.1.1"), TellWritten("me-1.1.1", b"v")]


def test_scatters_when_others_may_want_the_same() -> None:
    machine = ClaimMachine("me-1", is_contended=True)
    pause = Pause(1, PauseKind.SCATTER, 0)
    assert feed(machine, Want(b"v"), SessionBegan(1), Seen(None)) == [pause]
    assert feed(machine, Changed()) == [Look(sync=False)]
    assert feed(machine, Paused(1)) == [], "the pause was for the state before the change"
    assert feed(machine, Seen(OTHER)) == [TellOther(OTHER)]
    assert feed(machine, Changed()) == [Look(sync=False)]
    assert feed(machine, Seen(None)) == [Pause(2, PauseKind.SCATTER, 0)]
    assert feed(machine, Paused(2)) == [Put("me-1.1.1", b"v", ABSENT)]
    assert feed(machine, Raced()) == [Look(sync=False)]


def test_a_lost_answer_is_decided_by_reading() -> None:
    machine = alone()
    feed(machine, Want(b"v"), SessionBegan(1), Seen(None))
    assert feed(machine, Unknown()) == [Look(sync=True)]
    found = Seen(Holding("me-1.1.1", b"v", 9))
    assert feed(machine, found) == [TellHeld("me-1.1.1"), TellWritten("me-1.1.1", b"v")]


def test_a_lost_request_is_sent_again_under_the_same_condition() -> None:
    machine = alone()
    feed(machine, Want(b"v"), SessionBegan(1), Seen(None), Unknown())
    assert feed(machine, Seen(None)) == [Put("me-1.1.1", b"v", ABSENT)]
    assert feed(machine, Unknown()) == [Pause(1, PauseKind.RETRY, 2)], "the second time in a row with a pause"
    assert feed(machine, Changed()) == []
    assert feed(machine, Paused(1)) == [Look(sync=True)]


def test_failed_reads_are_repeated_after_longer_and_longer_pauses() -> None:
    machine = alone()
    feed(machine, Want(b"v"), SessionBegan(1))
    assert feed(machine, Failed()) == [Pause(1, PauseKind.RETRY, 1)]
    assert feed(machine, Paused(1), Failed()) == [Pause(2, PauseKind.RETRY, 2)]
    assert feed(machine, Paused(2), Seen(OTHER)) == [TellOther(OTHER)]
    assert feed(machine, Changed(), Failed()) == [Pause(3, PauseKind.RETRY, 1)]


def test_a_lost_session_ends_the_holding_at_once_and_the_next_begins_another() -> None:
    machine = holding(alone())
    assert feed(machine, SessionOver("overdue")) == [TellLost("me-1.1.1", "overdue")]
    assert feed(machine, SessionBegan(2)) == [Look(sync=False)]
    leftover = Holding("me-1.1.1", b"v", 5)
    assert feed(machine, Seen(leftover)) == [Put("me-1.2.2", b"v", 5)], "our own leftover is replaced"
    assert feed(machine, Wrote(6)) == [TellHeld("me-1.2.2"), TellWritten("me-1.2.2", b"v")]


def test_somebody_else_took_it_while_the_session_was_away() -> None:
    machine = holding(alone())
    feed(machine, SessionOver("lost"), SessionBegan(2))
    assert feed(machine, Seen(OTHER)) == [TellOther(OTHER)]
    assert machine.held is None


def test_an_answer_of_the_old_session_counts_for_nothing() -> None:
    machine = alone()
    feed(machine, Want(b"v"), SessionBegan(1), Seen(None))
    assert feed(machine, SessionOver("lost")) == []
    assert feed(machine, Wrote(5)) == []
    assert machine.held is None
    assert feed(machine, SessionBegan(2)) == [Look(sync=False)]


def test_deleted_by_hand_is_lost_and_taken_again_under_another_claim() -> None:
    machine = holding(alone())
    assert feed(machine, Changed()) == [Look(sync=True)], "who holds it wants to be sure"
    assert feed(machine, Seen(None)) == [TellLost("me-1.1.1", "deleted"), Put("me-1.1.2", b"v", ABSENT)]


def test_taken_by_another() -> None:
    machine = holding(alone())
    assert feed(machine, Changed(), Seen(OTHER)) == [TellLost("me-1.1.1", "taken"), TellOther(OTHER)]


def test_a_hint_during_a_request_is_followed_by_a_look() -> None:
    machine = alone()
    feed(machine, Want(b"v"), SessionBegan(1), Seen(None), Changed())
    held = [TellHeld("me-1.1.1"), TellWritten("me-1.1.1", b"v"), Look(sync=True)]
    assert feed(machine, Wrote(5)) == held


def test_another_value_is_written_over_the_version_we_know() -> None:
    machine = holding(alone())
    assert feed(machine, Want(b"w")) == [Put("me-1.1.1", b"w", 5)]
    assert feed(machine, Want(b"x")) == []
    assert feed(machine, Wrote(6)) == [Put("me-1.1.1", b"x", 6)]
    assert feed(machine, Wrote(7)) == [TellWritten("me-1.1.1", b"x")]


def test_an_amendment_ends_with_the_holding() -> None:
    machine = holding(alone())
    assert feed(machine, Amend("me-1.0.9", b"nobody's")) == []
    assert feed(machine, Amend("me-1.1.1", b"")) == [Put("me-1.1.1", b"", 5)]
    assert feed(machine, Wrote(6)) == [TellWritten("me-1.1.1", b"")]
    feed(machine, SessionOver("lost"), SessionBegan(2))
    assert feed(machine, Seen(None)) == [Put("me-1.2.2", b"v", ABSENT)]


def test_release_deletes_what_is_ours() -> None:
    machine = holding(alone())
    assert feed(machine, Unwant()) == [TellLost("me-1.1.1", "released"), Delete(5)]
    assert feed(machine, Deleted()) == [TellFree()]
    assert machine.is_free
    assert feed(machine, Changed()) == [], "nobody cares any more"
    assert feed(machine, Want(b"v")) == [Look(sync=False)]


def test_release_during_a_write_deletes_what_it_made() -> None:
    machine = alone()
    feed(machine, Want(b"v"), SessionBegan(1), Seen(None))
    assert feed(machine, Unwant()) == []
    assert not machine.is_free
    assert feed(machine, Wrote(5)) == [Delete(5)]
    assert feed(machine, Unknown()) == [Look(sync=True)]
    assert feed(machine, Seen(None)) == [TellFree()]


def test_a_write_that_comes_after_we_gave_up_is_removed() -> None:
    machine = alone()
    feed(machine, Want(b"v"), SessionBegan(1), Seen(None), Unknown())
    assert feed(machine, Unwant()) == []
    assert feed(machine, Seen(None)) == [TellFree()]
    assert feed(machine, Changed()) == [Look(sync=False)], "it may be the write in doubt"
    assert feed(machine, Seen(Holding("me-1.1.1", b"v", 8))) == [Delete(8)]
    assert feed(machine, Deleted()) == [TellFree()]


def test_without_a_session_there_is_nothing_to_give_up() -> None:
    machine = alone()
    feed(machine, Want(b"v"))
    assert feed(machine, Unwant()) == [TellFree()]
