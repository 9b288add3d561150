"""The edges of a migration in layouts: N partitions × N children, named once for clients that read it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from anabranch.client.topic.topic_view import read_view
from anabranch.controller.records.topic_record import (
    MigratedFrom,
    MigrationOptions,
    committed,
    migration_planned,
)
from anabranch.model.layout import NO_LIMITS, Layout
from anabranch.model.names import TopicName
from anabranch.model.position import Position
from anabranch.model.replacement import plan_split, replaced, reserved
from anabranch.model.routing import MOD_N
from anabranch.model.segment import Seal
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.commands import BaseCommand
from anabranch.protocol.scalable import layout_update

OLD, TOPIC = "persistent://public/default/orders", TopicName.parse("topic://public/default/orders")
FRAME_BYTES_MAX = 512 * 1024


@dataclass(frozen=True)
class At:
    service_url: str = "pulsar://broker-17.messaging.example.com:6650"
    service_url_tls: str | None = None


def migrated(partitions: int) -> Layout:
    origin, options = MigratedFrom(OLD, partitions, 1), MigrationOptions()
    record = migration_planned(origin, "op", incarnation=1, epoch=0, routing=MOD_N, options=options)
    seals = {one: Seal(1_700_000_000_000, Position(90_000, 10_000)) for one in record.layout.segments}
    return committed(record, "op", seals, now_ms=1_700_000_000_000).layout


def update_of(
    layout: Layout, *, extensions: bool = True, reads: bool = True
) -> tuple[int, pb.CommandScalableTopicUpdate]:
    data = layout_update(
        1,
        TOPIC,
        layout,
        incarnation=1,
        brokers=dict.fromkeys(layout.segments, At()),
        controller=At(),
        operation_id="",
        plan=None,
        extensions=extensions,
        reads_migrated=reads,
    )
    command = BaseCommand.FromString(data[8:])
    return len(data), command.scalable_topic_update


@pytest.mark.parametrize("partitions", [0, 1, 3])
@pytest.mark.parametrize("reads", [True, False])
def test_layout_is_read_as_it_is_whichever_way_its_edges_are_sent(partitions: int, reads: bool) -> None:
    layout = migrated(partitions)
    _, update = update_of(layout, reads=reads)
    assert update.dag.HasField("migrated") == reads
    assert read_view(update, TOPIC).layout == layout


def test_layout_after_splits_and_garbage_collection_is_read_as_it_is() -> None:
    layout = migrated(3)
    plan = plan_split(layout, 4, now_ms=5, limits=NO_LIMITS)
    layout = replaced(reserved(layout, plan), plan, {4: Seal(6, Position(1, 1))})
    for gone in ([], [1], [0, 1, 2]):
        left = layout.pruned(gone) if gone else layout
        _, update = update_of(left)
        assert update.dag.HasField("migrated") == (len(gone) < 3)
        assert read_view(update, TOPIC).layout == left


def test_frame_of_1024_partitions_is_small_for_every_client() -> None:
    layout = migrated(1_024)
    size, update = update_of(layout)
    assert size < FRAME_BYTES_MAX
    assert read_view(update, TOPIC).layout == layout
    for extensions in (True, False):
        size, update = update_of(layout, extensions=extensions, reads=False)
        assert size < FRAME_BYTES_MAX
        assert not any(one.parent_ids or one.child_ids for one in update.dag.segments)


def test_pulsars_clients_get_the_edges_of_a_few_hundred_partitions_as_pulsar_sends_them() -> None:
    size, update = update_of(migrated(256), extensions=False, reads=False)
    assert size < FRAME_BYTES_MAX
    assert [len(one.child_ids) for one in update.dag.segments] == [256] * 256 + [0] * 256
    assert [len(one.parent_ids) for one in update.dag.segments] == [0] * 256 + [256] * 256


def test_segments_of_one_migration_share_their_edges() -> None:
    view = read_view(update_of(migrated(3))[1], TOPIC)
    assert view.layout[0].child_ids is view.layout[2].child_ids
    assert view.layout[3].parent_ids is view.layout[5].parent_ids


def test_layout_that_has_not_changed_is_not_read_again() -> None:
    _, update = update_of(migrated(3))
    view = read_view(update, TOPIC)
    again = read_view(update, TOPIC, view)
    assert all(again.layout[one] is view.layout[one] for one in view.layout.segments)
