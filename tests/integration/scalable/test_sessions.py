"""Sessions of ordered consumers over the wire: connections that come and go in the wrong order, names, shares.

Segments are the model's, so that the test decides what is read; connections, commands and the controller are real.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from math import ceil
from pathlib import Path
from typing import Any

import pytest

from anabranch.model.names import TopicName
from anabranch.model.segment import backing_topic
from anabranch.node.node import Node
from anabranch.node.settings.scalable_topics import ScalableTopicSettings
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.commands import BaseCommand
from anabranch.protocol.server_errors import ServerError
from anabranch.runtime.clock import SystemClock
from tests.support.models.memory_segment_host import MemoryHost, Shelf
from tests.support.processes.in_process_cluster import until
from tests.support.processes.scalable_nodes import (
    LayoutClient,
    admin_of,
    ids,
    layout_client,
    name,
    plain_settings,
    service_of,
)

TOPIC = str(name("orders"))
EARLIEST = pb.CommandSubscribe.Earliest
CLOCK = SystemClock()


@dataclass
class World:
    node: Node
    shelf: Shelf

    async def publish(self, *segment_ids: int, topic: str = TOPIC) -> None:
        """One message into each."""
        for one in segment_ids:
            segment = await self._segment(topic, one)
            self.shelf.publish(segment, "p", len(self.shelf.segments[segment].entries), b"x", CLOCK.now_ms())

    async def read(self, subscription: str, *segment_ids: int, topic: str = TOPIC) -> None:
        """To the end."""
        for one in segment_ids:
            segment = await self._segment(topic, one)
            for position, _ in self.shelf.unread(segment, subscription):
                self.shelf.acknowledge(segment, subscription, position)

    async def _segment(self, topic: str, segment_id: int) -> TopicName:
        found = await service_of(self.node).record(TopicName.parse(topic))
        return backing_topic(TopicName.parse(topic), found.segments[segment_id])

    async def consumers(self, subscription: str = "s") -> dict[str, list[int]]:
        """Who has what, as the leader says; of those who are connected."""
        sessions = (await admin_of(self.node).subscription(TOPIC, subscription))["sessions"]
        return {one["name"]: one["segments"] for one in sessions if one["connected"]}

    async def sessions(self, subscription: str = "s") -> set[str]:
        """Also of those who may still come back."""
        found = await admin_of(self.node).subscription(TOPIC, subscription)
        return {one["name"] for one in found["sessions"]}

    async def until_sessions(self, *names: str, subscription: str = "s") -> None:
        async with asyncio.timeout(60):
            while await self.sessions(subscription) != set(names):
                await CLOCK.sleep(0.01)


@asynccontextmanager
async def serving(directory: Path, shelf: Shelf | None = None, **scalable: Any) -> AsyncIterator[World]:
    settings = plain_settings(directory, scalable_topics=replace(ScalableTopicSettings(), **scalable))
    shelf = shelf or Shelf()
    async with Node(settings, segments=MemoryHost(shelf, CLOCK.now_ms)) as node:
        yield World(node, shelf)


@dataclass
class Reader:
    """A consumer that takes what it is given and lets go of the rest at once; counts what was taken from it."""

    client: LayoutClient
    consumer: str
    held: set[int] = field(default_factory=set)
    taken: list[int] = field(default_factory=list)

    async def join(self, topic: str = TOPIC, subscription: str = "s") -> None:
        answer = await self.client.register(topic, subscription, self.consumer, initial_position=EARLIEST)
        self.follow(answer.assignment)

    def follow(self, assignment: pb.ScalableConsumerAssignment) -> None:
        now = set(ids(assignment))
        lost, self.held = sorted(self.held - now), now
        self.taken += lost
        if lost:
            self.client.raw.tell(
                BaseCommand.SEGMENT_RELEASE, consumer_id=1, generation=assignment.generation, segment_ids=lost
            )

    def look(self) -> None:
        """All assignments that arrived meanwhile."""
        for one in self.client.raw.take_all():
            if one.kind == BaseCommand.SCALABLE_TOPIC_ASSIGNMENT_UPDATE:
                self.follow(one.body.assignment)


async def until_shared(readers: Iterable[Reader], segments: Iterable[int]) -> None:
    """Until these segments, and no others, are read, evenly."""
    everybody, wanted = list(readers), sorted(segments)

    def is_shared() -> bool:
        for one in everybody:
            one.look()
        counts = [len(one.held) for one in everybody]
        return sorted(held for one in everybody for held in one.held) == wanted and max(counts) - min(counts) <= 1

    await until(is_shared)


# -- connections


async def test_the_close_of_an_old_connection_after_the_new_one_has_registered(tmp_path: Path) -> None:
    """As after a pulled cable: the broker detects the loss of the first connection long after the second registered."""
    async with serving(tmp_path, session_grace_seconds=0.2) as world, AsyncExitStack() as stack:
        await admin_of(world.node).create(TOPIC, 2, {})
        old = await stack.enter_async_context(layout_client(world.node))
        before = await old.register(TOPIC, "s", "a")
        async with layout_client(world.node) as new, layout_client(world.node) as other:
            after = await new.register(TOPIC, "s", "a", held_segments=[0, 1], generation=before.assignment.generation)
            assert ids(after.assignment) == [0, 1]
            assert ids(await old.assignment()) == []  # fenced
            await stack.aclose()  # only now the old one ends
            # A whole grace period on another subscription: had the close counted, ours would be over as well.
            async with layout_client(world.node) as brief:
                await brief.register(TOPIC, "another", "b")
            await world.until_sessions(subscription="another")
            assert await world.consumers() == {"a": [0, 1]}
            await new.raw.barrier()
            assert not new.raw.has(BaseCommand.SCALABLE_TOPIC_ASSIGNMENT_UPDATE), "nothing was taken or given"
            await other.register(TOPIC, "s", "b")
            assert len(ids(await new.assignment())) == 1, "the session hears what concerns it"


async def test_messages_of_a_replaced_connection_are_ignored(tmp_path: Path) -> None:
    async with (
        serving(tmp_path) as world,
        layout_client(world.node) as old,
        layout_client(world.node) as new,
    ):
        await admin_of(world.node).create(TOPIC, 2, {})
        first = await old.register(TOPIC, "s", "a")
        await new.register(TOPIC, "s", "a")
        generation = first.assignment.generation
        old.raw.tell(BaseCommand.SEGMENT_RELEASE, consumer_id=1, generation=generation, segment_ids=[0, 1])
        left = await old.raw.ask(BaseCommand.SCALABLE_TOPIC_LEAVE, consumer_id=1)
        assert left.kind == BaseCommand.SUCCESS  # it is not there, which is what it asked for
        assert await world.consumers() == {"a": [0, 1]}


async def test_second_consumer_of_one_name_replaces_the_first(tmp_path: Path) -> None:
    async with serving(tmp_path) as world, AsyncExitStack() as stack:
        await admin_of(world.node).create(TOPIC, 3, {})
        clients = [await stack.enter_async_context(layout_client(world.node)) for _ in range(4)]
        for client in clients:
            assert ids((await client.register(TOPIC, "s", "same")).assignment) == [0, 1, 2]
        for client in clients[:-1]:
            assert ids(await client.assignment()) == []
        assert await world.consumers() == {"same": [0, 1, 2]}
        await admin_of(world.node).split(TOPIC, 0, 2, None, None)
        update = await clients[-1].assignment()
        while ids(update) != [1, 2, 3, 4]:  # the parent is empty: its children follow at once
            update = await clients[-1].assignment()
        for client in clients[:-1]:
            await client.raw.barrier()
            assert not client.raw.has(BaseCommand.SCALABLE_TOPIC_ASSIGNMENT_UPDATE)


async def test_one_consumer_of_a_shared_connection_is_closed(tmp_path: Path) -> None:
    """The others on it go on; the connection's end is the end of all of them, after their grace."""
    async with serving(tmp_path, session_grace_seconds=0.2) as world:
        await admin_of(world.node).create(TOPIC, 4, {})
        async with layout_client(world.node) as shared:
            await shared.register(TOPIC, "s", "a", 1)
            await shared.register(TOPIC, "s", "b", 2)
            await shared.register(TOPIC, "other", "a", 3)
            answer = await shared.raw.ask(BaseCommand.SCALABLE_TOPIC_LEAVE, consumer_id=1)
            assert answer.kind == BaseCommand.SUCCESS
            update = await shared.assignment(2)
            while ids(update) != [0, 1, 2, 3]:
                update = await shared.assignment(2)
            assert await world.consumers() == {"b": [0, 1, 2, 3]}
            assert await world.consumers("other") == {"a": [0, 1, 2, 3]}
            gone = await shared.raw.ask(BaseCommand.SCALABLE_TOPIC_LEAVE, consumer_id=1)
            assert gone.body.error == ServerError.ConsumerNotFound
        await world.until_sessions()
        await world.until_sessions(subscription="other")


