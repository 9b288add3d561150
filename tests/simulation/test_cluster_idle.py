"""Clusters to which one thing happens, or nothing: what moves then, and that nothing else does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from anabranch.cluster.cluster import SLOTS_KEY
from tests.support.in_memory.simulated_loop import run_simulated
from tests.support.simulation.cluster import SESSION_MS, Broker, ClusterWorld

MIB = 1024.0 * 1024.0
NAMES = ("b0", "b1", "b2")


def run(scenario: Callable[[ClusterWorld], Awaitable[None]], seed: int) -> ClusterWorld:
    world = ClusterWorld(seed, trouble=0.0, latency_s=0.002)
    world.is_calm = True

    async def main() -> None:
        for name in NAMES:
            world.start(name)
        try:
            await world.settle()
            await scenario(world)
        finally:
            await world.end()
        if world.error is not None:
            raise world.error

    try:
        run_simulated(main())
    except AssertionError as error:
        pytest.fail(f"seed {seed}: {error}\n" + "\n".join(world.lines[-100:]))
    return world


def lives(world: ClusterWorld) -> dict[str, int]:
    return {name: world.lives[name].generation for name in NAMES}


def totals(world: ClusterWorld) -> list[float]:
    """Load by broker."""
    held = [world.table.held_by(broker.incarnation) for broker in world.lives.values()]
    return [sum(world.loads.get(slot, 0.0) for slot in slots) for slots in held]


@pytest.mark.parametrize("seed", range(5))
def test_busy_broker_exchanges_slots_once(seed: int) -> None:
    async def scenario(world: ClusterWorld) -> None:
        world.busy = frozenset()  # minutes of records would only cost time
        await asyncio.sleep(60)  # first reports
        serial, writes = world.table.serial, writes_of(world)
        busy = sorted(world.table.held_by(world.lives["b1"].incarnation))[:9]
        world.loads = dict.fromkeys(busy, 10 * MIB)
        await asyncio.sleep(200)
        assert totals(world) == [30 * MIB] * 3
        assert world.moves <= 256 + 2 * 86 + 12, "the first deal, three brokers that came, six exchanges"
        assert world.table.serial > serial
        settled = world.table.serial
        await asyncio.sleep(600)
        assert world.table.serial == settled, "constant loads move nothing"
        written = writes_of(world) - writes
        assert written <= 40, f"{written} writes in 800 s"

    run(scenario, seed)


def writes_of(world: ClusterWorld) -> int:
    return sum(broker.faults.writes for broker in world.lives.values())


@pytest.mark.parametrize("seed", range(5))
def test_store_outage_for_all_brokers_replaces_none(seed: int) -> None:
    """Longer than the sessions last: everybody registers again and goes on where it stopped."""

    async def scenario(world: ClusterWorld) -> None:
        before, slots = lives(world), world.table.slots
        for broker in world.lives.values():
            broker.store.cut()
        confirmed = world.count_confirmed()
        await asyncio.sleep(SESSION_MS / 1000 + 0.5)
        silent = world.count_confirmed()
        assert silent > confirmed, "they go on while their sessions can be valid"
        await asyncio.sleep(5)
        assert world.count_confirmed() == silent, "and then confirm nothing"
        for broker in world.lives.values():
            broker.store.heal()
        await world.settle()
        await asyncio.sleep(5)
        assert lives(world) == before
        assert [slot.holder for slot in world.table.slots] == [slot.holder for slot in slots]
        assert world.count_confirmed() > silent

    run(scenario, seed)


@pytest.mark.parametrize("seed", range(5))
def test_briefly_disconnected_broker_is_not_replaced(seed: int) -> None:
    async def scenario(world: ClusterWorld) -> None:
        before, serial = lives(world), world.table.serial
        for broker in world.lives.values():
            broker.store.cut()
            await asyncio.sleep(SESSION_MS / 1000 * 0.5)
            broker.store.heal()
            await asyncio.sleep(2)
        assert (lives(world), world.table.serial) == (before, serial)
        assert world.unserved() is None

    run(scenario, seed)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("how", ["killed", "stopped", "cut off", "expired"])
def test_only_the_slots_of_a_vanished_broker_move(how: str, seed: int) -> None:
    async def scenario(world: ClusterWorld) -> None:
        # not the one that directs: what it does when it dies itself is for the seeds of chaos
        victim = next(b for b in world.lives.values() if b.cluster is not None and not b.cluster.is_director)
        old, moves, incarnation = world.table, world.moves, victim.incarnation
        await happen(world, victim, how)
        begun = asyncio.get_running_loop().time()
        while world.table.held_by(incarnation):
            await asyncio.sleep(0.01)
            assert asyncio.get_running_loop().time() - begun < SESSION_MS / 1000 + 1.0, "session, then recovery"
        assert world.moves - moves == len(old.held_by(incarnation)) or how == "expired"
        for number, slot in enumerate(world.table.slots):
            assert old.slots[number].holder in (slot.holder, incarnation)
        victim.clock.go_on()
        if how == "cut off":
            victim.store.heal()
        await world.settle()
        assert world.lives[victim.name].generation > incarnation.number, "it is back, in a new life"

    run(scenario, seed)


async def happen(world: ClusterWorld, victim: Broker, how: str) -> None:
    match how:
        case "killed":
            await world.kill(victim)
        case "stopped":
            victim.clock.stop()
        case "cut off":
            victim.store.cut()
        case _:
            assert victim.cluster is not None
            lease = victim.cluster._keeper.lease
            assert lease is not None
            victim.store.expire(lease.session)


def test_the_table_stays_small() -> None:
    async def scenario(world: ClusterWorld) -> None:
        for _ in range(6):
            await world.kill(world.lives["b0"])
            await world.settle()
        found = world.data.get(SLOTS_KEY)
        assert found is not None
        assert len(found.value) < 4_000
        assert len(world.table.over) <= len(NAMES)

    run(scenario, 1)
