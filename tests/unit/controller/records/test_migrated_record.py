"""The record of a migrated topic: plan, edges that are stored once, size at 1,024 partitions, undo."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from anabranch.controller.records.topic_record import (
    MigratedFrom,
    MigrationOptions,
    NoSuchOperation,
    TopicRecord,
    committed,
    migration_planned,
    planned,
    pruned,
    undoing,
)
from anabranch.controller.records.topic_record_codec import decode_record, encode_record, record_json
from anabranch.model.layout import NO_LIMITS
from anabranch.model.partition_hash import PartitionHash
from anabranch.model.position import Position
from anabranch.model.replacement import plan_split
from anabranch.model.routing import Routing, RoutingKind
from anabranch.model.segment import Seal

OLD = "persistent://public/default/orders"
BYTES_MAX = 512 * 1024


def plan(partitions: int, **options: Any) -> TopicRecord:
    return migration_planned(
        MigratedFrom(OLD, partitions, 1_000),
        "op",
        incarnation=7,
        epoch=max(1, partitions),
        routing=Routing(RoutingKind.MOD_N, partition_hash=PartitionHash.JAVA_STRING),
        options=MigrationOptions(**options),
    )


def done(record: TopicRecord) -> TopicRecord:
    assert record.operation is not None
    seals = {one: Seal(2_000, Position(10_000_000 + one, 1_000_000)) for one in record.operation.plan.parent_ids}
    return committed(record, "op", seals, now_ms=2_000)


@pytest.mark.parametrize("partitions", [0, 1, 2, 7, 64])
def test_plan_has_the_layout_of_the_regular_topic_and_as_many_children(partitions: int) -> None:
    count = max(1, partitions)
    record = plan(partitions)
    wrapped = [f"{OLD}-partition-{one}" for one in range(partitions)] or [OLD]
    assert [one.legacy_topic_name for one in record.layout.active] == wrapped
    assert record.is_migrating
    assert record.epoch == count
    assert record.layout.next_segment_id == 2 * count
    children = record.planned_children
    assert [child.segment_id for child in children] == list(range(count, 2 * count))
    assert {child.parent_ids for child in children} == {tuple(range(count))}
    assert {child.merge_depth for child in children} == {0}


@pytest.mark.parametrize("partitions", [0, 1, 3, 64])
def test_commit_seals_the_partitions_and_starts_no_cooldown(partitions: int) -> None:
    record = done(plan(partitions))
    count = max(1, partitions)
    record.layout.check()
    assert not record.is_migrating
    assert record.epoch == count + 1
    assert [one.segment_id for one in record.layout.active] == list(range(count, 2 * count))
    assert record.last_split_at_ms == record.last_merge_at_ms == -1
    assert record.layout.routing.kind is RoutingKind.RANGE
    assert record.layout.routing.partition_hash is PartitionHash.JAVA_STRING
    assert all(record.segments[one].child_ids == tuple(range(count, 2 * count)) for one in range(count))


@pytest.mark.parametrize("partitions", [0, 1, 3, 64])
def test_plan_and_migrated_record_survive_encoding(partitions: int) -> None:
    for record in (plan(partitions, force=True, kinds={"work": "QUEUE"}), done(plan(partitions))):
        assert decode_record(encode_record(record)) == record


def test_options_are_kept_for_the_next_leader() -> None:
    record = decode_record(encode_record(plan(2, force=True, kinds={"work": "QUEUE"})))
    assert record.operation is not None
    assert MigrationOptions.of(record.operation) == MigrationOptions(True, {"work": "QUEUE"})


def test_edges_are_stored_once_and_spelled_out_for_people() -> None:
    record = done(plan(3))
    stored, shown = json.loads(encode_record(record)), record_json(record)
    assert stored["migratedEdges"] == {"parentIds": [0, 1, 2], "childIds": [3, 4, 5]}
    assert all("childIds" not in stored["segments"][one] for one in "012")
    assert all("parentIds" not in stored["segments"][one] for one in "345")
    assert shown["segments"]["0"]["childIds"] == [3, 4, 5]
    assert shown["segments"]["0"]["legacyTopicName"] == f"{OLD}-partition-0"
    assert shown["segments"]["5"]["parentIds"] == [0, 1, 2]
    assert shown["migratedFrom"] == {"topic": OLD, "partitions": 3, "atMs": 1_000}
    assert "migratedEdges" not in shown


def test_record_after_split_and_pruning_of_partitions_survives_encoding() -> None:
    record = done(plan(3))
    split = planned(record, "split", plan_split(record.layout, 3, now_ms=3_000, limits=NO_LIMITS), now_ms=3_000)
    assert decode_record(encode_record(split)) == split
    after = committed(split, "split", {3: Seal(4_000, Position(1, 1))}, now_ms=4_000)
    for gone in ([0], [0, 2], [0, 1, 2], [0, 1, 2, 3]):
        left = pruned(after, gone)
        assert decode_record(encode_record(left)) == left


@pytest.mark.parametrize("partitions", [2, 64])
def test_record_that_is_larger_than_its_predecessor_takes_known_segments_from_it(partitions: int) -> None:
    record = done(plan(partitions))
    known = decode_record(encode_record(record))
    again = decode_record(encode_record(replace(record, leader_term=9)), known)
    assert all(again.segments[one] is known.segments[one] for one in known.segments)


def test_records_of_1024_partitions_stay_below_512_kb() -> None:
    planned_record = plan(1_024)
    for record in (planned_record, done(planned_record)):
        data = encode_record(record)
        assert len(data) < BYTES_MAX
        assert decode_record(data) == record


def test_undo_keeps_the_operation_and_its_reason() -> None:
    record = undoing(plan(2), "op", "a client cannot follow")
    assert record.is_deleting
    assert record.is_migrating
    assert record.operation is not None
    assert record.operation.reason == "a client cannot follow"
    assert decode_record(encode_record(record)) == record
    with pytest.raises(NoSuchOperation):
        undoing(done(plan(2)), "op", "too late")
