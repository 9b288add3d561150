"""Prometheus metrics of this broker, under Pulsar's names where Pulsar has them. Reads topics, changes nothing.

The page is made in pieces: the event loop gets a turn every few milliseconds, and a piece is sent before the next one
is made, so 10,000 topics cause neither a pause nor a large page in memory. Settings bound how many topics have their
own series; the others are summed by namespace.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence

from anabranch.broker.catalog.policies import LOCAL_CLUSTER
from anabranch.broker.publish import latency_histogram as latency
from anabranch.broker.schemas.counters import SchemaCounts
from anabranch.broker.stats.scalable_topic_metrics import (
    DECISIONS,
    GROUPS,
    SCALING,
    SEGMENT_SUMS,
    SUPPRESSED,
    TOPICS,
    TOTALS,
    scalable_groups,
    scaling_groups,
    segment_sums,
)
from anabranch.broker.subscription.subscription import Subscription
from anabranch.broker.topic.non_persistent_topic import MemorySubscription
from anabranch.broker.topic.topic import Topic
from anabranch.broker.topic_registry.factory import AnyTopic
from anabranch.broker.topic_registry.rate_sampler import Sampler
from anabranch.controller.interface import ScalableTopics
from anabranch.model.names import TopicName
from anabranch.runtime.clock import Clock
from anabranch.runtime.prometheus_format import Family, Row, counter, escaped, gauge, labels, samples, single
from anabranch.runtime.tasks import YieldBudget

ROWS_PER_PIECE = 500

TOPIC = (
    gauge("pulsar_subscriptions_count", "Subscriptions of the topic"),
    gauge("pulsar_producers_count", "Connected producers"),
    gauge("pulsar_consumers_count", "Connected consumers"),
    gauge("pulsar_rate_in", "Messages per second that came in"),
    gauge("pulsar_rate_out", "Messages per second that went out"),
    gauge("pulsar_throughput_in", "Bytes per second that came in"),
    gauge("pulsar_throughput_out", "Bytes per second that went out"),
    counter("pulsar_in_messages_total", "Messages that came in since the topic was loaded"),
    counter("pulsar_in_bytes_total", "Bytes that came in since the topic was loaded"),
    gauge("pulsar_average_msg_size", "Bytes of a message, on average since the topic was loaded"),
    gauge("pulsar_msg_backlog", "Entries (batches) not acknowledged, over all subscriptions"),
    gauge("pulsar_storage_size", "Bytes stored"),
)
NAMESPACE = (gauge("pulsar_topics_count", "Loaded topics"),)
SCHEMAS = (
    counter("pulsar_schema_compatible_total", "Schemas that went with those before them"),
    counter("pulsar_schema_incompatible_total", "Schemas that were refused for what came before them"),
    *(
        family
        for name, what in (("get", "asked for"), ("put", "registered"), ("del", "deleted"))
        for family in (
            counter(f"pulsar_schema_{name}_ops_total", f"Schemas {what}"),
            counter(f"pulsar_schema_{name}_ops_failed_total", f"Schemas that could not be {what}"),
        )
    ),
)
WRITE_LATENCY = (
    *(
        gauge(f"pulsar_storage_write_latency_{name}", f"Sampled publishes by how long they took in ms: {name}")
        for name in latency.NAMES
    ),
    gauge("pulsar_storage_write_latency_count", "Sampled publishes"),
    gauge("pulsar_storage_write_latency_sum", "Their time together in ms"),
)
SUBSCRIPTION = (
    gauge("pulsar_subscription_back_log", "Entries (batches) not acknowledged"),
    gauge("pulsar_subscription_delayed", "Messages waiting for their time"),
    gauge("pulsar_subscription_unacked_messages", "Messages delivered and not acknowledged"),
    gauge("pulsar_subscription_blocked_on_unacked_messages", "1: a consumer waits because it holds too many"),
    gauge("pulsar_subscription_consumers_count", "Connected consumers"),
    gauge("pulsar_subscription_msg_rate_out", "Messages per second that went out"),
    gauge("pulsar_subscription_msg_throughput_out", "Bytes per second that went out"),
    gauge("pulsar_subscription_msg_ack_rate", "Messages acknowledged per second"),
    gauge("pulsar_subscription_msg_rate_redeliver", "Messages delivered again per second"),
    counter("pulsar_out_messages_total", "Messages that went out since the topic was loaded"),
    counter("pulsar_out_bytes_total", "Bytes that went out since the topic was loaded"),
)
BROKER = (
    gauge("pulsar_broker_topics_count", "Loaded topics"),
    gauge("pulsar_broker_subscriptions_count", "Subscriptions of loaded topics"),
    gauge("pulsar_broker_producers_count", "Connected producers"),
    gauge("pulsar_broker_consumers_count", "Connected consumers"),
    gauge("pulsar_broker_rate_in", "Messages per second that came in"),
    gauge("pulsar_broker_rate_out", "Messages per second that went out"),
    gauge("pulsar_broker_throughput_in", "Bytes per second that came in"),
    gauge("pulsar_broker_throughput_out", "Bytes per second that went out"),
    gauge("pulsar_broker_msg_backlog", "Entries (batches) not acknowledged, over all subscriptions"),
    gauge("pulsar_broker_storage_size", "Bytes stored by loaded topics"),
)
OWN = {
    family.name: family
    for family in (
        gauge("anabranch_connections", "Open connections of clients"),
        gauge("anabranch_topics_loaded", "Topics in memory"),
        gauge("anabranch_producers", "Connected producers"),
        gauge("anabranch_consumers", "Connected consumers"),
        counter("anabranch_messages_in_total", "Messages that came in to the topics loaded now"),
        counter("anabranch_bytes_in_total", "Bytes that came in to the topics loaded now"),
        counter("anabranch_sign_ins_total", "Clients that signed in"),
        counter("anabranch_sign_ins_refused_total", "Sign-ins that were refused"),
        counter("anabranch_permissions_refused_total", "Requests of signed-in clients that were not allowed"),
        gauge("anabranch_metadata_migration_running", "1: this broker copies the metadata to another store"),
        gauge(
            "anabranch_metadata_migration_phase",
            "Of the last one coordinated here: 0 NOT_STARTED, 1 PREPARATION, 2 COPYING, 3 COMPLETED, 4 FAILED",
        ),
        gauge("anabranch_metadata_migration_records", "Records that the last such copy has written"),
        gauge("anabranch_metadata_migration_changed_keys", "Keys that changed and wait to be copied again"),
        gauge(
            "anabranch_metadata_migration_blocked_seconds",
            "Time that the last one made writes wait here",
        ),
        gauge(
            "anabranch_metrics_topics_left_out", "Topics without series of their own (see broker.metrics_topics_max)"
        ),
    )
}
VERSION = gauge("pulsar_version_info", "Always 1; the labels tell the version")
FAMILIES: tuple[Family, ...] = (
    VERSION,
    *BROKER,
    *OWN.values(),
    *NAMESPACE,
    *SCHEMAS,
    *TOPIC,
    *WRITE_LATENCY,
    *SUBSCRIPTION,
    *TOTALS,
    *SCALING,
    *DECISIONS,
    *SUPPRESSED,
    *SEGMENT_SUMS,
    *TOPICS,
    *GROUPS,
)

_MESSAGES, _BYTES, _AVERAGE, _BACKLOG, _STORED = 7, 8, 9, 10, 11  # places in TOPIC
_SUMMED = (3, 4, 5, 6, 10, 11)  # places in TOPIC of the values that SEGMENT_SUMS has
_RATES = 4  # of a subscription: messages out, bytes out, acknowledged, redelivered


class Metrics:
    def __init__(
        self, clock: Clock, sampler: Sampler, schemas: SchemaCounts, *, per_topic: bool, topics_max: int, version: str
    ) -> None:
        self._clock = clock
        self._sampler = sampler
        self._schemas = schemas
        self._topics_max = topics_max if per_topic else 0
        self._version = version

    async def page(
        self, topics: Sequence[AnyTopic], own: Callable[[], dict[str, float]], scalable: ScalableTopics | None = None
    ) -> AsyncIterator[bytes]:
        """The page in pieces; `own` returns the metrics that only the caller knows."""
        budget = YieldBudget(self._clock)
        gathered = _Gathered()
        for topic in topics:
            self._gather(topic, gathered)
            await budget.spend()
        yield self._of_broker(gathered, own()).encode()
        for group, rows in (
            (NAMESPACE, _namespace_rows(gathered.counts)),
            (SCHEMAS, _schema_rows(self._schemas)),
            (TOPIC, [*gathered.topics, *_rest_rows(gathered.rest)]),
            (WRITE_LATENCY, gathered.latencies),
            (SUBSCRIPTION, gathered.subscriptions),
            segment_sums(gathered.scalable),
            *(() if scalable is None else scaling_groups(scalable.scaling_totals)),
            *(() if scalable is None else scalable_groups(scalable.totals, scalable.led(), self._topics_max)),
        ):
            for column, family in enumerate(group):
                for text in _family(family, rows, column):
                    yield text.encode()
                    await budget.spend()

    def _of_broker(self, gathered: _Gathered, own: dict[str, float]) -> str:
        where = labels(cluster=LOCAL_CLUSTER)
        sums = gathered.sums
        values = [gathered.count, *sums[:_MESSAGES], sums[_BACKLOG], sums[_STORED]]
        text = single(VERSION, 1, f"{where},{labels(version=self._version)}")
        text += "".join(single(family, value, where) for family, value in zip(BROKER, values, strict=True))
        figures = {
            "anabranch_topics_loaded": gathered.count,
            "anabranch_producers": sums[1],
            "anabranch_consumers": sums[2],
            "anabranch_messages_in_total": sums[_MESSAGES],
            "anabranch_bytes_in_total": sums[_BYTES],
            "anabranch_metrics_topics_left_out": gathered.count - len(gathered.topics),
            **own,
        }
        return text + "".join(single(OWN[name], figures[name]) for name in OWN if name in figures)

    def _gather(self, topic: AnyTopic, into: _Gathered) -> None:
        sample = self._sampler.sample(topic)
        has_rows = len(into.topics) < self._topics_max
        where = f'{into.cluster},namespace="{escaped(topic.name.namespace_path)}",topic="{escaped(str(topic.name))}"'
        consumers = backlog = 0
        for name, subscription in topic.subscriptions.items():
            one = sample.subscriptions[name]
            behind = subscription.cursor.backlog_entries if isinstance(subscription, Subscription) else 0
            backlog += behind
            consumers += len(subscription.consumers)
            if has_rows:
                values = _subscription_values(subscription, behind, one.rates[:_RATES], one.totals)
                into.subscriptions.append((f'{where},subscription="{escaped(name)}"', values))
        messages, size = topic.messages_in, topic.bytes_in
        rate_in, throughput_in, rate_out, throughput_out = sample.rates
        values = (
            len(topic.subscriptions),
            len(topic.producers),
            consumers,
            rate_in,
            rate_out,
            throughput_in,
            throughput_out,
            messages,
            size,
            size / messages if messages else 0.0,
            backlog,
            topic.log.chain.bytes if isinstance(topic, Topic) else 0,
        )
        into.add(topic.name.namespace_path, values, is_rest=not has_rows)
        if topic.name.segment is not None and (has_rows or topic.name.scalable in into.scalable):
            _add(
                into.scalable.setdefault(topic.name.scalable, [0] * len(SEGMENT_SUMS)), [values[one] for one in _SUMMED]
            )
        if has_rows:
            into.topics.append((where, values))
            took = topic.publisher.latencies if isinstance(topic, Topic) else None
            if took is not None and took.count:
                into.latencies.append((where, (*took.buckets, took.count, round(took.sum_ms, 3))))


class _Gathered:
    """Rows of one page, and sums by namespace."""

    def __init__(self) -> None:
        self.cluster = labels(cluster=LOCAL_CLUSTER)
        self.count = 0
        self.sums: list[float] = [0] * len(TOPIC)
        self.counts: dict[str, int] = {}  # topics by namespace
        self.rest: dict[str, list[float]] = {}  # sums of the topics without rows, by namespace
        self.topics: list[Row] = []
        self.scalable: dict[TopicName, list[float]] = {}  # sums over segments, by scalable topic
        self.latencies: list[Row] = []
        self.subscriptions: list[Row] = []

    def add(self, namespace: str, values: Sequence[float], *, is_rest: bool) -> None:
        self.count += 1
        self.counts[namespace] = self.counts.get(namespace, 0) + 1
        _add(self.sums, values)
        if is_rest:
            _add(self.rest.setdefault(namespace, [0] * len(TOPIC)), values)


def _add(sums: list[float], values: Sequence[float]) -> None:
    for index, value in enumerate(values):
        sums[index] += value


def _subscription_values(
    subscription: Subscription | MemorySubscription, behind: int, rates: Sequence[float], totals: Sequence[int]
) -> tuple[float, ...]:
    consumers = subscription.consumers
    return (
        behind,
        subscription.delayed_count,
        sum(one.unacked_messages for one in consumers),
        int(any(one.is_blocked for one in consumers)),
        len(consumers),
        *rates,
        totals[0],
        totals[1],
    )


def _namespace_rows(counts: Mapping[str, int]) -> list[Row]:
    return [(labels(cluster=LOCAL_CLUSTER, namespace=name), (count,)) for name, count in counts.items()]


def _schema_rows(schemas: SchemaCounts) -> list[Row]:
    return [
        (
            labels(cluster=LOCAL_CLUSTER, namespace=name),
            (
                one.compatible,
                one.incompatible,
                one.got,
                one.got_failed,
                one.put,
                one.put_failed,
                one.deleted,
                one.deleted_failed,
            ),
        )
        for name, one in schemas.by_namespace.items()
    ]


def _rest_rows(rest: Mapping[str, list[float]]) -> list[Row]:
    """A row per namespace without a topic label, so that sums over all series stay right."""
    rows: list[Row] = []
    for name, sums in rest.items():
        averaged = list(sums)
        averaged[_AVERAGE] = sums[_BYTES] / sums[_MESSAGES] if sums[_MESSAGES] else 0.0
        rows.append((labels(cluster=LOCAL_CLUSTER, namespace=name), averaged))
    return rows


def _family(family: Family, rows: Sequence[Row], column: int) -> Iterator[str]:
    """One family in pieces; nothing without rows."""
    for start in range(0, len(rows), ROWS_PER_PIECE):
        text = samples(family.name, rows[start : start + ROWS_PER_PIECE], column)
        yield family.head + text if start == 0 else text
