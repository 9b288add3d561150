"""A seek of the subscription discards all held segments, in any state."""

from __future__ import annotations

from anabranch.client.consumer.assignment_reconciler import AssignmentReconciler, Attach, Detach, Discard, Stop
from anabranch.client.consumer.segment_consumer_effects import Ack
from anabranch.client.consumer.segment_consumer_state import SegmentConsumerState
from anabranch.client.messages.message import MessageId


def holding(*segment_ids: int) -> AssignmentReconciler:
    reconciler = AssignmentReconciler()
    assert reconciler.assigned(segment_ids, generation=4, epoch=1) == [Attach(one) for one in segment_ids]
    return reconciler


def test_seek_discards_all_segments_without_waiting() -> None:
    reconciler = holding(1, 2)
    assert reconciler.assigned([], generation=5, epoch=1, void_below=5) == [Discard(1), Discard(2)]
    assert reconciler.held == ()
    assert reconciler.assigned([0], generation=6, epoch=1, void_below=5) == [Attach(0)]


def test_missed_seek_is_found_in_the_next_assignment() -> None:
    """Assignments are complete, so a superseded one need not arrive."""
    reconciler = holding(1, 2)
    assert reconciler.assigned([0, 2], generation=6, epoch=1, void_below=5) == [
        Discard(1),
        Discard(2),
        Attach(0),
        Attach(2),
    ]


def test_segments_are_discarded_in_any_state() -> None:
    reconciler = holding(1, 2, 3)
    assert reconciler.assigned([1], generation=5, epoch=1) == [Stop(2), Stop(3)]
    assert reconciler.settled(3) == [Detach(3)]
    assert reconciler.assigned([2, 3], generation=7, epoch=1, void_below=6) == [
        Discard(1),
        Discard(2),
        Discard(3),
        Attach(2),
        Attach(3),
    ]
    assert reconciler.closed(3) == [], "that was the one from before"
    assert reconciler.settled(2) == []


def test_segments_are_discarded_once_per_seek() -> None:
    reconciler = holding(1)
    reconciler.assigned([1], generation=6, epoch=1, void_below=5)
    assert reconciler.assigned([1, 2], generation=7, epoch=1, void_below=5) == [Attach(2)]
    assert reconciler.assigned([1], generation=6, epoch=1, void_below=5) is None, "an older one that arrives late"


def test_acks_before_a_discard_are_never_sent() -> None:
    state = SegmentConsumerState("t")
    state.opened()
    state.ack_cumulative(MessageId("t", 1, 7))
    (said,) = state.flush()
    assert isinstance(said, Ack)
    state.ack_cumulative(MessageId("t", 1, 8))
    state.lost([])
    before = state.is_clean
    state.discard_acks()
    assert (before, state.is_clean) == (False, True)
    state.confirmed(said.number)  # its answer comes late
    state.opened()
    assert state.flush() == []


def test_recreated_topic_discards_all_segments_and_accepts_lower_generations() -> None:
    reconciler = holding(1, 2, 3)
    assert reconciler.assigned([1], generation=5, epoch=1) == [Stop(2), Stop(3)]
    assert reconciler.settled(3) == [Detach(3)]
    assert reconciler.restarted() == [Discard(1), Discard(2), Discard(3)]
    assert (reconciler.held, reconciler.generation) == ((), None)
    assert reconciler.closed(3) == [], "it belonged to the deleted topic"
    assert reconciler.assigned([1], generation=1, epoch=0) == [Attach(1)]
