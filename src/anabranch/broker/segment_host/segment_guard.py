"""Who may come in where scalable topics are: attaching to segments, regular names that are taken. Reads records only.

A segment can be attached to while the topic's record lists it. A regular name whose scalable twin exists is nobody's:
stock clients hear TopicNotFound, as from Pulsar, and nothing is created beside it (`catalog.check_regular`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from anabranch.broker.segment_host.topic_layouts import TopicLayouts, find_segment
from anabranch.model.names import TopicName


class SegmentGuard:
    def __init__(self, records: TopicLayouts, wait_made: Callable[[TopicName], Awaitable[None]]) -> None:
        """`wait_made` returns when a segment of ours is made, or after a while."""
        self._records = records
        self._wait_made = wait_made

    async def admit(self, name: TopicName) -> None:
        """Raises TopicNotFound unless the segment is in the topic's layout or its running operation. One that is only
        planned is waited for: producers come in advance."""
        topic, segment = await find_segment(self._records, name)
        if topic.is_planned(segment):
            await self._wait_made(name)
