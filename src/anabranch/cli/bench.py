"""`anabranch bench`: an open-loop load generator with percentiles, for publishing and for the whole way."""

from __future__ import annotations

import asyncio
import json
import math
from dataclasses import dataclass
from typing import Any

import click

from anabranch.cli.amounts import Size, Time
from anabranch.cli.histogram import Histogram
from anabranch.cli.load import STAMP_BYTES, Schedule, key_of, part_of, stamp_of, stamped
from anabranch.cli.progress import with_progress
from anabranch.cli.table import table
from anabranch.cli.traffic import TYPES, Inbox, access_of, consumers, producers, run, wire_options
from anabranch.cli.wire import Access, Cluster, WireError
from anabranch.cli.wire_clients import Producer
from anabranch.runtime.clock import Clock, SystemClock

BATCH_MESSAGES = 1_000
IN_FLIGHT_MAX = 200_000
CLOSED_IN_FLIGHT = 2_000  # without a rate: as many as this unanswered
TICK_SECONDS = 0.001
STRAGGLERS_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Plan:
    topic: str
    rate: float
    seconds: int
    size: int
    keys: int
    subscription: str | None
    kind: str


class Bench:
    def __init__(self, plan: Plan, clock: Clock) -> None:
        self.plan = plan
        self._clock = clock
        self.publish = Histogram()
        self.whole_way = Histogram()
        self.sent = 0
        self.stored_at = 0.0
        self.began = 0.0

    async def run(self, access: Access) -> None:
        plan = self.plan
        # A connection for each direction: a full one must not hold the other up.
        async with (
            Cluster(access) as outward,
            Cluster(access) as homeward,
            producers(outward, plan.topic, self._clock) as to,
        ):
            if plan.subscription is None:
                await with_progress(self._produce(to), self.line, self._clock)
                return
            taking = consumers(homeward, plan.topic, plan.subscription, plan.kind, from_earliest=False, permits=10_000)
            async with taking as inbox, asyncio.TaskGroup() as tasks:
                consuming = tasks.create_task(self._consume(inbox))
                await with_progress(self._produce(to), self.line, self._clock)
                await self._wait_stragglers()
                consuming.cancel()

    async def _produce(self, to: list[Producer]) -> None:
        plan = self.plan
        schedule = Schedule(plan.rate, math.ceil(plan.rate * plan.seconds))
        schedule.began = self.began = self._clock.monotonic()
        end = self.began + plan.seconds
        turn = 0
        while not schedule.is_over and (plan.rate or self._clock.monotonic() < end):
            due = schedule.take_due(self._clock.monotonic(), BATCH_MESSAGES)
            parcels: dict[tuple[int, str | None], list[float]] = {}
            turn += 1
            for index in due:
                key = key_of(index, plan.keys)
                when = schedule.due_at(index) if plan.rate else self._clock.monotonic()
                parcels.setdefault((part_of(key, turn, len(to)), key), []).append(when)
            for (part, key), whens in parcels.items():
                self._send(to[part], key, whens)
            for producer in to:
                await producer.wait_below(IN_FLIGHT_MAX if plan.rate else CLOSED_IN_FLIGHT)
            if plan.rate:
                await self._clock.sleep(max(TICK_SECONDS, schedule.wait_seconds(self._clock.monotonic())))
        for producer in to:
            await producer.wait_below(1)

    def _send(self, producer: Producer, key: str | None, whens: list[float]) -> None:
        def stored(_: str) -> None:
            self.stored_at = now = self._clock.monotonic()
            for when in whens:
                self.publish.record(now - when)

        producer.send([stamped(when, self.plan.size) for when in whens], [key] * len(whens), stored)
        self.sent += len(whens)

    async def _consume(self, inbox: Inbox) -> None:
        while True:
            delivery = await inbox.get()
            if isinstance(delivery, WireError):
                raise delivery
            now = self._clock.monotonic()
            for message in delivery.messages:
                if (when := stamp_of(message.data)) is not None and when >= self.began:
                    self.whole_way.record(now - when)
            delivery.taken = len(delivery.messages)
            delivery.consumer.done(delivery)

    async def _wait_stragglers(self) -> None:
        """Everything stored is on its way; wait for it, but not for ever."""
        until = self._clock.monotonic() + STRAGGLERS_SECONDS
        while self.whole_way.count < self.sent and self._clock.monotonic() < until:
            await self._clock.sleep(TICK_SECONDS)

    def line(self) -> str:
        seconds = self._clock.monotonic() - self.began
        return f"{seconds:4.0f} s  {self.sent:,} sent  {self.publish.count:,} stored  {self.whole_way.count:,} received"

    def figures(self) -> dict[str, Any]:
        seconds = max(self.stored_at - self.began, 1e-9)
        found: dict[str, Any] = {
            "topic": self.plan.topic,
            "rate_wanted": self.plan.rate or None,
            "rate": round(self.publish.count / seconds, 1),
            "megabytes_per_second": round(self.publish.count * self.plan.size / seconds / 1e6, 3),
            "sent": self.sent,
            "stored": self.publish.count,
            "publish_ms": self.publish.summary_ms(),
        }
        if self.plan.subscription is not None:
            found["received"] = self.whole_way.count
            found["end_to_end_ms"] = self.whole_way.summary_ms()
        return found


