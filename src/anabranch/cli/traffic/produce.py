"""`anabranch produce`: messages from the command line, a file or a generator onto a topic."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, BinaryIO

import click

from anabranch.cli.admin.verb import names_of
from anabranch.cli.output.progress import with_progress
from anabranch.cli.param_types import Size
from anabranch.cli.traffic.client_options import Access, TrafficError, access_of, run, wire_options, with_count
from anabranch.cli.traffic.input_lines import line_batches
from anabranch.cli.traffic.interruption import Interruption
from anabranch.cli.traffic.schedule import Schedule, key_of, stamped
from anabranch.cli.traffic.sender import PENDING_BYTES_MAX, Sender, Sent
from anabranch.client.messages.compression import Compression
from anabranch.runtime.clock import Clock, SystemClock

AT_ONCE = 1_000
IN_FLIGHT_MAX = 50_000
TICK_SECONDS = 0.001

Fill = Callable[[Sender, Clock], Coroutine[Any, Any, None]]
"""Sends all messages of one source; returns when they are stored."""


@dataclass(frozen=True, slots=True)
class Target:
    topic: str
    compression: str | None
    total: str  # of messages, if it is known: ` of 1,000`


async def send(
    access: Access, target: Target, fill: Fill, sent: Sent, clock: Clock, interruption: Interruption
) -> Sender:
    """The sender after everything is stored, or after a signal: then closing waits for the receipts still due."""
    async with (
        access.connect() as client,
        client.producer(target.topic, compression=target.compression, pending_bytes_max=PENDING_BYTES_MAX) as producer,
    ):
        sender = Sender(producer, clock, sent)

        def line() -> str:
            return f"{sent.stored:,}{target.total} messages stored"

        await interruption.ends(lambda: with_progress(fill(sender, clock), line, clock))
    return sender


def given(batches: AsyncIterator[list[bytes]], key: str | None) -> Fill:
    async def fill(sender: Sender, clock: Clock) -> None:
        async for batch in batches:
            for data in batch:
                sender.send(data, key, clock.monotonic())
                await sender.wait_below(IN_FLIGHT_MAX)
        await sender.wait_below(1)

    return fill


async def once(texts: tuple[str, ...]) -> AsyncIterator[list[bytes]]:
    yield [text.encode() for text in texts]


def generated(schedule: Schedule, size: int, key: str | None, keys: int) -> Fill:
    async def fill(sender: Sender, clock: Clock) -> None:
        schedule.began = clock.monotonic()
        while not schedule.is_over:
            for index in schedule.take_due(clock.monotonic(), AT_ONCE):
                when = schedule.due_at(index) if schedule.rate else clock.monotonic()
                sender.send(stamped(when, size), key or key_of(index, keys), when)
                await sender.wait_below(IN_FLIGHT_MAX)
            await clock.sleep(max(TICK_SECONDS, schedule.wait_seconds(clock.monotonic())) if schedule.rate else 0)
        await sender.wait_below(1)

    return fill


@click.command()
@click.argument("topic", shell_complete=names_of("any_topic"))
@click.option("-m", "--message", "texts", multiple=True, metavar="TEXT", help="A message; may be given several times.")
@click.option("--file", type=click.File("rb"), metavar="FILE", help="A message per line; - is standard input.")
@click.option("-k", "--key", metavar="KEY", help="The key of every message.")
@click.option("--count", type=click.IntRange(min=1), metavar="N", help="Generate so many messages.")
@click.option("--rate", type=click.FloatRange(min=0), default=0.0, metavar="N", help="So many per second (0: at once).")
@click.option("--keys", type=click.IntRange(min=0), default=0, metavar="N", help="Generated ones have so many keys.")
@click.option("--size", type=Size(), default="100", metavar="BYTES", help="Size of a generated one (default: 100).")
@click.option("--compression", type=click.Choice([one.value for one in Compression]), help="Default: none.")
def produce(
    topic: str,
    texts: tuple[str, ...],
    file: BinaryIO | None,
    key: str | None,
    count: int | None,
    rate: float,
    keys: int,
    size: int,
    compression: str | None,
    **reach: object,
) -> int:
    """Send messages to TOPIC and wait until all are stored.

    \b
    Examples:
      anabranch produce my-topic -m hello -m world
      anabranch produce my-topic --key order-7 --file orders.txt
      some-program | anabranch produce my-topic
      anabranch produce topic://public/default/orders --count 100000 --rate 5000 --keys 100 --size 1k

    Ctrl-C and SIGTERM stop it: messages that were sent are still waited for and reported. A second one ends it at once.
    """
    if sum((bool(texts), file is not None, count is not None)) > 1:
        raise click.UsageError("messages come from --message, from --file or from --count: give one of them")
    if key is not None and keys:
        raise click.UsageError("give either --key or --keys")
    total = ""
    if count is not None:
        fill, total = generated(Schedule(rate, count), size, key, keys), f" of {count:,}"
    elif texts:
        fill = given(once(texts), key)
    elif file is None and sys.stdin.isatty():
        raise click.UsageError("what is to be sent? Give --message, --file or --count")
    else:
        fill = given(line_batches(file or sys.stdin.buffer), key)
    clock, access, interruption = SystemClock(), access_of(click.get_current_context()), Interruption()
    began = clock.monotonic()
    target, sent = Target(topic, compression, total), Sent()
    try:
        sender = run(lambda: send(access, target, fill, sent, clock, interruption), interruption)
    except TrafficError as error:
        raise with_count(error, sent) from error
    report(sender, clock.monotonic() - began, is_interrupted=interruption.is_set, as_json=bool(reach["as_json"]))
    interruption.check(str(sent))
    return 0


def report(sender: Sender, seconds: float, *, is_interrupted: bool, as_json: bool) -> None:
    sent, took = sender.sent, sender.latencies.summary_ms()
    last = None if sent.last is None else f"{sent.last.ledger}:{sent.last.entry}"
    if as_json:
        figures = {
            "messages": sent.stored,
            "bytes": sent.bytes,
            "seconds": round(seconds, 3),
            "last_message_id": last,
            "latency_ms": took,
            "interrupted": is_interrupted,
        }
        click.echo(json.dumps(figures))
    elif sent.stored == 1:
        click.echo(f"stored as {last}")
    else:
        rate = sent.stored / seconds if seconds else 0.0
        click.echo(f"stored {sent.stored:,} messages ({sent.bytes:,} bytes) in {seconds:.2f} s: {rate:,.0f} per second")
        click.echo(f"latency p50 {took['p50']} ms, p99 {took['p99']} ms, p99.9 {took['p99.9']} ms")


wire_options(produce)
