"""What the evaluator answers: one action or none, why, and what it would have done but for a rule.

Words in `Reason` and `Suppression` are stable: log, metrics, REST and console use the same ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

SHOWN_SEGMENTS_MAX = 16
"""Segments that the JSON form of a suppression names; the others are counted."""


class Reason(StrEnum):
    CONSUMER_COUNT = "consumer-count"
    MSG_RATE_IN = "msg-rate-in"
    BYTES_RATE_IN = "bytes-rate-in"
    MSG_RATE_OUT = "msg-rate-out"
    BYTES_RATE_OUT = "bytes-rate-out"
    COLD = "cold"
    # of a decision without action
    DISABLED = "disabled"
    NOT_SCALABLE = "not-scalable"  # partitions of a regular topic, which must be migrated first
    BALANCED = "balanced"  # no rule wants anything
    SUPPRESSED = "suppressed"  # a rule wants something, another one forbids it now


class Suppression(StrEnum):
    OPERATION_IN_FLIGHT = "operation-in-flight"
    COOLDOWN = "cooldown"
    MAX_SEGMENTS = "max-segments"
    MIN_SEGMENTS = "min-segments"
    MAX_DEPTH = "max-depth"
    MERGE_WINDOW = "merge-window"
    CONSUMER_DEMAND = "consumer-demand"
    UNDRAINED_ANCESTORS = "undrained-ancestors"
    TOO_NARROW = "too-narrow"
    PROJECTED_LOAD = "projected-load"
    STALE_REPORT = "stale-report"
    NO_REPORT = "no-report"
    HOT_KEY = "hot-key"
    RECENT_FAILURE = "recent-failure"


class ActionKind(StrEnum):
    SPLIT = "split"
    MERGE = "merge"


@dataclass(frozen=True, slots=True)
class Split:
    segment_id: int
    points: tuple[int, ...]  # ring positions at which the 2nd, 3rd … child begin

    @property
    def kind(self) -> ActionKind:
        return ActionKind.SPLIT

    @property
    def segment_ids(self) -> tuple[int, ...]:
        return (self.segment_id,)


@dataclass(frozen=True, slots=True)
class Merge:
    segment_ids: tuple[int, ...]  # neighbours, in ring order

    @property
    def kind(self) -> ActionKind:
        return ActionKind.MERGE


Action = Split | Merge


@dataclass(frozen=True, slots=True)
class Suppressed:
    """A split or merge that a rule wanted (`reason`) and another rule (`suppressed_by`) forbids."""

    kind: ActionKind
    reason: Reason
    suppressed_by: Suppression
    segment_ids: tuple[int, ...]  # those that it concerns, in ring order
    detail: str
    until_ms: int | None = None  # when the forbidding rule ends by time alone; None: something must change

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind.value,
            "reason": self.reason.value,
            "suppressedBy": self.suppressed_by.value,
            "segments": list(self.segment_ids[:SHOWN_SEGMENTS_MAX]),
            "segmentCount": len(self.segment_ids),
            "detail": self.detail,
            **({} if self.until_ms is None else {"untilMs": self.until_ms}),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Suppressed:
        until = value.get("untilMs")
        return cls(
            ActionKind(value["kind"]),
            Reason(value["reason"]),
            Suppression(value["suppressedBy"]),
            tuple(map(int, value["segments"])),
            str(value["detail"]),
            None if until is None else int(until),
        )


@dataclass(frozen=True, slots=True)
class Decision:
    action: Action | None
    reason: Reason
    detail: str = ""
    suppressed: tuple[Suppressed, ...] = ()

    @property
    def due_at_ms(self) -> int | None:
        """When to decide again although nothing is reported: the first suppression that ends by time. None: never."""
        return min((one.until_ms for one in self.suppressed if one.until_ms is not None), default=None)

    @property
    def suppressed_by(self) -> tuple[Suppression, ...]:
        """Each rule once, in order."""
        return tuple(dict.fromkeys(one.suppressed_by for one in self.suppressed))

    def to_json(self) -> dict[str, Any]:
        action: dict[str, Any] = {"action": "none"}
        match self.action:
            case Split(segment_id, points):
                action = {"action": "split", "segments": [segment_id], "points": list(points)}
            case Merge(segment_ids):
                action = {"action": "merge", "segments": list(segment_ids)}
        return {
            **action,
            "reason": self.reason.value,
            "detail": self.detail,
            "suppressed": [one.to_json() for one in self.suppressed],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Decision:
        """ValueError or KeyError for what is none."""
        action: Action | None = None
        if value["action"] == "split":
            action = Split(int(value["segments"][0]), tuple(map(int, value["points"])))
        elif value["action"] == "merge":
            action = Merge(tuple(map(int, value["segments"])))
        suppressed = tuple(Suppressed.from_json(one) for one in value.get("suppressed", ()))
        return cls(action, Reason(value["reason"]), str(value.get("detail", "")), suppressed)
