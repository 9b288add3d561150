"""Positions of subscriptions by segment, from the stats of owners and leader; segments that an operation made."""

from __future__ import annotations

from anabranch.broker.admin.scalable_topics import positions_of, segments_made
from anabranch.controller.records.topic_record import TopicRecord, committed, planned, pruned
from anabranch.controller.segment_host import CursorStats, Rates, SegmentStats
from anabranch.model.layout import Layout, LayoutLimits
from anabranch.model.position import EARLIEST, Position
from anabranch.model.replacement import plan_split, replaced, reserved
from anabranch.model.segment import Seal

WHOLE = Layout.initial(1, now_ms=0)
PLAN = plan_split(WHOLE, 0, now_ms=1, limits=LayoutLimits())
HALVES = replaced(reserved(WHOLE, PLAN), PLAN, {0: Seal(2, Position(3, 8))})
SEGMENTS = HALVES.segments


def figures(**subscriptions: CursorStats) -> SegmentStats:
    return SegmentStats(Rates(), Rates(), producers=0, messages=9, bytes=9, subscriptions=subscriptions)


def test_positions_of_ordered_subscription_name_consumers() -> None:
    stats = {
        0: figures(s=CursorStats(0, 0, Position(3, 8))),
        1: figures(s=CursorStats(4, 1, Position(5, 2))),
    }
    facts = {"consumers": {"a": {"segments": [1]}, "b": {"segments": []}}, "drained": [0]}
    assert positions_of(SEGMENTS, stats, "s", facts) == {
        "0": {"position": "3:8", "backlog": 0, "drained": True, "consumer": None, "consumers": 0},
        "1": {"position": "5:2", "backlog": 4, "drained": False, "consumer": "a", "consumers": 1},
        "2": {"position": None, "backlog": None, "drained": False, "consumer": None, "consumers": 0},
    }


def test_positions_of_checkpoint_group_come_from_members() -> None:
    stats = {1: figures(g=CursorStats(9, 0, EARLIEST)), 2: figures(g=CursorStats(9, 0, EARLIEST))}
    found = positions_of(
        SEGMENTS, stats, "g", {"consumers": {"a": {"segments": [1, 2]}}, "drained": [0], "positions": {"1": "5:2"}}
    )
    assert [found[one]["position"] for one in "012"] == [None, "5:2", None]
    assert [found[one]["backlog"] for one in "012"] == [0, 9, 9]


def test_queue_has_no_consumer_and_drains_sealed_segments() -> None:
    stats = {0: figures(q=CursorStats(0, 2, Position(3, 8))), 1: figures(q=CursorStats(0, 2, Position(5, 2)))}
    found = positions_of(SEGMENTS, stats, "q", {"type": "QUEUE"})
    assert [(found[one]["drained"], found[one]["consumer"], found[one]["consumers"]) for one in "01"] == [
        (True, None, 2),
        (False, None, 2),
    ]


def test_segments_made_by_an_operation_are_found_by_its_epoch() -> None:
    record = TopicRecord(WHOLE)
    split = committed(planned(record, "a", PLAN, now_ms=1), "a", {0: Seal(2, None)}, now_ms=2)
    assert segments_made(split, "a", split.epoch) == [1, 2]
    later = pruned(split, [0])  # raises the epoch and makes nothing
    assert segments_made(later, "a", later.epoch) == [1, 2], "a repeated call"
    again = plan_split(later.layout, 1, now_ms=3, limits=LayoutLimits())
    next_one = committed(planned(later, "b", again, now_ms=3), "b", {1: Seal(4, None)}, now_ms=4)
    assert segments_made(next_one, "b", next_one.epoch) == [3, 4]
    assert segments_made(next_one, "a", split.epoch) == [1, 2], "another operation has followed"
