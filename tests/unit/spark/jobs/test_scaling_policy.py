"""Policies of simulations, as Python and the command line give them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from anabranch.model.autoscale.policy import AutoScalePolicy, BadPolicy, SplitPoint
from anabranch.spark.jobs.scaling_policy import ScalePolicy


def test_defaults_are_those_of_the_broker() -> None:
    assert ScalePolicy().auto_scale() == AutoScalePolicy()
    assert ScalePolicy.of({}) == ScalePolicy()


def test_positional_fields_keep_their_order() -> None:
    assert ScalePolicy(8, 2, 3, 10, 20, 30, 100, 200, 10, 20).auto_scale() == AutoScalePolicy(
        max_segments=8,
        min_segments=2,
        max_dag_depth=3,
        split_cooldown_seconds=10,
        merge_cooldown_seconds=20,
        merge_window_seconds=30,
        split_msg_rate_in_threshold=100,
        split_bytes_rate_in_threshold=200,
        merge_msg_rate_in_threshold=10,
        merge_bytes_rate_in_threshold=20,
    )


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"maxSegment": "1"}, "no field maxSegment in a policy"),
        ({"maxSegments": "many"}, "maxSegments is a whole number"),
        ({"minSegments": "9", "maxSegments": "8"}, "maxSegments (8) is below minSegments (9)"),
        ({"splitMsgRateInThreshold": "5"}, "splitMsgRateInThreshold (5) is not above mergeMsgRateInThreshold (1000)"),
        ({"splitCooldownSeconds": "-1"}, "splitCooldownSeconds is 0"),
    ],
)
def test_policies_that_make_no_sense_are_refused(given: dict[str, str], text: str) -> None:
    with pytest.raises(BadPolicy) as caught:
        ScalePolicy.of(given)
    assert text in caught.value.reason


def test_policies_as_rest_writes_them() -> None:
    made = ScalePolicy.of({"maxSegments": "4", "splitMsgRateInThreshold": "5e3", "splitPoint": "load"})
    assert made == replace(ScalePolicy(), max_segments=4, split_msg_rate_in_threshold=5_000, split_point="load")
    assert made.auto_scale().split_point is SplitPoint.LOAD


def test_policy_made_in_python_is_checked() -> None:
    with pytest.raises(BadPolicy, match="maxSegments"):
        ScalePolicy(max_segments=0).check()
