"""Consumer sessions: grace, leave, duplicate names, late closes, a new leader."""

from __future__ import annotations

import json

from anabranch.controller.events import SessionTaken
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


# two consumers with one name ------------------------------------------------------------------------------------------


def test_newer_instance_takes_over_and_the_older_is_fenced_with_an_error() -> None:
    sessions = Sessions()
    sessions.handle(Registered("a", 1, is_new=True, instance=11), 0)
    fence, *rest = sessions.handle(Registered("a", 2, is_new=True, instance=22), 5)
    assert isinstance(fence, Fence)
    assert (fence.connection, type(fence.error)) == (1, SessionTaken)
    assert rest == [Renew("a"), SaveSessions(), Welcome("a", 2)]
    assert sessions.record() == SessionsRecord({"a": 0}, instances={"a": 22}, replaced={"a": (11,)})


def test_same_instance_reconnects_without_an_error_and_without_a_write() -> None:
    sessions = Sessions()
    sessions.handle(Registered("a", 1, is_new=True, instance=11), 0)
    assert sessions.handle(Registered("a", 2, instance=11), 5) == [Fence("a", 1), Renew("a"), Welcome("a", 2)]
    sessions.handle(Disconnected(2), 6)
    assert [one for one in sessions.handle(Registered("a", 3, instance=11), 7) if not isinstance(one, WakeAt)] == [
        Welcome("a", 3)
    ]


def refused(sessions: Sessions, event: Registered) -> bool:
    effects = [one for one in sessions.handle(event, 50) if not isinstance(one, WakeAt)]
    errors = [one.error for one in effects if isinstance(one, Refuse)]
    assert len(errors) == len(effects) or not errors, "a refusal changes nothing"
    return bool(errors) and all(isinstance(one, SessionTaken) for one in errors)


def test_replaced_instance_cannot_come_back() -> None:
    """Its connection was broken when it was replaced, so it does not know."""
    sessions = Sessions(grace_ms=100)
    sessions.handle(Registered("a", 1, is_new=True, instance=11), 0)
    sessions.handle(Disconnected(1), 1)
    sessions.handle(Registered("a", 2, is_new=True, instance=22), 2)
    assert refused(sessions, Registered("a", 3, instance=11)), "it has seen an assignment"
    assert refused(sessions, Registered("a", 4, is_new=True, instance=11)), "the answer to its registration was lost"
    assert sessions.is_current("a", 2)


def test_next_leader_refuses_replaced_instances_too() -> None:
    first = Sessions()
    first.handle(Registered("a", 1, is_new=True, instance=11), 0)
    first.handle(Registered("a", 2, is_new=True, instance=22), 0)
    stored = SessionsRecord.from_json(json.loads(json.dumps(first.record().to_json())))
    second = Sessions(record=stored, now_ms=10)
    assert refused(second, Registered("a", 1, instance=11))
    assert refused(second, Registered("a", 2, is_new=True, instance=11))
    assert not refused(second, Registered("a", 3, instance=22))


def test_replaced_instances_are_kept_up_to_a_limit() -> None:
    sessions = Sessions()
    for number in range(1, 20):
        sessions.handle(Registered("a", number, is_new=True, instance=number), 0)
    assert sessions.record().replaced == {"a": (15, 16, 17, 18)}
    assert refused(sessions, Registered("a", 99, instance=3)), "it has seen an assignment"


def test_name_is_free_again_after_its_session_ended() -> None:
    sessions = Sessions()
    sessions.handle(Registered("a", 1, is_new=True, instance=11), 0)
    sessions.handle(Registered("a", 2, is_new=True, instance=22), 0)
    sessions.handle(LeftCleanly("a", 2), 0)
    assert not refused(sessions, Registered("a", 3, instance=11))


def test_clients_without_instances_take_over_as_before() -> None:
    sessions = Sessions()
    sessions.handle(Registered("a", 1), 0)
    assert sessions.handle(Registered("a", 2), 0) == [Fence("a", 1), Renew("a"), Welcome("a", 2)]
    assert sessions.handle(Registered("a", 3, is_new=True, instance=33), 0) == [
        Fence("a", 2),
        Renew("a"),
        SaveSessions(),
        Welcome("a", 3),
    ]
    fence = sessions.handle(Registered("a", 4), 0)[0]
    assert isinstance(fence, Fence)
    assert isinstance(fence.error, SessionTaken)
    assert refused(sessions, Registered("a", 5, instance=33))


def test_record_without_instances_is_read_and_the_member_keeps_its_session() -> None:
    sessions = Sessions(record=SessionsRecord.from_json({"a": {"joinedAtMs": 7}}), now_ms=0)
    assert not refused(sessions, Registered("a", 1, instance=11))
    assert sessions.record() == SessionsRecord({"a": 7}, instances={"a": 11})
