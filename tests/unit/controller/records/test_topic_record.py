"""The topic record: JSON, unknown fields, refused input, edits, size."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.controller.records.topic_record import (
    MigratedFrom,
    NoSuchOperation,
    OperationRunning,
    Outcome,
    Phase,
    StaleTerm,
    TopicRecord,
    aborted,
    committed,
    planned,
    pruned,
    sealing,
    swept,
    with_term,
)
from anabranch.controller.records.topic_record_codec import BadTopicRecord, RecordTooLarge, decode_record, encode_record
from anabranch.model.layout import NO_LIMITS, Layout
from anabranch.model.position import Position
from anabranch.model.replacement import plan_merge, plan_split
from anabranch.model.routing import MOD_N, RANGE_HIGH16, RANGE_LOW16
from anabranch.model.segment import Seal
from tests.support.models.layout_histories import histories, merge, split

FRESH = TopicRecord(Layout.initial(2, now_ms=1_000), incarnation=7, properties={"team": "a"})


def begun(record: TopicRecord, operation_id: str = "op-1", segment_id: int = 0) -> TopicRecord:
    plan = plan_split(record.layout, segment_id, now_ms=2_000, limits=NO_LIMITS)
    return planned(record, operation_id, plan, now_ms=2_000, reason="asked for")


def fields(record: TopicRecord) -> dict[str, Any]:
    value = json.loads(encode_record(record))
    assert isinstance(value, dict)
    return value


class TestJson:
    def test_json_has_the_field_names_of_pip_468(self) -> None:
        before = replace(FRESH, auto_scale_policy={"enabled": True}, migrated_from=MigratedFrom("x", 2, 5))
        value = fields(begun(before))
        assert set(value) == {
            "format", "epoch", "nextSegmentId", "segments", "properties", "autoScalePolicy", "migratedFrom",
            "incarnation", "routing", "leaderTerm", "operation", "lastSplitAtMs", "lastMergeAtMs", "garbage",
        }  # fmt: skip
        assert value["routing"] == {"kind": "range", "ringHash": "murmur3-low16"}
        assert value["segments"]["1"] == {
            "segmentId": 1,
            "hashRange": {"start": 32768, "end": 65535},
            "state": "ACTIVE",
            "parentIds": [],
            "childIds": [],
            "createdAtEpoch": 0,
            "sealedAtEpoch": -1,
            "createdAtMs": 1_000,
            "sealedAtMs": -1,
            "mergeDepth": 0,
        }
        operation = value["operation"]
        assert (operation["id"], operation["kind"], operation["phase"]) == ("op-1", "SPLIT", "CREATE")
        assert (operation["parentIds"], [child["segmentId"] for child in operation["children"]]) == ([0], [2, 3])
        assert (operation["startedAtMs"], operation["reason"]) == (2_000, "asked for")

    def test_sealed_segment_has_its_last_position(self) -> None:
        layout = split(Layout.initial(1, now_ms=0), 0, at_ms=77)
        sealed = fields(TopicRecord(layout))["segments"]["0"]
        assert sealed["lastPosition"] == {"ledgerId": 0, "entryId": 77}
        assert (sealed["sealedAtEpoch"], sealed["sealedAtMs"]) == (1, 77)

    @settings(max_examples=60, deadline=None)
    @given(histories(steps_max=8), st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3), st.booleans())
    def test_record_survives_encoding(self, lives: list[Layout], properties: dict[str, str], is_planned: bool) -> None:
        record = TopicRecord(lives[-1], 1 << 60, properties, leader_term=3, last_split_at_ms=5)
        if is_planned and len(lives[-1].active) > 1 and lives[-1].routing != MOD_N:
            ids = [segment.segment_id for segment in lives[-1].active[:2]]
            plan = plan_merge(lives[-1], ids, now_ms=9, limits=NO_LIMITS)
            record = sealing(planned(record, "é", plan, now_ms=9), "é")
        assert decode_record(encode_record(record)) == record

    def test_unknown_fields_are_kept(self) -> None:
        value = fields(begun(FRESH))
        value["colour"] = {"deep": [1, None]}
        value["segments"]["1"]["temperature"] = 36.6
        value["operation"]["mood"] = "good"
        record = decode_record(json.dumps(value).encode())
        assert json.loads(encode_record(record)) == value
        done = committed(sealing(record, "op-1"), "op-1", {0: Seal(3_000)}, now_ms=3_000)
        after = fields(done)
        assert (after["colour"], after["segments"]["1"]["temperature"]) == ({"deep": [1, None]}, 36.6)

    def test_newer_format_is_refused(self) -> None:
        value = fields(FRESH)
        with pytest.raises(BadTopicRecord, match="format 2"):
            decode_record(json.dumps({**value, "format": 2}).encode())

    @pytest.mark.parametrize(
        "change",
        [
            {"segments": {}},
            {"segments": []},
            {"segments": None},
            {"epoch": "x"},
            {"epoch": None},
            {"nextSegmentId": 1},
            {"routing": {"kind": "guess"}},
            {"properties": 5},
            {"operation": {}},
        ],
    )
    def test_damaged_record_is_refused(self, change: dict[str, Any]) -> None:
        with pytest.raises(BadTopicRecord):
            decode_record(json.dumps({**fields(FRESH), **change}).encode())

    @pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"7", b"null", b"\xff", b'{"epoch":0}'])
    def test_other_bytes_are_refused(self, data: bytes) -> None:
        with pytest.raises(BadTopicRecord):
            decode_record(data)

    def test_record_of_pulsar_is_read(self) -> None:
        """As 5.0.0-M1 writes it: without our fields, with its derived ones; PIP-468's 0 for "not sealed"."""
        segment = {
            "segmentId": 0, "hashRange": {"start": 0, "end": 65535}, "state": "ACTIVE", "parentIds": [], "childIds": [],
            "createdAtEpoch": 0, "sealedAtEpoch": 0, "createdAtMs": 5, "sealedAtMs": 0, "sealed": False, "active": True,
            "root": True, "leaf": True, "legacy": False,
        }  # fmt: skip
        value = {"epoch": 0, "nextSegmentId": 1, "segments": {"0": segment}, "properties": {}}
        record = decode_record(json.dumps(value).encode())
        assert record == TopicRecord(Layout.initial(1, now_ms=5))
        assert record.layout.routing == RANGE_LOW16
        legacy = {**value, "segments": {"0": {**segment, "legacyTopicName": "persistent://public/default/x"}}}
        assert decode_record(json.dumps(legacy).encode()).layout.routing == MOD_N

    def test_ring_hash_of_the_routing_is_stored(self) -> None:
        record = TopicRecord(Layout.initial(2, now_ms=0, routing=RANGE_HIGH16))
        assert decode_record(encode_record(record)).layout.routing == RANGE_HIGH16


