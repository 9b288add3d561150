"""The three dispatchers, event by event. (What holds for any order of events is in the property tests.)"""

from __future__ import annotations

import pytest

from anabranch.broker.errors import ConsumerAssignFailed, ConsumerBusy
from anabranch.broker.subscription.consumer import Consumer
from anabranch.broker.subscription.dispatcher import ReadForward, ReadThese
from anabranch.broker.subscription.dispatcher_shared import SharedDispatcher
from anabranch.broker.subscription.dispatcher_single_active import SingleDispatcher
from anabranch.model.position import Position
from anabranch.model.subscription_type import SubscriptionType
from anabranch.protocol.commands import BaseCommand
from tests.support.in_memory.broker_fakes import (
    ListLog,
    Shell,
    keyed,
    make_consumer,
    numbers,
    peer_of,
    positions,
    shared,
)

EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED = SubscriptionType


# -- Exclusive and Failover


def single(log: ListLog, kind: SubscriptionType = FAILOVER, partition: int = -1) -> Shell:
    return Shell(SingleDispatcher(log.cursor, kind, partition), log)


def test_nothing_is_wanted_without_a_consumer_or_permits() -> None:
    shell = single(ListLog(3))
    assert shell.dispatcher.wants() is None
    consumer = shell.join(make_consumer(FAILOVER))
    assert shell.dispatcher.wants() is None
    shell.flow(consumer, 1)
    assert shell.dispatcher.wants() == ReadForward(Position(7, 0))


def test_single_delivers_in_order_as_permits_allow() -> None:
    shell = single(ListLog(5))
    consumer = shell.join(make_consumer(FAILOVER, permits=2))
    shell.pump()
    assert numbers(peer_of(consumer).messages()) == [0, 1]
    shell.flow(consumer, 10)
    shell.pump()
    assert numbers(peer_of(consumer).messages()) == [2, 3, 4]
    assert consumer.permits == 7


def test_permits_may_be_overdrawn_by_one_batch() -> None:
    shell = single(ListLog(3, messages=10))
    consumer = shell.join(make_consumer(FAILOVER, permits=1))
    shell.pump()
    assert numbers(peer_of(consumer).messages()) == [0]
    assert consumer.permits == -9
    shell.flow(consumer, 9)
    shell.pump()
    assert peer_of(consumer).messages() == []


def test_second_exclusive_consumer_is_refused() -> None:
    shell = single(ListLog(), EXCLUSIVE)
    shell.join(make_consumer(EXCLUSIVE, 1))
    with pytest.raises(ConsumerBusy):
        shell.join(make_consumer(EXCLUSIVE, 2))
    assert len(shell.dispatcher.consumers) == 1


def test_failover_continues_at_the_first_unacked_entry() -> None:
    log = ListLog(4)
    shell = single(log)
    first, second = (shell.join(make_consumer(FAILOVER, n, permits=10)) for n in (1, 2))
    shell.pump()
    shell.ack(first, Position(7, 0))
    shell.leave(first)
    shell.pump()
    assert numbers(peer_of(second).messages()) == [1, 2, 3]


def test_better_priority_takes_over() -> None:
    shell = single(ListLog(2))
    worse = shell.join(make_consumer(FAILOVER, 1, permits=10, priority=1))
    shell.pump()
    better = shell.join(make_consumer(FAILOVER, 2, permits=10, priority=0))
    shell.pump()
    assert numbers(peer_of(worse).messages()) == [0, 1]
    assert numbers(peer_of(better).messages()) == [0, 1]


def test_redelivery_starts_after_acknowledged_entries() -> None:
    log = ListLog(4)
    shell = single(log, EXCLUSIVE)
    consumer = shell.join(make_consumer(EXCLUSIVE, permits=10))
    shell.pump()
    shell.ack(consumer, Position(7, 0))
    shell.ack(consumer, Position(7, 2))
    shell.dispatcher.redeliver(consumer, [Position(7, 3)])
    shell.pump()
    assert numbers(peer_of(consumer).messages()) == [0, 1, 2, 3, 1, 3]


