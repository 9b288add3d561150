"""What `produce`, `consume` and `bench` share: their options for reaching a broker, opening producers and consumers on
every partition."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import click

from anabranch.cli.verb import ENV_TOKEN, ENV_TRUST, option, setting, token_of
from anabranch.cli.wire import DEFAULT_URL, Access, Cluster, WireError
from anabranch.cli.wire_clients import Consumer, Delivery, Producer
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.runtime.clock import Clock

ENV_URL = "ANABRANCH_SERVICE_URL"
TYPES = {
    "exclusive": pb.CommandSubscribe.Exclusive,
    "shared": pb.CommandSubscribe.Shared,
    "failover": pb.CommandSubscribe.Failover,
    "key-shared": pb.CommandSubscribe.Key_Shared,
}
Inbox = asyncio.Queue[Delivery | WireError]
T = TypeVar("T")


def wire_options(command: click.Command) -> click.Command:
    command.params += [
        option("--url", metavar="URL", help=f"Where the broker is (default: ${ENV_URL} or {DEFAULT_URL})."),
        option("--token", metavar="TOKEN", help=f"A token, or file:PATH of one (default: ${ENV_TOKEN})."),
        option("--tls-trust-certs", metavar="FILE", help=f"For pulsar+ssl:// (default: ${ENV_TRUST})."),
        option("--json", "as_json", is_flag=True, help="As JSON, for programs."),
    ]
    return command


def access_of(context: click.Context) -> Access:
    return Access(
        setting(context, "url", ENV_URL) or DEFAULT_URL,
        token_of(setting(context, "token", ENV_TOKEN)),
        setting(context, "tls_trust_certs", ENV_TRUST),
    )


@asynccontextmanager
async def producers(cluster: Cluster, topic: str, clock: Clock) -> AsyncIterator[list[Producer]]:
    """One for each partition; leaving waits for every receipt."""
    opened = []
    for part in await cluster.parts_of(topic):
        producer = Producer(await cluster.serving(part), part, clock)
        await producer.open()
        opened.append(producer)
    yield opened
    for producer in opened:
        await producer.close()


@asynccontextmanager
async def consumers(
    cluster: Cluster, topic: str, subscription: str, kind: str, *, from_earliest: bool, permits: int = 1000
) -> AsyncIterator[Inbox]:
    """One for each partition, all into one inbox; leaving makes every ack count."""
    inbox: Inbox = asyncio.Queue()
    opened = []
    for part in await cluster.parts_of(topic):
        consumer = Consumer(await cluster.serving(part), part, inbox, permits=permits)
        await consumer.open(subscription, TYPES[kind], from_earliest=from_earliest)
        opened.append(consumer)
    for consumer in opened:
        consumer.start()
    yield inbox
    for consumer in opened:
        await consumer.close()


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)