async def test_other_client_leaves_by_closing_its_readers(tmp_path: Path) -> None:
    """Pulsar's client has no word for leaving: one of two consumers closes its readers, the connection stays."""
    async with Node(plain_settings(tmp_path)) as node, layout_client(node, extensions=False) as shared:
        await admin_of(node).create(TOPIC, 2, {})
        exclusive = {"subType": pb.CommandSubscribe.Exclusive}
        world, parts = World(node, Shelf()), dict[str, list[int]]()
        for number, consumer in ((1, "a"), (2, "b")):
            answer = await shared.register(TOPIC, "s", consumer, number)
            assert not answer.HasField("error"), answer
        async with asyncio.timeout(60):
            while [len(one) for one in parts.values()] != [1, 1]:
                parts = await world.consumers()
        record = await service_of(node).record(TopicName.parse(TOPIC))
        for number, consumer in ((11, "a"), (12, "b")):
            (segment_id,) = parts[consumer]
            segment = str(backing_topic(TopicName.parse(TOPIC), record.segments[segment_id]))
            reader = f"{consumer}-seg-{segment_id}"
            opened = await shared.raw.subscribe(segment, "s", number, consumer_name=reader, **exclusive)
            assert opened.kind == BaseCommand.SUCCESS, opened
        await shared.raw.ask(BaseCommand.CLOSE_CONSUMER, consumer_id=11)
        await world.until_sessions("b")
        update = await shared.assignment(2)
        while ids(update) != [0, 1]:
            update = await shared.assignment(2)


