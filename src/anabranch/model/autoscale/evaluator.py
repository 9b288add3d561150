"""The evaluator: what auto-scaling does with a topic now. One pure function, the same on every leader.

Two passes, as in PIP-483; at most one action.

| pass  | wants to act on                                                                                              |
|-------|--------------------------------------------------------------------------------------------------------------|
| split | the busiest segment, if an ordered subscription has more consumers than the topic has active segments;       |
|       | else the segment that is furthest above one of the four split thresholds                                     |
| merge | the coldest run of neighbours that have been below all merge thresholds for the merge window                 |

A candidate that cannot be taken is skipped and the next one is tried. Ties are broken by range start and id. Each
candidate that a rule forbids is in `Decision.suppressed`, with that rule and, if it ends by time, when.

Rules that PIP-483 does not have: no merge below the demand of consumers; no merge that would be above 80 % of a split
threshold; no split for consumers of a range whose ancestors they have not read; no split around one hot key; a report
whose owner is gone counts neither as hot nor as cold after a while; what failed is paused, longer each time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import accumulate
from math import ceil

from anabranch.model.autoscale.decision import (
    Action,
    ActionKind,
    Decision,
    Merge,
    Reason,
    Split,
    Suppressed,
    Suppression,
)
from anabranch.model.autoscale.history import NEVER, History
from anabranch.model.autoscale.load import Rates, SegmentLoad
from anabranch.model.autoscale.policy import AutoScalePolicy, SplitPoint
from anabranch.model.hashrange import HashRange
from anabranch.model.layout import Layout
from anabranch.model.routing import RoutingKind
from anabranch.model.segment import Segment

PROJECTED_SCORE_MAX = 0.8
"""A merged segment stays below this share of every split threshold, so that it is not split again."""

_REASONS = (Reason.MSG_RATE_IN, Reason.BYTES_RATE_IN, Reason.MSG_RATE_OUT, Reason.BYTES_RATE_OUT)  # as METRICS
_UNITS = ("msg/s in", "bytes/s in", "msg/s out", "bytes/s out")


@dataclass(frozen=True, slots=True)
class GroupDemand:
    """An ordered subscription (stream, or checkpoint group): each of its consumers wants a segment.

    Queue subscriptions do not count, because all their consumers read all segments.
    """

    subscription: str
    consumers: int  # registered ones, also those that may still come back
    undrained: frozenset[int] = frozenset()  # sealed segments that it has not read to the end


def decide(
    layout: Layout,
    loads: Mapping[int, SegmentLoad],
    consumers: Sequence[GroupDemand],
    policy: AutoScalePolicy,
    history: History,
    now_ms: int,
    *,
    unowned: Collection[int] = (),
) -> Decision:
    """`loads` by segment id; a segment without report has no evidence, neither hot nor cold. `unowned`: segments that
    no living broker owns, whose reports therefore age."""
    if not policy.enabled:
        return Decision(None, Reason.DISABLED, "the policy has enabled = false")
    if layout.routing.kind is not RoutingKind.RANGE:
        return Decision(None, Reason.NOT_SCALABLE, "a regular topic: migrate it first")
    return _Evaluation(layout, loads, consumers, policy, history, now_ms, frozenset(unowned)).decision()


@dataclass(frozen=True, slots=True)
class _Candidate:
    """An action that a rule wants, before the rules that apply to all actions of its kind."""

    action: Action
    reason: Reason
    detail: str


class _Evaluation:
    """One call of `decide`; collects what is suppressed."""

    def __init__(
        self,
        layout: Layout,
        loads: Mapping[int, SegmentLoad],
        consumers: Sequence[GroupDemand],
        policy: AutoScalePolicy,
        history: History,
        now_ms: int,
        unowned: frozenset[int],
    ) -> None:
        self._layout, self._policy, self._history, self._now_ms = layout, policy, history, now_ms
        self._active = layout.active
        self._demand = max(consumers, key=lambda one: (one.consumers, one.subscription), default=GroupDemand("", 0))
        self._groups = consumers
        age_ms_max = policy.load_report_age_max_seconds * 1000
        self._stale = {
            number: load
            for number, load in loads.items()
            if number in unowned and now_ms - load.reported_at_ms > age_ms_max
        }
        self._loads = {number: load for number, load in loads.items() if number not in self._stale}
        self._suppressed: dict[tuple[ActionKind, Reason, Suppression], Suppressed] = {}

    def decision(self) -> Decision:
        for find in (self._split_for_consumers, self._split_for_load, self._merge):
            found = find()
            if found is not None:
                return Decision(found.action, found.reason, found.detail, self._all_suppressed())
        suppressed = self._all_suppressed()
        if suppressed:
            return Decision(None, Reason.SUPPRESSED, suppressed[0].detail, suppressed)
        return Decision(None, Reason.BALANCED, "no segment is above a split threshold, and none is to be merged")

    def _all_suppressed(self) -> tuple[Suppressed, ...]:
        return tuple(self._suppressed.values())

    def _suppress(
        self,
        kind: ActionKind,
        reason: Reason,
        by: Suppression,
        segment_ids: tuple[int, ...],
        detail: str,
        until_ms: int | None = None,
    ) -> None:
        """The text is that of the first segment, the time the earliest."""
        before = self._suppressed.get((kind, reason, by))
        if before is not None:
            segment_ids = tuple(dict.fromkeys((*before.segment_ids, *segment_ids)))
            detail = before.detail
            times = [one for one in (before.until_ms, until_ms) if one is not None]
            until_ms = min(times, default=None)
        self._suppressed[kind, reason, by] = Suppressed(kind, reason, by, segment_ids, detail, until_ms)

    # split ------------------------------------------------------------------------------------------------------------
    def _split_for_consumers(self) -> _Candidate | None:
        wanted = self._demand.consumers - len(self._active)
        if wanted <= 0:
            return None
        text = (
            f"subscription {self._demand.subscription} has {self._demand.consumers} consumers, "
            f"the topic {len(self._active)} active segments"
        )
        ranked = sorted(
            self._active, key=lambda one: (-self._rates(one).msg_rate_in, -one.hash_range.size, *_place(one))
        )
        undrained = frozenset().union(*(one.undrained for one in self._groups if one.consumers > len(self._active)))
        for segment in ranked:
            number = (segment.segment_id,)
            if self._is_too_narrow(segment, Reason.CONSUMER_COUNT):
                continue
            behind = self._layout.ancestors(segment.segment_id) & undrained if undrained else None
            if behind:
                self._suppress(
                    ActionKind.SPLIT, Reason.CONSUMER_COUNT, Suppression.UNDRAINED_ANCESTORS, number,
                    f"{text}; the ancestors {sorted(behind)} of segment {segment.segment_id} are not read yet",
                )  # fmt: skip
                continue
            points = self._points(segment, wanted + 1)
            candidate = _Candidate(Split(segment.segment_id, points), Reason.CONSUMER_COUNT, text)
            if self._may_split(candidate):
                return candidate
            if self._is_pass_over(ActionKind.SPLIT):
                break
        return None

    def _split_for_load(self) -> _Candidate | None:
        policy = self._policy
        hot = [
            (score, segment, load)
            for segment in self._active
            if (load := self._loads.get(segment.segment_id)) is not None
            and (score := load.deciding(policy).score(policy)) > 1
        ]
        for segment in self._active:
            stale = self._stale.get(segment.segment_id)
            if stale is not None and stale.deciding(policy).score(policy) > 1:
                self._suppress_stale(ActionKind.SPLIT, self._hot_text(segment, stale)[0], segment)
        for score, segment, load in sorted(hot, key=lambda one: (-one[0], *_place(one[1]))):
            reason, text = self._hot_text(segment, load)
            if self._is_too_narrow(segment, reason) or self._is_hot_key(segment, load, score, reason):
                continue
            candidate = _Candidate(Split(segment.segment_id, self._points(segment, ceil(score))), reason, text)
            if self._may_split(candidate):
                return candidate
            if self._is_pass_over(ActionKind.SPLIT):
                break
        return None

    def _hot_text(self, segment: Segment, load: SegmentLoad) -> tuple[Reason, str]:
        rates = load.deciding(self._policy)
        ratios = rates.ratios(self._policy)
        which = ratios.index(max(ratios))  # the first of equal ones
        value, threshold = rates.values()[which], self._policy.split_thresholds[which]
        return _REASONS[which], f"segment {segment.segment_id}: {value:,.0f} {_UNITS[which]}, above {threshold:,.0f}"

    def _is_too_narrow(self, segment: Segment, reason: Reason) -> bool:
        if segment.hash_range.size >= 2:
            return False
        self._suppress(
            ActionKind.SPLIT, reason, Suppression.TOO_NARROW, (segment.segment_id,),
            f"segment {segment.segment_id} has one hash value and cannot be split",
        )  # fmt: skip
        return True

    def _is_hot_key(self, segment: Segment, load: SegmentLoad, score: float, reason: Reason) -> bool:
        """One key alone is above the threshold and the load beside it is not: no split would help."""
        hot = load.hot_key
        if hot is None or hot.share < self._policy.hot_key_share:
            return False
        if hot.share * score <= 1 or (1 - hot.share) * score > 1:
            return False
        self._suppress(
            ActionKind.SPLIT, reason, Suppression.HOT_KEY, (segment.segment_id,),
            f"segment {segment.segment_id}: {hot.share:.0%} of its load is one key, {hot.key!r} (hash {hot.hash:04x})",
        )  # fmt: skip
        return True

    def _points(self, segment: Segment, parts: int) -> tuple[int, ...]:
        """Where to cut: at least in two, at most in what policy and segment limit allow."""
        room = self._policy.max_segments - len(self._active) + 1
        parts = max(2, min(parts, self._policy.split_factor_max, room, segment.hash_range.size))
        load = self._loads.get(segment.segment_id)
        if self._policy.split_point is SplitPoint.LOAD and load is not None:
            return load_points(segment.hash_range, load.histogram, parts)
        return segment.hash_range.even_points(parts)

    def _may_split(self, candidate: _Candidate) -> bool:
        policy, history = self._policy, self._history
        text = candidate.detail
        if len(self._active) >= policy.max_segments:
            return self._stop(
                candidate, Suppression.MAX_SEGMENTS, f"{text}; the limit is {policy.max_segments} segments"
            )
        return self._may_run(candidate, history.last_split_at_ms, policy.split_cooldown_seconds)

    def _is_pass_over(self, kind: ActionKind) -> bool:
        """What stopped the candidate would stop every other one too."""
        general = {Suppression.MAX_SEGMENTS, Suppression.OPERATION_IN_FLIGHT, Suppression.COOLDOWN}
        return any(one.kind is kind and one.suppressed_by in general for one in self._suppressed.values())

    # both -------------------------------------------------------------------------------------------------------------
    def _may_run(self, candidate: _Candidate, last_ms: int, cooldown_seconds: int) -> bool:
        """Rules for every action: one at a time, cooldown, pause after a failure."""
        history, text = self._history, candidate.detail
        if history.operation is not None:
            return self._stop(candidate, Suppression.OPERATION_IN_FLIGHT, f"{text}; {history.operation} runs")
        until_ms = last_ms + cooldown_seconds * 1000
        if last_ms != NEVER and self._now_ms < until_ms:
            left = ceil((until_ms - self._now_ms) / 1000)
            return self._stop(candidate, Suppression.COOLDOWN, f"{text}; the cooldown ends in {left} s", until_ms)
        failed = history.failure(candidate.action.kind, candidate.action.segment_ids)
        if failed is not None and self._now_ms < failed.until_ms:
            why = f"{text}; it failed {failed.failures} times: {failed.reason}"
            return self._stop(candidate, Suppression.RECENT_FAILURE, why, failed.until_ms)
        return True

    def _stop(self, candidate: _Candidate, by: Suppression, detail: str, until_ms: int | None = None) -> bool:
        action = candidate.action
        self._suppress(action.kind, candidate.reason, by, action.segment_ids, detail, until_ms)
        return False

    def _rates(self, segment: Segment) -> Rates:
        load = self._loads.get(segment.segment_id)
        return Rates() if load is None else load.deciding(self._policy)

    def _suppress_stale(self, kind: ActionKind, reason: Reason, segment: Segment) -> None:
        self._suppress(
            kind, reason, Suppression.STALE_REPORT, (segment.segment_id,),
            f"segment {segment.segment_id} has no owner, and its last report is too old",
        )  # fmt: skip

    # merge ------------------------------------------------------------------------------------------------------------
    def _merge(self) -> _Candidate | None:
        policy, count = self._policy, len(self._active)
        room = count - max(policy.min_segments, min(self._demand.consumers, policy.max_segments))
        if room <= 0:
            self._suppress_at_floor()
            return None
        is_cold = [self._is_cold(segment) for segment in self._active]
        for length in range(min(policy.merge_factor_max, room + 1), 1, -1):
            runs = [run for run in self._runs(is_cold, length) if self._may_join(run)]
            for run in sorted(runs, key=self._coldness):
                candidate = self._merge_candidate(run)
                if self._may_run(candidate, self._history.last_merge_at_ms, policy.merge_cooldown_seconds):
                    return candidate
                if self._is_pass_over(ActionKind.MERGE):
                    return None
        return None

    def _suppress_at_floor(self) -> None:
        """The topic cannot have fewer segments, however cold. No time is given: it need not be looked at again."""
        policy = self._policy
        cold = [
            number
            for number in (one.segment_id for one in self._active)
            if number in self._loads and self._loads[number].rates.is_below_merge(policy)
        ]
        if len(cold) < 2:
            return
        by, text = Suppression.MIN_SEGMENTS, f"the topic keeps {policy.min_segments} segments"
        if len(self._active) > policy.min_segments:
            by, text = (
                Suppression.CONSUMER_DEMAND,
                (
                    f"subscription {self._demand.subscription} has {self._demand.consumers} consumers, "
                    f"the topic {len(self._active)} active segments"
                ),
            )
        self._suppress(ActionKind.MERGE, Reason.COLD, by, tuple(cold), text)

    def _is_cold(self, segment: Segment) -> bool:
        """Below the merge thresholds for the whole merge window."""
        policy, number = self._policy, segment.segment_id
        load = self._loads.get(number)
        if load is None and number in self._stale:
            if self._stale[number].rates.is_below_merge(policy):
                self._suppress_stale(ActionKind.MERGE, Reason.COLD, segment)
            return False
        if load is None:
            self._suppress(
                ActionKind.MERGE, Reason.COLD, Suppression.NO_REPORT, (number,),
                f"segment {number} has not reported its load",
            )  # fmt: skip
            return False
        if not load.rates.is_below_merge(policy):
            return False
        since = load.below_merge_since_ms
        until_ms = None if since is None else since + policy.merge_window_seconds * 1000
        if until_ms is not None and self._now_ms >= until_ms:
            return True
        left = policy.merge_window_seconds if until_ms is None else ceil((until_ms - self._now_ms) / 1000)
        self._suppress(
            ActionKind.MERGE, Reason.COLD, Suppression.MERGE_WINDOW, (number,),
            f"segment {number} is cold; the merge window ends in {left} s", until_ms,
        )  # fmt: skip
        return False

    def _runs(self, is_cold: Sequence[bool], length: int) -> Iterator[tuple[Segment, ...]]:
        for first in range(len(self._active) - length + 1):
            if all(is_cold[first : first + length]):
                yield self._active[first : first + length]

    def _may_join(self, run: tuple[Segment, ...]) -> bool:
        policy, ids = self._policy, tuple(one.segment_id for one in run)
        depth = max(one.merge_depth_at(self._now_ms) for one in run)
        if depth >= policy.max_dag_depth:
            times = [one.mergeable_at_ms(policy.max_dag_depth) for one in run]
            self._suppress(
                ActionKind.MERGE, Reason.COLD, Suppression.MAX_DEPTH, ids,
                f"segments {list(ids)} have {depth} merges upon each other, the limit is {policy.max_dag_depth}",
                max((one for one in times if one is not None), default=None),
            )  # fmt: skip
            return False
        score = self._together(run).score(policy)
        if score > PROJECTED_SCORE_MAX:
            self._suppress(
                ActionKind.MERGE, Reason.COLD, Suppression.PROJECTED_LOAD, ids,
                f"segments {list(ids)} would have {score:.0%} of a split threshold together",
            )  # fmt: skip
            return False
        return True

    def _together(self, run: Sequence[Segment]) -> Rates:
        return reduce(Rates.__add__, (self._loads[one.segment_id].highest(self._policy) for one in run))

    def _coldness(self, run: tuple[Segment, ...]) -> tuple[float, int, int, int]:
        """PIP-483's order: the smallest sum of all rates. Of equal ones the narrowest, so that the segments of an idle
        topic are merged evenly and their merge depth stays low."""
        rates = sum(sum(self._loads[one.segment_id].rates.values()) for one in run)
        return rates, run[-1].hash_range.end - run[0].hash_range.start, *_place(run[0])

    def _merge_candidate(self, run: tuple[Segment, ...]) -> _Candidate:
        ids = tuple(one.segment_id for one in run)
        rates = self._together(run)
        text = (
            f"segments {list(ids)} are cold for {self._policy.merge_window_seconds} s: "
            f"{rates.msg_rate_in:,.0f} msg/s in, {rates.msg_rate_out:,.0f} msg/s out together"
        )
        return _Candidate(Merge(ids), Reason.COLD, text)


def load_points(hash_range: HashRange, histogram: Sequence[float], parts: int) -> tuple[int, ...]:
    """Split points for parts of equal load. Within a slot the load counts as even. Without load: equal width."""
    total = sum(histogram)
    if not total > 0:
        return hash_range.even_points(parts)
    sums = [0.0, *accumulate(histogram)]
    width = hash_range.size / len(histogram)
    points: list[int] = []
    slot = 0
    for part in range(1, parts):
        goal = total * part / parts
        while slot < len(histogram) - 1 and sums[slot + 1] < goal:
            slot += 1
        inside = (goal - sums[slot]) / histogram[slot] if histogram[slot] else 0.0
        point = hash_range.start + round((slot + inside) * width)
        lowest = (points[-1] if points else hash_range.start) + 1
        highest = hash_range.end - (parts - 1 - part)  # room for the points that follow
        points.append(min(max(point, lowest), highest))
    return tuple(points)


def _place(segment: Segment) -> tuple[int, int]:
    return segment.hash_range.start, segment.segment_id
