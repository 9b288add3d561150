"""Effect of an acknowledgement: real cursor, dispatchers and consumers, a log in a list."""

from __future__ import annotations

from anabranch.broker.subscription.acknowledgement import ack_entry, skip_removed, skip_to
from anabranch.broker.subscription.delayed_delivery import DelayTimer
from anabranch.broker.subscription.dispatch_rate_limiter import first_entries
from anabranch.broker.subscription.dispatcher_single_active import SingleDispatcher
from anabranch.model.position import Position
from anabranch.model.subscription_type import SubscriptionType
from anabranch.storage.interface import StoredEntry
from tests.support.in_memory.broker_fakes import ListLog, Shell, keyed, make_consumer, positions, shared
from tests.support.in_memory.topic_log import ManualClock

SHARED, KEY_SHARED, EXCLUSIVE = SubscriptionType.SHARED, SubscriptionType.KEY_SHARED, SubscriptionType.EXCLUSIVE


def test_ack_through_another_consumer_reaches_the_holder() -> None:
    log = ListLog(2)
    shell = Shell(shared(log), log)
    holder = shell.join(make_consumer(SHARED, 1, permits=2))
    shell.pump()
    other = shell.join(make_consumer(SHARED, 2))
    ack_entry(log.cursor, shell.dispatcher, other, Position(7, 0), (), 0)
    assert list(holder.pending) == positions([1])
    assert (holder.messages_acked, other.messages_acked) == (0, 1)
    assert log.cursor.is_acked(Position(7, 0)) and not log.cursor.is_acked(Position(7, 1))


def test_partly_acked_batch_stays_pending() -> None:
    log = ListLog(1, messages=4)
    shell = Shell(shared(log), log)
    consumer = shell.join(make_consumer(SHARED, 1, permits=4))
    shell.pump()
    ack_entry(log.cursor, shell.dispatcher, consumer, Position(7, 0), (0b1100,), 4)
    assert (consumer.messages_acked, consumer.unacked_messages) == (2, 2)
    ack_entry(log.cursor, shell.dispatcher, consumer, Position(7, 0), (0b0011,), 4)  # the other half, said by itself
    assert (consumer.messages_acked, consumer.unacked_messages) == (4, 0)
    assert log.cursor.is_acked(Position(7, 0)) and not consumer.pending


def test_ack_of_an_undelivered_entry_moves_only_the_cursor() -> None:
    log = ListLog(1)
    consumer = make_consumer(SHARED, 1)
    ack_entry(log.cursor, None, consumer, Position(7, 0), (), 0)
    assert log.cursor.is_acked(Position(7, 0)) and consumer.messages_acked == 0


def test_a_key_is_free_when_its_entry_is_acked() -> None:
    log = ListLog(1)
    dispatcher = keyed(log)
    shell = Shell(dispatcher, log)
    first = shell.join(make_consumer(KEY_SHARED, 1, permits=1))
    shell.pump()
    assert dispatcher._holders
    ack_entry(log.cursor, dispatcher, first, Position(7, 0), (), 0)
    assert not dispatcher._holders


def test_skip_to_settles_pending_entries_up_to_the_position() -> None:
    log = ListLog(4)
    shell = Shell(shared(log), log)
    one, two = (shell.join(make_consumer(SHARED, number, permits=2)) for number in (1, 2))
    shell.pump()
    skip_to(log.cursor, shell.dispatcher, Position(7, 2))
    assert sorted([*one.pending, *two.pending]) == positions([3])
    assert log.cursor.mark_delete == Position(7, 2)
    assert one.messages_acked == two.messages_acked == 0  # no consumer acknowledged them


def test_removed_entries_are_skipped_up_to_the_first_pending() -> None:
    log = ListLog(6)
    dispatcher = SingleDispatcher(log.cursor, EXCLUSIVE, -1)
    shell = Shell(dispatcher, log)
    consumer = shell.join(make_consumer(EXCLUSIVE, 1, permits=10))
    shell.pump()
    for number in (0, 1):
        consumer.settle(Position(7, number))
    skip_removed(log.cursor, dispatcher, consumer, horizon=Position(7, 4))
    assert log.cursor.mark_delete == Position(7, 1)
    for number in range(2, 6):
        consumer.settle(Position(7, number))
    consumer.lost_track = True
    skip_removed(log.cursor, dispatcher, consumer, horizon=Position(7, 4))
    assert log.cursor.mark_delete == Position(7, 1)  # what it holds is not known
    consumer.lost_track = False
    skip_removed(log.cursor, dispatcher, consumer, horizon=Position(7, 4))
    assert log.cursor.mark_delete == Position(7, 4)


def test_as_many_entries_as_hold_so_many_messages() -> None:
    entries = [StoredEntry(Position(7, number), 3, b"") for number in range(4)]
    assert len(first_entries(entries, 1)) == 1  # at least one
    assert len(first_entries(entries, 3)) == 1
    assert len(first_entries(entries, 4)) == 2  # the last one whole
    assert first_entries(entries, 100) == entries


def test_the_timer_rings_once_for_the_earliest() -> None:
    clock, rung = ManualClock(), list[float]()
    timer, began = DelayTimer(clock, lambda: rung.append(clock.seconds)), clock.seconds
    timer.set(clock.now_ms() + 5_000)
    timer.set(clock.now_ms() + 5_000)
    timer.set(clock.now_ms() + 2_000)
    clock.advance(1)
    assert rung == []
    clock.advance(2)
    clock.advance(10)
    assert rung == [began + 3]
    timer.set(clock.now_ms() + 1_000)
    timer.set(None)
    clock.advance(10)
    timer.set(clock.now_ms() + 1_000)
    timer.stop()
    clock.advance(10)
    assert len(rung) == 1
