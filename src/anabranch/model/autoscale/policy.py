"""The auto-scale policy of a topic (PIP-483): its fields, its invariants, and how the levels are combined.

Broker settings, the namespace's `scalableTopicAutoScalePolicy` and the topic's `autoScalePolicy` are combined field by
field; the more specific level wins. An *override* is what a namespace or topic sets: a JSON object in which every field
may be missing. The *policy* has a value in every field, and is valid as a whole or does not exist.

Fields of an override that this version does not know are ignored here and kept by those that store it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any

from anabranch.model.errors import BadRequest
from anabranch.model.keyhash import RING_SIZE
from anabranch.model.layout import LayoutLimits

FAST_WINDOW_SECONDS = 5
WINDOW_SECONDS = 60
"""The two windows over which owners measure rates."""

METRICS = ("msg_rate_in", "bytes_rate_in", "msg_rate_out", "bytes_rate_out")


class BadPolicy(BadRequest):
    """An auto-scale policy whose values contradict each other, alone or combined with the levels around it."""

    code = "bad-policy"


class SplitPoint(StrEnum):
    MIDPOINT = "midpoint"  # parts of equal width
    LOAD = "load"  # parts of equal load, as the segment's load histogram has it


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoScalePolicy:
    """A complete, valid policy. The defaults are PIP-483's; the fields behind `split_rate_window_seconds` are ours."""

    enabled: bool = True
    max_segments: int = 64
    min_segments: int = 1
    max_dag_depth: int = 10
    split_cooldown_seconds: int = 60
    merge_cooldown_seconds: int = 300
    merge_window_seconds: int = 300
    split_msg_rate_in_threshold: float = 10_000.0
    split_bytes_rate_in_threshold: int = 50_000_000
    split_msg_rate_out_threshold: float = 50_000.0
    split_bytes_rate_out_threshold: int = 250_000_000
    merge_msg_rate_in_threshold: float = 1_000.0
    merge_bytes_rate_in_threshold: int = 5_000_000
    merge_msg_rate_out_threshold: float = 5_000.0
    merge_bytes_rate_out_threshold: int = 25_000_000
    split_rate_window_seconds: int = WINDOW_SECONDS  # below 60 the rates of the last 5 s decide on splits
    split_factor_max: int = 2  # parts of one split
    split_point: SplitPoint = SplitPoint.MIDPOINT
    merge_factor_max: int = 2  # segments of one merge
    hot_key_share: float = 0.5  # a key with this share of its segment's load is reported as hot
    load_report_age_max_seconds: int = 120  # a report whose owner is gone counts for this long

    split_thresholds: tuple[float, ...] = field(init=False, repr=False, compare=False)  # in the order of METRICS
    merge_thresholds: tuple[float, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for kind in ("split", "merge"):
            values = tuple(getattr(self, f"{kind}_{metric}_threshold") for metric in METRICS)
            object.__setattr__(self, f"{kind}_thresholds", values)
        complaints = list(_complaints(self))
        if complaints:
            raise BadPolicy("; ".join(complaints))

    @property
    def limits(self) -> LayoutLimits:
        return LayoutLimits(self.max_segments, self.max_dag_depth)

    @property
    def is_fast(self) -> bool:
        """The rates of the short window decide on splits."""
        return self.split_rate_window_seconds < WINDOW_SECONDS

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, one) for name, one in JSON_NAMES.items()}

    def overridden(self, *overrides: Mapping[str, Any] | None) -> AutoScalePolicy:
        """This policy below the given overrides, the least specific first. Raises BadPolicy."""
        values = {one: getattr(self, one) for one in JSON_NAMES.values()}
        for override in overrides:
            values.update(parse_override(override or {}))
        return AutoScalePolicy(**values)


