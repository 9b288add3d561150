"""What auto-scaling remembers: failed attempts, recent decisions, and the JSON form."""

from __future__ import annotations

import json

import pytest

from anabranch.model.autoscale.decision import (
    ActionKind,
    Decision,
    Merge,
    Reason,
    Split,
    Suppressed,
    Suppression,
)
from anabranch.model.autoscale.history import (
    DECISIONS_MAX,
    FAILURES_MAX,
    STORED_BYTES_MAX,
    SUPPRESSED_MAX,
    TEXT_CHARS_MAX,
    BadHistory,
    History,
    PastDecision,
    decode_history,
    encode_history,
)

SPLIT, MERGE = Split(3, (0x8000,)), Merge((4, 5))
TO_SPLIT = Decision(SPLIT, Reason.MSG_RATE_IN, "segment 3 is hot")
COOLDOWN = Suppressed(ActionKind.SPLIT, Reason.MSG_RATE_IN, Suppression.COOLDOWN, (3,), "ends in 9 s", 9_000)
WAITS = Decision(None, Reason.SUPPRESSED, "ends in 9 s", (COOLDOWN,))


def test_failure_pauses_the_action_longer_each_time_and_success_forgets_it() -> None:
    history, pauses = History(), []
    for _ in range(8):
        history = history.with_outcome(SPLIT, 1_000, "the owner is down")
        failed = history.failure(ActionKind.SPLIT, (3,))
        assert failed is not None
        pauses.append((failed.until_ms - 1_000) // 1000)
    assert pauses == [30, 60, 120, 240, 480, 900, 900, 900]
    assert history.failure(ActionKind.MERGE, (4, 5)) is None
    assert history.with_outcome(SPLIT, 2_000, None).failures == ()


def test_failure_does_not_touch_the_cooldown_stamps() -> None:
    history = History().at(last_split_at_ms=5, last_merge_at_ms=6, operation=None)
    after = history.with_outcome(SPLIT, 1_000, "no")
    assert (after.last_split_at_ms, after.last_merge_at_ms) == (5, 6)


def test_failures_are_bounded_and_those_of_sealed_segments_are_dropped() -> None:
    history = History()
    for number in range(FAILURES_MAX + 10):
        history = history.with_outcome(Split(number, (1,)), 1_000, "no")
    assert len(history.failures) == FAILURES_MAX
    left = history.without_sealed({20, 21})
    assert [one.segment_ids for one in left.failures] == [(20,), (21,)]
    assert left.without_sealed({20, 21}) is left


def test_outcome_is_written_to_the_last_decision_with_that_action() -> None:
    history = History().with_decision(TO_SPLIT, 1, 0).with_outcome(SPLIT, 2, "owner down")
    history = history.with_decision(TO_SPLIT, 3, 0).with_outcome(SPLIT, 4, None)
    assert [(one.at_ms, one.outcome, one.error) for one in history.decisions] == [
        (1, "failed", "owner down"),
        (3, "committed", ""),
    ]


def test_repeated_decision_without_action_is_kept_once() -> None:
    later = Decision(
        None, Reason.SUPPRESSED, "ends in 3 s", (Suppressed(*_fields(COOLDOWN)[:4], "ends in 3 s", 9_000),)
    )
    history = History().with_decision(WAITS, 1, 0)
    assert history.with_decision(later, 2, 0) is history
    other = Decision(None, Reason.BALANCED)
    assert len(history.with_decision(other, 2, 0).decisions) == 2
    assert len(history.with_decision(TO_SPLIT, 2, 0).with_decision(TO_SPLIT, 3, 0).decisions) == 3, "actions always"


def _fields(one: Suppressed) -> tuple[ActionKind, Reason, Suppression, tuple[int, ...]]:
    return one.kind, one.reason, one.suppressed_by, one.segment_ids


def test_last_hundred_decisions_are_kept() -> None:
    history = History()
    for number in range(DECISIONS_MAX + 5):
        history = history.with_decision(Decision(Split(number, (1,)), Reason.MSG_RATE_IN), number, 0)
    assert len(history.decisions) == DECISIONS_MAX
    assert history.decisions[0].at_ms == 5


def many_suppressed(at_ms: int, segments: int = 64) -> Decision:
    waits = [
        Suppressed(ActionKind.MERGE, Reason.COLD, Suppression.MERGE_WINDOW, (number,), "x" * 400, at_ms)
        for number in range(segments)
    ]
    return Decision(None, Reason.SUPPRESSED, f"at {at_ms}", (*waits, COOLDOWN))


def test_of_many_suppressions_each_rule_is_kept() -> None:
    (kept,) = History().with_decision(many_suppressed(1), 1, 0).decisions
    assert len(kept.decision.suppressed) == SUPPRESSED_MAX
    assert kept.decision.suppressed_by == (Suppression.MERGE_WINDOW, Suppression.COOLDOWN)
    assert max(len(one.detail) for one in kept.decision.suppressed) == TEXT_CHARS_MAX
    history = History().with_decision(many_suppressed(1), 1, 0)
    assert history.with_decision(many_suppressed(2), 2, 0) is history, "the same rules and segments"


def test_stored_history_is_bounded_and_its_oldest_decisions_are_dropped() -> None:
    history = History()
    for number in range(DECISIONS_MAX):
        history = history.with_decision(many_suppressed(number, 64 - number % 2 * 60), number, 0)
    for number in range(FAILURES_MAX):
        history = history.with_outcome(Split(number, (1,)), number, "y" * 400)
    assert len(history.decisions) == DECISIONS_MAX
    data = encode_history(history)
    assert STORED_BYTES_MAX // 2 < len(data) <= STORED_BYTES_MAX
    found = decode_history(data)
    assert found.decisions == history.decisions[-len(found.decisions) :]
    assert found.failures == history.failures


def test_histories_of_two_leaders_are_joined() -> None:
    common = History().with_decision(TO_SPLIT, 1, 0)
    deposed = common.with_outcome(SPLIT, 2, "fenced").with_decision(WAITS, 4, 1)
    stored = common.with_decision(Decision(MERGE, Reason.COLD), 3, 1).with_outcome(MERGE, 3, "owner down")
    joined = deposed.joined(stored)
    assert [one.at_ms for one in joined.decisions] == [1, 3, 4]
    assert [one.outcome for one in joined.decisions] == ["failed", "failed", ""]
    assert {one.segment_ids for one in joined.failures} == {(3,), (4, 5)}
    assert joined.joined(stored) == joined


def test_history_survives_encoding() -> None:
    history = (
        History()
        .with_decision(TO_SPLIT, 1, 7)
        .with_outcome(SPLIT, 2, "owner down")
        .with_decision(Decision(MERGE, Reason.COLD, "cold", (COOLDOWN,)), 3, 8)
        .with_decision(WAITS, 4, 9)
    )
    assert decode_history(encode_history(history)) == history


def test_names_of_the_stored_fields_are_unchanged() -> None:
    history = History().with_decision(Decision(SPLIT, Reason.COLD, "d", (COOLDOWN,)), 1, 7).with_outcome(SPLIT, 2, "e")
    stored = json.loads(encode_history(history))
    assert set(stored) == {"decisions", "failures"}
    (decision,), (failure,) = stored["decisions"], stored["failures"]
    assert set(failure) == {"kind", "segments", "failures", "failedAtMs", "reason"}
    assert set(decision) == (
        {"atMs", "epoch", "action", "segments", "points", "reason", "detail", "suppressed", "outcome", "error"}
    )
    (suppressed,) = decision["suppressed"]
    assert set(suppressed) == ({"kind", "reason", "suppressedBy", "segments", "segmentCount", "detail", "untilMs"})


def test_decision_in_a_word_of_a_later_version_is_left_out() -> None:
    data = encode_history(History().with_decision(TO_SPLIT, 1, 0).with_decision(WAITS, 2, 0))
    found = decode_history(data.replace(b'"cooldown"', b'"phase-of-the-moon"'))
    assert found.decisions == (PastDecision(1, 0, TO_SPLIT),)


@pytest.mark.parametrize("data", [b"", b"[]", b'{"failures":[{}]}', b'{"decisions":[{"reason":"cold"}]}'])
def test_record_that_is_no_history_is_refused(data: bytes) -> None:
    with pytest.raises(BadHistory):
        decode_history(data)


def test_next_look_is_due_when_the_first_suppression_ends() -> None:
    later = Suppressed(ActionKind.MERGE, Reason.COLD, Suppression.MERGE_WINDOW, (1,), "", 4_000)
    endless = Suppressed(ActionKind.MERGE, Reason.COLD, Suppression.CONSUMER_DEMAND, (1,), "")
    assert Decision(None, Reason.SUPPRESSED, "", (COOLDOWN, endless, later)).due_at_ms == 4_000
    assert Decision(None, Reason.SUPPRESSED, "", (endless,)).due_at_ms is None
