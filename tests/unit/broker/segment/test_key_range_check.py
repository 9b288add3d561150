"""Does a producer route as the topic does? And who a segment's ancestors are."""

from __future__ import annotations

from dataclasses import replace

from anabranch.broker.segment.key_range_check import LOOKS, PROOFS, KeyRangeCheck
from anabranch.broker.segment_host.topic_layouts import ScalableTopic
from anabranch.model.hashrange import HashRange
from anabranch.model.layout import NO_LIMITS, Layout
from anabranch.model.names import TopicName
from anabranch.model.replacement import Replacement, plan_merge, plan_split, replaced, reserved
from anabranch.model.routing import RingHash, key_hash
from anabranch.model.segment import Seal, Segment, backing_topic
from anabranch.protocol.entry import build_batch, build_entry

LOW, HIGH = HashRange(0, 0x7FFF), HashRange(0x8000, 0xFFFF)
TOPIC = TopicName.parse("topic://public/default/orders")


def keys_in(span: HashRange, ring_hash: RingHash = RingHash.LOW16) -> list[str]:
    return [key for key in (f"k{n}" for n in range(400)) if ring_hash.ring_position(key_hash(key)) in span]


def test_check_ends_after_enough_keys_in_range() -> None:
    proof = KeyRangeCheck(LOW, RingHash.LOW16)
    for key in keys_in(LOW)[:PROOFS]:
        assert not proof.is_done
        assert proof.check(build_entry(b"x", key=key)) == ""
    assert proof.is_done


def test_entries_without_keys_are_checked_up_to_a_limit() -> None:
    proof = KeyRangeCheck(LOW, RingHash.LOW16)
    for _ in range(LOOKS):
        assert not proof.is_done
        assert proof.check(build_entry(b"x")) == ""
    assert (proof.is_done, proof.proofs) == (True, 0)


def test_one_key_out_of_range_is_refused() -> None:
    proof = KeyRangeCheck(LOW, RingHash.LOW16)
    assert proof.check(build_entry(b"x", key=keys_in(LOW)[0])) == ""
    complaint = proof.check(build_entry(b"x", key=keys_in(HIGH)[0]))
    assert "murmur3-low16" in complaint and "0000-7fff" in complaint
    assert proof.check(build_entry(b"x", key=keys_in(LOW)[1])) == complaint
    assert not proof.is_done


def test_first_key_of_a_batch_is_checked_compressed_or_not() -> None:
    for compress in (False, True):
        proof = KeyRangeCheck(LOW, RingHash.LOW16)
        assert proof.check(build_batch([b"a", b"b"], keys=[keys_in(LOW)[0], None], compress=compress)) == ""
        assert proof.proofs == 1


def test_client_with_another_hash_is_detected() -> None:
    proof = KeyRangeCheck(LOW, RingHash.LOW16)
    assert any(proof.check(build_entry(b"x", key=key)) for key in keys_in(LOW, RingHash.HIGH16)[:64])


def test_unreadable_entry_is_not_refused() -> None:
    assert KeyRangeCheck(LOW, RingHash.LOW16).check(b"\x00\x01") == ""


# -- ancestors


def done(layout: Layout, plan: Replacement) -> Layout:
    return replaced(reserved(layout, plan), plan, {one: Seal(1) for one in plan.parent_ids})


def test_ancestors_of_planned_children_are_those_they_will_have() -> None:
    layout = Layout.initial(2, now_ms=0)
    layout = done(layout, plan_split(layout, 0, now_ms=1, limits=NO_LIMITS))  # 0 -> 2, 3
    plan = plan_merge(layout, (3, 1), now_ms=2, limits=NO_LIMITS)  # -> 4
    before = ScalableTopic(TOPIC, 1, reserved(layout, plan), plan.children)
    after = ScalableTopic(TOPIC, 1, done(layout, plan))
    (child,) = plan.children
    assert before.is_planned(child) and not after.is_planned(child)
    assert ids(before.ancestors(child)) == ids(after.ancestors(after.layout[4])) == [0, 1, 3]
    assert set(ids(after.ancestors(after.layout[4]))) == after.layout.ancestors(4)


def test_only_what_overlaps_is_an_ancestor() -> None:
    layout = Layout.initial(2, now_ms=0)
    layout = done(layout, plan_merge(layout, (0, 1), now_ms=1, limits=NO_LIMITS))  # -> 2
    layout = done(layout, plan_split(layout, 2, now_ms=2, limits=NO_LIMITS))  # -> 3, 4
    topic = ScalableTopic(TOPIC, 1, layout)
    assert ids(topic.ancestors(layout[3])) == [0, 2]
    assert ids(topic.ancestors(layout[4])) == [1, 2]


def test_a_segment_is_found_by_its_whole_name() -> None:
    layout = Layout.initial(2, now_ms=0)
    topic = ScalableTopic(TOPIC, 1, layout)
    assert topic.segment(backing_topic(TOPIC, layout[1])) == layout[1]
    assert topic.segment(backing_topic(TOPIC, replace(layout[1], hash_range=HashRange(0, 0xFFFF)))) is None
    assert topic.segment(TopicName.parse("persistent://public/default/orders")) is None


def ids(segments: list[Segment]) -> list[int]:
    return [one.segment_id for one in segments]
