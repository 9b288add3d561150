"""What a seek of the subscription means for what a consumer holds: all of it is void, whatever it was doing."""

from __future__ import annotations

from anabranch.client.consumer.assignment_reconciler import AssignmentReconciler, Attach, Detach, Stop, Void
from anabranch.client.consumer.segment_consumer_effects import Ack
from anabranch.client.consumer.segment_consumer_state import SegmentConsumerState
from anabranch.client.messages.message import MessageId


def holding(*segment_ids: int) -> AssignmentReconciler:
    holdings = AssignmentReconciler()
    assert holdings.assigned(segment_ids, generation=4, epoch=1) == [Attach(one) for one in segment_ids]
    return holdings


def test_everything_is_void_and_nothing_is_waited_for() -> None:
    holdings = holding(1, 2)
    assert holdings.assigned([], generation=5, epoch=1, void_below=5) == [Void(1), Void(2)]
    assert holdings.held == ()
    assert holdings.assigned([0], generation=6, epoch=1, void_below=5) == [Attach(0)]


def test_who_missed_the_taking_back_finds_it_in_what_is_given() -> None:
    """Assignments are complete: one that was overtaken on the way is not told."""
    holdings = holding(1, 2)
    assert holdings.assigned([0, 2], generation=6, epoch=1, void_below=5) == [Void(1), Void(2), Attach(0), Attach(2)]


def test_void_in_any_state() -> None:
    holdings = holding(1, 2, 3)
    assert holdings.assigned([1], generation=5, epoch=1) == [Stop(2), Stop(3)]
    assert holdings.settled(3) == [Detach(3)]
    assert holdings.assigned([2, 3], generation=7, epoch=1, void_below=6) == [
        Void(1),
        Void(2),
        Void(3),
        Attach(2),
        Attach(3),
    ]
    assert holdings.closed(3) == [], "that was the one from before"
    assert holdings.settled(2) == []


def test_once_per_seek() -> None:
    holdings = holding(1)
    holdings.assigned([1], generation=6, epoch=1, void_below=5)
    assert holdings.assigned([1, 2], generation=7, epoch=1, void_below=5) == [Attach(2)]
    assert holdings.assigned([1], generation=6, epoch=1, void_below=5) is None, "an older one, told late"


def test_what_was_acknowledged_before_is_never_said() -> None:
    intake = SegmentConsumerState("t")
    intake.opened()
    intake.ack_cumulative(MessageId("t", 1, 7))
    (said,) = intake.flush()
    assert isinstance(said, Ack)
    intake.ack_cumulative(MessageId("t", 1, 8))
    intake.lost([])
    before = intake.is_clean
    intake.void()
    assert (before, intake.is_clean) == (False, True)
    intake.confirmed(said.number)  # its answer comes late
    intake.opened()
    assert intake.flush() == []
