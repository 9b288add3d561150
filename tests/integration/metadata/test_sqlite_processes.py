"""Several processes on one SQLite store: killed at any instant, stopped, forked, started together."""

from __future__ import annotations

import asyncio
import random
import signal
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from anabranch.metadata.interface import ANY, Change, ChangeKind, StoreUnavailable
from anabranch.metadata.sqlite.store import SqliteStore
from anabranch.runtime.clock import SystemClock
from tests.support.processes.sigstop import stop_inside, stop_outside
from tests.support.processes.sqlite_forks import Forks

KILLS = 45


@pytest.fixture
def forks(tmp_path: Path) -> Iterator[Forks]:
    with Forks(tmp_path / "store") as started:
        yield started


def a_store(forks: Forks) -> SqliteStore:
    return SqliteStore(forks.folder, SystemClock())


def check_integrity(folder: Path) -> None:
    db = sqlite3.connect(folder / "metadata.db")
    assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    db.close()


async def test_nothing_acknowledged_is_lost_to_kills_at_any_instant(forks: Forks) -> None:
    chance = random.Random(20261116)
    running: list[tuple[str, int]] = []
    names: list[str] = []

    async def start() -> None:
        names.append(f"w{len(names)}")
        running.append((names[-1], forks.start("write", names[-1])))

    for _ in range(3):
        await start()
    await forks.wait_said("w0", "/kept")
    for number in range(KILLS):
        name, pid = running.pop(chance.randrange(len(running)))
        if number % 3 == 0:
            await forks.wait_said(name, "/kept")  # else it may die before or while it opens
        await asyncio.sleep(chance.random() * 0.05)
        forks.kill(pid)
        await start()
    for _, pid in running:
        forks.kill(pid)
    acknowledged = {line for name in names for line in forks.said(name) if line.startswith("/kept")}
    assert not [line for name in names for line in forks.said(name) if line.startswith("failed")]
    async with a_store(forks) as store:
        found = [key async for key, _ in store.scan("/kept")]
        assert acknowledged - set(found) == set()
        assert len(acknowledged) > KILLS
        watch = store.watch("/live")  # who was killed last may take a moment to die, with a sync under way
        async with asyncio.timeout(30):
            while await store.children("/live"):
                await anext(watch)
        versions = [item.version async for _, item in store.scan("/kept")]
        assert len(set(versions)) == len(versions)
    check_integrity(forks.folder)


async def test_every_event_of_another_process_comes_in_order(forks: Forks) -> None:
    async with a_store(forks) as store:
        watch = store.watch("/kept")
        pid = forks.start("write", "w")
        seen: list[str] = []
        while len(seen) < 300:
            change = await asyncio.wait_for(anext(watch), 30)
            assert change.kind is ChangeKind.CREATED
            seen.append(change.key)
        forks.kill(pid)
        for lane in range(4):
            numbers = [int(key.rpartition("-")[2]) for key in seen if key.startswith(f"/kept/w-{lane}-")]
            assert numbers == list(range(len(numbers)))


async def test_a_killed_process_is_noticed_long_before_its_ttl(forks: Forks) -> None:
    async with a_store(forks) as store:
        watch = store.watch("/live")
        pid = forks.start("write", "w")
        assert await asyncio.wait_for(anext(watch), 30) == Change(ChangeKind.CREATED, "/live/w")
        await forks.wait_said("w", "/kept")
        forks.kill(pid)
        assert await asyncio.wait_for(anext(watch), 10) == Change(ChangeKind.DELETED, "/live/w")
        assert await store.children("/live") == []


async def test_resumed_process_knows_that_its_session_was_lost(forks: Forks) -> None:
    async with a_store(forks) as store:
        pid = forks.start("hold", "h")
        await forks.wait_said("h", "put", 20)
        watch = store.watch("/live")
        await asyncio.to_thread(stop_outside, pid, forks.folder)
        async with asyncio.timeout(30):
            while (await anext(watch)).kind is not ChangeKind.DELETED:
                pass
        reaped_at = time.monotonic()
        puts_before = len(forks.said("h"))
        forks.kill(pid, signal.SIGCONT)
        await forks.wait_said("h", "refused")
        (lost,) = await forks.wait_said("h", "lost")
        assert await store.children("/live") == []
        after = [line.split() for line in forks.said("h")[puts_before:]]
        trusted_until = [float(words[1]) for words in after if len(words) == 3]
        assert max(trusted_until) < reaped_at, "it believed in its session when it was over already"
        assert lost.startswith("lost")
        # at most the one write that was on its way when it was stopped can be said after that
        assert sum(words[0] == "put" for words in after) <= 1


async def test_process_stopped_with_the_writer_lock_blocks_writers(
    forks: Forks,
) -> None:
    """The lock must not be taken over: its pending write would overwrite later writes of others."""
    async with SqliteStore(forks.folder, SystemClock(), lock_wait_ms_max=200) as store:
        pid = forks.start("write", "w")
        await forks.wait_said("w", "/kept")
        await asyncio.to_thread(stop_inside, pid, forks.folder)
        assert set(forks.said("w")) <= {key async for key, _ in store.scan("/kept")}, "reading goes on"
        with pytest.raises(StoreUnavailable):
            await store.put("/mine", b"", expected=ANY)
        forks.kill(pid, signal.SIGCONT)
        async with asyncio.timeout(30):
            while True:
                try:
                    await store.put("/mine", b"", expected=ANY)
                    break
                except StoreUnavailable:
                    continue
        await asyncio.to_thread(stop_outside, pid, forks.folder)
        await store.put("/mine", b"", expected=ANY)


async def test_stopped_process_with_unexpired_session_continues(forks: Forks) -> None:
    pid = forks.start("hold-alone", "h")
    await forks.wait_said("h", "put", 5)
    forks.kill(pid, signal.SIGSTOP)
    await asyncio.sleep(0.8)  # longer than its ttl of 500 ms, and no other process is there
    stopped = len(forks.said("h"))
    forks.kill(pid, signal.SIGCONT)
    await forks.wait_said("h", "reconnected")
    await forks.wait_said("h", "put", stopped + 3)
    assert not [line for line in forks.said("h") if line.startswith("lost")]


async def test_forked_child_does_not_keep_parent_sessions_alive(forks: Forks) -> None:
    async with a_store(forks) as store:
        pid = forks.start("fork", "f")
        (line,) = await forks.wait_said("f", "forked")
        forks.track(int(line.split()[1]))
        (refused,) = await forks.wait_said("f", "child")
        assert "forked process" in refused
        assert await forks.wait_said("f", "inherited") == ["inherited []"]
        assert await store.children("/live") == ["f"]
        watch = store.watch("/live")
        forks.kill(pid)
        assert await asyncio.wait_for(anext(watch), 10) == Change(ChangeKind.DELETED, "/live/f")
    check_integrity(forks.folder)


async def test_processes_that_open_a_new_store_at_once_all_can(forks: Forks) -> None:
    names = [f"c{i}" for i in range(6)]
    for name in names:
        forks.start("come", name)
    for name in names:
        await forks.wait_said(name, "done")
    async with a_store(forks) as store:
        assert await store.children("/came") == names
