"""Load reports of segments on a `Shelf`: what their owners measure and write, for the controllers of `Brokers`."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable

from anabranch.controller.records.topic_record import TopicRecord
from anabranch.controller.segment_host import LoadReported, SegmentRef
from anabranch.metadata.interface import ANY
from anabranch.model.autoscale.load import Rates, SegmentLoad, encode_load, is_material, sampled
from anabranch.model.autoscale.policy import FAST_WINDOW_SECONDS, WINDOW_SECONDS, AutoScalePolicy
from anabranch.model.errors import Error
from anabranch.model.metadata_keys import segment_load_key
from anabranch.model.segment import Segment
from tests.support.in_memory.controllers import TOPIC, Brokers
from tests.support.models.memory_segment_host import StoredSegment
from tests.support.simulation.controller import name_of

LOOK_SECONDS = 1.0
CHANGE = 0.25


class SegmentLoads:
    """The owners of all segments. Writes suffer the faults of the store; hints to leaders are lost at times, too."""

    def __init__(self, brokers: Brokers, policy: AutoScalePolicy, record: Callable[[], TopicRecord | None]) -> None:
        """`record`: the topic's, as it is in the store."""
        self._brokers, self._policy, self._record = brokers, policy, record
        self._stored: dict[int, SegmentLoad] = {}
        self.written = 0

    async def run(self, every_seconds: float = LOOK_SECONDS) -> None:
        """Runs for ever."""
        while True:
            await asyncio.sleep(every_seconds)
            await self.look()

    async def look(self) -> None:
        record = self._record()
        if record is None:
            return
        active = {one.segment_id: one for one in record.layout.active}
        self._stored = {number: load for number, load in self._stored.items() if number in active}
        for number, segment in active.items():
            stored = self._brokers.shelf.segments.get(name_of(segment))
            if stored is not None and stored.sealed is None:
                await self._look_at(record, number, segment, stored)

    async def _look_at(self, record: TopicRecord, number: int, segment: Segment, stored: StoredSegment) -> None:
        before, now_ms = self._stored.get(number), self._brokers.clock.now_ms()
        load = sampled(before, measured(stored, segment.created_at_ms, now_ms), self._policy, now_ms)
        if before is not None and not is_material(before, load, CHANGE, self._policy):
            return
        try:
            await self._brokers.store.put(segment_load_key(TOPIC, number), encode_load(load), expected=ANY)
        except Error:
            return  # tried again at the next look
        self.written += 1
        self._stored[number] = load
        if self._brokers.faults.chance.random() < self._brokers.faults.trouble:
            return
        event = LoadReported(SegmentRef(name_of(segment), record.incarnation, number), load)
        for tell in tuple(self._brokers.shelf._listeners):
            tell(event)


def measured(stored: StoredSegment, created_ms: int, now_ms: int) -> SegmentLoad:
    """A new segment is at least one second old, as for a broker's meter."""
    return SegmentLoad(
        rates=_rates(stored, created_ms, now_ms, WINDOW_SECONDS * 1000),
        fast_rates=_rates(stored, created_ms, now_ms, FAST_WINDOW_SECONDS * 1000),
    )


def _rates(stored: StoredSegment, created_ms: int, now_ms: int, window_ms: int) -> Rates:
    passed_ms = max(1_000, min(window_ms, now_ms - created_ms))
    entries = stored.entries
    first = bisect_right(entries, now_ms - passed_ms, key=lambda entry: entry.publish_ms)
    count = (len(entries) - first) * 1000 / passed_ms
    return Rates(count, 100 * count)
