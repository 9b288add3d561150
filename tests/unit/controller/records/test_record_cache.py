"""The record cache: unchanged segments are encoded and decoded once, with the same result as without the cache."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings

from anabranch.controller.records.record_cache import RecordCache
from anabranch.controller.records.topic_record import TopicRecord
from anabranch.controller.records.topic_record_codec import BadTopicRecord, decode_record, encode_record, record_json
from anabranch.model.layout import Layout
from anabranch.model.names import TopicName
from anabranch.model.segment import backing_topic
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.commands import BaseCommand
from anabranch.protocol.scalable import broker_addresses, layout_update, segment_info
from tests.support.models.layout_histories import histories, split

KEY = "/topics/public/default/orders"
TOPIC = TopicName.parse("topic://public/default/orders")


@dataclass(frozen=True)
class Place:
    service_url: str
    service_url_tls: str | None = None


@settings(max_examples=40, deadline=None)
@given(histories(steps_max=8))
def test_cached_encoding_equals_a_fresh_one(lives: list[Layout]) -> None:
    writer, reader = RecordCache(), RecordCache()
    for layout in lives:
        record = TopicRecord(layout, 7, {"team": "ä"}, garbage=tuple(layout.active[:1]), extra={"later": [1]})
        data = writer.encode(KEY, record)
        assert data == json.dumps(record_json(record), separators=(",", ":")).encode()
        assert writer.decode(KEY, data) is record
        assert reader.decode(KEY, data) == decode_record(data) == record
        assert reader.decode(KEY, bytes(bytearray(data))) is reader.decode(KEY, data)


def test_unchanged_segments_are_reused() -> None:
    before = Layout.initial(3, now_ms=0)
    after = split(before, 1)
    memo = RecordCache()
    known = memo.decode(KEY, encode_record(TopicRecord(before)))
    found = memo.decode(KEY, encode_record(TopicRecord(after)))
    assert found.layout == after
    assert [found.layout[one] is known.layout[one] for one in (0, 1, 2)] == [True, False, True]


def test_encoded_but_never_stored_record_is_not_returned_for_other_bytes() -> None:
    memo, stored = RecordCache(), TopicRecord(Layout.initial(1, now_ms=0), leader_term=3)
    memo.encode(KEY, replace(stored, leader_term=4))  # refused by the store
    assert memo.decode(KEY, encode_record(stored)) == stored
    with pytest.raises(BadTopicRecord):
        memo.decode(KEY, b"{}")
    assert memo.decode(KEY, encode_record(stored)) == stored


def test_oldest_entries_are_evicted_first_and_one_always_stays() -> None:
    record = TopicRecord(Layout.initial(4, now_ms=0))
    size = len(encode_record(record))
    memo = RecordCache(bytes_max=2 * size)
    first, second, third = (memo.decode(name, encode_record(record)) for name in "abc")
    assert memo.decode("b", encode_record(record)) is second
    assert memo.decode("c", encode_record(record)) is third
    assert memo.decode("a", encode_record(record)) is not first
    memo.forget("a")
    memo.forget("a")
    assert RecordCache(bytes_max=1).decode("a", encode_record(record)) == record


def test_changed_segment_has_no_cached_encodings() -> None:
    old = Layout.initial(1, now_ms=0)[0]
    assert backing_topic(TOPIC, old) is backing_topic(TOPIC, old)
    other = TopicName.parse("topic://public/default/returns")
    assert str(backing_topic(other, old)) == "segment://public/default/returns/0000-ffff-0"
    assert str(backing_topic(TOPIC, old)) == "segment://public/default/orders/0000-ffff-0"
    assert not replace(old, created_at_ms=9).forms
    assert old == replace(old)


@settings(max_examples=40, deadline=None)
@given(histories(steps_max=6))
def test_layout_on_the_wire_is_built_from_cached_segments(lives: list[Layout]) -> None:
    for number, layout in enumerate(lives):
        brokers = {one: Place(f"pulsar://b{(one + number) % 3}:1") for one in layout.segments if one % 4}
        for extensions in (True, False):
            frame = layout_update(
                5,
                TOPIC,
                layout,
                incarnation=3,
                brokers=brokers,
                controller=None,
                operation_id="",
                plan=None,
                extensions=extensions,
            )
            dag = BaseCommand.FromString(frame[8:]).scalable_topic_update.dag
            ordered = [layout[one] for one in sorted(layout.segments)]
            wanted = pb.ScalableTopicDAG(
                epoch=layout.epoch,
                segments=[segment_info(one, extensions=extensions) for one in ordered],
                segment_brokers=broker_addresses(ordered if extensions else layout.active, brokers),
                incarnation=3 if extensions else None,
                ring_hash=dag.ring_hash if extensions and dag.HasField("ring_hash") else None,
                partition_hash=dag.partition_hash if extensions and not dag.HasField("ring_hash") else None,
            )
            assert dag == wanted
