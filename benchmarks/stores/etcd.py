"""Bulk writes into etcd against puts with the client library `aetcd`; latency of change events.

Expected before measuring: etcd takes 3,000-7,000 separate puts/s on two cores, most of it per request (gRPC, raft, one
entry in its log each). 127 puts in one transaction pay that once, so the bytes are left: 30,000-60,000 records of 1 KB
per second, 8-15 × as many. An event takes one more message on an open stream: 1-2 ms, most of it the put itself.

    python -m benchmarks.stores.etcd [--quick]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path

import aetcd

from anabranch.metadata.interface import ANY, Item, Versioned
from anabranch.metadata.open import open_store
from anabranch.runtime.clock import SystemClock
from benchmarks.support.measure import Outcome, Scene, Series, at_least, percentile, side_by_side, table
from tests.services import etcd
from tests.services.process import Cluster

VALUE_BYTES = 1000
PUTS_IN_FLIGHT = 128
"""What aetcd was fastest with here; more of them made it slower."""

DURABLE = ("--unsafe-no-fsync=false",)


def records(count: int) -> list[Item]:
    """Values that cannot be compressed, all the same: the server does not look at them."""
    value = os.urandom(VALUE_BYTES)
    return [(f"/bench/{number % 100}/{number}", Versioned(value, 1, 1, 1, False)) for number in range(count)]


def bulk_write(scene: Scene, cluster: Cluster) -> list[Outcome]:
    """Records per second of `bulk_write`, as ordinary writes of new keys, against concurrent puts of the same."""
    items, puts = records(scene.size(100_000, 500)), scene.size(20_000, 200)
    number = iter(range(1000))
    cpu_us: list[float] = []
    read_rates: list[float] = []

    async def ours() -> float:
        async with open_store(f"{cluster.url}/ours-{next(number)}", SystemClock()) as store:
            cpu, start = time.process_time(), time.perf_counter()
            await store.bulk_write(items, preserve=False)
            rate = len(items) / (time.perf_counter() - start)
            cpu_us.append((time.process_time() - cpu) / len(items) * 1e6)
            start = time.perf_counter()
            found = 0
            async for page in store.bulk_scan("/"):
                found += len(page)
            read_rates.append(found / (time.perf_counter() - start))
            assert found == len(items)
            await store.bulk_delete([key for key, _ in items])
            return rate

    async def theirs() -> float:
        place = b"/theirs-%d" % next(number)
        todo = iter(items[:puts])

        async def put_all(client: aetcd.Client) -> None:
            for key, one in todo:
                await client.put(place + key.encode(), one.value)

        async with aetcd.Client(host="127.0.0.1", port=cluster.nodes[0].port) as client:
            start = time.perf_counter()
            await asyncio.gather(*(put_all(client) for _ in range(PUTS_IN_FLIGHT)))
            rate = puts / (time.perf_counter() - start)
            await client.delete_prefix(place)
            return rate

    measured, floor = side_by_side(scene.size(5, 1), lambda: asyncio.run(ours()), lambda: asyncio.run(theirs()))
    title = f"etcd bulk write, {len(items):,} × 1 KB"
    against = Series(f"aetcd puts, {PUTS_IN_FLIGHT} in flight", "records/s", floor)
    notes = {"client_cpu_us_per_record": sorted(cpu_us), "bulk_scan_records_per_s": sorted(read_rates)}
    return [
        Outcome("metadata-etcd-bulk", title, Series("store", "records/s", measured), against, at_least(3), notes),
    ]


def events(scene: Scene, cluster: Cluster) -> list[Outcome]:
    """From the start of a put until another store's watch has it, against the put's own time."""
    count = scene.size(500, 10)

    async def rounds() -> tuple[list[float], list[float]]:
        url = f"{cluster.url}/events"
        event_ms, put_ms = [], []
        async with open_store(url, SystemClock()) as writer, open_store(url, SystemClock()) as listener:
            await listener.sync()
            watch = listener.watch("/")
            for number in range(count):
                start = time.perf_counter()
                coming = asyncio.ensure_future(anext(watch))
                await writer.put(f"/e/{number % 10}", b"x" * 200, expected=ANY)
                put_ms.append((time.perf_counter() - start) * 1e3)
                await asyncio.wait_for(coming, 30)
                event_ms.append((time.perf_counter() - start) * 1e3)
        return event_ms, put_ms

    event, put = asyncio.run(rounds())
    measured = Series("put to event", "ms", (percentile(event, 0.5),))
    floor = Series("the put alone", "ms", (percentile(put, 0.5),))
    notes = {"p99_ms": percentile(event, 0.99), "put_p99_ms": percentile(put, 0.99)}
    return [Outcome("metadata-etcd-event", "etcd put until another store's watch, p50", measured, floor, None, notes)]


def run(scene: Scene) -> list[Outcome]:
    with etcd.cluster(scene.place("metadata-etcd"), flags=DURABLE) as cluster:
        return bulk_write(scene, cluster) + events(scene, cluster)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    with tempfile.TemporaryDirectory(prefix="anabranch-bench-") as folder:
        found = run(Scene(Path(folder), parser.parse_args().quick))
    for connection in table(found):
        sys.stdout.write(connection + "\n")
    for outcome in found:
        sys.stdout.write(f"{outcome.name}: {outcome.notes}\n")


if __name__ == "__main__":
    main()