def _json_name(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


JSON_NAMES: Mapping[str, str] = {_json_name(one.name): one.name for one in fields(AutoScalePolicy) if one.init}
"""Name in JSON to field, in the order of the fields."""
_TYPES: Mapping[str, str] = {one.name: str(one.type) for one in fields(AutoScalePolicy)}


def parse_override(override: Mapping[str, Any]) -> dict[str, Any]:
    """The override's known fields that are set, by their names in `AutoScalePolicy`. BadPolicy for wrong types."""
    found = {}
    for name, value in override.items():
        known = JSON_NAMES.get(name)
        if known is not None and value is not None:
            found[known] = _typed(name, _TYPES[known], value)
    return found


def parse_texts(texts: Mapping[str, str]) -> dict[str, Any]:
    """An override from texts, as command lines give them: `{"maxSegments": "16"}`. Unknown names are refused."""
    found: dict[str, Any] = {}
    for name, text in texts.items():
        known = JSON_NAMES.get(name)
        if known is None:
            raise BadPolicy(f"no field {name} in a policy; the fields are {', '.join(JSON_NAMES)}")
        found[name] = _typed(name, _TYPES[known], _from_text(_TYPES[known], text))
    return found


def _from_text(kind: str, text: str) -> Any:
    if kind == "bool":
        return {"true": True, "false": False}.get(text.lower(), text)
    if kind == "SplitPoint":
        return text.lower()
    try:
        return float(text) if kind == "float" else int(text)
    except ValueError:
        return text


def _typed(name: str, kind: str, value: Any) -> Any:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _NUMBER_MAX
    if kind == "bool" and isinstance(value, bool):
        return value
    if kind == "float" and is_number:
        return float(value)
    if kind == "int" and is_number and value == int(value):
        return int(value)
    if kind == "SplitPoint" and value in tuple(SplitPoint):
        return SplitPoint(value)
    wanted = {"bool": "true or false", "float": "a number", "int": "a whole number"}
    raise BadPolicy(f"{name} is {wanted.get(kind, ' or '.join(SplitPoint))}, not {value!r}")


def _complaints(policy: AutoScalePolicy) -> Iterator[str]:
    bounds: dict[str, tuple[float, float]] = {
        "min_segments": (1, RING_SIZE),
        "max_segments": (1, RING_SIZE),
        "max_dag_depth": (0, _INT_MAX),
        "split_cooldown_seconds": (0, _INT_MAX),
        "merge_cooldown_seconds": (0, _INT_MAX),
        "merge_window_seconds": (0, _INT_MAX),
        "split_rate_window_seconds": (FAST_WINDOW_SECONDS, _INT_MAX),
        "split_factor_max": (2, RING_SIZE),
        "merge_factor_max": (2, RING_SIZE),
        "load_report_age_max_seconds": (1, _INT_MAX),
    }
    for name, (low, high) in bounds.items():
        if not low <= getattr(policy, name) <= high:
            yield f"{_json_name(name)} is {low} to {high}, not {getattr(policy, name)}"
    if policy.max_segments < policy.min_segments:
        yield f"maxSegments ({policy.max_segments}) is below minSegments ({policy.min_segments})"
    if not 0 < policy.hot_key_share <= 1:
        yield f"hotKeyShare is above 0 and at most 1, not {policy.hot_key_share:g}"
    for metric, split, merge in zip(METRICS, policy.split_thresholds, policy.merge_thresholds, strict=True):
        if not split > 0:
            yield f"{_json_name(f'split_{metric}_threshold')} is above 0, not {split:g}"
        if not merge >= 0:
            yield f"{_json_name(f'merge_{metric}_threshold')} is 0 or more, not {merge:g}"
        if not split > merge:
            yield (
                f"{_json_name(f'split_{metric}_threshold')} ({split:g}) is not above "
                f"{_json_name(f'merge_{metric}_threshold')} ({merge:g})"
            )


_INT_MAX = (1 << 31) - 1
_NUMBER_MAX = (1 << 63) - 1  # of Java's long; NaN is not below it either
