"""A topic on paper that scales by a policy: traffic comes in tick by tick, the evaluator decides, the layout changes.

Everything but the traffic is the real thing: the owners' reports (`load.sampled`, `load.is_material`), the decision
(`evaluator.decide`) and the layout. A split or merge takes no time and never fails. The rates of the long window are
averages over the last 60 s of traffic on the segment's range, also for a segment that is younger than that.

Traffic is known by place on the ring: `SLOTS` equal slots, in which it is spread evenly, and single hash values.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import ceil

from anabranch.model.autoscale.decision import Decision, Merge, Split
from anabranch.model.autoscale.evaluator import GroupDemand, decide
from anabranch.model.autoscale.history import History
from anabranch.model.autoscale.load import HISTOGRAM_SLOTS, HotKey, Rates, SegmentLoad, is_material, sampled
from anabranch.model.autoscale.policy import FAST_WINDOW_SECONDS, WINDOW_SECONDS, AutoScalePolicy, SplitPoint
from anabranch.model.hashrange import HashRange
from anabranch.model.keyhash import RING_SIZE
from anabranch.model.layout import Layout
from anabranch.model.replacement import Replacement, plan_merge, plan_split, replaced, reserved
from anabranch.model.segment import Seal, Segment

SLOTS = 256
SLOT_WIDTH = RING_SIZE // SLOTS
REPORT_CHANGE = 0.25
EXACT_TICKS_MAX = 12
_NOTHING = (0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Traffic:
    """What was published in one tick, per second."""

    slots: Mapping[int, tuple[float, float]]  # messages and bytes by slot
    keys: Mapping[int, tuple[float, float]] = field(default_factory=dict)  # by hash value, in addition


@dataclass(frozen=True, slots=True)
class Step:
    """A split or merge."""

    at: float  # seconds from the beginning
    kind: str
    parents: tuple[int, ...]
    children: tuple[int, ...]
    reason: str
    detail: str
    parent_ranges: tuple[HashRange, ...]


@dataclass(frozen=True, slots=True)
class Tick:
    at: float
    segments: int  # during the tick
    total: Rates
    hottest: Rates  # of the segment that is nearest to a split threshold, or furthest above it
    pressure: float  # of that segment: 1 is the threshold


@dataclass(frozen=True, slots=True)
class Outcome:
    """A whole simulation in figures."""

    splits: int
    merges: int
    segments_most: int
    segments_last: int
    seconds: float
    seconds_above: float  # in which some segment was above a split threshold
    wasted_segment_hours: float  # segments beyond what total load, consumers and policy need

    @property
    def changes(self) -> int:
        return self.splits + self.merges


@dataclass(frozen=True, slots=True)
class _Placed:
    """Traffic as sums from the start of the ring to each edge of a slot, so that a range is one subtraction."""

    messages: list[float]
    bytes: list[float]
    keys: Mapping[int, tuple[float, float]]

    @classmethod
    def of(cls, traffic: Traffic) -> _Placed:
        slots = [traffic.slots.get(slot, _NOTHING) for slot in range(SLOTS)]
        return cls(
            [0.0, *accumulate(one[0] for one in slots)], [0.0, *accumulate(one[1] for one in slots)], traffic.keys
        )


_EMPTY = _Placed([0.0] * (SLOTS + 1), [0.0] * (SLOTS + 1), {})


class _Window:
    """Traffic of the last ticks, averaged."""

    def __init__(self, ticks_max: int) -> None:
        self._ticks: deque[_Placed] = deque()
        self._ticks_max = ticks_max
        self._messages, self._bytes = [0.0] * (SLOTS + 1), [0.0] * (SLOTS + 1)
        self._keys: dict[int, tuple[float, float]] = {}

    def add(self, placed: _Placed) -> None:
        gone = self._ticks.popleft() if len(self._ticks) == self._ticks_max else _EMPTY
        self._ticks.append(placed)
        if self._ticks_max <= EXACT_TICKS_MAX:
            self._messages = [sum(column) for column in zip(*(one.messages for one in self._ticks), strict=True)]
            self._bytes = [sum(column) for column in zip(*(one.bytes for one in self._ticks), strict=True)]
        else:  # the rounding error of a running sum is far below any threshold
            self._messages = list(map(_moved, self._messages, placed.messages, gone.messages))
            self._bytes = list(map(_moved, self._bytes, placed.bytes, gone.bytes))
        if placed.keys or gone.keys:
            self._keys = {}
            for one in self._ticks:
                for position, (count, volume) in one.keys.items():
                    before = self._keys.get(position, _NOTHING)
                    self._keys[position] = before[0] + count, before[1] + volume

    def rates(self, hash_range: HashRange, readers: int) -> Rates:
        messages, size = _between(self._messages, hash_range), _between(self._bytes, hash_range)
        for position, (count, volume) in self._keys.items():
            if position in hash_range:
                messages, size = messages + count, size + volume
        messages, size = messages / len(self._ticks), size / len(self._ticks)
        return Rates(messages, size, messages * readers, size * readers)

    def hot_key(self, hash_range: HashRange, total: Rates) -> HotKey | None:
        inside = {position: count for position, (count, _) in self._keys.items() if position in hash_range}
        if not inside or not total.msg_rate_in > 0:
            return None
        hottest = min(inside, key=lambda one: (-inside[one], one))
        share = inside[hottest] / len(self._ticks) / total.msg_rate_in
        return HotKey(hottest, min(1.0, share), f"key-{hottest:04x}")

    def histogram(self, hash_range: HashRange) -> tuple[float, ...]:
        if hash_range.size < HISTOGRAM_SLOTS[0]:
            return ()
        parts = hash_range.split(hash_range.even_points(HISTOGRAM_SLOTS[0]))
        return tuple(self.rates(part, 0).msg_rate_in for part in parts)


def _moved(total: float, new: float, old: float) -> float:
    return total + new - old


def _between(edges: Sequence[float], hash_range: HashRange) -> float:
    return max(0.0, _upto(edges, hash_range.end + 1) - _upto(edges, hash_range.start))


def _upto(edges: Sequence[float], position: int) -> float:
    slot, inside = divmod(position, SLOT_WIDTH)
    if inside == 0:
        return edges[slot]
    return edges[slot] + (edges[slot + 1] - edges[slot]) * inside / SLOT_WIDTH


class SimulatedTopic:
    """`readers`: subscriptions that read everything at once, for the rates out."""

    def __init__(
        self, policy: AutoScalePolicy, *, segments: int = 1, tick_seconds: float = 10, readers: int = 0
    ) -> None:
        self.policy = policy
        self.layout = Layout.initial(segments, now_ms=0, limits=policy.limits)
        self.history = History()
        self.loads: dict[int, SegmentLoad] = {}
        self.steps: list[Step] = []
        self.ticks: list[Tick] = []
        self.decisions = 0
        self._tick_seconds, self._readers = tick_seconds, readers
        self._now = _Window(1)
        self._long = _Window(max(1, round(WINDOW_SECONDS / tick_seconds)))
        self._fast = _Window(max(1, round(FAST_WINDOW_SECONDS / tick_seconds)))
        self._wasted_seconds = 0.0

    def tick(self, traffic: Traffic, consumers: int = 0) -> Decision:
        """One tick later: what was published in it, and how many consumers the largest ordered subscription has."""
        at = (len(self.ticks) + 1) * self._tick_seconds
        now_ms = round(at * 1000)
        placed = _Placed.of(traffic)
        for window in (self._now, self._long, self._fast):
            window.add(placed)
        self._measure(at, consumers)
        self._report(now_ms)
        groups = [GroupDemand("consumers", consumers)] if consumers else []
        decision = decide(self.layout, self.loads, groups, self.policy, self.history, now_ms)
        self._perform(decision, at, now_ms)
        return decision

    def outcome(self) -> Outcome:
        return Outcome(
            sum(one.kind == "split" for one in self.steps),
            sum(one.kind == "merge" for one in self.steps),
            max((one.segments for one in self.ticks), default=len(self.layout.active)),
            len(self.layout.active),
            len(self.ticks) * self._tick_seconds,
            self._tick_seconds * sum(one.pressure > 1 for one in self.ticks),
            self._wasted_seconds / 3600,
        )

    def _measure(self, at: float, consumers: int) -> None:
        loads = [self._now.rates(one.hash_range, self._readers) for one in self.layout.active]
        scores = [one.score(self.policy) for one in loads]
        hottest = scores.index(max(scores))
        total = loads[0]
        for one in loads[1:]:
            total += one
        self.ticks.append(Tick(at, len(loads), total, loads[hottest], scores[hottest]))
        needed = max(self.policy.min_segments, consumers, ceil(total.score(self.policy)))
        self._wasted_seconds += max(0, len(loads) - needed) * self._tick_seconds

    def _report(self, now_ms: int) -> None:
        self.loads = {one.segment_id: self._reported(one, now_ms) for one in self.layout.active}

    def _reported(self, segment: Segment, now_ms: int) -> SegmentLoad:
        """The stored report after this tick."""
        stored, place = self.loads.get(segment.segment_id), segment.hash_range
        rates, fast = self._long.rates(place, self._readers), self._fast.rates(place, self._readers)
        deciding, window = (fast, self._fast) if self.policy.is_fast else (rates, self._long)
        measured = SegmentLoad(
            rates=rates,
            fast_rates=fast,
            hot_key=window.hot_key(place, deciding),
            histogram=window.histogram(place) if self.policy.split_point is SplitPoint.LOAD else (),
        )
        load = sampled(stored, measured, self.policy, now_ms)
        return load if stored is None or is_material(stored, load, REPORT_CHANGE, self.policy) else stored

    def _perform(self, decision: Decision, at: float, now_ms: int) -> None:
        layout, limits = self.layout, self.policy.limits
        match decision.action:
            case Split(segment_id, points):
                plan = plan_split(layout, segment_id, points=points, now_ms=now_ms, limits=limits)
                last_split, last_merge = now_ms, self.history.last_merge_at_ms
            case Merge(segment_ids):
                plan = plan_merge(layout, segment_ids, now_ms=now_ms, limits=limits)
                last_split, last_merge = self.history.last_split_at_ms, now_ms
            case _:
                return
        self.layout = _applied(layout, plan, now_ms)
        self.history = self.history.at(last_split_at_ms=last_split, last_merge_at_ms=last_merge, operation=None)
        ranges = tuple(layout[one].hash_range for one in plan.parent_ids)
        kind = decision.action.kind.value
        step = Step(at, kind, plan.parent_ids, plan.child_ids, decision.reason.value, decision.detail, ranges)
        self.steps.append(step)


def _applied(layout: Layout, plan: Replacement, now_ms: int) -> Layout:
    """Parents are pruned at once: the simulation reads nothing."""
    changed = replaced(reserved(layout, plan), plan, {one: Seal(now_ms) for one in plan.parent_ids})
    return changed.pruned([one.segment_id for one in changed.sealed])