async def test_seek_sends_other_client_to_the_parent_only(tmp_path: Path) -> None:
    """It knows no generations: it gets an empty assignment, then the parent, which it alone may attach to."""
    async with Node(plain_settings(tmp_path)) as node, layout_client(node, extensions=False) as client:
        admin, exclusive = admin_of(node), {"subType": pb.CommandSubscribe.Exclusive}
        await admin.create(TOPIC, 1, {})
        answer = await client.register(TOPIC, "s", "a", initial_position=pb.CommandSubscribe.Earliest)
        assert ids(answer.assignment) == [0]
        await client.raw.producer(answer.assignment.segments[0].segment_topic, producer_name="p")
        client.raw.send(0)
        await client.raw.receipt()
        await admin.split(TOPIC, 0, 2, None, None)
        await admin.clear_backlog(TOPIC, "s")
        update = await client.assignment()
        while ids(update) != [1, 2]:
            update = await client.assignment()
        child = next(one for one in update.segments if one.segment_id == 1).segment_topic
        opened = await client.raw.subscribe(child, "s", 11, consumer_name="a-seg-1", **exclusive)
        assert opened.kind == BaseCommand.SUCCESS, opened
        await admin.seek(TOPIC, "s", 0)
        assert ids(await client.assignment()) == []
        update = await client.assignment()
        assert ids(update) == [0]
        refused = await client.raw.subscribe(child, "s", 12, consumer_name="a-seg-1", **exclusive)
        assert refused.body.error == ServerError.ConsumerBusy, refused
        parent = update.segments[0].segment_topic
        opened = await client.raw.subscribe(parent, "s", 13, consumer_name="a-seg-0", **exclusive)
        assert opened.kind == BaseCommand.SUCCESS, opened


# -- names


async def test_both_spellings_of_a_name_share_one_controller(tmp_path: Path) -> None:
    async with (
        serving(tmp_path) as world,
        layout_client(world.node) as one,
        layout_client(world.node) as two,
    ):
        admin, other = admin_of(world.node), "persistent://public/default/orders"
        await admin.create(TOPIC, 2, {})
        readers = [Reader(one, "a"), Reader(two, "b")]
        await readers[0].join(TOPIC)
        await readers[1].join(other)
        await until_shared(readers, [0, 1])
        assert len(service_of(world.node).controllers) == 1, "one leader for both"
        assert set(await world.consumers()) == {"a", "b"}
        one.lookup(TOPIC, 1)
        two.lookup(other, 1)
        assert (await one.update()).resolved_topic_name == (await two.update()).resolved_topic_name == TOPIC
        await admin.split(TOPIC, 0, 2, None, None)
        for client in (one, two):
            await client.until_layout(lambda dag: dag.epoch == 1)
        await until_shared(readers, [1, 2, 3])


