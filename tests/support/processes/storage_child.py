"""A process with an embedded store, for tests that kill, stop and resume it. Speaks in lines on stdout.

Run as `python -m tests.support.processes.storage_child` with

    append DIR BROKER [STOP_STEP [NTH]]     appends until it is stopped, fenced or killed
    fill DIR BROKER FILE_BYTES_MAX           appends until full, continues when space is free
    take-over DIR BROKER VICTIM [STOP_STEP]  recovers another broker's log, then exits

At the NTH time a step named STOP_STEP is reached the process stops itself (SIGSTOP) in whatever thread got there.
Lines: `ready`, `acked LEDGER ENTRY`, `failed CODE LEDGER ENTRY`, `fenced`, `recovered N`.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from anabranch.runtime.blocking import ThreadBlocking
from anabranch.runtime.clock import SystemClock
from anabranch.runtime.disk import RealDisk
from anabranch.storage.interface import IgnoringListener, Payload, StorageError, StoredEntry
from anabranch.storage.ledger_store import EmbeddedLedgerStore
from anabranch.storage.settings import StorageSettings

LEDGERS = 3
EXIT_FENCED = 3


def payload_of(ledger: int, entry: int) -> bytes:
    """Every tenth entry is large, so that some groups go directly to the ledger file."""
    size = 30_000 if entry % 10 == 9 else 200
    return f"{ledger}:{entry}:".encode().ljust(size, bytes([entry % 250]))


def publish_time_of(payload: Payload) -> int:
    return int(bytes(payload[:40]).split(b":")[1])


def small_settings(directory: str, broker: str) -> StorageSettings:
    return StorageSettings(
        dir=Path(directory),
        broker_id=broker,
        log_bytes_max=256 << 10,
        direct_bytes_min=40_000,
        write_behind_bytes=16_000,
        write_behind_ms=20,
        write_behind_bytes_max=256 << 10,
        index_step_entries=16,
        reserve_bytes=4096,
        probe_ms=20,
    )


def stopper(step: str, nth: int) -> Callable[[str], None]:
    seen = 0

    def pause_at(name: str) -> None:
        nonlocal seen
        if name == step:
            seen += 1
            if seen == nth:
                os.kill(os.getpid(), signal.SIGSTOP)

    return pause_at


def say(line: str) -> None:
    os.write(1, (line + "\n").encode())


class Talker(IgnoringListener):
    """Reports every outcome and keeps the pipeline full."""

    def __init__(self, store: EmbeddedLedgerStore, first_ledger: int) -> None:
        self._writers = [store.create(first_ledger + number) for number in range(LEDGERS)]
        self._lines: list[str] = []
        self.ended = asyncio.Event()
        store.start(self)

    def appended(self, entries: Sequence[StoredEntry], contexts: Sequence[Any]) -> None:
        self._lines += [f"acked {entry.position.ledger} {entry.position.entry}" for entry in entries]

    def append_failed(self, entry: StoredEntry, context: Any, error: StorageError) -> None:
        self._lines.append(f"failed {error.code} {entry.position.ledger} {entry.position.entry}")

    def on_group_end(self) -> None:
        if self._lines:
            say("\n".join(self._lines))
            self._lines.clear()
        if not self.ended.is_set():
            self.fill()

    def fill(self) -> None:
        for writer in self._writers:
            while writer.next_entry_id - writer.durable_entry_id < 25:
                writer.append(payload_of(writer.ledger_id, writer.next_entry_id), 1, self, None)

    def on_fenced(self) -> None:
        self.ended.set()


async def append(directory: str, broker: str, pause_at: Callable[[str], None]) -> int:
    blocking = ThreadBlocking(2)
    settings = small_settings(directory, broker)
    store = EmbeddedLedgerStore(settings, RealDisk(), blocking, SystemClock(), publish_time_of, pause_at=pause_at)
    async with store:
        say("ready")
        talker = Talker(store, 1)
        talker.fill()
        await talker.ended.wait()
        await asyncio.sleep(0)
    say("fenced")
    await blocking.close()
    return EXIT_FENCED


class RoomListener(IgnoringListener):
    def __init__(self) -> None:
        self.found = asyncio.Event()

    def on_room(self) -> None:
        self.found.set()


class Filler:
    """Appends one entry at a time to ledger after ledger; a full device ends a ledger."""

    def __init__(self, store: EmbeddedLedgerStore) -> None:
        self._store = store
        self._outcome: asyncio.Future[StorageError | None] = asyncio.get_running_loop().create_future()
        self._ledger = 0

    def appended(self, entries: Sequence[StoredEntry], contexts: Sequence[Any]) -> None:
        for entry in entries:
            say(f"acked {entry.position.ledger} {entry.position.entry}")
        self._outcome.set_result(None)

    def append_failed(self, entry: StoredEntry, context: Any, error: StorageError) -> None:
        self._outcome.set_result(error)

    async def fill(self, entries_max: int) -> StorageError | None:
        """Append until this many are durable (returns None), or until the first failure."""
        self._ledger += 1
        writer = self._store.create(self._ledger)
        for entry in range(entries_max):
            self._outcome = asyncio.get_running_loop().create_future()
            writer.append(payload_of(self._ledger, entry), 1, self, None)
            error = await self._outcome
            if error is not None:
                return error
        return None

    async def fill_again(self, entries: int, resumed: asyncio.Event) -> None:
        """The probe does not see a limit on the size of one file, so the first attempts may fail again."""
        is_done = False
        while not is_done:
            await resumed.wait()
            resumed.clear()
            is_done = await self.fill(entries) is None


async def fill(directory: str, broker: str, file_bytes_max: int) -> int:
    """The limit is set here, not by the parent.

    In the parent it would need a real fork (`preexec_fn`), in which fork handlers left by other tests, for example of
    gRPC, run with their files closed.
    """
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes_max, resource.RLIM_INFINITY))
    blocking = ThreadBlocking(2)
    settings = small_settings(directory, broker)
    async with EmbeddedLedgerStore(settings, RealDisk(), blocking, SystemClock(), publish_time_of) as store:
        filler = Filler(store)
        listener = RoomListener()
        store.start(listener)
        error = await filler.fill(100_000)
        say(f"full {error.code if error else 'never'}")
        await filler.fill_again(20, listener.found)
        say("open")
    await blocking.close()
    return 0


async def take_over(directory: str, broker: str, victim: str, pause_at: Callable[[str], None]) -> int:
    blocking = ThreadBlocking(2)
    is_armed = False

    def only_later(name: str) -> None:
        if is_armed:
            pause_at(name)

    settings = small_settings(directory, broker)
    store = EmbeddedLedgerStore(settings, RealDisk(), blocking, SystemClock(), publish_time_of, pause_at=only_later)
    async with store:
        is_armed = True
        recovery = await store.take_over(victim)
        say(f"recovered {recovery.records}")
    await blocking.close()
    return 0


def main() -> int:
    command, directory, broker, *rest = sys.argv[1:]
    if command == "append":
        step, nth = (rest[0] if rest else ""), int(rest[1]) if len(rest) > 1 else 1
        return asyncio.run(append(directory, broker, stopper(step, nth)))
    if command == "fill":
        return asyncio.run(fill(directory, broker, int(rest[0])))
    victim, step = rest[0], rest[1] if len(rest) > 1 else ""
    return asyncio.run(take_over(directory, broker, victim, stopper(step, 1)))


if __name__ == "__main__":
    sys.exit(main())
