"""The auto-scale policy: PIP-483's names and defaults, invariants, and the combination of levels."""

from __future__ import annotations

from typing import Any

import pytest

from anabranch.model.autoscale.policy import AutoScalePolicy, BadPolicy, SplitPoint, parse_override, parse_texts

DEFAULT = AutoScalePolicy()

PIP_483 = {
    "enabled": True,
    "maxSegments": 64,
    "minSegments": 1,
    "maxDagDepth": 10,
    "splitCooldownSeconds": 60,
    "mergeCooldownSeconds": 300,
    "mergeWindowSeconds": 300,
    "splitMsgRateInThreshold": 10_000.0,
    "splitBytesRateInThreshold": 50_000_000,
    "splitMsgRateOutThreshold": 50_000.0,
    "splitBytesRateOutThreshold": 250_000_000,
    "mergeMsgRateInThreshold": 1_000.0,
    "mergeBytesRateInThreshold": 5_000_000,
    "mergeMsgRateOutThreshold": 5_000.0,
    "mergeBytesRateOutThreshold": 25_000_000,
}
OURS = {
    "splitRateWindowSeconds": 60,
    "splitFactorMax": 2,
    "splitPoint": "midpoint",
    "mergeFactorMax": 2,
    "hotKeyShare": 0.5,
    "loadReportAgeMaxSeconds": 120,
}


def test_defaults_are_those_of_pip_483_and_additions_follow_them() -> None:
    assert DEFAULT.to_json() == {**PIP_483, **OURS}


def test_json_form_is_an_override_that_gives_the_same_policy() -> None:
    policy = AutoScalePolicy(max_segments=8, split_point=SplitPoint.LOAD, split_factor_max=4)
    assert DEFAULT.overridden(policy.to_json()) == policy


def test_levels_are_combined_field_by_field_and_the_last_one_wins() -> None:
    namespace = {"maxSegments": 32, "splitCooldownSeconds": 5}
    topic = {"maxSegments": 16, "minSegments": 2}
    found = DEFAULT.overridden(namespace, None, topic)
    assert (found.max_segments, found.min_segments, found.split_cooldown_seconds) == (16, 2, 5)
    assert found.merge_cooldown_seconds == 300


def test_null_and_unknown_fields_of_an_override_change_nothing() -> None:
    assert DEFAULT.overridden({"maxSegments": None, "ofALaterVersion": {"x": 1}}) == DEFAULT


@pytest.mark.parametrize(
    ("override", "word"),
    [
        ({"minSegments": 0}, "minSegments"),
        ({"maxSegments": 0}, "maxSegments"),
        ({"maxSegments": 65_537}, "maxSegments"),
        ({"minSegments": 8, "maxSegments": 4}, "maxSegments (4) is below minSegments (8)"),
        ({"maxDagDepth": -1}, "maxDagDepth"),
        ({"splitCooldownSeconds": -1}, "splitCooldownSeconds"),
        ({"mergeCooldownSeconds": -1}, "mergeCooldownSeconds"),
        ({"mergeWindowSeconds": -1}, "mergeWindowSeconds"),
        ({"splitMsgRateInThreshold": 0, "mergeMsgRateInThreshold": 0}, "splitMsgRateInThreshold is above 0"),
        ({"mergeMsgRateOutThreshold": -1}, "mergeMsgRateOutThreshold"),
        ({"splitMsgRateInThreshold": 1000}, "splitMsgRateInThreshold (1000) is not above mergeMsgRateInThreshold"),
        ({"mergeBytesRateInThreshold": 50_000_000}, "splitBytesRateInThreshold"),
        ({"splitBytesRateOutThreshold": 25_000_000}, "mergeBytesRateOutThreshold"),
        ({"splitMsgRateOutThreshold": 10}, "mergeMsgRateOutThreshold"),
        ({"splitRateWindowSeconds": 4}, "splitRateWindowSeconds is 5"),
        ({"splitFactorMax": 1}, "splitFactorMax"),
        ({"mergeFactorMax": 1}, "mergeFactorMax"),
        ({"splitPoint": "median"}, "splitPoint is midpoint or load"),
        ({"hotKeyShare": 0}, "hotKeyShare"),
        ({"hotKeyShare": 1.5}, "hotKeyShare"),
        ({"loadReportAgeMaxSeconds": 0}, "loadReportAgeMaxSeconds"),
        ({"enabled": "yes"}, "enabled is true or false"),
        ({"enabled": 1}, "enabled is true or false"),
        ({"maxSegments": 2.5}, "maxSegments is a whole number"),
        ({"maxSegments": True}, "maxSegments is a whole number"),
        ({"splitMsgRateInThreshold": float("nan")}, "splitMsgRateInThreshold is a number"),
        ({"splitMsgRateInThreshold": float("inf")}, "splitMsgRateInThreshold is a number"),
        ({"splitBytesRateInThreshold": 10**400}, "splitBytesRateInThreshold is a whole number"),
        ({"splitMsgRateInThreshold": 10**400}, "splitMsgRateInThreshold is a number"),
        ({"maxSegments": []}, "maxSegments is a whole number"),
        ({"splitPoint": {}}, "splitPoint is midpoint or load"),
        ({"splitCooldownSeconds": "10"}, "splitCooldownSeconds is a whole number"),
    ],
    ids=str,
)
def test_broken_invariant_is_refused_with_the_field_in_the_text(override: dict[str, Any], word: str) -> None:
    with pytest.raises(BadPolicy) as refused:
        DEFAULT.overridden(override)
    assert word in refused.value.reason


