"""`anabranch consume`: messages of a topic onto the terminal, acknowledged as they are printed."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from anabranch.cli.admin.verb import names_of
from anabranch.cli.output.layout_changes import Change, changes
from anabranch.cli.output.terminal import json_text, plain, say
from anabranch.cli.param_types import Time
from anabranch.cli.traffic.client_options import Access, TrafficError, access_of, run, wire_options
from anabranch.cli.traffic.interruption import Interruption
from anabranch.client import Checkpoint, CheckpointConsumer, Client, Message, QueueConsumer, StreamConsumer
from anabranch.client.async_resource import AsyncResource
from anabranch.client.consumer.consumer import Consumer
from anabranch.client.opening import Start
from anabranch.model.errors import Error
from anabranch.runtime.clock import Clock, SystemClock

KINDS = {"stream": "stream", "queue": "queue", "checkpoint": "checkpoint", "failover": "stream", "shared": "queue"}
PREFETCH = 1_000
LOOK_SECONDS = 0.25  # how long a change of the layout may go unmentioned while no messages come


class TooFew(TrafficError):
    def __init__(self, reason: str) -> None:
        super().__init__(reason, "timeout")


@dataclass(frozen=True, slots=True)
class Plan:
    topic: str
    kind: str
    subscription: str | None
    start: Start
    count: int  # 0: no end
    patience_seconds: float | None
    checkpoint: Path | None = None


def as_object(message: Message) -> dict[str, Any]:
    """For programs. The payload is text where it is UTF-8, otherwise base64 under another name."""
    shown: dict[str, Any] = {"id": str(message.id), "topic": place_of(message), "key": key_of(message)}
    try:
        shown["payload"] = None if message.is_tombstone else message.data.decode("utf-8")
    except UnicodeDecodeError:
        shown["payload_base64"] = base64.b64encode(message.data).decode()
    shown["publish_time_ms"] = message.publish_time
    if message.event_time:
        shown["event_time_ms"] = message.event_time
    if message.properties:
        shown["properties"] = dict(message.properties)
    if message.redelivery_count:
        shown["redeliveries"] = message.redelivery_count
    if is_scalable(message.topic):
        shown["segment"] = message.id.lane
    return shown


def as_line(message: Message) -> str:
    """For people: id, key if any, payload."""
    key = "" if message.key is None else f"  {plain(str(key_of(message)))}"
    text = "(no value)" if message.is_tombstone else message.data.decode("utf-8", errors="backslashreplace")
    return f"{message.id}{key}  {text}"


def is_scalable(topic: str) -> bool:
    return topic.startswith("topic://")


def place_of(message: Message) -> str:
    """The partition of a regular topic, the topic itself of a scalable one."""
    lane = message.id.lane
    return message.topic if lane < 0 or is_scalable(message.topic) else f"{message.topic}-partition-{lane}"


def key_of(message: Message) -> str | None:
    key = message.key
    return key.decode("utf-8", errors="backslashreplace") if isinstance(key, bytes) else key


def opening(client: Client, plan: Plan) -> AsyncResource[Any]:
    # No more than wanted, so that a queue's other consumers get the rest.
    prefetch = min(plan.count, PREFETCH) if plan.count else PREFETCH
    if plan.kind == "checkpoint":
        return client.checkpoint_consumer(plan.topic, start=saved_at(plan), prefetch=prefetch)
    assert plan.subscription is not None
    open_one = client.queue_consumer if plan.kind == "queue" else client.stream_consumer
    return open_one(plan.topic, subscription=plan.subscription, start=plan.start, prefetch=prefetch)


def saved_at(plan: Plan) -> Checkpoint:
    if plan.checkpoint is not None and plan.checkpoint.exists():
        return Checkpoint.from_bytes(plan.checkpoint.read_bytes())
    return Checkpoint.earliest() if plan.start == "earliest" else Checkpoint.latest()


class Listening:
    """Receives, and tells of splits and merges when they happen: also of those between two messages."""

    def __init__(
        self, consumer: Consumer, clock: Clock, interruption: Interruption, tell: Callable[[Change], None]
    ) -> None:
        self._consumer = consumer
        self._clock = clock
        self._interruption = interruption
        self._tell = tell
        self._known = consumer.layouts

    async def next(self, patience_seconds: float | None) -> Message | None:
        """The next message, None when nothing comes for so long or a signal has come. A signal does not cancel
        `receive`, because a message that it has taken would be neither printed nor left out of the checkpoint."""
        until = None if patience_seconds is None else self._clock.monotonic() + patience_seconds
        while True:
            if self._interruption.is_set:
                return None
            left = LOOK_SECONDS if until is None else until - self._clock.monotonic()
            message = await self._consumer.receive(timeout=max(0.0, min(left, LOOK_SECONDS)))
            before, self._known = self._known, self._consumer.layouts
            for change in changes(before, self._known):
                self._tell(change)
            if message is not None or (left <= LOOK_SECONDS and until is not None):
                return message


def save(checkpoint: Checkpoint, file: Path) -> None:
    """Replaces the file as a whole: a crash leaves the old content or the new one."""
    path = os.path.realpath(file)  # a link stays a link
    draft = f"{path}.{os.getpid()}"
    try:
        with open(draft, "wb") as new:
            new.write(checkpoint.to_bytes())
            new.flush()
            os.fsync(new.fileno())
        os.replace(draft, path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise


async def take(
    access: Access,
    plan: Plan,
    clock: Clock,
    interruption: Interruption,
    print_one: Callable[[Message], None],
    tell: Callable[[Change], None],
) -> int:
    """How many were printed. Ends after `count` (0: never), when nothing comes for so long, or with a signal."""
    printed = 0
    async with access.connect() as client, opening(client, plan) as consumer:
        interruption.is_polled()
        listening = Listening(consumer, clock, interruption, tell)
        try:
            while not plan.count or printed < plan.count:
                message = await listening.next(plan.patience_seconds)
                if message is None:
                    break
                print_one(message)
                printed += 1
                if isinstance(consumer, QueueConsumer):
                    await consumer.ack(message)
                elif isinstance(consumer, StreamConsumer):
                    await consumer.ack_cumulative(message)
        except Error:  # of the broker: what was printed is in the checkpoint all the same
            keep_place(consumer, plan)
            raise
        keep_place(consumer, plan)
    return printed


def keep_place(consumer: Consumer, plan: Plan) -> None:
    if plan.checkpoint is not None and isinstance(consumer, CheckpointConsumer):
        save(consumer.checkpoint(), plan.checkpoint)


@click.command()
@click.argument("topic", shell_complete=names_of("any_topic"))
@click.option("-s", "--subscription", metavar="NAME", help="Created when it is not there. Not for --type checkpoint.")
@click.option("-n", "--count", type=click.IntRange(min=0), default=0, metavar="N", help="Stop after N (0: never).")
@click.option("--timeout", type=Time(), metavar="TIME", help="Stop when nothing comes for so long: 5s, 1m.")
@click.option(
    "--from",
    "start",
    type=click.Choice(("earliest", "latest")),
    default="latest",
    help="Where a new subscription begins (default: latest).",
)
@click.option(
    "--type",
    "kind",
    type=click.Choice(tuple(KINDS)),
    default="stream",
    help="stream: keys in order (default); queue: shared with others; checkpoint: no subscription.",
)
@click.option(
    "--checkpoint",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="With --type checkpoint: go on where this file says, and replace it at the end.",
)
def consume(
    topic: str,
    subscription: str | None,
    count: int,
    timeout: int | None,
    start: Start,
    kind: str,
    checkpoint: Path | None,
    **reach: object,
) -> int:
    """Print the messages of TOPIC and acknowledge them.

    \b
    Examples:
      anabranch consume my-topic --subscription me --from earliest
      anabranch consume my-topic -s me --count 10 --timeout 5s
      anabranch consume my-topic -s workers --type queue --json | jq .payload
      anabranch consume my-topic --type checkpoint --from earliest --checkpoint here --timeout 2s

    Splits and merges of a scalable topic are reported on standard error.
    With --count and --timeout together, fewer messages than asked for are a failure (exit code 1).
    Ctrl-C and SIGTERM stop it: what was printed is acknowledged, or in the checkpoint. A second one ends it at once.
    """
    kind = KINDS[kind]
    if (subscription is None) != (kind == "checkpoint"):
        raise click.UsageError("--subscription is needed for streams and queues, and for them only")
    if checkpoint is not None and kind != "checkpoint":
        raise click.UsageError("--checkpoint goes with --type checkpoint")
    if checkpoint is not None and not checkpoint.absolute().parent.is_dir():
        raise click.UsageError(f"--checkpoint {checkpoint}: there is no directory {checkpoint.absolute().parent}")
    as_json = bool(reach["as_json"])

    def print_one(message: Message) -> None:
        say(json_text(as_object(message)) if as_json else as_line(message))

    def tell(change: Change) -> None:
        say(json_text(change.as_object()) if as_json else str(change), err=True)

    access = access_of(click.get_current_context())
    plan = Plan(topic, kind, subscription, start, count, timeout, checkpoint)
    interruption = Interruption()
    printed = run(lambda: take(access, plan, SystemClock(), interruption, print_one, tell), interruption)
    saved = "" if checkpoint is None else f"; {checkpoint} has the checkpoint after them"
    interruption.check(f"{printed:,} messages are printed{saved}")
    if printed < count:
        raise TooFew(f"{printed} of {count} messages came within {timeout} s of each other")
    return 0


wire_options(consume)
