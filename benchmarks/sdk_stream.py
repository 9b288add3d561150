"""A split seen by a stream consumer that keeps up: how long until the first message of a child is in its hands.

Expected before measuring. The controller plans, creates two children with their cursors, seals the parent, commits
(some fdatasync and metadata writes, 5-10 ms); the consumer's last ack of the parent, the word that it is drained, the
new assignment and two attachments are one round trip each (5-10 ms with the group commits behind them): 10-20 ms on an
idle machine. Pulsar 5.0.0-M1 with its own V5 client, measured here: 2,000-2,300 ms (it polls). Beside every split,
publish → receive is measured in a calm window: what the machine itself does.

The order that the simulation proves has six durable writes one after another: plan, children, their cursors, seal,
commit, the group's assignment. Before every split the same writes are made with nothing between them, under the same
load: the floor. What is above it is Python: about twenty steps of the broker's event loop, beside the messages.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anabranch
import anabranch.admin
from anabranch import Producer, StreamConsumer
from anabranch.metadata.interface import ANY, MetadataStore
from anabranch.metadata.open import open_store
from anabranch.runtime.clock import SystemClock
from benchmarks.support import report
from benchmarks.support.measure import Outcome, Run, Scene, Series, at_most, percentile
from tests.support.processes.broker_process import BrokerProcess

TOPIC = "topic://public/default/bench-stream"
KEYS = 100
RATE = 1_000
WINDOW_SECONDS = 0.3
DEEP = ["--set", "scalable_topics.max_dag_depth=1000"]  # for a topic that is split and merged again and again


@dataclass
class Reader:
    """Takes and acknowledges everything; notes when it first saw each segment, how long messages took, and disorder."""

    consumer: StreamConsumer
    first_at: dict[int, float] = field(default_factory=dict)
    took_ms: list[float] = field(default_factory=list)
    last: dict[str | bytes | None, int] = field(default_factory=dict)
    count: int = 0
    disorder: int = 0
    news: asyncio.Event = field(default_factory=asyncio.Event)

    async def until(self, done: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not done():
                self.news.clear()
                await self.news.wait()

    async def run(self) -> None:
        async for message in self.consumer:
            now = time.perf_counter()
            number, sent_at = message.data.split()
            self.first_at.setdefault(message.id.lane, now)
            self.took_ms.append((now - float(sent_at)) * 1000)
            self.disorder += int(number) != self.last.get(message.key, -1) + 1
            self.last[message.key] = int(number)
            self.count += 1
            self.news.set()
            await self.consumer.ack_cumulative(message)


@dataclass
class Writer:
    producer: Producer
    sent: int = 0
    is_over: bool = False

    async def run(self) -> None:
        began = time.perf_counter()
        while not self.is_over:
            while self.sent < int((time.perf_counter() - began) * RATE):
                value = b"%d %.6f" % (self.sent // KEYS, time.perf_counter())
                self.producer.send_nowait(value, key=f"key-{self.sent % KEYS}")
                self.sent += 1
            await asyncio.sleep(0.001)
        await self.producer.flush(timeout=30)


TOPIC_RECORD, SEGMENT_RECORD, GROUP_RECORD, CURSORS = bytes(4_000), bytes(650), bytes(400), bytes(800)
LOG_BYTES = 1 << 20


class DurableWrites:
    """The durable writes of a split, one after another, with nothing between them."""

    def __init__(self, store: MetadataStore, log_fd: int) -> None:
        self._store, self._log_fd = store, log_fd
        self._offset = 0

    @staticmethod
    @asynccontextmanager
    async def open(folder: Path) -> AsyncIterator[DurableWrites]:
        log_fd = os.open(folder / "log", os.O_RDWR | os.O_CREAT)
        try:
            os.pwrite(log_fd, bytes(LOG_BYTES), 0)  # as the broker's log: no write changes the size of the file
            os.fsync(log_fd)
            async with open_store(f"sqlite:///{folder / 'metadata'}", SystemClock()) as store:
                yield DurableWrites(store, log_fd)
        finally:
            os.close(log_fd)

    async def took_ms(self) -> float:
        began = time.perf_counter()
        await self._store.put("/topic", TOPIC_RECORD, expected=ANY)  # PLAN
        children = (self._store.put(f"/child-{one}", SEGMENT_RECORD, expected=ANY) for one in range(2))
        await asyncio.gather(*children)  # one commit
        await asyncio.to_thread(self._append)  # the cursors of both
        await self._store.put("/parent", SEGMENT_RECORD, expected=ANY)  # SEAL
        await self._store.put("/topic", TOPIC_RECORD, expected=ANY)  # COMMIT
        await self._store.put("/group", GROUP_RECORD, expected=ANY)
        return (time.perf_counter() - began) * 1000

    def _append(self) -> None:
        os.pwrite(self._log_fd, CURSORS, self._offset)
        os.fdatasync(self._log_fd)
        self._offset = (self._offset + len(CURSORS)) % (LOG_BYTES // 2)


@dataclass(frozen=True, slots=True)
class Split:
    """One split, in seconds of `time.perf_counter`."""

    asked_at: float
    answered_at: float
    first_at: float  # a child's first message is in the application's hands
    calm_ms: float  # publish → receive just before
    writes_ms: float  # the durable writes alone, just before
    merge_ms: float  # from the call of the merge after it to the merged segment's first message

    @property
    def took_ms(self) -> float:
        return (self.first_at - self.asked_at) * 1000

    @property
    def after_ms(self) -> float:
        return (self.first_at - self.answered_at) * 1000


async def measured(broker: BrokerProcess, splits: int, folder: Path) -> tuple[list[Split], Reader]:
    """One topic, split and merged again; raises unless everything was received once and in order."""
    found: list[Split] = []
    async with (
        anabranch.admin.connect(broker.http_url) as admin,
        anabranch.connect(broker.service_url) as client,
        client.producer(TOPIC, name="bench") as producer,
        client.stream_consumer(TOPIC, subscription="bench", start="earliest") as consumer,
        DurableWrites.open(folder) as writes,
    ):
        reader, writer = Reader(consumer), Writer(producer)
        tasks = [asyncio.ensure_future(reader.run()), asyncio.ensure_future(writer.run())]
        await asyncio.sleep(1.0)
        whole, following = 0, 1
        for _ in range(splits):
            before = len(reader.took_ms)
            await asyncio.sleep(WINDOW_SECONDS)
            calm_ms = percentile(reader.took_ms[before:] or [0.0], 0.5)
            writes_ms = await writes.took_ms()
            asked_at = time.perf_counter()
            await admin.scalable_topics.split(TOPIC, whole)
            answered_at = time.perf_counter()
            children = (following, following + 1)
            await reader.until(lambda: any(child in reader.first_at for child in children))  # noqa: B023  awaited here
            first_at = min(reader.first_at[child] for child in children if child in reader.first_at)
            await asyncio.sleep(WINDOW_SECONDS)
            whole, following = following + 2, following + 3
            merge_at = time.perf_counter()
            await admin.scalable_topics.merge(TOPIC, list(children))
            await reader.until(lambda: whole in reader.first_at)  # noqa: B023  awaited here
            merge_ms = (reader.first_at[whole] - merge_at) * 1000
            found.append(Split(asked_at, answered_at, first_at, calm_ms, writes_ms, merge_ms))
        writer.is_over = True
        await tasks[1]
        await reader.until(lambda: reader.count >= writer.sent)
        tasks[0].cancel()
        if reader.disorder or reader.count != writer.sent:
            raise RuntimeError(f"{reader.disorder} out of order, {reader.count} of {writer.sent} received")
    return found, reader


def run(scene: Scene) -> list[Outcome]:
    with BrokerProcess(scene.place("sdk-stream"), arguments=DEEP) as broker:
        found, reader = asyncio.run(measured(broker, scene.size(50, 2), scene.place("sdk-stream-writes")))
    took, merges = [one.took_ms for one in found], [one.merge_ms for one in found]
    notes = {
        "messages": reader.count,
        "lost, duplicated, reordered": 0,
        "after the answer to the split, median ms": percentile([one.after_ms for one in found], 0.5),
        "publish → receive in calm windows, median ms": percentile([one.calm_ms for one in found], 0.5),
        "first ten and last ten splits, median ms": (percentile(took[:10], 0.5), percentile(took[-10:], 0.5)),
        "segments at the end": 3 * len(found) + 1,
        "worst ms": max(took),
        "merge → first message of the merged segment, median and worst ms": (percentile(merges, 0.5), max(merges)),
    }
    title = "split → first message of a child at a stream consumer"
    rows = [Outcome("split-to-child", title, Series("median", "ms", tuple(took)), None, at_most(30), notes)]
    floor = Series("its durable writes alone", "ms", tuple(one.writes_ms for one in found))
    against = f"{title}, against its durable writes one after another"
    rows.append(Outcome("split-to-child-writes", against, rows[0].measured, floor, None))
    for name, some in (("first", took[:10]), ("last", took[-10:])):
        series = Series("median", "ms", tuple(some))
        rows.append(Outcome(f"split-to-child-{name}", f"{title}, the {name} ten", series, None, None))
    return rows


MEASURES: dict[str, Run] = {"sdk-stream": run}


def main(arguments: list[str] | None = None) -> int:
    return report.run("benchmarks.sdk_stream", MEASURES, (), arguments)


if __name__ == "__main__":
    raise SystemExit(main())
