"""Consumer sessions: grace, leave, duplicate names, late closes, a new leader."""

from __future__ import annotations

from anabranch.controller.group.consumer_sessions import (
    EXPIRED,
    LEFT,
    Arrived,
    Departed,
    Disconnected,
    Fence,
    LeftCleanly,
    Refuse,
    Registered,
    Renew,
    SaveSessions,
    Sessions,
    SessionsRecord,
    Ticked,
    WakeAt,
    Welcome,
)


def test_new_consumer_is_saved_before_welcome() -> None:
    sessions = Sessions()
    assert sessions.handle(Registered("a", 1), 0) == [SaveSessions(), Arrived("a"), Welcome("a", 1)]
    assert sessions.record() == SessionsRecord({"a": 0})


def test_return_within_grace_writes_nothing() -> None:
    sessions = Sessions(grace_ms=100)
    sessions.handle(Registered("a", 1), 0)
    assert sessions.handle(Disconnected(1), 50) == [WakeAt(150)]
    assert sessions.handle(Registered("a", 2), 149) == [Welcome("a", 2)]
    assert sessions.handle(Ticked(), 10_000) == []


def test_consumer_departs_after_its_grace_period() -> None:
    sessions = Sessions(grace_ms=100)
    sessions.handle(Registered("a", 1), 0)
    sessions.handle(Disconnected(1), 50)
    assert sessions.handle(Ticked(), 149) == []
    assert sessions.handle(Ticked(), 150) == [SaveSessions(), Departed("a", EXPIRED)]
    assert sessions.names == frozenset()


def test_late_close_of_a_replaced_connection_is_ignored() -> None:
    """Facts, 1.6 defect 7: it must not send the new session away."""
    sessions = Sessions(grace_ms=100)
    sessions.handle(Registered("a", 1), 0)
    assert sessions.handle(Registered("a", 2), 10) == [Fence("a", 1), Renew("a"), Welcome("a", 2)]
    assert sessions.handle(Disconnected(1), 20) == []
    assert sessions.handle(LeftCleanly("a", 1), 20) == []
    assert sessions.is_current("a", 2)
    assert sessions.handle(Ticked(), 10_000) == []


def test_clean_leave_departs_at_once() -> None:
    sessions = Sessions()
    sessions.handle(Registered("a", 1), 0)
    assert sessions.handle(LeftCleanly("a", 1), 5) == [SaveSessions(), Departed("a", LEFT)]
    assert sessions.handle(LeftCleanly("a", None), 5) == []


def test_disconnect_affects_all_sessions_of_a_connection() -> None:
    sessions = Sessions(grace_ms=10)
    for name in "ab":
        sessions.handle(Registered(name, 1), 0)
    sessions.handle(Registered("c", 2), 0)
    assert sessions.handle(Disconnected(1), 0) == [WakeAt(10)]
    gone = sessions.handle(Ticked(), 10)
    assert [effect.name for effect in gone if isinstance(effect, Departed)] == ["a", "b"]
    assert sessions.names == {"c"}


def test_new_leader_gives_each_member_a_full_grace_period() -> None:
    record = SessionsRecord.from_json(SessionsRecord({"a/%#é": 1, "b": 2}).to_json())
    sessions = Sessions(record=record, now_ms=1_000, grace_ms=100)
    assert sessions.begin() == [WakeAt(1_100)]
    assert sessions.handle(Registered("b", 1), 1_050) == [Welcome("b", 1)]
    gone = sessions.handle(Ticked(), 1_100)
    assert gone == [SaveSessions(), Departed("a/%#é", EXPIRED)]


def test_registration_above_the_limit_is_refused() -> None:
    sessions = Sessions(sessions_max=1)
    sessions.handle(Registered("a", 1), 0)
    (refusal,) = sessions.handle(Registered("b", 2), 0)
    assert isinstance(refusal, Refuse)
    assert refusal.error.code == "too-many-consumers"
    assert refusal.error.retryable
