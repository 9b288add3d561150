"""Replay of recorded traffic and of synthetic days, without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from anabranch.cli.main import main
from anabranch.model.autoscale.policy import BadPolicy
from anabranch.model.autoscale.simulation import Traffic
from anabranch.spark.client.access import BadSparkOption
from anabranch.spark.jobs.plots import draw_simulations
from anabranch.spark.jobs.scaling_policy import ScalePolicy
from anabranch.spark.jobs.simulate import RecordedTraffic, synthetic, ticks_of

QUICK = ScalePolicy(
    split_cooldown_seconds=10,
    merge_cooldown_seconds=20,
    merge_window_seconds=30,
    split_msg_rate_in_threshold=100,
    merge_msg_rate_in_threshold=10,
)


def traffic(*ticks: Traffic) -> RecordedTraffic:
    return RecordedTraffic("topic", 10.0, None, 10.0 * len(ticks), 0, ticks)


def even(messages: float) -> Traffic:
    return Traffic(dict.fromkeys(range(256), (messages / 256, messages)))


def test_rows_become_ticks_of_rates_and_hot_hash_values_count_by_themselves() -> None:
    rows = [(0, 1, -1, 20, 200), (0, 1, 0x123, 40, 400), (1, 1, -1, 10, 100), (7, 2, -1, 5, 50), (-1, 3, -1, 1, 1)]
    messages, ticks = ticks_of(rows, 2, 0.1)
    assert messages == 76
    assert ticks == (
        Traffic({1: (2.0, 20.0), 3: (0.1, 0.1)}, {0x123: (4.0, 40.0)}),
        Traffic({1: (1.0, 10.0), 2: (0.5, 5.0)}),
    )


def test_busy_segment_is_split_until_all_are_below_the_threshold() -> None:
    found = traffic(*[even(350)] * 6).replay(QUICK)
    assert [(one.at, one.kind, one.parents, one.children) for one in found.steps] == [
        (10, "split", (0,), (1, 2)),
        (20, "split", (1,), (3, 4)),
        (30, "split", (2,), (5, 6)),
    ]
    assert "msg-rate-in: segment 0: 350 msg/s in, above 100" in found.steps[0].reason
    assert (found.segments_most, found.segments_last, found.seconds_above) == (4, 4, 30.0)
    assert found.ticks[-1].pressure < 1


def test_one_hot_key_is_recognised() -> None:
    hot = Traffic({}, {0x1234: (500.0, 500.0)})
    found = traffic(*[hot] * 100).replay(QUICK)
    assert (found.splits, found.segments_last) == (0, 1)


def test_readers_count_for_the_rates_out() -> None:
    policy = ScalePolicy(split_msg_rate_out_threshold=6_000)
    assert traffic(even(4_000)).replay(policy).splits == 0
    assert traffic(even(4_000)).replay(policy, readers=2).splits == 1


def test_first_number_of_segments_is_checked_with_the_policy() -> None:
    with pytest.raises(BadPolicy, match="a topic begins with 1 to 4 segments"):
        traffic(even(1)).replay(ScalePolicy(max_segments=4), segments=5)


def test_no_traffic_is_no_simulation() -> None:
    found = RecordedTraffic("topic", 10.0).replay()
    assert (found.splits, found.segments_most, found.changes_per_day, found.ticks) == (0, 1, 0.0, ())


def test_synthetic_day_has_the_traffic_of_its_scenario() -> None:
    day = synthetic("diurnal", tick_seconds=600, times=2.0)
    assert (len(day.ticks), day.seconds) == (144, 86_400)
    found = day.replay()
    assert max(one.total.messages for one in found.ticks) == pytest.approx(150_000, rel=0.01)
    assert min(one.total.messages for one in found.ticks) == pytest.approx(15_000, rel=0.01)
    assert found.splits > 3
    assert found.wasted_segment_hours > 0
    with pytest.raises(BadSparkOption, match="no scenario 'moon'"):
        synthetic("moon")


def test_picture_of_several_policies_names_each(tmp_path: Path) -> None:
    day = traffic(*[even(350)] * 20)
    draw_simulations({"quick": day.replay(QUICK), "default": day.replay()}, tmp_path / "both.svg")
    text = (tmp_path / "both.svg").read_text()
    assert "busiest segment, quick" in text
    assert "busiest segment, default" in text


def test_command_compares_policies_on_a_synthetic_day(capsys: pytest.CaptureFixture[str]) -> None:
    args = ["spark", "simulate", "--scenario", "bursts", "--tick", "300", "--policy", "splitCooldownSeconds=10"]
    assert main([*args, "--compare", "wide:splitFactorMax=8,splitPoint=load"]) == 0
    text = capsys.readouterr().out
    assert "CHANGES/DAY" in text and "wide" in text
    assert main(args) == 0
    assert "wasted segment hours" in capsys.readouterr().out
    assert main([*args, "topic://public/default/x"]) == 2
    assert "either a topic or --scenario" in capsys.readouterr().err
    assert main([*args, "--compare", "splitFactorMax=8"]) == 2
    assert main([*args, "--compare", "x:splitFactor=8"]) == 1
    assert "no field splitFactor" in capsys.readouterr().err
