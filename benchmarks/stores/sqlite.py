"""The embedded metadata store against what it is made of: the bare sqlite3 module, and the bare inotify doorbell.

Expected: a group of 32 updates costs one fdatasync (0.3–0.5 ms) and 32 statements (about 10 µs each), so the way
through the event loop and a thread should cost less than a third. An event costs the doorbell plus one small read.
The rates are the disk's as much as ours; the notes have the processor time per put, which tells more on a busy machine.

    python -m benchmarks.stores.sqlite [--quick]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sqlite3
import subprocess
import sys
import tempfile
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from typing import Literal
from unittest.mock import patch

from anabranch.metadata.interface import ABSENT, ANY, Watch
from anabranch.metadata.sqlite.change_notifier import ChangeNotifier
from anabranch.metadata.sqlite.schema import connect, prepare
from anabranch.metadata.sqlite.store import SqliteStore
from anabranch.metadata.sqlite.writer import Group, Write, Writer
from anabranch.runtime.clock import SystemClock
from benchmarks.support.measure import Outcome, Scene, Series, at_least, at_most, percentile, side_by_side, table

WRITERS = 32
VALUE = b"x" * 200
EVENTS = [("modified", f"/bench/{i}") for i in range(WRITERS)]
Side = Literal["store", "bare"]


def cas_puts(scene: Scene) -> list[Outcome]:
    """Compare-and-set puts of 32 concurrent writers, against the bare module committing the groups of the round before
    it: as many puts in each commit as ours had."""
    turns = scene.size(120, 5)  # many short rounds: a busy machine disturbs some of them, not the median
    number = iter(range(1000))
    cpu_us: dict[Side, list[float]] = {"store": [], "bare": []}
    sizes: list[int] = []  # of the groups that the store committed

    def round_of(side: Side) -> float:
        folder = scene.place(f"{side}-{next(number)}")
        if side == "store":
            sizes.clear()
            seconds, cpu_s = asyncio.run(_store_puts(folder, turns, sizes))
        else:
            seconds, cpu_s = _bare_puts(folder, sizes)
        cpu_us[side].append(cpu_s * 1e6 / (WRITERS * turns))
        return WRITERS * turns / seconds

    ours, bare = side_by_side(scene.size(25, 1), lambda: round_of("store"), lambda: round_of("bare"))
    title = "SQLite CAS puts, 32 concurrent writers"
    floor = Series("bare sqlite3, the same groups", "puts/s", bare)
    notes = {
        "cpu_us_per_put": median(cpu_us["store"]),
        "bare_cpu_us_per_put": median(cpu_us["bare"]),
        "puts_per_group": median(sizes),
    }
    return [Outcome("metadata-sqlite-cas", title, Series("store", "puts/s", ours), floor, at_least(0.7), notes)]


Took = tuple[float, float]
"""Seconds on the wall, seconds of processor time."""


async def _store_puts(folder: Path, turns: int, sizes: list[int]) -> Took:
    commit = Writer._commit

    def counted(self: Writer, writes: list[Write]) -> Group:
        sizes.append(len(writes))
        return commit(self, writes)

    async with SqliteStore(folder, SystemClock()) as store:

        async def write(key: str, version: int) -> None:
            for _ in range(turns):
                version = await store.put(key, VALUE, expected=version)

        keys = [f"/bench/{i}" for i in range(WRITERS)]
        versions = [await store.put(key, VALUE, expected=ABSENT) for key in keys]
        with patch.object(Writer, "_commit", counted):
            start, cpu_start = time.perf_counter(), time.process_time()
            await asyncio.gather(*map(write, keys, versions))
            return time.perf_counter() - start, time.process_time() - cpu_start


def _bare_puts(folder: Path, sizes: Sequence[int]) -> Took:
    """The same rows in the same tables, and nothing else: no event loop, no thread, no lock, no bell."""
    db = _bare_table(folder)
    versions = [0] * WRITERS
    done = 0
    start, cpu_start = time.perf_counter(), time.process_time()
    for size in sizes:
        _bare_group(db, versions, done, size)
        done += size
    took = time.perf_counter() - start, time.process_time() - cpu_start
    db.close()
    return took


def _bare_table(folder: Path) -> sqlite3.Connection:
    db = connect(folder / "metadata.db")
    prepare(db)
    db.execute("PRAGMA wal_autocheckpoint=1000")
    insert = "INSERT INTO node(parent, name, version, created_ms, modified_ms, value) VALUES('/bench', ?, 0, 0, 0, ?)"
    db.executemany(insert, [(str(i), VALUE) for i in range(WRITERS)])
    return db


def _bare_group(db: sqlite3.Connection, versions: list[int], done: int, size: int) -> None:
    update = "UPDATE node SET version=?, modified_ms=?, value=? WHERE parent=? AND name=? AND version=?"
    db.execute("BEGIN IMMEDIATE")
    for number in range(done, done + size):
        i = number % WRITERS
        version = number + 1
        assert db.execute(update, (version, number, VALUE, "/bench", str(i), versions[i])).rowcount == 1
        versions[i] = version
    changes = EVENTS[:size] if size < WRITERS else EVENTS
    db.execute(
        "INSERT INTO event(last, first, changes) VALUES(?,?,?)",
        (done + size, done + 1, json.dumps(changes, separators=(",", ":"))),
    )
    db.execute("COMMIT")


def events(scene: Scene) -> list[Outcome]:
    """From the notification (the commit is done) to the watch of the other process, against the notification alone."""
    count = scene.size(400, 10)
    number = iter(range(1000))
    all_ours: list[float] = []
    all_bare: list[float] = []

    def round_of(side: Side, into: list[float]) -> float:
        found = asyncio.run(_latencies(side, scene.place(f"{side}-events-{next(number)}"), count))
        into += found
        return percentile(found, 0.99) * 1e3

    measured, floor = side_by_side(
        scene.size(7, 1), lambda: round_of("store", all_ours), lambda: round_of("bare", all_bare)
    )
    notes = {"p50_ms": percentile(all_ours, 0.5) * 1e3, "bare_p50_ms": percentile(all_bare, 0.5) * 1e3}
    title = "SQLite event to another process, p99"
    against = Series("bare inotify doorbell", "ms", floor)
    return [Outcome("metadata-sqlite-event", title, Series("store", "ms", measured), against, at_most(3), notes)]


async def _latencies(side: Side, folder: Path, count: int) -> list[float]:
    """Seconds from each notify here to its arrival in another process, one after the other.

    Both read the machine's one monotonic clock; the other process answers each event with its time.
    """
    listener = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.stores.sqlite", "--listen", side, "--dir", str(folder),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert listener.stdin is not None
    async with _ringer(side, folder) as notify:
        await _line(listener)
        found = []
        for number in range(count):
            notified_at = await notify(number)
            found.append(float(await _line(listener)) - notified_at)
    listener.stdin.close()
    await asyncio.wait_for(listener.wait(), 30)
    return found


async def _line(listener: Process) -> bytes:
    assert listener.stdout is not None
    line = await asyncio.wait_for(listener.stdout.readline(), 30)
    assert line, "the listener ended"
    return line


@asynccontextmanager
async def _ringer(side: Side, folder: Path) -> AsyncIterator[Callable[[int], Awaitable[float]]]:
    """A call that makes the bell notify and answers when it did."""
    if side == "bare":
        bare = ChangeNotifier(folder / "bell", folder)
        db = _bare_table(folder)
        versions = [0] * WRITERS

        async def alone(number: int) -> float:
            _bare_group(
                db, versions, number * WRITERS, WRITERS
            )  # the same rhythm: processors that slept over an fsync wake up slowly
            start = time.monotonic()
            bare.notify(b"")
            return start

        yield alone
        bare.close()
        db.close()
        return
    notified_at = 0.0
    notify = ChangeNotifier.notify

    def noted(notifier: ChangeNotifier, message: bytes) -> None:  # the one place that knows when a commit is done
        nonlocal notified_at
        notified_at = time.monotonic()
        notify(notifier, message)

    with patch.object(ChangeNotifier, "notify", noted):
        async with SqliteStore(folder, SystemClock()) as store:

            async def put(number: int) -> float:
                await store.put(f"/e/{number % 10}", VALUE, expected=ANY)
                return notified_at

            yield put


async def _listen(side: Side, folder: Path) -> None:
    """The other process: says when each event came, until its input ends."""
    ended = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    if side == "store":
        async with SqliteStore(folder, SystemClock()) as store:
            watch = store.watch("/e")
            print("ready", flush=True)
            telling = asyncio.ensure_future(_tell(watch))
            await ended
            telling.cancel()
        return
    bell = ChangeNotifier(folder / "bell", folder)
    bell.listen(lambda: print(time.monotonic(), flush=True), lambda: None)
    bell.set_notified(True)
    print("ready", flush=True)
    await ended
    bell.close()


async def _tell(watch: Watch) -> None:
    async for _ in watch:
        print(time.monotonic(), flush=True)


def run(scene: Scene) -> list[Outcome]:
    return [*cas_puts(scene), *events(scene)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--listen", choices=["store", "bare"], help=argparse.SUPPRESS)
    parser.add_argument("--dir", type=Path)
    options = parser.parse_args()
    if options.listen:
        asyncio.run(_listen(options.listen, options.dir))
        return
    with tempfile.TemporaryDirectory(prefix="anabranch-bench-", dir=options.dir) as folder:
        for line in table(run(Scene(Path(folder), options.quick))):
            print(line)


if __name__ == "__main__":
    main()
