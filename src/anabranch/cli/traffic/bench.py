"""`anabranch bench`: an open-loop load generator with percentiles, for publishing and for the whole way."""

from __future__ import annotations

import asyncio
import json
import math
from dataclasses import dataclass
from typing import Any

import click

from anabranch.cli.output.progress import with_progress
from anabranch.cli.output.tables import table
from anabranch.cli.param_types import Size, Time
from anabranch.cli.traffic.client_options import Access, TrafficError, access_of, run, wire_options, with_count
from anabranch.cli.traffic.histogram import Histogram
from anabranch.cli.traffic.interruption import Interruption
from anabranch.cli.traffic.schedule import STAMP_BYTES, Schedule, key_of, stamp_of, stamped
from anabranch.cli.traffic.sender import PENDING_BYTES_MAX, Sender, Sent
from anabranch.client import QueueConsumer, StreamConsumer
from anabranch.runtime.clock import Clock, SystemClock

AT_ONCE = 1_000
PREFETCH = 10_000
KINDS = {"queue": "queue", "stream": "stream", "shared": "queue", "failover": "stream"}
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
    def __init__(self, plan: Plan, clock: Clock, interruption: Interruption) -> None:
        self.plan = plan
        self._clock = clock
        self._interruption = interruption
        self.whole_way = Histogram()
        self.began = 0.0
        self.sender: Sender | None = None
        self.sent = Sent()

    async def run(self, access: Access) -> None:
        plan = self.plan
        # A connection for each direction: a full one must not hold the other up.
        async with (
            access.connect() as outward,
            access.connect() as homeward,
            outward.producer(plan.topic, pending_bytes_max=PENDING_BYTES_MAX) as producer,
        ):
            self.sender = sender = Sender(producer, self._clock, self.sent)
            if plan.subscription is None:
                await self._interruption.ends(lambda: with_progress(self._produce(sender), self.line, self._clock))
                return
            open_one = homeward.queue_consumer if plan.kind == "queue" else homeward.stream_consumer
            async with (
                open_one(plan.topic, subscription=plan.subscription, prefetch=PREFETCH) as consumer,
                asyncio.TaskGroup() as tasks,
            ):
                consuming = tasks.create_task(self._consume(consumer))
                await self._interruption.ends(lambda: with_progress(self._produce(sender), self.line, self._clock))
                await self._interruption.ends(lambda: self._wait_stragglers(sender))
                consuming.cancel()

    async def _produce(self, sender: Sender) -> None:
        plan = self.plan
        schedule = Schedule(plan.rate, math.ceil(plan.rate * plan.seconds))
        schedule.began = self.began = self._clock.monotonic()
        end = self.began + plan.seconds
        while not schedule.is_over and (plan.rate or self._clock.monotonic() < end):
            for index in schedule.take_due(self._clock.monotonic(), AT_ONCE):
                when = schedule.due_at(index) if plan.rate else self._clock.monotonic()
                sender.send(stamped(when, plan.size), key_of(index, plan.keys), when)
            await sender.wait_below(IN_FLIGHT_MAX if plan.rate else CLOSED_IN_FLIGHT)
            if plan.rate:
                await self._clock.sleep(max(TICK_SECONDS, schedule.wait_seconds(self._clock.monotonic())))
        await sender.wait_below(1)

    async def _consume(self, consumer: QueueConsumer | StreamConsumer) -> None:
        while True:
            messages = await consumer.receive_many(AT_ONCE)
            now = self._clock.monotonic()
            for message in messages:
                if (when := stamp_of(message.data)) is not None and when >= self.began:
                    self.whole_way.record(now - when)
            if isinstance(consumer, StreamConsumer):
                await consumer.ack_cumulative(messages[-1])
            else:
                for message in messages:
                    await consumer.ack(message)

    async def _wait_stragglers(self, sender: Sender) -> None:
        """Everything stored is on its way; wait for it, but not for ever."""
        until = self._clock.monotonic() + STRAGGLERS_SECONDS
        while self.whole_way.count < sender.sent.messages and self._clock.monotonic() < until:
            await self._clock.sleep(TICK_SECONDS)

    def line(self) -> str:
        seconds, sent = self._clock.monotonic() - self.began, self.sent
        return f"{seconds:4.0f} s  {sent.messages:,} sent  {sent.stored:,} stored  {self.whole_way.count:,} received"

    def figures(self) -> dict[str, Any]:
        sent, seconds = self.sent, max(self.sent.stored_at - self.began, 1e-9)
        publish = Histogram() if self.sender is None else self.sender.latencies
        found: dict[str, Any] = {
            "topic": self.plan.topic,
            "rate_wanted": self.plan.rate or None,
            "rate": round(sent.stored / seconds, 1),
            "megabytes_per_second": round(sent.stored * self.plan.size / seconds / 1e6, 3),
            "sent": sent.messages,
            "stored": sent.stored,
            "publish_ms": publish.summary_ms(),
            "interrupted": self._interruption.is_set,
        }
        if self.plan.subscription is not None:
            found["received"] = self.whole_way.count
            found["end_to_end_ms"] = self.whole_way.summary_ms()
        return found


class Missing(TrafficError):
    def __init__(self, reason: str) -> None:
        super().__init__(reason, "missing")


@click.command()
@click.argument("topic", default="bench")
@click.option("--rate", type=click.FloatRange(min=0), default=1000.0, metavar="N", help="Messages/s (0: all it takes).")
@click.option("--duration", type=Time(), default="10s", help="How long: 10s, 5m (default: 10s).")
@click.option("--size", type=Size(), default="100", metavar="BYTES", help="Size of a message (default: 100).")
@click.option("--keys", type=click.IntRange(min=0), default=0, metavar="N", help="So many different keys.")
@click.option("-s", "--subscription", default="bench", metavar="NAME", help="Of the consumer (default: bench).")
@click.option("--type", "kind", type=click.Choice(tuple(KINDS)), default="queue", help="Default: queue.")
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
      anabranch bench my-topic --rate 5000 --size 1k --keys 100 --type stream
      anabranch bench --rate 0 --no-consume --json

    Ctrl-C and SIGTERM stop it early: it tells the figures until then. A second one ends it at once.
    """
    if not no_consume and size < STAMP_BYTES:
        raise click.UsageError(f"a message needs {STAMP_BYTES} bytes to carry its time; use --no-consume")
    if duration < 1:
        raise click.UsageError("a bench takes at least a second")
    plan = Plan(topic, rate, duration, size, keys, None if no_consume else subscription, KINDS[kind])
    interruption = Interruption()
    work = Bench(plan, SystemClock(), interruption)
    try:
        access = access_of(click.get_current_context())
        run(lambda: work.run(access), interruption)
    except TrafficError as error:
        raise with_count(error, work.sent) from error
    except ExceptionGroup as group:  # of the consumer's task: reported like any other failure
        raise group.exceptions[0] from group
    figures = work.figures()
    click.echo(json.dumps(figures) if reach["as_json"] else shown(figures))
    interruption.check(f"the figures are those of {figures['sent']:,} sent messages")
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
