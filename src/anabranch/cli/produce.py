"""`anabranch produce`: messages from the command line, a file or a generator onto a topic."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import BinaryIO

import click

from anabranch.cli.amounts import Size
from anabranch.cli.histogram import Histogram
from anabranch.cli.load import Schedule, batches, key_of, part_of, stamped
from anabranch.cli.progress import with_progress
from anabranch.cli.traffic import access_of, producers, run, wire_options
from anabranch.cli.wire import Access, Cluster
from anabranch.cli.wire_clients import Producer
from anabranch.runtime.clock import Clock, SystemClock

BATCH_MESSAGES = 1_000
BATCH_BYTES = 128 * 1024
IN_FLIGHT_MAX = 50_000
TICK_SECONDS = 0.001


@dataclass(slots=True)
class Sent:
    """What has happened so far."""

    messages: int = 0
    bytes: int = 0
    stored: int = 0
    last_id: str = ""


class Sender:
    """Spreads messages over the producers of a topic and notes receipts."""

    def __init__(self, to: list[Producer], clock: Clock) -> None:
        self._to = to
        self._clock = clock
        self._turn = 0
        self.sent = Sent()
        self.latencies = Histogram()

    def send(self, messages: list[tuple[bytes, str | None]], due: float) -> None:
        for data, key in batches(messages, BATCH_MESSAGES, BATCH_BYTES):
            self._turn += 1
            count = len(data)

            def stored(place: str, count: int = count) -> None:
                self.latencies.record(self._clock.monotonic() - due, count)
                self.sent.stored += count
                self.sent.last_id = place

            self._to[part_of(key, self._turn, len(self._to))].send(data, [key] * count, stored)
            self.sent.messages += count
            self.sent.bytes += sum(map(len, data))

    async def wait_room(self, most: int = IN_FLIGHT_MAX) -> None:
        for producer in self._to:
            await producer.wait_below(most)


def lines(file: BinaryIO) -> Iterator[bytes]:
    for line in file:
        yield line.rstrip(b"\r\n")


async def send_all(access: Access, topic: str, source: Iterator[bytes], key: str | None, clock: Clock) -> Sender:
    async with Cluster(access) as cluster, producers(cluster, topic, clock) as to:
        sender = Sender(to, clock)

        async def work() -> None:
            while some := list(islice(source, BATCH_MESSAGES)):
                sender.send([(data, key) for data in some], clock.monotonic())
                await sender.wait_room()
            await sender.wait_room(1)

        await with_progress(work(), lambda: f"{sender.sent.stored:,} messages stored", clock)
        return sender


async def send_generated(
    access: Access, topic: str, schedule: Schedule, size: int, key: str | None, keys: int, clock: Clock
) -> Sender:
    async with Cluster(access) as cluster, producers(cluster, topic, clock) as to:
        sender = Sender(to, clock)
        schedule.began = clock.monotonic()

        async def work() -> None:
            while not schedule.is_over:
                due = schedule.take_due(clock.monotonic(), BATCH_MESSAGES)
                if due:
                    when = schedule.due_at(due.start) if schedule.rate else clock.monotonic()
                    sender.send([(stamped(when, size), key or key_of(i, keys)) for i in due], when)
                    await sender.wait_room()
                await clock.sleep(max(TICK_SECONDS, schedule.wait_seconds(clock.monotonic())) if schedule.rate else 0)
            await sender.wait_room(1)

        total = f" of {schedule.count:,}" if schedule.count else ""
        await with_progress(work(), lambda: f"{sender.sent.stored:,}{total} messages stored", clock)
        return sender


@click.command()
@click.argument("topic")
@click.option("-m", "--message", "texts", multiple=True, metavar="TEXT", help="A message; may be given several times.")
@click.option("--file", type=click.File("rb"), metavar="FILE", help="A message per line; - is standard input.")
@click.option("-k", "--key", metavar="KEY", help="The key of every message.")
@click.option("--count", type=click.IntRange(min=1), metavar="N", help="Generate so many messages.")
@click.option("--rate", type=click.FloatRange(min=0), default=0.0, metavar="N", help="So many per second (0: at once).")
@click.option("--keys", type=click.IntRange(min=0), default=0, metavar="N", help="Generated ones have so many keys.")
@click.option("--size", type=Size(), default="100", metavar="BYTES", help="Size of a generated one (default: 100).")
def produce(
    topic: str,
    texts: tuple[str, ...],
    file: BinaryIO | None,
    key: str | None,
    count: int | None,
    rate: float,
    keys: int,
    size: int,
    **reach: object,
) -> int:
    """Send messages to TOPIC and wait until all are stored.

    \b
    Examples:
      anabranch produce my-topic -m hello -m world
      anabranch produce my-topic --key order-7 --file orders.txt
      some-program | anabranch produce my-topic
      anabranch produce my-topic --count 100000 --rate 5000 --keys 100 --size 1k
    """
    if sum((bool(texts), file is not None, count is not None)) > 1:
        raise click.UsageError("messages come from --message, from --file or from --count: give one of them")
    if key is not None and keys:
        raise click.UsageError("give either --key or --keys")
    clock, access = SystemClock(), access_of(click.get_current_context())
    began = clock.monotonic()
    if count is not None:
        sender = run(send_generated(access, topic, Schedule(rate, count), size, key, keys, clock))
    else:
        if not texts and file is None and sys.stdin.isatty():
            raise click.UsageError("what is to be sent? Give --message, --file or --count")
        source = iter([text.encode() for text in texts]) if texts else lines(file or sys.stdin.buffer)
        sender = run(send_all(access, topic, source, key, clock))
    report(sender, clock.monotonic() - began, as_json=bool(reach["as_json"]))
    return 0


def report(sender: Sender, seconds: float, *, as_json: bool) -> None:
    sent, took = sender.sent, sender.latencies.summary_ms()
    if as_json:
        figures = {
            "messages": sent.stored,
            "bytes": sent.bytes,
            "seconds": round(seconds, 3),
            "last_message_id": sent.last_id or None,
            "latency_ms": took,
        }
        click.echo(json.dumps(figures))
    elif sent.stored == 1:
        click.echo(f"stored as {sent.last_id}")
    else:
        rate = sent.stored / seconds if seconds else 0.0
        click.echo(f"stored {sent.stored:,} messages ({sent.bytes:,} bytes) in {seconds:.2f} s: {rate:,.0f} per second")
        click.echo(f"latency p50 {took['p50']} ms, p99 {took['p99']} ms, p99.9 {took['p99.9']} ms")


wire_options(produce)
