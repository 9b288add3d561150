"""Bulk reads from ZooKeeper against the client library `kazoo`; bulk writes; latency of change events.

Expected before measuring: kazoo reads 2,000-2,500 nodes/s with 1,000 requests pending (one send, one pipe write, three
threads for each). 100 nodes in one multi-read cost one frame, and about 4 µs each to decode: 50,000-150,000 nodes/s,
20 × as many and more, if the server has a separate core. An event costs one more look at the node: 1-3 ms.

    python -m benchmarks.stores.zookeeper [--quick]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections import deque
from pathlib import Path

from kazoo.client import KazooClient
from kazoo.interfaces import IAsyncResult

from anabranch.metadata.interface import ANY, Item, Versioned
from anabranch.metadata.open import open_store
from anabranch.runtime.clock import SystemClock
from benchmarks.support.measure import Outcome, Scene, Series, at_least, percentile, side_by_side, table
from tests.services import zookeeper
from tests.services.process import Cluster

VALUE_BYTES = 1000
FOLDERS = 100
GETS_PENDING = 1000


def records(count: int) -> list[Item]:
    value = os.urandom(VALUE_BYTES)
    return [(f"/bench/{number % FOLDERS}/{number:06}", Versioned(value, 1, 1, 1, False)) for number in range(count)]


def bulk_read(scene: Scene, cluster: Cluster) -> list[Outcome]:
    """Nodes per second of a walk over the whole tree; kazoo walks a fifth of it, which is long enough."""
    items = records(scene.size(100_000, 1_000))
    url = f"{cluster.url}/read"
    cpu_us: list[float] = []

    async def fill() -> float:
        async with open_store(url, SystemClock()) as store:
            start = time.perf_counter()
            await store.bulk_write(items, preserve=False)
            return len(items) / (time.perf_counter() - start)

    async def ours() -> float:
        async with open_store(url, SystemClock()) as store:
            cpu, start = time.process_time(), time.perf_counter()
            found = 0
            async for page in store.bulk_scan("/"):
                found += len(page)
            rate = found / (time.perf_counter() - start)
            cpu_us.append((time.process_time() - cpu) / found * 1e6)
            assert found == len(items)
            return rate

    written = asyncio.run(fill())
    folders = FOLDERS // 5
    measured, floor = side_by_side(
        scene.size(5, 1),
        lambda: asyncio.run(ours()),
        lambda: kazoo_walk(url, [f"/bench/{number}" for number in range(folders)], len(items) * folders // FOLDERS),
    )
    title = f"ZooKeeper bulk read, {len(items):,} × 1 KB"
    against = Series(f"kazoo, {GETS_PENDING} pending", "nodes/s", floor)
    notes = {"client_cpu_us_per_node": sorted(cpu_us), "bulk_write_nodes_per_s": written}
    return [Outcome("metadata-zk-bulk-read", title, Series("store", "nodes/s", measured), against, at_least(5), notes)]


def kazoo_walk(url: str, folders: list[str], expected: int) -> float:
    """All nodes below some folders, as fast as it can: many requests on their way."""
    client = KazooClient(url.removeprefix("zk://"))
    client.start(timeout=30)
    try:
        start = time.perf_counter()
        pending: deque[IAsyncResult] = deque()
        found = 0
        listed = [(folder, client.get_children_async(folder)) for folder in folders]
        for folder, children in listed:
            for name in children.get(timeout=60):
                pending.append(client.get_async(f"{folder}/{name}"))
                if len(pending) >= GETS_PENDING:
                    found += len(pending.popleft().get(timeout=60)[0]) == VALUE_BYTES
        found += sum(len(one.get(timeout=60)[0]) == VALUE_BYTES for one in pending)
        assert found == expected
        return found / (time.perf_counter() - start)
    finally:
        client.stop()
        client.close()


def events(scene: Scene, cluster: Cluster) -> list[Outcome]:
    """From the start of a put until another store's watch has it, against the put's own time."""
    count = scene.size(500, 10)

    async def rounds() -> tuple[list[float], list[float]]:
        url = f"{cluster.url}/events"
        event_ms, put_ms = [], []
        async with open_store(url, SystemClock()) as writer, open_store(url, SystemClock()) as listener:
            watch = listener.watch("/")
            for number in range(count):
                start = time.perf_counter()
                coming = asyncio.ensure_future(anext(watch))
                await writer.put(f"/e{number % 10}", b"x" * 200, expected=ANY)
                put_ms.append((time.perf_counter() - start) * 1e3)
                await asyncio.wait_for(coming, 30)
                event_ms.append((time.perf_counter() - start) * 1e3)
        return event_ms, put_ms

    event, put = asyncio.run(rounds())
    measured = Series("put to event", "ms", (percentile(event, 0.5),))
    floor = Series("the put alone", "ms", (percentile(put, 0.5),))
    notes = {"p99_ms": percentile(event, 0.99), "put_p99_ms": percentile(put, 0.99)}
    return [
        Outcome("metadata-zk-event", "ZooKeeper put until another store's watch, p50", measured, floor, None, notes)
    ]


def run(scene: Scene) -> list[Outcome]:
    with zookeeper.cluster(scene.place("metadata-zk")) as cluster:
        return bulk_read(scene, cluster) + events(scene, cluster)


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
