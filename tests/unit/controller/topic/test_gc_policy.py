"""Garbage collection: retention by time and size, and all reasons to keep a segment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.controller.group.drain_tracker import DrainRecord, DrainTracker, Effect, LayoutChanged, Open
from anabranch.controller.records.topic_record import TopicRecord, planned, pruned, swept
from anabranch.controller.records.topic_record_codec import decode_record, encode_record
from anabranch.controller.topic.gc_policy import WEEK_MS, GcDecision, KeptFor, Progress, Retention, decide
from anabranch.model.layout import NO_LIMITS, Layout
from anabranch.model.replacement import plan_split
from tests.support.models.layout_histories import histories, merge, split

ONE = Layout.initial(1, now_ms=0)
TWICE = TopicRecord(split(split(ONE, 0, at_ms=100), 1, at_ms=200), last_split_at_ms=200)  # 0 -> 1, 2; 1 -> 3, 4
AT_ONCE = Retention(0, 0)


def decision(
    record: TopicRecord = TWICE,
    now_ms: int = 1_000,
    retention: Retention = AT_ONCE,
    *,
    subscriptions: Mapping[str, Progress] | None = None,
    sizes: Mapping[int, int] | None = None,
    holds: Mapping[str, Iterable[int]] | None = None,
) -> GcDecision:
    return decide(
        record,
        now_ms=now_ms,
        retention=retention,
        subscriptions=subscriptions or {},
        sizes=sizes or {},
        holds=holds or {},
    )


def through(*segments: int) -> Progress:
    return Progress(frozenset(segments))


class TestRetention:
    def test_default_retention_is_a_week(self) -> None:
        assert decision(now_ms=WEEK_MS + 99, retention=Retention()).prune == ()
        assert decision(now_ms=WEEK_MS + 100, retention=Retention()).prune == (0,)
        assert decision(now_ms=WEEK_MS + 200, retention=Retention()).prune == (0, 1)

    def test_next_check_is_when_retention_ends(self) -> None:
        assert decision(now_ms=150, retention=Retention(500)).look_again_at_ms == 600
        assert decision(now_ms=650, retention=Retention(500)).look_again_at_ms == 700
        assert decision(now_ms=700, retention=Retention(500)).look_again_at_ms is None
        assert decision(now_ms=1 << 60, retention=Retention(-1)).look_again_at_ms is None
        waits = decision(now_ms=150, retention=Retention(500), subscriptions={"s": through()})
        assert waits.look_again_at_ms is None, "time alone changes nothing for an unread segment"

    def test_unlimited_retention_keeps_all(self) -> None:
        kept = decision(now_ms=1 << 60, retention=Retention(-1, -1))
        assert (kept.prune, kept.kept) == ((), {0: (KeptFor.RETENTION, ""), 1: (KeptFor.PARENT, "0")})

    def test_seal_time_is_at_least_that_of_the_parents(self) -> None:
        """The child's owner is behind: sealed before its parent, if one believes it."""
        segments = dict(TWICE.segments)
        segments[1] = replace(segments[1], sealed_at_ms=50)
        record = replace(TWICE, layout=replace(TWICE.layout, segments=segments))
        assert decision(record, 599, Retention(500)).look_again_at_ms == 600
        assert decision(record, 600, Retention(500)).prune == (0, 1)

    def test_size_limit_deletes_the_oldest_first(self) -> None:
        sizes = {0: 100, 1: 50, 2: 20, 3: 10, 4: 10}
        assert decision(retention=Retention(-1, 200), sizes=sizes).prune == ()
        assert decision(retention=Retention(-1, 190), sizes=sizes).prune == (0,)
        assert decision(retention=Retention(-1, 91), sizes=sizes).prune == (0,)
        assert decision(retention=Retention(-1, 90), sizes=sizes).prune == (0, 1)

    def test_either_limit_allows_deletion(self) -> None:
        assert decision(now_ms=1_000, retention=Retention(900, 1 << 40)).prune == (0,)
        assert decision(now_ms=1_000, retention=Retention(WEEK_MS, 0)).prune == (0, 1)


