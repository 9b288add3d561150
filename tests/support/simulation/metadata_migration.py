"""Processes that use one metadata store and move it to others, in one thread, under simulated time, with seeded faults.

Every process writes through its gate, takes part in an election, and now and then starts or aborts a migration between
the stores `memory:a` … `memory:c`. Processes are stopped, cut off from all or one of the stores, killed and started
again with the first URL; requests, answers and events are late or lost; whole stores become unreachable.

The model: every append to a shared list by compare-and-set has an id. An id that was confirmed, or was read back after
an unknown outcome, is in the final list exactly once; an id that was refused is not. A private key of a process has
one of the values that are possible by the answers. At most one leader acts at a time, and terms only grow.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from anabranch.metadata.interface import (
    ABSENT,
    KeyMissing,
    MetadataStore,
    StoreUnavailable,
    Versioned,
    VersionMismatch,
)
from anabranch.metadata.memory.data import MemoryData
from anabranch.metadata.memory.store import MemoryStore
from anabranch.metadata.migration.follow import open_current
from anabranch.metadata.migration.record import is_copied
from anabranch.metadata.migration.service import MetadataMigration
from anabranch.metadata.migration.switching_store import SwitchingStore
from anabranch.metadata.recipes.election import Election, Leadership, NotLeader
from anabranch.metadata.recipes.session_keeper import SessionKeeper
from anabranch.metadata.write_gate import GatedStore, MetadataReadOnly
from anabranch.model.errors import Error
from anabranch.runtime.tasks import TaskOwner
from tests.support.in_memory.simulated_loop import LoopClock, run_simulated
from tests.support.simulation.metadata_processes import LINES_SHOWN, RETRY_DELAYS, TTL_MS, ProcessClock, SeededFaults

URLS = ("memory:a", "memory:b", "memory:c")
FIRST = URLS[0]
LISTS = ("/list/0", "/list/1")
ELECTION = "/elections/one"
SETTLE_S = 300.0


class World:
    def __init__(self, seed: int, trouble: float) -> None:
        self.chance = random.Random(seed)
        self.trouble = trouble
        self.clock = LoopClock()
        self.data = {url: MemoryData(self.clock) for url in URLS}
        self.down: set[str] = set()
        self.processes: list[Process] = []
        self.lines: list[str] = []
        self.error: BaseException | None = None
        self.confirmed: set[str] = set()
        self.refused: set[str] = set()
        self.deleted: set[str] = set()
        self.completed = 0
        self.started = 0
        self.last_act: tuple[int, str] = (0, "")
        self._starts = 0

    def say(self, what: str) -> None:
        self.lines.append(f"{asyncio.get_running_loop().time() - 1000:9.4f}  {what}")

    def check(self, condition: bool, what: str) -> None:
        if not condition:
            self.say(f"FAILED: {what}")
            self.error = self.error or AssertionError(what)

    @property
    def alive(self) -> list[Process]:
        return [process for process in self.processes if not process.is_dead]

    def start(self) -> Process:
        self._starts += 1
        process = Process(self, f"p{self._starts}")
        self.processes.append(process)
        process.say("starts")
        process.begin()
        return process

    def open(self, url: str) -> MemoryStore:
        """Without faults."""
        return MemoryStore(self.clock, self.data[url])

    async def chaos(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while loop.time() < end and self.error is None:
            await asyncio.sleep(self.chance.random() * 1.2)
            await self._happen(self.chance.choice(self.alive))
        self.down.clear()
        for process in self.alive:
            process.recover()
        self.say("all is well again")

    async def _happen(self, process: Process) -> None:
        match self.chance.randrange(10):
            case 0 | 1:
                process.say("goes on" if process.clock.is_stopped else "is stopped")
                if process.clock.is_stopped:
                    process.clock.go_on()
                else:
                    process.clock.stop()
            case 2:
                process.set_cut(set() if process.cut_off else set(URLS))
            case 3:
                process.set_cut(set() if process.cut_off else {self.chance.choice(URLS)})
            case 4:
                process.say("is killed")
                await process.kill()
                self.start()
            case 5:
                self.down = set() if self.down else {self.chance.choice(URLS)}
                self.say(f"unreachable stores: {sorted(self.down)}")
                for one in self.alive:
                    one.apply_cuts()
            case 6 | 7:
                process.begin_migration(self.chance.choice(URLS))
            case 8 if self.chance.random() < 0.3:
                process.begin_abort()
            case _:
                pass


class Process:
    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.clock = ProcessClock(world.chance)
        self.faults = SeededFaults(world.chance, world.trouble, 0.002)
        self.is_dead = False
        self.cut_off: set[str] = set()
        self.stores: list[tuple[str, MemoryStore, list[bool]]] = []
        self.migration: MetadataMigration | None = None
        self.owners: list[TaskOwner] = []
        self.possible: dict[str, set[bytes | None]] = {}
        self.late: dict[str, set[bytes]] = {}
        self.leadership: Leadership | None = None
        self._main: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._count = 0

    def say(self, what: str) -> None:
        self.world.say(f"{self.name}: {what}")

    def open(self, url: str) -> MemoryStore:
        store = MemoryStore(self.clock, self.world.data[url], self.faults, f"{self.name}@{url}")
        self.stores.append((url, store, [False]))
        self.apply_cuts()
        return store

    def apply_cuts(self) -> None:
        for url, store, is_cut in self.stores:
            wanted = url in self.cut_off or url in self.world.down
            if wanted != is_cut[0]:
                is_cut[0] = wanted
                if wanted:
                    store.cut()
                else:
                    store.heal()

    def set_cut(self, urls: set[str]) -> None:
        self.say(f"cut off from {sorted(urls)}")
        self.cut_off = urls
        self.apply_cuts()

    def recover(self) -> None:
        self.faults.trouble, self.faults.is_mute = 0.0, False
        self.cut_off = set()
        self.apply_cuts()
        self.clock.go_on()

    async def kill(self) -> None:
        self.is_dead = True
        for _, store, _ in self.stores:
            store.crash()
        for owner in self.owners:
            owner.cancel()
        await self.end()

    async def end(self) -> None:
        self.clock.go_on()
        tasks = [task for task in (self._main, *self._tasks) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # work -------------------------------------------------------------------------------------------------------------
    def begin(self) -> None:
        self._main = asyncio.get_running_loop().create_task(self._run())

    def _spawn(self, call: Callable[[MetadataMigration], Awaitable[None]], what: str) -> None:
        async def act() -> None:
            assert self.migration is not None
            self.say(what)
            try:
                await call(self.migration)
            except (Error, TimeoutError) as error:
                self.say(f"{what}: refused, {error}")
            else:
                self.say(f"{what}: accepted")

        if self.migration is not None:
            task = asyncio.get_running_loop().create_task(act())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def begin_migration(self, url: str) -> None:
        self.world.started += 1
        self._spawn(lambda migration: migration.start(url, purge_target=True, rate=0), f"starts a migration to {url}")

    def begin_abort(self) -> None:
        self._spawn(lambda migration: migration.abort(), "aborts the migration")

    async def _run(self) -> None:
        try:
            while True:
                try:
                    url, real = await open_current(FIRST, self.open, self.clock.now_ms())
                    break
                except (Error, TimeoutError):
                    await self.clock.sleep(0.5)
            await self._work(url, real)
        except Exception as error:
            self.say(f"ended: {type(error).__name__} {error}")
            self.world.error = self.world.error or error

    async def _work(self, url: str, real: MetadataStore) -> None:
        switching = SwitchingStore(real)
        store = GatedStore(switching)
        migration = MetadataMigration(
            switching,
            store.gate,
            url,
            name=self.name,
            open_target=self.open,
            clock=self.clock,
            chance=self.world.chance,
        )
        self.owners += [migration._tasks, migration.participant._tasks]
        try:
            while True:
                try:
                    await migration.open(has_peers=True)
                    break
                except (Error, TimeoutError):
                    await self.clock.sleep(0.2)
            self.migration = migration
            keeper = SessionKeeper(
                store,
                name=self.name,
                ttl_ms=TTL_MS,
                clock=self.clock,
                chance=self.world.chance,
                retry_delays=RETRY_DELAYS,
            )
            self.owners.append(keeper._tasks)
            async with keeper, asyncio.TaskGroup() as group:
                for key in LISTS:
                    group.create_task(self._append(store, key))
                group.create_task(self._own_keys(store))
                group.create_task(self._lead(keeper))
        finally:
            if not self.is_dead:
                await migration.close()

    async def _append(self, store: GatedStore, key: str) -> None:
        world, chance = self.world, self.world.chance
        while True:
            await self.clock.sleep(chance.random() * 0.6)
            self._count += 1
            op = f"{self.name}.{self._count}"
            try:
                found = await store.get(key)
            except StoreUnavailable:
                continue
            before = "" if found is None else found.value.decode()
            value = f"{before} {op}".encode()
            try:
                await store.put(key, value, expected=ABSENT if found is None else found.version)
                world.confirmed.add(op)
            except (VersionMismatch, MetadataReadOnly):
                world.refused.add(op)
            except StoreUnavailable:
                await self._look(store, key, op)

    async def _look(self, store: GatedStore, key: str, op: str) -> None:
        """After an unknown outcome: what is read back must stay."""
        try:
            if self.world.chance.random() < 0.5:
                await store.sync()
            found = await store.get(key)
        except StoreUnavailable:
            return
        if found is not None and op in found.value.decode().split():
            self.world.confirmed.add(op)

    async def _own_keys(self, store: GatedStore) -> None:
        chance = self.world.chance
        while True:
            await self.clock.sleep(chance.random() * 0.6)
            key = f"/own/{self.name}/{chance.randrange(4)}"
            possible = self.possible.setdefault(key, {None})
            self._count += 1
            value = f"{self._count}".encode()
            try:
                found = await store.get(key)
            except StoreUnavailable:
                continue
            wanted = None if found is not None and chance.random() < 0.4 else value
            before = set(possible)
            possible.add(wanted)  # until it is answered
            try:
                if wanted is None:
                    assert found is not None
                    await store.delete(key, expected=found.version)
                else:
                    await store.put(key, value, expected=ABSENT if found is None else found.version)
                self.possible[key] = {wanted}
            except (VersionMismatch, MetadataReadOnly, KeyMissing):
                self.possible[key] = before
            except StoreUnavailable:
                if wanted is not None and found is None:
                    self.late.setdefault(key, set()).add(wanted)  # may still be applied after a deletion

    async def _lead(self, keeper: SessionKeeper) -> None:
        world = self.world
        async with Election(keeper, ELECTION, self.name.encode()) as election:
            while True:
                with suppress(TimeoutError):
                    self.leadership = await election.wait_elected(1.0)
                leadership = self.leadership
                while leadership is not None and leadership.is_valid:
                    self._act(leadership)
                    await self.clock.sleep(world.chance.random() * 0.4)

    def _act(self, leadership: Leadership) -> None:
        try:
            leadership.check()
        except NotLeader:
            return
        term, name = self.world.last_act
        self.world.check(
            leadership.term > term or (leadership.term == term and name == self.name),
            f"{self.name} leads in term {leadership.term} after {name} in term {term}",
        )
        self.world.last_act = leadership.term, self.name


async def scenario(world: World) -> None:
    async with world.open(FIRST) as store:
        for number in range(40):
            await store.put(f"/fixed/{number}", b"%d" % number, expected=ABSENT)
        fixed = {key: found async for key, found in store.scan("/fixed")}
    for _ in range(world.chance.randrange(2, 4)):
        world.start()
    await asyncio.sleep(world.chance.random() * 2)
    await world.chaos(12)
    await _settle(world)
    if world.error is None:
        await _check(world, fixed)


async def _settle(world: World) -> None:
    """Without faults a migration completes, and every process uses its target."""
    loop = asyncio.get_running_loop()
    end = loop.time() + SETTLE_S
    moved, shown = False, ""
    while loop.time() < end and world.error is None:
        await asyncio.sleep(2)
        movers = [process.migration for process in world.alive if process.migration is not None]
        if len(movers) < len(world.alive):
            shown = f"{[process.name for process in world.alive if process.migration is None]} have not started"
            continue
        try:
            states = [await one.status() for one in movers]
        except Error as error:
            shown = str(error)
            continue
        shown = f"{[(one.url, str(one.participant.stage)) for one in movers]} {states}"
        phases = {str(one["phase"]) for one in states}
        if len({one.url for one in movers}) == 1 and moved and phases == {"COMPLETED"}:
            if all(one["allSwitched"] for one in states):
                return
            continue
        if phases & {"PREPARATION", "COPYING"} or any(one.participant.stage.value != "idle" for one in movers):
            continue
        target = next(url for url in URLS if url not in {one.url for one in movers})
        with suppress(Error, TimeoutError):
            await movers[0].start(target, purge_target=True, rate=0)
            moved = True
    world.check(False, f"no migration completes although there are no faults: {shown}")


async def _check(world: World, fixed: dict[str, Versioned]) -> None:
    await asyncio.sleep(1)
    for process in world.alive:
        await process.end()
    _, live = await open_current(FIRST, world.open, world.clock.now_ms())
    tree = {key: found async for key, found in live.scan("/") if is_copied(key)}
    await live.close()
    for key, found in fixed.items():
        world.check(tree.get(key) == found, f"{key} is {tree.get(key)}, not {found}")
    present = [op for key in LISTS if key in tree for op in tree[key].value.decode().split()]
    world.check(len(present) == len(set(present)), "a write was applied twice")
    lost = world.confirmed.difference(present)
    world.check(not lost, f"confirmed writes are lost: {sorted(lost)[:5]}")
    wrong = world.refused.intersection(present)
    world.check(not wrong, f"refused writes were applied: {sorted(wrong)[:5]}")
    for process in world.processes:
        for key, possible in process.possible.items():
            value = tree[key].value if key in tree else None
            possible = possible | process.late.get(key, set())
            world.check(value in possible, f"{key} is {value!r}, possible were {possible}")
    known = {*fixed, *LISTS, *(key for one in world.processes for key in one.possible)}
    durable = {key for key, found in tree.items() if not found.ephemeral and not key.startswith("/elections/")}
    world.check(durable <= known, f"keys appeared: {sorted(durable - known)[:5]}")
    world.check(bool(present) and world.last_act[0] > 0, "nothing happened in this world")


def run_seed(seed: int, *, trouble: float = 0.03) -> None:
    world = World(seed, trouble)

    async def main() -> None:
        try:
            async with asyncio.timeout(10_000):
                await scenario(world)
        finally:
            for process in world.alive:
                await process.end()
        if world.error is not None:
            raise world.error

    try:
        run_simulated(main())
    except Exception as error:
        shown = "\n".join(world.lines[-LINES_SHOWN:])
        pytest.fail(
            f"seed {seed}: {type(error).__name__}: {error}\n{shown}", pytrace=not isinstance(error, AssertionError)
        )