def test_read_that_ends_after_a_rewind_is_dropped() -> None:
    log = ListLog(3)
    shell = single(log, EXCLUSIVE)
    consumer = shell.join(make_consumer(EXCLUSIVE, permits=10))
    assert shell.begin_read()
    shell.dispatcher.redeliver(consumer, None)
    shell.end_read()
    assert peer_of(consumer).messages() == []
    shell.pump()
    assert numbers(peer_of(consumer).messages()) == [0, 1, 2]


def test_partly_acked_batch_has_its_ack_set_and_fewer_permits() -> None:
    log = ListLog(1, messages=10)
    log.cursor.ack(Position(7, 0), 10, (0b11_0000_0000,), 10)
    shell = single(log)
    consumer = shell.join(make_consumer(FAILOVER, permits=5))
    shell.pump()
    (message,) = peer_of(consumer).bodies(BaseCommand.MESSAGE)
    assert list(message.ack_set) == [0b11_0000_0000]
    assert consumer.permits == 3


# -- Shared


def test_shared_in_turn() -> None:
    log = ListLog(5)
    shell = Shell(shared(log), log)
    one, two = (shell.join(make_consumer(SHARED, n, permits=10)) for n in (1, 2))
    shell.pump()
    assert numbers(peer_of(one).messages()) == [0, 2, 4]
    assert numbers(peer_of(two).messages()) == [1, 3]


def test_shared_prefers_better_priority_while_it_is_ready() -> None:
    log = ListLog(5)
    shell = Shell(shared(log), log)
    spare = shell.join(make_consumer(SHARED, 1, permits=10, priority=2))
    better = shell.join(make_consumer(SHARED, 2, permits=3, priority=1))
    shell.pump()
    assert numbers(peer_of(better).messages()) == [0, 1, 2]
    assert numbers(peer_of(spare).messages()) == [3, 4]


def test_nacked_entries_are_redelivered_before_new_ones() -> None:
    log = ListLog(4)
    shell = Shell(shared(log), log, entries_max=3)
    consumer = shell.join(make_consumer(SHARED, permits=3))
    shell.pump()
    peer_of(consumer).frames()
    shell.dispatcher.redeliver(consumer, positions([2, 0, 99]))
    assert shell.dispatcher.wants() is None
    shell.flow(consumer, 10)
    shell.pump()
    found = peer_of(consumer).bodies(BaseCommand.MESSAGE)
    assert [(body.message_id.entryId, body.redelivery_count) for body in found] == [(0, 1), (2, 1), (3, 0)]


def test_pending_entries_of_a_leaving_consumer_are_redelivered() -> None:
    log = ListLog(2)
    shell = Shell(shared(log), log)
    leaver = shell.join(make_consumer(SHARED, 1, permits=2))
    shell.pump()
    heir = shell.join(make_consumer(SHARED, 2, permits=5))
    shell.leave(leaver)
    shell.pump()
    found = peer_of(heir).bodies(BaseCommand.MESSAGE)
    assert [(body.message_id.entryId, body.redelivery_count) for body in found] == [(0, 1), (1, 1)]


def parts(consumer: Consumer) -> list[tuple[int, int, int]]:
    """What the consumer received: entry, bits of the messages, redelivery count."""
    found = peer_of(consumer).bodies(BaseCommand.MESSAGE)
    return [(one.message_id.entryId, one.ack_set[0] if one.ack_set else 0, one.redelivery_count) for one in found]


def batch_with(*permits: int, messages: int = 4) -> tuple[Shell, list[Consumer]]:
    """A batch that is delivered to the first consumer; the others join afterwards. They nack single messages."""
    log = ListLog(1, messages=messages)
    shell = Shell(shared(log), log)
    consumers: list[Consumer] = []
    for number, count in enumerate(permits):
        consumers.append(shell.join(make_consumer(SHARED, number, permits=count, nacks_messages=True)))
        shell.pump()
    assert parts(consumers[0]) == [(0, 0, 0)]
    return shell, consumers