class TestNeeded:
    def test_active_segments_are_kept(self) -> None:
        assert decision().prune == (0, 1)
        assert decision(TopicRecord(ONE)).prune == ()

    def test_segment_is_kept_until_all_subscriptions_drained_it(self) -> None:
        found = decision(subscriptions={"b": through(0), "a": through(0, 1), "c": through(1, 0)})
        assert found.prune == (0,)
        assert found.kept == {1: (KeptFor.SUBSCRIPTION, "b")}
        assert decision(subscriptions={"b": through()}).prune == ()

    def test_changing_subscription_keeps_all_segments(self) -> None:
        found = decision(subscriptions={"s": Progress(frozenset({0, 1}), is_settled=False)})
        assert found.prune == ()
        assert found.kept[0] == (KeptFor.SUBSCRIPTION, "s")

    def test_held_segment_is_kept(self) -> None:
        found = decision(holds={"nightly": [1], "a": [1]})
        assert (found.prune, found.kept) == ((0,), {1: (KeptFor.HOLD, "a")})
        found = decision(holds={"nightly": [0]})
        assert (found.prune, found.kept) == ((), {0: (KeptFor.HOLD, "nightly"), 1: (KeptFor.PARENT, "0")})

    def test_running_operation_keeps_all_segments(self) -> None:
        plan = plan_split(TWICE.layout, 3, now_ms=0, limits=NO_LIMITS)
        found = decision(planned(TWICE, "op", plan, now_ms=0))
        assert (found.prune, found.kept[0]) == ((), (KeptFor.OPERATION, "op"))


def test_prune_and_sweep_keep_scaling_times() -> None:
    layout = merge(split(ONE, 0, at_ms=100), 1, 2, at_ms=200)
    record = TopicRecord(layout, last_split_at_ms=100, last_merge_at_ms=200)
    after = decode_record(encode_record(pruned(record, decision(record).prune)))
    assert [segment.segment_id for segment in after.garbage] == [0, 1, 2], "storage is still to confirm"
    assert sorted(after.segments) == [3]
    assert (after.layout[3].merge_depth, after.last_split_at_ms, after.last_merge_at_ms) == (1, 100, 200)
    again = decision(after)
    assert (again.prune, again.kept) == ((), {})
    assert swept(swept(after, [0, 1]), [2]).garbage == ()


@settings(max_examples=100, deadline=None)
@given(histories(steps_max=8), st.data())
def test_no_needed_segment_is_pruned(lives: list[Layout], data: st.DataObject) -> None:
    record = TopicRecord(lives[-1])
    some = st.frozensets(st.sampled_from(sorted(record.segments)))
    subscriptions = data.draw(st.dictionaries(st.sampled_from("xyz"), st.builds(Progress, some, st.booleans())))
    holds = data.draw(st.dictionaries(st.sampled_from("h"), some))
    retention = Retention(data.draw(st.integers(-1, 9)), data.draw(st.integers(-1, 99)))
    sizes = data.draw(st.dictionaries(st.sampled_from(sorted(record.segments)), st.integers(0, 50)))
    found = decision(record, 9, retention, subscriptions=subscriptions, sizes=sizes, holds=holds)
    after = pruned(record, found.prune)
    after.layout.check()
    for one in found.prune:
        assert all(progress.is_settled and one in progress.drained for progress in subscriptions.values())
        assert not any(one in ids for ids in holds.values())
        assert retention != Retention(-1, -1)
    assert found.kept.keys() | set(found.prune) == {segment.segment_id for segment in record.layout.sealed}
    for segment in after.layout.segments.values():  # who stays has all its ancestors, but for those it is through with
        lost = record.layout.ancestors(segment.segment_id) - after.layout.ancestors(segment.segment_id)
        assert lost <= set(found.prune)
    if retention == AT_ONCE and not subscriptions and not holds:
        assert list(after.layout.sealed) == []


@settings(max_examples=60, deadline=None)
@given(histories(steps_max=6), st.data())
def test_pruning_does_not_change_the_drain_tracker(lives: list[Layout], data: st.DataObject) -> None:
    """Whatever is collected, what is open before is open after, and nothing else."""
    layout = lives[-1]
    sealed = sorted(segment.segment_id for segment in layout.sealed)
    drained = frozenset(data.draw(st.sets(st.sampled_from(sealed)))) if sealed else frozenset[int]()
    found = decision(TopicRecord(layout), subscriptions={"s": Progress(drained)})
    stored = DrainRecord(drained=dict.fromkeys(drained, 0))
    before = DrainTracker(stored).handle(LayoutChanged(layout))
    after = DrainTracker(stored).handle(LayoutChanged(layout.pruned(found.prune)))
    assert opened(before) == opened(after)


def opened(effects: list[Effect]) -> list[int]:
    return [segment.segment_id for effect in effects if isinstance(effect, Open) for segment in effect.segments]
