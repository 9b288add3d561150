"""The children of a sealed segment that producers get: from the known plan, else read, else from their names."""

from __future__ import annotations

from dataclasses import replace

import pytest

from anabranch.broker.placement import Address, EverythingHere
from anabranch.broker.segment_host.seal_notifications import SealNotifications
from anabranch.broker.segment_host.topic_layouts import ScalableTopic
from anabranch.controller.segment_host import Seal, SegmentRef
from anabranch.metadata.interface import StoreUnavailable
from anabranch.model.layout import NO_LIMITS, Layout
from anabranch.model.names import TopicName
from anabranch.model.replacement import plan_split
from anabranch.model.segment import Segment, backing_topic

TOPIC = TopicName.parse("topic://public/default/orders")
LAYOUT = Layout.initial(1, now_ms=0)
PLAN = plan_split(LAYOUT, 0, now_ms=5, limits=NO_LIMITS)
PLANNED = ScalableTopic(TOPIC, 7, LAYOUT, PLAN.children)


def ref(segment: Segment) -> SegmentRef:
    return SegmentRef(backing_topic(TOPIC, segment), 7, segment.segment_id)


SEAL = Seal("op", ref(LAYOUT[0]), tuple(ref(one) for one in PLAN.children))


class Records:
    def __init__(self, known: ScalableTopic | None, stored: ScalableTopic | None) -> None:
        self.known, self.stored, self.reads = known, stored, 0

    def remembered(self, topic: TopicName) -> ScalableTopic | None:
        return self.known

    async def read(self, topic: TopicName, *, is_fresh: bool = False) -> ScalableTopic | None:
        self.reads += 1
        if self.stored is None:
            raise StoreUnavailable("away")
        return self.stored

    async def exists(self, topic: TopicName) -> bool:
        return True


@pytest.mark.parametrize(
    ("known", "stored", "reads"),
    [
        (PLANNED, None, 0),
        (None, PLANNED, 1),
        (replace(PLANNED, planned=()), PLANNED, 1),
        (replace(PLANNED, incarnation=6), PLANNED, 1),
        (replace(PLANNED, planned=PLAN.children[:1]), PLANNED, 1),
    ],
)
async def test_planned_children_are_read_only_if_unknown(
    known: ScalableTopic | None, stored: ScalableTopic | None, reads: int
) -> None:
    records = Records(known, stored)
    notices = SealNotifications(records, EverythingHere(Address("pulsar://a:1", "http://a:2")))
    await notices.prepare(SEAL)
    assert (notices.ready(SEAL.segment.name), records.reads) == (PLAN.children, reads)


async def test_children_are_taken_from_names_without_a_record() -> None:
    notices = SealNotifications(Records(None, None), EverythingHere(Address("pulsar://a:1", "http://a:2")))
    await notices.prepare(SEAL)
    children = notices.ready(SEAL.segment.name)
    assert [(one.segment_id, one.hash_range, one.parent_ids) for one in children] == [
        (one.segment_id, one.hash_range, (0,)) for one in PLAN.children
    ]
