"""Prints docs/reference/metrics.md from the families that the broker writes: `python -m scripts.metrics_reference`."""

from __future__ import annotations

from anabranch.broker.stats.metrics import BROKER, NAMESPACE, OWN, SCHEMAS, SUBSCRIPTION, TOPIC, VERSION, WRITE_LATENCY
from anabranch.broker.stats.scalable_topic_metrics import (
    DECISIONS,
    GROUPS,
    SCALING,
    SEGMENT_SUMS,
    SUPPRESSED,
    TOPICS,
    TOTALS,
)
from anabranch.client.metrics.prometheus_text import CONNECTIONS, CONSUMER, PRODUCER
from anabranch.runtime.prometheus_format import Family

HEAD = """\
# Reference: metrics

`GET /metrics` on the HTTP port, in Prometheus' text format. `python -m scripts.metrics_reference` generates this page.

* Names are Pulsar's where Pulsar has them, so its dashboards work; types are correct (Pulsar declares
  almost everything a gauge). Every `pulsar_` series has the label `cluster`.
* Rates are over the last minute; the broker samples its counters every 10 seconds, independent of scrapes.
  Counters begin at 0 when a topic is loaded; `rate()` and `increase()` of Prometheus handle that.
* Backlogs count entries (batches), as Pulsar's do.
* Publish latencies are sampled: one publish of a topic at a time, from its arrival to its receipt. Buckets are not
  cumulative, as in Pulsar.
* Series are bounded: `broker.metrics_topics = false` has none per topic, `broker.metrics_topics_max` limits how many
  topics have separate series. The others are summed up in one series per namespace, without the label `topic`, so
  sums over all series stay correct; `anabranch_metrics_topics_left_out` is their number.
* Only loaded topics count. An unused one is unloaded after `broker.idle_topic_seconds`.
* A segment of a scalable topic is a topic with the name `segment://…`; metrics of its controller come after topics.
* Metrics of the SDK are not on the broker: `client.metrics_text()` returns them ([guide](../guides/sdk.md#metrics)).

[grafana-dashboard.json](../operations/grafana-dashboard.json) is a dashboard to import.
"""
PARTS: tuple[tuple[str, str, tuple[Family, ...]], ...] = (
    ("The broker", "`cluster`", (VERSION, *BROKER)),
    ("The broker, under our own names", "none", tuple(OWN.values())),
    ("Namespaces", "`cluster`, `namespace`", (*NAMESPACE, *SCHEMAS)),
    ("Topics", "`cluster`, `namespace`, `topic`", (*TOPIC, *WRITE_LATENCY)),
    ("Subscriptions", "`cluster`, `namespace`, `topic`, `subscription`", SUBSCRIPTION),
    ("Controllers of scalable topics", "`cluster`", TOTALS),
    ("Automatic split and merge", "`cluster`", SCALING),
    ("Decisions of auto-scaling", "`cluster`, `action`, `reason`", DECISIONS),
    ("What auto-scaling did not do", "`cluster`, `action`, `suppressed_by`", SUPPRESSED),
    ("Scalable topics, on the broker that leads them", "`cluster`, `namespace`, `topic`", TOPICS),
    (
        "Scalable topics, on each broker with segments of them",
        "`cluster`, `namespace`, `topic`; sum over brokers",
        SEGMENT_SUMS,
    ),
    ("Ordered subscriptions of scalable topics", "`cluster`, `namespace`, `topic`, `subscription`", GROUPS),
    ("The SDK", "none", (CONNECTIONS,)),
    ("Producers of the SDK", "`topic`; failures also `code`, latencies also `quantile`", PRODUCER),
    ("Consumers of the SDK", "`topic`, `subscription`", CONSUMER),
)


def page() -> str:
    parts = [HEAD]
    for title, where, families in PARTS:
        rows = "\n".join(f"| `{family.name}` | {family.kind} | {family.help} |" for family in families)
        parts.append(f"\n## {title}\n\nLabels: {where}.\n\n| name | type | meaning |\n|---|---|---|\n{rows}\n")
    return "".join(parts)


if __name__ == "__main__":
    print(page(), end="")
