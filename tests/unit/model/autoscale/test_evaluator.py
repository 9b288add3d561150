"""The evaluator, rule by rule: PIP-483's two passes first, then what goes beyond it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from anabranch.model.autoscale.decision import Decision, Merge, Reason, Split, Suppression
from anabranch.model.autoscale.evaluator import GroupDemand, decide, load_points
from anabranch.model.autoscale.history import History
from anabranch.model.autoscale.load import HotKey, Rates, SegmentLoad
from anabranch.model.autoscale.policy import AutoScalePolicy, SplitPoint
from anabranch.model.hashrange import FULL, HashRange
from anabranch.model.layout import Layout
from tests.support.models.layout_histories import merge, split

NOW = 10_000_000
POLICY = AutoScalePolicy()
LONG_AGO = NOW - 10 * 300_000


def topic(segments: int) -> Layout:
    return Layout.initial(segments, now_ms=0)


def hot(messages: float = 20_000, **others: object) -> SegmentLoad:
    return replace(SegmentLoad(rates=Rates(messages), reported_at_ms=NOW), **others)  # type: ignore[arg-type]  # any field


def warm(messages: float = 5_000) -> SegmentLoad:
    return SegmentLoad(rates=Rates(messages), reported_at_ms=NOW)


def cold(messages: float = 1, since: int = LONG_AGO, **others: object) -> SegmentLoad:
    made = SegmentLoad(rates=Rates(messages), below_merge_since_ms=since, reported_at_ms=since)
    return replace(made, **others)  # type: ignore[arg-type]  # any field


def loads(*given: SegmentLoad | None) -> dict[int, SegmentLoad]:
    return {number: one for number, one in enumerate(given) if one is not None}


def consumers(count: int, undrained: frozenset[int] = frozenset()) -> list[GroupDemand]:
    return [GroupDemand("audit", count, undrained)]


def asked(
    layout: Layout,
    reports: dict[int, SegmentLoad],
    groups: list[GroupDemand] | None = None,
    policy: AutoScalePolicy = POLICY,
    history: History | None = None,
    unowned: tuple[int, ...] = (),
) -> Decision:
    return decide(layout, reports, groups or [], policy, history or History(), NOW, unowned=unowned)


def suppressions(decision: Decision) -> set[tuple[str, str]]:
    return {(one.kind.value, one.suppressed_by.value) for one in decision.suppressed}


class TestOff:
    def test_disabled_policy_does_nothing(self) -> None:
        found = asked(topic(1), loads(hot()), consumers(9), AutoScalePolicy(enabled=False))
        assert (found.action, found.reason) == (None, Reason.DISABLED)

    def test_partitions_of_a_regular_topic_are_left_alone(self) -> None:
        synthetic = Layout.synthetic(["persistent://public/default/x"], now_ms=0)
        assert asked(synthetic, loads(hot())).reason is Reason.NOT_SCALABLE

    def test_topic_between_the_thresholds_is_balanced(self) -> None:
        found = asked(topic(2), loads(warm(), warm()))
        assert (found.action, found.reason, found.suppressed) == (None, Reason.BALANCED, ())


class TestSplitByConsumerCount:
    def test_more_consumers_than_segments_split_the_busiest_segment_at_its_middle(self) -> None:
        found = asked(topic(2), loads(warm(10), warm(20)), consumers(3))
        assert (found.action, found.reason) == (Split(1, (0xC000,)), Reason.CONSUMER_COUNT)

    def test_as_many_consumers_as_segments_split_nothing(self) -> None:
        assert asked(topic(2), loads(warm(), warm()), consumers(2)).action is None

    def test_largest_subscription_counts_and_not_the_sum_of_all(self) -> None:
        groups = [GroupDemand("a", 2), GroupDemand("b", 2)]
        assert asked(topic(2), loads(warm(), warm()), groups).action is None
        groups = [GroupDemand("a", 1), GroupDemand("b", 3)]
        assert asked(topic(2), loads(warm(), warm()), groups).reason is Reason.CONSUMER_COUNT

    def test_missing_report_counts_as_no_traffic(self) -> None:
        assert asked(topic(2), loads(None, warm(1)), consumers(3)).action == Split(1, (0xC000,))

    def test_consumer_count_goes_before_load(self) -> None:
        found = asked(topic(2), loads(hot(), warm()), consumers(3))
        assert (found.action, found.reason) == (Split(0, (0x4000,)), Reason.CONSUMER_COUNT)

    def test_idle_topic_is_split_evenly_down_to_one_segment_per_consumer(self) -> None:
        layout = topic(1)
        while isinstance(action := asked(layout, {}, consumers(8)).action, Split):
            layout = split(layout, action.segment_id)
        assert [one.hash_range.size for one in layout.active] == [0x2000] * 8

    def test_segment_of_one_hash_value_is_skipped_and_the_next_is_tried(self) -> None:
        layout = split(topic(1), 0, 1)  # segments 1: 0000-0000 and 2: 0001-ffff
        found = asked(layout, {1: warm(9), 2: warm(1)}, consumers(3))
        assert isinstance(found.action, Split) and found.action.segment_id == 2
        assert ("split", "too-narrow") in suppressions(found)

    def test_range_with_undrained_ancestors_is_not_deepened_and_another_is_tried(self) -> None:
        layout = split(topic(2), 0)  # 0 is sealed: 2 and 3 wait for it; 1 has no ancestors
        reports = {1: warm(1), 2: warm(9), 3: warm(9)}
        found = asked(layout, reports, consumers(4, frozenset({0})))
        assert found.action == Split(1, (0xC000,))
        assert ("split", "undrained-ancestors") in suppressions(found)
        assert isinstance(drained := asked(layout, reports, consumers(4)).action, Split) and drained.segment_id == 2

    def test_nothing_is_split_for_consumers_while_all_ancestors_are_undrained(self) -> None:
        layout = split(topic(1), 0)
        found = asked(layout, {1: warm(), 2: warm()}, consumers(3, frozenset({0})))
        assert (found.action, found.reason) == (None, Reason.SUPPRESSED)
        assert found.suppressed_by == (Suppression.UNDRAINED_ANCESTORS,)
        assert found.due_at_ms is None, "it is due when the ancestor is drained, not at a time"

    def test_undrained_segments_of_a_subscription_with_enough_segments_do_not_count(self) -> None:
        layout = split(topic(1), 0)
        groups = [GroupDemand("slow", 1, frozenset({0})), GroupDemand("wide", 3)]
        assert isinstance(asked(layout, {1: warm(), 2: warm()}, groups).action, Split)

    def test_hot_segment_is_split_for_its_load_while_undrained_ancestors_stop_the_consumers(self) -> None:
        layout = split(topic(1), 0)
        found = asked(layout, {1: warm(), 2: hot()}, consumers(3, frozenset({0})))
        assert (found.action, found.reason) == (Split(2, (0xC000,)), Reason.MSG_RATE_IN)


class TestSplitByLoad:
    @pytest.mark.parametrize(
        ("rates", "reason"),
        [
            (Rates(10_001), Reason.MSG_RATE_IN),
            (Rates(0, 50_000_001), Reason.BYTES_RATE_IN),
            (Rates(0, 0, 50_001), Reason.MSG_RATE_OUT),
            (Rates(0, 0, 0, 250_000_001), Reason.BYTES_RATE_OUT),
            (Rates(11_000, 100_000_000), Reason.BYTES_RATE_IN),  # the highest ratio names the reason
        ],
        ids=str,
    )
    def test_each_rate_above_its_threshold_splits(self, rates: Rates, reason: Reason) -> None:
        found = asked(topic(1), {0: SegmentLoad(rates=rates)})
        assert (found.action, found.reason) == (Split(0, (0x8000,)), reason)

    @pytest.mark.parametrize("rates", [Rates(10_000), Rates(0, 5e7), Rates(0, 0, 5e4), Rates(0, 0, 0, 25e7)], ids=str)
    def test_rate_at_its_threshold_does_not_split(self, rates: Rates) -> None:
        assert asked(topic(1), {0: SegmentLoad(rates=rates)}).action is None

    def test_segment_furthest_above_its_threshold_is_split(self) -> None:
        reports = {0: SegmentLoad(rates=Rates(15_000)), 1: SegmentLoad(rates=Rates(0, 100_000_000))}
        assert asked(topic(2), reports).action == Split(1, (0xC000,))

    def test_equal_scores_are_decided_by_range_start(self) -> None:
        layout = split(topic(2), 0)  # ring order: 2, 3, 1
        assert asked(layout, {1: hot(), 2: warm(), 3: hot()}).action == Split(3, (0x6000,))

    def test_same_input_in_another_order_gives_the_same_decision(self) -> None:
        reports = {0: hot(), 1: hot(), 2: hot(), 3: cold()}
        backwards = dict(reversed(reports.items()))
        assert asked(topic(4), reports) == asked(topic(4), backwards)

    def test_missing_report_is_no_evidence(self) -> None:
        assert asked(topic(1), {}).action is None

    def test_long_window_decides_by_default_and_short_window_by_policy(self) -> None:
        burst = SegmentLoad(rates=Rates(5_000), fast_rates=Rates(20_000))
        assert asked(topic(1), loads(burst)).action is None
        assert asked(topic(1), loads(burst), policy=AutoScalePolicy(split_rate_window_seconds=5)).action is not None
        ebb = SegmentLoad(rates=Rates(20_000), fast_rates=Rates(5_000))
        assert asked(topic(1), loads(ebb)).action is not None

    def test_hottest_segment_of_one_hash_value_is_skipped_and_the_next_is_tried(self) -> None:
        layout = split(topic(1), 0, 1)
        found = asked(layout, {1: hot(90_000), 2: hot()})
        assert isinstance(found.action, Split) and found.action.segment_id == 2
        assert ("split", "too-narrow") in suppressions(found)


class TestSplitCaps:
    def test_topic_at_its_largest_is_not_split(self) -> None:
        policy = AutoScalePolicy(max_segments=2)
        for groups in (consumers(1), consumers(3)):
            found = asked(topic(2), loads(hot(), warm()), groups, policy)
            assert found.action is None
            assert ("split", "max-segments") in suppressions(found)

    def test_cooldown_stops_both_kinds_of_split_until_it_ends(self) -> None:
        for age, is_split in ((59_999, False), (60_000, True)):
            history = History(last_split_at_ms=NOW - age)
            for groups in ([], consumers(2)):
                found = asked(topic(1), loads(hot()), groups, history=history)
                assert (found.action is not None) is is_split
                assert ("split", "cooldown") not in suppressions(found) or found.due_at_ms == NOW - age + 60_000

    def test_merge_does_not_start_the_cooldown_of_splits(self) -> None:
        assert asked(topic(1), loads(hot()), history=History(last_merge_at_ms=NOW)).action is not None

    def test_running_operation_stops_everything(self) -> None:
        history = History(operation="split of [0]")
        hot_one = asked(topic(2), loads(hot(), warm()), history=history)
        cold_two = asked(topic(2), loads(cold(), cold()), history=history)
        assert (hot_one.action, cold_two.action) == (None, None)
        assert hot_one.suppressed_by == cold_two.suppressed_by == (Suppression.OPERATION_IN_FLIGHT,)

    def test_failed_split_pauses_only_that_segment(self) -> None:
        action = Split(0, (0x4000,))
        history = History().with_outcome(action, NOW - 29_999, "owner down")
        found = asked(topic(2), loads(hot(30_000), hot(20_000)), history=history)
        assert found.action == Split(1, (0xC000,))
        assert ("split", "recent-failure") in suppressions(found)
        alone = asked(topic(1), loads(hot()), history=History().with_outcome(Split(0, (0x8000,)), NOW - 10_000, "no"))
        assert (alone.action, alone.due_at_ms) == (None, NOW + 20_000)
        later = History().with_outcome(action, NOW - 30_000, "owner down")
        assert asked(topic(2), loads(hot(30_000), hot(20_000)), history=later).action == action


class TestMerge:
    def test_coldest_neighbours_are_merged(self) -> None:
        reports = loads(cold(50), cold(40), cold(3), cold(2))
        found = asked(topic(4), reports)
        assert (found.action, found.reason) == (Merge((2, 3)), Reason.COLD)

    def test_sum_of_all_four_rates_of_both_decides_which_is_coldest(self) -> None:
        reports = {
            0: cold(1, rates=Rates(1, 500)),
            1: cold(1, rates=Rates(1, 500)),
            2: cold(1, rates=Rates(100, 0, 100, 0)),
            3: cold(1, rates=Rates(100, 0, 100, 0)),
        }
        assert asked(topic(4), reports).action == Merge((2, 3))

    def test_only_neighbours_are_merged(self) -> None:
        assert asked(topic(4), loads(cold(), warm(), cold(), warm())).action is None

    def test_last_and_first_segment_of_the_ring_are_no_neighbours(self) -> None:
        assert asked(topic(3), loads(cold(), warm(), cold())).action is None

    @pytest.mark.parametrize("rates", [Rates(1e3), Rates(0, 5e6), Rates(0, 0, 5e3), Rates(0, 0, 0, 25e6)], ids=str)
    def test_any_rate_at_its_merge_threshold_forbids_the_merge(self, rates: Rates) -> None:
        assert asked(topic(2), loads(cold(rates=rates), cold())).action is None

    def test_threshold_of_zero_switches_merging_off(self) -> None:
        policy = AutoScalePolicy(merge_msg_rate_in_threshold=0)
        assert asked(topic(2), loads(cold(0), cold(0)), policy=policy).action is None

    def test_both_must_be_cold_for_the_whole_window(self) -> None:
        for age, is_merged in ((299_999, False), (300_000, True)):
            found = asked(topic(2), loads(cold(), cold(since=NOW - age)))
            assert (found.action is not None) is is_merged
        assert found.suppressed == ()
        waits = asked(topic(2), loads(cold(), cold(since=NOW - 100_000)))
        assert waits.suppressed_by == (Suppression.MERGE_WINDOW,)
        assert waits.due_at_ms == NOW + 200_000

    def test_age_of_the_report_is_not_the_window(self) -> None:
        fresh = replace(cold(), reported_at_ms=NOW)
        assert asked(topic(2), loads(fresh, fresh)).action is not None

    def test_record_without_the_time_of_crossing_is_not_cold(self) -> None:
        foreign = SegmentLoad(rates=Rates(1))
        assert asked(topic(2), loads(foreign, foreign)).suppressed_by == (Suppression.MERGE_WINDOW,)

    def test_missing_report_is_not_mistaken_for_cold(self) -> None:
        found = asked(topic(2), loads(cold(), None))
        assert (found.action, found.suppressed_by) == (None, (Suppression.NO_REPORT,))

    def test_smallest_topic_is_not_merged_and_needs_no_second_look(self) -> None:
        found = asked(topic(2), loads(cold(since=NOW), cold(since=NOW)), policy=AutoScalePolicy(min_segments=2))
        assert (found.action, found.suppressed_by, found.due_at_ms) == (None, (Suppression.MIN_SEGMENTS,), None)
        assert asked(topic(1), loads(cold())).suppressed == ()

    def test_cooldown_of_merges_is_separate(self) -> None:
        for history, is_merged in (
            (History(last_merge_at_ms=NOW - 299_999), False),
            (History(last_merge_at_ms=NOW - 300_000), True),
            (History(last_split_at_ms=NOW), True),
        ):
            assert (asked(topic(2), loads(cold(), cold()), history=history).action is not None) is is_merged

    def test_segments_at_the_largest_depth_are_not_merged(self) -> None:
        layout = merge(topic(3), 0, 1, at_ms=NOW)  # 3 has depth 1
        reports = {2: cold(), 3: cold()}
        found = asked(layout, reports, policy=AutoScalePolicy(max_dag_depth=1))
        assert (found.action, found.suppressed_by) == (None, (Suppression.MAX_DEPTH,))
        assert asked(layout, reports, policy=AutoScalePolicy(max_dag_depth=2)).action == Merge((3, 2))

    def test_depth_survives_garbage_collection(self) -> None:
        layout = merge(topic(3), 0, 1, at_ms=NOW).pruned([0, 1])
        found = asked(layout, {2: cold(), 3: cold()}, policy=AutoScalePolicy(max_dag_depth=1))
        assert found.suppressed_by == (Suppression.MAX_DEPTH,)

    def test_one_merge_is_forgotten_with_each_hour_that_a_segment_lives(self) -> None:
        reports = {2: cold(), 3: cold()}
        for age_ms, is_merged in ((3_600_000 - 1, False), (3_600_000, True)):
            layout = merge(topic(3), 0, 1, at_ms=NOW - age_ms)
            found = asked(layout, reports, policy=AutoScalePolicy(max_dag_depth=1))
            assert (found.action is not None) is is_merged
            assert found.due_at_ms == (None if is_merged else NOW + 1)
        never = asked(layout, reports, policy=AutoScalePolicy(max_dag_depth=0))
        assert (never.suppressed_by, never.due_at_ms) == ((Suppression.MAX_DEPTH,), None)

    def test_cold_pair_is_merged_while_a_hot_segment_waits_for_its_cooldown(self) -> None:
        found = asked(topic(3), loads(hot(), cold(), cold()), history=History(last_split_at_ms=NOW - 1))
        assert found.action == Merge((1, 2))
        assert suppressions(found) == {("split", "cooldown")}

    def test_no_merge_when_there_is_a_split(self) -> None:
        assert asked(topic(3), loads(hot(), cold(), cold())).action == Split(0, (0x2AAB,))

    def test_idle_topic_is_merged_evenly_so_that_its_depth_stays_low(self) -> None:
        layout = topic(64)
        while isinstance(action := asked(layout, {n: cold(0) for n in layout.segments}).action, Merge):
            layout = merge(layout, *action.segment_ids)
        assert len(layout.active) == 1
        assert layout.active[0].merge_depth == 6


class TestMergeGuards:
    def test_no_merge_below_the_demand_of_consumers(self) -> None:
        found = asked(topic(4), loads(*[cold()] * 4), consumers(4))
        assert (found.action, found.suppressed_by, found.due_at_ms) == (None, (Suppression.CONSUMER_DEMAND,), None)
        assert asked(topic(4), loads(*[cold()] * 4), consumers(3)).action == Merge((0, 1))

    def test_consumers_beyond_the_largest_topic_do_not_hold_more_segments_than_that(self) -> None:
        policy = AutoScalePolicy(max_segments=2)
        assert asked(topic(4), loads(*[cold()] * 4), consumers(9), policy).action == Merge((0, 1))
        assert asked(topic(2), loads(cold(), cold()), consumers(9), policy).action is None

    def test_no_merge_whose_sum_is_above_eighty_percent_of_a_split_threshold(self) -> None:
        policy = AutoScalePolicy(merge_msg_rate_in_threshold=9_000)
        found = asked(topic(2), loads(cold(4_001), cold(4_000)), policy=policy)
        assert (found.action, found.suppressed_by) == (None, (Suppression.PROJECTED_LOAD,))
        assert asked(topic(2), loads(cold(4_000), cold(4_000)), policy=policy).action == Merge((0, 1))

    def test_projection_has_the_short_window_when_that_decides_on_splits(self) -> None:
        policy = AutoScalePolicy(split_rate_window_seconds=5)
        burst = cold(fast_rates=Rates(9_000))
        assert asked(topic(2), loads(cold(), burst), policy=policy).suppressed_by == (Suppression.PROJECTED_LOAD,)
        assert asked(topic(2), loads(cold(), burst)).action == Merge((0, 1))

    def test_pair_that_cannot_be_merged_is_skipped_and_the_next_is_tried(self) -> None:
        policy = AutoScalePolicy(merge_msg_rate_in_threshold=9_000)
        quiet, loud = cold(100), cold(7_950)
        found = asked(topic(4), loads(quiet, loud, warm(9_500), loud), policy=policy)
        assert found.action is None
        found = asked(topic(4), loads(loud, quiet, quiet, loud), policy=policy)
        assert found.action == Merge((1, 2))

    def test_failed_merge_pauses_only_that_pair(self) -> None:
        history = History().with_outcome(Merge((0, 1)), NOW - 1, "owner down")
        assert asked(topic(3), loads(cold(1), cold(1), cold(9)), history=history).action == Merge((1, 2))


class TestStaleReports:
    OLD = NOW - 120_001

    def test_report_of_a_gone_owner_is_neither_hot_nor_cold_after_its_age(self) -> None:
        old_hot, old_cold = hot(reported_at_ms=self.OLD), cold(reported_at_ms=self.OLD)
        found = asked(topic(1), loads(old_hot), unowned=(0,))
        assert (found.action, found.suppressed_by) == (None, (Suppression.STALE_REPORT,))
        found = asked(topic(2), loads(old_cold, cold()), unowned=(0,))
        assert (found.action, found.suppressed_by) == (None, (Suppression.STALE_REPORT,))

    def test_steady_report_of_a_living_owner_does_not_age(self) -> None:
        assert asked(topic(1), loads(hot(reported_at_ms=0))).action is not None

    def test_recent_report_of_a_gone_owner_still_counts(self) -> None:
        assert asked(topic(1), loads(hot(reported_at_ms=NOW - 120_000)), unowned=(0,)).action is not None


class TestBeyondTheProposal:
    @pytest.mark.parametrize(
        ("score", "factor", "parts"), [(1.1, 8, 2), (2.0, 8, 2), (2.1, 8, 3), (6.5, 8, 7), (50, 8, 8), (50, 2, 2)]
    )
    def test_split_has_as_many_parts_as_the_load_has_thresholds(self, score: float, factor: int, parts: int) -> None:
        found = asked(topic(1), loads(hot(10_000 * score)), policy=AutoScalePolicy(split_factor_max=factor))
        assert isinstance(found.action, Split)
        assert found.action.points == FULL.even_points(parts)

    def test_split_for_consumers_has_one_part_for_each_that_has_none(self) -> None:
        policy = AutoScalePolicy(split_factor_max=8)
        found = asked(topic(2), loads(warm(2), warm(1)), consumers(5), policy)
        assert isinstance(found.action, Split) and len(found.action.points) == 3

    def test_parts_never_exceed_the_largest_topic_or_the_hash_values(self) -> None:
        found = asked(topic(2), loads(hot(90_000), warm()), policy=AutoScalePolicy(split_factor_max=8, max_segments=4))
        assert isinstance(found.action, Split) and len(found.action.points) == 2
        narrow = split(topic(1), 0, 3)
        found = asked(narrow, {1: hot(90_000), 2: warm()}, policy=AutoScalePolicy(split_factor_max=8))
        assert found.action == Split(1, (1, 2))

    def test_cut_is_where_the_histogram_halves_the_load(self) -> None:
        histogram = (0.0,) * 12 + (1.0,) * 4
        reports = loads(hot(histogram=histogram))
        assert asked(topic(1), reports).action == Split(0, (0x8000,))
        policy = AutoScalePolicy(split_point=SplitPoint.LOAD)
        assert asked(topic(1), reports, policy=policy).action == Split(0, (0xE000,))

    def test_without_histogram_the_cut_is_in_the_middle(self) -> None:
        assert asked(topic(1), loads(hot()), policy=AutoScalePolicy(split_point=SplitPoint.LOAD)).action == Split(
            0, (0x8000,)
        )

    def test_several_neighbours_are_merged_at_once_when_the_policy_allows(self) -> None:
        policy = AutoScalePolicy(merge_factor_max=4)
        assert asked(topic(6), loads(warm(), *[cold()] * 5), policy=policy).action == Merge((1, 2, 3, 4))
        assert asked(topic(6), loads(warm(), *[cold()] * 5), consumers(5), policy).action == Merge((1, 2))
        assert asked(topic(4), loads(warm(), cold(), cold(), cold()), policy=policy).action == Merge((1, 2, 3))


class TestHotKey:
    def test_segment_that_is_hot_by_one_key_is_not_split(self) -> None:
        report = hot(20_000, hot_key=HotKey(0x1234, 0.95, "customer-1"))
        found = asked(topic(1), loads(report))
        assert (found.action, found.suppressed_by) == (None, (Suppression.HOT_KEY,))
        assert "'customer-1' (hash 1234)" in found.detail

    def test_load_beside_the_key_that_is_too_much_is_split(self) -> None:
        report = hot(60_000, hot_key=HotKey(0x1234, 0.5, "k"))
        assert asked(topic(1), loads(report)).action is not None

    def test_key_that_fits_into_a_segment_is_no_obstacle(self) -> None:
        report = hot(15_000, hot_key=HotKey(0x1234, 0.6, "k"))
        assert asked(topic(1), loads(report)).action is not None

    def test_next_hot_segment_is_split_instead(self) -> None:
        found = asked(topic(2), loads(hot(20_000, hot_key=HotKey(1, 0.99, "k")), hot(11_000)))
        assert found.action == Split(1, (0xC000,))


class TestLoadPoints:
    @pytest.mark.parametrize(
        ("hash_range", "histogram", "parts", "points"),
        [
            (FULL, (1.0,) * 16, 2, (0x8000,)),
            (FULL, (1.0,) * 32, 4, (0x4000, 0x8000, 0xC000)),
            (FULL, (0.0,) * 16, 2, (0x8000,)),
            (FULL, (1.0, *[0.0] * 15), 2, (0x0800,)),
            (FULL, (*[0.0] * 15, 1.0), 2, (0xF800,)),
            (HashRange(0x10, 0x11), (1.0, *[0.0] * 15), 2, (0x11,)),
            (HashRange(0x10, 0x12), (*[0.0] * 15, 1.0), 3, (0x11, 0x12)),
            (HashRange(0, 3), (0.0,) * 15 + (1.0,), 4, (1, 2, 3)),
        ],
        ids=str,
    )
    def test_parts_have_equal_load(
        self, hash_range: HashRange, histogram: tuple[float, ...], parts: int, points: tuple[int, ...]
    ) -> None:
        assert load_points(hash_range, histogram, parts) == points
        assert len(hash_range.split(points)) == parts
