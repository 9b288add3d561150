"""Sequential keys under faults: no number is given twice."""

from __future__ import annotations

import asyncio

import pytest

from anabranch.metadata.interface import ANY, KeyMissing, StoreUnavailable
from anabranch.metadata.recipes.sequential_keys import put_sequential
from tests.support.simulation.metadata_processes import Process, World, run_seed, seeds


async def put_keys(process: Process, keys: list[str]) -> None:
    chance = process.world.chance
    while True:
        await process.clock.sleep(chance.random() * 0.4)
        try:
            key, _ = await put_sequential(process.store, "/queue/item-", b"x")
            keys.append(key)
            if chance.random() < 0.7:
                await process.store.delete(key, expected=ANY)
        except (StoreUnavailable, KeyMissing):
            continue


async def scenario(world: World) -> None:
    keys: list[str] = []

    async def work(process: Process) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(2):
                group.create_task(put_keys(process, keys))

    for _ in range(world.chance.randrange(2, 4)):
        world.start(work)
    await world.chaos(8, work)
    await asyncio.sleep(3)
    world.check(len(set(keys)) == len(keys), f"a key was given twice: {sorted(keys)}")
    world.check(len(keys) > 0, "no key was given")


@pytest.mark.parametrize("span", seeds(300, 6))
def test_no_number_is_given_twice(span: range) -> None:
    for seed in span:
        run_seed(seed, scenario)