def part_of(shell: Shell, consumer: Consumer, bits: int, size: int = 4) -> None:
    assert isinstance(shell.dispatcher, SharedDispatcher)
    shell.dispatcher.redeliver_part(consumer, AT, bits, size)
    shell.pump()


AT = Position(7, 0)


def test_nacked_message_of_a_batch_is_delivered_alone() -> None:
    shell, (holder, other) = batch_with(4, 10)
    part_of(shell, holder, 0b0100)
    assert parts(other) == [(0, 0b0100, 1)] and parts(holder) == []
    assert (holder.unacked_messages, other.unacked_messages, other.permits) == (3, 1, 9)
    part_of(shell, other, 0b0100)
    part_of(shell, holder, 0b0001)
    assert parts(other) == [(0, 0b0100, 2), (0, 0b0001, 1)]
    assert other.pending[AT].messages == other.unacked_messages == 2
    shell.ack_part(other, AT, 0b0101, 4)
    assert not other.pending and other.messages_acked == 2 and holder.unacked_messages == 2
    shell.ack_part(holder, AT, 0b1010, 4)
    assert not holder.pending and shell.log.cursor.is_acked(AT)
    assert isinstance(shell.dispatcher, SharedDispatcher)
    assert not shell.dispatcher.redeliveries and shell.dispatcher.divided(AT) is None


def test_messages_of_one_delivery_have_one_count() -> None:
    shell, (holder, other) = batch_with(4, 0)
    part_of(shell, holder, 0b0010)
    part_of(shell, holder, 0b0001)
    shell.flow(other, 10)
    shell.pump()
    assert parts(other) == [(0, 0b0011, 1)], "together, because they were returned equally often"
    other.permits = 0
    part_of(shell, other, 0b0010)
    part_of(shell, holder, 0b0100)
    shell.flow(other, 10)
    shell.pump()
    assert parts(other) == [(0, 0b0100, 1), (0, 0b0010, 2)]


def test_acknowledged_messages_are_not_returned() -> None:
    shell, (holder, other) = batch_with(4, 10)
    shell.ack_part(holder, AT, 0b0011, 4)
    part_of(shell, holder, 0b0001)
    assert parts(other) == [] and holder.unacked_messages == 2
    part_of(shell, holder, 0b0111)
    assert parts(other) == [(0, 0b0100, 1)]
    shell.ack_part(holder, AT, 0b0100, 4)  # late: the other one has it now
    assert not other.pending and holder.unacked_messages == 1


def test_message_acknowledged_while_it_waits_is_not_delivered() -> None:
    shell, (holder, other) = batch_with(4, 0)
    part_of(shell, holder, 0b0110)
    shell.ack_part(holder, AT, 0b0010, 4)
    shell.flow(other, 10)
    shell.pump()
    assert parts(other) == [(0, 0b0100, 1)]


def test_consumer_that_leaves_returns_only_its_messages_and_is_not_counted() -> None:
    shell, (holder, other) = batch_with(4, 10)
    part_of(shell, holder, 0b0100)
    parts(other)
    third = shell.join(make_consumer(SHARED, 3, permits=10, nacks_messages=True))
    shell.leave(holder)
    shell.pump()
    assert parts(other) + parts(third) == [(0, 0b1011, 0)]
    shell.leave(other)
    shell.pump()
    assert (0, 0b0100, 1) in parts(third), "one nack; the departure is not counted"


def lose(shell: Shell, consumer: Consumer) -> None:
    """Its connection ends without a close."""
    consumer.is_lost = True
    shell.leave(consumer)
    shell.pump()


def test_lost_connection_counts_only_messages_that_the_application_had() -> None:
    shell, (holder, other) = batch_with(4, 10)
    holder.handed_out(AT, 0b0011)
    shell.ack_part(holder, AT, 0b0001, 4)
    lose(shell, holder)
    assert parts(other) == [(0, 0b1100, 0), (0, 0b0010, 1)]
    assert not holder.in_hand


