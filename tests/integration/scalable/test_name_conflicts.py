"""A regular and a scalable topic of one name, made at the same moment: exactly one of them stays."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable
from pathlib import Path

import pytest

from anabranch.broker.catalog.catalog import Catalog
from anabranch.broker.settings import BrokerSettings
from anabranch.controller.interface import TopicExists
from anabranch.controller.regular_topics import regular_name
from anabranch.model.errors import AlreadyExists, Error, NotFound
from anabranch.model.metadata_keys import scalable_topic_key
from anabranch.model.names import TopicName
from anabranch.node.node import Node
from tests.support.in_memory.controllers import TOPIC, Brokers, NoRules
from tests.support.in_memory.simulated_loop import run_simulated
from tests.support.processes.in_process_cluster import nodes, place_of
from tests.support.processes.scalable_nodes import admin_of

REGULAR = regular_name(TOPIC)
TAKEN = {AlreadyExists.code, TopicExists.code}  # a peer call transports the code, not the class
PARTITIONED = "/partitioned/persistent/public/default/orders"


class CatalogRules(NoRules):
    """What the broker's rules say, from the same store."""

    def __init__(self, catalog: Catalog) -> None:
        super().__init__()
        self.catalog = catalog

    async def check_name(self, topic: TopicName) -> None:
        if await self.catalog.is_regular(REGULAR):
            raise AlreadyExists(f"{REGULAR} is a regular topic")

    async def clear_name(self, topic: TopicName) -> None:
        await self.catalog.clear_name(REGULAR)

    async def check_may_create(self, topic: TopicName) -> None:
        await self.check_name(topic)


async def outcome(work: Awaitable[object]) -> str:
    try:
        await work
    except Error as error:
        return "taken" if error.code in TAKEN else error.code
    return "made"


@pytest.mark.parametrize("part", range(2))
def test_exactly_one_topic_stays_when_answers_are_lost(part: int) -> None:
    seen: set[tuple[str, str]] = set()
    for seed in range(part * 100, part * 100 + 100):
        seen.add(race(seed))
    assert {("made", "taken"), ("taken", "made")} <= seen


def race(seed: int) -> tuple[str, str]:
    found: list[tuple[str, str]] = []

    async def story() -> None:
        chance = random.Random(seed)
        brokers = Brokers("a", seed=seed, trouble=chance.choice([0.0, 0.2, 0.4]), call_seconds=5.0)
        catalog = Catalog(brokers.store, BrokerSettings())
        brokers.rules = CatalogRules(catalog)
        async with brokers:
            trouble, brokers.faults.trouble = brokers.faults.trouble, 0.0
            await catalog.ensure_defaults()
            brokers.faults.trouble = trouble

            async def later(work: Awaitable[object]) -> str:
                await asyncio.sleep(chance.random() * 0.012)
                return await outcome(work)

            scalable = later(brokers.controllers["a"].create(TOPIC, 1, {}))
            regular, answer = await asyncio.gather(later(catalog.create_partitioned(REGULAR, 2)), scalable)
            brokers.faults.trouble = 0.0
            # A creation whose answer was lost may be there or not: the next use of the name shows it.
            await outcome(brokers.controllers["a"].activate(TOPIC))
            has_regular = brokers.bare.data.get(PARTITIONED) is not None
            has_scalable = brokers.bare.data.get(scalable_topic_key(TOPIC)) is not None
            assert not (has_regular and has_scalable), f"seed {seed}: both are there ({regular}, {answer})"
            if regular == "made":
                assert has_regular, f"seed {seed}: made, and not there"
            if answer == "made":
                assert has_scalable, f"seed {seed}: made, and not there"
            if regular == answer == "taken":
                raise AssertionError(f"seed {seed}: both creations failed with a name conflict")
            found.append((regular, answer))

    run_simulated(story())
    return found[0]


async def test_two_brokers_on_sqlite(tmp_path: Path) -> None:
    async with nodes(tmp_path, "a", "b") as (a, b):
        for number in range(12):
            topic = TopicName.parse(f"topic://public/default/conflict-{number}")
            regular_topic = regular_name(topic)
            owner = a if place_of(a).is_here(regular_topic) else b
            if number % 2:
                regular = outcome(owner.services.catalog.create_partitioned(regular_topic, 2))
            else:
                regular = outcome(plain(owner, regular_topic))
            scalable = outcome(admin_of(a).create(str(topic), 1, {}))
            if number % 3:
                is_regular, is_scalable = await asyncio.gather(regular, scalable)
            else:
                is_scalable, is_regular = await asyncio.gather(scalable, regular)
            assert {is_regular, is_scalable} == {"made", "taken"}, f"{topic}: {is_regular}, {is_scalable}"
            await check_one(a, topic, is_regular=is_regular == "made")


async def plain(node: Node, regular_topic: TopicName) -> None:
    try:
        await node.services.topics.create(regular_topic)
    except NotFound as error:
        raise TopicExists(error.reason) from error


async def check_one(node: Node, topic: TopicName, *, is_regular: bool) -> None:
    catalog, regular_topic = node.services.catalog, regular_name(topic)
    assert await catalog.is_regular(regular_topic) is is_regular
    assert await catalog.is_scalable(regular_topic) is not is_regular
