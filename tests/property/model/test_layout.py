"""Any sequence of changes keeps the invariants of a layout; ancestors agree with the former segments of keys."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.model.hashrange import FULL, HashRange, joined
from anabranch.model.layout import Layout
from anabranch.model.routing import RoutingKind, key_hash, keyless_position
from tests.support.models.layout_histories import histories


@settings(max_examples=150, deadline=None)
@given(histories())
def test_every_layout_of_a_history_keeps_the_invariants(lives: list[Layout]) -> None:
    for layout in lives:
        layout.check()
        assert joined(segment.hash_range for segment in layout.active) == FULL
        for segment in layout.segments.values():
            if segment.child_ids:
                covered = joined(layout[child].hash_range for child in segment.child_ids)
                assert covered is not None
                assert covered.covers(segment.hash_range)
    for before, after in pairwise(lives):
        assert after is before or after.epoch == before.epoch + 1
        assert after.next_segment_id >= before.next_segment_id
        fresh = set(after.segments) - set(before.segments)
        assert all(one >= before.next_segment_id for one in fresh), "an id was used twice"
        for one in before.segments.keys() & after.segments.keys():
            assert before[one].is_active or not after[one].is_active, "a sealed segment came back"


@settings(max_examples=100, deadline=None)
@given(histories(prunes=False), st.lists(st.text(max_size=6), min_size=1, max_size=20))
def test_ancestors_are_exactly_the_former_segments_of_a_key(lives: list[Layout], keys: list[str]) -> None:
    """Route keys through the whole history: each former segment of a key is an ancestor of its current one."""
    now = lives[-1]
    for key in keys:
        raw = key_hash(key)
        places = [layout.route(raw).segment_id for layout in lives]
        assert set(places) - {places[-1]} <= now.ancestors(places[-1])
    for segment in now.active:  # and nothing more: each ancestor has had some position of the segment
        for one in now.ancestors(segment.segment_id):
            assert now[one].hash_range.overlaps(segment.hash_range)
            assert segment.segment_id in now.descendants(one)


@given(histories(), st.text(max_size=8), st.integers(0, 1 << 40))
def test_routing_agrees_with_the_ranges(lives: list[Layout], key: str, sequence_id: int) -> None:
    for layout in lives:
        chosen, keyless = layout.route(key_hash(key)), layout.route_keyless(sequence_id)
        assert chosen.is_active
        if layout.routing.kind is RoutingKind.MOD_N:
            assert chosen.segment_id == (key_hash(key) & 0x7FFFFFFF) % len(layout.active)
        else:
            assert layout.routing.ring_hash.ring_position(key_hash(key)) in chosen.hash_range
            assert keyless_position(sequence_id) in keyless.hash_range


@given(st.integers(0, 0xFFFF), st.integers(0, 0xFFFF), st.data())
def test_split_parts_join_to_the_range(one: int, other: int, data: st.DataObject) -> None:
    whole = HashRange(min(one, other), max(one, other))
    parts = whole.split(whole.even_points(data.draw(st.integers(1, min(whole.size, 50)))))
    assert joined(data.draw(st.permutations(parts))) == whole
    sizes = {part.size for part in parts}
    assert max(sizes) - min(sizes) <= 1
    for low, high in pairwise(parts):
        assert low.end + 1 == high.start
        assert not low.overlaps(high)