@pytest.mark.parametrize(
    "override",
    [
        {"splitCooldownSeconds": 0, "mergeCooldownSeconds": 0, "mergeWindowSeconds": 0, "maxDagDepth": 0},
        {"mergeMsgRateInThreshold": 0},
        {"minSegments": 64},
        {"splitRateWindowSeconds": 5},
        {"splitMsgRateInThreshold": 20_000},
    ],
    ids=str,
)
def test_values_at_the_edge_are_valid(override: dict[str, Any]) -> None:
    assert DEFAULT.overridden(override) != DEFAULT


def test_override_that_is_valid_alone_is_refused_with_the_level_below_it() -> None:
    namespace = {"minSegments": 8}
    assert DEFAULT.overridden(namespace).min_segments == 8
    with pytest.raises(BadPolicy, match=r"maxSegments \(4\) is below minSegments \(8\)"):
        DEFAULT.overridden(namespace, {"maxSegments": 4})


def test_all_complaints_are_in_one_text() -> None:
    with pytest.raises(BadPolicy) as refused:
        DEFAULT.overridden({"maxDagDepth": -1, "splitFactorMax": 0})
    assert "maxDagDepth" in refused.value.reason and "splitFactorMax" in refused.value.reason


def test_override_is_parsed_to_field_names() -> None:
    assert parse_override({"maxSegments": 4.0, "splitPoint": "load", "x": 1}) == {
        "max_segments": 4,
        "split_point": SplitPoint.LOAD,
    }


def test_texts_of_a_command_line_become_an_override() -> None:
    texts = {"maxSegments": "16", "enabled": "false", "splitPoint": "LOAD", "splitMsgRateInThreshold": "1e3"}
    assert parse_texts(texts) == {
        "maxSegments": 16,
        "enabled": False,
        "splitPoint": "load",
        "splitMsgRateInThreshold": 1000.0,
    }


@pytest.mark.parametrize("texts", [{"maxSegment": "16"}, {"maxSegments": "many"}, {"enabled": "1"}], ids=str)
def test_unknown_names_and_wrong_texts_of_a_command_line_are_refused(texts: dict[str, str]) -> None:
    with pytest.raises(BadPolicy, match=next(iter(texts))):
        parse_texts(texts)


def test_windows_below_sixty_seconds_mean_the_fast_rates() -> None:
    assert [AutoScalePolicy(split_rate_window_seconds=one).is_fast for one in (5, 59, 60, 300)] == [
        True,
        True,
        False,
        False,
    ]