def test_close_counts_nothing_that_the_application_had() -> None:
    shell, (holder, other) = batch_with(4, 10)
    holder.handed_out(AT, 0b0011)
    shell.leave(holder)
    shell.pump()
    assert parts(other) == [(0, 0, 0)]


def test_returned_message_is_no_longer_in_hand() -> None:
    shell, (holder, other) = batch_with(4, 0)
    holder.handed_out(AT, 0b0110)
    part_of(shell, holder, 0b0100)
    lose(shell, holder)
    shell.flow(other, 10)
    shell.pump()
    assert parts(other) == [(0, 0b1001, 0), (0, 0b0110, 1)], "one for the nack, one for the lost connection"
    other.handed_out(AT, 0b0100)
    part_of(shell, other, 0b0100)
    assert not other.in_hand


def test_lost_connection_counts_a_single_message_in_hand() -> None:
    log = ListLog(2)
    shell = Shell(shared(log), log)
    holder = shell.join(make_consumer(SHARED, 1, permits=2, nacks_messages=True))
    shell.pump()
    holder.handed_out(AT, 0)
    holder.handed_out(Position(7, 5), 0)  # it does not have that one
    lose(shell, holder)
    other = shell.join(make_consumer(SHARED, 2, permits=9, nacks_messages=True))
    shell.pump()
    assert parts(other) == [(0, 0, 1), (1, 0, 0)]


def test_counts_survive_the_departure_of_all_consumers() -> None:
    shell, (holder,) = batch_with(4)
    part_of(shell, holder, 0b0100)
    shell.leave(holder)
    back = shell.join(make_consumer(SHARED, 9, permits=10, nacks_messages=True))
    shell.pump()
    assert parts(back) == [(0, 0b1011, 0), (0, 0b0100, 1)]


def test_entry_nack_of_a_client_without_message_nacks_returns_what_it_holds() -> None:
    shell, (holder,) = batch_with(4)
    holder.permits = 0
    stock = shell.join(make_consumer(SHARED, 2, permits=10))
    part_of(shell, holder, 0b0100)
    assert parts(stock) == [(0, 0b0100, 1)]
    shell.dispatcher.redeliver(stock, [AT])
    shell.pump()
    assert parts(stock) == [(0, 0b0100, 2)] and holder.unacked_messages == 3


def test_entry_ack_of_a_client_without_message_nacks_covers_what_it_holds() -> None:
    shell, (holder,) = batch_with(4)
    holder.permits = 0
    stock = shell.join(make_consumer(SHARED, 2, permits=10))
    part_of(shell, holder, 0b0100)
    shell.ack(stock, AT)
    assert not shell.log.cursor.is_acked(AT) and shell.log.cursor.ack_set(AT) == (0b1011,)
    assert (stock.unacked_messages, holder.unacked_messages) == (0, 3)


def test_part_goes_to_a_client_that_nacks_messages_if_one_is_ready() -> None:
    shell, (holder,) = batch_with(4)
    stock = shell.join(make_consumer(SHARED, 2, permits=10))
    shell.flow(holder, 2)
    for count in (1, 2):
        part_of(shell, holder, 0b0100)
        assert parts(holder) == [(0, 0b0100, count)]
    part_of(shell, holder, 0b0100)
    assert parts(stock) == [(0, 0b0100, 3)] and parts(holder) == []


def test_part_of_a_batch_of_another_size_returns_the_whole_entry() -> None:
    shell, (holder, other) = batch_with(4, 10)
    part_of(shell, holder, 0b0100, size=5)
    assert parts(other) == [(0, 0, 1)] and not holder.pending


