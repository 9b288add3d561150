"""The memory store under faults, in simulated time: several clients of one data, histories checked afterwards."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable

import pytest

from anabranch.metadata.interface import ABSENT, Expected, OutcomeUnknown, Session, SessionEvent, SessionLost, Version
from anabranch.metadata.memory.data import MemoryData
from anabranch.metadata.memory.faults import FINE, Fate, Kind, Loss, Operation
from anabranch.metadata.memory.store import MemoryStore
from tests.support.faults.store_workload import Record, Trial, eventually, fresh, now
from tests.support.in_memory.simulated_loop import LoopClock, run_simulated

SEEDS = range(int(os.environ.get("ANABRANCH_FAULT_ROUNDS", "4")))
CLIENTS = 3
LONG_S = 3.0
WRITES = (Kind.PUT, Kind.DELETE)


class Weather:
    """Faults that a scenario switches on and off: a share of the given operations gets one of the fates."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self.fates: tuple[Fate, ...] = ()
        self.kinds: tuple[Kind, ...] = tuple(Kind)
        self.share = 0.0

    def decide(self, operation: Operation) -> Fate:
        if operation.kind not in self.kinds or self._chance.random() >= self.share:
            return FINE
        return self._chance.choice(self.fates)


class World:
    def __init__(self, seed: int) -> None:
        self.clock = LoopClock()
        self.weather = Weather(seed)
        self.data = MemoryData(self.clock)
        self.stores = [
            MemoryStore(self.clock, self.data, self.weather, name=f"client {number}") for number in range(CLIENTS)
        ]
        self.witness = MemoryStore(self.clock, self.data, name="witness")

    async def spell(self, share: float, *fates: Fate, kinds: tuple[Kind, ...] = tuple(Kind)) -> None:
        """These faults for a while, then none."""
        self.weather.fates, self.weather.kinds, self.weather.share = fates, kinds, share
        await asyncio.sleep(LONG_S)
        self.weather.share = 0.0


async def cuts(world: World) -> None:
    for store in world.stores:
        store.cut()
        await asyncio.sleep(0.3)
        store.heal()


async def all_cut(world: World) -> None:
    for store in world.stores:
        store.cut()
    await asyncio.sleep(LONG_S)
    for store in world.stores:
        store.heal()


async def a_bit_of_everything(world: World) -> None:
    await world.spell(
        0.3,
        Fate(0.5, 0.1),
        Fate(0.0, 1.5),
        Fate(0.3, 0.0, Loss.REQUEST),
        Fate(0.1, 0.2, Loss.ANSWER),
        Fate(loss=Loss.REFUSED),
    )


SCENARIOS: dict[str, Callable[[World], Awaitable[None]]] = {
    "requests refused": lambda world: world.spell(1.0, Fate(loss=Loss.REFUSED)),
    "requests lost": lambda world: world.spell(0.5, Fate(0.2, 0.0, Loss.REQUEST)),
    "answers of writes lost": lambda world: world.spell(0.5, Fate(0.01, 0.1, Loss.ANSWER), kinds=WRITES),
    "all answers lost": lambda world: world.spell(1.0, Fate(0.1, 0.1, Loss.ANSWER)),
    "requests late": lambda world: world.spell(0.5, Fate(1.0, 0.0), Fate(0.05, 0.0), kinds=WRITES),
    "answers late": lambda world: world.spell(0.5, Fate(0.0, 1.0), Fate(0.0, 0.05)),
    "events lost": lambda world: world.spell(0.5, Fate(loss=Loss.ANSWER), kinds=(Kind.EVENT,)),
    "events late": lambda world: world.spell(0.7, Fate(0.4), Fate(0.01), kinds=(Kind.EVENT,)),
    "signs of life lost": lambda world: world.spell(0.8, Fate(loss=Loss.REQUEST), kinds=(Kind.KEEP_ALIVE,)),
    "cut one by one": cuts,
    "all cut": all_cut,
    "a bit of everything": a_bit_of_everything,
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", SCENARIOS)
def test_histories_are_linearizable(name: str, seed: int) -> None:
    async def main() -> Record:
        world = World(seed)
        async with world.witness, world.stores[0], world.stores[1], world.stores[2]:
            # the fates above take at most 2 s on their way: that is this store's only deadline
            trial = Trial(world.stores, world.witness, tree="/reg", deadline_s=2.0, seed=seed, pace_s=0.02)
            return await trial.run(lambda: SCENARIOS[name](world))

    record = run_simulated(main())
    assert len(record.operations) > 100
    if "lost" in name and not name.startswith(("events", "signs")):
        assert record.unknown > 0, "the scenario did not bite"


def test_a_session_expires_while_its_owner_is_cut_off() -> None:
    async def main() -> None:
        world = World(0)
        async with world.witness, world.stores[0] as store:
            session = await store.open_session(2_000)
            events: list[SessionEvent] = []
            session.listen(events.append)
            await store.put("/live", b"1", expected=ABSENT, session=session)
            store.cut()
            sure_until = session.valid_until

            async def is_gone() -> bool:
                return await fresh(world.witness, "/live") is None

            await eventually("the key is gone", is_gone, 2.5)
            assert sure_until <= now()
            store.heal()
            await asyncio.wait_for(session.wait_lost(), 1.0)
            assert events == [SessionEvent.DISCONNECTED, SessionEvent.LOST]
            with pytest.raises(SessionLost):
                await store.put("/live", b"2", expected=ABSENT, session=session)
            again = await store.open_session(2_000)
            await store.put("/live", b"3", expected=ABSENT, session=again)

    run_simulated(main())


def test_checker_detects_blindly_repeated_writes() -> None:
    """The mistake that the checker must find: a write whose answer was lost is sent again."""

    class Blind(MemoryStore):
        async def put(self, key: str, value: bytes, *, expected: Expected, session: Session | None = None) -> Version:
            try:
                return await super().put(key, value, expected=expected, session=session)
            except OutcomeUnknown:
                return await super().put(key, value, expected=expected, session=session)

    async def main() -> None:
        world = World(0)
        world.stores = [Blind(world.clock, world.data, world.weather) for _ in range(CLIENTS)]
        async with world.witness, world.stores[0], world.stores[1], world.stores[2]:
            trial = Trial(world.stores, world.witness, tree="/reg", deadline_s=4.0)
            await trial.run(lambda: SCENARIOS["answers of writes lost"](world))

    with pytest.raises(AssertionError, match="not linearizable"):
        run_simulated(main())
