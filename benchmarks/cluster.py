"""Several brokers on one data directory: `make bench-cluster` or `python -m benchmarks.cluster [--quick] …`.

Takeover (see `takeover`), planned moves, two brokers against one, and what 10,000 topics cost. Expected before
measuring: a planned move closes one topic (one fdatasync or two, two metadata writes) and tells the client where to go:
10-30 ms. Two brokers on two cores that the generator uses too: 1.0-1.3 of one. Ownership is one record of about 10 KB
whatever the number of topics; a join closes a third of the topics, about 1 ms each.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pulsar

from anabranch.cluster.slots import SLOTS, slot_of
from benchmarks.broker import takeover
from benchmarks.broker.takeover import TOPIC, Lookup, brokers
from benchmarks.support import report
from benchmarks.support.measure import Outcome, Run, Scene, Series, at_most
from benchmarks.support.raw_wire import Wire, one_message, publish, send_frames
from tests.support.processes.broker_process import BrokerProcess
from tests.support.processes.cluster import ClusterProcesses, rest
from tests.support.traffic.stock_client import new_client

NAMESPACE = "public/moves"
BUNDLES = 64


class Pace:
    """A stock producer that sends all the time and notes when receipts come."""

    def __init__(self, client: pulsar.Client, topic: str) -> None:
        self._producer = client.create_producer(topic, send_timeout_millis=0, batching_enabled=False)
        self._window = threading.Semaphore(50)
        self._at: list[float] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.wait(0.001):
            self._window.acquire()
            self._producer.send_async(b"x" * 100, self._receipt)

    def _receipt(self, result: pulsar.Result, _: pulsar.MessageId) -> None:
        self._window.release()
        assert result == pulsar.Result.Ok
        self._at.append(time.perf_counter())

    def longest_gap_ms(self, since: float) -> float:
        at = [moment for moment in self._at if moment >= since - 0.2]
        return max((after - before) * 1000 for before, after in pairwise(at))

    def close(self) -> None:
        self._stopping.set()
        self._thread.join()
        self._producer.flush()


def moves(scene: Scene) -> list[Outcome]:
    """The longest time without a receipt while a topic is unloaded, and while its slot moves to another broker."""
    gaps: dict[str, list[float]] = {"unload": [], "move": [], "nothing": []}
    with brokers(scene, "moves", 2) as cluster:
        client = new_client(cluster.service_url)
        rest(cluster.alive[0], "PUT", f"/admin/v2/namespaces/{NAMESPACE}", {"bundles": {"numBundles": BUNDLES}})
        topic = f"persistent://{NAMESPACE}/topic"
        pace = Pace(client, topic)
        for _ in range(scene.size(11, 1)):
            for name in gaps:
                time.sleep(0.5)
                start = time.perf_counter()
                if name == "unload":
                    rest(cluster.alive[0], "PUT", f"/admin/v2/{topic.replace('://', '/')}/unload")
                elif name == "move":
                    move(cluster, topic)
                time.sleep(1.0)
                gaps[name].append(pace.longest_gap_ms(start))
        pace.close()
        client.close()
    return [
        Outcome("unload-gap", "planned unload: longest gap in receipts", ms("unload", gaps), None, at_most(50)),
        Outcome("move-gap", "planned move to another broker: longest gap", ms("move", gaps), None, at_most(50)),
        Outcome("no-gap", "… and while nothing happens", ms("nothing", gaps), None, None),
    ]


def ms(name: str, gaps: dict[str, list[float]]) -> Series:
    return Series(name, "ms", tuple(gaps[name]))


def move(cluster: ClusterProcesses, topic: str) -> None:
    owner = cluster.owner(topic)
    other = next(name for name, broker in cluster.brokers.items() if broker is not owner)
    place = slot_of(topic) * BUNDLES // SLOTS
    low, high = (place << 32) // BUNDLES, min((place + 1 << 32) // BUNDLES, 0xFFFF_FFFF)
    bundle = f"0x{low:08x}_0x{high:08x}"
    rest(cluster.alive[0], "PUT", f"/admin/v2/namespaces/{NAMESPACE}/{bundle}/unload?destinationBroker={other}")


# -- two against one


def throughput(scene: Scene) -> list[Outcome]:
    """Unbatched entries from raw generators, four topics; all on one broker, or spread over two."""
    entries = scene.size(40_000, 200)
    found: dict[int, list[float]] = {1: [], 2: []}
    for size in found:
        with brokers(scene, f"spread-{size}", size) as cluster:
            topics = spread(cluster, 4)
            load(topics, entries // 10)
            for _ in range(scene.size(5, 1)):
                found[size].append(load(topics, entries))
    title = "two brokers against one, 100 B unbatched entries, generator on the same two cores"
    both, alone = (Series(label, "entries/s", tuple(found[size])) for size, label in ((2, "two"), (1, "one")))
    return [Outcome("two-brokers", title, both, alone, None)]


def spread(cluster: ClusterProcesses, count: int) -> list[tuple[BrokerProcess, str]]:
    """Topics, as many of each broker."""
    left = {name: count // len(cluster.brokers) for name in cluster.brokers}
    found: list[tuple[BrokerProcess, str]] = []
    for number in range(10_000):
        if len(found) == count:
            break
        topic = TOPIC.format(f"spread-{number}")
        owner = cluster.owner(topic)
        name = next(name for name, broker in cluster.brokers.items() if broker is owner)
        if left[name]:
            left[name] -= 1
            found.append((owner, topic))
    return found


def load(topics: list[tuple[BrokerProcess, str]], entries: int) -> float:
    """Entries per second over all."""
    frames = send_frames(one_message(100), entries // len(topics))
    wires = [Wire(broker.port) for broker, _ in topics]
    for wire, (_, topic) in zip(wires, topics, strict=True):
        wire.produce(topic)
    start = time.perf_counter()
    with ThreadPoolExecutor(len(wires)) as pool:
        list(pool.map(lambda wire: publish(wire, frames, window=200), wires))
    seconds = time.perf_counter() - start
    for wire in wires:
        wire.close()
    return len(frames) * len(topics) / seconds


# -- many topics


def growth(scene: Scene) -> list[Outcome]:
    """What is stored, and how long a broker takes to join and to leave, with so many loaded topics."""
    outcomes = []
    for count in (scene.size(1_000, 20), scene.size(10_000, 40)):
        with brokers(scene, f"growth-{count}", 2) as cluster:
            make(cluster, count)
            third = BrokerProcess(
                cluster.data, arguments=["--set", "cluster.enabled=true", "--set", "storage.broker_id=b3"], name="b3"
            )
            cluster.brokers["b3"] = third
            start = time.perf_counter()
            third.start(ready_within_s=60)
            cluster.wait_settled(60)
            join = time.perf_counter() - start
            start = time.perf_counter()
            cluster.brokers["b1"].stop(within_s=60)  # whose topics are loaded
            leave = time.perf_counter() - start
            keys = stored(cluster.data)
        notes = {"metadata": keys}
        series = Series("join", "s", (join,)), Series("leave", "s", (leave,))
        start_s = Series("start alone", "s", (third.started_in_s,))
        outcomes += [
            Outcome(f"join-{count}", f"a third broker joins, {count} topics are loaded", series[0], None, None, notes),
            Outcome(f"ready-{count}", "… until it is ready", start_s, None, None),
            Outcome(f"leave-{count}", "… and one of the others leaves, its topics loaded", series[1], None, None),
        ]
        for tree, (number, size) in ((tree, keys[tree]) for tree in ("/cluster", "/managed")):
            title = f"metadata below {tree}: bytes in {number} keys"
            outcomes.append(Outcome(f"bytes-{count}-{tree}", title, Series("size", "B", (float(size),)), None, None))
    return outcomes


def make(cluster: ClusterProcesses, count: int) -> None:
    """Topics with a message each, at their owners."""
    topics = [TOPIC.format(f"growth-{number}") for number in range(count)]
    asking = Lookup(cluster.alive[0])
    for start in range(0, count, 500):
        some = topics[start : start + 500]
        owners = asking.ask(some)
        for broker in cluster.alive:
            own = {n: t for n, (t, o) in enumerate(zip(some, owners, strict=True)) if o == broker.service_url}
            with Wire(broker.port) as wire:
                wire.produce_all(own)
                for producer in own:
                    publish(wire, send_frames(one_message(100), 1, producer_id=producer), window=1)


def stored(data: Path) -> dict[str, tuple[int, int]]:
    """Keys and bytes below each top-level name."""
    import asyncio

    from anabranch.metadata.open import open_store
    from anabranch.runtime.clock import SystemClock

    async def read() -> dict[str, tuple[int, int]]:
        found: dict[str, tuple[int, int]] = {}
        async with open_store(f"sqlite://{data / 'metadata'}", SystemClock()) as store:
            async for key, value in store.scan("/"):
                top = "/" + key.split("/")[1]
                number, size = found.get(top, (0, 0))
                found[top] = number + 1, size + len(key) + len(value.value)
        return found

    return asyncio.run(read())


MEASURES: dict[str, Run] = {
    "takeover": takeover.on_sqlite,
    "served": takeover.served,
    "servers": takeover.on_servers,
    "moves": moves,
    "two-brokers": throughput,
    "growth": growth,
}


def main(arguments: list[str] | None = None) -> int:
    return report.run("benchmarks.cluster", MEASURES, (), arguments, mark="-cluster")


if __name__ == "__main__":
    raise SystemExit(main())
