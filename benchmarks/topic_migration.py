"""Migrations of regular topics: `make bench-topic-migration` or `python -m benchmarks.topic_migration [--quick] …`.

Three brokers as processes, SQLite. Expected before measuring: a partition costs its owner a mark in its record, a child
with ten cursors and a seal, two metadata writes and one or two group commits, 2-3 ms of one core. So 64 partitions take
about 0.15 s and 1,024 about 2 s on two free cores. The pause of a producer is that of a split, once for each of its
partitions, and they overlap: 10-30 ms. No entry is copied: the children are empty, and the brokers write some hundred
bytes per partition, however much it stores.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import anabranch
from benchmarks.support import report
from benchmarks.support.measure import Outcome, Run, Scene, Series, at_most, process_cpu_seconds
from tests.support.processes.cluster import ClusterProcesses, rest

NAMESPACE = "public/default"
SUBSCRIPTIONS = 10
PAUSE_PARTITIONS = 16
CALL_SECONDS = 300.0


@contextmanager
def brokers(scene: Scene, name: str) -> Iterator[ClusterProcesses]:
    with ClusterProcesses(scene.place(name), scene.size(3, 1)) as found:
        yield found


def regular(cluster: ClusterProcesses, method: str, path: str, body: object = None) -> Any:
    return rest(cluster.alive[0], method, f"/admin/v2/persistent/{NAMESPACE}/{path}", body, within_s=CALL_SECONDS)


def make_topic(cluster: ClusterProcesses, topic: str, partitions: int, subscriptions: int) -> None:
    regular(cluster, "PUT", f"{topic}/partitions", partitions)
    for number in range(subscriptions):
        regular(cluster, "PUT", f"{topic}/subscription/s{number}")


def migrate(cluster: ClusterProcesses, topic: str) -> float:
    """Seconds until the command is answered."""
    start = time.perf_counter()
    path = f"/admin/v2/scalable-topics/{NAMESPACE}/{topic}/migrate-to-scalable"
    rest(cluster.alive[0], "POST", path, within_s=CALL_SECONDS)
    return time.perf_counter() - start


def cpu_seconds(cluster: ClusterProcesses) -> float:
    return sum(process_cpu_seconds(broker.pid) for broker in cluster.alive)


def command(scene: Scene) -> list[Outcome]:
    sizes = {1: 0.1, 64: 0.5, 1024: 5.0} if not scene.quick else {1: 0.1, 4: 0.5}
    outcomes = []
    with brokers(scene, "command") as cluster:
        for partitions, goal in sizes.items():
            seconds = []
            cpu = 0.0
            for number in range(scene.size(3 if partitions < 1024 else 1, 1)):
                topic = f"t{partitions}-{number}"
                make_topic(cluster, topic, partitions, SUBSCRIPTIONS)
                before = cpu_seconds(cluster)
                seconds.append(migrate(cluster, topic))
                cpu = max(cpu, cpu_seconds(cluster) - before)
            title = f"{partitions} partitions, {SUBSCRIPTIONS} subscriptions each, three brokers"
            series, notes = Series("command", "s", tuple(seconds)), {"CPU seconds of all brokers": round(cpu, 2)}
            outcomes.append(Outcome(f"command-{partitions}", title, series, None, at_most(goal), notes))
    return outcomes


def pause(scene: Scene) -> list[Outcome]:
    """A pipelined producer of the SDK, attached by the old name."""
    gaps: list[float] = []
    with brokers(scene, "pause") as cluster:
        for number in range(scene.size(5, 1)):
            topic = f"p{number}"
            make_topic(cluster, topic, PAUSE_PARTITIONS, 1)
            gaps.append(asyncio.run(longest_gap_ms(cluster, topic)))
    title = f"longest producer pause, {PAUSE_PARTITIONS} partitions"
    return [Outcome("pause", title, Series("pause", "ms", tuple(gaps)), None, at_most(50), {"max": max(gaps)})]


def copied(scene: Scene) -> list[Outcome]:
    """Bytes in the children of a topic with data, and what the brokers wrote meanwhile."""
    with brokers(scene, "copied") as cluster:
        make_topic(cluster, "data", PAUSE_PARTITIONS, 1)
        count = scene.size(50_000, 100)
        asyncio.run(publish(cluster, "data", count))
        before = written_bytes(cluster)
        migrate(cluster, "data")
        written = written_bytes(cluster) - before
        stats = rest(cluster.alive[0], "GET", f"/admin/v2/scalable/{NAMESPACE}/data/stats")["segments"]
    bytes_of = {int(key): int(one["bytes"]) for key, one in stats.items()}
    moved = float(sum(size for key, size in bytes_of.items() if key >= PAUSE_PARTITIONS))
    notes = {"stored": sum(bytes_of.values()), "written by all brokers, metadata included": written}
    series = Series("bytes in children", "B", (moved,))
    return [Outcome("copied", f"bytes copied, {count} messages of 1 kB", series, None, at_most(0), notes)]


async def publish(cluster: ClusterProcesses, topic: str, count: int) -> None:
    async with (
        anabranch.connect(cluster.service_url) as client,
        client.producer(f"persistent://{NAMESPACE}/{topic}") as producer,
    ):
        for number in range(count):
            await producer.send(b"x" * 1000, key=f"k{number}") if number % 500 == 0 else producer.send_nowait(
                b"x" * 1000, key=f"k{number}"
            )
        await producer.flush(timeout=60.0)


def written_bytes(cluster: ClusterProcesses) -> int:
    found = 0
    for broker in cluster.alive:
        lines = Path(f"/proc/{broker.pid}/io").read_text().splitlines()
        found += next(int(line.split()[1]) for line in lines if line.startswith("wchar"))
    return found


async def longest_gap_ms(cluster: ClusterProcesses, topic: str) -> float:
    """The longest time between two receipts."""
    at: list[float] = []
    async with (
        anabranch.connect(cluster.service_url) as client,
        client.producer(f"persistent://{NAMESPACE}/{topic}") as producer,
    ):
        is_over = False

        async def send() -> None:
            number = 0
            while not is_over:
                future = producer.send_nowait(b"x" * 100, key=f"k{number % 100}")
                future.add_done_callback(lambda done: at.append(time.perf_counter()) if not done.exception() else None)
                number += 1
                await asyncio.sleep(0.0005)
            await producer.flush(timeout=60.0)

        publishing = asyncio.ensure_future(send())
        await asyncio.sleep(1.0)
        since = time.perf_counter()
        await asyncio.to_thread(migrate, cluster, topic)
        await asyncio.sleep(1.0)
        is_over = True
        await publishing
    moments = [moment for moment in at if moment >= since - 0.1]
    return max((after - before) * 1000 for before, after in pairwise(moments))


MEASURES: dict[str, Run] = {"command": command, "pause": pause, "copied": copied}


def main(arguments: list[str] | None = None) -> int:
    return report.run("benchmarks.topic_migration", MEASURES, (), arguments, mark="-topic-migration")


if __name__ == "__main__":
    raise SystemExit(main())
