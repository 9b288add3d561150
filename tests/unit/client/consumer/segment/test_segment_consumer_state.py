"""The consumer of one partition: deliveries, permits, acks, redelivery."""

from __future__ import annotations

from collections.abc import Sequence

from anabranch.client.consumer.segment.effects import Ack, Deliver, Effect, Flow, Redeliver, Reject
from anabranch.client.consumer.segment.segment_consumer_state import SegmentConsumerState
from anabranch.client.messages.message import Message
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.entry import build_batch, build_entry

TOPIC = "persistent://public/default/t"


def body(entry: int, *, ack_set: Sequence[int] = (), redeliveries: int = 0) -> pb.CommandMessage:
    return pb.CommandMessage(
        consumer_id=1,
        message_id=pb.MessageIdData(ledgerId=3, entryId=entry),
        ack_set=ack_set,
        redelivery_count=redeliveries,
    )


def batch(count: int) -> bytes:
    return build_batch([b"%d" % n for n in range(count)], keys=["k"] * count)


def opened(prefetch: int = 10) -> SegmentConsumerState:
    state = SegmentConsumerState(TOPIC, prefetch=prefetch)
    assert state.opened() == [Flow(prefetch)]
    return state


def delivered(effects: Sequence[Effect]) -> list[Message]:
    return [message for effect in effects if isinstance(effect, Deliver) for message in effect.messages]


def acks(effects: Sequence[Effect]) -> list[tuple[int, list[int]]]:
    return [(one.entryId, list(one.ack_set)) for effect in effects if isinstance(effect, Ack) for one in effect.ids]


def test_a_batch_becomes_messages() -> None:
    messages = delivered(opened().delivered(body(7, redeliveries=2), batch(3)))
    assert [message.value for message in messages] == [b"0", b"1", b"2"]
    assert [(one.id.ledger, one.id.entry, one.id.batch_index, one.id.batch_size) for one in messages] == [
        (3, 7, 0, 3),
        (3, 7, 1, 3),
        (3, 7, 2, 3),
    ]
    assert {message.redelivery_count for message in messages} == {2}
    assert {message.key for message in messages} == {"k"}
    (single,) = delivered(opened().delivered(body(8), build_entry(b"x")))
    assert (single.id.batch_index, single.key) == (-1, None)


def test_queued_acks_are_applied_together() -> None:
    state = opened(prefetch=20)
    first = delivered(state.delivered(body(0), batch(5)))
    second = delivered(state.delivered(body(1), batch(3)))
    (single,) = delivered(state.delivered(body(2), build_entry(b"x")))
    for message in (first[0], first[1], first[1], second[1], single, first[4], second[0], second[2], first[3]):
        state.ack_later(message.origin, message.batch_index)
    assert not state.is_clean
    assert acks(state.flush()) == [(0, [0b00100]), (1, []), (2, [])]
    assert delivered(state.delivered(body(0), batch(5))) == [], "it is held or acknowledged"
    state.ack_later(first[2].id, 2)
    state.lost([])
    assert state.opened()[:1] == [Ack(2, intake_ids(0, 1, 2))], "all that was not confirmed, in one"


def test_redelivery_applies_queued_acks_first() -> None:
    state = opened()
    messages = delivered(state.delivered(body(0), batch(2)))
    state.ack_later(messages[0].origin, 0)
    assert [one for one in state.release([messages[1].id]) if isinstance(one, Redeliver)]
    (again,) = delivered(state.delivered(body(0, redeliveries=1), batch(2)))
    assert again.value == b"1"


def intake_ids(*entries: int) -> list[pb.MessageIdData]:
    return [pb.MessageIdData(ledgerId=3, entryId=entry) for entry in entries]


def test_permits_are_sent_half_a_window_at_a_time() -> None:
    state = opened(prefetch=4)
    delivered(state.delivered(body(0), batch(4)))
    assert state.taken() == []
    assert state.taken() == [Flow(2)]
    assert state.taken() == []


def test_acked_batch_indexes_are_skipped_and_use_no_permits() -> None:
    state = opened(prefetch=2)
    effects = state.delivered(body(0, ack_set=[0b101]), batch(3))
    assert [message.value for message in delivered(effects)] == [b"0", b"2"]
    assert state.taken(2) == [Flow(2)], "the skipped one took no permit"


def test_batch_is_acked_by_index_until_complete() -> None:
    state = opened()
    messages = delivered(state.delivered(body(5), batch(3)))
    assert state.ack(messages[1].id)
    assert not state.ack(messages[1].id)
    assert acks(state.flush()) == [(5, [0b101])]
    assert state.ack(messages[0].id) and state.ack(messages[2].id)
    assert acks(state.flush()) == [(5, [])]
    assert state.flush() == []


def test_only_unconfirmed_acks_are_sent_again() -> None:
    state = opened()
    for entry in (1, 2):
        (message,) = delivered(state.delivered(body(entry), build_entry(b"x")))
        state.ack(message.id)
        state.flush()
    state.confirmed(1)
    state.lost([])
    assert not state.is_clean
    assert acks(state.opened()) == [(2, [])]
    state.confirmed(3)
    assert state.is_clean


