"""Controllers of scalable topics: `make bench-scalable` or `python -m benchmarks.scalable [--quick] …`.

Two brokers are two nodes of one process on SQLite: they talk over sockets, but share one core, so that what each phase
of a split costs can be read off. Expected before measuring: a split is two metadata writes (1-3 ms each with their
sync), children and parent one durable write each on their owners, some of them an errand away: 10-20 ms. From the seal
to a watcher elsewhere: the second write, its hint, one read: 3-6 ms. From a drained parent to its children: one errand,
one write: 3-6 ms. A change of 900 segments is one sort and 1,000 small messages: 50 ms of CPU.
"""

from __future__ import annotations

import asyncio
import gc
import random
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from anabranch.broker.scalable_admin import ScalableAdmin
from anabranch.controller.controllers import Controllers
from anabranch.controller.face import AssignedSegments, Registration, Start, SubscriptionKind
from anabranch.controller.host_memory import MemoryHost, Shelf
from anabranch.controller.paths import record_key
from anabranch.controller.record import TopicRecord
from anabranch.controller.record_codec import encode_record
from anabranch.controller.records import NOW
from anabranch.controller.settings import ScalableTopicsSettings
from anabranch.controller.sitting import Sitting
from anabranch.metadata.open import open_store
from anabranch.metadata.port import MetadataStore, Versioned
from anabranch.metadata.writegate import GatedStore
from anabranch.model.errors import Error
from anabranch.model.layout import Layout
from anabranch.model.names import TopicName
from anabranch.node.node import Node
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol import scalable
from anabranch.protocol.commands import BaseCommand, position_of
from anabranch.runtime.clock import SystemClock
from benchmarks import report
from benchmarks.measure import Outcome, Run, Scene, Series, at_most, percentile
from tests.controller_parts import NoRules, Placing
from tests.raw_client import RawClient
from tests.scalable_nodes import LayoutClient, admin_of, layout_client, service_of
from tests.two_nodes import nodes, topic_at, until

T = TypeVar("T")
PHASES = ("PLAN", "CREATE", "SEAL", "COMMIT")
ENDS = {"after-plan": "PLAN", "after-create": "CREATE", "after-seal": "SEAL", "after-commit": "COMMIT"}


def run(work: Callable[[], Awaitable[T]]) -> T:
    async def main() -> T:
        return await work()

    return asyncio.run(main())


class Phases:
    """When each step of a split was done, for the last one."""

    def __init__(self, service: Controllers) -> None:
        self.at: dict[str, float] = {}
        service._step = self._note

    def _note(self, name: str, topic: TopicName) -> None:
        if name in ENDS:
            self.at[ENDS[name]] = time.perf_counter()

    def lengths(self, start: float) -> dict[str, float]:
        """Milliseconds of each phase: since the end of the one before."""
        ends = [start, *(self.at[phase] for phase in PHASES)]
        return {phase: (after - before) * 1000 for phase, before, after in zip(PHASES, ends, ends[1:], strict=False)}


# -- a split


def splits(scene: Scene) -> list[Outcome]:
    """Asked of the leader; a watcher on the other broker; each on a new topic of one segment with one subscription."""

    async def work() -> tuple[list[float], list[float], dict[str, list[float]]]:
        calls: list[float] = []
        told: list[float] = []
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
                told.append((time.perf_counter() - phases.at["SEAL"]) * 1000)
                for phase, spent in phases.lengths(start).items():
                    lengths[phase].append(spent)
        return calls, told, lengths

    calls, told, lengths = run(work)
    return [
        Outcome("split", "split call, two brokers, SQLite", ms("call", calls), None, at_most(30), tail(calls)),
        *(
            Outcome(f"split-{phase.lower()}", f"… of it {phase}", ms(phase, lengths[phase]), None, None)
            for phase in PHASES
        ),
        Outcome(
            "told",
            "parent sealed → layout at a watcher on the other broker",
            ms("told", told),
            None,
            at_most(10),
            tail(told),
        ),
    ]


def ms(label: str, values: list[float]) -> Series:
    return Series(label, "ms", tuple(values))


def tail(values: list[float]) -> dict[str, Any]:
    return {"p99": percentile(values, 0.99), "max": max(values)}


# -- a drain


def drains(scene: Scene) -> list[Outcome]:
    """The last message of a sealed parent is acknowledged → its consumer is told the children."""

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
    raise AssertionError(f"nobody serves {segment}")


# -- many segments


class Framed:
    """A consumer that writes what it is told as the frame of a connection, and lets go at once."""

    says_released = True

    def __init__(self, number: int) -> None:
        self.number, self.at = number, 0.0
        self.held: frozenset[int] = frozenset()
        self.seat: Sitting | None = None

    def assigned(self, assignment: AssignedSegments) -> None:
        made = scalable.assignment(
            assignment.topic,
            assignment.segments,
            epoch=assignment.epoch,
            generation=assignment.generation,
            incarnation=assignment.incarnation,
            extensions=True,
        )
        scalable.assignment_update(self.number, made)
        self.at = time.perf_counter()
        before, self.held = self.held, frozenset(one.segment_id for one in assignment.segments)
        if self.seat is not None and before - self.held:
            release = self.seat.released
            asyncio.get_running_loop().call_soon(release, before - self.held, assignment.generation)

    def ended(self, error: Error) -> None:
        self.seat = None


def controllers(store: MetadataStore, shelf: Shelf, placing: Placing, name: str, **settings: Any) -> Controllers:
    clock = SystemClock()
    return Controllers(
        store,
        placing.at(name),
        MemoryHost(shelf, clock.now_ms),
        NoRules(),
        broker=name,
        settings=ScalableTopicsSettings(**settings),
        clock=clock,
        chance=random.Random(name),
    )


