"""Migration of the metadata store: `make bench-metadata-migration` or `python -m benchmarks.metadata_migration`.

`pairs`: three processes on one store in this event loop, 200 metadata writes a second going on, the copy unlimited. The
floor is a bare scan of the source with bare bulk writes into another empty place of the target.
`publish`: three broker processes; a client publishes before and during an adaptive copy, then an unlimited one, at a
tenth of the rate that the brokers sustain before.

Expected before measuring: blocked well below 0.1 s, because only the last changed keys are copied then; the whole at
most twice the floor, which it does plus a scan of the target and a digest of both; publish p99 as before, because the
copy yields when the loop lags.

ANABRANCH_MIGRATION_RECORDS (default 1,000,000, of 500 bytes) and ANABRANCH_MIGRATION_PAIRS (sqlite-etcd,zk-oxia).
"""

from __future__ import annotations

import asyncio
import os
import random
import resource
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path

import pulsar

from anabranch.metadata.interface import ANY, MetadataStore, Versioned
from anabranch.metadata.migration.copy import pages_of
from anabranch.metadata.migration.pacing import UNLIMITED_RECORDS
from anabranch.metadata.open import bare_store
from anabranch.runtime.clock import SystemClock
from benchmarks.stores.etcd import DURABLE as ETCD_DURABLE
from benchmarks.stores.oxia import DURABLE as OXIA_DURABLE
from benchmarks.support import report
from benchmarks.support.measure import Failed, Outcome, Run, Scene, Series, at_least, at_most, percentile
from tests.services import etcd, oxia, zookeeper
from tests.support.faults.migrating_processes import MigratingProcess, processes
from tests.support.processes.broker_process import BrokerProcess
from tests.support.processes.cluster import ClusterProcesses, rest
from tests.support.traffic.stock_client import new_client

NAMES = {"sqlite": "SQLite", "zk": "ZooKeeper", "etcd": "etcd", "oxia": "Oxia"}
VALUE_BYTES = 500
WRITES_PER_S = 200
LOADED_PAGE = 5_000
ZOOKEEPER_HEAP = "4g"  # it holds the tree twice, the floor's too
SUSTAINED_PART = 0.1
PENDING_MAX = 1_000
ROOT = "/admin/v2/metadata/migration"


@contextmanager
def server(kind: str, folder: Path) -> Iterator[str]:
    """URL under which empty stores can be named by one more path element."""
    match kind:
        case "sqlite":
            yield f"sqlite:///{folder}"
        case "zk":
            with zookeeper.cluster(folder, heap=ZOOKEEPER_HEAP) as one:
                yield one.url
        case "etcd":
            with etcd.cluster(folder, flags=ETCD_DURABLE) as one:
                yield one.url
        case _:
            with oxia.cluster(folder, flags=OXIA_DURABLE) as one:
                yield f"{one.url}/default"


async def load(store: MetadataStore, records: int) -> None:
    value = random.Random(1).randbytes(VALUE_BYTES)
    await store.raise_versions(records + 1)
    for start in range(0, records, LOADED_PAGE):
        numbers = range(start, min(start + LOADED_PAGE, records))
        items = [
            (f"/bench/{number // 1000}/{number}", Versioned(value, number + 1, 1_000, 1_000, False))
            for number in numbers
        ]
        await store.bulk_write(items, preserve=True)


async def floor_seconds(source_url: str, target_url: str) -> float:
    clock = SystemClock()
    async with bare_store(source_url, clock) as source, bare_store(target_url, clock) as target:
        await target.raise_versions(1 << 40)
        began = time.monotonic()
        async for page in pages_of(source.bulk_scan("/"), UNLIMITED_RECORDS):  # the sizes that the copy writes
            await target.bulk_write([item for item in page if not item[1].ephemeral], preserve=True)
        return time.monotonic() - began


class Writers:
    """200 writes a second over all processes; the slowest one is kept."""

    def __init__(self, made: list[MigratingProcess]) -> None:
        self._made = made
        self.slowest_s = 0.0
        self.count = 0

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for one in self._made:
                group.create_task(self._write(one))

    async def _write(self, one: MigratingProcess) -> None:
        due = time.monotonic()
        while True:
            due += len(self._made) / WRITES_PER_S
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            began = time.monotonic()
            await one.store.put(f"/load/{self.count % 500}", b"x" * VALUE_BYTES, expected=ANY)
            self.count += 1
            self.slowest_s = max(self.slowest_s, time.monotonic() - began)


