"""Metrics of a client in Prometheus' text format.

Series have the labels topic and subscription, not the names of producers and consumers, which may be random: those of
one topic are summed up. Producers and consumers that are closed stay in the counters, so counters never go back. At
most `LABELS_MAX` topics (and pairs of topic and subscription) have series of their own, the others are summed up under
`topic="other"`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from anabranch.client.metrics.metrics import ClientMetrics, ConsumerMetrics, ProducerMetrics
from anabranch.runtime.prometheus_format import Family, Row, counter, gauge, labels, samples, single

M = TypeVar("M")

LABELS_MAX = 1000
OTHER = "other"

PRODUCER_COUNTERS: dict[Family, Callable[[ProducerMetrics], float]] = {
    counter("anabranch_client_send_messages_total", "Messages stored by the broker"): lambda one: one.messages,
    counter("anabranch_client_send_bytes_total", "About the size of these on the wire"): lambda one: one.bytes,
    counter("anabranch_client_send_batches_total", "Entries with these"): lambda one: one.batches,
}
FAILURES = counter("anabranch_client_send_failures_total", "Messages that failed, by the label code")
PRODUCER_GAUGES: dict[Family, Callable[[ProducerMetrics], float]] = {
    gauge("anabranch_client_producers", "Open producers"): lambda one: 1,
    gauge("anabranch_client_send_pending_messages", "Messages without a receipt"): lambda one: one.pending_messages,
    gauge("anabranch_client_send_pending_bytes", "Bytes of these"): lambda one: one.pending_bytes,
}
LATENCY = Family(
    "anabranch_client_send_latency_seconds",
    "summary",
    "From the call to the receipt, per entry; quantiles of about the last minute, the highest of all producers",
)
CONSUMER_COUNTERS: dict[Family, Callable[[ConsumerMetrics], float]] = {
    counter("anabranch_client_receive_messages_total", "Messages that arrived from brokers"): lambda one: one.messages,
    counter("anabranch_client_receive_bytes_total", "Bytes of entries that arrived"): lambda one: one.bytes,
    counter("anabranch_client_receive_batches_total", "Entries that arrived"): lambda one: one.batches,
    counter("anabranch_client_receive_redelivered_total", "Of these, redelivered entries"): lambda one: one.redelivered,
    counter("anabranch_client_receive_rejected_total", "Entries that could not be read"): lambda one: one.rejected,
    counter("anabranch_client_nacks_total", "Negative acknowledgements"): lambda one: one.nacks,
    counter("anabranch_client_dead_letters_total", "Messages moved to dead letter topics"): lambda one: (
        one.dead_letters
    ),
}
CONSUMER_GAUGES: dict[Family, Callable[[ConsumerMetrics], float]] = {
    gauge("anabranch_client_consumers", "Open consumers"): lambda one: 1,
    gauge("anabranch_client_receive_prefetched_messages", "Messages that wait for the application"): (
        lambda one: one.prefetched
    ),
    gauge("anabranch_client_receive_unacknowledged_messages", "Messages that the application has not acknowledged"): (
        lambda one: one.unacknowledged
    ),
    gauge("anabranch_client_receive_segments", "Partitions and segments that are attached"): lambda one: one.segments,
}
AGE = gauge("anabranch_client_receive_age_seconds", "From the publish time of the last entry to its arrival")
LAG = gauge("anabranch_client_receive_lag_messages", "Messages not acknowledged, at the last call of lag()")
CONNECTIONS = gauge("anabranch_client_connections", "Connections to brokers")
PRODUCER: tuple[Family, ...] = (*PRODUCER_COUNTERS, FAILURES, *PRODUCER_GAUGES, LATENCY)
CONSUMER: tuple[Family, ...] = (*CONSUMER_COUNTERS, *CONSUMER_GAUGES, AGE, LAG)


class _Totals:
    """Counters of one label set that no longer change."""

    def __init__(self) -> None:
        self.values: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.latency_count = 0
        self.latency_s = 0.0


class MetricsText:
    """Keeps the counters of closed producers and consumers, and writes the page."""

    def __init__(self, labels_max: int = LABELS_MAX) -> None:
        self._labels_max = labels_max
        self._producer_labels: dict[str, _Totals] = {}
        self._consumer_labels: dict[tuple[str, str], _Totals] = {}

    def closed(self, metrics: ClientMetrics) -> None:
        """These producers and consumers were closed; call it once for each."""
        for producer in metrics.producers:
            totals = self._producer_labels[self._topic_of(producer)]
            _add(totals.values, PRODUCER_COUNTERS, producer)
            totals.errors.update(producer.errors)
            totals.latency_count += producer.latency.count
            totals.latency_s += producer.latency.total
        for consumer in metrics.consumers:
            _add(self._consumer_labels[self._subscription_of(consumer)].values, CONSUMER_COUNTERS, consumer)

    def page(self, metrics: ClientMetrics) -> str:
        producers: defaultdict[str, list[ProducerMetrics]] = defaultdict(list)
        consumers: defaultdict[tuple[str, str], list[ConsumerMetrics]] = defaultdict(list)
        for producer in metrics.producers:
            producers[self._topic_of(producer)].append(producer)
        for consumer in metrics.consumers:
            consumers[self._subscription_of(consumer)].append(consumer)
        parts = [single(CONNECTIONS, metrics.connections)]
        sending = [(labels(topic=topic), totals, producers[topic]) for topic, totals in self._producer_labels.items()]
        parts += _groups(PRODUCER_COUNTERS, ((where, totals.values, ones) for where, totals, ones in sending))
        parts.append(FAILURES.head)
        for where, totals, open_producers in sending:
            errors = sum((Counter(one.errors) for one in open_producers), Counter(totals.errors))
            parts += [f"{FAILURES.name}{{{where},{labels(code=code)}}} {count}\n" for code, count in errors.items()]
        parts += _groups(PRODUCER_GAUGES, ((where, Counter(), ones) for where, _, ones in sending))
        parts.append(LATENCY.head)
        for where, totals, open_producers in sending:
            parts += _latency(where, totals, open_producers)
        receiving = [
            (labels(topic=key[0], subscription=key[1]), totals, consumers[key])
            for key, totals in self._consumer_labels.items()
        ]
        parts += _groups(CONSUMER_COUNTERS, ((where, totals.values, ones) for where, totals, ones in receiving))
        parts += _groups(CONSUMER_GAUGES, ((where, Counter(), ones) for where, _, ones in receiving))
        for family, values_of in ((AGE, _ages), (LAG, _lags)):
            known = [(where, values_of(ones)) for where, _, ones in receiving]
            parts.append(family.head)
            parts.append(samples(family.name, [(where, [max(found)]) for where, found in known if found], 0))
        return "".join(parts)

    def _topic_of(self, one: ProducerMetrics) -> str:
        topic = one.topic
        if topic not in self._producer_labels and len(self._producer_labels) >= self._labels_max:
            topic = OTHER
        self._producer_labels.setdefault(topic, _Totals())
        return topic

    def _subscription_of(self, one: ConsumerMetrics) -> tuple[str, str]:
        key = (one.topic, one.subscription)
        if key not in self._consumer_labels and len(self._consumer_labels) >= self._labels_max:
            key = (OTHER, OTHER)
        self._consumer_labels.setdefault(key, _Totals())
        return key


def _add(totals: Counter[str], families: Mapping[Family, Callable[[M], float]], one: M) -> None:
    for family, value_of in families.items():
        totals[family.name] += int(value_of(one))


def _groups(
    families: Mapping[Family, Callable[[M], float]], groups: Iterable[tuple[str, Counter[str], Sequence[M]]]
) -> list[str]:
    """The text of some families: per label set what is closed and the sum of what is open."""
    rows: list[Row] = [
        (where, [totals[family.name] + sum(map(value_of, ones)) for family, value_of in families.items()])
        for where, totals, ones in groups
    ]
    return [f"{family.head}{samples(family.name, rows, column)}" for column, family in enumerate(families)]


def _latency(where: str, totals: _Totals, producers: Sequence[ProducerMetrics]) -> list[str]:
    found = []
    for name, quantiles in (
        ("0.5", [one.latency.p50 for one in producers]),
        ("0.99", [one.latency.p99 for one in producers]),
    ):
        known = [one for one in quantiles if one is not None]
        if known:
            found.append(f'{LATENCY.name}{{{where},quantile="{name}"}} {max(known)!r}\n')
    total_s = totals.latency_s + sum(one.latency.total for one in producers)
    count = totals.latency_count + sum(one.latency.count for one in producers)
    return [*found, f"{LATENCY.name}_sum{{{where}}} {total_s!r}\n", f"{LATENCY.name}_count{{{where}}} {count}\n"]


def _ages(consumers: Sequence[ConsumerMetrics]) -> list[float]:
    return [one.age for one in consumers if one.age is not None]


def _lags(consumers: Sequence[ConsumerMetrics]) -> list[float]:
    return [one.lag for one in consumers if one.lag is not None]