ODD = ["a/b", "a%2Fb", "100%", "x#y?z", "größe ü 水", "..", "a b+c&d", "%00"]


async def test_odd_names_are_distinct_and_survive_a_restart(tmp_path: Path) -> None:
    shelf = Shelf()
    before: dict[str, tuple[list[int], int]] = {}
    async with serving(tmp_path, shelf) as world, layout_client(world.node) as client:
        await admin_of(world.node).create(TOPIC, 2, {})
        for number, odd in enumerate(ODD):
            answer = await client.register(TOPIC, odd, odd, number, initial_position=EARLIEST)
            assert not answer.HasField("error"), (odd, answer)
            before[odd] = ids(answer.assignment), answer.assignment.generation
        assert set((await admin_of(world.node).stats(TOPIC))["subscriptions"]) == set(ODD)
        assert all(set(stored.cursors) == set(ODD) for stored in shelf.segments.values())
    async with serving(tmp_path, shelf) as world, layout_client(world.node) as client:
        for odd in ODD:
            await world.until_sessions(odd, subscription=odd)  # restored without being asked
        for number, odd in enumerate(ODD):
            held, generation = before[odd]
            answer = await client.register(TOPIC, odd, odd, number, held_segments=held, generation=generation)
            assert (ids(answer.assignment), answer.assignment.generation) == (held, generation + 1)  # a new leader's
            await client.raw.ask(BaseCommand.SCALABLE_TOPIC_LEAVE, consumer_id=number)
            await admin_of(world.node).delete_subscription(TOPIC, odd, False)
        assert (await admin_of(world.node).stats(TOPIC))["subscriptions"] == {}
        assert all(not stored.cursors for stored in shelf.segments.values())


@pytest.mark.parametrize("bad", ["", " ", "a\x00b"])
async def test_invalid_names_are_refused(tmp_path: Path, bad: str) -> None:
    async with serving(tmp_path) as world, layout_client(world.node) as client:
        await admin_of(world.node).create(TOPIC, 1, {})
        assert (await client.register(TOPIC, bad, "a")).HasField("error")
        assert (await client.register(TOPIC, "s", bad)).HasField("error")
        assert (await admin_of(world.node).stats(TOPIC))["subscriptions"] == {}


# -- shares


async def test_retained_drained_segments_are_not_assigned(tmp_path: Path) -> None:
    """Twelve sealed and read ones beside six active ones: three consumers have two of these each."""
    async with serving(tmp_path) as world, AsyncExitStack() as stack:
        admin = admin_of(world.node)
        await admin.create(TOPIC, 3, {})
        readers = [
            Reader(await stack.enter_async_context(layout_client(world.node)), consumer) for consumer in ("a", "b", "c")
        ]
        await readers[0].join()
        active = [0, 1, 2]
        for _ in range(3):  # each splits one, and merges two of the others
            await admin.split(TOPIC, active[0], 2, None, None)
            await admin.merge(TOPIC, active[1:3], None)
            found = await service_of(world.node).record(TopicName.parse(TOPIC))
            active = [one.segment_id for one in found.layout.active]
        await admin.split(TOPIC, active[0], 4, None, None)
        found = await service_of(world.node).record(TopicName.parse(TOPIC))
        active = [one.segment_id for one in found.layout.active]
        assert (len(active), len(found.segments)) == (6, 16)
        for reader in readers[1:]:
            await reader.join()
        await until_shared(readers, active)
        assert [len(reader.held) for reader in readers] == [2, 2, 2]
        assert sorted((await admin.subscription(TOPIC, "s"))["drained"]) == sorted(set(found.segments) - set(active))


