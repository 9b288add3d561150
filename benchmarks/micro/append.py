"""Appends to the embedded store against a bare `writev` + `fdatasync` loop of the same bytes on the same disk.

Expected before measuring: with 158-byte entries Python is the limit (about 5 µs per entry); with 10.9 KB entries the
disk is, and the store should reach most of what a bare loop with groups of the same size gives. Prints a table, or JSON
with --json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from anabranch.runtime.blocking import ThreadBlocking
from anabranch.runtime.clock import SystemClock
from anabranch.runtime.disk import RealDisk
from anabranch.storage.interface import IgnoringListener, StorageError, StoredEntry
from anabranch.storage.ledger_store import EmbeddedLedgerStore
from anabranch.storage.settings import StorageSettings


class Pipeline(IgnoringListener):
    """Keeps `window` entries on their way until `total` are durable."""

    def __init__(self, store: EmbeddedLedgerStore, ledgers: int, payload: bytes, total: int, window: int) -> None:
        self._writers = [store.create(number + 1) for number in range(ledgers)]
        self._payload, self._total, self._window = payload, total, window
        self._sent = self._done = 0
        self._finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        store.start(self)

    def appended(self, entries: Sequence[StoredEntry], contexts: Sequence[Any]) -> None:
        self._done += len(entries)

    def append_failed(self, entry: StoredEntry, context: Any, error: StorageError) -> None:
        if not self._finished.done():
            self._finished.set_exception(error)

    def on_group_end(self) -> None:
        if self._done >= self._total:
            if not self._finished.done():
                self._finished.set_result(None)
            return
        writers, payload, count = self._writers, self._payload, len(self._writers)
        upto = min(self._done + self._window, self._total)
        for number in range(self._sent, upto):
            writers[number % count].append(payload, 1, self, None)
        self._sent = max(upto, self._sent)

    async def run(self) -> float:
        start = time.perf_counter()
        self.on_group_end()
        await self._finished
        return time.perf_counter() - start


async def store_rate(directory: Path, size: int, total: int, window: int, ledgers: int) -> tuple[float, float]:
    """Entries per second and entries per group."""
    blocking = ThreadBlocking(2)
    settings = StorageSettings(dir=directory)
    async with EmbeddedLedgerStore(settings, RealDisk(), blocking, SystemClock(), lambda _: 0) as store:
        seconds = await Pipeline(store, ledgers, bytes(size), total, window).run()
        groups = store.stats().groups
    await blocking.close()
    return total / seconds, total / groups


def floor_rate(directory: Path, size: int, total: int, per_group: int) -> float:
    payload = bytes(size)
    fd = os.open(directory / "floor", os.O_RDWR | os.O_CREAT)
    start = time.perf_counter()
    for begin in range(0, total, per_group):
        left = min(per_group, total - begin)
        while left:
            part = min(left, 1024)
            os.writev(fd, [payload] * part)
            left -= part
        os.fdatasync(fd)
    seconds = time.perf_counter() - start
    os.close(fd)
    os.unlink(directory / "floor")
    return total / seconds


def measure(size: int, total: int, window: int, ledgers: int, root: str | None) -> dict[str, float]:
    with tempfile.TemporaryDirectory(dir=root) as name:
        rate, per_group = asyncio.run(store_rate(Path(name), size, total, window, ledgers))
        floor = floor_rate(Path(name), size, total, max(1, round(per_group)))
    return {
        "entry_bytes": size,
        "ledgers": ledgers,
        "window": window,
        "entries_per_s": round(rate),
        "mb_per_s": round(rate * size / 1e6, 1),
        "entries_per_group": round(per_group, 1),
        "floor_entries_per_s": round(floor),
        "ratio": round(rate / floor, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="tiny, only to see that it runs")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--dir", default=None, help="where to write (a directory on the disk to measure)")
    options = parser.parse_args()
    scale = 0.02 if options.quick else 1.0
    cases = [
        (158, 400_000, 20_000, 1),
        (158, 200_000, 20_000, 1000),
        (10_900, 60_000, 700, 1),
        (10_900, 40_000, 700, 10),
        (1_000, 3_000, 1, 1),
    ]
    rows = [
        measure(size, max(int(total * scale), 50), window, ledgers, options.dir)
        for size, total, window, ledgers in cases
    ]
    if options.json:
        json.dump({"micro_append": rows}, sys.stdout, indent=2)
        return
    print(" ".join(f"{name:>20}" for name in rows[0]))
    for row in rows:
        print(" ".join(f"{value:>20}" for value in row.values()))


if __name__ == "__main__":
    main()
