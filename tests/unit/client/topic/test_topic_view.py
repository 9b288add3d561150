"""Layouts as a client receives them, and which of them are accepted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from anabranch.client.topic.topic_view import (
    BrokerUrls,
    LayoutFilter,
    TopicView,
    UnreadableLayout,
    read_view,
    synthetic_view,
    with_partition_hash,
)
from anabranch.model.layout import NO_LIMITS, Layout
from anabranch.model.names import TopicName
from anabranch.model.partition_hash import PartitionHash
from anabranch.model.replacement import plan_migration
from anabranch.model.routing import MOD_N, RANGE_HIGH16, RANGE_LOW16
from anabranch.protocol import pulsar_pb2 as pb
from tests.support.in_memory.fake_broker import dag_of, info_of
from tests.support.models.layout_histories import applied, merge, split

TOPIC = TopicName.parse("topic://public/default/x")
REGULAR = TopicName.parse("persistent://public/default/x")


def update(dag: pb.ScalableTopicDAG, topic: TopicName = TOPIC) -> pb.CommandScalableTopicUpdate:
    return pb.CommandScalableTopicUpdate(session_id=1, dag=dag, resolved_topic_name=str(topic))


def view(layout: Layout, incarnation: int = 0) -> TopicView:
    return TopicView(TOPIC, layout, incarnation)


def test_layout_round_trips() -> None:
    layout = merge(split(Layout.initial(2, now_ms=5), 0, at_ms=7), 2, 3, at_ms=9)
    plan = pb.PlannedChange(
        operation_id="op",
        parent_ids=[1],
        children=[info_of(one) for one in split(layout, 1).active[1:]],
        child_brokers=[pb.SegmentBrokerAddress(segment_id=5, broker_url="pulsar://b:1")],
    )
    brokers = [pb.SegmentBrokerAddress(segment_id=4, broker_url="pulsar://a:1", broker_url_tls="pulsar+ssl://a:2")]
    seen = read_view(
        update(dag_of(layout, incarnation=3, plan=plan, segment_brokers=brokers, controller_broker_url="pulsar://c:1")),
        REGULAR,
    )
    on_the_wire = {i: replace(one, merge_depth=0) for i, one in layout.segments.items()}
    assert seen.layout == replace(layout, segments=on_the_wire)
    assert seen.topic == TOPIC and seen.incarnation == 3 and not seen.is_synthetic
    assert seen.brokers == {4: BrokerUrls("pulsar://a:1", "pulsar+ssl://a:2")}
    assert seen.controller == BrokerUrls("pulsar://c:1")
    assert seen.plan is not None and [one.segment_id for one in seen.plan.children] == [5, 6]
    assert seen.backing(layout.active[0]) == "segment://public/default/x/0000-7fff-4"


def test_unchanged_segments_are_reused() -> None:
    first = split(Layout.initial(2, now_ms=5), 0, at_ms=7)
    known = read_view(update(dag_of(first)), TOPIC)
    second = split(first, 1, at_ms=8)
    seen = read_view(update(dag_of(second)), TOPIC, known)
    assert seen == read_view(update(dag_of(second)), TOPIC)
    assert [one for one in first.segments if seen.layout[one] is known.layout[one]] == [0, 2, 3]


@pytest.mark.parametrize(
    ("name", "routing"), [("", RANGE_LOW16), ("murmur3-low16", RANGE_LOW16), ("murmur3-high16", RANGE_HIGH16)]
)
def test_ring_hash_is_taken_from_the_layout(name: str, routing: object) -> None:
    seen = read_view(update(dag_of(Layout.initial(2, now_ms=0), ring_hash=name or None)), TOPIC)
    assert seen.layout.routing == routing


def test_invalid_layout_is_refused() -> None:
    broken = dag_of(Layout.initial(2, now_ms=0))
    del broken.segments[0]
    for dag in (broken, pb.ScalableTopicDAG(epoch=0), dag_of(Layout.initial(1, now_ms=0), ring_hash="crc32")):
        with pytest.raises(UnreadableLayout):
            read_view(update(dag), TOPIC)


def test_regular_topic_has_the_same_synthetic_layout_from_both_sides() -> None:
    ours = synthetic_view(REGULAR, 3, 0)
    theirs = read_view(update(dag_of(ours.layout)), REGULAR)
    assert not theirs.is_pushed and not ours.is_pushed, "Apache Pulsar names no hash and pushes no partitions"
    assert theirs.layout == ours.layout and theirs.topic == ours.topic == REGULAR
    assert ours.is_synthetic and ours.layout.routing == MOD_N
    assert [ours.lane(one) for one in ours.layout.active] == [0, 1, 2]
    alone = synthetic_view(REGULAR, 0, 0)
    assert [(alone.lane(one), alone.backing(one)) for one in alone.layout.active] == [(-1, str(REGULAR))]


def test_scenario_33_older_epoch_is_ignored_equal_one_is_accepted() -> None:
    first = Layout.initial(1, now_ms=0)
    second = split(first, 0)
    layouts = LayoutFilter()
    assert layouts.accept(view(first)) and layouts.accept(view(second))
    assert not layouts.accept(view(first))
    assert layouts.accept(view(second))
    assert layouts.view is not None and layouts.view.layout == second and layouts.view.generation == 0


@pytest.mark.parametrize("incarnation", [0, 1])
def test_scenario_34_recreated_topic_gets_a_new_generation(incarnation: int) -> None:
    layouts = LayoutFilter()
    layouts.accept(view(split(Layout.initial(1, now_ms=0), 0), incarnation))
    again = Layout.initial(1, now_ms=99)
    assert layouts.accept(view(again, 2 * incarnation))
    assert layouts.view is not None and layouts.view.layout == again and layouts.view.generation == 1


def test_migrated_topic_keeps_its_generation() -> None:
    layouts = LayoutFilter()
    regular = synthetic_view(REGULAR, 2, 0)
    layouts.accept(regular)
    migrated = applied(regular.layout, plan_migration(regular.layout, now_ms=1, limits=NO_LIMITS))
    assert layouts.accept(view(Layout(0, migrated.next_segment_id, migrated.segments, migrated.routing)))
    assert layouts.view is not None and layouts.view.generation == 0


@pytest.mark.parametrize("asked", [REGULAR, TOPIC])
def test_layout_of_a_regular_topic_names_its_hash_and_is_pushed(asked: TopicName) -> None:
    dag = dag_of(synthetic_view(REGULAR, 3, 0).layout)
    dag.partition_hash = "boost"
    seen = read_view(update(dag), asked)
    assert seen.layout.routing.partition_hash is PartitionHash.BOOST
    assert (seen.is_pushed, seen.is_synthetic, seen.topic) == (True, True, asked)
    dag.partition_hash = "a hash of the future"
    with pytest.raises(UnreadableLayout):
        read_view(update(dag), asked)


def test_hash_of_the_application_replaces_that_of_the_broker() -> None:
    regular = synthetic_view(REGULAR, 2, 0)
    assert with_partition_hash(regular, None) == regular
    chosen = with_partition_hash(regular, PartitionHash.BOOST)
    assert chosen.layout.routing.partition_hash is PartitionHash.BOOST
    scalable = view(Layout.initial(1, now_ms=0))
    assert with_partition_hash(scalable, PartitionHash.BOOST) == scalable


def test_another_hash_makes_a_new_view_of_the_same_topic() -> None:
    layouts, regular = LayoutFilter(), synthetic_view(REGULAR, 2, 0)
    assert layouts.accept(regular)
    assert layouts.accept(with_partition_hash(regular, PartitionHash.BOOST))
    assert layouts.view is not None and layouts.view.generation == 0


def test_plan_of_a_migration_is_a_new_view_without_incarnation() -> None:
    layouts, regular = LayoutFilter(), synthetic_view(REGULAR, 2, 0)
    layouts.accept(regular)
    dag = dag_of(regular.layout)
    dag.incarnation = 7
    dag.plan.operation_id = "op"
    dag.plan.parent_ids.extend((0, 1))
    seen = read_view(update(dag), REGULAR)
    assert seen.incarnation == 0, "an undone migration leaves no trace in checkpoints"
    assert layouts.accept(seen) and not layouts.accept(seen)
    assert layouts.accept(regular), "undone"
    assert layouts.view is not None and layouts.view.generation == 0


def test_only_added_partitions_make_a_new_view() -> None:
    layouts = LayoutFilter()
    assert layouts.accept(synthetic_view(REGULAR, 2, 0))
    assert not layouts.accept(synthetic_view(REGULAR, 2, 1))
    assert layouts.accept(synthetic_view(REGULAR, 3, 2))
    assert layouts.view is not None and layouts.view.generation == 0
    assert layouts.accept(synthetic_view(REGULAR, 1, 3))
    assert layouts.view.generation == 1, "partitions are never taken away: this is another topic"