def sqlite(scene: Scene, name: str) -> GatedStore:
    return open_store(f"sqlite://{scene.place(name) / 'metadata'}", SystemClock())


def rebalance(scene: Scene) -> list[Outcome]:
    """10 consumers share the segments; one of these becomes many: layout change → last assignment frame written."""
    before, after = scene.size(100, 20), scene.size(1_000, 60)

    async def work() -> tuple[float, int]:
        placing, topic = Placing(), TopicName.parse("topic://public/default/wide")
        placing.owner = "a"
        async with (
            sqlite(scene, "rebalance") as store,
            controllers(store, Shelf(), placing, "a", max_segments=20_000) as a,
        ):
            await a.create(topic, 2, {})  # one half of the ring is to become many, the other has all the others
            await a.split(topic, 1, ways=before - 1)
            links = [Framed(number) for number in range(10)]
            for link in links:
                wish = Registration("s", SubscriptionKind.STREAM, f"c{link.number}", Start.EARLIEST)
                assigned, link.seat = await a.register(topic, wish, link)
                link.assigned(assigned)
            await until(lambda: all(len(link.held) == before // 10 for link in links))
            owners = {one: link.number for link in links for one in link.held}
            changed: list[float] = []
            a.told = lambda name, record: changed.append(time.perf_counter())
            await a.split(topic, 0, ways=after - before + 1)
            await until(lambda: sum(len(link.held) for link in links) == after)
            now = {one: link.number for link in links for one in link.held}
            moved = sum(now[one] != owner for one, owner in owners.items() if one != 0)
            return (max(link.at for link in links) - changed[-1]) * 1000, moved

    spent, moved = run(work)
    title = f"10 consumers, {before} → {after} segments: layout change → last assignment frame"
    moves = Series("moves", "segments", (float(moved),))
    return [
        Outcome("rebalance", title, ms("rebalance", [spent]), None, at_most(500)),
        Outcome("rebalance-moves", "… segments taken from somebody (the minimum is 0)", moves, None, at_most(0)),
    ]


# -- many topics


def failover(scene: Scene) -> list[Outcome]:
    """The names of a dead leader come to another broker → a split is done there; SQLite, segments in memory."""
    found: list[Outcome] = []
    for count in (1, scene.size(10_000, 50)):
        spent = [run(lambda number=number, count=count: one_failover(scene, count, number)) for number in range(3)]  # type: ignore[misc]  # bound now
        title = f"leader gone → operations accepted again, {count} topic{'s' if count > 1 else ''}"
        found.append(Outcome(f"failover-{count}", title, ms("failover", spent), None, at_most(1_000)))
    return found


async def one_failover(scene: Scene, count: int, number: int) -> float:
    """One topic was in the middle of a split; of the others every tenth has something unfinished too."""
    placing, shelf = Placing(), Shelf()
    names = [TopicName.parse(f"topic://public/default/t{index}") for index in range(count)]
    async with sqlite(scene, f"failover-{count}-{number}") as store:
        async with controllers(store, shelf, placing, "a") as a:
            placing.owner = "a"
            await a.create(names[0], 1, {})
            value = encode_record(TopicRecord(Layout.initial(1, now_ms=0), incarnation=1, leader_term=1))
            items = [(record_key(name), Versioned(value, 1, 0, 0, ephemeral=False)) for name in names[1:]]
            for first in range(0, len(items), 500):
                await store.bulk_write(items[first : first + 500], preserve=False)
            for name in names[::10]:
                await a.records.want(name, NOW)
        async with controllers(store, shelf, placing, "b") as b:
            placing.owner = "b"
            start = time.perf_counter()
            b.placement_changed(has_gained=True)
            await b.split(names[0], 0)
            return (time.perf_counter() - start) * 1000


def idle(scene: Scene) -> list[Outcome]:
    """What a topic that is led takes, and what one takes that has nothing to lead."""
    count = scene.size(1_000, 20)

    async def work() -> tuple[float, float, int]:
        placing = Placing()
        placing.owner = "a"
        async with sqlite(scene, "idle") as store, controllers(store, Shelf(), placing, "a") as a:
            tracemalloc.start()
            tasks, before = len(asyncio.all_tasks()), tracemalloc.get_traced_memory()[0]
            names = [TopicName.parse(f"topic://public/default/t{index}") for index in range(count)]
            for name in names:
                await a.create(name, 1, {})
            led = tracemalloc.get_traced_memory()[0]
            await until(lambda: all(one.is_idle for one in a._leaders.values()))
            for topic, leader in tuple(a._leaders.items()):
                await a._unload(topic, leader, None)
            del topic, leader
            gc.collect()
            rest = tracemalloc.get_traced_memory()[0]
            tracemalloc.stop()
            return (led - before) / count, (rest - before) / count, len(asyncio.all_tasks()) - tasks

    led, rest, tasks = run(work)
    return [
        Outcome("led", f"memory of a topic that is led, of {count}", Series("led", "bytes", (led,)), None, None),
        Outcome(
            "idle",
            "… that is idle: its segment in the memory host and its name (no object of the controller's)",
            Series("idle", "bytes", (rest,)),
            None,
            None,
            {"tasks": tasks},
        ),
        Outcome("idle-tasks", "tasks of idle topics", Series("tasks", "tasks", (float(tasks),)), None, at_most(0)),
    ]


MEASURES: dict[str, Run] = {
    "splits": splits,
    "drains": drains,
    "rebalance": rebalance,
    "failover": failover,
    "idle": idle,
}


def main(arguments: list[str] | None = None) -> int:
    return report.run("benchmarks.scalable", MEASURES, ("micro_controller",), arguments, mark="-scalable")


if __name__ == "__main__":
    raise SystemExit(main())
