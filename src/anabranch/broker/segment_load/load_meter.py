"""Rates of one segment from its growing counters, and the decision to report them. Never awaits.

    LoadMeter.look ── every second ──▶ a report when a threshold is crossed
                   └─ every sample ──▶ a report when a rate has changed materially

A meter that starts has no history. Until one sample interval has passed it reports only a segment that is too hot, so
that a new owner does not replace the stored report by rates of its first second.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from anabranch.model.autoscale.load import HotKey, Rates, SegmentLoad, is_material, sampled
from anabranch.model.autoscale.policy import FAST_WINDOW_SECONDS, WINDOW_SECONDS, AutoScalePolicy

Totals = tuple[int, int, int, int]
"""Messages in, bytes in, messages out, bytes out; since the segment was loaded."""

SECOND_MS = 1000
CROSSINGS_ONLY = float("inf")


class RateWindow:
    """Rates of counters that are read together. While the window is not full, the time since the first reading counts,
    but never less than `passed_ms_min`: a burst in the first moment is not a rate."""

    __slots__ = ("_passed_ms_min", "_readings", "_step_ms", "_window_ms")

    def __init__(self, window_ms: int, *, step_ms: int, passed_ms_min: int, now_ms: int, totals: Totals) -> None:
        self._window_ms, self._step_ms, self._passed_ms_min = window_ms, step_ms, passed_ms_min
        self._readings: deque[tuple[int, Totals]] = deque([(now_ms, totals)])

    def rates(self, now_ms: int, totals: Totals) -> Rates:
        readings = self._readings
        if any(new < old for new, old in zip(totals, readings[-1][1], strict=True)):
            readings.clear()  # a subscription was deleted, and its counters with it
            readings.append((now_ms, totals))
        while len(readings) > 1 and readings[1][0] <= now_ms - self._window_ms:
            readings.popleft()
        then_ms, before = readings[0]
        if now_ms - readings[-1][0] >= self._step_ms:
            readings.append((now_ms, totals))
        passed = max(now_ms - then_ms, self._passed_ms_min) / SECOND_MS
        return Rates(*((new - old) / passed for new, old in zip(totals, before, strict=True)))


@dataclass(frozen=True, slots=True)
class ReportRules:
    """When a change is reported; the settings `scalable_topics.load_report_*`."""

    sample_ms: int = 10_000
    change: float = 0.25


class LoadMeter:
    """Of one loaded segment."""

    def __init__(self, stored: SegmentLoad | None, totals: Totals, now_ms: int, rules: ReportRules) -> None:
        """`stored`: the report that the last owner wrote."""
        self._rules = rules
        self._stored = self._latest = stored
        self._started_ms = self._sampled_ms = now_ms
        self._long = RateWindow(
            WINDOW_SECONDS * SECOND_MS, step_ms=5_000, passed_ms_min=rules.sample_ms, now_ms=now_ms, totals=totals
        )
        self._fast = RateWindow(
            FAST_WINDOW_SECONDS * SECOND_MS, step_ms=SECOND_MS, passed_ms_min=SECOND_MS, now_ms=now_ms, totals=totals
        )

    @property
    def latest(self) -> SegmentLoad | None:
        """The load at the last look, reported or not."""
        return self._latest

    @property
    def is_idle(self) -> bool:
        """No traffic for a whole window, and that is reported: nothing is missed when the meter is dropped."""
        stored, latest = self._stored, self._latest
        return stored is not None and latest is not None and not any((*stored.rates.values(), *latest.rates.values()))

    def look(
        self,
        now_ms: int,
        totals: Totals,
        policy: AutoScalePolicy,
        histogram: tuple[float, ...] = (),
        hot_key: HotKey | None = None,
    ) -> SegmentLoad | None:
        """The report to write now, if there is one. It counts as written when `written` is called with it."""
        measured = SegmentLoad(
            rates=self._long.rates(now_ms, totals),
            fast_rates=self._fast.rates(now_ms, totals),
            histogram=histogram,
            hot_key=hot_key,
        )
        load = sampled(self._latest, measured, policy, now_ms)
        is_starting = now_ms - self._started_ms < self._rules.sample_ms
        if is_starting:
            was_hot = self._stored is not None and self._stored.above_split_since_ms is not None
            if load.above_split_since_ms is None or was_hot:
                return None
            self._latest = load
            return load
        self._latest = load
        is_sample = now_ms - self._sampled_ms >= self._rules.sample_ms
        if is_sample:
            self._sampled_ms = now_ms
        if self._stored is None:
            return load
        change = self._rules.change if is_sample else CROSSINGS_ONLY
        return load if is_material(self._stored, load, change, policy) else None

    def written(self, load: SegmentLoad) -> None:
        """The report is stored."""
        self._stored = load
