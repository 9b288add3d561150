"""The parts of /metrics: rates, buckets, text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.broker.publish.latency_histogram import NAMES, Latencies
from anabranch.broker.stats.metrics import FAMILIES
from anabranch.broker.topic_registry.rate_meter import WINDOW_SECONDS, Meter
from anabranch.runtime.prometheus_format import Family, escaped, gauge, labels, samples, single


def test_first_reading_has_rate_zero() -> None:
    assert Meter().rates(10.0, (5, 7)) == (0.0, 0.0)


def test_rate_is_growth_per_second() -> None:
    meter = Meter()
    meter.rates(0.0, (0, 100))
    assert meter.rates(10.0, (50, 100)) == (5.0, 0.0)
    assert meter.rates(20.0, (50, 300)) == (2.5, 10.0)


def test_growth_before_the_window_does_not_count() -> None:
    meter = Meter()
    for second in range(0, 200, 10):
        meter.rates(float(second), (second * 3 if second < 100 else 300,))
    assert meter.rates(200.0, (300,)) == (0.0,)


def test_counter_reset_gives_no_negative_rate() -> None:
    meter = Meter()
    meter.rates(0.0, (100,))
    assert meter.rates(10.0, (5,)) == (0.0,)
    assert meter.rates(20.0, (25,)) == (2.0,)


@given(st.lists(st.tuples(st.floats(0.0, 40.0), st.integers(0, 1000)), min_size=1, max_size=300))
def test_rates_are_within_bounds_and_memory_is_bounded(steps: list[tuple[float, int]]) -> None:
    meter, now, value = Meter(), 0.0, 0
    speeds: list[float] = []
    meter.rates(now, (value,))
    for seconds, growth in steps:
        seconds = max(seconds, 0.01)
        now += seconds
        value += growth
        speeds.append(growth / seconds)
        (rate,) = meter.rates(now, (value,))
        assert min(speeds) - 1e-6 <= rate <= max(speeds) + 1e-6
        assert len(meter._readings) <= 8


def test_the_window_is_about_a_minute() -> None:
    meter = Meter()
    for tenth in range(3000):  # looked at ten times a second: 1/s for four minutes, then 5/s
        now = tenth / 10
        (rate,) = meter.rates(now, (int(now) if now < 240 else 240 + int((now - 240) * 5),))
    assert rate == pytest.approx(5.0, rel=0.25)
    assert WINDOW_SECONDS == 60.0


@pytest.mark.parametrize(
    ("ms", "bucket"),
    [(0.1, "le_0_5"), (0.5, "le_0_5"), (0.6, "le_1"), (19.0, "le_20"), (1000, "le_1000"), (1001, "overflow")],
)
def test_latencies_are_counted_in_pulsars_buckets(ms: float, bucket: str) -> None:
    took = Latencies()
    took.record(ms / 1000)
    assert dict(zip(NAMES, took.buckets, strict=True)) == {name: int(name == bucket) for name in NAMES}
    assert (took.count, took.sum_ms) == (1, pytest.approx(ms))


def test_text() -> None:
    family = gauge("g", "What it is")
    assert single(family, 3) == "# HELP g What it is\n# TYPE g gauge\ng 3\n"
    assert samples("g", [(labels(a="x", b='q"\\\n'), (1, 2.5))], 1) == 'g{a="x",b="q\\"\\\\\\n"} 2.5\n'
    assert escaped("plain") == "plain"
    with pytest.raises(AssertionError):
        Family("no_suffix", "counter", "")


def test_every_family_has_one_name_one_type_and_help() -> None:
    names = [family.name for family in FAMILIES]
    assert len(names) == len(set(names))
    assert all(family.help and "\n" not in family.help for family in FAMILIES)
