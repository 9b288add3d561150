"""`anabranch consume`: messages of a topic onto the terminal, acknowledged as they are printed."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable
from typing import Any

import click

from anabranch.cli.amounts import Time
from anabranch.cli.traffic import TYPES, access_of, consumers, run, wire_options
from anabranch.cli.wire import Access, Cluster, WireError
from anabranch.cli.wire_clients import Message

PERMITS = 1_000


class TooFew(WireError):
    code = "timeout"


def as_object(message: Message) -> dict[str, Any]:
    """For programs. The payload is text where it is UTF-8, otherwise base64 under another name."""
    shown: dict[str, Any] = {"id": message.id, "topic": message.topic, "key": message.key}
    try:
        shown["payload"] = message.data.decode("utf-8")
    except UnicodeDecodeError:
        shown["payload_base64"] = base64.b64encode(message.data).decode()
    shown["publish_time_ms"] = message.publish_time_ms
    if message.event_time_ms:
        shown["event_time_ms"] = message.event_time_ms
    if message.properties:
        shown["properties"] = dict(message.properties)
    if message.redeliveries:
        shown["redeliveries"] = message.redeliveries
    return shown


def as_line(message: Message) -> str:
    """For people: id, key if any, payload."""
    key = "" if message.key is None else f"  {message.key}"
    text = message.data.decode("utf-8", errors="backslashreplace")
    return f"{message.id}{key}  {text}"


async def take(
    access: Access,
    topic: str,
    subscription: str,
    kind: str,
    count: int,
    patience_seconds: float | None,
    print_one: Callable[[Message], None],
    *,
    from_earliest: bool,
) -> int:
    """How many were printed. Ends after `count` (0: never) or when nothing comes for so long."""
    printed = 0
    # No more permits than wanted, so that a shared subscription's other consumers get the rest.
    permits = min(count, PERMITS) if count else PERMITS
    async with Cluster(access) as cluster:
        opening = consumers(cluster, topic, subscription, kind, from_earliest=from_earliest, permits=permits)
        async with opening as inbox:
            while not count or printed < count:
                try:
                    async with asyncio.timeout(patience_seconds):
                        delivery = await inbox.get()
                except TimeoutError:
                    return printed
                if isinstance(delivery, WireError):
                    raise delivery
                for message in delivery.messages:
                    if count and printed >= count:
                        break
                    print_one(message)
                    printed += 1
                    delivery.taken += 1
                delivery.consumer.done(delivery)
    return printed


@click.command()
@click.argument("topic")
@click.option("-s", "--subscription", required=True, metavar="NAME", help="Created when it is not there.")
@click.option("-n", "--count", type=click.IntRange(min=0), default=0, metavar="N", help="Stop after N (0: never).")
@click.option("--timeout", type=Time(), metavar="TIME", help="Stop when nothing comes for so long: 5s, 1m.")
@click.option(
    "--from",
    "start",
    type=click.Choice(("earliest", "latest")),
    default="latest",
    help="Where a new subscription begins (default: latest).",
)
@click.option("--type", "kind", type=click.Choice(tuple(TYPES)), default="exclusive", help="Default: exclusive.")
def consume(
    topic: str, subscription: str, count: int, timeout: int | None, start: str, kind: str, **reach: object
) -> int:
    """Print the messages of TOPIC and acknowledge them.

    \b
    Examples:
      anabranch consume my-topic --subscription me --from earliest
      anabranch consume my-topic -s me --count 10 --timeout 5s
      anabranch consume my-topic -s workers --type shared --json | jq .payload

    With --count and --timeout together, fewer messages than asked for are a failure (exit code 1).
    """
    as_json = bool(reach["as_json"])

    def print_one(message: Message) -> None:
        click.echo(json.dumps(as_object(message), ensure_ascii=False) if as_json else as_line(message))

    access = access_of(click.get_current_context())
    work = take(access, topic, subscription, kind, count, timeout, print_one, from_earliest=start == "earliest")
    printed = run(work)
    if printed < count:
        raise TooFew(f"{printed} of {count} messages came within {timeout} s of each other")
    return 0


wire_options(consume)
