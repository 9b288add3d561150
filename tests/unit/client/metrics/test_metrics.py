"""Rates of the last minute, latency quantiles, and the Prometheus text."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch import ClientMetrics, ConsumerMetrics, ProducerMetrics, SendLatency
from anabranch.client.metrics.counters import ConsumerCounters
from anabranch.client.metrics.latencies import BOUNDS, GROWTH, Latencies, quantile
from anabranch.client.metrics.prometheus_text import CONNECTIONS, CONSUMER, PRODUCER, MetricsText
from anabranch.client.metrics.window import SPACING_SECONDS, WINDOW_SECONDS, Sample, Window


def producer(topic: str = "t", *, messages: int = 0, **others: object) -> ProducerMetrics:
    values: dict[str, object] = {
        "topic": topic,
        "name": "p",
        "messages": messages,
        "bytes": 10 * messages,
        "batches": messages,
        "failed": 0,
        "errors": {},
        "pending_messages": 0,
        "pending_bytes": 0,
        "message_rate": 0.0,
        "byte_rate": 0.0,
        "latency": SendLatency(p50=None, p99=None, maximum=None, total=0.0, count=0),
    }
    return ProducerMetrics(**{**values, **others})  # type: ignore[arg-type]  # a mixture of types


def consumer(topic: str = "t", subscription: str = "s", **others: object) -> ConsumerMetrics:
    values: dict[str, object] = {
        "topic": topic,
        "subscription": subscription,
        "name": "c",
        "messages": 0,
        "bytes": 0,
        "batches": 0,
        "redelivered": 0,
        "rejected": 0,
        "nacks": 0,
        "dead_letters": 0,
        "prefetched": 0,
        "unacknowledged": 0,
        "segments": 1,
        "message_rate": 0.0,
        "byte_rate": 0.0,
        "age": None,
        "lag": None,
    }
    return ConsumerMetrics(**{**values, **others})  # type: ignore[arg-type]  # a mixture of types


def of(*ones: ProducerMetrics | ConsumerMetrics) -> ClientMetrics:
    return ClientMetrics(
        producers=[one for one in ones if isinstance(one, ProducerMetrics)],
        consumers=[one for one in ones if isinstance(one, ConsumerMetrics)],
        connections=1,
    )


def value(page: str, series: str) -> float:
    (found,) = re.findall(rf"^{re.escape(series)} (\S+)$", page, re.MULTILINE)
    return float(found)


# ------------------------------------------------------------------------------------------------------------- rates


def test_first_rate_is_since_the_opening() -> None:
    rates = Window(100.0).rates(Sample(110.0, 50, 1000))
    assert (rates.messages, rates.bytes) == (5.0, 100.0)


def test_rate_at_the_moment_of_opening_is_zero() -> None:
    assert Window(100.0).rates(Sample(100.0, 50, 1000)).messages == 0.0


def test_rate_is_over_the_last_minute_however_often_it_is_read() -> None:
    window, messages = Window(0.0), 0
    for second in range(1, 301):
        messages += 1000 if second <= 200 else 10
        rates = window.rates(Sample(float(second), messages, 0))
    assert rates.messages == pytest.approx(10.0, rel=0.01)
    assert len(window._samples) <= WINDOW_SECONDS / SPACING_SECONDS + 2


def test_rare_readings_measure_the_time_between_them() -> None:
    window = Window(0.0)
    window.rates(Sample(1000.0, 5000, 0))
    assert window.rates(Sample(3000.0, 7000, 0)).messages == 1.0


# ---------------------------------------------------------------------------------------------------------- latencies


@given(st.lists(st.floats(0.0001, 80.0), min_size=1, max_size=50), st.sampled_from([0.5, 0.99]))
def test_quantile_is_at_most_one_bucket_too_high(latencies: list[float], share: float) -> None:
    histogram = Latencies()
    for one in latencies:
        histogram.add(one)
    ordered = sorted(latencies)
    rank = next(n for n in range(1, len(ordered) + 1) if n >= share * len(ordered))
    exact = ordered[rank - 1]
    found = quantile(histogram.counts, share)
    assert found is not None
    assert exact <= found * 1.0000001
    assert found <= exact * GROWTH * 1.0000001


def test_quantile_of_nothing_is_unknown_and_of_extremes_is_bounded() -> None:
    histogram = Latencies()
    assert quantile(histogram.counts, 0.5) is None
    histogram.add(-1.0)
    assert quantile(histogram.counts, 0.5) == BOUNDS[0]
    histogram.add(1e9)
    assert quantile(histogram.counts, 0.99) == BOUNDS[-1]
    assert histogram.maximum == 1e9


def test_quantile_is_not_above_the_highest_latency() -> None:
    histogram = Latencies()
    histogram.add(0.0101)
    assert quantile(histogram.counts, 0.99, histogram.maximum) == 0.0101


def test_quantiles_are_of_the_window_only() -> None:
    window, histogram = Window(0.0), Latencies()
    for _ in range(1000):
        histogram.add(10.0)
    window.rates(Sample(10.0, latencies=tuple(histogram.counts)))
    for _ in range(10):
        histogram.add(0.001)
    rates = window.rates(Sample(100.0, latencies=tuple(histogram.counts)))
    assert sum(rates.latencies) == 10
    found = quantile(rates.latencies, 0.99)
    assert found is not None
    assert found < 0.0013


def test_age_is_the_time_from_publishing_to_arrival() -> None:
    counters = ConsumerCounters()
    assert counters.age_s(10_000, 50.0) is None
    counters.publish_time_ms, counters.arrived_at = 5_000, 47.0
    assert counters.age_s(10_000, 50.0) == 2.0


# --------------------------------------------------------------------------------------------------------------- text


def test_every_family_is_on_the_page_once() -> None:
    page = MetricsText().page(of(producer(), consumer()))
    for family in (CONNECTIONS, *PRODUCER, *CONSUMER):
        assert page.count(f"# TYPE {family.name} {family.kind}\n") == 1
    assert all(line.startswith(("#", "anabranch_client_")) for line in page.splitlines())


def test_producers_of_one_topic_are_summed_up() -> None:
    page = MetricsText().page(
        of(
            producer(messages=3, errors={"timeout": 2}, pending_messages=1),
            producer(messages=4, errors={"timeout": 1, "closed": 5}, pending_messages=2),
            producer("u", messages=1, latency=SendLatency(p50=0.1, p99=0.2, maximum=0.3, total=0.5, count=3)),
        )
    )
    assert value(page, 'anabranch_client_send_messages_total{topic="t"}') == 7
    assert value(page, 'anabranch_client_send_bytes_total{topic="t"}') == 70
    assert value(page, 'anabranch_client_send_failures_total{topic="t",code="timeout"}') == 3
    assert value(page, 'anabranch_client_send_failures_total{topic="t",code="closed"}') == 5
    assert value(page, 'anabranch_client_send_pending_messages{topic="t"}') == 3
    assert value(page, 'anabranch_client_producers{topic="t"}') == 2
    assert value(page, 'anabranch_client_send_latency_seconds{topic="u",quantile="0.99"}') == 0.2
    assert value(page, 'anabranch_client_send_latency_seconds_sum{topic="u"}') == 0.5
    assert value(page, 'anabranch_client_send_latency_seconds_count{topic="u"}') == 3


def test_unknown_values_have_no_series() -> None:
    page = MetricsText().page(of(consumer(), consumer(subscription="known", lag=12, age=0.25)))
    assert value(page, 'anabranch_client_receive_lag_messages{topic="t",subscription="known"}') == 12
    assert value(page, 'anabranch_client_receive_age_seconds{topic="t",subscription="known"}') == 0.25
    assert 'anabranch_client_receive_lag_messages{topic="t",subscription="s"}' not in page


def test_counters_do_not_go_back_when_producers_and_consumers_close() -> None:
    text = MetricsText()
    series = 'anabranch_client_receive_messages_total{topic="t",subscription="s"}'
    assert value(text.page(of(consumer(messages=5, prefetched=3))), series) == 5
    text.closed(of(consumer(messages=6), producer(messages=2, errors={"closed": 1})))
    page = text.page(of(consumer(messages=1)))
    assert value(page, series) == 7
    assert value(page, 'anabranch_client_receive_prefetched_messages{topic="t",subscription="s"}') == 0
    assert value(page, 'anabranch_client_send_messages_total{topic="t"}') == 2
    assert value(page, 'anabranch_client_send_failures_total{topic="t",code="closed"}') == 1


def test_number_of_series_is_bounded_and_sums_stay_right() -> None:
    text = MetricsText(labels_max=3)
    page = text.page(
        of(*(producer(f"t{n}", messages=1) for n in range(10)), *(consumer(f"t{n}", messages=1) for n in range(10)))
    )
    sent = re.findall(r'^anabranch_client_send_messages_total\{topic="(\w+)"\} (\d+)$', page, re.MULTILINE)
    assert sent == [("t0", "1"), ("t1", "1"), ("t2", "1"), ("other", "7")]
    assert value(page, 'anabranch_client_receive_messages_total{topic="other",subscription="other"}') == 7


def test_labels_are_escaped() -> None:
    page = MetricsText().page(of(consumer(subscription='a"b\\c\n')))
    assert 'subscription="a\\"b\\\\c\\n"' in page
