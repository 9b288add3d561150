"""Where a seek moves the cursor of each segment."""

from __future__ import annotations

import pytest

from anabranch.controller import segment_host as host
from anabranch.controller.records.subscription_registry import Move, Registry, SegmentPosition, Subscription
from anabranch.controller.records.subscription_registry import SubscriptionKind as Kind
from anabranch.controller.records.subscription_registry import SubscriptionState as State
from anabranch.controller.records.topic_record import TopicRecord
from anabranch.controller.segment_host import Request, SegmentRef, Start
from anabranch.controller.topic.seek_target import BEGINNING_MS, END_MS, seek_request
from anabranch.model.layout import Layout, LayoutLimits
from anabranch.model.names import TopicName
from anabranch.model.position import Position
from anabranch.model.replacement import plan_split, replaced, reserved
from anabranch.model.segment import Seal, backing_topic

TOPIC = TopicName.parse("topic://public/default/t")
BEHIND = SegmentPosition(2, Position(7, 3), (6,))


@pytest.fixture
def record() -> TopicRecord:
    """0 was split into 2 and 3, then 2 into 4 and 5. 1 is no relative of these."""
    layout = Layout.initial(2, now_ms=1)
    for segment_id in (0, 2):
        plan = plan_split(layout, segment_id, now_ms=2, limits=LayoutLimits())
        layout = replaced(reserved(layout, plan), plan, {segment_id: Seal(2, Position(7, 9))})
    return TopicRecord(layout, incarnation=9)


def ref(record: TopicRecord, segment_id: int) -> SegmentRef:
    return SegmentRef(backing_topic(TOPIC, record.layout[segment_id]), 9, segment_id)


def request(record: TopicRecord, move: Move, segment_id: int, generation: int = 0) -> Request | None:
    return seek_request(move, record, ref(record, segment_id), "s", generation)


@pytest.mark.parametrize("segment_id", [0, 1, 2, 3, 4, 5])
def test_seek_to_a_time_moves_every_segment(record: TopicRecord, segment_id: int) -> None:
    wanted = host.Seek("op", ref(record, segment_id), "s", 55, 3)
    assert request(record, Move("op", 55), segment_id, 3) == wanted


def test_seek_behind_a_position_reads_ancestors_as_done_and_descendants_as_unread(record: TopicRecord) -> None:
    move = Move("op", None, (BEHIND,))
    assert request(record, move, 2) == host.Seek("op", ref(record, 2), "s", 0, 0, Position(7, 3), (6,))
    assert request(record, move, 0) == host.Seek("op", ref(record, 0), "s", END_MS)
    for descendant in (4, 5):
        assert request(record, move, descendant) == host.Seek("op", ref(record, descendant), "s", BEGINNING_MS)


def test_other_segments_stay_and_ordered_readers_are_closed(record: TopicRecord) -> None:
    move = Move("op", None, (BEHIND,))
    for other in (1, 3):
        assert request(record, move, other) is None
        assert request(record, move, other, 8) == host.CloseReader("op", ref(record, other), "s", "", 8)


def test_registry_stores_the_positions_of_a_running_seek() -> None:
    one = Subscription("s", Kind.STREAM, Start.EARLIEST, State.READY, 0, 1, "made", Move("op", None, (BEHIND,)))
    registry = Registry({"s": one})
    assert Registry.decode(registry.encode()) == registry
    assert one.is_sought_in_order
