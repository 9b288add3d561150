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


class _Tracked:
    __slots__ = ("meter", "policy", "policy_at")

    def __init__(self, meter: LoadMeter, policy: AutoScalePolicy, policy_at: float) -> None:
        self.meter, self.policy, self.policy_at = meter, policy, policy_at


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
        self._tracked: dict[OwnedSegment, _Tracked] = {}
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
        for segment in (*self._tracked, *(found - self._tracked.keys())):
            load = await self._look_at(segment)
            if load is not None:
                due.append((segment, load))
            await budget.spend()
        for start in range(0, len(due), WRITES_TOGETHER):
            await asyncio.gather(*(self._report(*one) for one in due[start : start + WRITES_TOGETHER]))

    async def _look_at(self, segment: OwnedSegment) -> SegmentLoad | None:
        topic = segment.topic
        if self._topics.loaded(topic.name) is not topic or topic.log.is_terminated:
            self._tracked.pop(segment, None)
            return None
        tracked = self._tracked.get(segment)
        if tracked is None or self._clock.monotonic() - tracked.policy_at >= POLICY_SECONDS:
            tracked = await self._refreshed(segment, tracked)
        if tracked is None or not tracked.policy.enabled:
            self._tracked.pop(segment, None)
            return None
        load = tracked.meter.look(self._clock.now_ms(), totals_of(segment), tracked.policy)
        if load is None and tracked.meter.is_idle:
            self._tracked.pop(segment, None)
        return load

    async def _refreshed(self, segment: OwnedSegment, tracked: _Tracked | None) -> _Tracked | None:
        """With the policy as it is now; a new meter goes on from the stored report."""
        name, number = segment.topic.name.scalable, segment.state.ref.segment_id
        try:
            policy = await self._policies.effective(name)
            if policy is None:
                return None
            if tracked is None:
                stored = await self._records.read(name, number)
                meter = LoadMeter(stored, totals_of(segment), self._clock.now_ms(), self._rules)
                tracked = self._tracked[segment] = _Tracked(meter, policy, self._clock.monotonic())
            tracked.policy, tracked.policy_at = policy, self._clock.monotonic()
        except Error as error:
            log.debug("policy of a segment not read, retrying", extra={"topic": str(name), "reason": error.reason})
            if tracked is None:
                self._again.add(segment)
        return tracked

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
        if (tracked := self._tracked.get(segment)) is not None:
            tracked.meter.written(load)
        self._listener.load_reported(LoadReported(ref, load))


def totals_of(segment: OwnedSegment) -> Totals:
    topic = segment.topic
    messages = size = 0
    for subscription in topic.subscriptions.values():
        out = delivery_totals(subscription)
        messages += out[0]
        size += out[1]
    return topic.messages_in, topic.bytes_in, messages, size
