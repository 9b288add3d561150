"""One batch per entry bucket: stamps, order of sequence ids, and what a lane takes back of a batch that is half sent.

Keys of Pulsar's vectors, on the low half of the hash: key-1 is in bucket 0, a in 1, my-key in 2, hello in 3.
"""

from __future__ import annotations

from collections.abc import Sequence

from anabranch.client.config import Batching
from anabranch.client.messages.outgoing import Entry, OutgoingMessage
from anabranch.client.producer.bucket_entries import Division
from anabranch.client.producer.segment_producer_state import Effect, SegmentProducerState, Stored, Transmit
from anabranch.model.entry_buckets import EntryBuckets
from anabranch.model.routing import RingHash
from anabranch.model.segment import bucket_splits
from anabranch.protocol.entry import metadata, split_batch
from anabranch.protocol.keyhash import low16, murmur3_32

BUCKETS = EntryBuckets(bucket_splits(4))


def lane_of(*, window: int = 1 << 20, is_named: bool = False, messages: int = 100) -> SegmentProducerState:
    lane = SegmentProducerState("p", Batching(max_messages=messages), in_flight_bytes_max=window)
    lane.division = Division(0, BUCKETS, RingHash.HIGH16, is_named)
    return lane


def record(number: int, key: str | None) -> OutgoingMessage:
    value = f"{key}/{number}".encode()
    return OutgoingMessage(number, value, key, hash=-1 if key is None else murmur3_32(key), order=number)


def sent(effects: Sequence[Effect]) -> list[Entry]:
    return [effect.entry for effect in effects if isinstance(effect, Transmit)]


def messages(entry: Entry) -> list[str]:
    return [one.data.decode() for one in split_batch(entry.data)]


def filled(lane: SegmentProducerState, *keys: str | None) -> list[Entry]:
    effects = [effect for number, key in enumerate(keys) for effect in lane.append(record(number, key))]
    return sent([*effects, *lane.flush()])


def test_every_entry_has_one_bucket_and_the_stamp_of_its_messages() -> None:
    lane = lane_of()
    lane.opened()
    entries = filled(lane, "hello", "key-1", "my-key", "hello", None, "a")
    assert [messages(one) for one in entries] == [["my-key/2"], ["hello/0", "hello/3"], ["key-1/1", "None/4"], ["a/5"]]
    positions = {key: low16(murmur3_32(key)) for key in ("hello", "key-1", "my-key", "a")}
    stamps = [(of.entry_hash_min, of.entry_hash_max) for of in (metadata(one.data) for one in entries)]
    assert stamps == [
        (positions["my-key"],) * 2,
        (positions["hello"],) * 2,
        (0, positions["key-1"]),
        (positions["a"],) * 2,
    ]


def test_entries_are_sent_under_their_highest_ids_in_ascending_order() -> None:
    lane = lane_of()
    lane.opened()
    entries = filled(lane, "hello", "key-1", "hello", "key-1", "hello")
    assert [(one.first, one.highest) for one in entries] == [(3, 3), (4, 4)]
    for one in entries:
        of = metadata(one.data)
        assert (of.sequence_id, of.highest_sequence_id) == (one.highest, one.highest)
    assert [one.sequence_id for one in entries[1].records] == [0, 2, 4]


def test_a_batch_of_one_bucket_keeps_its_lowest_id() -> None:
    lane = lane_of()
    lane.opened()
    (entry,) = filled(lane, "hello", "hello")
    assert (entry.first, entry.highest) == (0, 1)


def test_producers_with_a_given_name_keep_whole_batches_with_a_wide_stamp() -> None:
    lane = lane_of(is_named=True)
    lane.opened()
    (entry,) = filled(lane, "hello", "key-1")
    of = metadata(entry.data)
    assert (entry.first, entry.highest) == (0, 1)
    assert BUCKETS.bucket(of.entry_hash_min) == 0 and BUCKETS.bucket(of.entry_hash_max) == 3


def test_the_oldest_message_may_be_in_a_later_entry() -> None:
    lane = lane_of()
    lane.opened()
    first, _ = filled(lane, "hello", "key-1", "hello")
    assert first.records[0].order == 1
    assert lane.oldest() == 0
    lane.receipt(1, 7, 0)
    assert lane.oldest() == 0
    lane.receipt(2, 7, 1)
    assert lane.oldest() == float("inf")


def test_a_batch_that_is_half_sent_is_not_cut_again() -> None:
    """Ids in its other parts lie below those that were sent: under another highest id the broker would drop them."""
    lane = lane_of(window=1)
    lane.opened()
    (first,) = filled(lane, "hello", "key-1", "hello", "key-1", "hello")
    assert first.highest == 3
    lane.append(record(5, "a"))
    lane.drop_stored(lambda one: one.sequence_id == 4)
    later = [entry for sequence in (3, 4) for entry in sent(lane.receipt(sequence, 7, 0))]
    assert [messages(one) for one in later] == [["hello/0", "hello/2", "hello/4"], ["a/5"]]
    assert [one.highest for one in later] == [4, 5]


def test_messages_remember_the_entry_they_were_sent_in() -> None:
    lane = lane_of(window=1)
    lane.opened()
    filled(lane, "hello", "key-1", "hello")
    taken = lane.take_all()
    assert [one.order for one in taken] == [0, 1, 2]
    under = [one.stored_under and one.stored_under[0] for one in taken]
    assert under[1] == 1
    assert under[0] == under[2] and (under[0] or 0) > 1 << 60, "never sent"


def test_outcomes_follow_the_entries() -> None:
    lane = lane_of()
    lane.opened()
    filled(lane, "hello", "key-1", "hello")
    (stored,) = lane.receipt(1, 7, 3)
    assert isinstance(stored, Stored)
    assert [one.order for one in stored.records] == [1]
    (settled,) = lane.settle(2)
    assert isinstance(settled, Stored)
    assert [one.order for one in settled.records] == [0, 2]
