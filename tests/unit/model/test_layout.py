"""Layouts by example: Pulsar's numbers, the shapes of split, merge and migration, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from anabranch.model.hashrange import FULL, BadRange, HashRange, initial_ranges
from anabranch.model.layout import NO_LIMITS, Layout, LayoutLimits
from anabranch.model.names import TopicName
from anabranch.model.position import Position
from anabranch.model.replacement import plan_merge, plan_migration, plan_split, replaced, reserved
from anabranch.model.routing import MOD_N, RANGE_HIGH16, RANGE_LOW16, RingHash, key_hash, keyless_position
from anabranch.model.segment import (
    BadLayout,
    BadMerge,
    BadSplit,
    DagTooDeep,
    Seal,
    SegmentNotActive,
    TooManySegments,
    UnknownSegment,
    backing_topic,
    bucket_splits,
)
from tests.support.models.layout_histories import applied, merge, split

ORDERS = TopicName.parse("topic://public/default/orders")


def shape(layout: Layout) -> list[str]:
    return [f"{one.hash_range}:{one.segment_id}" for one in layout.active]


class TestRing:
    def test_three_initial_segments_as_pulsar_divides_them(self) -> None:
        assert [str(one) for one in initial_ranges(3)] == ["0000-5554", "5555-aaa9", "aaaa-ffff"]
        assert initial_ranges(1) == (FULL,)

    @pytest.mark.parametrize("count", [0, -1, 65_537])
    def test_a_ring_has_room_for_65536(self, count: int) -> None:
        with pytest.raises(BadRange):
            initial_ranges(count)

    @pytest.mark.parametrize(("start", "end"), [(0, 0xFFFF), (5, 6), (5, 7), (0x8000, 0xFFFF), (0x5555, 0xAAA9)])
    def test_the_midpoint_is_pulsars(self, start: int, end: int) -> None:
        middle = start + (end - start) // 2
        whole = HashRange(start, end)
        assert whole.split(whole.even_points(2)) == (HashRange(start, middle), HashRange(middle + 1, end))

    @pytest.mark.parametrize("points", [[0], [0x10000], [5, 5], [6, 5]])
    def test_invalid_split_points_are_rejected(self, points: list[int]) -> None:
        with pytest.raises(BadRange):
            FULL.split(points)

    @pytest.mark.parametrize(("start", "end"), [(-1, 5), (6, 5), (0, 0x10000)])
    def test_invalid_ranges_are_rejected(self, start: int, end: int) -> None:
        with pytest.raises(BadRange):
            HashRange(start, end)


class TestRouting:
    @pytest.mark.parametrize(
        ("key", "low", "high"),
        [("", 0, 0), ("hello", 0xFA47, 0x248B), ("key", 0x6A44, 0xE29C), ("日本語", 0x7297, 0xA5A4)],
    )
    def test_halves_of_the_hash(self, key: str, low: int, high: int) -> None:
        raw = key_hash(key)
        assert (RingHash.LOW16.ring_position(raw), RingHash.LOW16.bucket_position(raw)) == (low, high)
        assert (RingHash.HIGH16.ring_position(raw), RingHash.HIGH16.bucket_position(raw)) == (high, low)

    def test_two_segments_and_both_halves(self) -> None:
        raw = key_hash("hello")
        assert Layout.initial(2, now_ms=0, routing=RANGE_LOW16).route(raw).segment_id == 1
        assert Layout.initial(2, now_ms=0, routing=RANGE_HIGH16).route(raw).segment_id == 0

    def test_partitions_by_modulo(self) -> None:
        layout = Layout.synthetic([f"persistent://public/default/x-partition-{i}" for i in range(4)], now_ms=0)
        assert layout.routing == MOD_N
        assert [layout.route(key_hash(key)).segment_id for key in ("a", "key", "key-0", "my-key")] == [2, 0, 3, 1]
        assert [layout.route_keyless(i).segment_id for i in range(5)] == [0, 1, 2, 3, 0]

    def test_keyless_messages_spread_evenly_whatever_the_number_of_segments(self) -> None:
        assert len({keyless_position(i) for i in range(65_536)}) == 65_536
        for count in (2, 3, 7, 64):
            layout = Layout.initial(count, now_ms=0)
            hits = dict.fromkeys(layout.segments, 0)
            for i in range(1000, 1000 + 100 * count):
                hits[layout.route_keyless(i).segment_id] += 1
            assert max(hits.values()) <= 110, hits
            assert min(hits.values()) >= 90, hits


class TestReplacement:
    def test_split_in_the_middle(self) -> None:
        layout = split(Layout.initial(1, now_ms=5), 0, at_ms=9)
        assert shape(layout) == ["0000-7fff:1", "8000-ffff:2"]
        assert (layout.epoch, layout.next_segment_id) == (1, 3)
        parent, child = layout[0], layout[1]
        assert (parent.child_ids, parent.sealed_at_epoch, parent.sealed_at_ms) == ((1, 2), 1, 9)
        assert parent.last_position == Position(0, 9)
        assert (child.parent_ids, child.created_at_epoch, child.sealed_at_epoch, child.created_at_ms) == (
            (0,),
            1,
            -1,
            9,
        )

    def test_split_in_k_and_at_points(self) -> None:
        assert shape(split(Layout.initial(1, now_ms=0), 0, ways=4)) == [
            "0000-3fff:1",
            "4000-7fff:2",
            "8000-bfff:3",
            "c000-ffff:4",
        ]
        assert shape(split(Layout.initial(1, now_ms=0), 0, 0x10, 0xFFFF)) == [
            "0000-000f:1",
            "0010-fffe:2",
            "ffff-ffff:3",
        ]

    def test_merge_of_a_run_in_any_order(self) -> None:
        layout = merge(Layout.initial(4, now_ms=0), 3, 1, 2)
        assert shape(layout) == ["0000-3fff:0", "4000-ffff:4"]
        assert layout[4].parent_ids == (1, 2, 3)
        assert layout[4].merge_depth == 1
        assert merge(layout, 0, 4)[5].merge_depth == 2

    def test_only_overlapping_ancestors_count(self) -> None:
        layout = merge(split(split(Layout.initial(1, now_ms=0), 0), 1), 4, 2)  # 0 -> 1, 2; 1 -> 3, 4; 4 + 2 -> 5
        assert layout.ancestors(5) == {0, 1, 2, 4}
        assert layout.ancestors(3) == {0, 1}
        again = split(layout, 5, 0x8000)
        assert again.ancestors(7) == {0, 2, 5}, "1 and 4 are ancestors, but never had a key of 8000-ffff"
        assert again.ancestors(6) == {0, 1, 4, 5}
        assert again.descendants(1) == {3, 4, 5, 6}

    def test_migration(self) -> None:
        before = Layout.synthetic([f"persistent://public/default/orders-partition-{i}" for i in range(3)], now_ms=0)
        layout = applied(before, plan_migration(before, now_ms=1, limits=NO_LIMITS), 2)
        assert shape(layout) == ["0000-5554:3", "5555-aaa9:4", "aaaa-ffff:5"]
        assert (layout.epoch, layout.next_segment_id, layout.routing) == (1, 6, RANGE_LOW16)
        assert all(layout[i].hash_range == FULL and layout[i].child_ids == (3, 4, 5) for i in range(3))
        assert layout.ancestors(4) == {0, 1, 2}
        assert layout[4].merge_depth == 0, "to the auto-scaler a migration is no merge"
        assert str(backing_topic(ORDERS, layout[1])) == "persistent://public/default/orders-partition-1"
        assert str(backing_topic(ORDERS, layout[4])) == "segment://public/default/orders/5555-aaa9-4"
        layout.check()

    def test_buckets_are_shared_out(self) -> None:
        assert bucket_splits(4) == (16384, 32768, 49152)
        layout = Layout.initial(1, now_ms=0, bucket_budget=4)
        assert layout[0].entry_bucket_splits == bucket_splits(4)
        halves = split(layout, 0)
        assert halves[1].entry_bucket_splits == bucket_splits(2)
        assert merge(halves, 1, 2)[3].entry_bucket_splits == bucket_splits(4)
        plain = split(Layout.initial(1, now_ms=0), 0)
        assert merge(plain, 1, 2)[3].entry_bucket_splits == (), "no buckets asked for, none invented"

    def test_pruned_segments_leave_no_edges(self) -> None:
        layout = merge(split(split(Layout.initial(1, now_ms=0), 0), 1), 4, 2)
        after = layout.pruned([0, 1])
        assert (after.epoch, sorted(after.segments)) == (layout.epoch + 1, [2, 3, 4, 5])
        assert after[3].parent_ids == after[4].parent_ids == after[2].parent_ids == ()
        assert after[5].merge_depth == 1
        after.check()
        with pytest.raises(BadLayout, match="before its parents"):
            layout.pruned([1])
        with pytest.raises(BadLayout, match="active"):
            layout.pruned([0, 1, 3])


class TestRefused:
    two = Layout.initial(2, now_ms=0)

    def test_unknown_and_sealed(self) -> None:
        with pytest.raises(UnknownSegment):
            split(self.two, 7)
        with pytest.raises(SegmentNotActive, match="epoch 1"):
            split(split(self.two, 0), 0)
        with pytest.raises(SegmentNotActive):
            merge(split(self.two, 0), 0, 1)

    @pytest.mark.parametrize("points", [(0x8000,), (0x9000, 0x8500), (0,)])
    def test_split_points_outside(self, points: tuple[int, ...]) -> None:
        with pytest.raises(BadSplit):
            split(self.two, 1, *points)

    @pytest.mark.parametrize("ways", [1, 0, -3, 32_769])
    def test_too_few_or_too_many_parts(self, ways: int) -> None:
        with pytest.raises(BadSplit):
            split(self.two, 0, ways=ways)

    def test_one_position_cannot_be_split(self) -> None:
        with pytest.raises(BadSplit):
            split(split(self.two, 0, 1), 2)

    def test_merging_segments_that_are_not_neighbours_fails(self) -> None:
        for ids in ((0, 2), (0,), (), (1, 1), (0, 1, 3)):
            with pytest.raises(BadMerge):
                merge(Layout.initial(4, now_ms=0), *ids)

    def test_limits(self) -> None:
        with pytest.raises(TooManySegments):
            plan_split(self.two, 0, ways=3, now_ms=0, limits=LayoutLimits(segments_max=3))
        assert plan_split(self.two, 0, ways=2, now_ms=0, limits=LayoutLimits(segments_max=3))
        with pytest.raises(TooManySegments):
            Layout.initial(65, now_ms=0, limits=LayoutLimits())
        layout = merge(split(merge(self.two, 0, 1), 2), 3, 4)
        with pytest.raises(DagTooDeep):
            plan_merge(split(layout, 5), (6, 7), now_ms=0, limits=LayoutLimits(dag_depth_max=2))
        assert plan_merge(split(layout, 5), (6, 7), now_ms=0, limits=LayoutLimits(dag_depth_max=3))

    def test_merges_are_forgotten_one_by_one_while_a_segment_lives(self) -> None:
        hour = 3_600_000
        layout = merge(split(merge(self.two, 0, 1), 2), 3, 4)
        assert [layout[5].merge_depth_at(ms) for ms in (-hour, 0, hour - 1, hour, 2 * hour, 9 * hour)] == [
            2, 2, 2, 1, 0, 0,
        ]  # fmt: skip
        assert split(layout, 5, at_ms=hour)[6].merge_depth == 1
        limits = LayoutLimits(dag_depth_max=2)
        pair = split(layout, 5, at_ms=0)
        with pytest.raises(DagTooDeep):
            plan_merge(pair, (6, 7), now_ms=hour - 1, limits=limits)
        assert plan_merge(pair, (6, 7), now_ms=hour, limits=limits).children[0].merge_depth == 2
        assert (pair[6].mergeable_at_ms(2), pair[6].mergeable_at_ms(9), pair[6].mergeable_at_ms(0)) == (hour, 0, None)

    def test_synthetic_layouts_only_migrate(self) -> None:
        layout = Layout.synthetic(["persistent://public/default/a", "persistent://public/default/b"], now_ms=0)
        with pytest.raises(BadSplit, match="migrate"):
            split(layout, 0)
        with pytest.raises(BadMerge, match="migrate"):
            merge(layout, 0, 1)
        with pytest.raises(BadSplit, match="scalable already"):
            plan_migration(self.two, now_ms=0, limits=NO_LIMITS)

    def test_a_plan_is_applied_once_and_only_with_its_ids_reserved(self) -> None:
        plan = plan_split(self.two, 0, now_ms=0, limits=NO_LIMITS)
        seals = {0: Seal(1)}
        with pytest.raises(BadLayout, match="not reserved"):
            replaced(self.two, plan, seals)
        taken = reserved(self.two, plan)
        with pytest.raises(BadLayout, match="is taken"):
            reserved(taken, plan)
        with pytest.raises(KeyError):
            replaced(taken, plan, {})
        with pytest.raises(SegmentNotActive):
            replaced(replaced(taken, plan, seals), plan, seals)
        with pytest.raises(BadLayout, match="do not replace"):
            replaced(taken, replace(plan, children=plan.children[:1]), seals)

    def test_invalid_layouts_are_rejected(self) -> None:
        whole = split(self.two, 0)
        parts = dict(whole.segments)
        for broken in (
            {one: segment for one, segment in parts.items() if one != 2},  # a hole
            {**parts, 1: replace(parts[1], hash_range=FULL)},  # an overlap
        ):
            with pytest.raises(BadLayout):
                Layout(1, 4, broken)
        for broken in (
            {**parts, 2: replace(parts[2], parent_ids=())},  # a one-sided edge
            {**parts, 2: replace(parts[2], parent_ids=(0, 1))},
            {**parts, 0: replace(parts[0], child_ids=(2,))},
            {**parts, 0: replace(parts[0], child_ids=())},
            {**parts, 0: replace(parts[0], hash_range=FULL)},  # children that do not cover it
            {**parts, 1: replace(parts[1], child_ids=(2, 3))},  # active, with children
            {**parts, 1: replace(parts[1], created_at_epoch=9)},
            {**parts, 1: replace(parts[1], segment_id=7)},
        ):
            with pytest.raises(BadLayout):
                Layout(1, 4, broken).check()
        with pytest.raises(BadLayout):
            Layout(1, 3, parts).check()  # id 3 is not allocated yet
