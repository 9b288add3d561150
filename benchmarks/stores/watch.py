"""Latency of change events: from a put on one store until the watch of another store yields the event, on all five.

Expected before measuring: the put's own time (memory 0.02 ms, SQLite 0.5-1 ms with its fdatasync, servers 0.7-1.5 ms),
plus a turn of the loop (memory), an inotify event and a small read (SQLite), or one more message on an open stream
(servers; ZooKeeper: and a look at the node). Two stores in one process share its loop, so the listener's work is in it.

    python -m benchmarks.metadata --only watch [--quick]
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager

from anabranch.metadata.interface import ANY, MetadataStore
from anabranch.metadata.memory.store import MemoryStore
from anabranch.metadata.open import open_store
from anabranch.runtime.clock import SystemClock
from benchmarks.stores.etcd import DURABLE as ETCD_DURABLE
from benchmarks.stores.oxia import DURABLE as OXIA_DURABLE
from benchmarks.support.measure import Outcome, Scene, Series, percentile
from tests.services import etcd, oxia, zookeeper

STORES = {"memory": "memory", "sqlite": "SQLite", "zk": "ZooKeeper", "etcd": "etcd", "oxia": "Oxia"}
KEYS = 10


@contextmanager
def place(kind: str, scene: Scene) -> Iterator[str]:
    """The URL of an empty store; servers run as long as it is used."""
    folder = scene.place(f"watch-{kind}")
    match kind:
        case "memory":
            yield "memory:"
        case "sqlite":
            yield f"sqlite:///{folder}"
        case "zk":
            with zookeeper.cluster(folder) as one:
                yield f"{one.url}/watch"
        case "etcd":
            with etcd.cluster(folder, flags=ETCD_DURABLE) as one:
                yield f"{one.url}/watch"
        case _:
            with oxia.cluster(folder, flags=OXIA_DURABLE) as one:
                yield f"{one.url}/default/watch"


def pair(url: str) -> tuple[MetadataStore, MetadataStore]:
    """Two stores with the same data."""
    clock = SystemClock()
    if url == "memory:":
        first = MemoryStore(clock)
        return first, MemoryStore(clock, first.data)
    return open_store(url, clock), open_store(url, clock)


async def latencies(url: str, count: int) -> tuple[list[float], list[float]]:
    """Milliseconds from the start of each put: until its event arrived, and until it was answered."""
    event_ms, put_ms = [], []
    writer, listener = pair(url)
    async with writer, listener:
        for number in range(KEYS):
            await writer.put(f"/e/{number}", b"", expected=ANY)
        await listener.sync()
        watch = listener.watch("/")
        for number in range(count):
            start = time.perf_counter()

            async def next_event_time() -> float:
                await anext(watch)
                return time.perf_counter()

            coming = asyncio.ensure_future(next_event_time())
            await writer.put(f"/e/{number % KEYS}", b"x" * 200, expected=ANY)
            put_ms.append((time.perf_counter() - start) * 1e3)
            async with asyncio.timeout(30):
                event_ms.append((await coming - start) * 1e3)
    return event_ms, put_ms


def watch(kind: str, scene: Scene) -> list[Outcome]:
    with place(kind, scene) as url:
        event, put = asyncio.run(latencies(url, scene.size(1_000, 10)))
    return [
        Outcome(
            f"metadata-watch-{kind}-p{share}",
            f"{STORES[kind]}: put until another store's watch yields it, p{share}",
            Series("put to event", "ms", (percentile(event, share / 100),)),
            Series("the put alone", "ms", (percentile(put, share / 100),)),
            None,
        )
        for share in (50, 99)
    ]


def run(scene: Scene) -> list[Outcome]:
    return [outcome for kind in STORES for outcome in watch(kind, scene)]
