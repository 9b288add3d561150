"""What an evaluator must remember between two decisions: cooldown stamps, failed attempts, recent decisions.

The stamps are in the topic record, which every committed split and merge writes, also a manual one. `History` has them
beside what only auto-scaling needs, which has its own record (`encode_history`), so that a new leader goes on with the
pauses and the list of decisions of the last one. Everything is bounded.

    history = decode_history(data).at(last_split_at_ms=…, last_merge_at_ms=…, operation=…)     # from the topic record
    history = history.with_decision(decision, now_ms, epoch)
    history = history.with_outcome(action, now_ms, error)                                      # None: it was committed

Two leaders may write for a moment, one of them deposed: each joins what the other has stored.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from anabranch.model.autoscale.decision import SHOWN_SEGMENTS_MAX, Action, ActionKind, Decision
from anabranch.model.errors import Error

NEVER = -1
FAILURE_PAUSE_MS = 30_000
FAILURE_PAUSE_MS_MAX = 900_000
FAILURES_MAX = 64
DECISIONS_MAX = 100
TEXT_CHARS_MAX = 300
SUPPRESSED_MAX = 8
"""Suppressions of a past decision, of which a topic of 64 segments can have as many. Each rule is kept once first."""
STORED_BYTES_MAX = 128 * 1024
"""Of the stored form; beyond it the oldest decisions are dropped."""


class BadHistory(Error):
    """The stored history of auto-scaling cannot be read; it starts anew."""

    code = "bad-autoscale-history"


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """A split or merge that failed, perhaps several times. It is not tried again before `until_ms`."""

    kind: ActionKind
    segment_ids: tuple[int, ...]
    failures: int
    failed_at_ms: int
    reason: str

    @property
    def until_ms(self) -> int:
        """30 s after the first failure, then twice as long each time, at most 15 minutes."""
        return self.failed_at_ms + min(FAILURE_PAUSE_MS << min(self.failures - 1, 10), FAILURE_PAUSE_MS_MAX)


@dataclass(frozen=True, slots=True)
class PastDecision:
    at_ms: int
    epoch: int  # of the layout that was decided on
    decision: Decision
    outcome: str = ""  # committed or failed; empty: it had no action, or still runs
    error: str = ""

    def to_json(self) -> dict[str, Any]:
        found = {"atMs": self.at_ms, "epoch": self.epoch, **self.decision.to_json()}
        return (
            found | ({"outcome": self.outcome} if self.outcome else {}) | ({"error": self.error} if self.error else {})
        )


@dataclass(frozen=True, slots=True)
class History:
    last_split_at_ms: int = NEVER
    last_merge_at_ms: int = NEVER
    operation: str | None = None  # a split, merge or migration that runs, in words
    failures: tuple[FailedAttempt, ...] = ()
    decisions: tuple[PastDecision, ...] = ()  # oldest first

    def at(self, *, last_split_at_ms: int, last_merge_at_ms: int, operation: str | None) -> History:
        """With what the topic record says now."""
        return replace(self, last_split_at_ms=last_split_at_ms, last_merge_at_ms=last_merge_at_ms, operation=operation)

    def failure(self, kind: ActionKind, segment_ids: tuple[int, ...]) -> FailedAttempt | None:
        for one in self.failures:
            if one.kind is kind and one.segment_ids == segment_ids:
                return one
        return None

    def with_decision(self, decision: Decision, now_ms: int, epoch: int) -> History:
        """An action is always kept; a decision without one only if it says something else than the last did."""
        decision = _shortened(decision)
        last = self.decisions[-1].decision if self.decisions else None
        if decision.action is None and last is not None and _gist(last) == _gist(decision):
            return self
        kept = (*self.decisions, PastDecision(now_ms, epoch, decision))[-DECISIONS_MAX:]
        return replace(self, decisions=kept)

    def with_outcome(self, action: Action, now_ms: int, error: str | None) -> History:
        """A failure does not start a cooldown; it pauses only this action. Success forgets the failures of the kind."""
        outcome, text = ("committed", "") if error is None else ("failed", error[:TEXT_CHARS_MAX])
        decisions = list(self.decisions)
        for i in reversed(range(len(decisions))):
            if decisions[i].decision.action == action and not decisions[i].outcome:
                decisions[i] = replace(decisions[i], outcome=outcome, error=text)
                break
        before = self.failure(action.kind, action.segment_ids)
        failures = tuple(one for one in self.failures if one is not before)
        if error is not None:
            count = 1 if before is None else before.failures + 1
            failed = FailedAttempt(action.kind, action.segment_ids, count, now_ms, text)
            failures = (*failures, failed)[-FAILURES_MAX:]
        return replace(self, failures=failures, decisions=tuple(decisions))

    def joined(self, stored: History) -> History:
        """With the decisions and failures that another leader has stored meanwhile."""
        found = {(one.at_ms, one.epoch, one.decision.action, one.decision.reason): one for one in stored.decisions}
        for one in self.decisions:
            key = one.at_ms, one.epoch, one.decision.action, one.decision.reason
            if one.outcome or key not in found:
                found[key] = one
        decisions = tuple(sorted(found.values(), key=lambda one: one.at_ms))[-DECISIONS_MAX:]
        ours = {(one.kind, one.segment_ids) for one in self.failures}
        failures = (*(one for one in stored.failures if (one.kind, one.segment_ids) not in ours), *self.failures)
        return replace(self, decisions=decisions, failures=failures[-FAILURES_MAX:])

    def without_sealed(self, active: Collection[int]) -> History:
        """Without failures that concern segments which are not active any more."""
        kept = tuple(one for one in self.failures if all(number in active for number in one.segment_ids))
        return self if len(kept) == len(self.failures) else replace(self, failures=kept)


def _shortened(decision: Decision) -> Decision:
    """As it is kept: texts are cut, and of many suppressions `SUPPRESSED_MAX` are left."""
    first = {(one.kind, one.suppressed_by): one for one in reversed(decision.suppressed)}
    chosen = [*(one for one in decision.suppressed if first[one.kind, one.suppressed_by] is one)]
    chosen += [one for one in decision.suppressed if first[one.kind, one.suppressed_by] is not one]
    kept = chosen[:SUPPRESSED_MAX]
    suppressed = tuple(
        replace(one, segment_ids=one.segment_ids[:SHOWN_SEGMENTS_MAX], detail=one.detail[:TEXT_CHARS_MAX])
        for one in decision.suppressed
        if any(one is other for other in kept)
    )
    return replace(decision, detail=decision.detail[:TEXT_CHARS_MAX], suppressed=suppressed)


def _gist(decision: Decision) -> object:
    """What makes a decision without action another one: rules and segments, not the figures in its texts."""
    return (
        decision.action,
        decision.reason,
        [(one.kind, one.reason, one.suppressed_by, one.segment_ids) for one in decision.suppressed],
    )


# -- JSON


def history_json(history: History) -> dict[str, Any]:
    return {
        "failures": [
            {
                "kind": one.kind.value,
                "segments": list(one.segment_ids),
                "failures": one.failures,
                "failedAtMs": one.failed_at_ms,
                "reason": one.reason,
            }
            for one in history.failures
        ],
        "decisions": [one.to_json() for one in history.decisions],
    }


def encode_history(history: History) -> bytes:
    while len(data := json.dumps(history_json(history), separators=(",", ":")).encode()) > STORED_BYTES_MAX:
        history = replace(history, decisions=history.decisions[len(history.decisions) // 4 + 1 :])
        if not history.decisions:
            history = replace(history, failures=history.failures[len(history.failures) // 4 + 1 :])
    return data


def decode_history(data: bytes) -> History:
    """Raises BadHistory. Decisions in words of a newer version are left out."""
    try:
        value = json.loads(data)
        failures = tuple(
            FailedAttempt(
                ActionKind(one["kind"]),
                tuple(map(int, one["segments"])),
                int(one["failures"]),
                int(one["failedAtMs"]),
                str(one["reason"]),
            )
            for one in value.get("failures", ())
        )
        decisions = tuple(found for one in value.get("decisions", ()) if (found := _past(one)) is not None)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadHistory(f"not a history of auto-scaling: {type(error).__name__}: {error}") from error
    return History(failures=failures[-FAILURES_MAX:], decisions=decisions[-DECISIONS_MAX:])


def _past(value: Mapping[str, Any]) -> PastDecision | None:
    try:
        decision = Decision.from_json(value)
    except ValueError:
        return None
    return PastDecision(
        int(value["atMs"]), int(value["epoch"]), decision, str(value.get("outcome", "")), str(value.get("error", ""))
    )
