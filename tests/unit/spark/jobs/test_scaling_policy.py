"""A scaling policy on paper: when it splits and merges, and that cooldowns, windows and limits hold."""

from __future__ import annotations

import pytest

from anabranch.model.autoscale.policy import BadPolicy
from anabranch.spark.jobs.scaling_policy import SLOTS, Load, ScalePolicy, Scaler

QUICK = ScalePolicy(
    max_segments=8,
    split_cooldown_seconds=10,
    merge_cooldown_seconds=20,
    merge_window_seconds=30,
    split_msg_rate_in_threshold=100,
    merge_msg_rate_in_threshold=10,
)


def even(messages: float) -> dict[int, Load]:
    return {slot: Load(messages / SLOTS, messages) for slot in range(SLOTS)}


def run(scaler: Scaler, seconds: range, messages: float) -> None:
    for at in seconds:
        scaler.tick(float(at), even(messages))


def test_a_busy_segment_is_split_until_all_are_below_the_threshold() -> None:
    scaler = Scaler.of(QUICK, 1)
    run(scaler, range(1, 60), 350)
    assert [(step.kind, step.parents, step.children) for step in scaler.steps] == [
        ("split", (0,), (1, 2)),
        ("split", (1,), (3, 4)),
        ("split", (2,), (5, 6)),
    ]
    assert [step.at for step in scaler.steps] == [1, 11, 21], "one at a time, with a pause between them"
    assert "350 messages/s, more than 100" in scaler.steps[0].reason
    assert [(one.low, one.high) for one in scaler.parts] == [(0, 63), (64, 127), (128, 191), (192, 255)]
    assert scaler.ticks[-1].pressure < 1


def test_hot_key_is_isolated_and_the_rest_merged() -> None:
    scaler = Scaler.of(QUICK, 2)
    for at in range(1, 300):
        scaler.tick(float(at), {200: Load(500.0, 1.0)})
    assert [(part.low, part.high) for part in scaler.parts] == [(0, 199), (200, 200), (201, 255)]
    assert scaler.steps[0].parents == (1,), "the one that has it"
    assert max(one.segments for one in scaler.ticks) <= QUICK.max_segments
    assert scaler.ticks[-1].pressure == 5, "a slot is not divided: no policy helps against one key"


def test_bytes_count_too() -> None:
    scaler = Scaler.of(QUICK, 1)
    scaler.tick(1.0, {0: Load(1.0, 60_000_000.0)})
    assert "60,000,000 bytes/s, more than 50,000,000" in scaler.steps[0].reason


def test_idle_neighbours_are_merged_after_the_window() -> None:
    scaler = Scaler.of(QUICK, 4)
    run(scaler, range(1, 30), 350)
    assert not scaler.steps
    run(scaler, range(30, 200), 8)
    assert [step.kind for step in scaler.steps] == ["merge"] * 3
    assert [step.at for step in scaler.steps] == [60, 80, 111], "30 s of quiet each, 20 s between them"
    assert [(one.low, one.high, one.depth) for one in scaler.parts] == [(0, 255, 2)]
    run(scaler, range(200, 400), 8)
    assert len(scaler.parts) == 1


def test_what_is_not_quiet_for_long_enough_stays() -> None:
    scaler = Scaler.of(QUICK, 2)
    for at in range(1, 200):
        scaler.tick(float(at), even(60.0 if at % 20 == 0 else 1.0))
    assert not scaler.steps


def test_merges_do_not_stack_for_ever() -> None:
    flat = ScalePolicy(
        max_dag_depth=0, merge_window_seconds=0, merge_cooldown_seconds=0, merge_msg_rate_in_threshold=10
    )
    scaler = Scaler.of(flat, 4)
    run(scaler, range(1, 50), 0)
    assert not scaler.steps


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"maxSegment": "1"}, "a policy has no maxSegment; it has maxSegments"),
        ({"maxSegments": "many"}, "maxSegments is a number"),
        ({"minSegments": "9", "maxSegments": "8"}, "minSegments ≤ maxSegments"),
        ({"splitMsgRateInThreshold": "5"}, "each split threshold is above its merge threshold"),
        ({"splitCooldownSeconds": "-1"}, "not negative"),
    ],
)
def test_policies_that_make_no_sense(given: dict[str, str], text: str) -> None:
    with pytest.raises(BadPolicy) as caught:
        ScalePolicy.of(given)
    assert text in caught.value.reason


def test_policies_as_rest_writes_them() -> None:
    made = ScalePolicy.of({"maxSegments": "4", "splitMsgRateInThreshold": "5e3", "mergeWindowSeconds": "60"})
    assert (made.max_segments, made.split_msg_rate_in_threshold, made.merge_window_seconds) == (4, 5_000, 60)
    with pytest.raises(BadPolicy, match="a topic begins with 1 to 4 segments"):
        Scaler.of(made, 5)
