"""State machines of `consumer.run`: events in, effects out."""

from __future__ import annotations

from functools import partial

from anabranch.client.processing.handler_state import (
    Acknowledge,
    GiveUp,
    Nack,
    OrderedHandlers,
    RetryLater,
    Skip,
    Start,
    UnorderedHandlers,
)


def test_messages_of_one_key_start_one_after_another() -> None:
    state = OrderedHandlers(concurrency=2, pending_max=10)
    assert state.received(1, "s", "a") == [Start(1)]
    assert state.received(2, "s", "a") == []
    assert state.received(3, "s", "b") == [Start(3)]
    assert state.finished(1) == [Acknowledge((1,)), Start(2)]
    assert state.finished(2) == [Acknowledge((2,))]


def test_at_most_concurrency_handlers_run() -> None:
    state = OrderedHandlers(concurrency=1, pending_max=10)
    assert state.received(1, "s", "a") == [Start(1)]
    assert state.received(2, "s", "b") == []
    assert state.finished(1) == [Acknowledge((1,)), Start(2)]


def test_messages_without_a_key_keep_the_order_of_their_segment() -> None:
    state = OrderedHandlers(concurrency=4, pending_max=10)
    assert state.received(1, "s", None) == [Start(1)]
    assert state.received(2, "s", None) == []
    assert state.received(3, "t", None) == [Start(3)]


def test_ack_waits_for_the_first_unfinished_message_of_the_segment() -> None:
    state = OrderedHandlers(concurrency=4, pending_max=10)
    for number, key in enumerate("abc", 1):
        state.received(number, "s", key)
    assert state.received(4, "t", "d") == [Start(4)]
    assert state.finished(2) == []
    assert state.finished(4) == [Acknowledge((4,))], "another segment does not wait"
    assert state.finished(1) == [Acknowledge((1, 2))]
    assert state.unacknowledged == 1


def test_ack_of_a_child_waits_for_its_ancestors() -> None:
    ancestors = {"child": ("parent",), "grandchild": ("parent", "child")}
    state = OrderedHandlers(concurrency=4, pending_max=10, ancestors_of=lambda source: ancestors.get(str(source), ()))
    state.received(1, "parent", "a")
    state.received(2, "child", "b")
    state.received(3, "grandchild", "c")
    assert state.finished(3) == []
    assert state.finished(2) == []
    assert state.finished(1) == [Acknowledge((1,)), Acknowledge((2,)), Acknowledge((3,))]
    assert state.unacknowledged == 0


def test_room_ends_at_the_bound_of_unacknowledged_messages() -> None:
    state = OrderedHandlers(concurrency=2, pending_max=2)
    rooms = [state.has_room]
    for event in (
        partial(state.received, 1, "s", "a"),
        partial(state.received, 2, "s", "b"),
        partial(state.finished, 2),  # not acknowledged yet
        partial(state.finished, 1),
    ):
        event()
        rooms.append(state.has_room)
    assert rooms == [True, True, False, False, True]


def test_failed_message_is_retried_while_other_keys_go_on() -> None:
    state = OrderedHandlers(concurrency=1, pending_max=10, attempts=3)
    state.received(1, "s", "a")
    state.received(2, "s", "a")
    state.received(3, "s", "b")
    assert state.failed(1) == [RetryLater(1, 1), Start(3)]
    assert state.finished(3) == [], "message 1 is before it"
    assert state.due(1) == [Start(1)]
    assert state.failed(1) == [RetryLater(1, 2)]
    assert state.due(1) == [Start(1)]
    assert state.finished(1) == [Acknowledge((1,)), Start(2)]
    assert state.finished(2) == [Acknowledge((2, 3))]


def test_last_failed_attempt_stops_the_run_and_acknowledges_nothing() -> None:
    state = OrderedHandlers(concurrency=2, pending_max=10, attempts=1)
    state.received(1, "s", "a")
    state.received(2, "s", "b")
    state.received(3, "s", "c")
    assert state.failed(1) == [GiveUp(1)]
    assert state.finished(2) == [], "nothing starts, and message 1 is before it"
    assert state.unacknowledged == 3


def test_last_failed_attempt_is_skipped_if_the_policy_says_so() -> None:
    state = OrderedHandlers(concurrency=2, pending_max=10, attempts=1, skips=True)
    state.received(1, "s", "a")
    state.received(2, "s", "a")
    assert state.failed(1) == [Skip(1), Acknowledge((1,)), Start(2)]


def test_stopped_machine_acknowledges_and_starts_nothing() -> None:
    state = OrderedHandlers(concurrency=1, pending_max=10)
    state.received(1, "s", "a")
    state.received(2, "s", "a")
    state.stop()
    assert state.finished(1) == [Acknowledge((1,))]
    assert state.due(2) == []


def test_queue_messages_are_settled_alone() -> None:
    state = UnorderedHandlers(concurrency=2)
    assert state.received(1, "s", "a") == [Start(1)]
    assert state.received(2, "s", "a") == [Start(2)]
    rooms = [state.has_room]
    assert state.finished(2) == [Acknowledge((2,))]
    assert [*rooms, state.has_room] == [False, True]
    assert state.failed(1) == [Nack(1)]
    state.received(3, "s", "a")
    assert state.cancelled(3) == [Nack(3)]
    assert state.unacknowledged == 0
