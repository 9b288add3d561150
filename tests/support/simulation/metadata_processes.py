"""Several processes on one metadata store, in one thread, under simulated time, with faults drawn from a seed.

A `Process` has its own clock, which can be stopped: then it receives and sends nothing (as after SIGSTOP), while the
store and the other processes continue. Stores are `MemoryStore`s on one `MemoryData`; requests, answers, keep-alives
and events are late or lost, connections are cut, sessions expire, processes are killed and started again.

A failure shows its seed and the last lines of the run.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from anabranch.metadata.memory.data import MemoryData
from anabranch.metadata.memory.faults import Fate, Kind, Loss, Operation
from anabranch.metadata.memory.store import MemoryStore
from anabranch.metadata.recipes.session_keeper import Lease, SessionKeeper
from anabranch.runtime.clock import Timer
from anabranch.runtime.retry_delays import RetryDelays
from tests.support.in_memory.simulated_loop import LoopClock, run_simulated

TTL_MS = 2_000
RETRY_DELAYS = RetryDelays(answer_s=1.0, spread_s=0.05, retry_s=0.05, retry_s_max=0.5)
LINES_SHOWN = 80


class ProcessTimer:
    def __init__(self) -> None:
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class ProcessClock:
    """The world's time, but timers of a stopped process fire only when it resumes, in any order."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.is_stopped = False
        self._missed: list[Callable[[], None]] = []

    def now_ms(self) -> int:
        return 1_000_000_000_000 + int(self.monotonic() * 1000)

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def wake() -> None:
            if not woken.done():
                woken.set_result(None)

        timer = self.call_later(seconds, wake)
        try:
            await woken
        finally:
            timer.cancel()

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Timer:
        timer = ProcessTimer()

        def ring() -> None:
            if timer.is_cancelled:
                return
            if self.is_stopped:
                self._missed.append(ring)
            else:
                callback()

        asyncio.get_running_loop().call_later(seconds, ring)
        return timer

    def stop(self) -> None:
        self.is_stopped = True

    def go_on(self) -> None:
        self.is_stopped = False
        missed, self._missed = self._missed, []
        self._chance.shuffle(missed)
        for ring in missed:
            asyncio.get_running_loop().call_soon(ring)


class SeededFaults:
    """Every operation takes up to `latency_s`; `trouble` is the share of operations with a fault."""

    def __init__(self, chance: random.Random, trouble: float, latency_s: float) -> None:
        self._chance = chance
        self._latency_s = latency_s
        self.trouble = trouble
        self.is_mute = False  # signs of life do not get through, all else does
        self.writes = 0

    def decide(self, operation: Operation) -> Fate:
        chance = self._chance
        if self.is_mute and operation.kind is Kind.KEEP_ALIVE:
            return Fate(loss=Loss.REQUEST)
        self.writes += operation.kind in (Kind.PUT, Kind.DELETE)
        request_s, answer_s = (0.0005 + chance.random() * self._latency_s for _ in range(2))
        if chance.random() >= self.trouble:
            return Fate(request_s, answer_s)
        loss = chance.choice([Loss.REFUSED, Loss.REQUEST, Loss.ANSWER, Loss.LATE, Loss.NOTHING, Loss.NOTHING])
        if loss is Loss.LATE and operation.kind not in (Kind.PUT, Kind.DELETE):
            loss = Loss.NOTHING
        return Fate(request_s + chance.choice([0, 0.05, 0.5, 1.5]), answer_s + chance.choice([0, 0.05, 0.5]), loss)


