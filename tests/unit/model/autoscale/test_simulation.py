"""Whole simulated days: how often a topic changes, how long it is too hot, and that an idle topic is left alone."""

from __future__ import annotations

import pytest

from anabranch.model.autoscale.decision import Reason, Suppression
from anabranch.model.autoscale.evaluator import decide
from anabranch.model.autoscale.policy import AutoScalePolicy, SplitPoint
from anabranch.model.autoscale.scenarios import DAY_SECONDS, SCENARIOS
from anabranch.model.autoscale.simulation import SLOTS, SimulatedTopic, Traffic

IDLE = Traffic({})


def day(name: str, policy: AutoScalePolicy, tick_seconds: float = 20) -> SimulatedTopic:
    topic = SimulatedTopic(policy, tick_seconds=tick_seconds)
    for traffic in SCENARIOS[name].traffic(tick_seconds):
        topic.tick(traffic)
    return topic


def even(messages: float) -> Traffic:
    return Traffic(dict.fromkeys(range(SLOTS), (messages / SLOTS, messages)))


def test_day_with_a_tenfold_curve_and_bursts_has_few_changes_and_is_seldom_too_hot() -> None:
    found = day("bursts", AutoScalePolicy(), tick_seconds=10).outcome()
    assert 10 <= found.changes <= 60
    assert 0 < found.seconds_above < 0.01 * DAY_SECONDS
    assert found.segments_most >= 8


@pytest.mark.parametrize("name", ["bursts", "growing"])
def test_each_day_of_a_week_is_merged_like_the_one_before(name: str) -> None:
    topic = SimulatedTopic(AutoScalePolicy(), tick_seconds=60)
    merges, last = list[int](), list[int]()
    for _ in range(7):
        before = len(topic.steps)
        for traffic in SCENARIOS[name].traffic(60):
            topic.tick(traffic)
        merges.append(sum(one.kind == "merge" for one in topic.steps[before:]))
        last.append(len(topic.layout.active))
    assert max(last) <= min(last) + 1, "the nights have about the same number of segments"
    assert min(merges[1:]) >= 0.9 * max(merges[1:])


def test_load_that_comes_and_goes_every_ten_minutes_is_merged_ten_times_and_then_once_an_hour() -> None:
    policy = AutoScalePolicy(merge_window_seconds=60, merge_cooldown_seconds=60)
    topic = SimulatedTopic(policy, tick_seconds=30)
    hours = 12
    for number in range(hours * 120):
        topic.tick(even(15_000) if number // 20 % 2 == 0 else IDLE)
    merges = [one.at for one in topic.steps if one.kind == "merge"]
    assert len(merges) <= 10 + hours
    assert sum(at > (hours - 2) * 3600 for at in merges) <= 2


def test_idle_topic_with_eight_stream_consumers_does_not_change_in_a_day_after_it_has_eight_segments() -> None:
    topic = SimulatedTopic(AutoScalePolicy(), tick_seconds=60)
    for _ in range(10):
        topic.tick(IDLE, consumers=8)
    assert len(topic.layout.active) == 8
    converged = len(topic.steps)
    for _ in range(DAY_SECONDS // 60):
        decision = topic.tick(IDLE, consumers=8)
    assert len(topic.steps) == converged == 7
    assert (decision.suppressed_by, decision.due_at_ms) == ((Suppression.CONSUMER_DEMAND,), None)


def test_segments_are_merged_when_their_consumers_leave() -> None:
    topic = SimulatedTopic(AutoScalePolicy(), tick_seconds=60)
    for _ in range(10):
        topic.tick(IDLE, consumers=4)
    for _ in range(60):
        topic.tick(IDLE, consumers=1)
    assert len(topic.layout.active) == 1


def test_thresholds_close_to_each_other_do_not_make_merge_and_split_alternate() -> None:
    policy = AutoScalePolicy(merge_msg_rate_in_threshold=9_000, merge_cooldown_seconds=0, merge_window_seconds=60)
    topic = SimulatedTopic(policy, tick_seconds=30)
    for _ in range(400):
        topic.tick(even(50_000))
    assert [one.kind for one in topic.steps] == ["split"] * 7
    assert {one.suppressed_by for one in topic.tick(even(50_000)).suppressed} == {Suppression.PROJECTED_LOAD}


def test_one_hot_key_is_not_split_for_ever_and_is_named() -> None:
    topic = SimulatedTopic(AutoScalePolicy(), tick_seconds=60)
    spread = even(8_000)
    for _ in range(120):
        topic.tick(Traffic(spread.slots, {0x1234: (30_000.0, 30_000.0)}))
    decision = topic.tick(Traffic(spread.slots, {0x1234: (30_000.0, 30_000.0)}))
    assert decision.reason is Reason.SUPPRESSED
    assert Suppression.HOT_KEY in decision.suppressed_by
    assert "'key-1234' (hash 1234)" in decision.detail
    assert len(topic.layout.active) <= 2


def test_cuts_by_load_need_fewer_changes_when_keys_are_uneven() -> None:
    midpoint, load = (day("growing", AutoScalePolicy(split_point=one), 60).outcome() for one in SplitPoint)
    assert load.changes < midpoint.changes
    assert load.seconds_above < midpoint.seconds_above


def test_split_in_eight_reaches_the_needed_segments_in_one_step() -> None:
    topic = SimulatedTopic(AutoScalePolicy(split_factor_max=8), tick_seconds=10)
    topic.tick(even(75_000))
    assert len(topic.layout.active) == 8
    for _ in range(100):
        topic.tick(even(75_000))
    assert topic.outcome().changes == 1


def test_sixty_four_segments_need_two_splits_each_with_short_window_and_no_cooldown() -> None:
    policy = AutoScalePolicy(split_factor_max=8, split_cooldown_seconds=0, split_rate_window_seconds=5)
    topic = SimulatedTopic(policy, tick_seconds=1)
    while len(topic.layout.active) < 64 and len(topic.ticks) < 60:
        topic.tick(even(640_000))
    assert len(topic.layout.active) == 64
    assert len(topic.steps) == 9


def test_rates_of_a_part_of_a_slot_are_in_proportion() -> None:
    topic = SimulatedTopic(AutoScalePolicy(max_segments=65_536), segments=1024, tick_seconds=60)
    topic.tick(Traffic({0: (400.0, 800.0)}, {0x41: (7.0, 7.0)}))
    found = [topic.loads[one.segment_id].rates.msg_rate_in for one in topic.layout.active[:5]]
    assert found == pytest.approx([100, 107, 100, 100, 0])


def test_outcome_counts_segments_that_the_load_does_not_need() -> None:
    topic = SimulatedTopic(AutoScalePolicy(enabled=False), segments=4, tick_seconds=3600)
    topic.tick(even(15_000))
    found = topic.outcome()
    assert (found.wasted_segment_hours, found.segments_most, found.changes) == (2.0, 4, 0)
    assert decide(topic.layout, topic.loads, [], topic.policy, topic.history, 0).reason is Reason.DISABLED
