"""A hundred candidates of one election: a change of leader must not make all of them write."""

from __future__ import annotations

import asyncio

import pytest

from anabranch.metadata.recipes.election import Election
from tests.support.simulation.metadata_processes import Process, World, run_seed

CANDIDATES = 100
WRITES_MAX = 25
"""Per change: three by the winner, and those of candidates that drew about the same moment of the window."""


async def scenario(world: World) -> None:
    elections: dict[str, Election] = {}

    async def work(process: Process) -> None:
        async with Election(process.keeper, "/elections/herd", process.name.encode()) as election:
            elections[process.name] = election
            await process.clock.sleep(1e6)

    def leaders() -> list[tuple[Process, int]]:
        found = [(process, elections[process.name].leadership) for process in world.alive]
        return [(process, one.term) for process, one in found if one is not None and one.is_valid]

    for _ in range(CANDIDATES):
        world.start(work)
    last_term = 0
    for change in range(8):
        await asyncio.sleep(5)
        (found,) = leaders()
        process, term = found
        assert term > last_term
        last_term = term
        writes = sum(one.faults.writes for one in world.processes)
        world.say(f"{process.name} leads in term {term} after {writes} writes")
        world.check(writes <= WRITES_MAX, f"{writes} writes for one change of leader")
        for one in world.processes:
            one.faults.writes = 0
        match change % 3:
            case 0:
                await process.kill()
            case 1:
                assert await elections[process.name].resign(1)
                elections[process.name].campaign()
            case _:
                process.clock.stop()
                await asyncio.sleep(5)
                process.clock.go_on()


@pytest.mark.parametrize("seed", range(3))
def test_leader_change_costs_few_writes(seed: int) -> None:
    run_seed(seed, scenario, trouble=0.0)
