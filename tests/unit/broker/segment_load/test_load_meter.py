"""When a segment's load is reported: counters in, reports out, on a clock of the test."""

from __future__ import annotations

import pytest

from anabranch.broker.segment_load.load_meter import LoadMeter, RateWindow, ReportRules, Totals
from anabranch.model.autoscale.load import Rates, SegmentLoad
from anabranch.model.autoscale.policy import AutoScalePolicy

POLICY = AutoScalePolicy()
FAST = AutoScalePolicy(split_rate_window_seconds=5)
RULES = ReportRules()
NONE: Totals = (0, 0, 0, 0)


class Segment:
    """A segment with a steady rate of messages in, looked at every second."""

    def __init__(self, stored: SegmentLoad | None = None, policy: AutoScalePolicy = POLICY) -> None:
        self.now_ms, self.messages, self.policy = 1_000_000, 0, policy
        self.meter = LoadMeter(stored, NONE, self.now_ms, RULES)
        self.reports: list[SegmentLoad] = []

    def run(self, seconds: int, rate: int, *, is_stored: bool = True) -> list[SegmentLoad]:
        """The reports of these seconds."""
        before = len(self.reports)
        for _ in range(seconds):
            self.now_ms += 1000
            self.messages += rate
            load = self.meter.look(self.now_ms, (self.messages, 0, 0, 0), self.policy)
            if load is not None:
                self.reports.append(load)
                if is_stored:
                    self.meter.written(load)
        return self.reports[before:]


def test_rate_counts_over_the_time_since_the_first_reading() -> None:
    window = RateWindow(60_000, step_ms=5_000, passed_ms_min=10_000, now_ms=0, totals=NONE)
    assert window.rates(20_000, (2_000, 0, 40, 0)) == Rates(100.0, 0.0, 2.0, 0.0)


def test_burst_in_the_first_moment_is_spread_over_the_shortest_time() -> None:
    window = RateWindow(60_000, step_ms=5_000, passed_ms_min=10_000, now_ms=0, totals=NONE)
    assert window.rates(1_000, (1_000, 0, 0, 0)).msg_rate_in == 100.0


def test_readings_older_than_the_window_do_not_count() -> None:
    window = RateWindow(5_000, step_ms=1_000, passed_ms_min=1_000, now_ms=0, totals=NONE)
    for second in range(1, 11):
        window.rates(second * 1_000, (10_000, 0, 0, 0))
    assert window.rates(11_000, (10_000, 0, 0, 0)) == Rates()


def test_counters_that_fall_start_the_window_again() -> None:
    window = RateWindow(60_000, step_ms=5_000, passed_ms_min=10_000, now_ms=0, totals=(0, 0, 900, 0))
    assert window.rates(10_000, (100, 0, 0, 0)) == Rates()
    assert window.rates(20_000, (200, 0, 0, 0)).msg_rate_in == 10.0


def test_first_report_comes_with_the_first_sample() -> None:
    segment = Segment()
    assert segment.run(9, 100) == []
    (report,) = segment.run(1, 100)
    assert report.rates.msg_rate_in == pytest.approx(100)
    assert report.below_merge_since_ms == segment.now_ms


def test_steady_load_is_reported_once() -> None:
    segment = Segment()
    segment.run(10, 500)
    assert segment.run(3_600, 500) == []


def test_change_of_more_than_a_quarter_is_reported_at_a_sample() -> None:
    segment = Segment()
    segment.run(80, 100)
    reports = segment.run(120, 200)
    assert [round(one.rates.msg_rate_in) for one in reports] == [133, 183]


def test_crossing_the_split_threshold_is_reported_within_a_second() -> None:
    segment = Segment()
    segment.run(70, 9_000)
    hot = [one for one in segment.run(60, 16_000) if one.above_split_since_ms is not None]
    first = hot[0]
    assert first.rates.msg_rate_in > 10_000
    assert first.rates.msg_rate_in - 10_000 <= 16_000 / 60 + 1, "the look that crossed reports, not the next sample"
    assert first.above_split_since_ms == first.reported_at_ms


def test_fast_policy_sees_a_hot_segment_in_its_first_second() -> None:
    segment = Segment(policy=FAST)
    (report,) = segment.run(1, 12_000)
    assert report.above_split_since_ms == segment.now_ms
    assert report.fast_rates is not None
    assert report.fast_rates.msg_rate_in == 12_000


