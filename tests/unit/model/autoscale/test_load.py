"""Load reports: since-times, when a report is written, and the JSON form."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from anabranch.model.autoscale.load import (
    BadLoadReport,
    HotKey,
    Rates,
    SegmentLoad,
    decode_load,
    encode_load,
    is_material,
    sampled,
)
from anabranch.model.autoscale.policy import AutoScalePolicy, SplitPoint

POLICY = AutoScalePolicy()
FAST = AutoScalePolicy(split_rate_window_seconds=5)
T = 1_000_000
COLD, WARM, HOT = Rates(10, 1_000), Rates(5_000, 500_000), Rates(10_001, 1_000_000)


def load(rates: Rates, fast: Rates | None = None) -> SegmentLoad:
    return SegmentLoad(rates=rates, fast_rates=fast)


class TestSampled:
    def test_first_cold_sample_starts_the_merge_window(self) -> None:
        found = sampled(None, load(COLD), POLICY, T)
        assert (found.below_merge_since_ms, found.above_split_since_ms, found.reported_at_ms) == (T, None, T)

    def test_wobble_below_the_threshold_does_not_restart_the_window(self) -> None:
        found = sampled(None, load(COLD), POLICY, T)
        for seconds, rate in enumerate((1, 900, 0, 2, 1), 1):
            found = sampled(found, load(Rates(rate)), POLICY, T + seconds * 1000)
        assert found.below_merge_since_ms == T

    def test_rate_at_the_merge_threshold_ends_the_window(self) -> None:
        before = sampled(None, load(COLD), POLICY, T)
        assert sampled(before, load(Rates(1_000)), POLICY, T + 1).below_merge_since_ms is None

    @pytest.mark.parametrize("rates", [Rates(1e3), Rates(0, 5e6), Rates(0, 0, 5e3), Rates(0, 0, 0, 25e6)], ids=str)
    def test_each_of_the_four_rates_alone_keeps_a_segment_from_being_cold(self, rates: Rates) -> None:
        assert sampled(None, load(rates), POLICY, T).below_merge_since_ms is None

    def test_split_time_is_kept_while_above_and_cleared_below(self) -> None:
        hot = sampled(None, load(HOT), POLICY, T)
        assert sampled(hot, load(HOT), POLICY, T + 9).above_split_since_ms == T
        assert sampled(hot, load(WARM), POLICY, T + 9).above_split_since_ms is None

    def test_fast_rates_cross_the_threshold_only_under_a_policy_with_the_short_window(self) -> None:
        assert sampled(None, load(WARM, HOT), POLICY, T).above_split_since_ms is None
        assert sampled(None, load(WARM, HOT), FAST, T).above_split_since_ms == T
        assert sampled(None, load(HOT), FAST, T).above_split_since_ms == T, "without fast rates the others decide"

    def test_stored_time_of_a_clock_that_was_ahead_is_not_in_the_future(self) -> None:
        before = replace(load(COLD), below_merge_since_ms=T + 5_000)
        assert sampled(before, load(COLD), POLICY, T).below_merge_since_ms == T


class TestMaterial:
    @pytest.mark.parametrize(
        ("old", "new", "is_written"),
        [
            (Rates(4_000), Rates(4_000), False),
            (Rates(4_000), Rates(5_000), False),  # exactly a quarter
            (Rates(4_000), Rates(5_001), True),
            (Rates(4_000), Rates(2_999), True),
            (Rates(4_000, 8e6), Rates(4_000, 12e6), True),
            (Rates(4_000, 0, 8e3), Rates(4_000, 0, 5e3), True),
            (Rates(4_000, 0, 0, 8e7), Rates(4_000, 0, 0, 5e7), True),
            (Rates(), Rates(0.1), True),
            (Rates(0.1), Rates(), True),  # going idle is a change
            (Rates(1), Rates(2), False),  # both far below the merge threshold
            (Rates(99), Rates(101), False),
            (Rates(50), Rates(150), True),
        ],
        ids=str,
    )
    def test_report_is_written_on_a_relative_change(self, old: Rates, new: Rates, is_written: bool) -> None:
        stored = sampled(None, load(old), POLICY, T)
        assert is_material(stored, sampled(stored, load(new), POLICY, T + 1), 0.25, POLICY) is is_written

    def test_crossing_a_threshold_is_written_however_small_the_step(self) -> None:
        steps = [(Rates(9_999), Rates(10_001)), (Rates(10_001), Rates(9_999)), (Rates(999), Rates(1_000))]
        for old, new in steps:
            stored = sampled(None, load(old), POLICY, T)
            assert is_material(stored, sampled(stored, load(new), POLICY, T + 1), 0.25, POLICY), (old, new)

    def test_fast_rates_are_written_only_under_a_policy_that_uses_them(self) -> None:
        stored, now = load(WARM, Rates(2_000)), load(WARM, Rates(4_000))
        assert not is_material(stored, now, 0.25, POLICY)
        assert is_material(stored, now, 0.25, FAST)

    def test_hot_key_that_comes_goes_or_changes_is_written(self) -> None:
        none, one, other = (
            replace(load(WARM), hot_key=hot) for hot in (None, HotKey(1, 0.9, "a"), HotKey(2, 0.9, "b"))
        )
        weak = replace(load(WARM), hot_key=HotKey(3, 0.2, "c"))
        assert is_material(none, one, 0.25, POLICY) and is_material(one, none, 0.25, POLICY)
        assert is_material(one, other, 0.25, POLICY)
        assert not is_material(none, weak, 0.25, POLICY), "below the share it is not hot"


class TestJson:
    FULL = SegmentLoad(
        rates=Rates(1.5, 2, 3, 4),
        fast_rates=Rates(5, 6, 7, 8),
        below_merge_since_ms=T,
        above_split_since_ms=T + 1,
        histogram=tuple(float(i) for i in range(16)),
        hot_key=HotKey(0xABCD, 0.75, "käse"),
        reported_at_ms=T + 2,
        reported_by="broker-1",
    )

    @pytest.mark.parametrize("one", [FULL, SegmentLoad(rates=Rates(1, 2, 3, 4), reported_at_ms=T)], ids=["full", "few"])
    def test_report_survives_encoding(self, one: SegmentLoad) -> None:
        assert decode_load(encode_load(one)) == one

    def test_names_are_those_of_pip_483_and_ours_beside_them(self) -> None:
        value = json.loads(encode_load(self.FULL))
        assert (value["msgRateIn"], value["bytesRateIn"], value["msgRateOut"], value["bytesRateOut"]) == (1.5, 2, 3, 4)
        assert set(value) - {"msgRateIn", "bytesRateIn", "msgRateOut", "bytesRateOut"} == {
            "msgRateIn5s", "bytesRateIn5s", "msgRateOut5s", "bytesRateOut5s", "belowMergeSinceMs", "aboveSplitSinceMs",
            "histogram", "hotKey", "reportedAtMs", "reportedBy",
        }  # fmt: skip

    def test_record_of_pulsar_is_complete_and_unknown_fields_are_ignored(self) -> None:
        data = b'{"msgRateIn":1.0,"bytesRateIn":2.0,"msgRateOut":3.0,"bytesRateOut":4.0,"later":[1]}'
        assert decode_load(data) == SegmentLoad(rates=Rates(1, 2, 3, 4))

    def test_sampled_key_is_cut(self) -> None:
        long = replace(self.FULL, hot_key=HotKey(1, 1.0, "k" * 1000))
        found = decode_load(encode_load(long)).hot_key
        assert found is not None and len(found.key) == 256

    @pytest.mark.parametrize(
        "data",
        [
            b"",
            b"[]",
            b"null",
            b"{}",
            b'{"msgRateIn":-1,"bytesRateIn":0,"msgRateOut":0,"bytesRateOut":0}',
            b'{"msgRateIn":NaN,"bytesRateIn":0,"msgRateOut":0,"bytesRateOut":0}',
            b'{"msgRateIn":0,"bytesRateIn":0,"msgRateOut":0,"bytesRateOut":0,"histogram":[1,2,3]}',
            b'{"msgRateIn":0,"bytesRateIn":0,"msgRateOut":0,"bytesRateOut":0,"hotKey":{"hash":65536,"share":1}}',
        ],
    )
    def test_record_that_is_no_report_is_refused(self, data: bytes) -> None:
        with pytest.raises(BadLoadReport):
            decode_load(data)


def test_scores_are_the_highest_ratio_to_a_split_threshold() -> None:
    table: list[tuple[Rates, float]] = [
        (Rates(20_000), 2.0),
        (Rates(0, 75e6), 1.5),
        (Rates(0, 0, 25_000), 0.5),
        (Rates(0, 0, 0, 1e9), 4.0),
        (Rates(20_000, 75e6, 25_000, 0), 2.0),
    ]
    found: list[Any] = [rates.score(POLICY) for rates, _ in table]
    assert found == [score for _, score in table]


class TestLoadByKey:
    def at(self, share: float, key_hash: int = 7) -> SegmentLoad:
        return SegmentLoad(rates=WARM, hot_key=HotKey(key_hash, share, "k"))

    def test_hot_key_comes_at_its_share_and_goes_clearly_below_it(self) -> None:
        assert is_material(self.at(0.49), self.at(0.51), 0.25, POLICY)
        assert not is_material(self.at(0.51), self.at(0.41), 0.25, POLICY), "an estimate"
        assert is_material(self.at(0.51), self.at(0.39), 0.25, POLICY)
        assert is_material(self.at(0.51), load(WARM), 0.25, POLICY)
        assert is_material(self.at(0.51), self.at(0.51, 8), 0.25, POLICY)

    def test_moved_histogram_matters_only_where_it_decides(self) -> None:
        by_load = AutoScalePolicy(split_point=SplitPoint.LOAD)
        low, high = (1000.0,) + (0.0,) * 31, (600.0, *(0.0,) * 30, 400.0)
        busy = replace(load(Rates(6_000)), histogram=low)
        moved = replace(busy, histogram=high)
        assert is_material(busy, moved, 0.25, by_load)
        assert is_material(replace(busy, histogram=()), moved, 0.25, by_load)
        assert not is_material(busy, moved, 0.25, POLICY)
        assert not is_material(busy, moved, float("inf"), by_load), "not between two samples"
        assert not is_material(busy, replace(busy, histogram=(700.0, *(0.0,) * 30, 300.0)), 0.25, by_load)
        slow = replace(load(Rates(4_000)), histogram=low)
        assert not is_material(slow, replace(slow, histogram=high), 0.25, by_load)
