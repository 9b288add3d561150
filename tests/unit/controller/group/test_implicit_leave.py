"""A client without a LEAVE command is gone when it has closed all segments that it was assigned, and not before."""

from __future__ import annotations

from anabranch.controller.group.implicit_leave import ImplicitLeaveDetector


def detector(*segment_ids: int) -> ImplicitLeaveDetector:
    made = ImplicitLeaveDetector()
    made.on_assigned(segment_ids)
    return made


def test_client_is_gone_when_all_its_readers_are_closed() -> None:
    client = detector(4, 5)
    assert [client.on_closed(4), client.on_closed(4), client.on_closed(5)] == [False, False, True]
    assert detector(6).on_closed(6)


def test_close_of_a_revoked_segment_is_ignored() -> None:
    client = detector(4, 5)
    client.on_assigned([4])
    assert not client.on_closed(5)
    assert client.on_closed(4)


def test_close_before_any_assignment_is_ignored() -> None:
    assert not ImplicitLeaveDetector().on_closed(4)


def test_segment_assigned_again_counts_as_open() -> None:
    client = detector(4, 5)
    assert not client.on_closed(4)
    client.on_assigned([5])
    client.on_assigned([4, 5])
    assert [client.on_closed(5), client.on_closed(4)] == [False, True]


def test_segment_that_stays_assigned_stays_closed() -> None:
    client = detector(4, 5)
    assert not client.on_closed(4)
    client.on_assigned([4, 5, 6])
    assert [client.on_closed(5), client.on_closed(6)] == [False, True]
