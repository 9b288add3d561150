"""Port to the records of scalable topics, as far as the owners of segments need them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from anabranch.broker.errors import TopicNotFound
from anabranch.model.layout import Layout
from anabranch.model.names import TopicName
from anabranch.model.segment import Segment, backing_topic


@dataclass(frozen=True, slots=True)
class ScalableTopic:
    """A scalable topic's record as the owners of its segments see it."""

    name: TopicName
    incarnation: int
    layout: Layout
    planned: tuple[Segment, ...] = ()  # children of the running operation
    migration: str = ""  # id of the running migration, until it is committed or undone

    def segment(self, name: TopicName) -> Segment | None:
        """The segment in the layout or in the running operation; clients can attach to no other."""
        descriptor = name.segment
        if descriptor is None:
            one = self.layout.segments.get(max(0, name.partition_index))
            return one if one is not None and one.legacy_topic_name == str(name) else None
        found = self.layout.segments.get(descriptor.segment_id)
        found = found or next((one for one in self.planned if one.segment_id == descriptor.segment_id), None)
        return found if found is not None and backing_topic(self.name, found) == name else None

    def ancestors(self, segment: Segment) -> list[Segment]:
        """Ancestors that may have stored one of its keys, oldest first; also for a planned child."""
        seen: dict[int, Segment] = {}
        ahead = list(segment.parent_ids)
        while ahead:
            one = self.layout.segments.get(ahead.pop())
            if one is not None and one.segment_id not in seen:
                seen[one.segment_id] = one
                ahead.extend(one.parent_ids)
        return [seen[one] for one in sorted(seen) if seen[one].hash_range.overlaps(segment.hash_range)]

    def is_planned(self, segment: Segment) -> bool:
        return segment.segment_id not in self.layout


class TopicLayouts(Protocol):
    async def read(self, topic: TopicName, *, is_fresh: bool = False) -> ScalableTopic | None:
        """The record as this broker's connection to the store has it; `is_fresh`: with all writes before the call.
        `topic` is a `topic://` name."""

    def remembered(self, topic: TopicName) -> ScalableTopic | None:
        """What this broker read or wrote last; may be out of date."""

    async def exists(self, topic: TopicName) -> bool: ...


async def find_segment(records: TopicLayouts, name: TopicName) -> tuple[ScalableTopic, Segment]:
    """The topic that lists the segment in its layout or running operation; TopicNotFound.

    A client may know a segment that this broker's connection to the store does not show yet. So the record is read
    again, fresh, before the segment is refused.
    """
    topic = await records.read(name.scalable)
    segment = None if topic is None else topic.segment(name)
    if topic is None or segment is None:
        topic = await records.read(name.scalable, is_fresh=True)
        segment = None if topic is None else topic.segment(name)
    if topic is None:
        raise TopicNotFound(f"Topic {name.scalable} not found")
    if segment is None:
        raise TopicNotFound(f"{name} is not a segment of {name.scalable}")
    return topic, segment
