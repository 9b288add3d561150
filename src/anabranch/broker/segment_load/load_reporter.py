"""Reports the load of this broker's active segments: to the metadata store, then to the leader of the topic.

Every second it looks at the segments with traffic in that second, and at those whose load has not fallen to 0 yet. An
idle segment costs nothing: it has no meter. A new segment counts as active, so that it is reported, and can be merged,
even if it never gets traffic. A report that could not be written is tried again with the next look, so
a store that is away delays reports and loses none that still matters.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Protocol

from anabranch.broker.segment.owned_segment import OwnedSegment, segment_of
from anabranch.broker.segment_load.load_meter import LoadMeter, ReportRules, Totals
from anabranch.broker.segment_load.load_records import LoadRecords
from anabranch.broker.topic_registry.rate_sampler import delivery_totals
from anabranch.broker.topic_registry.registry import TopicRegistry
from anabranch.controller.segment_host import LoadReported
from anabranch.model.autoscale.load import SegmentLoad
from anabranch.model.autoscale.policy import AutoScalePolicy
from anabranch.model.errors import Error
from anabranch.model.names import TopicName
from anabranch.runtime.clock import Clock
from anabranch.runtime.logs import get_logger
from anabranch.runtime.tasks import YieldBudget

log = get_logger(__name__)

LOOK_SECONDS = 1.0
POLICY_SECONDS = 10.0
WRITES_TOGETHER = 16


class EffectivePolicies(Protocol):
    async def effective(self, topic: TopicName) -> AutoScalePolicy | None:
        """The policy of a scalable topic after all levels; None if it does not exist or its policy is invalid."""


class LoadListener(Protocol):
    def load_reported(self, event: LoadReported) -> None:
        """Called when the report is stored."""


class LoadReporter:
    def __init__(
        self,
        topics: TopicRegistry,
        records: LoadRecords,
        policies: EffectivePolicies,
        listener: LoadListener,
        clock: Clock,
        *,
        broker: str,
        rules: ReportRules,
    ) -> None:
        self._topics, self._records, self._policies, self._listener = topics, records, policies, listener
        self._clock, self._broker, self._rules = clock, broker, rules
        self._active = topics.activity.view()
        self._meters: dict[OwnedSegment, LoadMeter] = {}
        self._known: dict[TopicName, tuple[AutoScalePolicy | None, float]] = {}  # with the time until which it counts
        self._clean_at = 0.0
        self._again: set[OwnedSegment] = set()  # whose policy could not be read
        self.reports_written = 0

    async def run(self) -> None:
        """Runs for ever."""
        while True:
            await self._clock.sleep(LOOK_SECONDS)
            await self.look()

    async def look(self) -> None:
        """One look at all segments that may have something to report."""
        budget = YieldBudget(self._clock)
        found = {one for topic in self._active.take() if (one := segment_of(topic)) is not None}
        found |= self._again
        self._again = set()
        due: list[tuple[OwnedSegment, SegmentLoad]] = []
        for segment in (*self._meters, *(found - self._meters.keys())):
            load = await self._look_at(segment)
            if load is not None:
                due.append((segment, load))
            await budget.spend()
        for start in range(0, len(due), WRITES_TOGETHER):
            await asyncio.gather(*(self._report(*one) for one in due[start : start + WRITES_TOGETHER]))

    async def _look_at(self, segment: OwnedSegment) -> SegmentLoad | None:
        topic = segment.topic
        if self._topics.loaded(topic.name) is not topic or topic.log.is_terminated:
            self._meters.pop(segment, None)
            return None
        try:
            policy = await self._policy_of(topic.name.scalable)
            if policy is None or not policy.enabled:
                self._meters.pop(segment, None)
                return None
            meter = self._meters.get(segment) or await self._new_meter(segment)
        except Error as error:
            log.debug(
                "load of a segment not measured, retrying", extra={"topic": str(topic.name), "reason": error.reason}
            )
            self._again.add(segment)
            return None
        load = meter.look(self._clock.now_ms(), totals_of(segment), policy)
        if load is None and meter.is_idle:
            self._meters.pop(segment, None)
        return load

    async def _policy_of(self, topic: TopicName) -> AutoScalePolicy | None:
        """Read every `POLICY_SECONDS` at most, also for topics that are not scaled automatically."""
        now = self._clock.monotonic()
        if now >= self._clean_at:
            self._clean_at = now + POLICY_SECONDS
            self._known = {name: known for name, known in self._known.items() if known[1] > now}
        known = self._known.get(topic)
        if known is None or known[1] <= now:
            known = self._known[topic] = await self._policies.effective(topic), now + POLICY_SECONDS
        return known[0]

    async def _new_meter(self, segment: OwnedSegment) -> LoadMeter:
        """It goes on from the stored report."""
        stored = await self._records.read(segment.topic.name.scalable, segment.state.ref.segment_id)
        meter = self._meters[segment] = LoadMeter(stored, totals_of(segment), self._clock.now_ms(), self._rules)
        return meter

    async def _report(self, segment: OwnedSegment, load: SegmentLoad) -> None:
        name, ref = segment.topic.name.scalable, segment.state.ref
        load = replace(load, reported_by=self._broker)
        try:
            await self._records.write(name, ref.segment_id, load)
            if segment.topic.log.is_terminated:  # sealed meanwhile: the leader may have removed the report already
                await self._records.remove(name, ref.segment_id)
                return
        except Error as error:
            log.debug(
                "load report not written, retrying",
                extra={"topic": str(name), "segment": ref.segment_id, "reason": error.reason},
            )
            return
        self.reports_written += 1
        if (meter := self._meters.get(segment)) is not None:
            meter.written(load)
        self._listener.load_reported(LoadReported(ref, load))


def totals_of(segment: OwnedSegment) -> Totals:
    topic = segment.topic
    messages = size = 0
    for subscription in topic.subscriptions.values():
        out = delivery_totals(subscription)
        messages += out[0]
        size += out[1]
    return topic.messages_in, topic.bytes_in, messages, size
