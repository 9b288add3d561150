"""Automatic splits and merges of a broker process under load of the SDK.

Expected before measuring. A crossed threshold is seen at the next look of the owner (0.8 s apart, so 0.4 s on
average), a split takes 10-30 ms. Growth from 1 to 64 by splits in eight is two levels: two looks (the rate of a new
segment is one second old at least), and 9 to 40 splits with 64 children and their cursors: 2-4 s, most of it waiting
for looks. A new consumer is one evaluation, one split and one drain: 30-60 ms. A pause is that of a split by hand
(`benchmarks.sdk_split`): 5-15 ms.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import anabranch
import anabranch.admin
from anabranch import Client, StreamConsumer
from anabranch.admin import Admin
from benchmarks.support.machine_probe import Probe
from benchmarks.support.measure import Outcome, Scene, Series, at_most, percentile
from tests.support.processes.broker_process import BrokerProcess
from tests.support.traffic.delivery_audit import Numbered, by_stream, decode, judge
from tests.support.traffic.paced_load import PacedLoad
from tests.support.traffic.read_all_segments import stored

POLL_SECONDS = 0.02
PATIENCE_SECONDS = 120.0
Settings = dict[str, Any]

FAST: Settings = {"split_cooldown_seconds": 0, "split_rate_window_seconds": 5}


def topic(stem: str, number: int = 0) -> str:
    return f"topic://public/default/{stem}-{number}"


@dataclass(frozen=True, slots=True)
class Scaled:
    """A broker that scales topics, and clients of it."""

    broker: BrokerProcess
    client: Client
    admin: Admin

    async def active(self, name: str) -> list[int]:
        found = await self.admin.scalable_topics.metadata(name)
        return [int(key) for key, one in found["segments"].items() if one["state"] == "ACTIVE"]

    async def until(self, done: Callable[[list[int]], bool], name: str, what: str) -> None:
        """Until the active segments are as wanted."""
        await until(lambda: self._are(done, name), what)

    async def _are(self, done: Callable[[list[int]], bool], name: str) -> bool:
        return done(await self.active(name))


async def until(done: Callable[[], Any], what: str) -> None:
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not await done():  # noqa: ASYNC110 - a poll of another process
                await asyncio.sleep(POLL_SECONDS)
    except TimeoutError as error:
        raise AssertionError(f"not within {PATIENCE_SECONDS:g} s: {what}") from error


@asynccontextmanager
async def scaled(place: Path, **settings: Any) -> AsyncIterator[Scaled]:
    """`settings`: of `scalable_topics`."""
    chosen = {"auto_scale_enabled": "true", **settings}
    arguments = [word for name, value in chosen.items() for word in ("--set", f"scalable_topics.{name}={value}")]
    broker = BrokerProcess(place / "data", arguments=arguments)
    try:
        await asyncio.to_thread(broker.start)
        async with (
            anabranch.connect(broker.service_url) as client,
            anabranch.admin.connect(broker.http_url) as admin,
        ):
            yield Scaled(broker, client, admin)
    finally:
        await asyncio.to_thread(broker.close)


@asynccontextmanager
async def loaded(scene: Scaled, name: str, rate: float) -> AsyncIterator[PacedLoad]:
    async with scene.client.producer(name, name="bench") as producer:
        load = PacedLoad(producer, rate)
        task = asyncio.ensure_future(load.run())
        gc.disable()  # what is recorded of each message makes a full collection take 50 to 250 ms
        try:
            yield load
        finally:
            load.is_over = True
            await task
            gc.enable()
        if load.errors:
            raise AssertionError(f"{len(load.errors)} sends failed: {load.errors[0]!r}")


class Reader:
    """Takes and acknowledges everything. Knows its last message of each segment, and disorder."""

    def __init__(self) -> None:
        self.first_at = 0.0
        self.seen: set[int] = set()
        self.last_segment = -1
        self.numbers: list[Numbered] = []

    async def run(self, consumer: StreamConsumer) -> None:
        async for message in consumer:
            self.first_at = self.first_at or time.perf_counter()
            self.last_segment = message.id.lane
            self.seen.add(message.id.lane)
            self.numbers.append(decode(message.data))
            await consumer.ack_cumulative(message)


class Readers:
    """Consumers of one stream; closed with `async with`."""

    def __init__(self, client: Client, name: str) -> None:
        self._client, self._name, self._stack = client, name, AsyncExitStack()
        self._tasks: list[asyncio.Task[None]] = []
        self.all: list[Reader] = []

    async def __aenter__(self) -> Readers:
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._stack.aclose()

    async def add(self, count: int = 1) -> list[Reader]:
        made = await asyncio.gather(*(self._add() for _ in range(count)))
        return list(made)

    async def _add(self) -> Reader:
        consumer = self._client.stream_consumer(self._name, subscription="s", start="earliest")
        opened = await self._stack.enter_async_context(consumer)
        reader = Reader()
        self.all.append(reader)
        self._tasks.append(asyncio.ensure_future(reader.run(opened)))
        return reader

    def audit(self, load: PacedLoad) -> None:
        """Raises unless every message was read once, every key in order."""
        verdict = judge(
            by_stream(load.sent), by_stream(one for reader in self.all for one in reader.numbers), ordered=False
        )
        if not verdict.holds or verdict.repeated:
            raise AssertionError(f"{verdict}")
        for reader in self.all:
            for key, numbers in by_stream(reader.numbers).items():
                if any(later <= earlier for earlier, later in pairwise(numbers)):
                    raise AssertionError(f"{key} is out of order: {numbers}")

    def have_read(self, count: int) -> bool:
        return sum(len(one.numbers) for one in self.all) >= count


# -- growth


@dataclass(frozen=True, slots=True)
class Grown:
    active: float  # seconds from the first message until all segments are active
    reading: float  # … and all consumers have read from an own one
    splits: int


def grow(scene: Scene) -> list[Outcome]:
    segments, factor = scene.size(64, 4), scene.size(8, 2)
    rate = scene.size(3_200, 300)
    settings = {**FAST, "split_factor_max": factor, "max_segments": segments}
    settings["split_msg_rate_in_threshold"] = round(rate / segments * 0.9, 1)
    settings["merge_msg_rate_in_threshold"] = 0.5
    both = [
        asyncio.run(one_growth(scene.place(f"grow-{consumers}"), settings, rate, segments, consumers))
        for consumers in (1, segments)
    ]
    by_load, by_both = both
    notes = {"splits": by_load.splits, "splits, with consumers": by_both.splits, "messages per second": rate}
    title = f"load begins: 1 → {segments} segments, splitFactorMax={factor}"
    return [
        Outcome("grow", f"{title}, all active and read by one consumer", s(by_load.reading), None, at_most(10), notes),
        Outcome("grow-active", "… of it until all are active", s(by_load.active), None, None),
        Outcome(
            "grow-consumers",
            f"… and {segments} consumers open: each has read from an own segment",
            s(by_both.reading),
            None,
            at_most(10),
        ),
        Outcome("grow-consumers-active", "… of it until all are active", s(by_both.active), None, None),
    ]


def s(*values: float) -> Series:
    return Series("seconds", "s", values)


def ms(values: Sequence[float]) -> Series:
    return Series("ms", "ms", tuple(values))


async def one_growth(place: Path, settings: Settings, rate: float, segments: int, consumers: int) -> Grown:
    name = topic("grow")
    async with scaled(place, **settings) as scene:
        await scene.admin.scalable_topics.create(name, segments=1)
        async with Readers(scene.client, name) as readers:
            if consumers == 1:  # more of them are demand, which begins with the load
                await readers.add()
            async with loaded(scene, name, rate) as load:
                began = time.perf_counter()
                opening = asyncio.ensure_future(readers.add(consumers - 1))
                await scene.until(lambda active: len(active) == segments, name, f"{segments} active segments")
                active_at = time.perf_counter()
                await opening
                if consumers > 1:
                    await readers.add()
                ids = set(await scene.active(name))

                async def all_read() -> bool:
                    if consumers == 1:
                        return ids <= readers.all[0].seen
                    own = {reader.last_segment for reader in readers.all} & ids
                    return len(own) == segments

                await until(all_read, "all segments are read")
                reading_at = time.perf_counter()

            async def read() -> bool:
                return readers.have_read(len(load.sent))

            await until(read, "everything is read")
            readers.audit(load)
        history = (await scene.admin.scalable_topics.autoscale(name))["decisions"]
    splits = sum(one["action"] == "split" for one in history)
    return Grown(active_at - began, reading_at - began, splits)


# -- reaction


def react(scene: Scene) -> list[Outcome]:
    """The 60 s rate passes the threshold of the default policy divided by ten → children active."""

    async def work() -> list[float]:
        rounds = range(scene.size(5, 1))
        return [await one_reaction(scene.place(f"react-{number}"), scene.quick) for number in rounds]

    took = asyncio.run(work())
    return [
        Outcome(
            "react",
            "60 s rate passes the split threshold → children active, default policy / 10",
            s(*took),
            None,
            at_most(2),
            {"max": max(took)},
        )
    ]


THRESHOLDS = {
    "split_msg_rate_in_threshold": 1_000.0,
    "split_bytes_rate_in_threshold": 5_000_000,
    "split_msg_rate_out_threshold": 5_000.0,
    "split_bytes_rate_out_threshold": 25_000_000,
    "merge_msg_rate_in_threshold": 100.0,
    "merge_bytes_rate_in_threshold": 500_000,
    "merge_msg_rate_out_threshold": 500.0,
    "merge_bytes_rate_out_threshold": 2_500_000,
}


async def one_reaction(place: Path, quick: bool) -> float:
    """The segment is idle before, so the rate is known here: confirmed messages of the last 60 s, by 60."""
    name, rate = topic("react"), 10_000.0
    settings = THRESHOLDS | ({"split_msg_rate_in_threshold": 101.0} if quick else {})
    threshold = settings["split_msg_rate_in_threshold"] * 60
    async with scaled(place, **settings) as scene:
        await scene.admin.scalable_topics.create(name, segments=1)

        async def is_known_idle() -> bool:
            loads = (await scene.admin.scalable_topics.autoscale(name))["loads"]
            return bool(loads)

        await until(is_known_idle, "the segment is reported as idle")
        await asyncio.sleep(3)  # … and its owner has stopped to measure it, which counts as idle for a whole window
        async with loaded(scene, name, rate) as load:
            await scene.until(lambda active: len(active) > 1, name, "the segment is split")
            at = time.perf_counter()
        arrived = sorted(confirmed for _, confirmed in load.done)
        return at - arrived[int(threshold)]


# -- a new consumer


def consumer(scene: Scene) -> list[Outcome]:
    async def work() -> list[float]:
        async with scaled(scene.place("consumer"), split_cooldown_seconds=0) as scaling:
            return [await one_consumer(scaling, topic("consumer", one)) for one in range(scene.size(20, 2))]

    took = asyncio.run(work())
    title = "one stream consumer more than segments, topic busy: open → first message of its own segment"
    return [
        Outcome("consumer", title, s(*took), None, at_most(1), {"max": max(took)}),
        Outcome("consumer-max", "… the longest", s(max(took)), None, at_most(1)),
    ]


async def one_consumer(scene: Scaled, name: str) -> float:
    await scene.admin.scalable_topics.create(name, segments=1)
    async with Readers(scene.client, name) as readers:
        (first,) = await readers.add()
        async with loaded(scene, name, 1_000.0) as load:

            async def is_busy() -> bool:
                return len(first.numbers) > 200

            await until(is_busy, "the first consumer reads")
            began = time.perf_counter()
            (second,) = await readers.add()

            async def has_message() -> bool:
                return second.first_at > 0

            await until(has_message, "the second consumer has a message")
        took = second.first_at - began

        async def read() -> bool:
            return readers.have_read(len(load.sent))

        await until(read, "everything is read")
        readers.audit(load)
        assert len(await scene.active(name)) == 2
    return took


# -- a producer's pause

HOT = {"splitMsgRateInThreshold": 400.0, "mergeMsgRateInThreshold": 1.0, "maxSegments": 8}
COLD = {
    "splitMsgRateInThreshold": 1e9,
    "mergeMsgRateInThreshold": 1e8,
    "maxSegments": 8,
    "mergeMsgRateOutThreshold": 0.5,
}
WINDOW_SECONDS = 0.25
RATE = 2_000


@dataclass
class Pauses:
    changes: list[float] = field(default_factory=list)  # longest gap in receipts around each change, ms
    calm: list[float] = field(default_factory=list)
    worst_span: tuple[float, float] = (0.0, 0.0)


def pause(scene: Scene) -> list[Outcome]:
    place = scene.place("pause")
    with Probe(place) as probe:
        pauses = asyncio.run(one_pause(place, scene.size(4, 1)))
    bare = probe.worst(*pauses.worst_span)
    notes = {
        "changes": len(pauses.changes),
        "calm windows: longest gap, median and max ms": (percentile(pauses.calm, 0.5), max(pauses.calm)),
        "worst change: bare wake-up late by ms": bare.late,
        "worst change: bare fdatasync ms": bare.sync,
    }
    title = f"{RATE:,} keyed messages/s while the topic splits and merges by itself: longest time without a receipt"
    return [
        Outcome("pause", f"{title}, median", ms(pauses.changes), None, None, notes),
        Outcome("pause-max", "… the longest of all changes", ms([max(pauses.changes)]), None, at_most(50)),
        Outcome("pause-calm", "… without a change, the longest", ms([max(pauses.calm)]), None, None),
    ]


async def one_pause(place: Path, rounds: int) -> Pauses:
    """The policy of the topic makes its load hot, then cold, so that it grows and shrinks."""
    name, settings = topic("pause"), {**FAST, "merge_cooldown_seconds": 0, "merge_window_seconds": 1}
    changes: dict[float, float] = {}  # time of the wall clock, in seconds, by the same of perf_counter
    async with scaled(place, load_report_interval_seconds=1.0, **settings) as scene:
        topics = scene.admin.scalable_topics
        await topics.create(name, segments=1)
        async with loaded(scene, name, RATE) as load:
            for _ in range(rounds):
                await topics.set_auto_scale_policy(name, HOT)
                await scene.until(lambda active: len(active) >= 4, name, "four segments")
                await topics.set_auto_scale_policy(name, COLD)
                await scene.until(lambda active: len(active) == 1, name, "one segment")
                offset = time.perf_counter() - time.time()
                for one in (await topics.autoscale(name))["decisions"]:
                    if one["action"] != "none":
                        changes[one["atMs"] / 1000] = one["atMs"] / 1000 + offset
        verdict = judge(
            by_stream(load.sent), by_stream(decode(one.data) for one in await stored(scene.broker.service_url, name))
        )
        if not verdict.holds or verdict.repeated:
            raise AssertionError(f"{verdict}")
    return gaps_of(load, sorted(changes.values()))


def gaps_of(load: PacedLoad, changes: Sequence[float]) -> Pauses:
    found, at = Pauses(), sorted(confirmed for _, confirmed in load.done)
    near: dict[int, float] = {}
    worst = 0.0
    for earlier, later in pairwise(at[RATE // 10 :]):  # the first messages open the connection
        around = [number for number, change in enumerate(changes) if earlier - WINDOW_SECONDS <= change <= later]
        gap = (later - earlier) * 1000
        for number in around:
            near[number] = max(near.get(number, 0.0), gap)
        if not around:
            found.calm.append(gap)
        elif gap > worst:
            worst, found.worst_span = gap, (earlier, later)
    found.changes = list(near.values())
    found.calm = [max(found.calm[start : start + RATE // 4]) for start in range(0, len(found.calm), RATE // 4)]
    return found
