"""Membership under faults: finally exactly the live members are listed, and no value goes back in time."""

from __future__ import annotations

import asyncio

import pytest

from anabranch.metadata.recipes.membership import Altered, Joined, Left, Members, Registration
from tests.support.simulation.metadata_processes import RETRY_DELAYS, Process, World, run_seed, seeds

PREFIX = "/members"


async def take_part(process: Process) -> None:
    """Registers, raises its value now and then, and watches the others."""
    chance, number = process.world.chance, 0
    view = Members(process.store, PREFIX, clock=process.clock, chance=chance, retry_delays=RETRY_DELAYS)
    async with Registration(process.keeper, PREFIX, process.name, b"0") as mine, view:
        process.note = view
        loop = asyncio.get_running_loop()
        watching = loop.create_task(watch(process, view))
        try:
            while True:
                await process.clock.sleep(chance.random() * 2)
                if process.faults.trouble:
                    number += 1
                    try:
                        await mine.update(b"%d" % number, 1)
                    except TimeoutError:
                        process.say("could not update in time")
        finally:
            watching.cancel()
            await asyncio.wait([watching])


async def watch(process: Process, view: Members) -> None:
    """The events of a view, one after the other, fit together."""
    world, seen = process.world, dict[str, int]()
    there: set[str] = set()
    async for event in view.changes():
        match event:
            case Joined(member, value):
                world.check(member not in there, f"{process.name}: {member} joined twice")
                there.add(member)
            case Altered(member, value):
                world.check(member in there, f"{process.name}: {member} altered before it joined")
            case Left(member):
                world.check(member in there, f"{process.name}: {member} left before it joined")
                there.discard(member)
                continue
        world.check(int(value) >= seen.get(member, 0), f"{process.name}: {member} went back to {value!r}")
        seen[member] = int(value)


async def scenario(world: World) -> None:
    for _ in range(world.chance.randrange(2, 5)):
        world.start(take_part)
    await world.chaos(12, take_part)
    await asyncio.sleep(6)
    names = sorted(process.name for process in world.alive)
    stored = {key.rpartition("/")[2]: world.data.get(key) for key in world.data.keys(PREFIX)}
    world.check(sorted(stored) == names, f"{names} live, {sorted(stored)} are registered")
    for process in world.alive:
        view = process.note
        assert isinstance(view, Members)
        world.check(view.is_current, f"{process.name} knows that it does not know")
        for name, found in stored.items():
            value = found.value.partition(b"\n")[2] if found is not None else None
            world.check(view.now.get(name) == value, f"{process.name} sees {name} as {view.now.get(name)!r}")
        world.check(sorted(view.now) == names, f"{process.name} sees {sorted(view.now)}, not {names}")


@pytest.mark.parametrize("span", seeds(300, 6))
def test_exactly_the_live_members_are_listed(span: range) -> None:
    for seed in span:
        run_seed(seed, scenario)
