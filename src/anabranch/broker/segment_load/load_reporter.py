"""Reports the load of this broker's active segments: to the metadata store, then to the leader of the topic.

Within each second it looks at the segments with traffic since the last look, and at those whose load has not fallen to
0 yet. An idle segment costs nothing: it has no meter. It keeps the counters at which its last meter ended, so the next
meter counts its traffic from the first message on. A new segment counts as active, so that it is reported, and can be
merged, even if it never gets traffic. A report that could not be written is tried again with the next look, so a store
that is away delays reports and loses none that still matters.

A segment has a sampler of its keys while its load is above `SAMPLED_SCORE_MIN` of a split threshold, and while it has
no load: then the first entries of a burst are sampled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from anabranch.broker.segment.key_sampler import KeySampler
from anabranch.broker.segment.owned_segment import OwnedSegment, segment_of
from anabranch.broker.segment.unmetered import Unmetered
from anabranch.broker.segment_load.load_meter import LoadMeter, ReportRules, Totals
from anabranch.broker.segment_load.load_records import LoadRecords
from anabranch.broker.topic_registry.rate_sampler import delivery_totals
from anabranch.broker.topic_registry.registry import TopicRegistry
from anabranch.controller.interface import ScalingTotals
from anabranch.controller.segment_host import LoadReported
from anabranch.model.autoscale.load import SegmentLoad
from anabranch.model.autoscale.policy import METRICS, AutoScalePolicy
from anabranch.model.errors import Error
from anabranch.model.hashrange import HashRange
from anabranch.model.names import TopicName
from anabranch.model.routing import RingHash
from anabranch.runtime.clock import Clock
from anabranch.runtime.logs import get_logger
from anabranch.runtime.tasks import YieldBudget

log = get_logger(__name__)

LOOK_SECONDS = 0.8
"""A crossed threshold is reported within one second: a look, and the write."""
PAUSE_SECONDS_MIN = 0.2
"""Between two looks, if one takes long."""
SAMPLED_SCORE_MIN = 0.1
POLICY_SECONDS = 10.0
WRITES_TOGETHER = 16
BYTE_RATES = frozenset(number for number, name in enumerate(METRICS) if name.startswith("bytes"))


class EffectivePolicies(Protocol):
    async def effective(self, topic: TopicName) -> AutoScalePolicy | None:
        """The policy of a scalable topic after all levels; None if it does not exist or its policy is invalid."""

    async def ring_hash(self, topic: TopicName) -> RingHash | None:
        """The hash of the topic's keys; None if it does not exist, or does not route by range."""


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
        totals: ScalingTotals,
        clock: Clock,
        *,
        broker: str,
        rules: ReportRules,
    ) -> None:
        self._topics, self._records, self._policies, self._listener = topics, records, policies, listener
        self._totals, self._clock, self._broker, self._rules = totals, clock, broker, rules
        self._active = topics.activity.view()
        self._meters: dict[OwnedSegment, LoadMeter] = {}
        self._known: dict[TopicName, tuple[AutoScalePolicy | None, float]] = {}  # with the time until which it counts
        self._hashes: dict[TopicName, RingHash | None] = {}  # read in this look: a topic may have a thousand segments
        self._clean_at = 0.0
        self._again: dict[OwnedSegment, int] = {}  # whose policy could not be read, and the time of the look before
        self._looked_ms = clock.now_ms()

    async def run(self) -> None:
        """Runs for ever."""
        due = self._clock.monotonic()
        while True:
            due += LOOK_SECONDS
            now = self._clock.monotonic()
            due = max(due, now + PAUSE_SECONDS_MIN)
            await self._clock.sleep(due - now)
            await self.look()

    async def look(self) -> None:
        """One look at all segments that may have something to report."""
        budget = YieldBudget(self._clock)
        self._hashes.clear()
        since_ms, self._looked_ms = self._looked_ms, self._clock.now_ms()
        found = {one: since_ms for topic in self._active.take() if (one := segment_of(topic)) is not None}
        found |= self._again
        self._again = {}
        due: list[tuple[OwnedSegment, SegmentLoad]] = []
        for segment in (*self._meters, *(found.keys() - self._meters.keys())):
            load = await self._look_at(segment, found.get(segment, since_ms))
            if load is not None:
                due.append((segment, load))
            await budget.spend()
        for start in range(0, len(due), WRITES_TOGETHER):
            await asyncio.gather(*(self._report(*one) for one in due[start : start + WRITES_TOGETHER]))

    async def _look_at(self, segment: OwnedSegment, since_ms: int) -> SegmentLoad | None:
        """`since_ms`: when the segment without meter was last looked at."""
        topic = segment.topic
        if self._topics.loaded(topic.name) is not topic or topic.log.is_terminated:
            self._drop(segment, None)
            return None
        try:
            policy = await self._policy_of(topic.name.scalable)
            if policy is None or not policy.enabled:
                self._drop(segment, None)
                return None
            meter = self._meters.get(segment) or await self._new_meter(segment, since_ms)
        except Error as error:
            log.debug(
                "load of a segment not measured, retrying", extra={"topic": str(topic.name), "reason": error.reason}
            )
            self._again[segment] = since_ms
            return None
        totals = totals_of(segment)
        sampler = segment.key_sampler
        load = meter.look(
            self._clock.now_ms(),
            totals,
            policy,
            () if sampler is None else sampler.histogram(),
            None if sampler is None else sampler.hot_key(),
        )
        if load is None and meter.is_idle:
            self._drop(segment, Unmetered(totals, is_idle=True))
        elif load is None and (repeated := meter.repeated(self._clock.now_ms())) is not None:
            self._listener.load_reported(LoadReported(segment.state.ref, repeated))
        assert meter.measured is not None, "it has looked"
        await self._set_sampler(segment, meter.measured.deciding(policy).ratios(policy))
        return load

    def _drop(self, segment: OwnedSegment, unmetered: Unmetered | None) -> None:
        self._meters.pop(segment, None)
        segment.unmetered, segment.key_sampler = unmetered, None

    async def _set_sampler(self, segment: OwnedSegment, ratios: Sequence[float]) -> None:
        """`ratios`: of the deciding rates to their split thresholds, as `Rates.ratios`."""
        score = max(ratios)
        if 0 < score < SAMPLED_SCORE_MIN:
            segment.key_sampler = None
            return
        if segment.key_sampler is None and (described := segment.topic.name.segment) is not None:
            try:
                ring_hash = await self._ring_hash(segment.topic.name.scalable)
            except Error as error:
                log.debug(
                    "keys of a segment not sampled, retrying",
                    extra={"topic": str(segment.topic.name), "reason": error.reason},
                )
                return
            if ring_hash is not None:
                hash_range = HashRange(described.start, described.end)
                segment.key_sampler = KeySampler(hash_range, ring_hash, shows_keys=self._rules.shows_keys)
        if segment.key_sampler is not None and score > 0:
            segment.key_sampler.look(by_bytes=ratios.index(score) in BYTE_RATES)

    async def _ring_hash(self, topic: TopicName) -> RingHash | None:
        if topic not in self._hashes:
            self._hashes[topic] = await self._policies.ring_hash(topic)
        return self._hashes[topic]

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

    async def _new_meter(self, segment: OwnedSegment, since_ms: int) -> LoadMeter:
        """It goes on from the stored report, and from the counters of the last look."""
        stored = await self._records.read(segment.topic.name.scalable, segment.state.ref.segment_id)
        before = segment.unmetered
        if before is None:  # the topic was not scaled automatically
            before, since_ms = Unmetered(totals_of(segment), is_idle=False), self._clock.now_ms()
        meter = LoadMeter(stored, before.totals, since_ms, self._rules, is_idle=before.is_idle)
        self._meters[segment] = meter
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
        self._totals.load_reports += 1
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