def test_acks_wait_while_detached_and_drop_redeliveries() -> None:
    state = opened()
    (message,) = delivered(state.delivered(body(1), build_entry(b"x")))
    state.lost([])
    assert state.ack(message.id)
    assert state.flush() == []
    assert acks(state.opened()) == [(1, [])]
    assert delivered(state.delivered(body(1), build_entry(b"x"))) == []


def test_after_reconnect_only_buffered_messages_are_delivered_again() -> None:
    state = opened()
    messages = delivered(state.delivered(body(1), batch(3)))
    state.lost([messages[2].id])  # 0 and 1 are with the application
    state.opened()
    assert [message.value for message in delivered(state.delivered(body(1), batch(3)))] == [b"2"]


def test_nacked_message_is_redelivered_alone() -> None:
    state = opened()
    messages = delivered(state.delivered(body(1), batch(3)))
    state.ack(messages[0].id)
    effects = state.release([messages[1].id])
    assert acks(effects) == [(1, [0b110])], "acks first: what is acked shall not come again"
    assert isinstance(effects[-1], Redeliver) and [one.entryId for one in effects[-1].ids] == [1]
    assert [m.value for m in delivered(state.delivered(body(1, ack_set=[0b110]), batch(3)))] == [b"1"]
    assert state.release([messages[0].id]) == [], "acked is acked"


def test_cumulative_acks_inside_and_at_the_end_of_a_batch() -> None:
    state = opened()
    delivered(state.delivered(body(1), batch(3)))
    messages = delivered(state.delivered(body(2), batch(3)))
    assert state.ack_cumulative(messages[1].id)
    (ack,) = state.flush()
    assert isinstance(ack, Ack) and ack.is_cumulative
    assert acks([ack]) == [(2, [0b100])]
    assert not state.ack_cumulative(messages[0].id), "never backwards"
    assert state.ack_cumulative(messages[2].id)
    state.lost([])
    assert acks(state.opened()) == [(2, [])], "only the newest is said again"
    assert delivered(state.delivered(body(1), batch(3))) == []
    assert delivered(state.delivered(body(2), batch(3))) == []


def test_unreadable_entry_is_rejected_and_returns_its_permit() -> None:
    state = opened(prefetch=1)
    damaged = bytearray(build_entry(b"x"))
    damaged[-1] ^= 1
    reject, flow = state.delivered(body(1), bytes(damaged))
    assert isinstance(reject, Reject) and "checksum" in reject.reason
    assert flow == Flow(1)


def test_ack_set_of_large_batch_has_several_words() -> None:
    state = opened(prefetch=1000)
    messages = delivered(state.delivered(body(1), batch(130)))
    for message in messages[1:]:
        state.ack(message.id)
    assert acks(state.flush()) == [(1, [1, 0, 0])]
    again = state.delivered(body(1, ack_set=[1, 0, 0]), batch(130))
    assert delivered(again) == []  # it is held


def test_dropped_messages_return_their_permits() -> None:
    state = opened(prefetch=4)
    for entry in range(4):
        delivered(state.delivered(body(entry), build_entry(b"x")))
    state.taken(4)
    state.lost([])
    state.opened()
    effects = [effect for entry in range(4) for effect in state.delivered(body(entry), build_entry(b"x"))]
    assert effects == [Flow(2), Flow(2)]


def test_permits_start_at_zero_after_each_attach() -> None:
    state = opened(prefetch=4)
    state.taken()
    state.lost([])
    assert state.opened() == [Flow(4)]
    assert state.taken() == []
    assert state.taken() == [Flow(2)]


def test_acked_message_is_dropped_until_confirmed_then_delivered_after_seek() -> None:
    """Scenario 73: only a seek brings back what the broker has confirmed."""
    state = opened()
    first, second = delivered(state.delivered(body(0), batch(2)))
    assert state.ack_cumulative(second.id)
    assert state.flush()
    state.lost([])
    said = state.opened()
    assert delivered(state.delivered(body(0), batch(2))) == [], "the ack may not have arrived"
    for effect in [*said, *state.flush()]:
        if isinstance(effect, Ack):
            state.confirmed(effect.number)
    assert state.is_clean
    assert state.is_covered(first.id)
    state.lost([])
    state.opened()
    again = delivered(state.delivered(body(0), batch(2)))
    assert [one.id for one in again] == [first.id, second.id]


def test_ack_that_is_answered_after_the_consumer_was_closed_is_not_sent_again() -> None:
    """A seek closes the consumer while an ack is under way. Sent again, the ack would undo the seek."""
    state = opened()
    first, second = delivered(state.delivered(body(0), batch(2)))
    assert state.ack_cumulative(second.id)
    (ack,) = [effect for effect in state.flush() if isinstance(effect, Ack)]
    state.lost([])
    state.confirmed(ack.number)
    assert acks(state.opened()) == []
    assert state.is_clean
    again = delivered(state.delivered(body(0), batch(2)))
    assert [one.id for one in again] == [first.id, second.id]