class TestEdits:
    def test_split_from_plan_to_commit(self) -> None:
        record = begun(FRESH)
        assert (record.epoch, record.layout.next_segment_id) == (0, 4)
        assert record.operation is not None
        assert record.operation.phase is Phase.CREATE
        assert [child.segment_id for child in record.planned_children] == [2, 3]
        done = committed(sealing(record, "op-1"), "op-1", {0: Seal(2_900, Position(4, 5))}, now_ms=3_000)
        assert (done.epoch, done.operation, done.planned_children) == (1, None, ())
        assert done.outcome("op-1") is Outcome.COMMITTED
        assert done.outcome("op-0") is None
        assert (done.last_split_at_ms, done.last_merge_at_ms) == (3_000, -1)
        assert done.layout[0].last_position == Position(4, 5)
        assert done.layout[2].created_at_ms == 2_000, (
            "what producers write before the commit is not older than the child"
        )
        done.layout.check()

    def test_second_operation_is_refused_while_one_runs(self) -> None:
        with pytest.raises(OperationRunning, match=r"split of \[0\] is running \(phase CREATE\)") as caught:
            begun(begun(FRESH), "op-2", 1)
        assert caught.value.operation.operation_id == "op-1"
        with pytest.raises(OperationRunning):
            pruned(begun(FRESH), [])
        for step in (sealing, lambda record, name: committed(record, name, {}, now_ms=0)):
            with pytest.raises(NoSuchOperation):
                step(begun(FRESH), "op-2")
        with pytest.raises(NoSuchOperation):
            sealing(FRESH, "op-1")

    def test_abort_makes_children_garbage_and_does_not_reuse_ids(self) -> None:
        record = aborted(begun(FRESH), "op-1", now_ms=5, reason="changed my mind")
        assert (record.layout.segments, record.epoch, record.operation) == (FRESH.layout.segments, 0, None)
        assert [segment.segment_id for segment in record.garbage] == [2, 3]
        assert record.outcome("op-1") is Outcome.ABORTED
        again = begun(record, "op-2")
        assert [child.segment_id for child in again.planned_children] == [4, 5]
        with pytest.raises(OperationRunning, match="SEAL"):
            aborted(sealing(begun(FRESH), "op-1"), "op-1", now_ms=5, reason="too late")

    def test_pruned_segments_are_garbage_until_swept(self) -> None:
        layout = merge(split(Layout.initial(1, now_ms=0), 0), 1, 2)
        record = pruned(TopicRecord(layout, last_split_at_ms=8, last_merge_at_ms=9), [0, 1, 2])
        assert sorted(record.segments) == [3]
        assert [segment.segment_id for segment in record.garbage] == [0, 1, 2]
        assert decode_record(encode_record(record)) == record
        half = swept(record, [1])
        assert [segment.segment_id for segment in half.garbage] == [0, 2]
        assert swept(half, [1]) == half
        assert swept(half, [0, 2]).garbage == ()
        assert (half.layout[3].merge_depth, half.last_split_at_ms, half.last_merge_at_ms) == (1, 8, 9)

    def test_write_of_a_lower_term_is_refused(self) -> None:
        record = with_term(FRESH, 4)
        assert with_term(record, 4) == record
        assert with_term(record, 6).leader_term == 6
        with pytest.raises(StaleTerm):
            with_term(record, 3)


def grown(count: int) -> Layout:
    """At least `count` segments, half of them sealed."""
    layout = Layout.initial(1, now_ms=1_790_000_000_000)
    while len(layout.segments) < count:
        for segment in layout.active:
            if len(layout.segments) < count:
                layout = split(layout, segment.segment_id, at_ms=1_790_000_000_000)
    return layout


def test_record_size_is_linear_and_bounded() -> None:
    sizes = {count: len(encode_record(TopicRecord(grown(count)))) / count for count in (11, 101, 1_001)}
    assert sizes[1_001] < 300, sizes
    assert sizes[1_001] < 1.3 * sizes[11], sizes
    large = split(Layout.initial(1, now_ms=1_790_000_000_000), 0, ways=6_000)
    with pytest.raises(RecordTooLarge, match="6001 segments"):
        encode_record(TopicRecord(large))
