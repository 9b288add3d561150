"""Counters of the auto-scaling on this broker, over all topics. Never awaits."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from anabranch.model.autoscale.decision import Decision


@dataclass(slots=True)
class ScalingTotals:
    """Since the process started."""

    decisions: Counter[tuple[str, str]] = field(default_factory=Counter)  # evaluations by action and reason
    suppressed: Counter[tuple[str, str]] = field(default_factory=Counter)  # evaluations by action and forbidding rule
    reactions: int = 0  # splits because of a crossed threshold
    reaction_ms: int = 0  # sum: from the crossing, as the segment's owner saw it, until the children were active
    load_reports: int = 0  # written by this broker for its segments

    def decided(self, decision: Decision) -> None:
        action = "none" if decision.action is None else decision.action.kind.value
        self.decisions[action, decision.reason.value] += 1
        for one in {(one.kind.value, one.suppressed_by.value) for one in decision.suppressed}:
            self.suppressed[one] += 1

    def reacted(self, crossed_ms: int, now_ms: int) -> None:
        self.reactions += 1
        self.reaction_ms += max(0, now_ms - crossed_ms)
