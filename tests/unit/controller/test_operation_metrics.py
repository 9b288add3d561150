"""Counters of operations: each operation that ended under a leader of this broker is counted once."""

from __future__ import annotations

from collections.abc import Iterable

from anabranch.controller.operation_metrics import EndedOperation, OperationCounts, Totals
from anabranch.controller.records.topic_record import (
    Outcome,
    TopicRecord,
    aborted,
    committed,
    planned,
    pruned,
    with_term,
)
from anabranch.model.layout import NO_LIMITS, Layout
from anabranch.model.names import TopicName
from anabranch.model.position import EARLIEST
from anabranch.model.replacement import OperationKind, plan_merge, plan_split
from anabranch.model.segment import Seal

TOPIC = TopicName.parse("topic://public/default/t")
FIRST = with_term(TopicRecord(Layout.initial(2, now_ms=1), incarnation=5), 1)


def splitting(record: TopicRecord, segment: int, operation: str, at_ms: int) -> TopicRecord:
    return planned(record, operation, plan_split(record.layout, segment, now_ms=at_ms, limits=NO_LIMITS), now_ms=at_ms)


def merging(record: TopicRecord, segments: Iterable[int], operation: str, at_ms: int) -> TopicRecord:
    return planned(record, operation, plan_merge(record.layout, segments, now_ms=at_ms, limits=NO_LIMITS), now_ms=at_ms)


def done(record: TopicRecord, at_ms: int) -> TopicRecord:
    assert record.operation is not None
    seals = {one: Seal(at_ms, EARLIEST) for one in record.operation.plan.parent_ids}
    return committed(record, record.operation.operation_id, seals, now_ms=at_ms)


def totals(*records: TopicRecord | None) -> Totals:
    counts = OperationCounts()
    for record in records:
        counts.on_record(TOPIC, record)
    return counts.totals


def test_split_and_merge_are_counted_with_their_durations() -> None:
    plan = splitting(FIRST, 0, "a", 100)
    split = done(plan, 130)
    plan_two = merging(split, [2, 3], "b", 200)
    merged = done(plan_two, 250)
    found = totals(FIRST, plan, split, split, plan_two, merged)
    assert found == Totals(leaderships=1, splits=1, merges=1, sealed=3, operation_ms=80)


def test_aborted_operation_is_counted() -> None:
    plan = splitting(FIRST, 0, "a", 100)
    assert totals(FIRST, plan, aborted(plan, "a", now_ms=120, reason="no")) == Totals(leaderships=1, aborted=1)


def test_operation_of_a_former_leader_is_not_counted() -> None:
    split = done(splitting(FIRST, 0, "a", 100), 130)
    assert totals(with_term(split, 2)) == Totals(leaderships=1)


def test_operation_resumed_by_this_leader_is_counted() -> None:
    plan = with_term(splitting(FIRST, 0, "a", 100), 2)
    assert totals(plan, done(plan, 900)) == Totals(leaderships=1, splits=1, sealed=1, operation_ms=800)


def test_operation_that_ended_before_the_next_term_is_counted_once() -> None:
    plan = splitting(FIRST, 0, "a", 100)
    found = totals(FIRST, plan, with_term(done(plan, 130), 3))
    assert found == Totals(leaderships=2, splits=1, sealed=1, operation_ms=30)


def test_collected_segments_are_counted() -> None:
    split = done(splitting(FIRST, 0, "a", 100), 130)
    assert totals(split, pruned(split, [0])).collected == 1


def test_new_incarnation_counts_as_another_leadership() -> None:
    assert totals(FIRST, None, FIRST).leaderships == 2


def test_state_of_topics_not_led_here_is_dropped() -> None:
    counts = OperationCounts()
    counts.on_record(TOPIC, FIRST)
    counts.keep({TOPIC})
    counts.on_record(TOPIC, FIRST)
    assert counts.totals.leaderships == 1
    counts.keep(())
    counts.on_record(TOPIC, FIRST)
    assert counts.totals.leaderships == 2


def test_operation_that_ended_is_returned_once_with_its_segments() -> None:
    counts = OperationCounts()
    plan = splitting(FIRST, 0, "a", 100)
    split = done(plan, 130)
    plan_two = merging(split, [2, 3], "b", 200)
    failed = aborted(plan_two, "b", now_ms=260, reason="no owner")
    found = [counts.on_record(TOPIC, record) for record in (FIRST, plan, split, split, plan_two, failed, None)]
    assert found == [
        None,
        None,
        EndedOperation("a", OperationKind.SPLIT, Outcome.COMMITTED, split.epoch, (0,), (2, 3), 30, ""),
        None,
        None,
        EndedOperation("b", OperationKind.MERGE, Outcome.ABORTED, failed.epoch, (), (), 60, "no owner"),
        None,
    ]
    assert len(counts) == 0
