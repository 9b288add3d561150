"""The broker on bookies: `make bench-bookkeeper` or `python -m benchmarks.bookkeeper`.

Three bookies with synced journals and a ZooKeeper, all on this machine; three copies, two confirm. The floor is the
wire protocol alone: the same entries over one connection per bookie, with no ledger machine, no broker and no client.

Expected before measuring. `adds`: the port costs 10-15 µs per entry above the floor (machine, effects, delivery), so
0.4 for 100 B and 0.8 for 10 KB, where bookies are the limit. `publish`: the broker's own 10 µs per entry in addition,
so 0.3 for 1 × 100 B and 0.6 for 100 × 100 B. `blocking`: a bare add is a round trip and a journal sync; broker and
stock client add 0.3 ms, so 1.3. `catch-up`: batches of 1 MiB, checked and split into frames, so 0.5 of bare batch
reads. `killed`: a bookie that is killed closes its connections, and the next write fails at once: below 100 ms.

Pulsar's broker on the same bookies: not there yet.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

from anabranch.runtime.clock import SystemClock
from anabranch.storage.bookkeeper import packets
from anabranch.storage.bookkeeper.bookies import Bookies
from anabranch.storage.bookkeeper.entry_body import body_head
from anabranch.storage.bookkeeper.ledger_store import BookKeeperLedgerStore
from anabranch.storage.bookkeeper.packets import Flag
from anabranch.storage.bookkeeper.settings import parse_storage_url
from anabranch.storage.interface import StorageError, StoredEntry
from benchmarks.broker.catch_up import fill
from benchmarks.broker.publish import Load
from benchmarks.support import report
from benchmarks.support.measure import (
    Failed,
    Outcome,
    Run,
    Scene,
    Series,
    at_most,
    percentile,
    process_cpu_seconds,
    side_by_side,
)
from benchmarks.support.raw_wire import Wire, one_batch, one_message, receive_entries, send_frames
from tests.services import bookkeeper
from tests.support.processes.broker_process import HOST, BrokerProcess
from tests.support.traffic.stock_client import new_client

QUORUMS = "ensemble=3&write-quorum=3&ack-quorum=2"
ACKS = 2


class Window:
    """Keeps `size` adds in flight, and ends when all are confirmed."""

    def __init__(self, count: int, size: int) -> None:
        self.left, self._free = count, size
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._more = asyncio.Event()

    async def take(self) -> None:
        while not self._free and not self.done.done():
            self._more.clear()
            await self._more.wait()
        self._free -= 1

    def confirmed(self, count: int) -> None:
        self._free += count
        self.left -= count
        self._more.set()
        if not self.left and not self.done.done():
            self.done.set_result(None)

    def fail(self, reason: str) -> None:
        if not self.done.done():
            self.done.set_exception(Failed(reason))
            self._more.set()


class Bare:
    """Adds of one ledger over the connections alone: an entry counts when two of three bookies have it."""

    def __init__(self, window: Window) -> None:
        self._window, self._acks = window, dict[int, int]()

    def on_add(self, bookie: str, entry: int, code: int) -> None:
        if code != packets.Code.OK:
            self._window.fail(f"{bookie} answered {code}")  # ignored after the end: third copies may be on their way
            return
        acks = self._acks[entry] = self._acks.get(entry, 0) + 1
        if acks == ACKS:
            self._window.confirmed(1)


class Sink:
    def __init__(self, window: Window) -> None:
        self._window = window

    def appended(self, entries: Sequence[StoredEntry], contexts: Sequence[Any]) -> None:
        self._window.confirmed(len(entries))

    def append_failed(self, entry: StoredEntry, context: Any, error: StorageError) -> None:
        self._window.fail(str(error))


class Client:
    """Both ways to write, in one event loop on a thread of its own."""

    def __init__(self, bookies: bookkeeper.BookKeeper) -> None:
        self._url = parse_storage_url(f"{bookies.url}?{QUORUMS}")
        self._addresses = {one.address: (HOST, one.port) for one in bookies.bookies[:3]}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.run(self._open())

    def run(self, work: Awaitable[Any]) -> Any:
        async def waited() -> Any:
            return await work

        return asyncio.run_coroutine_threadsafe(waited(), self._loop).result(300)

    async def _open(self) -> None:
        clock = SystemClock()
        self._bookies = Bookies(clock, self._addresses.__getitem__, request_s=10)
        self._store = BookKeeperLedgerStore(self._url, clock, Random(1), lambda payload: 0, cache_bytes=1 << 20)
        await self._store.__aenter__()

    def close(self) -> None:
        self.run(self._store.close())
        self.run(self._bookies.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def bare_adds(self, payload: bytes, count: int, window_size: int) -> float:
        """Entries per second."""
        ledger, window, key = await self._store.allocate(), Window(count, window_size), packets.master_key(b"")
        for bookie in self._addresses:
            await self._bookies.connect(bookie)
        receiver, began = Bare(window), time.perf_counter()
        for entry in range(count):
            await window.take()
            head = body_head(ledger, entry, entry - 1, (entry + 1) * len(payload), payload)
            for bookie in self._addresses:
                self._bookies.add(bookie, ledger, entry, key, head, payload, Flag.NONE, receiver)
        await window.done
        return count / (time.perf_counter() - began)

    async def port_adds(self, payload: bytes, count: int, window_size: int) -> float:
        writer = self._store.create(await self._store.allocate())
        window = Window(count, window_size)
        sink, began = Sink(window), time.perf_counter()
        for _ in range(count):
            await window.take()
            writer.append(payload, 1, sink, None)
        await window.done
        seconds = time.perf_counter() - began
        await writer.seal()
        self._store.evict(writer.ledger_id)
        return count / seconds

    async def bare_one_by_one(self, payload: bytes, count: int) -> float:
        """Median time of an add with nothing else in flight, in µs."""
        ledger, key, times = await self._store.allocate(), packets.master_key(b""), []
        for entry in range(count):
            window, began = Window(1, 1), time.perf_counter()
            head = body_head(ledger, entry, entry - 1, (entry + 1) * len(payload), payload)
            receiver = Bare(window)
            for bookie in self._addresses:
                self._bookies.add(bookie, ledger, entry, key, head, payload, Flag.NONE, receiver)
            await window.done
            times.append((time.perf_counter() - began) * 1e6)
        return percentile(times, 0.5)

    async def bare_reads(self, payload: bytes, count: int) -> Callable[[], Awaitable[float]]:
        """Writes a ledger; what is returned reads it in batches, in bytes per second."""
        ledger, window, key = await self._store.allocate(), Window(count, 256), packets.master_key(b"")
        receiver = Bare(window)
        for entry in range(count):
            await window.take()
            head = body_head(ledger, entry, entry - 1, (entry + 1) * len(payload), payload)
            for bookie in self._addresses:
                self._bookies.add(bookie, ledger, entry, key, head, payload, Flag.NONE, receiver)
        await window.done
        bookie = next(iter(self._addresses))

        async def read() -> float:
            at, began = 0, time.perf_counter()
            while at < count:
                answer = await self._bookies.batch_read(bookie, ledger, at, count - at, 1 << 20)
                if not answer.bodies:
                    raise Failed(f"entry {at}: {answer.code}")
                at += len(answer.bodies)
            return count * len(payload) / (time.perf_counter() - began)

        return read


@contextmanager
def bookies_of(scene: Scene, name: str, size: int = 3) -> Iterator[bookkeeper.BookKeeper]:
    with bookkeeper.cluster(scene.place(name), size=size) as made:
        yield made


@contextmanager
def broker_on(bookies: bookkeeper.BookKeeper, folder: Path) -> Iterator[BrokerProcess]:
    options = ["--metadata", f"zk://{bookies.hosts}/bench", "--storage", f"{bookies.url}?{QUORUMS}"]
    with BrokerProcess(folder / "data", arguments=options) as broker:
        yield broker


def adds(scene: Scene) -> list[Outcome]:
    outcomes = []
    with bookies_of(scene, "adds") as bookies:
        client = Client(bookies)
        for name, size, window, full in (("100", 100, 2_000, 60_000), ("10k", 10_240, 500, 10_000)):
            payload, count = b"x" * size, scene.size(full, 500)

            def through_port(payload: bytes = payload, count: int = count, window: int = window) -> float:
                return float(client.run(client.port_adds(payload, count, window)))

            def bare(payload: bytes = payload, count: int = count, window: int = window) -> float:
                return float(client.run(client.bare_adds(payload, count, window)))

            bare()
            through_port()
            rates, floors = side_by_side(scene.size(5, 1), through_port, bare)
            outcomes.append(
                Outcome(
                    f"bookkeeper-adds-{name}",
                    f"adds through the storage port, {size:,} B, {window:,} in flight",
                    Series("port", "entries/s", rates),
                    Series("bare adds", "entries/s", floors),
                    None,
                )
            )
        client.close()
    return outcomes


def publish(scene: Scene) -> list[Outcome]:
    outcomes = []
    folder = scene.place("publish")
    with bookies_of(scene, "publish") as bookies, broker_on(bookies, folder) as broker:
        client = Client(bookies)
        for name, title, payload, messages, window, full in (
            ("small", "1 × 100 B entries", one_message(100), 1, 4_000, 40_000),
            ("large", "100 × 100 B entries", one_batch(100, 100), 100, 256, 5_000),
        ):
            count = scene.size(full, 500)
            load = Load(broker.port, broker.pid, send_frames(payload, count, messages), window)

            def bare(payload: bytes = payload, count: int = count, window: int = window) -> float:
                return float(client.run(client.bare_adds(payload, count, window)))

            load.rate()
            bare()
            rates, floors = side_by_side(scene.size(5, 1), load.rate, bare)
            outcomes.append(
                Outcome(
                    f"bookkeeper-publish-{name}",
                    f"durable publish on bookies, {title}",
                    Series("broker", "entries/s", rates),
                    Series("bare adds", "entries/s", floors),
                    None,
                    {"window": window, "entries": count, "broker_cpu_us_per_entry": load.cpu_us[1:]},
                )
            )
        client.close()
    return outcomes


def blocking(scene: Scene) -> list[Outcome]:
    rounds, count = scene.size(5, 1), scene.size(300, 20)
    folder = scene.place("blocking")
    with bookies_of(scene, "blocking") as bookies, broker_on(bookies, folder) as broker:
        client, stock = Client(bookies), new_client(broker.service_url)
        producer = stock.create_producer("bench-blocking", batching_enabled=False)

        def through_broker() -> float:
            times = []
            for _ in range(count):
                began = time.perf_counter()
                producer.send(b"x" * 100)
                times.append((time.perf_counter() - began) * 1e6)
            return percentile(times, 0.5)

        def bare() -> float:
            return float(client.run(client.bare_one_by_one(b"x" * 100, count)))

        through_broker()
        bare()
        measured, floors = side_by_side(rounds, through_broker, bare)
        stock.close()
        client.close()
    return [
        Outcome(
            "bookkeeper-blocking",
            "blocking send p50 on bookies, stock client",
            Series("stock", "µs", measured),
            Series("one bare add", "µs", floors),
            None,
        )
    ]


def catch_up(scene: Scene) -> list[Outcome]:
    payload, topic = one_batch(100, 100), "bench-backlog"
    count = scene.size(20_000, 300)
    folder, cpu = scene.place("catch-up"), list[float]()
    with bookies_of(scene, "catch-up") as bookies, broker_on(bookies, folder) as broker:
        client = Client(bookies)
        fill(broker.port, topic, payload, count, 100)
        reader = client.run(client.bare_reads(payload, count))

        def through_broker() -> float:
            with Wire(broker.port) as wire:
                wire.subscribe(topic, f"reader-{time.monotonic_ns()}", durable=False)
                before, began = process_cpu_seconds(broker.pid), time.perf_counter()
                wire.flow()
                receive_entries(wire, count)
                cpu.append((process_cpu_seconds(broker.pid) - before) / count * 1e6)
                return count * len(payload) / (time.perf_counter() - began) / 1e6

        def bare() -> float:
            return float(client.run(reader())) / 1e6

        through_broker()
        bare()
        rates, floors = side_by_side(scene.size(5, 1), through_broker, bare)
        client.close()
    return [
        Outcome(
            "bookkeeper-catch-up",
            "catch-up read from bookies, 11 KB entries",
            Series("broker", "MB/s", rates),
            Series("bare batch reads", "MB/s", floors),
            None,
            {"broker_cpu_us_per_entry": cpu[1:]},
        )
    ]


class Receipts:
    """Times of the receipts of a stock producer that sends without pause."""

    def __init__(self, url: str, topic: str) -> None:
        self._client = new_client(url)
        self._producer = self._client.create_producer(topic, block_if_queue_full=True, max_pending_messages=500)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.times: list[float] = []
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._producer.send_async(b"x" * 100, lambda result, _: self.times.append(time.perf_counter()))

    def close(self) -> None:
        self._stop.set()
        self._thread.join(30)
        self._producer.flush()
        self._client.close()


def killed(scene: Scene) -> list[Outcome]:
    """Longest time between two receipts around the death of a bookie, and around nothing for comparison."""
    gaps, calm = [], []
    for number in range(scene.size(3, 1)):
        folder = scene.place(f"killed-{number}")
        with bookies_of(scene, f"killed-{number}", 4) as bookies, broker_on(bookies, folder) as broker:
            receipts = Receipts(broker.service_url, "bench-killed")
            time.sleep(scene.size(3, 1))
            marks = [time.perf_counter()]
            for bookie in bookies.bookies[: 4 - ACKS - 1]:
                bookie.kill9()
            time.sleep(scene.size(3, 1))
            marks.append(time.perf_counter())
            receipts.close()
            before = [one for one in receipts.times if one < marks[0]]
            after = [one for one in receipts.times if marks[0] - 0.5 < one < marks[1]]
            if len(after) < 2:
                raise Failed("no receipts after a bookie was killed", [broker.log_path])
            calm.append(max(b - a for a, b in pairwise(before[len(before) // 2 :])) * 1000)
            gaps.append(max(b - a for a, b in pairwise(after)) * 1000)
    return [
        Outcome(
            "bookkeeper-killed",
            "bookie killed: longest gap between receipts",
            Series("", "ms", tuple(gaps)),
            None,
            at_most(200),
            {"longest_gap_before_ms": calm},
        )
    ]


MEASURES: dict[str, Run] = {
    "adds": adds,
    "publish": publish,
    "blocking": blocking,
    "catch-up": catch_up,
    "killed": killed,
}
SETTINGS = "3 bookies 4.18.0 (4 for killed) with synced journals on one disk, ZooKeeper without fsync, E=3 Qw=3 Qa=2"


def main(arguments: list[str] | None = None) -> int:
    return report.run("benchmarks.bookkeeper", MEASURES, (), arguments, mark="-bookkeeper", settings=SETTINGS)


if __name__ == "__main__":
    raise SystemExit(main())