def test_new_owner_keeps_the_stored_report_until_it_has_measured() -> None:
    stored = SegmentLoad(rates=Rates(400.0), fast_rates=Rates(400.0), below_merge_since_ms=5, reported_at_ms=5)
    segment = Segment(stored)
    assert segment.run(9, 400) == [], "one second is not a rate"
    assert segment.run(60, 400) == [], "the same load as stored"


def test_new_owner_keeps_the_time_since_which_a_segment_is_cold() -> None:
    stored = SegmentLoad(rates=Rates(400.0), fast_rates=Rates(400.0), below_merge_since_ms=5, reported_at_ms=5)
    segment = Segment(stored)
    (report,) = segment.run(10, 100)
    assert report.below_merge_since_ms == 5


def test_going_idle_is_reported_and_ends_the_meter() -> None:
    segment = Segment()
    segment.run(70, 2_000)
    reports = segment.run(80, 0)
    assert reports[-1].rates == Rates()
    assert reports[-1].below_merge_since_ms is not None
    assert segment.meter.is_idle
    assert segment.run(3_600, 0) == []


def test_small_changes_of_a_cold_segment_do_not_move_the_time_since_which_it_is_cold() -> None:
    segment = Segment()
    first = segment.run(10, 1)[0]
    for _ in range(10):
        segment.run(60, 2)
        segment.run(60, 1)
    assert segment.reports[-1].below_merge_since_ms == first.below_merge_since_ms


def test_report_that_was_not_stored_is_repeated() -> None:
    segment = Segment()
    segment.run(10, 100, is_stored=False)
    assert len(segment.run(1, 100)) == 1


IDLE = SegmentLoad(rates=Rates(), fast_rates=Rates(), below_merge_since_ms=5, reported_at_ms=5)


def test_burst_after_idleness_counts_from_its_first_message() -> None:
    meter = LoadMeter(IDLE, (700, 0, 0, 0), 1_000_000, RULES, is_idle=True)
    report = meter.look(1_000_800, (700 + 51_000, 0, 0, 0), FAST)
    assert report is not None
    assert report.fast_rates == Rates(10_200.0), "over the five seconds, of which four were idle"
    assert report.rates == Rates(850.0)
    assert report.above_split_since_ms == 1_000_800


def test_burst_that_is_over_before_the_first_look_is_below_the_threshold_of_a_long_window() -> None:
    meter = LoadMeter(IDLE, NONE, 1_000_000, RULES, is_idle=True)
    assert meter.look(1_000_800, (51_000, 0, 0, 0), POLICY) is None
    assert meter.measured is not None
    assert meter.measured.rates == Rates(850.0), "not 51,000 in ten seconds"


def test_long_window_crosses_its_threshold_when_its_average_does() -> None:
    meter, messages, now_ms = LoadMeter(IDLE, NONE, 1_000_000, RULES, is_idle=True), 0, 1_000_000
    report = None
    while report is None or report.above_split_since_ms is None:
        now_ms, messages = now_ms + 800, messages + 16_000
        report = meter.look(now_ms, (messages, 0, 0, 0), POLICY) or report
        if report is not None:
            meter.written(report)
    assert 600_000 < messages <= 616_000
    assert report.reported_at_ms == now_ms


def test_window_that_ends_between_two_readings_counts_a_part_of_the_first() -> None:
    window = RateWindow(5_000, step_ms=500, passed_ms_min=1_000, now_ms=0, totals=NONE)
    for ms, total in ((800, 800), (1_600, 1_600)):
        window.rates(ms, (total, 0, 0, 0))
    assert window.rates(6_200, (1_600, 0, 0, 0)).msg_rate_in == pytest.approx(80.0), "of 1.2 s to 1.6 s"


def test_stored_report_of_a_hot_segment_is_repeated_once_a_minute() -> None:
    segment = Segment()
    segment.run(80, 20_000)
    repeated = []
    for _ in range(180):
        assert segment.run(1, 20_000) == [], "the load is steady: nothing is written"
        repeated.append(segment.meter.repeated(segment.now_ms))
    assert [one for one in repeated if one is not None] == [segment.reports[-1]] * 3
    segment.run(120, 0)
    assert segment.meter.repeated(segment.now_ms + 600_000) is None
