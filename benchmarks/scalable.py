"""Controllers of scalable topics: `make bench-scalable` or `python -m benchmarks.scalable [--quick] …`.

Splits and drains: two brokers are two nodes of one process on SQLite. They talk over sockets, but share one core, so
that what each phase of a split costs can be read off. A rebalance: ten connections to one node with segments on disk.
Failover and idle topics: real processes (`scalable_processes`).

Expected before measuring: a split is two metadata writes (1-3 ms each with their sync), children and parent one durable
write each on their owners, some of them a peer call away: 10-20 ms. From the seal to a watcher elsewhere: the second
write, its hint, one read: 3-6 ms. From a drained parent to its children: one peer call, one write: 3-6 ms. A change of
900 segments is one sort, and 1,000 small messages written and read: 100 ms of CPU.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any, TypeVar

from anabranch.broker.admin.scalable_topics import ScalableAdmin
from anabranch.controller.records.topic_record import TopicRecord
from anabranch.controller.service import ScalableTopicService
from anabranch.model.names import TopicName
from anabranch.node.node import Node
from anabranch.node.settings.scalable_topics import ScalableTopicSettings
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.commands import BaseCommand, position_of
from anabranch.runtime.tasks import TaskOwner
from benchmarks.broker import scalable_processes
from benchmarks.support import report
from benchmarks.support.measure import Outcome, Run, Scene, Series, at_most, percentile
from tests.support.processes.in_process_cluster import nodes, topic_at, until
from tests.support.processes.scalable_nodes import LayoutClient, admin_of, layout_client, plain_settings, service_of
from tests.support.traffic.raw_client import RawClient

T = TypeVar("T")
PHASES = ("PLAN", "CREATE", "SEAL", "COMMIT")
ENDS = {"after-plan": "PLAN", "after-create": "CREATE", "after-seal": "SEAL", "after-commit": "COMMIT"}


def run(work: Callable[[], Awaitable[T]]) -> T:
    async def main() -> T:
        return await work()

    return asyncio.run(main())


class Phases:
    """End time of each phase of the last split."""

    def __init__(self, service: ScalableTopicService) -> None:
        self.at: dict[str, float] = {}
        service.controllers._step = self._note

    def _note(self, name: str, topic: TopicName) -> None:
        if name in ENDS:
            self.at[ENDS[name]] = time.perf_counter()

    def lengths(self, start: float) -> dict[str, float]:
        """Milliseconds of each phase, from the end of the previous one."""
        ends = [start, *(self.at[phase] for phase in PHASES)]
        return {phase: (after - before) * 1000 for phase, before, after in zip(PHASES, ends, ends[1:], strict=False)}


# -- a split


def splits(scene: Scene) -> list[Outcome]:
    """Splits at the leader, with a watcher on the other broker. Each has a new topic: one segment, one subscription."""

    async def work() -> tuple[list[float], list[float], dict[str, list[float]]]:
        calls: list[float] = []
        updated: list[float] = []
        lengths: dict[str, list[float]] = {phase: [] for phase in PHASES}
        async with nodes(scene.place("splits"), "a", "b") as (a, b), layout_client(b) as watcher:
            admin, phases = admin_of(a), Phases(service_of(a))
            for number in range(scene.size(50, 2)):
                topic = str(topic_at(a, f"topic://public/default/s{number}"))
                await admin.create(topic, 1, {})
                await admin.create_subscription(topic, "s", "STREAM", "earliest")
                watcher.lookup(topic, number)
                await watcher.update(number)
                start = time.perf_counter()
                seen = asyncio.ensure_future(watcher.until_layout(lambda dag: dag.epoch == 1, number))
                await admin.split(topic, 0, 2, None, None)
                calls.append((time.perf_counter() - start) * 1000)
                await seen
                updated.append((time.perf_counter() - phases.at["SEAL"]) * 1000)
                for phase, spent in phases.lengths(start).items():
                    lengths[phase].append(spent)
        return calls, updated, lengths

    calls, updated, lengths = run(work)
    return [
        Outcome("split", "split call, two brokers, SQLite", ms("call", calls), None, at_most(30), tail(calls)),
        *(
            Outcome(f"split-{phase.lower()}", f"… of it {phase}", ms(phase, lengths[phase]), None, None)
            for phase in PHASES
        ),
        Outcome(
            "told",
            "parent sealed → layout at a watcher on the other broker",
            ms("updated", updated),
            None,
            at_most(10),
            tail(updated),
        ),
    ]


def ms(label: str, values: list[float]) -> Series:
    return Series(label, "ms", tuple(values))


def tail(values: list[float]) -> dict[str, Any]:
    return {"p99": percentile(values, 0.99), "max": max(values)}


# -- a drain


def drains(scene: Scene) -> list[Outcome]:
    """From the last acknowledgement on a sealed parent until its consumer is assigned the children."""

    async def work() -> list[float]:
        found: list[float] = []
        async with nodes(scene.place("drains"), "a", "b") as (a, b), layout_client(a) as member:
            for number in range(scene.size(100, 2)):
                topic = str(topic_at(a, f"topic://public/default/d{number}"))
                found.append(await one_drain(admin_of(a), a, b, member, topic, number))
        return found

    found = run(work)
    title = "parent drained → its children granted to their consumer, SQLite"
    return [
        Outcome("drained", title, ms("granted", found), None, at_most(10), tail(found)),
        Outcome("drained-max", "… the longest of all", ms("longest", [max(found)]), None, at_most(50)),
    ]


async def one_drain(admin: ScalableAdmin, a: Node, b: Node, member: LayoutClient, topic: str, number: int) -> float:
    await admin.create(topic, 1, {})
    answer = await member.register(topic, "s", "m", number, initial_position=pb.CommandSubscribe.Earliest)
    segment = answer.assignment.segments[0].segment_topic
    for node in (a, b):
        async with RawClient(node.service_url) as raw:
            await raw.hello(extensions=True)
            if (await raw.producer(segment)).kind == BaseCommand.ERROR:
                continue  # the other one serves it
            raw.send(0)
            await raw.receipt()
            await raw.subscribe(segment, "s", permits=10, subType=pb.CommandSubscribe.Exclusive)
            position = position_of((await raw.message()).message_id)
            await admin.split(topic, 0, 2, None, None)
            start = time.perf_counter()
            raw.ack(position)
            granted = await member.assignment(number)
            while len(granted.segments) != 2:
                granted = await member.assignment(number)
            return (time.perf_counter() - start) * 1000
    raise AssertionError(f"no broker serves {segment}")


# -- many segments


class Reader:
    """A consumer with a separate connection. It releases a revoked segment at once."""

    def __init__(self, client: LayoutClient, number: int) -> None:
        self.client, self.number, self.at = client, number, 0.0
        self.held: frozenset[int] = frozenset()

    async def follow(self, topic: str) -> None:
        """Register and follow assignments until cancelled."""
        name, earliest = f"c{self.number}", pb.CommandSubscribe.Earliest
        answer = await self.client.register(topic, "s", name, initial_position=earliest)
        self._take(answer.assignment)
        while True:
            try:
                self._take(await self.client.assignment())
            except TimeoutError:
                continue  # nothing new for a while

    def _take(self, assignment: pb.ScalableConsumerAssignment) -> None:
        self.at = time.perf_counter()
        before, self.held = self.held, frozenset(one.segment_id for one in assignment.segments)
        if before - self.held:
            self.client.raw.tell(
                BaseCommand.SEGMENT_RELEASE,
                consumer_id=1,
                generation=assignment.generation,
                segment_ids=sorted(before - self.held),
            )


def rebalance(scene: Scene) -> list[Outcome]:
    """10 consumers share the segments; one of these becomes many: layout change → the last assignment frame arrived."""
    before, after = scene.size(100, 20), scene.size(1_000, 60)

    async def work() -> tuple[float, int]:
        topic = "topic://public/default/wide"
        settings = replace(ScalableTopicSettings(), max_segments=20_000, create_seconds=120.0, call_seconds=120.0)
        async with (
            Node(plain_settings(scene.place("rebalance"), scalable_topics=settings)) as node,
            AsyncExitStack() as connections,
        ):
            tasks = TaskOwner("readers")
            admin, service = admin_of(node), service_of(node)
            await admin.create(topic, 2, {})  # one half of the ring is to become many, the other has all the others
            await admin.split(topic, 1, before - 1, None, None)
            readers = [
                Reader(await connections.enter_async_context(layout_client(node)), number) for number in range(10)
            ]
            connections.push_async_callback(tasks.close)  # before their connections are
            for reader in readers:
                tasks.spawn(reader.follow(topic), "reader")
            await until(lambda: all(len(reader.held) == before // 10 for reader in readers))
            owners = {one: reader.number for reader in readers for one in reader.held}
            changed: list[float] = []
            notify = service.topic_changed

            def note_change(topic: TopicName, record: TopicRecord | None) -> None:
                changed.append(time.perf_counter())
                notify(topic, record)

            service.topic_changed = note_change  # type: ignore[method-assign]  # records the time of each change
            await admin.split(topic, 0, after - before + 1, None, None)
            await until(lambda: sum(len(reader.held) for reader in readers) == after)
            now = {one: reader.number for reader in readers for one in reader.held}
            moved = sum(now[one] != owner for one, owner in owners.items() if one != 0)
            return (max(reader.at for reader in readers) - changed[-1]) * 1000, moved

    spent, moved = run(work)
    title = f"10 consumers, {before} → {after} segments: layout change → last assignment frame at its consumer"
    moves = Series("moves", "segments", (float(moved),))
    return [
        Outcome("rebalance", title, ms("rebalance", [spent]), None, at_most(500)),
        Outcome(
            "rebalance-moves", "… segments taken from another consumer (the minimum is 0)", moves, None, at_most(0)
        ),
    ]


MEASURES: dict[str, Run] = {
    "splits": splits,
    "drains": drains,
    "rebalance": rebalance,
    "failover": scalable_processes.failover,
    "idle": scalable_processes.idle,
}


def main(arguments: list[str] | None = None) -> int:
    return report.run("benchmarks.scalable", MEASURES, ("micro_controller",), arguments, mark="-scalable")


if __name__ == "__main__":
    raise SystemExit(main())