def test_waiting_message_is_delivered_once_if_its_entry_was_read_twice() -> None:
    shell, (holder, other) = batch_with(4, 0)
    holder.permits = 1
    assert isinstance(shell.dispatcher, SharedDispatcher)
    shell.dispatcher.redeliver_part(holder, AT, 0b0001, 4)
    assert shell.begin_read()
    holder.permits = 0  # what was read waits in the buffer
    shell.end_read()
    shell.dispatcher.redeliver_part(holder, AT, 0b1110, 4)
    shell.flow(other, 10)
    shell.pump()
    assert parts(other) == [(0, 0b1111, 1)]


def test_delayed_entries_wait_for_their_time_and_the_others_pass() -> None:
    log = ListLog(3)
    dispatcher = shared(log, delay=lambda entry: 5_000 if entry.position.entry == 1 else 0)
    shell = Shell(dispatcher, log)
    consumer = shell.join(make_consumer(SHARED, permits=10))
    shell.pump()
    assert numbers(peer_of(consumer).messages()) == [0, 2]
    assert dispatcher.delayed.next_ms == 5_000
    assert dispatcher.delayed.due(4_999) == []


def test_consumer_at_unacked_limit_gets_nothing_until_an_ack() -> None:
    log = ListLog(4)
    shell = Shell(shared(log), log)
    consumer = shell.join(make_consumer(SHARED, permits=10, unacked_max=2))
    shell.pump()
    assert numbers(peer_of(consumer).messages()) == [0, 1]
    shell.ack(consumer, Position(7, 1))
    shell.pump()
    assert numbers(peer_of(consumer).messages()) == [2]


def test_subscription_at_its_unacked_limit_stops_reading() -> None:
    log = ListLog(9)
    dispatcher = shared(log, unacked_max=3)
    shell = Shell(dispatcher, log)
    one, two = (shell.join(make_consumer(SHARED, n, permits=10)) for n in (1, 2))
    shell.pump()
    assert one.unacked_messages + two.unacked_messages == 3
    assert dispatcher.wants() is None


def test_key_shared_pauses_at_its_unacked_limit() -> None:
    log = ListLog(9)
    dispatcher = keyed(log, unacked_max=3)
    shell = Shell(dispatcher, log)
    members = [shell.join(make_consumer(KEY_SHARED, number, permits=10)) for number in (1, 2)]
    shell.pump()
    assert sum(one.unacked_messages for one in members) == 3
    assert dispatcher.wants() is None
    for _ in range(9):
        held = [(one, position) for one in members for position in list(one.pending)]
        for one, position in held:
            shell.ack(one, position)
        shell.pump()
        assert sum(one.unacked_messages for one in members) <= 3
    assert sum(one.messages_out for one in members) == 9


def test_failed_replay_read_is_asked_for_again() -> None:
    log = ListLog(2)
    shell = Shell(shared(log), log)
    consumer = shell.join(make_consumer(SHARED, permits=10))
    shell.pump()
    shell.dispatcher.redeliver(consumer, None)
    want = shell.dispatcher.wants()
    assert want == ReadThese(tuple(positions([0, 1])))
    shell.dispatcher.give_back(want)
    assert shell.dispatcher.wants() == want


# -- Key_Shared


def test_one_slot_stays_with_its_owner_until_all_is_acked() -> None:
    log = ListLog(2)
    dispatcher = keyed(log, slots=1)
    shell = Shell(dispatcher, log)
    first = shell.join(make_consumer(KEY_SHARED, 1, permits=10))
    shell.pump()
    number, second = 2, first
    while dispatcher.owner(0) is first:  # until a consumer joins that takes the slot over
        second = shell.join(make_consumer(KEY_SHARED, number, permits=10))
        number += 1
    second = dispatcher.owner(0) or second
    log.append(1)
    shell.pump()
    assert peer_of(second).messages() == [], "the former owner still holds entries of the slot"
    shell.ack(first, Position(7, 0))
    shell.pump()
    assert peer_of(second).messages() == []
    shell.ack(first, Position(7, 1))
    shell.pump()
    assert numbers(peer_of(second).messages()) == [2]


