"""`anabranch tail`: messages of a topic as they come, without a subscription: nothing is acknowledged or kept back."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from anabranch.cli.admin.verb import names_of
from anabranch.cli.output.terminal import json_text, plain, say
from anabranch.cli.param_types import Time
from anabranch.cli.traffic.client_options import Access, access_of, run, wire_options
from anabranch.cli.traffic.consume import as_line, as_object, is_scalable, key_of
from anabranch.cli.traffic.interruption import Interruption
from anabranch.client import Checkpoint, Message
from anabranch.runtime.clock import Clock, SystemClock

PREFETCH = 1_000
LOOK_SECONDS = 0.25
QUIET_SECONDS = 1.0  # --no-follow: after so long without a message all that was there has come
_FIELD = re.compile(r"%([tkviseps%])")


@dataclass(frozen=True, slots=True)
class Filter:
    """All that are given must hold."""

    key: str | None = None
    contains: bytes | None = None
    segment: int | None = None

    def admits(self, message: Message) -> bool:
        if self.key is not None and (message.key is None or str(key_of(message)) != self.key):
            return False
        if self.contains is not None and (message.is_tombstone or self.contains not in message.data):
            return False
        return self.segment is None or (is_scalable(message.topic) and message.id.lane == self.segment)


def formatted(message: Message, form: str) -> str:
    """`%t` publish time in ms, `%k` key, `%v` payload, `%i` id, `%s` segment, `%p` properties, `%%` a percent sign."""

    def one(found: re.Match[str]) -> str:
        match found[1]:
            case "t":
                return str(message.publish_time)
            case "k":
                return "" if message.key is None else plain(str(key_of(message)))
            case "v":
                return "" if message.is_tombstone else message.data.decode("utf-8", errors="backslashreplace")
            case "i":
                return str(message.id)
            case "s":
                return str(message.id.lane) if is_scalable(message.topic) else ""
            case "p":
                return json_text(dict(message.properties))
            case _:
                return found[0][1:]

    return _FIELD.sub(one, form)


async def follow(
    access: Access,
    topic: str,
    start: Checkpoint,
    wanted: Filter,
    *,
    count: int,
    ends: bool,
    clock: Clock,
    interruption: Interruption,
    show: Callable[[Message], None],
) -> int:
    """How many were shown. Ends after `count` (0: never), with a signal, or (`ends`) when nothing more comes."""
    shown, quiet_at = 0, clock.monotonic() + QUIET_SECONDS
    async with (
        access.connect() as client,
        client.checkpoint_consumer(topic, start=start, prefetch=PREFETCH) as consumer,
    ):
        interruption.is_polled()
        while not interruption.is_set and not (count and shown >= count):
            message = await consumer.receive(timeout=LOOK_SECONDS)
            if message is None:
                if ends and clock.monotonic() >= quiet_at:
                    break
                continue
            quiet_at = clock.monotonic() + QUIET_SECONDS
            if wanted.admits(message):
                show(message)
                shown += 1
    return shown


@click.command()
@click.argument("topic", shell_complete=names_of("any_topic"))
@click.option("--since", type=Time(), metavar="TIME", help="Begin with what was published so long ago: 30s, 10m, 1d.")
@click.option("--all", "from_start", is_flag=True, help="Begin with the oldest message.")
@click.option("-n", "--count", type=click.IntRange(min=0), default=0, metavar="N", help="Stop after N (0: never).")
@click.option("--no-follow", is_flag=True, help="Stop when everything that is there was shown.")
@click.option("-k", "--key", metavar="KEY", help="Only messages with this key.")
@click.option("--contains", metavar="TEXT", help="Only messages whose payload contains the text.")
@click.option("--segment", type=click.IntRange(min=0), metavar="ID", help="Only of this segment of a scalable topic.")
@click.option(
    "--format",
    "form",
    metavar="FORM",
    help="Fields of a line: %t time, %k key, %v payload, %i id, %s segment, %p properties.",
)
def tail(
    topic: str,
    since: int | None,
    from_start: bool,
    count: int,
    no_follow: bool,
    key: str | None,
    contains: str | None,
    segment: int | None,
    form: str | None,
    **reach: Any,
) -> int:
    """Show the messages of a TOPIC as they come. No subscription is made, and nothing is acknowledged.

    \b
    Examples:
      anabranch tail orders
      anabranch tail topic://public/default/orders --since 10m --key customer-7
      anabranch tail orders --all --no-follow --format '%t %k %v'
      anabranch tail orders --json | jq .payload
    """
    if since is not None and from_start:
        raise click.UsageError("give either --since or --all")
    clock = SystemClock()
    start = Checkpoint.earliest() if from_start else Checkpoint.latest()
    if since is not None:
        start = Checkpoint.at_time(clock.now_ms() - since * 1000)
    as_json = bool(reach["as_json"])

    def show(message: Message) -> None:
        say(json_text(as_object(message)) if as_json else formatted(message, form) if form else as_line(message))

    access, interruption = access_of(click.get_current_context()), Interruption()
    wanted = Filter(key, None if contains is None else contains.encode(), segment)

    async def work() -> int:
        return await follow(
            access,
            topic,
            start,
            wanted,
            count=count,
            ends=no_follow,
            clock=clock,
            interruption=interruption,
            show=show,
        )

    shown = run(work, interruption)
    interruption.check(f"{shown:,} messages were shown")
    return 0


wire_options(tail)