class Process:
    """One start of one process: a store, a keeper, and the work that `World.spawn` gives it."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.clock = ProcessClock(world.chance)
        self.faults = SeededFaults(world.chance, world.trouble, world.latency_s)
        self.store = MemoryStore(self.clock, world.data, self.faults, name)
        self.keeper = SessionKeeper(
            self.store, name=name, ttl_ms=TTL_MS, clock=self.clock, chance=world.chance, retry_delays=RETRY_DELAYS
        )
        self.is_dead = False
        self.is_cut = False
        self.note: object = None  # whatever the scenario wants to find here afterwards
        self._task: asyncio.Task[None] | None = None

    def run(self, work: Callable[[Process], Coroutine[Any, Any, None]]) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(work))

    async def _run(self, work: Callable[[Process], Coroutine[Any, Any, None]]) -> None:
        try:
            await self.store.open()
            async with self.keeper:
                await work(self)
        except Exception as error:
            self.world.failed(error)

    async def kill(self) -> None:
        """Kill without any notice; sent requests are still delivered."""
        self.is_dead = True
        self.store.crash()
        await self.end()

    async def end(self) -> None:
        self.clock.go_on()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def say(self, what: str) -> None:
        self.world.say(f"{self.name}: {what}")


class World:
    """`breaks_promises`: sessions end before their `valid_until`, which no store may do but an operator can."""

    def __init__(self, seed: int, *, trouble: float, latency_s: float, breaks_promises: bool) -> None:
        self.breaks_promises, self.latency_s = breaks_promises, latency_s
        self.chance = random.Random(seed)
        self.trouble = trouble
        self.clock = LoopClock()
        self.data = MemoryData(self.clock)
        self.processes: list[Process] = []
        self.lines: list[str] = []
        self.error: BaseException | None = None
        self._starts = 0

    def say(self, what: str) -> None:
        self.lines.append(f"{asyncio.get_running_loop().time() - 1000:9.4f}  {what}")

    def failed(self, error: BaseException) -> None:
        self.error = self.error or error

    def check(self, condition: bool, what: str) -> None:
        """Record a failure found in any task; the world raises it."""
        if not condition:
            self.say(f"FAILED: {what}")
            self.failed(AssertionError(what))

    def start(self, work: Callable[[Process], Coroutine[Any, Any, None]]) -> Process:
        self._starts += 1
        process = Process(self, f"p{self._starts}")
        self.processes.append(process)
        process.say("started")
        process.run(work)
        return process

    @property
    def alive(self) -> list[Process]:
        return [process for process in self.processes if not process.is_dead]

    async def chaos(self, seconds: float, work: Callable[[Process], Coroutine[Any, Any, None]]) -> None:
        """Inject faults into processes for a while; afterwards all can reach the store again."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while loop.time() < end and self.error is None:
            await asyncio.sleep(self.chance.random() * 1.0)
            await self._happen(self.chance.choice(self.alive), work)
        for process in self.alive:
            process.faults.trouble, process.faults.is_mute = 0.0, False
            if process.is_cut:
                process.is_cut = False
                process.store.heal()
            process.clock.go_on()
        self.say("all is well again")

    async def _happen(self, process: Process, work: Callable[[Process], Coroutine[Any, Any, None]]) -> None:
        match self.chance.randrange(8):
            case 0 | 1:
                if process.clock.is_stopped:
                    process.say("goes on")
                    process.clock.go_on()
                else:
                    process.say("is stopped")
                    process.clock.stop()
            case 2 | 3:
                process.say("is connected again" if process.is_cut else "is cut off")
                process.is_cut = not process.is_cut
                if process.is_cut:
                    process.store.cut()
                else:
                    process.store.heal()
            case 4:
                process.faults.is_mute = not process.faults.is_mute
                process.say(f"its signs of life {'get lost' if process.faults.is_mute else 'arrive again'}")
                lease = process.keeper.lease
                if self.breaks_promises and lease is not None and not lease.session.is_lost:
                    process.say(f"its session {lease.name} is expired before its time")
                    process.store.expire(lease.session)
            case 5:
                process.say("is killed")
                await process.kill()
                self.start(work)
            case _:
                pass

    @asynccontextmanager
    async def observer(self) -> AsyncIterator[MemoryStore]:
        """A store on the same data, without faults."""
        async with MemoryStore(self.clock, self.data) as store:
            yield store

    async def end(self) -> None:
        for process in self.alive:
            await process.end()
            await process.store.close()


def is_valid_now(lease: Lease) -> bool:
    """Like `lease.is_valid`, but without side effects; also for a stopped process."""
    session = lease.session
    return lease.ended is None and not session.is_lost and asyncio.get_running_loop().time() < session.valid_until


Scenario = Callable[[World], Awaitable[None]]


def run_seed(
    seed: int,
    scenario: Scenario,
    *,
    trouble: float = 0.08,
    latency_s: float = 0.002,
    breaks_promises: bool = False,
) -> None:
    world = World(seed, trouble=trouble, latency_s=latency_s, breaks_promises=breaks_promises)

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
        shown = "\n".join(world.lines[-LINES_SHOWN:])
        pytest.fail(
            f"seed {seed}: {type(error).__name__}: {error}\n{shown}", pytrace=not isinstance(error, AssertionError)
        )


def seeds(count: int, parts: int) -> list[Any]:
    """Seeds 0 … count - 1 in equal parts for `pytest.mark.parametrize`, so that workers share them."""
    size = -(-count // parts)
    spans = [range(start, min(start + size, count)) for start in range(0, count, size)]
    return [pytest.param(span, id=f"seeds-{span.start}-{span.stop - 1}") for span in spans]
