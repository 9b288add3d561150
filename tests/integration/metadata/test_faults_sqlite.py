"""The SQLite store under faults: processes on one directory are killed, stopped, starved; histories are checked."""

from __future__ import annotations

import asyncio
import fcntl
import itertools
import os
import random
import sqlite3
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from anabranch.metadata.interface import SessionEvent, StoreUnavailable
from anabranch.metadata.sqlite.store import SqliteStore
from anabranch.runtime.clock import SystemClock
from tests.support.faults.linearizability import Operation
from tests.support.faults.store_workload import Trial, eventually, fresh
from tests.support.processes.metadata_child import Child, merged

ROUNDS = int(os.environ.get("ANABRANCH_FAULT_ROUNDS", "1"))
DEADLINE_S = 1.0
BEYOND_S = 1.4  # longer than the deadline
TTL_MS = 2_000

pytestmark = pytest.mark.xdist_group("faults-sqlite")


class World:
    """One directory, processes that work on it, and (in the trial) two stores in this process."""

    def __init__(self, folder: Path, keys: Sequence[str], seed: int) -> None:
        self.folder = folder
        self.chance = random.Random(seed)
        self.children: list[Child] = []
        self._names = (f"p{number}" for number in itertools.count())
        self._options = {
            "keys": list(keys),
            "seed": seed,
            "pace_s": 0.005,
            "lock_wait_ms": int(DEADLINE_S * 1000),
            "deadline_s": 60.0,  # a stopped process cannot keep one
        }

    async def spawn(self, **options: Any) -> Child:
        child = Child(self.folder, next(self._names), {**self._options, **options})
        self.children.append(child)
        await child.wait_said("ready")
        return child

    async def some_moment(self) -> None:
        await asyncio.sleep(self.chance.uniform(0.05, 0.25))

    async def finish(self) -> list[Operation]:
        for child in self.children:
            await child.end()
        return merged(self.children)

    def close(self) -> None:
        for child in self.children:
            child.kill9()


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Another process holds the writer lock."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.0005)
        yield
    finally:
        os.close(fd)


async def killed(world: World) -> None:
    for _ in range(2):
        child = await world.spawn()
        await world.some_moment()
        child.kill9()


async def killed_at_the_same_moment(world: World) -> None:
    children = await asyncio.gather(*(world.spawn() for _ in range(3)))
    await world.some_moment()
    for child in children:
        child.process.kill()
    for child in children:
        child.kill9()


async def rolling_kills(world: World) -> None:
    old = await world.spawn()
    for _ in range(2):
        new = await world.spawn()
        old.kill9()
        old = new


async def paused(world: World) -> None:
    """Paused several times, so that it probably holds the lock at least once."""
    child = await world.spawn()
    for _ in range(12):
        child.pause()
        await asyncio.sleep(0.05)
        child.resume()
        await asyncio.sleep(world.chance.uniform(0.001, 0.01))


async def paused_beyond_the_deadline(world: World) -> None:
    child = await world.spawn(pace_s=0.0)
    child.pause()
    await asyncio.sleep(BEYOND_S)
    child.resume()
    await world.some_moment()


async def killed_while_paused(world: World) -> None:
    child = await world.spawn(pace_s=0.0)
    await world.some_moment()
    child.pause()
    await asyncio.sleep(0.2)
    child.kill9()


async def lock_held(world: World) -> None:
    with held(world.folder / "writer.lock"):
        await asyncio.sleep(BEYOND_S)


async def foreign_writer(world: World) -> None:
    """A writer that opened the file with sqlite3, without the writer lock."""
    db = sqlite3.connect(world.folder / "metadata.db", timeout=10, isolation_level=None)
    db.execute("BEGIN IMMEDIATE")
    await asyncio.sleep(BEYOND_S)
    db.execute("ROLLBACK")
    db.close()