async def migration(source_url: str, target_url: str) -> tuple[float, float, float]:
    """Seconds in all, seconds blocked in the slowest process, slowest write."""
    async with processes(source_url) as made:
        writers = Writers(made)
        task = asyncio.ensure_future(writers.run())
        await asyncio.sleep(0.5)
        began = time.monotonic()
        status = await made[0].move(target_url, rate=0)
        whole = time.monotonic() - began
        if status["phase"] != "COMPLETED" or task.done():
            raise Failed(f"{source_url} to {target_url}: {status['error'] or task.exception()}")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return whole, max(one.migration.participant.blocked_s for one in made), writers.slowest_s


def resident_peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def pair(scene: Scene, source: str, target: str, records: int) -> list[Outcome]:
    with ExitStack() as stack:
        one = stack.enter_context(server(source, scene.place(f"from-{source}")))
        two = stack.enter_context(server(target, scene.place(f"to-{target}")))

        async def fill() -> None:
            async with bare_store(f"{one}/source", SystemClock()) as store:
                await load(store, records)

        asyncio.run(fill())
        floor = asyncio.run(floor_seconds(f"{one}/source", f"{two}/floor"))
        before_mb = resident_peak_mb()
        whole, blocked, slowest = asyncio.run(migration(f"{one}/source", f"{two}/target"))
        grown_mb = resident_peak_mb() - before_mb
    name, shown = f"migration-{source}-{target}", f"{NAMES[source]} → {NAMES[target]}"
    notes = {"records": records, "value_bytes": VALUE_BYTES, "writes_per_s": WRITES_PER_S, "slowest_write_s": slowest}
    return [
        Outcome(f"{name}-blocked", f"{shown}: writes blocked", Series("", "s", (blocked,)), None, at_most(1), notes),
        Outcome(
            f"{name}-whole",
            f"{shown}: whole",
            Series("whole", "records/s", (records / whole,)),
            Series("bare scan and write", "records/s", (records / floor,)),
            at_least(0.5),
            {**notes, "seconds": whole},
        ),
        Outcome(f"{name}-memory", f"{shown}: memory", Series("", "MB more", (grown_mb,)), None, at_most(200), notes),
    ]


def pairs(scene: Scene) -> list[Outcome]:
    wanted = os.environ.get("ANABRANCH_MIGRATION_PAIRS") or (
        "sqlite-etcd" if scene.quick else "sqlite-zk,zk-etcd,etcd-oxia,oxia-sqlite,sqlite-etcd,etcd-sqlite"
    )
    records = int(os.environ.get("ANABRANCH_MIGRATION_RECORDS") or scene.size(1_000_000, 2_000))
    found = []
    for number, both in enumerate(wanted.split(",")):
        source, _, target = both.partition("-")
        found += pair(Scene(scene.place(f"pair-{number}"), scene.quick), source, target, records)
    return found


class Publisher(threading.Thread):
    """Open loop: each message has its time, and its latency counts from then."""

    def __init__(self, client: pulsar.Client, per_s: float) -> None:
        super().__init__()
        self._producer = client.create_producer("bench", batching_enabled=False, send_timeout_millis=60_000)
        self._every_s = 1 / per_s
        self._end = threading.Event()
        self.receipts: list[tuple[float, float]] = []  # time, latency

    def run(self) -> None:
        due = time.monotonic()
        while not self._end.is_set():
            due += self._every_s
            time.sleep(max(0.0, due - time.monotonic()))
            self._producer.send_async(b"x" * 1000, self._sent(due))

    def _sent(self, due: float) -> Callable[[object, object], None]:
        def receipt(result: object, _: object) -> None:
            now = time.monotonic()
            if result == pulsar.Result.Ok:
                self.receipts.append((now, now - due))

        return receipt

    def stop(self) -> None:
        self._end.set()
        self.join(60)

    def between(self, begin: float, end: float) -> tuple[float, float]:
        """p99 of the latency and the longest gap between two receipts, in milliseconds."""
        found = [one for one in self.receipts if begin <= one[0] <= end]
        gaps = [later[0] - sooner[0] for sooner, later in pairwise(found)]
        return percentile([latency for _, latency in found], 0.99) * 1000, max(gaps) * 1000


