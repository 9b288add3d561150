"""Elections under faults: never two valid leaders, terms only grow, and finally a leader exists again."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from anabranch.metadata.recipes.election import Election, Leadership, NotLeader, read_leader, read_term
from tests.support.simulation.metadata_processes import Process, World, is_valid_now, run_seed, seeds

PATH = "/elections/one"


class Acts:
    """Every act of every leader, checked when it happens."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._last: tuple[int, str] = (0, "")
        self.count = 0
        self.terms: set[int] = set()
        self.leading: dict[str, Leadership] = {}
        self.holders: dict[int, str] = {}

    def act(self, process: Process, leadership: Leadership) -> None:
        try:
            leadership.check()
        except NotLeader:
            process.say(f"stopped by the check in term {leadership.term}")
            return
        holder = self.holders.setdefault(leadership.term, process.name)
        self._world.check(holder == process.name, f"{process.name} and {holder} both have term {leadership.term}")
        term, name = self._last
        if self._world.breaks_promises and leadership.term < term:
            process.say(f"is refused by the receiver: term {leadership.term} after {term}")
            return
        self._world.check(
            leadership.term > term or (leadership.term == term and process.name == name),
            f"{process.name} acts in term {leadership.term} after {name} in term {term}",
        )
        others = [
            other
            for other, theirs in self.leading.items()
            if other != process.name and theirs.ended is None and is_valid_now(theirs.lease)
        ]
        self._world.check(not others or self._world.breaks_promises, f"{process.name} acts while {others} could")
        self._last = (leadership.term, process.name)
        self.count += 1
        self.terms.add(leadership.term)


async def lead(process: Process, acts: Acts) -> None:
    chance = process.world.chance
    async with Election(process.keeper, PATH, process.name.encode()) as election:
        while True:
            try:
                leadership = await election.wait_elected(0.5 + chance.random())
            except TimeoutError:
                continue
            process.say(f"leads in term {leadership.term}")
            acts.leading[process.name] = leadership
            while leadership.is_valid:
                acts.act(process, leadership)
                # directly from a timer, which after a stop may fire before the timer that reports an overdue session
                process.clock.call_later(chance.random() * 0.2, partial(acts.act, process, leadership))
                await process.clock.sleep(chance.random() * 0.2)
                acts.act(process, leadership)
                if process.faults.trouble and chance.random() < 0.03:
                    process.say("resigns")
                    await election.resign(1)
                    await process.clock.sleep(chance.random())
                    election.campaign()
            process.say(f"term {leadership.term} is over")


async def scenario(world: World) -> None:
    acts = Acts(world)

    async def work(process: Process) -> None:
        await lead(process, acts)

    for _ in range(world.chance.randrange(2, 5)):
        world.start(work)
    await world.chaos(16, work)
    before = acts.count
    await asyncio.sleep(6)
    world.check(acts.count > before, "no leader although there are no faults")
    world.check(len(acts.terms) > 0, "nothing happened in this world")
    async with world.observer() as store:
        leader, term = await read_leader(store, PATH), await read_term(store, PATH)
        assert leader is not None and term is not None
        world.check(leader.term in acts.terms, "the record names a leader that never acted")
        world.check(term.term >= max(acts.terms), "a term beyond the record")


@pytest.mark.parametrize("span", seeds(500, 10))
def test_never_two_leaders_and_terms_grow(span: range) -> None:
    for seed in span:
        run_seed(seed, scenario)


@pytest.mark.parametrize("span", seeds(100, 2))
def test_terms_fence_even_when_sessions_end_before_their_time(span: range) -> None:
    """Two candidates may then believe to lead briefly; receivers distinguish them by their terms."""
    for seed in span:
        run_seed(seed, scenario, breaks_promises=True)