async def test_join_or_leave_moves_at_most_one_share(tmp_path: Path) -> None:
    """ceil(segments / consumers), and nothing between those who stay."""
    segments = 13
    async with serving(tmp_path) as world, AsyncExitStack() as stack:
        await admin_of(world.node).create(TOPIC, segments, {})
        readers: list[Reader] = []
        for number in range(1, 6):
            client = await stack.enter_async_context(layout_client(world.node))
            readers.append(Reader(client, f"c{number}"))
            await readers[-1].join()
            await until_shared(readers, range(segments))
            moved = sum(len(reader.taken) for reader in readers)
            assert moved <= ceil(segments / number) * (number > 1), f"{number} consumers"
            assert not readers[-1].taken
            for reader in readers:
                reader.taken.clear()
        while len(readers) > 1:
            gone = readers.pop(0)
            before = {reader.consumer: set(reader.held) for reader in readers}
            await gone.client.raw.ask(BaseCommand.SCALABLE_TOPIC_LEAVE, consumer_id=1)
            await until_shared(readers, range(segments))
            assert not [reader.taken for reader in readers if reader.taken], "nothing moves between those who stay"
            assert all(before[reader.consumer] <= reader.held for reader in readers)


async def test_new_leader_keeps_children_with_their_consumers(tmp_path: Path) -> None:
    """After splits and drains, and with a segment on its way from one to another."""
    shelf = Shelf()
    async with serving(tmp_path, shelf) as world, AsyncExitStack() as stack:
        await admin_of(world.node).create(TOPIC, 2, {})
        readers = [Reader(await stack.enter_async_context(layout_client(world.node)), one) for one in "ab"]
        for reader in readers:
            await reader.join()
        await until_shared(readers, [0, 1])
        await world.publish(0, 1)
        await admin_of(world.node).split(TOPIC, 0, 2, None, None)
        await admin_of(world.node).split(TOPIC, 1, 2, None, None)
        await world.read("s", 0)  # 1 is not read: 4 and 5 stay closed
        await until_shared(readers, [1, 2, 3])
        held = {reader.consumer: set(reader.held) for reader in readers}
        generation = (await admin_of(world.node).subscription(TOPIC, "s"))["generation"]
    async with serving(tmp_path, shelf) as world, AsyncExitStack() as stack:
        back = [Reader(await stack.enter_async_context(layout_client(world.node)), one) for one in "ab"]
        for reader in back:
            answer = await reader.client.register(
                TOPIC, "s", reader.consumer, held_segments=sorted(held[reader.consumer]), generation=generation
            )
            assert set(ids(answer.assignment)) == held[reader.consumer]
            assert answer.assignment.generation == generation + 1, "its new leader's; nothing was taken and given again"
            reader.held = set(held[reader.consumer])
        assert (await admin_of(world.node).subscription(TOPIC, "s"))["drained"] == [0]
        await world.read("s", 1)
        await until_shared(back, [2, 3, 4, 5])
        assert all(not reader.taken or reader.taken == [1] for reader in back)


async def test_merged_child_waits_for_both_parents(tmp_path: Path) -> None:
    async with serving(tmp_path) as world, layout_client(world.node) as client:
        await admin_of(world.node).create(TOPIC, 3, {})
        reader = Reader(client, "a")
        await reader.join()
        await world.publish(0, 1)
        await world.publish(1)
        await admin_of(world.node).merge(TOPIC, [0, 1], None)
        await world.read("s", 0)
        await until_shared([reader], [1, 2])
        await admin_of(world.node).split(TOPIC, 2, 2, None, None)  # others go on meanwhile
        await until_shared([reader], [1, 4, 5])
        await world.read("s", 1)
        await until_shared([reader], [3, 4, 5])


async def test_a_seek_goes_back_into_sealed_ancestors_of_two_generations(tmp_path: Path) -> None:
    """What is read again is read in the order of the layouts: the children close until their ancestors are through."""
    async with serving(tmp_path) as world, layout_client(world.node) as client:
        admin = admin_of(world.node)
        await admin.create(TOPIC, 1, {})
        reader = Reader(client, "a")
        await reader.join()
        await world.publish(0)
        await admin.split(TOPIC, 0, 2, None, None)
        await world.publish(1)
        await admin.split(TOPIC, 1, 2, None, None)
        await world.publish(3)
        await world.read("s", 0, 1, 3)
        await until_shared([reader], [2, 3, 4])
        await admin.seek(TOPIC, "s", 0)
        await until_shared([reader], [0])
        await world.read("s", 0)
        await until_shared([reader], [1, 2])
        await world.read("s", 1)
        await until_shared([reader], [2, 3, 4])
        assert len(world.shelf.unread(await world._segment(TOPIC, 3), "s")) == 1, "its own message again, too"