def sustained_rate(client: pulsar.Client, seconds: float) -> float:
    """Confirmed messages per second of one producer that always has `PENDING_MAX` on their way."""
    producer = client.create_producer("bench", batching_enabled=False, max_pending_messages=2 * PENDING_MAX)
    free, confirmed = threading.Semaphore(PENDING_MAX), 0

    def receipt(result: object, _: object) -> None:
        nonlocal confirmed
        confirmed += result == pulsar.Result.Ok
        free.release()

    began, sent = time.monotonic(), 0
    while time.monotonic() < began + seconds:
        free.acquire()
        producer.send_async(b"x" * 1000, receipt)
        sent += 1
    for _ in range(PENDING_MAX):  # all are back
        free.acquire()
    rate = confirmed / (time.monotonic() - began)
    producer.close()
    if confirmed < sent:
        raise Failed(f"{sent - confirmed} of {sent} messages were not stored")
    return rate


def publish(scene: Scene) -> list[Outcome]:
    records = int(os.environ.get("ANABRANCH_MIGRATION_RECORDS") or scene.size(200_000, 1_000))
    folder = scene.place("publish")

    async def fill() -> None:
        async with bare_store(f"sqlite:///{folder}/source", SystemClock()) as store:
            await load(store, records)

    asyncio.run(fill())
    with ClusterProcesses(folder, 3, metadata_url=f"sqlite:///{folder}/source") as cluster:
        brokers = list(cluster.brokers.values())
        client = new_client(cluster.service_url)
        rate = sustained_rate(client, scene.size(5, 1))
        publisher = Publisher(client, per_s=rate * SUSTAINED_PART)
        publisher.start()
        notes = {"records": records, "sustained_messages_per_s": rate, "messages_per_s": rate * SUSTAINED_PART}
        found = []
        try:
            for is_unlimited in (False, True):
                found += published_during(scene, folder, brokers[1], publisher, is_unlimited, notes)
        finally:
            publisher.stop()
            client.close()
    return found


def published_during(
    scene: Scene,
    folder: Path,
    broker: BrokerProcess,
    publisher: Publisher,
    is_unlimited: bool,
    notes: Mapping[str, object],
) -> list[Outcome]:
    """Publishing before and during one move: the goals are for the adaptive copy, the unlimited one is for
    information."""
    time.sleep(1)
    calm = time.monotonic()
    time.sleep(scene.size(10, 2))
    began = time.monotonic()
    target = f"sqlite:///{folder}/target-{int(is_unlimited)}"
    limit = {"rate": 0} if is_unlimited else {}
    rest(broker, "POST", f"{ROOT}/start", {"targetUrl": target, **limit}, within_s=30)
    while not (status := rest(broker, "GET", f"{ROOT}/status")).get("allSwitched"):
        if status["phase"] == "FAILED" or time.monotonic() > began + 600:
            raise Failed(f"the migration of three brokers: {status}")
        time.sleep(0.2)
    ended = time.monotonic()
    before, calm_gap = publisher.between(calm, began)
    during, gap = publisher.between(began, ended)
    notes = {**notes, "seconds": ended - began, "longest_gap_before_ms": calm_gap}
    mark, shown = ("-unlimited", ", unlimited copy") if is_unlimited else ("", "")
    return [
        Outcome(
            f"migration-publish-p99{mark}",
            f"publish p99 during a migration{shown}",
            Series("during", "ms", (during,)),
            Series("before", "ms", (before,)),
            None if is_unlimited else at_most(1.5),
            notes,
        ),
        Outcome(
            f"migration-publish-gap{mark}",
            f"longest gap of receipts{shown}",
            Series("", "ms", (gap,)),
            None,
            None if is_unlimited else at_most(100),
            notes,
        ),
        Outcome(
            f"migration-brokers-blocked{mark}",
            f"three brokers: writes blocked at the coordinator{shown}",
            Series("", "s", (status["blockedSeconds"],)),
            None,
            at_most(1),
            notes,
        ),
    ]


MEASURES: dict[str, Run] = {"pairs": pairs, "publish": publish}
SETTINGS = "servers as in tests/services, on the same machine; etcd and Oxia with fsync, ZooKeeper without"


def main(arguments: list[str] | None = None) -> int:
    return report.run(
        "benchmarks.metadata_migration", MEASURES, (), arguments, mark="-metadata-migration", settings=SETTINGS
    )


if __name__ == "__main__":
    raise SystemExit(main())
