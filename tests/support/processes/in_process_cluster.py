"""Several brokers of one cluster as objects of one process, on one data directory with SQLite. For tests of
their messages to each other; kills and pauses need processes (`tests/support/processes/cluster.py`)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

from anabranch.cluster.slots import SLOTS
from anabranch.model.names import TopicName
from anabranch.node.adapters.placement import ClusterPlacement
from anabranch.node.node import Node
from anabranch.node.settings.node import NodeSettings
from anabranch.runtime.clock import SystemClock

WAIT_SECONDS = 60.0
_CLOCK = SystemClock()


def node_settings(directory: Path, name: str, **more: object) -> NodeSettings:
    plain = NodeSettings()
    chosen = replace(
        plain,
        network=replace(plain.network, port=0),
        http=replace(plain.http, port=0),
        storage=replace(plain.storage, dir=directory, broker_id=name),
        cluster=replace(plain.cluster, enabled=True),
    )
    return replace(chosen, **more)  # type: ignore[arg-type]  # groups of settings by name, as NodeSettings has them


@asynccontextmanager
async def nodes(directory: Path, *names: str, **more: object) -> AsyncIterator[list[Node]]:
    """Wait until all brokers serve and agree on the holder of every slot."""
    async with AsyncExitStack() as stack:
        found = [await stack.enter_async_context(Node(node_settings(directory, name, **more))) for name in names]
        await until(lambda: is_settled(found))
        yield found


def place_of(node: Node) -> ClusterPlacement:
    place = node.services.cluster
    assert isinstance(place, ClusterPlacement)
    return place


def is_settled(found: list[Node]) -> bool:
    """Every slot is held, evenly, none moves, and every node sees the same."""
    clusters = [place_of(node).cluster for node in found]
    table = clusters[0].table
    if any(one.table != table for one in clusters) or any(slot.next_holder is not None for slot in table.slots):
        return False
    counts = [len(table.held_by(one.info.broker_incarnation)) for one in clusters]
    return sum(counts) == SLOTS and max(counts) - min(counts) <= 1


async def until(done: Callable[[], bool]) -> None:
    """What the machinery brings about by itself; a poll with a generous deadline."""
    async with asyncio.timeout(WAIT_SECONDS):
        while not done():
            await _CLOCK.sleep(0.005)


def topic_at(node: Node, stem: str = "persistent://public/default/t") -> TopicName:
    """A name that this node serves."""
    names = (TopicName.parse(f"{stem}-{number}") for number in range(10_000))
    return next(name for name in names if place_of(node).is_here(name))
