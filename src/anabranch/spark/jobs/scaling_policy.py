"""The policy of a simulation: PIP-483's names and defaults, and what is in a simulation's answer. Pure.

`anabranch.model.autoscale` has the rules; the broker uses the same ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from anabranch.model.autoscale.policy import JSON_NAMES, AutoScalePolicy, parse_texts


@dataclass(frozen=True, slots=True)
class ScalePolicy:
    """Fields of `AutoScalePolicy` that a simulation uses."""

    max_segments: int = 64
    min_segments: int = 1
    max_dag_depth: int = 10
    split_cooldown_seconds: float = 60
    merge_cooldown_seconds: float = 300
    merge_window_seconds: float = 300
    split_msg_rate_in_threshold: float = 10_000
    split_bytes_rate_in_threshold: float = 50_000_000
    merge_msg_rate_in_threshold: float = 1_000
    merge_bytes_rate_in_threshold: float = 5_000_000
    split_msg_rate_out_threshold: float = 50_000
    split_bytes_rate_out_threshold: float = 250_000_000
    merge_msg_rate_out_threshold: float = 5_000
    merge_bytes_rate_out_threshold: float = 25_000_000
    split_rate_window_seconds: int = 60
    split_factor_max: int = 2
    split_point: str = "midpoint"
    merge_factor_max: int = 2
    hot_key_share: float = 0.5
    enabled: bool = True

    @staticmethod
    def of(given: Mapping[str, str]) -> ScalePolicy:
        """From texts by the names that REST uses: `maxSegments`, `splitMsgRateInThreshold` …"""
        found = AutoScalePolicy().overridden(parse_texts(given))
        return ScalePolicy(**{one.name: getattr(found, one.name) for one in fields(ScalePolicy)})

    def check(self) -> None:
        """Raises BadPolicy."""
        self.auto_scale()

    def auto_scale(self) -> AutoScalePolicy:
        """As the evaluator takes it. Raises BadPolicy."""
        own = {one.name for one in fields(ScalePolicy)}
        return AutoScalePolicy().overridden(
            {json_name: getattr(self, name) for json_name, name in JSON_NAMES.items() if name in own}
        )


@dataclass(frozen=True, slots=True)
class Load:
    """Per second."""

    messages: float = 0.0
    bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class Step:
    """Something that the policy does."""

    at: float  # seconds from the beginning
    kind: str  # split or merge
    parents: tuple[int, ...]
    children: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Tick:
    at: float
    segments: int
    total: Load
    hottest: Load  # of the busiest segment, by how near it is to the split thresholds
    pressure: float  # of that one: 1 is the threshold
