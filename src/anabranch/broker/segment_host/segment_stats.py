"""Rolling rates of loaded segments, over ten seconds and over a minute, and their stats.

The counters of active segments are sampled periodically; the message path records nothing.
"""

from __future__ import annotations

from anabranch.broker.segment.owned_segment import OwnedSegment, segment_of
from anabranch.broker.topic_registry.rate_meter import Meter
from anabranch.broker.topic_registry.rate_sampler import Sampler
from anabranch.controller.segment_host import CursorStats, Rates, SegmentStats
from anabranch.runtime.clock import Clock
from anabranch.runtime.tasks import YieldBudget

LOOK_SECONDS = 2.5
SHORT_SECONDS = 10.0
SHORT_SAMPLES = 5


class SegmentRates:
    def __init__(self, sampler: Sampler, clock: Clock) -> None:
        """`sampler` keeps the rates over a minute of all topics."""
        self._sampler = sampler
        self._clock = clock

    async def run(self) -> None:
        """Runs for ever."""
        while True:
            await self._clock.sleep(LOOK_SECONDS)
            await self._look_at_all()

    async def _look_at_all(self) -> None:
        """Not in `run`, whose variables would keep the last topic in memory while it sleeps."""
        budget = YieldBudget(self._clock)
        for topic in tuple(self._sampler.active()):
            if (segment := segment_of(topic)) is not None:
                self._look(segment)
                await budget.spend()

    def _look(self, segment: OwnedSegment) -> tuple[Rates, Rates]:
        book = self._sampler.sample(segment.topic)
        if book.short is None:
            book.short = Meter(SHORT_SECONDS, SHORT_SAMPLES)
        return Rates(*book.short.rates(self._clock.monotonic(), book.totals)), Rates(*book.rates)

    async def stats(self, segment: OwnedSegment) -> SegmentStats:
        topic = segment.topic
        short, long = self._look(segment)
        return SegmentStats(
            short,
            long,
            producers=len(topic.producers),
            messages=topic.log.total_messages,
            bytes=topic.log.total_bytes,
            subscriptions=await _cursors(segment),
        )


async def _cursors(segment: OwnedSegment) -> dict[str, CursorStats]:
    """A checkpoint group has no cursor: its backlog is counted from its hold."""
    topic, found = segment.topic, dict[str, CursorStats]()
    for group, position in segment.state.holds.items():
        behind = await topic.log.messages_between(position, topic.log.last_position)
        found[group] = CursorStats(behind, 0, position)
    for one in topic.subscriptions.values():
        if one.is_durable:
            found[one.name] = CursorStats(await one.backlog_messages(), len(one.consumers), one.mark_delete)
    return found
