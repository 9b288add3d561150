"""Tombstones: records of topics that do not exist, and which owner may create the topic again."""

from __future__ import annotations

import pytest

from anabranch.model.errors import AlreadyExists, NotFound
from anabranch.model.position import EARLIEST, Position
from anabranch.storage.interface import Superseded
from anabranch.storage.topic.tombstone import TopicPresence, peek_topic, write_tombstone
from tests.support.in_memory.topic_log import TopicWorld

NAME = "t/n/topic"


@pytest.fixture
async def world() -> TopicWorld:
    world = TopicWorld()
    await world.metadata.open()
    return world


async def test_create_writes_properties_with_the_topic(world: TopicWorld) -> None:
    topic = await world.open(create_with={"a": "1"})
    await topic.close()
    assert (await world.open(create_with={"a": "2"})).properties == {"a": "1"}
    assert await peek_topic(NAME, world.records) == TopicPresence(exists=True, properties={"a": "1"})


async def test_deleted_topic_leaves_only_its_tombstone(world: TopicWorld) -> None:
    topic = await world.open(create_with={"a": "1"})
    await world.fill(topic, 3)
    await topic.create_cursors({"s": EARLIEST})
    await topic.delete({"a": "gone"})
    assert await peek_topic(NAME, world.records) == TopicPresence(exists=False, properties={"a": "gone"})
    with pytest.raises(NotFound):
        await world.open(create=False)
    again = await world.open(create_with={"b": "2"})
    assert (again.properties, again.last_position, dict(again.cursors)) == ({"b": "2"}, EARLIEST, {})
    assert await peek_topic(NAME, world.records) == TopicPresence(exists=True, properties={"b": "2"})


async def test_tombstone_of_a_topic_that_never_existed(world: TopicWorld) -> None:
    assert await peek_topic(NAME, world.records) == TopicPresence(exists=False)
    await write_tombstone(NAME, world.records, {"a": "1"})
    await write_tombstone(NAME, world.records, {"a": "2"})
    assert await peek_topic(NAME, world.records) == TopicPresence(exists=False, properties={"a": "2"})
    await world.open()
    with pytest.raises(AlreadyExists):
        await write_tombstone(NAME, world.records, {})


async def test_former_owner_can_neither_write_tombstone_nor_create(world: TopicWorld) -> None:
    await write_tombstone(NAME, world.records, {"a": "1"}, ownership_epoch=5)
    with pytest.raises(Superseded):
        await write_tombstone(NAME, world.records, {}, ownership_epoch=4)
    with pytest.raises(Superseded):
        await world.open(ownership_epoch=4)
    topic = await world.open(ownership_epoch=6)
    await topic.delete({})
    with pytest.raises(Superseded):
        await world.open(ownership_epoch=5)


async def test_terminate_writes_properties_in_the_same_record(world: TopicWorld) -> None:
    topic = await world.open(create_with={"a": "1"})
    await world.fill(topic, 2)
    assert await topic.terminate(lambda: {"end": str(topic.last_position)}) == Position(1, 1)
    world.crash()
    again = await world.open()
    assert (again.is_terminated, again.properties) == (True, {"a": "1", "end": "1:1"})


async def test_create_cursors_writes_one_entry_and_keeps_existing(world: TopicWorld) -> None:
    topic = await world.open()
    await world.fill(topic, 3)
    await topic.create_cursors({"s": EARLIEST})
    topic.cursors["s"].ack_cumulative(Position(1, 0))
    await topic.create_cursors({"s": EARLIEST, "t": EARLIEST, "u": topic.after(topic.last_position)})
    world.crash()
    again = await world.open()
    assert {name: one.backlog_entries for name, one in again.cursors.items()} == {"s": 2, "t": 3, "u": 0}
