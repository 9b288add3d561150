"""`AckSchedule`: messages are processed when receive is called again, and acknowledged by count, interval, urgency."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch import AckEvery
from anabranch.client.errors import BadOption
from anabranch.client.processing.ack_schedule import AckSchedule, Decision


def test_nothing_is_acknowledged_before_receive_is_called_again() -> None:
    schedule = AckSchedule[int](1, has_interval=False)
    assert schedule.receive_called() is Decision.NOTHING
    schedule.handed_out(1)
    assert schedule.due() is None
    assert schedule.receive_called() is Decision.ACK
    assert schedule.due() == 1


def test_ack_follows_the_number_of_messages() -> None:
    schedule = AckSchedule[int](3, has_interval=False)
    decisions = []
    for number in range(1, 8):
        decisions.append(schedule.receive_called())
        if decisions[-1] is Decision.ACK:
            assert schedule.due() == number - 1
        schedule.handed_out(number)
    assert [one is Decision.ACK for one in decisions] == [False, False, False, True, False, False, True]


def test_batches_count_their_messages() -> None:
    schedule = AckSchedule[int](10, has_interval=False)
    schedule.handed_out(1, 6)
    assert schedule.receive_called() is Decision.NOTHING
    schedule.handed_out(2, 6)
    assert schedule.receive_called() is Decision.ACK
    assert schedule.due() == 2


def test_timer_is_armed_once_and_covers_what_is_processed_by_then() -> None:
    schedule = AckSchedule[int](None, has_interval=True)
    schedule.handed_out(1)
    assert schedule.receive_called() is Decision.ARM
    schedule.handed_out(2)
    assert schedule.receive_called() is Decision.NOTHING
    schedule.handed_out(3)
    assert schedule.due(is_timer=True) == 2
    assert schedule.receive_called() is Decision.ARM
    assert schedule.due(is_timer=True) == 3
    assert schedule.receive_called() is Decision.NOTHING


def test_urgent_schedule_acknowledges_at_every_call() -> None:
    schedule = AckSchedule[int](1000, has_interval=True)
    schedule.handed_out(1)
    schedule.is_urgent = True
    assert schedule.receive_called() is Decision.ACK
    assert schedule.due() == 1
    assert schedule.receive_called() is Decision.NOTHING


@given(
    st.integers(1, 5), st.lists(st.tuples(st.sampled_from(["hand", "receive", "flush", "urgent"]), st.integers(1, 4)))
)
def test_acks_cover_only_processed_messages_and_are_never_late(every: int, steps: list[tuple[str, int]]) -> None:
    schedule = AckSchedule[int](every, has_interval=False)
    handed, processed, acked = 0, 0, 0
    for what, count in steps:
        if what == "hand":
            handed += count
            schedule.handed_out(handed, count)
            continue
        if what == "urgent":
            schedule.is_urgent = not schedule.is_urgent
            continue
        if what == "receive":
            processed = handed
            if schedule.receive_called() is not Decision.ACK:
                assert processed - acked < every
                assert processed == acked or not schedule.is_urgent
                continue
        position = schedule.due()
        assert position == (None if processed == acked else processed)
        acked = processed


def test_option_values_are_checked() -> None:
    assert AckEvery.of(7) == AckEvery(messages=7)
    for wrong in ({}, {"messages": 0}, {"interval": 0}):
        with pytest.raises(BadOption, match="AckEvery"):
            AckEvery(**wrong)
    for value in (0, -1, True, "7", 1.5):
        with pytest.raises(BadOption):
            AckEvery.of(value)  # type: ignore[arg-type]  # wrong on purpose
