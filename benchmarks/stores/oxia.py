"""Puts into Oxia, many in flight against one at a time; bulk writes; latency of change events.

Expected before measuring: one put at a time costs a round trip, an append to the log with its fdatasync and the turn of
a few goroutines and coroutines: 0.7-1.5 ms, so about 1,000 puts/s. With many under way a batch of up to 1,000 pays that
once and the client's own time per put is left (future, protobuf, routing: 30-50 µs): 15,000-30,000 puts/s, 15-30 × as
many. Bulk has no future per record: 40,000 and more. An event comes on an open stream about when the put's answer does.

    python -m benchmarks.stores.oxia [--quick]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from anabranch.metadata.interface import ANY, Item, MetadataStore, Versioned
from anabranch.metadata.open import open_store
from anabranch.runtime.clock import SystemClock
from benchmarks.support.measure import Outcome, Scene, Series, at_least, percentile, side_by_side, table
from tests.services import oxia
from tests.services.process import Cluster

VALUE_BYTES = 200
UNDER_WAY = 1000
DURABLE = ("--wal-sync-data=true",)


def place(cluster: Cluster, name: str, number: Iterator[int]) -> str:
    """An unused prefix."""
    return f"{cluster.url}/default/{name}-{next(number)}"


async def put_many(store: MetadataStore, count: int, under_way: int) -> float:
    """Puts per second, each with a caller that waits for it."""
    value = os.urandom(VALUE_BYTES)
    todo = iter(range(count))

    async def caller() -> None:
        for number in todo:
            await store.put(f"/bench/{number % 100}/{number}", value, expected=ANY)

    start = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(under_way)))
    return count / (time.perf_counter() - start)


def pipelined(scene: Scene, cluster: Cluster) -> list[Outcome]:
    many, few = scene.size(20_000, 200), scene.size(1_000, 20)
    number = iter(range(1000))
    cpu_us: list[float] = []

    async def ours() -> float:
        async with open_store(place(cluster, "many", number), SystemClock()) as store:
            cpu = time.process_time()
            rate = await put_many(store, many, min(UNDER_WAY, many))
            cpu_us.append((time.process_time() - cpu) / many * 1e6)
            return rate

    async def one_by_one() -> float:
        async with open_store(place(cluster, "single", number), SystemClock()) as store:
            return await put_many(store, few, 1)

    measured, floor = side_by_side(scene.size(5, 1), lambda: asyncio.run(ours()), lambda: asyncio.run(one_by_one()))
    title = f"Oxia puts of {VALUE_BYTES} B, {UNDER_WAY:,} under way"
    against = Series("one at a time", "puts/s", floor)
    notes = {"client_cpu_us_per_put": sorted(cpu_us)}
    return [Outcome("metadata-oxia-pipelined", title, Series("store", "puts/s", measured), against, at_least(5), notes)]


def bulk(scene: Scene, cluster: Cluster) -> list[Outcome]:
    """Records of 1 KB per second, written and read back; for information."""
    value = os.urandom(1000)
    count = scene.size(50_000, 500)
    items: list[Item] = [(f"/bench/{i % 100}/{i}", Versioned(value, 1, 1, 1, False)) for i in range(count)]
    number = iter(range(1000))
    read: list[float] = []

    async def once() -> float:
        async with open_store(place(cluster, "bulk", number), SystemClock()) as store:
            start = time.perf_counter()
            await store.bulk_write(items, preserve=False)
            rate = count / (time.perf_counter() - start)
            start = time.perf_counter()
            found = sum([len(page) async for page in store.bulk_scan("/")])
            read.append(found / (time.perf_counter() - start))
            assert found == count
            return rate

    rates = tuple(asyncio.run(once()) for _ in range(scene.size(3, 1)))
    measured = Series("bulk_write", "records/s", rates)
    notes = {"bulk_scan_records_per_s": sorted(read)}
    return [Outcome("metadata-oxia-bulk", f"Oxia bulk write, {count:,} × 1 KB", measured, None, None, notes)]


def events(scene: Scene, cluster: Cluster) -> list[Outcome]:
    """From the start of a put until another store's watch has it, against the put's own time."""
    count = scene.size(500, 10)

    async def rounds() -> tuple[list[float], list[float]]:
        url = place(cluster, "events", iter(range(1)))
        event_ms, put_ms = [], []
        async with open_store(url, SystemClock()) as writer, open_store(url, SystemClock()) as listener:
            watch = listener.watch("/")
            for number in range(count):
                coming = asyncio.ensure_future(anext(watch))
                start = time.perf_counter()
                await writer.put(f"/e/{number % 10}", b"x" * VALUE_BYTES, expected=ANY)
                put_ms.append((time.perf_counter() - start) * 1e3)
                await asyncio.wait_for(coming, 30)
                event_ms.append((time.perf_counter() - start) * 1e3)
        return event_ms, put_ms

    event, put = asyncio.run(rounds())
    measured = Series("put to event", "ms", (percentile(event, 0.5),))
    floor = Series("the put alone", "ms", (percentile(put, 0.5),))
    notes = {"p99_ms": percentile(event, 0.99), "put_p99_ms": percentile(put, 0.99)}
    return [Outcome("metadata-oxia-event", "Oxia put until another store's watch, p50", measured, floor, None, notes)]


def run(scene: Scene) -> list[Outcome]:
    with oxia.cluster(scene.place("metadata-oxia"), flags=DURABLE) as cluster:
        return pipelined(scene, cluster) + bulk(scene, cluster) + events(scene, cluster)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    with tempfile.TemporaryDirectory(prefix="anabranch-bench-") as folder:
        found = run(Scene(Path(folder), parser.parse_args().quick))
    for line in table(found):
        sys.stdout.write(line + "\n")
    for outcome in found:
        sys.stdout.write(f"{outcome.name}: {outcome.notes}\n")


if __name__ == "__main__":
    main()
