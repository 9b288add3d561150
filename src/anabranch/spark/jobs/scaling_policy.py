"""What a scaling policy would do with given traffic: the rules of PIP-483 on paper. Pure: traffic and times come in.

Once per tick each active segment's rates are looked at; at most one thing is done per tick.

| rule  | when                                                                                                        |
|-------|-------------------------------------------------------------------------------------------------------------|
| split | a segment has more messages or bytes per second than the split threshold: the one furthest above, in half   |
| merge | two neighbours have been below both merge thresholds for the merge window: the pair with the least traffic  |

Only what was published is known here: rules by consumers and by what they read have no part in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise

from anabranch.model.autoscale.policy import BadPolicy

SLOTS = 256  # the ring in so many equal parts: a segment has at least one


@dataclass(frozen=True, slots=True)
class ScalePolicy:
    """Names and defaults are PIP-483's."""

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

    @staticmethod
    def of(given: Mapping[str, str]) -> ScalePolicy:
        """From texts by the names that REST uses: `maxSegments`, `splitMsgRateInThreshold` …"""
        known = {_rest_name(one.name): one for one in fields(ScalePolicy)}
        found: dict[str, float] = {}
        for name, text in given.items():
            if name not in known:
                raise BadPolicy(f"a policy has no {name}; it has {', '.join(known)}")
            try:
                found[known[name].name] = int(text) if known[name].type == "int" else float(text)
            except ValueError:
                raise BadPolicy(f"{name} is a number, not {text!r}") from None
        made = replace(ScalePolicy(), **found)  # type: ignore[arg-type]  # numbers by the names of the fields
        made.check()
        return made

    def check(self) -> None:
        if not 1 <= self.min_segments <= self.max_segments <= SLOTS:
            raise BadPolicy(f"segments: 1 ≤ minSegments ≤ maxSegments ≤ {SLOTS}")
        if min(self.max_dag_depth, self.split_cooldown_seconds, self.merge_cooldown_seconds) < 0:
            raise BadPolicy("depth and cooldowns are not negative")
        for split, merge in (
            (self.split_msg_rate_in_threshold, self.merge_msg_rate_in_threshold),
            (self.split_bytes_rate_in_threshold, self.merge_bytes_rate_in_threshold),
        ):
            if not split > merge >= 0:
                raise BadPolicy("each split threshold is above its merge threshold, which is not negative")


@dataclass(frozen=True, slots=True)
class Load:
    """Per second."""

    messages: float = 0.0
    bytes: float = 0.0

    def __add__(self, other: Load) -> Load:
        return Load(self.messages + other.messages, self.bytes + other.bytes)


@dataclass(frozen=True, slots=True)
class Part:
    """An active segment on paper: slots `low` to `high`, both included."""

    segment: int
    low: int
    high: int
    depth: int = 0  # merges among its ancestors and itself
    cold_since: float | None = None  # both rates have been below the merge thresholds from then on


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


