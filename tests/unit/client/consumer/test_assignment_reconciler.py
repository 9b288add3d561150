"""A seek of the subscription discards all held segments, in any state."""

from __future__ import annotations

from anabranch.client.consumer.assignment_reconciler import (
    AssignmentReconciler,
    Attach,
    Detach,
    Discard,
    Release,
    SegmentOrder,
    Stop,
)
from anabranch.client.consumer.segment.effects import Ack
from anabranch.client.consumer.segment.segment_consumer_state import SegmentConsumerState
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


# the order between held segments --------------------------------------------------------------------------------------
def ordered(**after: tuple[int, ...]) -> SegmentOrder:
    order = SegmentOrder()
    order.assigned([0, 1, 2, 3], {int(name[1:]): ancestors for name, ancestors in after.items()})
    return order


def test_child_is_delivered_after_all_its_ancestors_were_read() -> None:
    order = ordered(s3=(0, 1))
    assert not order.may_deliver(3, {0}.__contains__)
    assert order.may_deliver(3, {0, 1}.__contains__)
    assert order.may_deliver(2, set[int]().__contains__), "it has no ancestors"


def test_acks_of_a_child_wait_until_all_its_ancestors_are_settled() -> None:
    order = ordered(s3=(0, 1))
    order.settled(0)
    assert order.unsettled(3) == {1}
    assert order.has_unsettled
    order.settled(1)
    assert order.unsettled(3) == frozenset()
    assert not order.has_unsettled


def test_settled_ancestor_stays_settled_in_the_next_assignment() -> None:
    order = ordered(s3=(0, 1))
    order.settled(0)
    order.assigned([0, 1, 3], {3: (0, 1)})
    assert order.unsettled(3) == {1}


def test_assignment_without_ancestors_ends_the_wait() -> None:
    order = ordered(s3=(0, 1))
    order.assigned([3], {})
    assert order.unsettled(3) == frozenset()
    assert order.may_deliver(3, set[int]().__contains__)


def test_child_that_is_no_longer_assigned_keeps_waiting() -> None:
    order = ordered(s3=(0,))
    order.assigned([1, 2], {})
    assert order.unsettled(3) == {0}


def test_ancestor_that_was_detached_or_rewound_must_be_settled_again() -> None:
    order = ordered(s3=(0,))
    order.settled(0)
    order.rewound(0)
    assert order.unsettled(3) == {0}
    order.settled(0)
    order.detached(0)
    order.assigned([0, 3], {3: (0,)})
    assert order.unsettled(3) == {0}
    order.detached(3)
    assert order.unsettled(3) == frozenset()


def test_partitions_held_before_a_migration_are_kept_or_settled_before_they_leave() -> None:
    reconciler = AssignmentReconciler()
    reconciler.adopted([0, 1, 2])
    assert (reconciler.held, reconciler.generation) == ((0, 1, 2), None), "sent with the registration"
    assert reconciler.assigned([0, 3], generation=1, epoch=1) == [Stop(1), Stop(2), Attach(3)]
    assert reconciler.settled(1) == [Detach(1)], "everything handed out of it is acknowledged"
    assert reconciler.closed(1) == [Release(1, (1,))]
    assert reconciler.held == (0, 2, 3)