class Missing(WireError):
    code = "missing"


@click.command()
@click.argument("topic", default="bench")
@click.option("--rate", type=click.FloatRange(min=0), default=1000.0, metavar="N", help="Messages/s (0: all it takes).")
@click.option("--duration", type=Time(), default="10s", help="How long: 10s, 5m (default: 10s).")
@click.option("--size", type=Size(), default="100", metavar="BYTES", help="Size of a message (default: 100).")
@click.option("--keys", type=click.IntRange(min=0), default=0, metavar="N", help="So many different keys.")
@click.option("-s", "--subscription", default="bench", metavar="NAME", help="Of the consumer (default: bench).")
@click.option("--type", "kind", type=click.Choice(tuple(TYPES)), default="shared", help="Default: shared.")
@click.option("--no-consume", is_flag=True, help="Only publish.")
def bench(
    topic: str,
    rate: float,
    duration: int,
    size: int,
    keys: int,
    subscription: str,
    kind: str,
    no_consume: bool,
    **reach: object,
) -> int:
    """Send messages to TOPIC at a steady rate, consume them, and tell how long they took.

    The load is open-loop: a message's time counts from when it was due, not from when it could be sent, so stalls of
    the broker show. With --rate 0 the generator sends as fast as receipts come, and the times say little.

    \b
    Examples:
      anabranch bench --rate 10000 --duration 30s
      anabranch bench my-topic --rate 5000 --size 1k --keys 100 --type key-shared
      anabranch bench --rate 0 --no-consume --json
    """
    if not no_consume and size < STAMP_BYTES:
        raise click.UsageError(f"a message needs {STAMP_BYTES} bytes to carry its time; use --no-consume")
    if duration < 1:
        raise click.UsageError("a bench takes at least a second")
    plan = Plan(topic, rate, duration, size, keys, None if no_consume else subscription, kind)
    work = Bench(plan, SystemClock())
    try:
        run(work.run(access_of(click.get_current_context())))
    except ExceptionGroup as group:  # of the consumer's task: one failure, told like any other
        raise group.exceptions[0] from group
    figures = work.figures()
    click.echo(json.dumps(figures) if reach["as_json"] else shown(figures))
    if not no_consume and figures["received"] < figures["stored"]:
        raise Missing(f"{figures['stored'] - figures['received']} messages were stored but did not arrive")
    return 0


def shown(figures: dict[str, Any]) -> str:
    heads = ("", "messages", "p50 ms", "p99 ms", "p99.9 ms", "mean ms", "max ms")
    rows = [("publish", figures["stored"], *figures["publish_ms"].values())]
    if "end_to_end_ms" in figures:
        rows.append(("end to end", figures["received"], *figures["end_to_end_ms"].values()))
    speed = f"{figures['rate']:,.0f} messages/s, {figures['megabytes_per_second']:,.2f} MB/s to {figures['topic']}"
    texts = [[f"{value:.2f}" if isinstance(value, float) else value for value in row] for row in rows]
    return f"{speed}\n\n{table(heads, texts)}"


wire_options(bench)
