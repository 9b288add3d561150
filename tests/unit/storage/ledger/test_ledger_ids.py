"""Ledger ids: never used twice, always growing, over several brokers."""

from __future__ import annotations

import asyncio

from anabranch.storage.ledger.ledger_ids import LedgerIds
from tests.support.in_memory.topic_log import TopicWorld


async def test_ids_are_unique_over_brokers_and_restarts() -> None:
    world = TopicWorld()
    await world.metadata.open()
    given: list[int] = []
    for _ in range(3):  # three starts of two brokers
        brokers = [LedgerIds(world.records, block=5) for _ in range(2)]
        given += await asyncio.gather(*(ids.allocate() for ids in brokers for _ in range(12)))
    assert len(given) == len(set(given)) == 72
    assert min(given) > 0


async def test_an_id_is_above_the_last_one_of_its_topic() -> None:
    world = TopicWorld()
    await world.metadata.open()
    one, two = LedgerIds(world.records, block=10), LedgerIds(world.records, block=10)
    first = await one.allocate()
    moved = await two.allocate(above=first)
    back = await one.allocate(above=moved)  # the rest of its block is too low for this topic
    assert first < moved < back
    assert await one.allocate(above=1000) > 1000
    assert await two.allocate(above=first) not in {first, moved, back}


async def test_a_block_costs_one_metadata_write() -> None:
    world = TopicWorld()
    await world.metadata.open()
    ids = LedgerIds(world.records, block=100)
    await ids.allocate()
    before = await world.metadata.get("/ledgers/next-id")
    await asyncio.gather(*(ids.allocate() for _ in range(99)))
    assert await world.metadata.get("/ledgers/next-id") == before


async def test_ids_with_files_on_the_volume_are_not_allocated_again() -> None:
    """With a metadata store that is new, or restored from an old backup."""
    world = TopicWorld()
    await world.metadata.open()
    assert await LedgerIds(world.records, block=10, floor=500).allocate() == 501
    assert await LedgerIds(world.records, block=10, floor=500).allocate() == 511
    assert await LedgerIds(world.records, block=10, floor=800).allocate() == 801
