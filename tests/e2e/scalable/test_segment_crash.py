"""The owner of a segment is killed, or stands still past its session: what it promised holds at its successor.

Our own broker asks, a process owns; on SQLite and on ZooKeeper.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from anabranch.broker.catalog.catalog import Catalog
from anabranch.broker.segment.segment_state import PROPERTY
from anabranch.controller.segment_host import (
    Answer,
    Create,
    CursorSpec,
    Delete,
    Done,
    Fence,
    FencingToken,
    HostUnavailable,
    Request,
    Seal,
    SealFacts,
    SegmentRef,
    StaleRequest,
    StaleTerm,
    Start,
    Status,
)
from anabranch.metadata.open import open_store
from anabranch.model.names import TopicName
from anabranch.model.position import Position
from anabranch.model.segment import backing_topic
from anabranch.node.node import Node
from anabranch.node.settings.cluster import ClusterSettings
from anabranch.node.settings.node import MetadataSettings
from anabranch.protocol.commands import BaseCommand, position_of
from anabranch.runtime.clock import SystemClock
from tests.support.in_memory.segment_hosts import TOPIC, ref_of, save_record, split_record, until
from tests.support.processes.broker_process import BrokerProcess
from tests.support.processes.in_process_cluster import node_settings, place_of
from tests.support.processes.scalable_cluster import store_url
from tests.support.traffic.raw_client import RawClient

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("cluster")]

SESSION_MS = 2_000
RECORD = split_record()
_CLOCK = SystemClock()


@dataclass
class Pair:
    node: Node  # asks
    owner: BrokerProcess  # owns the parent, and is killed
    topic: TopicName
    number: int = 0

    @property
    def parent(self) -> SegmentRef:
        return ref_of(self.topic, RECORD.layout[0])

    @property
    def children(self) -> tuple[SegmentRef, ...]:
        return tuple(ref_of(self.topic, one) for one in RECORD.planned_children)

    async def ask(self, request: Request, term: int = 1) -> Answer:
        """As a leader does: repeated under a new number while there is no answer."""
        assert self.node.services.segments is not None
        async with asyncio.timeout(60):
            while True:
                self.number += 1
                try:
                    return await self.node.services.segments.ask(FencingToken(term, self.number), request)
                except HostUnavailable:
                    await _CLOCK.sleep(0.05)

    async def publish(self, *sequences: int) -> list[Position]:
        async with RawClient(self.owner.service_url) as client:
            await client.hello()
            await client.producer(str(self.parent.name), producer_name="producer")  # as in the entries that it sends
            found = []
            for one in sequences:
                client.send(one)
                found.append(position_of((await client.receipt()).message_id))
            return found

    async def kill(self) -> None:
        await asyncio.to_thread(self.owner.kill9)


@pytest.fixture(params=["sqlite", "zk"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Pair]:
    async with pair(tmp_path, store_url(request.param)) as found:
        yield found


@asynccontextmanager
async def pair(directory: Path, metadata_url: str | None) -> AsyncIterator[Pair]:
    data = directory / "data"
    settings = node_settings(
        data,
        "a",
        cluster=ClusterSettings(enabled=True, session_ms=SESSION_MS),
        metadata=MetadataSettings(url=metadata_url or ""),
    )
    async with Node(settings) as node:
        url = node.settings.metadata_url
        options = (
            "cluster.enabled=true",
            "storage.broker_id=b",
            f"cluster.session_ms={SESSION_MS}",
            f"metadata.url={url}",
        )
        owner = BrokerProcess(data, arguments=[word for one in options for word in ("--set", one)], name="b")
        try:
            await asyncio.to_thread(owner.start)
            names = [TopicName.parse(f"{TOPIC}-{number}") for number in range(64)]

            def away() -> list[TopicName]:
                """Topics whose parent is there, and a child as well."""
                peers = node.services.peers
                assert peers is not None
                owner_of, first = peers.owner_of, RECORD.layout[0]
                return [
                    name
                    for name in names
                    if owner_of(backing_topic(name, first)) == "b"
                    and "b" in {owner_of(backing_topic(name, one)) for one in RECORD.planned_children}
                ]

            cluster = place_of(node).cluster
            await until(lambda: bool(away()) and all(slot.next_holder is None for slot in cluster.table.slots))
            made = Pair(node, owner, away()[0])
            await save_record(node, made.topic, RECORD)
            await made.ask(Create("op", made.parent, (CursorSpec("s", Start.EARLIEST),)))
            yield made
        finally:
            await asyncio.to_thread(owner.close)


async def test_successor_of_a_killed_owner_gives_the_same_answers(world: Pair) -> None:
    positions = await world.publish(3, 4)
    facts = await world.ask(Seal("op", world.parent, world.children))
    assert isinstance(facts, SealFacts)
    assert (facts.last_position, facts.sequence_ids) == (positions[-1], (("producer", 4),))
    await world.kill()
    assert await world.ask(Seal("op", world.parent, world.children), term=2) == facts
    assert place_of(world.node).is_here(world.parent.name)
    status = await world.ask(Fence("op", world.parent), term=2)
    assert isinstance(status, Status)
    assert (status.sealed, status.cursors) == (facts, frozenset({"s"}))


async def test_owner_killed_between_seal_and_answer(world: Pair) -> None:
    """Whether the answer still left or not: what the record says is what is answered ever after."""
    positions = await world.publish(0, 7)
    key = Catalog.topic_key(world.parent.name)
    async with open_store(world.node.settings.metadata_url, _CLOCK, 8_000) as store:

        async def sealed() -> dict[str, object] | None:
            found = await store.get(key)
            assert found is not None
            note: dict[str, object] | None = json.loads(json.loads(found.value)["properties"][PROPERTY]).get("sealed")
            return note

        asking = asyncio.ensure_future(world.ask(Seal("op", world.parent, world.children)))
        async with asyncio.timeout(30):
            while (note := await sealed()) is None:
                await _CLOCK.sleep(0)
        await world.kill()
    facts = await asking
    assert facts == SealFacts(positions[-1], int(str(note["atMs"])), "op", (("producer", 7),))
    assert await world.ask(Seal("op", world.parent, world.children), term=2) == facts


async def test_fencing_tokens_survive_a_change_of_owner(world: Pair) -> None:
    assert await world.ask(Delete("op", world.parent), term=3) == Done()
    child = next(one for one in world.children if not place_of(world.node).is_here(one.name))
    assert await world.ask(Fence("op", child), term=3) == Status(exists=False)
    number = world.number
    await world.kill()
    assert await world.ask(Fence("op", world.parent), term=3) == Status(exists=False)
    assert world.node.services.segments is not None
    with pytest.raises(StaleRequest):
        await world.node.services.segments.ask(FencingToken(3, number - 1), Create("op", world.parent, ()))
    with pytest.raises(StaleTerm):
        await world.ask(Create("op", child, ()), term=2)


async def test_owner_frozen_past_its_session_confirms_nothing(world: Pair) -> None:
    """What was on its way to it while it stood still is read when it goes on: after its successor has sealed."""
    positions = await world.publish(0, 1)
    async with RawClient(world.owner.service_url) as client:
        await client.hello()
        await client.producer(str(world.parent.name), producer_name="producer")
        await asyncio.to_thread(world.owner.freeze)
        client.send(2)  # the kernel takes it; the broker does not read it
        facts = await world.ask(Seal("op", world.parent, world.children), term=2)
        assert isinstance(facts, SealFacts)
        assert (facts.last_position, facts.sequence_ids) == (positions[-1], (("producer", 1),))
        assert place_of(world.node).is_here(world.parent.name)
        world.owner.thaw()
        await client.wait_closed(30.0)  # it says goodbye to its clients: the segment is served elsewhere
        assert not client.has(BaseCommand.SEND_RECEIPT), "confirmed, and not there"
    assert await world.ask(Seal("op", world.parent, world.children), term=2) == facts
    await asyncio.to_thread(world.owner.wait_ready)
    with pytest.raises(StaleTerm):
        await world.ask(Seal("op", world.parent, ()), term=1)
