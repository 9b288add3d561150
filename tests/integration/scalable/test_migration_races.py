"""A migration while something else happens to the same topic, at many moments. Two brokers in this process.

Afterwards the topic is scalable with every message, or the regular topic that it was, or deleted; never in between, and
never stuck. Moments are chosen by the seed: each side starts some turns of the event loop after the other.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import anabranch
from anabranch.broker.errors import TopicMigrated, TopicNotFound
from anabranch.model.errors import Error
from anabranch.model.names import TopicName
from anabranch.node.node import Node
from anabranch.protocol.commands import BaseCommand
from anabranch.rest.openapi.topic_migration_schemas import STATUS
from tests.integration.scalable.test_migration import (
    OLD,
    PATIENCE,
    migrate,
    migrations_of,
    numbers_of,
    publish,
    take,
    topics_of,
)
from tests.support.processes.in_process_cluster import nodes
from tests.support.processes.scalable_nodes import admin_of
from tests.support.traffic.json_schemas import complaints
from tests.support.traffic.raw_client import RawClient

SEEDS, SOAK_SEEDS = 2, 40
PARTITIONS = 4
MESSAGES = 20
TURNS_MAX = 250
"""Turns of the event loop. A migration of the topic takes some hundred of them."""


@dataclass(frozen=True)
class Raced:
    node: Node
    other: Node
    name: str
    partitions: int

    @property
    def old(self) -> str:
        return f"persistent://public/default/{self.name}"

    @property
    def new(self) -> str:
        return f"topic://public/default/{self.name}"

    def parts(self) -> list[str]:
        return [f"{self.old}-partition-{index}" for index in range(self.partitions)] or [self.old]

    async def phase(self) -> str:
        """DONE, NONE (regular), MISSING; waits for the end of what runs."""
        async with asyncio.timeout(PATIENCE):
            while True:
                try:
                    phase = str((await migrations_of(self.node).status(self.old))["phase"])
                except TopicNotFound:
                    return "MISSING"
                if phase in ("DONE", "NONE"):
                    return phase
                await asyncio.sleep(0.01)

    async def check_whole(self, phase: str) -> None:
        """Every message is there, and the topic takes more."""
        topic = self.new if phase == "DONE" else self.old
        async with anabranch.connect(self.other.service_url) as client:
            await publish(client, topic, range(MESSAGES, 2 * MESSAGES))
            async with client.queue_consumer(topic, subscription="work", start="earliest") as consumer:
                assert numbers_of(await take(consumer, 2 * MESSAGES)) == list(range(2 * MESSAGES))
        if phase == "DONE":
            record = await admin_of(self.node).metadata(self.new)
            states = [one["state"] for one in record["segments"].values()]
            count = max(1, self.partitions)
            assert states == ["SEALED"] * count + ["ACTIVE"] * count
            await self._check_old_name()

    async def _check_old_name(self) -> None:
        """A topic that was not partitioned keeps its name as a segment: its owner refuses old clients."""
        if self.partitions:
            with pytest.raises(TopicMigrated):
                await self.other.services.catalog.partitions_or_create(TopicName.parse(self.old), auto_create=True)
            return
        owner = next(one for one in (self.node, self.other) if _is_here(one, self.old))
        async with RawClient(owner.service_url) as raw:
            await raw.hello()
            refused = await raw.ask(BaseCommand.PRODUCER, topic=self.old, producer_id=1)
            assert refused.body.migrated_to == self.new

    async def check_gone(self) -> None:
        left = await topics_of(self.node).list_all("public/default", "persistent", True)
        assert [one for one in left if self.name in one] == []


Move = Callable[[Raced], Awaitable[object]]


async def delete(raced: Raced) -> None:
    admin = topics_of(raced.other)
    if raced.partitions:
        await admin.delete_partitions(raced.old, True)
    else:
        node = next(one for one in (raced.node, raced.other) if _is_here(one, raced.old))
        await topics_of(node).delete(raced.old, True)


def _is_here(node: Node, name: str) -> bool:
    return node.services.placement.is_here(TopicName.parse(name))


async def create(raced: Raced) -> None:
    await topics_of(raced.other).create_partitions(raced.old, raced.partitions or 2, {})


async def create_scalable(raced: Raced) -> None:
    await admin_of(raced.other).create(raced.new, 2, {})


async def grow(raced: Raced) -> None:
    await topics_of(raced.other).update_partitions(raced.old, raced.partitions + 2)


async def unload(raced: Raced) -> None:
    for part in raced.parts():
        for node in (raced.node, raced.other):
            if _is_here(node, part):
                await node.services.topics.close(TopicName.parse(part), node.services.address)


async def split(raced: Raced) -> None:
    await admin_of(raced.other).split(raced.new, 0, 2, None, None)


async def migrate_too(raced: Raced) -> None:
    await migrate(raced.other, raced.old)


async def delete_scalable(raced: Raced) -> None:
    await admin_of(raced.other).delete(raced.new, force=True)


async def attach_old_producer(raced: Raced) -> None:
    """A stock producer of one partition. If it is let in, its message is confirmed."""
    node = next(one for one in (raced.node, raced.other) if _is_here(one, raced.parts()[-1]))
    async with RawClient(node.service_url) as raw:
        await raw.hello()
        answer = await raw.producer(raced.parts()[-1])
        if answer.kind == BaseCommand.PRODUCER_SUCCESS:
            await asyncio.sleep(0.05)


@pytest.fixture(
    params=[range(SEEDS), pytest.param(range(SEEDS, SOAK_SEEDS), marks=pytest.mark.soak)], ids=["ci", "soak"]
)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return Place(tmp_path, request.param)


@dataclass(frozen=True)
class Place:
    path: Path
    seeds: range


async def race(
    place: Place, move: Move, partitions: int, check: Callable[[Raced, str, Outcomes], Awaitable[None]]
) -> None:
    async with nodes(place.path, "a", "b") as (node, other):
        for seed in place.seeds:
            raced = Raced(node, other, f"orders{seed}", partitions)
            if partitions:
                await topics_of(node).create_partitions(raced.old, partitions, {})
            else:
                owner = next(one for one in (node, other) if _is_here(one, raced.old))
                await topics_of(owner).create(raced.old, {})
            async with (
                anabranch.connect(node.service_url) as client,
                client.queue_consumer(raced.old, subscription="work", start="earliest"),
            ):
                await publish(client, raced.old, range(MESSAGES))
            if seed % 2:
                await unload(raced)
            found = await both(raced, move, random.Random(seed))
            await check(raced, await raced.phase(), found)


@dataclass(frozen=True)
class Outcomes:
    migration: Error | None
    move: Error | None


async def both(raced: Raced, move: Move, chance: random.Random) -> Outcomes:
    async def after(turns: int, work: Awaitable[object]) -> Error | None:
        for _ in range(turns):
            await asyncio.sleep(0)
        try:
            await work
        except Error as error:
            return error
        return None

    first, second = sorted((0, chance.randrange(TURNS_MAX)), key=lambda _: chance.random())
    async with asyncio.timeout(PATIENCE):
        return Outcomes(*await asyncio.gather(after(first, migrate(raced.node, raced.old)), after(second, move(raced))))


async def check_regular_or_migrated(raced: Raced, phase: str, found: Outcomes) -> None:
    assert phase == ("DONE" if found.migration is None else "NONE"), found
    await raced.check_whole(phase)


@pytest.mark.parametrize("partitions", [0, PARTITIONS])
async def test_deletion_wins_or_is_refused(place: Place, partitions: int) -> None:
    async def check(raced: Raced, phase: str, found: Outcomes) -> None:
        if found.move is None:
            assert found.migration is not None, found
            assert phase == "MISSING", found
            await raced.check_gone()
        else:
            await check_regular_or_migrated(raced, phase, found)

    await race(place, delete, partitions, check)


@pytest.mark.parametrize("move", [create, create_scalable])
async def test_creation_of_the_same_name_is_refused(place: Place, move: Move) -> None:
    async def check(raced: Raced, phase: str, found: Outcomes) -> None:
        assert found.move is not None
        assert found.migration is None
        await raced.check_whole(phase)

    await race(place, move, PARTITIONS, check)


async def test_growth_is_done_before_or_refused(place: Place) -> None:
    async def check(raced: Raced, phase: str, found: Outcomes) -> None:
        if found.move is None:
            raced = replace(raced, partitions=PARTITIONS + 2)
        await check_regular_or_migrated(raced, phase, found)

    await race(place, grow, PARTITIONS, check)


@pytest.mark.parametrize("partitions", [0, PARTITIONS])
async def test_unloaded_partitions_do_not_stop_it(place: Place, partitions: int) -> None:
    async def check(raced: Raced, phase: str, found: Outcomes) -> None:
        assert found.migration is None, found
        await raced.check_whole(phase)

    await race(place, unload, partitions, check)


async def test_split_is_refused_or_waits(place: Place) -> None:
    async def check(raced: Raced, phase: str, found: Outcomes) -> None:
        assert found.migration is None, found
        assert found.move is not None, "segment 0 is a partition, which is sealed"
        await raced.check_whole(phase)

    await race(place, split, PARTITIONS, check)


async def test_of_two_migrations_one_is_refused(place: Place) -> None:
    async def check(raced: Raced, phase: str, found: Outcomes) -> None:
        assert phase == "DONE"
        assert (found.migration is None) != (found.move is None), found
        await raced.check_whole(phase)

    await race(place, migrate_too, PARTITIONS, check)


async def test_scalable_topic_is_deleted_whole_or_not_there_yet(place: Place) -> None:
    async def check(raced: Raced, phase: str, found: Outcomes) -> None:
        if found.move is None:
            assert phase == "MISSING"
            await raced.check_gone()
        else:
            await check_regular_or_migrated(raced, phase, found)

    await race(place, delete_scalable, PARTITIONS, check)


@pytest.mark.parametrize("partitions", [0, PARTITIONS])
async def test_old_producer_in_the_middle_undoes_it_or_is_refused(place: Place, partitions: int) -> None:
    await race(place, attach_old_producer, partitions, check_regular_or_migrated)


async def test_every_broker_shows_how_far_a_migration_is(tmp_path: Path) -> None:
    async with nodes(tmp_path, "a", "b") as (node, other):
        await topics_of(node).create_partitions(OLD, 32, {})
        async with (
            anabranch.connect(node.service_url) as client,
            client.queue_consumer(OLD, subscription="work", start="earliest"),
        ):
            await publish(client, OLD, range(MESSAGES))
        running = asyncio.create_task(migrate(node))
        shown: list[dict[str, Any]] = []
        while not running.done():
            shown += [await migrations_of(one).status(OLD) for one in (node, other)]
        await running
        shown += [await migrations_of(one).status(OLD) for one in (node, other)]
    assert [complaint for one in shown for complaint in complaints(one, STATUS, is_strict=True)] == []
    progress = [one["progress"] for one in shown if "progress" in one]
    assert progress and all(0 <= one["done"] <= one["total"] <= 32 for one in progress)
    assert [one["phase"] for one in shown[-2:]] == ["DONE", "DONE"]