@dataclass(slots=True)
class Scaler:
    """A topic that scales by a policy. It takes the load of every slot, tick by tick."""

    policy: ScalePolicy
    parts: list[Part] = field(default_factory=list)  # in ring order
    steps: list[Step] = field(default_factory=list)
    ticks: list[Tick] = field(default_factory=list)
    _split_at: float = float("-inf")
    _merge_at: float = float("-inf")
    _next: int = 0

    @staticmethod
    def of(policy: ScalePolicy, segments: int) -> Scaler:
        if not policy.min_segments <= segments <= policy.max_segments:
            raise BadPolicy(f"a topic begins with {policy.min_segments} to {policy.max_segments} segments")
        borders = [SLOTS * i // segments for i in range(segments + 1)]
        parts = [Part(i, low, high - 1) for i, (low, high) in enumerate(pairwise(borders))]
        return Scaler(policy, parts, _next=segments)

    def tick(self, at: float, slots: Mapping[int, Load]) -> None:
        loads = [_sum(slots.get(slot) for slot in range(one.low, one.high + 1)) for one in self.parts]
        self.parts = [self._cooled(one, load, at) for one, load in zip(self.parts, loads, strict=True)]
        pressures = [self._pressure(load) for load in loads]
        hot = max(range(len(self.parts)), key=lambda i: (pressures[i], -self.parts[i].segment))
        self.ticks.append(Tick(at, len(self.parts), _sum(loads), loads[hot], pressures[hot]))
        if not self._split(at, loads, pressures):
            self._merge(at, loads)

    def _split(self, at: float, loads: Sequence[Load], pressures: Sequence[float]) -> bool:
        policy = self.policy
        if len(self.parts) >= policy.max_segments or at - self._split_at < policy.split_cooldown_seconds:
            return False
        able = [i for i, one in enumerate(self.parts) if pressures[i] > 1 and one.low < one.high]
        if not able:
            return False
        hot = max(able, key=lambda i: (pressures[i], -self.parts[i].segment))
        one, load = self.parts[hot], loads[hot]
        middle = (one.low + one.high + 1) // 2
        children = [
            Part(self._next, one.low, middle - 1, one.depth),
            Part(self._next + 1, middle, one.high, one.depth),
        ]
        by_count = load.messages / policy.split_msg_rate_in_threshold
        if by_count >= load.bytes / policy.split_bytes_rate_in_threshold:
            reason = f"{load.messages:,.0f} messages/s, more than {policy.split_msg_rate_in_threshold:,.0f}"
        else:
            reason = f"{load.bytes:,.0f} bytes/s, more than {policy.split_bytes_rate_in_threshold:,.0f}"
        self._replace(at, "split", hot, 1, children, reason)
        self._split_at = at
        return True

    def _merge(self, at: float, loads: Sequence[Load]) -> None:
        policy = self.policy
        if len(self.parts) <= policy.min_segments or at - self._merge_at < policy.merge_cooldown_seconds:
            return
        pairs = [i for i in range(len(self.parts) - 1) if all(self._is_cold(one, at) for one in self.parts[i : i + 2])]
        if not pairs:
            return
        least = min(pairs, key=lambda i: ((loads[i] + loads[i + 1]).messages, (loads[i] + loads[i + 1]).bytes, i))
        one, other = self.parts[least : least + 2]
        child = Part(self._next, one.low, other.high, max(one.depth, other.depth) + 1)
        quiet = f"below {policy.merge_msg_rate_in_threshold:,.0f} messages/s for {policy.merge_window_seconds:,.0f} s"
        self._replace(at, "merge", least, 2, [child], quiet)
        self._merge_at = at

    def _replace(self, at: float, kind: str, index: int, count: int, children: list[Part], reason: str) -> None:
        parents = tuple(one.segment for one in self.parts[index : index + count])
        self.parts[index : index + count] = children
        self._next += len(children)
        self.steps.append(Step(at, kind, parents, tuple(one.segment for one in children), reason))

    def _pressure(self, load: Load) -> float:
        policy = self.policy
        by_count = load.messages / policy.split_msg_rate_in_threshold
        return max(by_count, load.bytes / policy.split_bytes_rate_in_threshold)

    def _cooled(self, one: Part, load: Load, at: float) -> Part:
        policy = self.policy
        is_cold = (
            load.messages < policy.merge_msg_rate_in_threshold and load.bytes < policy.merge_bytes_rate_in_threshold
        )
        return replace(one, cold_since=(at if one.cold_since is None else one.cold_since) if is_cold else None)

    def _is_cold(self, one: Part, at: float) -> bool:
        is_long = one.cold_since is not None and at - one.cold_since >= self.policy.merge_window_seconds
        return is_long and one.depth < self.policy.max_dag_depth


def _sum(loads: Iterable[Load | None]) -> Load:
    messages = size = 0.0
    for one in loads:
        if one is not None:
            messages += one.messages
            size += one.bytes
    return Load(messages, size)


def _rest_name(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(part.capitalize() for part in others)