def test_out_of_order_option_does_not_wait() -> None:
    log = ListLog(1)
    dispatcher = keyed(log, slots=1, allow_out_of_order=True)
    shell = Shell(dispatcher, log)
    first = shell.join(make_consumer(KEY_SHARED, 1, permits=10, allow_out_of_order=True))
    shell.pump()
    number = 2
    while dispatcher.owner(0) is first:
        shell.join(make_consumer(KEY_SHARED, number, permits=10, allow_out_of_order=True))
        number += 1
    log.append(1)
    shell.pump()
    owner = dispatcher.owner(0)
    assert owner is not None
    assert numbers(peer_of(owner).messages()) == [1]


def test_a_full_consumer_does_not_stop_the_slots_of_others() -> None:
    log = ListLog(8)
    dispatcher = keyed(log, slots=2, sticky=True)
    shell = Shell(dispatcher, log)
    full = shell.join(make_consumer(KEY_SHARED, 1, permits=1, ranges=((0, 32_767),)))
    free = shell.join(make_consumer(KEY_SHARED, 2, permits=10, ranges=((32_768, 65_535),)))
    shell.pump()
    assert numbers(peer_of(full).messages()) == [0]
    assert numbers(peer_of(free).messages()) == [1, 3, 5, 7]
    shell.flow(full, 10)
    shell.pump()
    assert numbers(peer_of(full).messages()) == [2, 4, 6]


def test_reading_ahead_is_bounded() -> None:
    log = ListLog(100)
    dispatcher = keyed(log, slots=2, sticky=True, lookahead_max=5)
    shell = Shell(dispatcher, log, entries_max=2)
    shell.join(make_consumer(KEY_SHARED, 1, permits=10, ranges=((32_768, 65_535),)))
    shell.pump()
    assert dispatcher.read_position.entry <= 12


def test_undeclared_slots_wait_for_an_owner() -> None:
    log = ListLog(2)
    shell = Shell(keyed(log, slots=2, sticky=True), log)
    shell.join(make_consumer(KEY_SHARED, 1, permits=10, ranges=((32_768, 65_535),)))
    shell.pump()
    late = shell.join(make_consumer(KEY_SHARED, 2, permits=10, ranges=((0, 5),)))
    shell.pump()
    assert numbers(peer_of(late).messages()) == [0]


def test_entries_missing_in_the_log_do_not_block_their_slot() -> None:
    log = ListLog(3)
    dispatcher = keyed(log, slots=1)
    shell = Shell(dispatcher, log)
    consumer = shell.join(make_consumer(KEY_SHARED, permits=10))
    shell.pump()
    dispatcher.redeliver(consumer, None)
    want = dispatcher.wants()
    assert isinstance(want, ReadThese)
    peer_of(consumer).frames()
    dispatcher.offer(want, [log.entries[2]])
    shell.pump()
    assert numbers(peer_of(consumer).messages()) == [2]
    assert dispatcher.redeliveries == {Position(7, 2): 1}


def test_mixed_policies_are_refused() -> None:
    log = ListLog()
    shell = Shell(keyed(log, sticky=True), log)
    shell.join(make_consumer(KEY_SHARED, 1, ranges=((0, 10),)))
    with pytest.raises(ConsumerBusy):
        shell.join(make_consumer(KEY_SHARED, 2))
    with pytest.raises(ConsumerBusy):
        shell.join(make_consumer(KEY_SHARED, 2, ranges=((20, 30),), allow_out_of_order=True))
    with pytest.raises(ConsumerAssignFailed):
        shell.join(make_consumer(KEY_SHARED, 2, ranges=((5, 30),)))
    assert len(shell.dispatcher.consumers) == 1


def test_key_shared_delays_an_entry_and_delivers_later_ones_of_its_slot() -> None:
    log = ListLog(3)
    dispatcher = keyed(log, delay=lambda entry: 5_000 if entry.position.entry == 0 else 0)
    shell = Shell(dispatcher, log)
    consumer = shell.join(make_consumer(KEY_SHARED, permits=10))
    shell.pump()
    assert numbers(peer_of(consumer).messages()) == [1, 2]
    assert dispatcher.delayed.due(4_999) == []
    dispatcher.release(dispatcher.delayed.due(5_000))
    shell.pump()
    assert numbers(peer_of(consumer).messages()) == [0]