async def foreign_reader(world: World) -> None:
    """A reader with an old snapshot, so that the write-ahead log cannot be truncated."""
    db = sqlite3.connect(world.folder / "metadata.db", isolation_level=None)
    db.execute("BEGIN")
    db.execute("SELECT count(*) FROM sqlite_master").fetchall()
    child = await world.spawn()
    await world.some_moment()
    db.execute("ROLLBACK")
    db.close()
    await child.end()


def end_of_log(folder: Path) -> int:
    """End of the last valid frame of the log; the file itself is longer."""
    data = (folder / "metadata.db-wal").read_bytes()
    frame_bytes = 24 + int.from_bytes(data[8:12], "big")
    end = 32
    while data[end + 8 : end + 16] == data[16:24]:
        end += frame_bytes
    return end


async def disk_full_for_one(world: World) -> None:
    child = await world.spawn(file_bytes_max=end_of_log(world.folder) + 50_000)

    async def has_failed() -> bool:
        return any(word == "e" and ("unknown" in rest or rest == "null") for word, rest in child.said())

    await eventually("a write fails", has_failed, 20)
    await child.end()


async def come_and_go(world: World) -> None:
    for _ in range(3):
        child = await world.spawn()
        await world.some_moment()
        await child.end()


async def crowd(world: World) -> None:
    await asyncio.gather(*(world.spawn(pace_s=0.0) for _ in range(3)))
    await asyncio.sleep(0.5)


SCENARIOS: dict[str, Callable[[World], Awaitable[None]]] = {
    "killed": killed,
    "killed at the same moment": killed_at_the_same_moment,
    "rolling kills": rolling_kills,
    "paused": paused,
    "paused beyond the deadline": paused_beyond_the_deadline,
    "killed while paused": killed_while_paused,
    "writer lock held": lock_held,
    "foreign writer": foreign_writer,
    "foreign reader": foreign_reader,
    "disk full for one": disk_full_for_one,
    "processes come and go": come_and_go,
    "crowd": crowd,
}


def new_store(folder: Path) -> SqliteStore:
    return SqliteStore(folder, SystemClock(), int(DEADLINE_S * 1000))


@pytest.mark.parametrize("seed", range(ROUNDS))
@pytest.mark.parametrize("name", SCENARIOS)
async def test_histories_are_linearizable(name: str, seed: int, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    async with new_store(folder) as one, new_store(folder) as two:
        trial = Trial([one], two, tree="/reg", deadline_s=DEADLINE_S, seed=seed, pace_s=0.005)
        world = World(folder, trial.keys, seed)
        try:
            record = await trial.run(lambda: SCENARIOS[name](world), others=world.finish)
        finally:
            world.close()
    assert len(record.operations) > 50
    with sqlite3.connect(folder / "metadata.db") as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


async def test_ephemeral_keys_of_a_killed_process_are_gone(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    world = World(folder, ["/reg/a"], 0)
    try:
        async with new_store(folder) as store:
            child = await world.spawn(live="/live", ttl_ms=TTL_MS)
            assert await fresh(store, "/live") is not None
            child.kill9()

            async def is_gone() -> bool:
                return await fresh(store, "/live") is None

            await eventually("the key is gone", is_gone, TTL_MS / 1000 + 15)
    finally:
        world.close()


async def test_open_does_not_wait_for_ever(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    async with new_store(folder):
        pass
    with held(folder / "writer.lock"), pytest.raises(StoreUnavailable):
        async with asyncio.timeout(DEADLINE_S + 20):
            await new_store(folder).open()
    async with new_store(folder):
        pass


async def test_ephemeral_keys_of_a_hung_process_are_gone_after_their_time(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    world = World(folder, ["/reg/a"], 0)
    try:
        async with new_store(folder) as store:
            child = await world.spawn(live="/live", ttl_ms=TTL_MS)
            await asyncio.to_thread(child.pause_outside)

            async def is_gone() -> bool:
                return await fresh(store, "/live") is None

            await eventually("the key is gone", is_gone, TTL_MS / 1000 + 15)
            child.resume()
            await child.wait_said("session", SessionEvent.LOST)
    finally:
        world.close()
