"""Who may come in where scalable topics are: attaching to segments, regular names that are taken. Reads records only.

A segment can be attached to while the topic's record lists it. A regular name whose scalable twin exists is nobody's:
stock clients hear TopicNotFound, as from Pulsar, and nothing is created beside it.
"""

from __future__ import annotations

from anabranch.broker.errors import TopicNotFound
from anabranch.broker.scalable_records import ScalableRecords
from anabranch.model.names import TopicName


class SegmentGuard:
    def __init__(self, records: ScalableRecords) -> None:
        self._records = records

    async def admit(self, name: TopicName) -> None:
        """Raises TopicNotFound unless the segment is in the topic's layout or its running operation."""
        topic = await self._records.read(name.scalable)
        if topic is None:
            raise TopicNotFound(f"Topic {name.scalable} not found")
        if topic.segment(name) is None:
            raise TopicNotFound(f"{name} is no segment of {name.scalable} (any more)")
