"""Chunked messages: cut by the producer, assembled by the consumer, acknowledged and redelivered as one."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence

import pytest

from anabranch.client.config import Batching
from anabranch.client.consumer.segment.effects import Ack, Deliver, Effect, Flow, Redeliver, Reject
from anabranch.client.consumer.segment.segment_consumer_state import SegmentConsumerState
from anabranch.client.errors import MessageTooLarge, TimedOut, refusal
from anabranch.client.messages.chunking import ChunkAssembly, CompleteMessage, entries_of
from anabranch.client.messages.compression import Compression
from anabranch.client.messages.message import Message
from anabranch.client.messages.outgoing import Entry, EntryFormat, OutgoingMessage
from anabranch.client.producer.segment_producer_state import Credits, Failed, SegmentProducerState, Stored, Transmit
from anabranch.client.producer.segment_producer_state import Effect as LaneEffect
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.entry import build_batch, build_entry, metadata, parts

MAX = 1000
CHUNKED = EntryFormat("p", chunk_bytes=10_000)


def cut(value: bytes, *, sequence: int = 7, entry_format: EntryFormat = CHUNKED) -> list[Entry]:
    return entries_of(OutgoingMessage(sequence, value, "k", {"a": "b"}), entry_format, MAX)


def body(entry: int, redeliveries: int = 0) -> pb.CommandMessage:
    identity = pb.MessageIdData(ledgerId=3, entryId=entry)
    return pb.CommandMessage(consumer_id=1, message_id=identity, redelivery_count=redeliveries)


def opened(*, is_shared: bool = False) -> SegmentConsumerState:
    state = SegmentConsumerState("t", prefetch=100, is_shared=is_shared)
    assert state.opened() == [Flow(100)]
    return state


def delivered(effects: Sequence[Effect]) -> list[Message]:
    return [message for effect in effects if isinstance(effect, Deliver) for message in effect.messages]


def ids(effects: Sequence[Effect], kind: type[Ack] | type[Redeliver]) -> list[int]:
    return [one.entryId for effect in effects if isinstance(effect, kind) for one in effect.ids]


# ----------------------------------------------------------------------------------------------------------- cutting


def test_chunks_fit_the_limit_and_name_their_message() -> None:
    value = os.urandom(5000)
    entries = cut(value)
    assert all(len(entry.data) <= MAX for entry in entries)
    every = [metadata(entry.data) for entry in entries]
    assert [one.chunk_id for one in every] == list(range(len(entries)))
    assert {(one.uuid, one.sequence_id, one.total_chunk_msg_size) for one in every} == {("p-7", 7, 5000)}
    assert {one.num_chunks_from_msg for one in every} == {len(entries)}
    assert {one.partition_key for one in every} == {"k"}
    assert [len(entry.records) for entry in entries] == [0] * (len(entries) - 1) + [1]
    assert b"".join(bytes(parts(entry.data)[1]) for entry in entries) == value


def test_message_small_enough_after_compression_is_not_chunked() -> None:
    (entry,) = cut(b"x" * 50_000, entry_format=EntryFormat("p", Compression.ZSTD))
    assert (entry.is_chunk, len(entry.records)) == (False, 1)
    assert len(entry.data) < MAX


def test_without_chunking_a_large_message_is_refused() -> None:
    with pytest.raises(MessageTooLarge):
        cut(os.urandom(5000), entry_format=EntryFormat("p", Compression.ZSTD))


def lane_with_chunks(value: bytes, **options: int) -> tuple[SegmentProducerState, OutgoingMessage, list[Entry]]:
    lane = SegmentProducerState(CHUNKED, Batching(max_messages=3), **options)
    lane.opened(message_bytes_max=MAX)
    record = OutgoingMessage(1, value, deadline=10.0)
    lane.append(OutgoingMessage(0, b"before"))
    effects = lane.append(record)
    return lane, record, [one.entry for one in effects if isinstance(one, Transmit)]


def stored(effects: Sequence[LaneEffect]) -> list[tuple[list[OutgoingMessage], int, int]]:
    return [([*one.records], one.ledger, one.position) for one in effects if isinstance(one, Stored)]


def test_segment_producer_sends_chunks_in_a_row_with_one_outcome() -> None:
    lane, record, sent = lane_with_chunks(os.urandom(2500))
    assert [entry.first for entry in sent] == [0, 1, 1, 1, 1][: len(sent)]
    assert len(sent) >= 4
    outcomes = [effect for place, entry in enumerate(sent) for effect in lane.receipt(entry.first, 5, place)]
    assert stored(outcomes) == [([sent[0].records[0]], 5, 0), ([record], 5, len(sent) - 1)]
    assert lane.is_idle


def test_chunks_without_receipt_are_resent_after_a_loss() -> None:
    lane, _, sent = lane_with_chunks(os.urandom(2500))
    lane.receipt(0, 5, 0)
    lane.receipt(1, 5, 1)
    lane.lost()
    again = [one.entry for one in lane.opened(MAX) if isinstance(one, Transmit)]
    assert again == sent[2:]


def test_refused_chunk_fails_only_its_message() -> None:
    lane, record, _ = lane_with_chunks(os.urandom(5000), in_flight_bytes_max=2200)
    after = OutgoingMessage(2, b"after")
    lane.append(after)
    lane.flush()
    effects = lane.refused(1, refusal(pb.NotAllowedError, "no"))
    assert [effect.records for effect in effects if isinstance(effect, Failed)] == [[record]]
    assert [[*one.entry.records] for one in effects if isinstance(one, Transmit)] == [[after]]


def test_chunked_message_past_its_deadline_fails_once() -> None:
    lane, record, _ = lane_with_chunks(os.urandom(5000), in_flight_bytes_max=2200)
    lane.receipt(0, 5, 0)
    lane.receipt(1, 5, 1)
    (failed,) = lane.expire(11.0)
    assert isinstance(failed, Failed) and failed.records == [record] and isinstance(failed.error, TimedOut)
    assert lane.is_idle


def test_refused_batch_is_found_by_its_highest_sequence_id() -> None:
    """Brokers name the highest sequence id of what they refuse."""
    lane = SegmentProducerState("p", Batching(max_messages=2))
    lane.opened()
    pair = [OutgoingMessage(0, b"a"), OutgoingMessage(1, b"b")]
    for one in pair:
        lane.append(one)
    (failed,) = lane.refused(1, refusal(pb.NotAllowedError, "no"))
    assert isinstance(failed, Failed) and failed.records == pair


def test_segment_producer_stops_without_credits() -> None:
    lane = SegmentProducerState("p", Batching(max_messages=1))
    lane.opened(credits=Credits(10_000, 2))
    sent = [one for n in range(4) for one in lane.append(OutgoingMessage(n, b"x")) if isinstance(one, Transmit)]
    assert [one.entry.first for one in sent] == [0, 1]
    assert [one for one in lane.receipt(0, 5, 0) if isinstance(one, Transmit)] == [], "it returned no credits"
    lane.credited(len(sent[0].entry.data), 1)
    assert [one.entry.first for one in lane.receipt(1, 5, 1) if isinstance(one, Transmit)] == [2]
    effects = lane.refused(2, refusal(pb.NotAllowedError, "no"))
    assert [one.entry.first for one in effects if isinstance(one, Transmit)] == [3], "a refusal returns credits, too"


# --------------------------------------------------------------------------------------------------- putting together


def test_chunks_become_one_message_with_one_permit() -> None:
    value = os.urandom(5000)
    state = opened()
    entries = cut(value)
    for number, entry in enumerate(entries[:-1]):
        assert state.delivered(body(number), entry.data) == []
    (message,) = delivered(state.delivered(body(len(entries) - 1), entries[-1].data))
    assert (message.value, message.key, message.properties, message.sequence_id) == (value, "k", {"a": "b"}, 7)
    assert message.id.entry == len(entries) - 1
    assert state.ack(message.id)
    assert sorted(ids(state.flush(), Ack)) == list(range(len(entries))), "every chunk is acknowledged"


@pytest.mark.parametrize("kind", [Compression.ZSTD, Compression.ZLIB])
def test_compressed_message_is_decompressed_when_complete(kind: Compression) -> None:
    value = random.Random(1).randbytes(6000) + bytes(6000)
    entries = cut(value, entry_format=EntryFormat("p", kind, chunk_bytes=800))
    assert len(entries) > 3
    state = opened()
    found = [m for n, entry in enumerate(entries) for m in delivered(state.delivered(body(n), entry.data))]
    assert [message.value for message in found] == [value]


def test_chunks_of_several_producers_may_interleave() -> None:
    values = {name: os.urandom(4000) for name in ("a", "b", "c")}
    streams = [cut(value, entry_format=EntryFormat(name, chunk_bytes=10_000)) for name, value in values.items()]
    mixed = [entry for row in zip(*streams, strict=True) for entry in row]
    state = opened()
    found = [m for n, entry in enumerate(mixed) for m in delivered(state.delivered(body(n), entry.data))]
    assert {message.producer_name: message.value for message in found} == values


def test_repeated_chunks_count_once() -> None:
    entries = cut(os.urandom(3000))
    resent = [*entries[:2], entries[1], *entries[1:]]
    state = opened()
    found = [m for n, entry in enumerate(resent) for m in delivered(state.delivered(body(n), entry.data))]
    assert len(found) == 1
    state.ack(found[0].id)
    assert sorted(ids(state.flush(), Ack)) == list(range(len(resent))), "the copies are acknowledged, too"


def test_resend_from_first_chunk_restarts_the_message() -> None:
    value = os.urandom(3000)
    entries = cut(value)
    state = opened()
    resent = [*entries[:2], *entries]
    found = [m for n, entry in enumerate(resent) for m in delivered(state.delivered(body(n), entry.data))]
    assert [message.value for message in found] == [value]


def test_nack_redelivers_all_chunks_as_one_message() -> None:
    entries = cut(os.urandom(3000))
    state = opened()
    found = [m for n, entry in enumerate(entries) for m in delivered(state.delivered(body(n), entry.data))]
    assert ids(state.release([found[0].id]), Redeliver) == list(range(len(entries)))
    again = [m for n, entry in enumerate(entries) for m in delivered(state.delivered(body(n, 1), entry.data))]
    assert [message.redelivery_count for message in again] == [1]


def test_redelivered_chunks_of_a_held_message_are_dropped() -> None:
    entries = cut(os.urandom(3000))
    state = opened()
    found = [m for n, entry in enumerate(entries) for m in delivered(state.delivered(body(n), entry.data))]
    state.lost([])
    state.opened()
    again = [m for n, entry in enumerate(entries) for m in delivered(state.delivered(body(n), entry.data))]
    assert again == []
    state.ack(found[0].id)
    state.flush()
    state.lost([])  # before the broker confirmed
    assert sorted(ids(state.opened(), Ack)) == list(range(len(entries)))


def test_cumulative_ack_stops_before_an_incomplete_message() -> None:
    entries = cut(os.urandom(3000))
    state = opened()
    (first,) = delivered(state.delivered(body(0), build_entry(b"first")))
    state.delivered(body(1), entries[0].data)
    (second,) = delivered(state.delivered(body(2), build_entry(b"second")))
    assert state.ack_cumulative(second.id)
    assert ids(state.flush(), Ack) == [first.id.entry], "the chunk at 1 must come again after a crash"
    found = [m for n, e in enumerate(entries[1:], 3) for m in delivered(state.delivered(body(n), e.data))]
    assert state.ack_cumulative(found[0].id)
    assert ids(state.flush(), Ack) == [found[0].id.entry]


def test_incomplete_messages_expire_and_release_acks() -> None:
    entries = cut(os.urandom(3000))
    state = opened()
    state.delivered(body(0), entries[0].data, now=100.0)
    (message,) = delivered(state.delivered(body(1), build_entry(b"x"), now=101.0))
    assert not state.ack_cumulative(message.id), "nothing can be said yet"
    effects = state.delivered(body(2), build_entry(b"y"), now=161.0)
    assert [one.id.entryId for one in effects if isinstance(one, Reject)] == [0]
    assert ids(effects, Ack) == [1], "now it is said"


def test_expired_chunks_of_a_queue_are_redelivered() -> None:
    entries = cut(os.urandom(3000))
    state = opened(is_shared=True)
    state.delivered(body(4), entries[1].data, now=100.0)
    effects = state.delivered(body(5), build_entry(b"y"), now=161.0)
    assert ids(effects, Redeliver) == [4]
    assert not [one for one in effects if isinstance(one, Reject)]
    state.delivered(body(4, redeliveries=10), entries[1].data, now=200.0)
    effects = state.delivered(body(6), build_entry(b"z"), now=261.0)
    assert [one.id.entryId for one in effects if isinstance(one, Reject)] == [4], "not for ever"


def test_incomplete_message_is_assembled_after_a_reconnect() -> None:
    """The ack of what lay in between is remembered: it is not handed out again, the message in chunks is."""
    value = os.urandom(3000)
    entries = cut(value)
    state = opened()
    delivered(state.delivered(body(0), build_entry(b"first")))
    state.delivered(body(1), entries[0].data)
    (between,) = delivered(state.delivered(body(2), build_entry(b"between")))
    state.ack_cumulative(between.id)
    assert ids(state.flush(), Ack) == [0]
    state.lost([])
    state.opened()
    again = [entries[0].data, build_entry(b"between"), *(entry.data for entry in entries[1:])]
    found = [m for n, data in enumerate(again, 1) for m in delivered(state.delivered(body(n), data))]
    assert [message.value for message in found] == [value]


def test_ack_after_reconnect_stops_before_incomplete_messages() -> None:
    """Detached again before the first chunk was redelivered: if it were acknowledged, the message would be lost."""
    value = os.urandom(3000)
    entries = cut(value)
    state = opened()
    (first,) = delivered(state.delivered(body(0), build_entry(b"first")))
    state.delivered(body(1), entries[0].data)
    (between,) = delivered(state.delivered(body(2), build_entry(b"between")))
    for _ in range(2):
        state.lost([])
        state.opened()
    assert state.ack_cumulative(between.id)
    assert ids(state.flush(), Ack) == [first.id.entry]
    state.lost([])
    state.opened()
    again = [entries[0].data, build_entry(b"between"), *(entry.data for entry in entries[1:])]
    (found,) = [m for n, data in enumerate(again, 1) for m in delivered(state.delivered(body(n), data))]
    assert found.value == value
    state.ack_cumulative(found.id)
    assert ids(state.flush(), Ack) == [found.id.entry]


def test_first_chunk_that_is_not_redelivered_releases_acks() -> None:
    """It was trimmed, or the subscription was moved while the consumer was detached."""
    state = opened()
    state.delivered(body(0), cut(os.urandom(3000))[0].data)
    (message,) = delivered(state.delivered(body(1), build_entry(b"x")))
    state.lost([])
    state.opened()
    assert not state.ack_cumulative(message.id), "nothing can be said yet"
    assert ids(state.delivered(body(2), build_entry(b"y")), Ack) == [1], "now it is said"


def test_cumulative_ack_stops_before_later_chunked_message() -> None:
    """A message in chunks waits for the application; what lay between its chunks is acknowledged first."""
    entries = cut(os.urandom(3000))
    state = opened()
    delivered(state.delivered(body(0), build_entry(b"first")))
    state.delivered(body(1), entries[0].data)
    (between,) = delivered(state.delivered(body(2), build_entry(b"between")))
    (large,) = [m for n, e in enumerate(entries[1:], 3) for m in delivered(state.delivered(body(n), e.data))]
    assert state.safe_floor((3, 2)) == (3, 0)
    state.ack_cumulative(between.id)
    assert ids(state.flush(), Ack) == [0]
    assert state.safe_floor((large.id.ledger, large.id.entry)) == (3, large.id.entry)
    state.ack_cumulative(large.id)
    assert ids(state.flush(), Ack) == [large.id.entry]


def test_incomplete_message_is_given_up_at_end_of_sealed_segment() -> None:
    """At a split the producer begins the message anew in the child. Known before or after the last entry came."""
    entries = cut(os.urandom(3000))
    for is_early in (True, False):
        state = opened()
        effects: list[Effect] = []
        if is_early:
            effects += state.ends_at((3, 1))
        effects += state.delivered(body(0), build_entry(b"x"))
        effects += state.delivered(body(1), entries[0].data)
        if not is_early:
            effects += state.ends_at((3, 1))
        assert [one.id.entryId for one in effects if isinstance(one, Reject)] == [1]
        assert not state.has_chunks
    queue = opened(is_shared=True)
    queue.delivered(body(1), entries[0].data)
    assert queue.ends_at((3, 1)) == [] and queue.has_chunks, "others may have what is missing here"


def test_batch_among_chunks_is_acknowledged_by_message() -> None:
    entries = cut(os.urandom(3000))
    state = opened()
    for n, entry in enumerate(entries):
        state.delivered(body(n), entry.data)
    batch = delivered(state.delivered(body(50), build_batch([b"a", b"b", b"c"])))
    state.ack(batch[1].id)
    (ack,) = [one for one in state.flush() if isinstance(one, Ack)]
    assert [(one.entryId, list(one.ack_set)) for one in ack.ids] == [(50, [0b101])]


def added(assembly: ChunkAssembly, entry: Entry, number: int) -> CompleteMessage | None:
    of, data = parts(entry.data)
    return assembly.add(of, data, (1, number), 0.0)


def test_displaced_chunks_are_not_acknowledged() -> None:
    assembly = ChunkAssembly(pending_max=2)
    streams = [cut(os.urandom(3000), sequence=n) for n in range(3)]
    for number, stream in enumerate(streams):
        assert added(assembly, stream[0], number) is None
    assert [one for n, entry in enumerate(streams[0][1:], 10) if (one := added(assembly, entry, n))] == []
    assert any(added(assembly, entry, n) for n, entry in enumerate(streams[2][1:], 20))
    assert [one.places for one in assembly.expired(1e9)] == [[(1, 1)]], "what was displaced is kept"
    assert assembly.floor((1, 30)) is None, "and it holds acks back"


def test_chunked_message_larger_than_stated_is_dropped() -> None:
    entries = cut(os.urandom(3000))
    of, data = parts(entries[0].data)
    of.total_chunk_msg_size = 10
    assembly = ChunkAssembly()
    assert assembly.add(of, data, (1, 0), 0.0) is None
    assert not any(added(assembly, entry, n) for n, entry in enumerate(entries[1:], 1))