def test_ack_that_a_closed_consumer_is_refused_is_sent_again() -> None:
    state = opened()
    (message,) = delivered(state.delivered(body(0), build_entry(b"x")))
    state.ack(message.id)
    (ack,) = [effect for effect in state.flush() if isinstance(effect, Ack)]
    assert state.awaits(ack.number)
    state.lost([])
    state.refused(ack.number)
    assert acks(state.opened()) == [(0, [])]
    assert not state.awaits(ack.number) and state.awaits(ack.number + 1)


def test_individual_ack_that_a_cumulative_one_covers_is_not_sent_again() -> None:
    state = opened()
    (first,) = delivered(state.delivered(body(0), build_entry(b"x")))
    (second,) = delivered(state.delivered(body(1), build_entry(b"x")))
    state.ack(first.id)
    state.flush()
    state.ack_cumulative(second.id)
    state.lost([])
    assert acks(state.opened()) == [(1, [])]


def test_partial_batch_ack_survives_a_reconnect() -> None:
    state = opened()
    first, second = delivered(state.delivered(body(0), batch(2)))
    assert state.ack_cumulative(first.id)
    (ack,) = [effect for effect in state.flush() if isinstance(effect, Ack)]
    state.confirmed(ack.number)
    state.lost([second.id])
    state.opened()
    assert [one.id for one in delivered(state.delivered(body(0), batch(2)))] == [second.id]


def test_held_acks_are_sent_when_the_hold_ends() -> None:
    state = opened()
    (message,) = delivered(state.delivered(body(0), build_entry(b"x")))
    assert state.hold_acks(True) == []
    assert state.ack_cumulative(message.id)
    assert state.flush() == []
    state.lost([])
    assert acks(state.opened()) == [], "also not after a reconnect"
    assert acks(state.hold_acks(False)) == [(0, [])]


def test_segment_is_settled_when_the_ack_of_its_last_message_is_confirmed() -> None:
    state = opened()
    messages = delivered(state.delivered(body(4), batch(3)))
    state.ack_cumulative(messages[1].id)
    (first,) = state.flush()
    assert isinstance(first, Ack)
    state.confirmed(first.number)
    assert not state.is_settled((3, 4)), "one message of the last batch is missing"
    assert state.ack_to_end((3, 4))
    (last,) = state.flush()
    assert isinstance(last, Ack)
    assert acks([last]) == [(4, [])]
    assert not state.is_settled((3, 4)), "not confirmed"
    state.confirmed(last.number)
    assert state.is_settled((3, 4))
    assert not state.ack_to_end((3, 4))


def test_ack_to_the_end_covers_messages_that_did_not_arrive() -> None:
    state = opened()
    delivered(state.delivered(body(0), build_entry(b"x")))
    assert state.ack_to_end((3, 9))
    assert acks(state.flush()) == [(9, [])]
    assert delivered(state.delivered(body(5), batch(3))) == []


def test_refused_ack_does_not_settle_the_segment() -> None:
    state = opened()
    (message,) = delivered(state.delivered(body(0), build_entry(b"x")))
    state.ack_cumulative(message.id)
    (said,) = state.flush()
    assert isinstance(said, Ack)
    state.refused(said.number)
    assert state.is_clean
    assert not state.is_settled((3, 0))


def test_lost_ack_does_not_settle_the_segment_until_it_was_sent_again() -> None:
    state = opened()
    (message,) = delivered(state.delivered(body(0), build_entry(b"x")))
    state.ack_cumulative(message.id)
    state.flush()
    state.lost([])
    assert not state.is_settled((3, 0))
    again = state.opened()[0]
    assert isinstance(again, Ack)
    state.confirmed(again.number)
    assert state.is_settled((3, 0))


def test_segment_is_received_when_its_last_entry_arrived_and_nothing_waits() -> None:
    state = opened()
    state.delivered(body(0), batch(2))
    state.delivered(body(1), b"not an entry")  # the last one: it is rejected
    assert not state.has_received((3, 1)), "two messages wait for the application"
    state.taken(2)
    assert state.has_received((3, 1))
    state.lost([])
    assert not state.has_received((3, 1)), "what waited is sent again"


def test_unacknowledged_counts_messages_of_partly_acknowledged_batches() -> None:
    state = opened()
    messages = delivered(state.delivered(body(0), batch(3)))
    delivered(state.delivered(body(1), batch(2)))
    state.taken(5)
    state.ack_cumulative(messages[0].id)
    assert state.unacknowledged == 4
    state.ack_to_end((3, 1))
    assert state.unacknowledged == 0


def test_reader_that_attaches_again_after_its_ack_gets_no_message_twice() -> None:
    state = opened()
    messages = delivered(state.delivered(body(0), batch(3)))
    state.taken(3)
    state.ack_cumulative(messages[-1].id)
    (ack,) = [one for one in state.flush() if isinstance(one, Ack)]
    state.confirmed(ack.number)
    state.lost([])
    state.start_after(messages[-1].id)
    state.opened()
    assert delivered(state.delivered(body(0), batch(3))) == [], "the broker starts at the entry of the last message"
    assert len(delivered(state.delivered(body(1), batch(2)))) == 2
