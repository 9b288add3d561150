"""Lines of `anabranch watch` between two looks."""

from __future__ import annotations

from typing import Any

from anabranch.cli.output.scalable_topic import scaling_lines
from anabranch.cli.output.topic_changes import changes


def decision(at_ms: int, action: str = "none", **others: Any) -> dict[str, Any]:
    made = {"atMs": at_ms, "epoch": 0, "action": action, "reason": "suppressed", "detail": "because", "suppressed": []}
    return {**made, "segments": [0], **others}


def stats(*decisions: dict[str, Any], **others: Any) -> dict[str, Any]:
    """`decisions`: newest first, as the broker answers them."""
    made = {"incarnation": 1, "activeSegments": 1, "segments": {}, "operation": None, "subscriptions": {}}
    return {**made, "autoScale": {"decisions": list(decisions)}, **others}


def test_each_new_decision_is_one_line_oldest_first() -> None:
    before = stats(decision(1))
    now = stats(decision(3, "split", reason="msg-rate-in", detail="segment 0 is hot"), decision(2), decision(1))
    assert changes(before, now) == [
        "auto-scaling: nothing (suppressed) because",
        "auto-scaling: split 0 (msg-rate-in) segment 0 is hot",
    ]


def test_outcome_of_a_decision_does_not_repeat_its_line() -> None:
    assert changes(stats(decision(1, "split")), stats(decision(1, "split", outcome="committed"))) == []


def test_decisions_of_the_first_look_and_of_other_brokers_are_no_changes() -> None:
    assert changes(None, stats(decision(1))) == []
    assert changes(stats(decision(1)), stats(autoScale=None)) == []


def test_what_auto_scaling_would_do_now_is_one_line() -> None:
    assert scaling_lines({"now": decision(1)}) == ["auto-scaling: nothing (suppressed) because"]
    assert scaling_lines({"error": "maxSegments (4) is below minSegments (8)"}) == [
        "auto-scaling: paused, maxSegments (4) is below minSegments (8)"
    ]
    assert scaling_lines(None) == []
