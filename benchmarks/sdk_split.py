"""Splits under load: 2,000 keyed messages a second, pipelined, while topics are split 100 times in all and merged
between. Every split is of a topic's only segment, so that it concerns every key; as often as it may be merged.

Expected before measuring. Nothing is confirmed between the decision to seal and its being durable (one fdatasync, about
1 ms) nor on the way of the notice to the producer and of what follows to the children (a round trip and another
fdatasync): 3-5 ms on an idle machine, everything beyond is the machine's. Pulsar 5.0.0-M1 with its own V5 client,
measured here: 112-176 ms. Beside every split the same is measured in calm windows: what the machine itself does; and a
bare process (`benchmarks.support.machine_probe`) shows its effect on every process. Merges are measured like splits
and reported as notes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from dataclasses import dataclass, field
from itertools import pairwise

import anabranch
import anabranch.admin
from anabranch import MessageId, Producer
from benchmarks.support import report
from benchmarks.support.machine_probe import Probe
from benchmarks.support.measure import Outcome, Run, Scene, Series, at_most, percentile
from tests.support.processes.broker_process import BrokerProcess
from tests.support.traffic.delivery_audit import Numbered, by_stream, decode, encode, judge
from tests.support.traffic.read_all_segments import stored

TOPIC = "topic://public/default/bench-split-{}"
SPLITS_PER_TOPIC = 10
RATE = 2_000
KEYS = 200
TICK_SECONDS = 0.001
WINDOW_SECONDS = 0.25  # after each change
MARGIN_SECONDS = 0.05


@dataclass
class Pace:
    """An open loop: what is due is sent, whatever became of what was sent before."""

    producer: Producer
    sent: list[tuple[Numbered, float]] = field(default_factory=list)
    done: list[tuple[float, float]] = field(default_factory=list)  # sent, confirmed
    errors: list[BaseException] = field(default_factory=list)
    is_over: bool = False

    async def run(self) -> None:
        began = time.perf_counter()
        while not self.is_over:
            due = int((time.perf_counter() - began) * RATE)
            while len(self.sent) < due:
                self._send()
            await asyncio.sleep(TICK_SECONDS)

    def _send(self) -> None:
        count = len(self.sent)
        message, now = (f"key-{count % KEYS}", count // KEYS), time.perf_counter()
        self.sent.append((message, now))
        future = self.producer.send_nowait(encode(*message, 100), key=message[0])
        future.add_done_callback(lambda one: self._confirmed(one, now))

    def _confirmed(self, future: asyncio.Future[MessageId], sent_at: float) -> None:
        if future.cancelled() or (error := future.exception()) is not None:
            self.errors.append(RuntimeError("cancelled") if future.cancelled() else error)  # type: ignore[arg-type]  # not cancelled: it has one
        else:
            self.done.append((sent_at, time.perf_counter()))

    def longest_ms(self, since: float, until: float) -> tuple[float, float]:
        """The longest time without a confirmation, and from send to confirmation, in a window. What is sent at its very
        end is not counted: what follows may be another change."""
        at = [confirmed for _, confirmed in self.done if since <= confirmed <= until]
        gap = max((later - earlier for earlier, later in pairwise([since, *at])), default=until - since)
        end = until - MARGIN_SECONDS
        wait = max((confirmed - sent for sent, confirmed in self.done if since <= sent <= end), default=0.0)
        return gap * 1000, wait * 1000


@dataclass
class Windows:
    gaps: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    spans: list[tuple[float, float]] = field(default_factory=list)

    def add(self, pace: Pace, since: float, until: float) -> None:
        gap, wait = pace.longest_ms(since, until)
        self.gaps.append(gap)
        self.waits.append(wait)
        self.spans.append((since, until))

    def worst(self, probe: Probe) -> dict[str, float]:
        """The longest wait, and what the bare process saw of the machine meanwhile."""
        wait, (since, until) = max(zip(self.waits, self.spans, strict=True))
        bare = probe.worst(since, until + wait / 1000)
        return {
            "longest send to receipt ms": wait,
            "bare wake-up late by ms": bare.late,
            "bare fdatasync ms": bare.sync,
            "bare fdatasync of a growing file ms": bare.growing_sync,
        }


@dataclass
class Seen:
    """Of all topics: windows with a split, with a merge, and without either."""

    splits: Windows = field(default_factory=Windows)
    merges: Windows = field(default_factory=Windows)
    calm: Windows = field(default_factory=Windows)


async def measured(broker: BrokerProcess, topic: str, splits: int, seen: Seen) -> Pace:
    """One topic, split and merged again so often."""
    spans: list[tuple[Windows, float, float]] = []
    async with (
        anabranch.admin.connect(broker.http_url) as admin,
        anabranch.connect(broker.service_url) as client,
        client.producer(topic, name="bench") as producer,
    ):
        pace = Pace(producer)
        task = asyncio.ensure_future(pace.run())
        await asyncio.sleep(0.5)

        async def window(windows: Windows, change: Awaitable[object] | None = None) -> None:
            began = time.perf_counter()
            if change is not None:
                await change
            await asyncio.sleep(WINDOW_SECONDS)
            spans.append((windows, began, time.perf_counter()))

        for whole in range(0, 3 * splits, 3):
            await window(seen.calm)
            await window(seen.splits, admin.scalable_topics.split(topic, whole))
            await window(seen.merges, admin.scalable_topics.merge(topic, [whole + 1, whole + 2]))
        pace.is_over = True
        await task
        await producer.flush(timeout=30)
    for windows, since, until in spans:
        windows.add(pace, since, until)
    await audit(broker, topic, pace)
    return pace


async def audit(broker: BrokerProcess, topic: str, pace: Pace) -> None:
    """Raises unless every message is stored once and every key is in order."""
    messages = await stored(broker.service_url, topic)
    verdict = judge(by_stream(one for one, _ in pace.sent), by_stream(decode(one.data) for one in messages))
    if pace.errors or not verdict.holds or verdict.repeated:
        raise RuntimeError(f"{len(pace.errors)} errors {pace.errors[:1]}; {verdict}")


def run(scene: Scene) -> list[Outcome]:
    seen, messages, place = Seen(), 0, scene.place("sdk-split")
    with BrokerProcess(place / "data") as broker, Probe(place) as probe:
        for number in range(scene.size(10, 1)):
            topic, splits = TOPIC.format(number), scene.size(SPLITS_PER_TOPIC, 3)
            messages += len(asyncio.run(measured(broker, topic, splits, seen)).sent)
    calm, merges = seen.calm, seen.merges
    notes = {
        "messages": messages,
        "errors, reordered, duplicated": 0,
        "calm windows: longest gap, median and max ms": (percentile(calm.gaps, 0.5), max(calm.gaps)),
        "calm windows: longest send to receipt, median and max ms": (percentile(calm.waits, 0.5), max(calm.waits)),
        "merges: longest gap, median and max ms": (percentile(merges.gaps, 0.5), max(merges.gaps)),
        "merges: longest send to receipt, median and max ms": (percentile(merges.waits, 0.5), max(merges.waits)),
        "worst split": seen.splits.worst(probe),
        "worst merge": merges.worst(probe),
        "worst calm window": calm.worst(probe),
    }
    rows = []
    for name, title, values in (
        ("split-gap", "longest time without a receipt around a split", seen.splits.gaps),
        ("split-wait", "longest send → receipt around a split", seen.splits.waits),
    ):
        rows.append(Outcome(name, title, Series("median", "ms", tuple(values)), None, at_most(10), notes))
        worst = Series("worst", "ms", (max(values),))
        rows.append(Outcome(f"{name}-max", f"{title}, the worst", worst, None, at_most(50)))
    return rows


MEASURES: dict[str, Run] = {"sdk-split": run}


def main(arguments: list[str] | None = None) -> int:
    return report.run("benchmarks.sdk_split", MEASURES, (), arguments)


if __name__ == "__main__":
    raise SystemExit(main())
