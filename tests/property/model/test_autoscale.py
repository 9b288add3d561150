"""Auto-scaling on random traffic, on a virtual clock: converges, never flips, changes seldom, passes no limit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.model.autoscale.evaluator import GroupDemand, decide
from anabranch.model.autoscale.history import History
from anabranch.model.autoscale.load import HotKey, Rates, SegmentLoad
from anabranch.model.autoscale.policy import AutoScalePolicy, SplitPoint
from anabranch.model.autoscale.simulation import SLOTS, SimulatedTopic, Step, Traffic
from anabranch.model.hashrange import HashRange
from anabranch.model.layout import Layout
from anabranch.model.routing import RoutingKind
from tests.support.models.layout_histories import histories

TICK_SECONDS = 30
SETTLING_TICKS = 400
WINDOW_TICKS = 2


@dataclass(frozen=True)
class Phase:
    """Traffic and consumers that do not change for some ticks."""

    ticks: int
    traffic: Traffic
    consumers: int


@st.composite
def policies(draw: st.DrawFn) -> AutoScalePolicy:
    split = draw(st.sampled_from([100.0, 1_000.0]))
    most = draw(st.integers(1, 12))
    return AutoScalePolicy(
        max_segments=most,
        min_segments=draw(st.integers(1, min(3, most))),
        max_dag_depth=draw(st.sampled_from([0, 3, 10])),
        split_cooldown_seconds=draw(st.sampled_from([0, 30, 60])),
        merge_cooldown_seconds=draw(st.sampled_from([0, 60, 300])),
        merge_window_seconds=draw(st.sampled_from([0, 60, 300])),
        split_msg_rate_in_threshold=split,
        merge_msg_rate_in_threshold=split * draw(st.sampled_from([0, 0.1, 0.5, 0.9])),
        split_rate_window_seconds=draw(st.sampled_from([5, 60])),
        split_factor_max=draw(st.sampled_from([2, 2, 4, 8])),
        split_point=draw(st.sampled_from(SplitPoint)),
        merge_factor_max=draw(st.sampled_from([2, 2, 4])),
    )


@st.composite
def phases(draw: st.DrawFn, *, ticks_max: int = 30) -> Phase:
    rates = st.floats(0, 3_000, allow_nan=False)
    few = draw(st.dictionaries(st.integers(0, SLOTS - 1), rates, max_size=4))
    even = draw(st.sampled_from([0.0, 50.0, 500.0, 5_000.0])) / SLOTS
    slots = {slot: (even + few.get(slot, 0.0), 0.0) for slot in range(SLOTS)}
    keys = {one: (rate, 0.0) for one, rate in draw(st.dictionaries(st.integers(0, 0xFFFF), rates, max_size=2)).items()}
    return Phase(draw(st.integers(1, ticks_max)), Traffic(slots, keys), draw(st.sampled_from([0, 0, 1, 3, 8, 20])))


def ran(topic: SimulatedTopic, phase: Phase) -> None:
    for _ in range(phase.ticks):
        topic.tick(phase.traffic, phase.consumers)


def simulated(policy: AutoScalePolicy) -> SimulatedTopic:
    return SimulatedTopic(policy, segments=policy.min_segments, tick_seconds=TICK_SECONDS)


def union(step: Step) -> HashRange:
    return HashRange(step.parent_ranges[0].start, step.parent_ranges[-1].end)


def flips(steps: list[Step], seconds: float) -> list[tuple[Step, Step]]:
    """Pairs of a merge and a split, in any order, that undo each other within so many seconds."""
    return [
        (one, other)
        for i, one in enumerate(steps)
        for other in steps[i + 1 :]
        if other.at - one.at <= seconds and one.kind != other.kind and union(one) == union(other)
    ]


@settings(max_examples=30)
@given(policies(), st.lists(phases(), max_size=3), phases())
def test_constant_load_ends_in_no_change_and_nothing_is_undone(
    policy: AutoScalePolicy, before: list[Phase], last: Phase
) -> None:
    topic = simulated(policy)
    for phase in before:
        ran(topic, phase)
    ran(topic, Phase(WINDOW_TICKS, last.traffic, last.consumers))
    since = len(topic.steps)
    ran(topic, Phase(SETTLING_TICKS, last.traffic, last.consumers))
    steps = topic.steps[since:]
    end = len(topic.ticks) * TICK_SECONDS
    assert [one for one in steps if one.at > end - 100 * TICK_SECONDS] == []
    two_cooldowns = 2 * max(policy.split_cooldown_seconds, policy.merge_cooldown_seconds, TICK_SECONDS)
    assert flips(steps, two_cooldowns) == []


@settings(max_examples=40)
@given(policies(), st.lists(phases(), min_size=2, max_size=8))
def test_limits_are_never_passed_and_changes_keep_their_cooldown(policy: AutoScalePolicy, some: list[Phase]) -> None:
    topic = simulated(policy)
    for phase in some:
        for _ in range(phase.ticks):
            before, epoch = len(topic.layout.active), topic.layout.epoch
            topic.tick(phase.traffic, phase.consumers)
            count = len(topic.layout.active)
            assert policy.min_segments <= count <= policy.max_segments
            if topic.layout.epoch > epoch and count < before:
                assert count >= min(phase.consumers, policy.max_segments), "merged below the demand of consumers"
            assert all(one.merge_depth <= policy.max_dag_depth for one in topic.layout.active)
    for kind, cooldown in (("split", policy.split_cooldown_seconds), ("merge", policy.merge_cooldown_seconds)):
        times = [one.at for one in topic.steps if one.kind == kind]
        assert all(later - earlier >= cooldown for earlier, later in pairwise(times))
        for at in times:
            hour = sum(at <= one < at + 3600 for one in times)
            assert hour <= 3600 / max(cooldown, TICK_SECONDS) + 1


@st.composite
def questions(draw: st.DrawFn) -> tuple[Layout, dict[int, SegmentLoad], list[GroupDemand], AutoScalePolicy, History]:
    layout = draw(histories(steps_max=6))[-1]
    rates = st.builds(Rates, *[st.sampled_from([0.0, 1.0, 50.0, 99.0, 100.0, 101.0, 5_000.0])] * 4)
    times = st.none() | st.integers(0, 1_000_000)
    reports = st.builds(
        SegmentLoad,
        rates=rates,
        fast_rates=st.none() | rates,
        below_merge_since_ms=times,
        histogram=st.sampled_from([(), (1.0,) * 16, (*[0.0] * 15, 1.0)]),
        hot_key=st.none() | st.builds(HotKey, st.integers(0, 0xFFFF), st.floats(0, 1)),
        reported_at_ms=st.integers(0, 1_000_000),
    )
    loads = draw(st.dictionaries(st.sampled_from(sorted(layout.segments)), reports))
    sealed = [one.segment_id for one in layout.sealed]
    undrained = st.frozensets(st.sampled_from(sealed)) if sealed else st.just(frozenset[int]())
    groups = draw(st.lists(st.builds(GroupDemand, st.sampled_from("abc"), st.integers(0, 9), undrained), max_size=3))
    history = draw(st.builds(History, st.just(-1) | st.integers(0, 1_000_000), st.just(-1) | st.integers(0, 1_000_000)))
    return layout, loads, groups, draw(policies()), history


@settings(max_examples=150)
@given(questions())
def test_same_input_in_any_order_gives_the_same_possible_decision(
    question: tuple[Layout, dict[int, SegmentLoad], list[GroupDemand], AutoScalePolicy, History],
) -> None:
    layout, loads, groups, policy, history = question
    found = decide(layout, loads, groups, policy, history, 1_000_000)
    backwards = replace(layout, segments=dict(sorted(layout.segments.items(), reverse=True)))
    assert decide(backwards, dict(reversed(loads.items())), groups[::-1], policy, history, 1_000_000) == found
    if found.action is None:
        return
    assert layout.routing.kind is RoutingKind.RANGE
    if found.action.kind.value == "split":
        parts = layout[found.action.segment_ids[0]].hash_range.split(found.action.points)  # type: ignore[union-attr]  # a Split
        assert 2 <= len(parts) <= policy.split_factor_max
    else:
        places = [one.segment_id for one in layout.active]
        first = places.index(found.action.segment_ids[0])
        assert found.action.segment_ids == tuple(places[first : first + len(found.action.segment_ids)])
