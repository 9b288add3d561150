"""Prometheus metrics of scalable topics: what the controllers on this broker lead and have done. Pure.

Segments are topics with their own series (`topic="segment://…"`); here are the metrics that only the controller knows.
An autoscaler of consumers can follow the number of active segments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from anabranch.broker.catalog.policies import LOCAL_CLUSTER
from anabranch.controller.interface import LedTopic, ScalingTotals, Totals
from anabranch.model.names import TopicName
from anabranch.runtime.prometheus_format import Family, Row, counter, escaped, gauge, labels

TOTALS = (
    gauge("anabranch_scalable_topics_led", "Scalable topics that this broker leads"),
    counter("anabranch_scalable_leaderships_total", "Leader terms that this broker acquired"),
    counter("anabranch_scalable_splits_total", "Splits that were committed"),
    counter("anabranch_scalable_merges_total", "Merges that were committed"),
    counter("anabranch_scalable_operations_aborted_total", "Splits and merges that were aborted"),
    counter("anabranch_scalable_segments_sealed_total", "Segments that were sealed by splits and merges"),
    counter("anabranch_scalable_segments_collected_total", "Sealed segments deleted by retention"),
    counter("anabranch_scalable_operation_seconds_total", "Time from plan to commit, of all splits and merges"),
)
SCALING = (
    counter("anabranch_scalable_load_reports_total", "Load reports that this broker wrote for its segments"),
    counter("anabranch_scalable_auto_reactions_total", "Automatic splits because a segment passed a threshold"),
    counter(
        "anabranch_scalable_auto_reaction_seconds_total",
        "Time from the passed threshold until the children were active, of all these splits",
    ),
)
DECISIONS = (
    counter(
        "anabranch_scalable_auto_decisions_total",
        "Evaluations of led topics by what they decided (split, merge, none) and why",
    ),
)
SUPPRESSED = (
    counter(
        "anabranch_scalable_auto_suppressed_total",
        "Evaluations in which a split or merge was wanted and a rule did not allow it",
    ),
)
SEGMENT_SUMS = (
    gauge("pulsar_scalable_topic_rate_in", "Messages per second that came in, of the segments on this broker"),
    gauge("pulsar_scalable_topic_rate_out", "Messages per second that went out"),
    gauge("pulsar_scalable_topic_throughput_in", "Bytes per second that came in"),
    gauge("pulsar_scalable_topic_throughput_out", "Bytes per second that went out"),
    gauge("pulsar_scalable_topic_msg_backlog", "Entries (batches) not acknowledged, over all subscriptions"),
    gauge("pulsar_scalable_topic_storage_size", "Bytes stored"),
)
"""The sum over all brokers is that of the topic: `sum by (topic) (pulsar_scalable_topic_rate_in)`."""
TOPICS = (
    gauge("anabranch_scalable_active_segments", "Segments that are written to"),
    gauge("anabranch_scalable_sealed_segments", "Segments that are only read"),
    gauge("anabranch_scalable_epoch", "Layout epoch: grows with every change of the layout"),
    gauge("anabranch_scalable_operation_running", "1: a split, a merge or the deletion runs"),
    gauge("pulsar_scalable_topic_active_segments", "Segments that are written to (PIP-483)"),
    counter("pulsar_scalable_topic_auto_splits_total", "Automatic splits (PIP-483)"),
    counter("pulsar_scalable_topic_auto_merges_total", "Automatic merges (PIP-483)"),
    counter(
        "pulsar_scalable_topic_split_suppressed_max_segments_total",
        "Evaluations that wanted a split and found maxSegments reached (PIP-483)",
    ),
    counter(
        "pulsar_scalable_topic_merge_suppressed_max_depth_total",
        "Evaluations that wanted a merge and found maxDagDepth reached (PIP-483)",
    ),
)
GROUPS = (
    gauge("anabranch_scalable_consumers", "Consumers that share the segments, including those in their grace period"),
    gauge("anabranch_scalable_assignment_generation", "Generation of the assignment: grows with every rebalance"),
    gauge("anabranch_scalable_drained_segments", "Segments that the subscription has drained"),
    gauge("anabranch_scalable_waiting_segments", "Segments that no consumer gets until their parents are acknowledged"),
)

Group = tuple[tuple[Family, ...], list[Row]]


def segment_sums(sums: Mapping[TopicName, Sequence[float]]) -> Group:
    """`sums` over the segments on this broker, by scalable topic."""
    return SEGMENT_SUMS, [(_of_topic(topic), values) for topic, values in sums.items()]


def scaling_groups(totals: ScalingTotals) -> list[Group]:
    where = labels(cluster=LOCAL_CLUSTER)
    done = totals.load_reports, totals.reactions, totals.reaction_ms / 1000
    decisions: list[Row] = [
        (labels(cluster=LOCAL_CLUSTER, action=action, reason=reason), (count,))
        for (action, reason), count in sorted(totals.decisions.items())
    ]
    suppressed: list[Row] = [
        (labels(cluster=LOCAL_CLUSTER, action=action, suppressed_by=by), (count,))
        for (action, by), count in sorted(totals.suppressed.items())
    ]
    return [(SCALING, [(where, done)]), (DECISIONS, decisions), (SUPPRESSED, suppressed)]


def _of_topic(topic: TopicName) -> str:
    where = labels(cluster=LOCAL_CLUSTER)
    return f'{where},namespace="{escaped(topic.namespace_path)}",topic="{escaped(str(topic))}"'


def scalable_groups(totals: Totals, led: Sequence[LedTopic], topics_max: int) -> list[Group]:
    """At most `topics_max` topics have series."""
    where = labels(cluster=LOCAL_CLUSTER)
    done = (
        len(led),
        totals.leaderships,
        totals.splits,
        totals.merges,
        totals.aborted,
        totals.sealed,
        totals.collected,
        totals.operation_ms / 1000,
    )
    topics, groups = list[Row](), list[Row]()
    for one in led[:topics_max]:
        name = _of_topic(one.topic)
        auto = one.scaling
        counts = auto.splits, auto.merges, auto.split_suppressed_max_segments, auto.merge_suppressed_max_depth
        topics.append((name, (one.active, one.sealed, one.epoch, int(one.is_changing), one.active, *counts)))
        groups += [
            (f'{name},subscription="{escaped(it.subscription)}"', (it.consumers, it.generation, it.drained, it.waiting))
            for it in one.groups
        ]
    return [(TOTALS, [(where, done)]), (TOPICS, topics), (GROUPS, groups)]
