"""Rolling rates of the segments that are loaded here, over ten seconds and over a minute. Looks at counters at times;
nothing is written down where messages pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from anabranch.broker.meter import Meter
from anabranch.broker.sampling import Breath, Sampler
from anabranch.broker.segment_topic import SegmentTopic
from anabranch.controller.host import CursorStats, Rates, SegmentStats
from anabranch.model.names import TopicName
from anabranch.runtime.clock import Clock

LOOK_SECONDS = 2.5
SHORT_SECONDS = 10.0
SHORT_SAMPLES = 5


class SegmentRates:
    def __init__(self, sampler: Sampler, clock: Clock) -> None:
        """`sampler` keeps the rates over a minute, of all topics."""
        self._sampler = sampler
        self._clock = clock
        self._meters: dict[TopicName, Meter] = {}

    async def run(self, loaded: Callable[[], Iterable[SegmentTopic]]) -> None:
        """For ever."""
        while True:
            await self._clock.sleep(LOOK_SECONDS)
            breath, seen = Breath(self._clock), set[TopicName]()
            for topic in list(loaded()):
                seen.add(topic.name)
                self._look(topic)
                await breath.take()
            self._meters = {name: meter for name, meter in self._meters.items() if name in seen}

    def _look(self, topic: SegmentTopic) -> tuple[Rates, Rates]:
        book = self._sampler.look(topic)
        meter = self._meters.get(topic.name)
        if meter is None:
            meter = self._meters[topic.name] = Meter(SHORT_SECONDS, SHORT_SAMPLES)
        return Rates(*meter.rates(self._clock.monotonic(), book.totals)), Rates(*book.rates)

    async def stats(self, topic: SegmentTopic) -> SegmentStats:
        short, long = self._look(topic)
        durable = [one for one in topic.subscriptions.values() if one.is_durable]
        return SegmentStats(
            short,
            long,
            producers=len(topic.producers),
            messages=topic.log.total_messages,
            bytes=topic.log.total_bytes,
            subscriptions={one.name: CursorStats(await one.backlog_messages(), len(one.consumers)) for one in durable},
        )
