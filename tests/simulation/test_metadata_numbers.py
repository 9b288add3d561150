"""Counters, ids and sequential keys under trouble: exact, never given twice, never given again."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from anabranch.metadata.interface import ANY, KeyMissing, OutcomeUnknown, StoreUnavailable
from anabranch.metadata.recipes.counter import Counter, IdBlocks
from anabranch.metadata.recipes.sequential_keys import put_sequential
from tests.support.simulation.metadata_processes import RETRY_DELAYS, Process, World, run_seed, seeds


@dataclass
class Book:
    sums: list[int] = field(default_factory=list)
    sums_doubtful: int = 0
    ids: list[int] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)


async def count(process: Process, book: Book) -> None:
    chance = process.world.chance
    counter = Counter(
        process.store,
        "/counter",
        owner=process.keeper.ticket(),
        clock=process.clock,
        chance=chance,
        patience=RETRY_DELAYS,
    )
    while True:
        await process.clock.sleep(chance.random() * 0.4)
        if process.faults.trouble:
            book.sums_doubtful += 1
            try:
                book.sums.append(await counter.add(1, seconds=2))
            except (OutcomeUnknown, StoreUnavailable):
                continue
            book.sums_doubtful -= 1


async def take(process: Process, book: Book) -> None:
    chance = process.world.chance
    ids = IdBlocks(
        process.store, "/ids", clock=process.clock, chance=chance, block=chance.randrange(1, 5), patience=RETRY_DELAYS
    )
    while True:
        await process.clock.sleep(chance.random() * 0.3)
        try:
            book.ids.append(await ids.take(seconds=2))
        except TimeoutError:
            continue


async def queue(process: Process, book: Book) -> None:
    chance = process.world.chance
    while True:
        await process.clock.sleep(chance.random() * 0.4)
        try:
            key, _ = await put_sequential(process.store, "/queue/item-", b"x")
            book.keys.append(key)
            if chance.random() < 0.7:
                await process.store.delete(key, expected=ANY)
        except (StoreUnavailable, KeyMissing):
            continue


async def scenario(world: World) -> None:
    book = Book()

    async def work(process: Process) -> None:
        async with asyncio.TaskGroup() as group:
            for job in (count, count, take, queue):
                group.create_task(job(process, book))

    for _ in range(world.chance.randrange(2, 4)):
        world.start(work)
    await world.chaos(8, work)
    await asyncio.sleep(3)
    world.check(len(set(book.sums)) == len(book.sums), f"a sum came twice: {sorted(book.sums)}")
    async with world.observer() as store:
        counter = Counter(store, "/counter", owner="x", clock=world.clock, chance=world.chance)
        value = await counter.read()
    world.check(
        len(book.sums) <= value <= len(book.sums) + book.sums_doubtful,
        f"{len(book.sums)} were added ({book.sums_doubtful} in doubt), the sum is {value}",
    )
    world.check(len(set(book.ids)) == len(book.ids), f"an id came twice: {sorted(book.ids)}")
    world.check(len(set(book.keys)) == len(book.keys), f"a key came twice: {sorted(book.keys)}")
    world.check(min(len(book.sums), len(book.ids), len(book.keys)) > 0, "nothing happened in this world")


@pytest.mark.parametrize("span", seeds(300, 6))
def test_no_number_comes_twice(span: range) -> None:
    for seed in span:
        run_seed(seed, scenario)
