"""Locks under trouble: never held twice, kept across lost sessions, nothing left behind when nobody wants them."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from anabranch.metadata.recipes.lock import HeldLock, LockNotHeld, ResourceLock, read_lock
from tests.support.simulation.metadata_processes import Process, World, is_valid_now, run_seed, seeds

KEY = "/locks/one"


class Acts:
    """Every use of the lock, checked when it happens."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.count = 0
        self.holdings: set[str] = set()
        self.held: dict[str, HeldLock] = {}
        self.is_ending = False

    def act(self, process: Process, held: HeldLock) -> None:
        try:
            held.check()
        except LockNotHeld:
            process.say(f"stopped by the check of {held.claim}")
            return
        others = [
            name
            for name, theirs in self.held.items()
            if name != process.name and theirs.ended is None and is_valid_now(theirs.lease)
        ]
        self._world.check(not others, f"{process.name} has the lock while {others} have it")
        self.count += 1
        self.holdings.add(held.claim)


async def use(process: Process, acts: Acts) -> None:
    chance = process.world.chance
    async with ResourceLock(process.keeper, KEY, process.name.encode()) as lock:
        while not acts.is_ending:
            try:
                held = await lock.acquire(0.2 + chance.random())
            except TimeoutError:
                await process.clock.sleep(chance.random() * 0.2)
                continue
            process.say(f"holds {held.claim}")
            acts.held[process.name] = held
            while held.is_valid and not acts.is_ending:
                acts.act(process, held)
                process.clock.call_later(chance.random() * 0.2, partial(acts.act, process, held))
                await process.clock.sleep(chance.random() * 0.2)
                if chance.random() < 0.1:
                    await change_value(process, lock)
                if process.faults.trouble and chance.random() < 0.05:
                    process.say("releases")
                    await lock.release(1)
            process.say(f"has lost {held.claim}")
        process.say("wants it no more")
        await lock.release(1)
        await process.clock.sleep(60)


async def change_value(process: Process, lock: ResourceLock) -> None:
    value = f"{process.name} {process.world.chance.randrange(100)}".encode()
    try:
        await lock.update(value, 1)
    except (LockNotHeld, TimeoutError):
        return
    held = lock.held
    if held is not None and held.is_valid:
        stored = process.world.data.get(KEY)
        process.world.check(
            stored is not None and stored.value.endswith(value), f"{process.name} wrote {value!r}, there is {stored}"
        )


async def scenario(world: World) -> None:
    acts = Acts(world)

    async def work(process: Process) -> None:
        await use(process, acts)

    for _ in range(world.chance.randrange(2, 5)):
        world.start(work)
    await world.chaos(14, work)
    before = acts.count
    await asyncio.sleep(6)
    world.check(acts.count > before, "nobody holds the lock although all is well")
    world.check(len(acts.holdings) > 0, "nothing happened in this world")
    acts.is_ending = True
    await asyncio.sleep(6)
    async with world.observer() as store:
        world.check(await read_lock(store, KEY) is None, "a lock that nobody wants is held")


@pytest.mark.parametrize("span", seeds(500, 10))
def test_never_held_twice_and_never_left_behind(span: range) -> None:
    for seed in span:
        run_seed(seed, scenario)
