"""Rates of one segment from its growing counters, and the decision to report them. Never awaits.

    LoadMeter.look ── every second ──▶ a report when a threshold is crossed
                   └─ every sample ──▶ a report when a rate has changed materially

A segment without traffic has no meter. The counters at which its last meter ended are those of the look before the
traffic began, so a new meter starts there and misses nothing: its windows begin with the time of idleness.

A meter of a segment that was just loaded has no history. Until one sample interval has passed it reports only a segment
that is too hot, so that a new owner does not replace the stored report by rates of its first second.
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
REPEAT_MS = 60_000


class RateWindow:
    """Rates of counters that are read together, over exactly `window_ms`: between two readings, counters grow evenly.

    While the window is not full, the time since the first reading counts, but never less than `passed_ms_min`: a burst
    in the first moment is not a rate.
    """

    __slots__ = ("_passed_ms_min", "_readings", "_step_ms", "_window_ms")

    def __init__(self, window_ms: int, *, step_ms: int, passed_ms_min: int, now_ms: int, totals: Totals) -> None:
        self._window_ms, self._step_ms, self._passed_ms_min = window_ms, step_ms, passed_ms_min
        self._readings: deque[tuple[int, Totals]] = deque([(now_ms, totals)])

    def begin_idle(self) -> None:
        """There was no traffic before the first reading, for a whole window."""
        first_ms, totals = self._readings[0]
        self._readings.appendleft((first_ms - self._window_ms, totals))

    def rates(self, now_ms: int, totals: Totals) -> Rates:
        readings, start_ms = self._readings, now_ms - self._window_ms
        if any(new < old for new, old in zip(totals, readings[-1][1], strict=True)):
            readings.clear()  # a subscription was deleted, and its counters with it
            readings.append((now_ms, totals))
        while len(readings) > 1 and readings[1][0] <= start_ms:
            readings.popleft()
        then_ms, before = readings[0]
        if then_ms < start_ms and len(readings) > 1:
            next_ms, after = readings[1]
            part = (start_ms - then_ms) / (next_ms - then_ms)
            counts = [new - old - part * (late - old) for new, old, late in zip(totals, before, after, strict=True)]
            passed_ms = self._window_ms
        else:
            counts = [new - old for new, old in zip(totals, before, strict=True)]
            passed_ms = max(now_ms - then_ms, self._passed_ms_min)
        if now_ms - readings[-1][0] >= self._step_ms:
            readings.append((now_ms, totals))
        return Rates(*(count * SECOND_MS / passed_ms for count in counts))


@dataclass(frozen=True, slots=True)
class ReportRules:
    """When a change is reported; the settings `scalable_topics.load_report_*`."""

    sample_ms: int = 10_000
    change: float = 0.25
    shows_keys: bool = True  # a hot key is reported with its text


class LoadMeter:
    """Of one loaded segment."""

    def __init__(
        self, stored: SegmentLoad | None, totals: Totals, now_ms: int, rules: ReportRules, *, is_idle: bool = False
    ) -> None:
        """`stored`: the last report. `totals`: the counters at `now_ms`, from which on the meter measures. `is_idle`:
        there was no traffic in the window before."""
        self._rules = rules
        self._stored = self._latest = stored
        self._measured: SegmentLoad | None = None
        self._started_ms = self._sampled_ms = self._repeated_ms = now_ms
        self._long = RateWindow(
            WINDOW_SECONDS * SECOND_MS, step_ms=5_000, passed_ms_min=rules.sample_ms, now_ms=now_ms, totals=totals
        )
        self._fast = RateWindow(
            FAST_WINDOW_SECONDS * SECOND_MS, step_ms=500, passed_ms_min=SECOND_MS, now_ms=now_ms, totals=totals
        )
        if is_idle:
            self._started_ms -= rules.sample_ms
            self._long.begin_idle()
            self._fast.begin_idle()

    @property
    def latest(self) -> SegmentLoad | None:
        """The load at the last look, reported or not."""
        return self._latest

    @property
    def measured(self) -> SegmentLoad | None:
        """As `latest`, also while the meter has no history."""
        return self._measured

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
        load = self._measured = sampled(self._latest, measured, policy, now_ms)
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

    def repeated(self, now_ms: int) -> SegmentLoad | None:
        """The stored report of a segment above a split threshold, once in `REPEAT_MS`, for a leader that missed it."""
        stored = self._stored
        if stored is None or stored.above_split_since_ms is None:
            return None
        if now_ms - max(self._repeated_ms, stored.reported_at_ms) < REPEAT_MS:
            return None
        self._repeated_ms = now_ms
        return stored

    def written(self, load: SegmentLoad) -> None:
        """The report is stored."""
        self._stored = load
