"""Counters of auto-scaling, and their metrics."""

from __future__ import annotations

from anabranch.broker.stats.scalable_topic_metrics import DECISIONS, SUPPRESSED, scaling_groups, segment_sums
from anabranch.controller.autoscale.scaling_totals import ScalingTotals
from anabranch.model.autoscale.decision import (
    ActionKind,
    Decision,
    Merge,
    Reason,
    Split,
    Suppressed,
    Suppression,
)
from anabranch.model.names import TopicName
from anabranch.runtime.prometheus_format import samples


def suppressed(kind: ActionKind, by: Suppression, segment: int) -> Suppressed:
    return Suppressed(kind, Reason.COLD, by, (segment,), "")


def test_evaluations_count_by_what_they_decide_and_each_forbidding_rule_once() -> None:
    totals = ScalingTotals()
    waits = tuple(suppressed(ActionKind.MERGE, Suppression.MERGE_WINDOW, one) for one in range(3))
    totals.decided(Decision(None, Reason.SUPPRESSED, "", waits))
    totals.decided(Decision(Split(0, (1,)), Reason.MSG_RATE_IN, "", waits[:1]))
    totals.decided(Decision(Merge((1, 2)), Reason.COLD))
    assert totals.decisions == {("none", "suppressed"): 1, ("split", "msg-rate-in"): 1, ("merge", "cold"): 1}
    assert totals.suppressed == {("merge", "merge-window"): 2}


def test_reaction_is_the_time_since_the_crossing_and_never_negative() -> None:
    totals = ScalingTotals()
    totals.reacted(1_000, 2_500)
    totals.reacted(9_000, 8_000)  # the clocks of owner and leader differ
    assert (totals.reactions, totals.reaction_ms) == (2, 1_500)


def test_series_have_action_and_reason_as_labels() -> None:
    totals = ScalingTotals(reactions=2, reaction_ms=1_500, load_reports=7)
    totals.decided(
        Decision(None, Reason.SUPPRESSED, "", (suppressed(ActionKind.MERGE, Suppression.CONSUMER_DEMAND, 1),))
    )
    (_, rows), (decisions, decided), (suppressions, forbidden) = scaling_groups(totals)
    assert [tuple(values) for _, values in rows] == [(7, 2, 1.5)]
    assert (decisions, suppressions) == (DECISIONS, SUPPRESSED)
    assert 'action="none",reason="suppressed"} 1' in samples(DECISIONS[0].name, decided, 0)
    assert 'action="merge",suppressed_by="consumer-demand"} 1' in samples(SUPPRESSED[0].name, forbidden, 0)


def test_sums_over_segments_have_the_name_of_their_topic() -> None:
    families, rows = segment_sums({TopicName.parse("topic://public/default/orders"): (1.0, 2.0, 3.0, 4.0, 5, 6)})
    assert 'topic="topic://public/default/orders"} 5\n' in samples(families[4].name, rows, 4)
