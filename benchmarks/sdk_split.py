"""Splits under load: 2,000 keyed messages a second, pipelined, while a segment is split 100 times (and merged between).

Expected before measuring. Nothing is confirmed between the decision to seal and its being durable (one fdatasync, about
1 ms) nor on the way of the notice to the producer and of what follows to the children (a round trip and another
fdatasync): 3-5 ms on an idle machine, everything beyond is the machine's. Pulsar 5.0.0-M1 with its own V5 client,
measured here: 112-176 ms. Beside every split the same is measured in calm windows: what the machine itself does.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from itertools import pairwise

import anabranch
import anabranch.admin
from anabranch import MessageId, Producer
from benchmarks import report
from benchmarks.measure import Outcome, Run, Scene, Series, at_most, percentile
from tests.broker_process import BrokerProcess
from tests.delivery_audit import Numbered, by_stream, decode, encode, judge
from tests.lineage_reading import stored

TOPIC = "topic://public/default/bench-split"
DEEP = ["--set", "scalable_topics.max_dag_depth=1000"]  # every split is followed by a merge
RATE = 2_000
KEYS = 200
TICK_SECONDS = 0.001
WINDOW_SECONDS = 0.25  # after each split


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
        """The longest time without a confirmation, and from send to confirmation, in a window."""
        at = [confirmed for _, confirmed in self.done if since <= confirmed <= until]
        gap = max((later - earlier for earlier, later in pairwise([since, *at])), default=until - since)
        wait = max((confirmed - sent for sent, confirmed in self.done if since <= sent <= until), default=0.0)
        return gap * 1000, wait * 1000


@dataclass
class Windows:
    gaps: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)

    def add(self, found: tuple[float, float]) -> None:
        self.gaps.append(found[0])
        self.waits.append(found[1])


async def measured(broker: BrokerProcess, splits: int) -> tuple[Windows, Windows, Pace]:
    changes, calm = Windows(), Windows()
    async with (
        anabranch.admin.connect(broker.http_url) as admin,
        anabranch.connect(broker.service_url) as client,
        client.producer(TOPIC, name="bench") as producer,
    ):
        pace = Pace(producer)
        task = asyncio.ensure_future(pace.run())
        await asyncio.sleep(1.0)
        whole, following = 0, 1
        spans: list[tuple[Windows, float, float]] = []
        for _ in range(splits):
            spans.append((calm, time.perf_counter(), time.perf_counter() + WINDOW_SECONDS))
            await asyncio.sleep(WINDOW_SECONDS)
            began = time.perf_counter()
            await admin.scalable_topics.split(TOPIC, whole)
            await asyncio.sleep(WINDOW_SECONDS)
            spans.append((changes, began, time.perf_counter()))
            await admin.scalable_topics.merge(TOPIC, [following, following + 1])
            whole, following = following + 2, following + 3
            await asyncio.sleep(0.05)
        pace.is_over = True
        await task
        await producer.flush(timeout=30)
        for windows, since, until in spans:
            windows.add(pace.longest_ms(since, until))
    return changes, calm, pace


def audit(broker: BrokerProcess, pace: Pace) -> None:
    """Raises unless every message is stored once and every key is in order."""
    messages = asyncio.run(stored(broker.service_url, TOPIC))
    verdict = judge(by_stream(one for one, _ in pace.sent), by_stream(decode(one.data) for one in messages))
    if pace.errors or not verdict.holds or verdict.repeated:
        raise RuntimeError(f"{len(pace.errors)} errors {pace.errors[:1]}; {verdict}")


def run(scene: Scene) -> list[Outcome]:
    with BrokerProcess(scene.place("sdk-split"), arguments=DEEP) as broker:
        changes, calm, pace = asyncio.run(measured(broker, scene.size(100, 3)))
        audit(broker, pace)
    notes = {
        "messages": len(pace.sent),
        "errors, reordered, duplicated": 0,
        "calm windows: longest gap, median and max ms": (percentile(calm.gaps, 0.5), max(calm.gaps)),
        "calm windows: longest send to receipt, median and max ms": (percentile(calm.waits, 0.5), max(calm.waits)),
    }
    rows = []
    for name, title, values in (
        ("split-gap", "longest time without a receipt around a split", changes.gaps),
        ("split-wait", "longest send → receipt around a split", changes.waits),
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
