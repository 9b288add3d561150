"""One seed of a cluster's life: chaos, calm, everything served again, everybody gone. See `cluster_world`."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.in_memory.simulated_loop import run_simulated
from tests.support.simulation.cluster import LINES_SHOWN, ClusterWorld

CHAOS_SECONDS = 10.0


async def scenario(world: ClusterWorld) -> None:
    for number in range(world.chance.randrange(2, 5)):
        world.start(f"b{number}")
    await world.chaos(CHAOS_SECONDS)
    world.calm()
    await world.settle()
    if world.error is None:
        await asyncio.sleep(1.0)  # and it stays so, with traffic
        world.check(world.unserved() is None, f"served, but not for long: {world.unserved()}")
        await world.open_everything()
        alive = {(broker.name, broker.generation) for broker in world.lives.values()}
        unnotified = sorted(one for one in world.waiting if one[:2] in alive)
        world.check(not unnotified, f"clients wait for ever: {unnotified[:5]}")


def run_seed(seed: int, *, trouble: float, latency_s: float, test: str) -> ClusterWorld:
    """`test` is what replays it."""
    world = ClusterWorld(seed, trouble=trouble, latency_s=latency_s)

    async def main() -> None:
        try:
            async with asyncio.timeout(10_000):
                await scenario(world)
        finally:
            await world.end()
        if world.error is not None:
            raise world.error

    try:
        run_simulated(main())
    except Exception as error:
        story = "\n".join(world.lines[-LINES_SHOWN:])
        again = f"ANABRANCH_SEED={seed} pytest -s tests/simulation/{test}.py -k one_seed"
        pytest.fail(
            f"seed {seed}: {type(error).__name__}: {error}\n{story}\nagain: {again}",
            pytrace=not isinstance(error, AssertionError),
        )
    return world