def test_key_shared_delayed_entry_that_is_due_waits_for_the_former_owner() -> None:
    log = ListLog(2)
    dispatcher = keyed(log, delay=lambda entry: 5_000 if entry.position.entry == 0 else 0)
    shell = Shell(dispatcher, log)
    first = shell.join(make_consumer(KEY_SHARED, 1, permits=10))
    shell.pump()
    number, second = 2, first
    while dispatcher.owner(0) is first:  # until a consumer joins that takes the slot over
        second = shell.join(make_consumer(KEY_SHARED, number, permits=10))
        number += 1
    second = dispatcher.owner(0) or second
    dispatcher.release(dispatcher.delayed.due(5_000))
    shell.pump()
    assert peer_of(second).messages() == []
    shell.ack(first, Position(7, 1))
    shell.pump()
    assert numbers(peer_of(second).messages()) == [0]


def test_key_shared_stops_reading_when_too_many_entries_are_delayed() -> None:
    log = ListLog(10)
    dispatcher = keyed(log, delay=lambda entry: 5_000, delayed_max=3)
    shell = Shell(dispatcher, log, entries_max=1)
    shell.join(make_consumer(KEY_SHARED, permits=10))
    shell.pump()
    assert dispatcher.read_position == Position(7, 3)
    dispatcher.release(dispatcher.delayed.due(5_000))
    assert isinstance(dispatcher.wants(), ReadThese)


def test_key_shared_delayed_entry_is_read_again_after_all_consumers_left() -> None:
    log = ListLog(1)
    dispatcher = keyed(log, delay=lambda entry: 5_000)
    shell = Shell(dispatcher, log)
    shell.leave(shell.join(make_consumer(KEY_SHARED, 1, permits=10)))
    consumer = shell.join(make_consumer(KEY_SHARED, 2, permits=10))
    shell.pump()
    assert len(dispatcher.delayed) == 1
    dispatcher.release(dispatcher.delayed.due(5_000))
    shell.pump()
    assert numbers(peer_of(consumer).messages()) == [0]


def test_key_shared_names_ranges_and_slots_that_drain() -> None:
    log = ListLog(2)
    dispatcher = keyed(log, slots=1)
    shell = Shell(dispatcher, log)
    first = shell.join(make_consumer(KEY_SHARED, 1, permits=10))
    assert dispatcher.ranges() == {first: [(0, 65_535)]}
    shell.pump()
    number, second = 2, first
    while dispatcher.owner(0) is first:  # until a consumer joins that takes the slot over
        second = shell.join(make_consumer(KEY_SHARED, number, permits=10))
        number += 1
    second = dispatcher.owner(0) or second
    log.append(1)
    shell.pump()
    draining = dispatcher.draining()
    assert (draining[first], draining[second]) == ([(0, 2, 1)], [])
    for consumer, owned in dispatcher.ranges().items():
        for start, end in owned:
            assert dispatcher.owner(start) is dispatcher.owner(end) is consumer
    spans = sorted(span for owned in dispatcher.ranges().values() for span in owned)
    assert [slot for span in spans for slot in range(span[0], span[1] + 1)] == list(range(65_536))
    shell.ack(first, Position(7, 0))
    shell.ack(first, Position(7, 1))
    assert not any(dispatcher.draining().values())


def test_sticky_ranges_are_shown_as_declared() -> None:
    log = ListLog(0)
    dispatcher = keyed(log, sticky=True)
    consumer = Shell(dispatcher, log).join(make_consumer(KEY_SHARED, 1, ranges=((0, 10), (20, 30))))
    assert dispatcher.ranges() == {consumer: [(0, 10), (20, 30)]}
