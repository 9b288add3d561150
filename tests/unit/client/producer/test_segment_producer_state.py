"""The state of a segment producer: calls in, effects out."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from anabranch.client.config import Batching
from anabranch.client.errors import Closed, MessageTooLarge, QuotaExceeded, TimedOut, refusal
from anabranch.client.messages.outgoing import Entry, EntryFormat, OutgoingMessage
from anabranch.client.producer.open_batch import sealed
from anabranch.client.producer.segment_producer_state import (
    Arm,
    Effect,
    Failed,
    Reconnect,
    SegmentProducerState,
    Stored,
    Transmit,
)
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.entry import checksum_ok, metadata, split_batch
from anabranch.protocol.frames import FRAME_OVERHEAD_MAX, MESSAGE_BYTES_MAX
from anabranch.protocol.keyhash import murmur3_32

ONE_BY_ONE = Batching(max_messages=1)
BY_THREE = Batching(max_messages=3)


def record(n: int, **fields: object) -> OutgoingMessage:
    return OutgoingMessage(n, b"%d" % n, **fields)  # type: ignore[arg-type]  # fields of OutgoingMessage, by name


def sent(effects: object) -> list[list[int]]:
    assert isinstance(effects, list | tuple)
    return [[one.sequence_id for one in e.entry.records] for e in effects if isinstance(e, Transmit)]


def opened(batching: Batching = ONE_BY_ONE, **options: int) -> SegmentProducerState:
    lane = SegmentProducerState("p", batching, **options)
    assert list(lane.opened()) == []
    return lane


def test_full_batch_is_sent_at_once_and_small_one_when_due() -> None:
    lane = opened(BY_THREE)
    assert list(lane.append(record(0))) == [Arm(0)]
    assert list(lane.append(record(1))) == []
    assert sent(lane.append(record(2))) == [[0, 1, 2]]
    assert list(lane.append(record(3))) == [Arm(1)]
    assert list(lane.due(0)) == [], "the timer of a batch that is gone"
    assert sent(lane.due(1)) == [[3]]
    assert list(lane.flush()) == []


def test_batch_is_sealed_before_it_exceeds_its_limit() -> None:
    lane = opened(Batching(max_bytes=300))
    lane.append(OutgoingMessage(0, b"x" * 150))
    assert sent(lane.append(OutgoingMessage(1, b"x" * 100))) == [[0]]
    assert sent(lane.append(OutgoingMessage(2, b"x" * 500))) == [[1], [2]]


def test_join_accepts_messages_only_with_an_open_batch() -> None:
    lane = opened(BY_THREE)
    assert lane.join(b"0", None, 0, 0, "ticket 0", 65) is None, "there is none"
    first = record(1, order=1, ticket="ticket 1", publish_time_ms=7, deadline=9.0)
    lane.append(first)
    assert lane.join(b"2", "key", 2, 2, "ticket 2", 68) == ()
    assert lane.join(b"1", None, 1, 3, None, 65) is None, "the application repeats itself"
    assert lane.join(b"x" * 200_000, None, 3, 3, None, 200_064) is None, "it does not fit"
    (transmit,) = lane.join(b"3", None, 3, 3, "ticket 3", 65) or ()
    assert isinstance(transmit, Transmit)
    entry = transmit.entry
    assert (entry.first, entry.highest, entry.deadline) == (1, 3, 9.0)
    assert [one.data for one in split_batch(entry.data)] == [b"1", b"2", b"3"]
    (stored,) = lane.receipt(1, 5, 6)
    assert isinstance(stored, Stored) and stored.records[0] is first
    assert [(one.sequence_id, one.order, one.ticket) for one in stored.records] == [
        (1, 1, "ticket 1"),
        (2, 2, "ticket 2"),
        (3, 3, "ticket 3"),
    ]
    assert lane.join(b"4", None, 4, 4, None, 65) is None, "a full batch is none that is open"


def test_joined_messages_can_be_taken_as_records() -> None:
    lane = opened(Batching(max_messages=10))
    lane.append(record(0, properties={"a": "b"}, deadline=5.0, publish_time_ms=3))
    lane.join(b"one", "key", 1, 1, "ticket", 70)
    first, second = lane.take_unsent()
    assert (first.properties, second.value, second.key, second.ticket) == ({"a": "b"}, b"one", "key", "ticket")
    assert (second.deadline, second.publish_time_ms, second.size_bytes) == (5.0, 3, 70)
    assert second.hash == murmur3_32("key") and lane.is_idle
    lane.append(first)
    lane.join(b"one", "key", 1, 1, "ticket", 70)
    (late,) = lane.expire(5.0)
    assert isinstance(late, Failed) and [one.ticket for one in late.records] == [None, "ticket"]


def test_receipts_are_in_order_and_late_ones_are_ignored() -> None:
    lane = opened()
    first, second = record(0), record(1)
    lane.append(first)
    lane.append(second)
    (stored,) = lane.receipt(0, 5, 6)
    assert isinstance(stored, Stored) and list(stored.records) == [first]
    assert list(lane.receipt(0, 5, 6)) == []
    assert isinstance(lane.receipt(7, 5, 6)[0], Reconnect)
    (stored,) = lane.receipt(1, 5, 7)
    assert isinstance(stored, Stored) and list(stored.records) == [second] and stored.position == 7
    assert lane.is_idle


def test_entries_are_sent_again_in_order_with_same_bytes_after_loss() -> None:
    lane = opened(BY_THREE)
    first = [effect for n in range(6) for effect in lane.append(record(n)) if isinstance(effect, Transmit)]
    lane.append(record(6))
    lane.receipt(0, 1, 1)
    lane.lost()
    assert sent(lane.flush()) == []
    again = lane.opened()
    assert sent(again) == [[3, 4, 5], [6]]
    assert isinstance(again[0], Transmit) and again[0].entry is first[1].entry


def test_window_bounds_in_flight_bytes_but_allows_one_entry() -> None:
    lane = opened(in_flight_bytes_max=1)
    assert sent(lane.append(record(0))) == [[0]]
    assert sent(lane.append(record(1))) == []
    assert sent(lane.receipt(0, 1, 1)) == [[1]]


def test_expire_fails_the_oldest_and_ignores_their_receipts() -> None:
    lane = opened()
    for n in range(3):
        lane.append(record(n, deadline=10.0 + n))
    assert lane.next_deadline() == 10.0
    (failed,) = lane.expire(11.0)
    assert isinstance(failed, Failed) and isinstance(failed.error, TimedOut)
    assert [one.sequence_id for one in failed.records] == [0, 1]
    assert list(lane.receipt(0, 1, 1)) == list(lane.receipt(1, 1, 2)) == []
    assert isinstance(lane.receipt(2, 1, 3)[0], Stored)
    assert list(lane.expire(99)) == []


def test_expired_message_names_the_reason_why_nothing_was_stored() -> None:
    lane = opened()
    lane.append(record(0, deadline=1.0))
    lane.append(record(1, deadline=2.0))
    full = QuotaExceeded("no space left on the device")
    lane.trouble = full
    lane.lost()
    lane.opened()
    (failed,) = (one for one in lane.expire(1.0) if isinstance(one, Failed))
    assert (failed.error.code, failed.error.__cause__) == ("timeout", full)
    assert failed.error.reason == ("no receipt in time: no space left on the device; the message may be stored or not")
    lane.receipt(1, 1, 1)  # ends it
    lane.append(record(2, deadline=3.0))
    (failed,) = (one for one in lane.expire(3.0) if isinstance(one, Failed))
    assert failed.error.reason == "no receipt in time; the message may be stored or not"


def test_refused_message_fails_alone_terminated_topic_fails_all() -> None:
    lane = opened()
    for n in range(3):
        lane.append(record(n))
    (failed,) = lane.refused(1, refusal(pb.NotAllowedError, "no"))
    assert isinstance(failed, Failed) and [one.sequence_id for one in failed.records] == [1]
    assert isinstance(lane.refused(0, refusal(pb.ServiceNotReady, "later"))[0], Reconnect)
    (rest,) = lane.refused(0, refusal(pb.TopicTerminatedError, "over"))
    assert isinstance(rest, Failed) and [one.sequence_id for one in rest.records] == [0, 2]
    with pytest.raises(type(rest.error)):
        lane.append(record(3))


def test_close_fails_pending_messages_in_order() -> None:
    lane = SegmentProducerState("p", BY_THREE)
    for n in range(5):
        lane.append(record(n))
    (failed,) = lane.fail(Closed("x"))
    assert isinstance(failed, Failed) and [one.sequence_id for one in failed.records] == [0, 1, 2, 3, 4]
    assert lane.is_idle and lane.oldest() == float("inf")


def test_too_large_message_is_refused_without_change() -> None:
    lane = SegmentProducerState("p", BY_THREE)
    lane.opened(message_bytes_max=1000)
    with pytest.raises(MessageTooLarge):
        lane.append(OutgoingMessage(0, b"x" * 1001))
    assert lane.is_idle


def test_message_of_exactly_the_limit_is_sent() -> None:
    """As Pulsar counts: the metadata has its own room in a frame."""
    lane = SegmentProducerState("p", BY_THREE)
    lane.opened(message_bytes_max=1000)
    (effect,) = lane.append(OutgoingMessage(0, b"x" * 1000, "key", {"a": "b"}))
    assert isinstance(effect, Transmit) and len(effect.entry.body) == 1000


def test_metadata_without_room_in_the_frame_counts_as_part_of_the_message() -> None:
    lane = SegmentProducerState("p", BY_THREE)
    lane.opened(message_bytes_max=MESSAGE_BYTES_MAX)
    large = {"a": "b" * FRAME_OVERHEAD_MAX}
    with pytest.raises(MessageTooLarge) as caught:
        lane.append(OutgoingMessage(0, b"x" * MESSAGE_BYTES_MAX, None, large))
    assert MESSAGE_BYTES_MAX - 2000 < caught.value.message_bytes_max < MESSAGE_BYTES_MAX
    (effect,) = lane.append(OutgoingMessage(0, b"x" * caught.value.message_bytes_max, None, large))
    assert isinstance(effect, Transmit)
    assert sum(map(len, effect.entry.frame(1))) <= MESSAGE_BYTES_MAX + FRAME_OVERHEAD_MAX - 400


def test_delayed_message_is_a_separate_entry_in_its_place() -> None:
    lane = opened(BY_THREE)
    lane.append(record(0))
    assert sent(lane.append(record(1, deliver_at_ms=5))) == [[0], [1]]


@pytest.mark.parametrize("count", [1, 2])
def test_entry_decodes_to_what_was_encoded(count: int) -> None:
    records = [
        OutgoingMessage(7, b"one", "k", {"a": "b"}, event_time_ms=9, publish_time_ms=3),
        OutgoingMessage(9, b"two", b"\xff\x00"),
    ][:count]
    entry = sealed(records, EntryFormat("me"))
    of, batch = metadata(entry.data), split_batch(entry.data)
    assert checksum_ok(entry.data)
    assert (of.producer_name, of.sequence_id, of.publish_time) == ("me", 7, 3)
    assert of.HasField("num_messages_in_batch") == (count > 1)
    assert [one.data for one in batch] == [one.value for one in records]
    assert (batch[0].metadata.partition_key, batch[0].metadata.event_time) == ("k", 9)
    assert {pair.key: pair.value for pair in batch[0].metadata.properties} == {"a": "b"}
    if count > 1:
        assert [one.metadata.sequence_id for one in batch] == [7, 9]
        assert batch[1].metadata.partition_key_b64_encoded


@pytest.mark.parametrize("key", [None, "", "customer-1", "日本語" * 60])
def test_codec_writes_the_same_bytes_as_protobuf(key: str | None) -> None:
    entry: Entry = sealed([OutgoingMessage(300, b"x" * 200, key), OutgoingMessage(301, b"", key)], EntryFormat("p"))
    for n, one in enumerate(split_batch(entry.data)):
        expected = pb.SingleMessageMetadata(payload_size=0 if n else 200, sequence_id=300 + n, partition_key=key)
        assert one.metadata == expected


def test_loss_empties_the_window() -> None:
    lane = opened(in_flight_bytes_max=300)
    effects = [effect for n in range(4) for effect in lane.append(OutgoingMessage(n, b"x" * 80))]
    before = sent(effects)
    assert 1 < len(before) < 4
    lane.lost()
    assert sent(lane.opened()) == before


def test_late_receipts_count_until_the_producer_is_reopened() -> None:
    lane = opened()
    for n in range(4):
        lane.append(record(n))
    lane.lost()
    lane.append(record(4))
    assert list(lane.late_receipt(1, 7, 1)) == [], "receipts come in order"
    assert [(one.records[0].sequence_id, one.position) for one in stored(lane.late_receipt(0, 7, 0))] == [(0, 0)]
    assert [(one.records[0].sequence_id, one.position) for one in stored(lane.late_receipt(1, 7, 1))] == [(1, 1)]
    assert list(lane.late_receipt(1, 7, 1)) == [], "it has its outcome"
    assert list(lane.late_receipt(4, 7, 4)) == [], "it was never sent"
    assert sent(lane.opened()) == [[2], [3], [4]]
    assert list(lane.late_receipt(2, 7, 2)) == [], "it is under way again"


def stored(effects: Sequence[Effect]) -> list[Stored]:
    return [one for one in effects if isinstance(one, Stored)]
