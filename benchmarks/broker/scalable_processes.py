"""Scalable topics on real broker processes: cost of idle topics, and time until a new leader after kill -9.

Expected before measuring. An idle topic is a record in the metadata store. A process holds its one open segment
(20-30 KB, like any other topic) or, after a restart, nothing. A topic has no task and no timer. Periodic tasks visit
only topics with activity; 10,000 topics are swept once a minute, which costs 1-3 ms per second.

The session file of a killed leader is unlocked at once (SQLite). The survivor detects this, takes over the names, reads
unfinished operations and continues: 0.2-0.5 s, most of it log recovery. With 10,000 topics it scans only the requested
ones.
"""

from __future__ import annotations

import asyncio
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, replace

from anabranch.node.node import Node
from anabranch.node.settings.scalable_topics import ScalableTopicSettings
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.commands import BaseCommand
from anabranch.runtime.clock import SystemClock
from benchmarks.support.measure import Outcome, Scene, Series, at_most
from tests.support.processes.broker_process import BrokerProcess
from tests.support.processes.cluster import ClusterProcesses, RestRefused, rest
from tests.support.processes.in_process_cluster import until as until_here
from tests.support.processes.scalable_nodes import LayoutClient, plain_settings, service_of
from tests.support.traffic.raw_client import RawClient

BASE = "/admin/v2/scalable/public/default"
PATIENCE_S = 120.0
QUICK_IDLE = ("--set", "scalable_topics.idle_seconds=1", "--set", "scalable_topics.sweep_seconds=1")
STAYS_OPEN = ("--set", "broker.idle_topic_seconds=3600")  # idle topics are measured, not unloaded ones
TOGETHER = 16


def topic(stem: str, number: int) -> str:
    return f"topic://public/default/{stem}-{number}"


async def create_all(service_url: str, stem: str, count: int) -> None:
    """Create topics by their first lookup, `TOGETHER` at a time. No watch stays open."""
    async with RawClient(service_url) as raw:
        await raw.hello(extensions=True)
        client = LayoutClient(raw)
        for start in range(0, count, TOGETHER):
            some = range(start, min(start + TOGETHER, count))
            for number in some:
                client.lookup(topic(stem, number), number)
            for number in some:
                update = await client.update(number)
                if update.HasField("error"):
                    raise AssertionError(f"{topic(stem, number)}: {update.message}")
                raw.tell(BaseCommand.SCALABLE_TOPIC_CLOSE, session_id=number)
        await raw.barrier()


def wait(done: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not done():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {PATIENCE_S} s: {what}")
        time.sleep(0.02)  # a poll of another process, bounded by the deadline


def led(broker: BrokerProcess) -> int:
    """Scalable topics whose controller is loaded there."""
    with urllib.request.urlopen(f"{broker.http_url}/metrics", timeout=30) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith("anabranch_scalable_topics_led"):
                return int(float(line.rsplit(" ", 1)[1]))
    raise AssertionError("no figure of led topics")


# -- idle topics


def idle(scene: Scene) -> list[Outcome]:
    count, seconds = scene.size(10_000, 20), 30.0 if not scene.quick else 0.3
    with BrokerProcess(scene.place("idle") / "data", arguments=(*QUICK_IDLE, *STAYS_OPEN)) as broker:
        fresh = broker.rss_bytes()
        asyncio.run(create_all(broker.service_url, "warm", scene.size(200, 5)))
        wait(lambda: led(broker) == 0, "topics are unloaded")
        before, quiet = broker.rss_bytes(), idle_cpu(broker, seconds)
        asyncio.run(create_all(broker.service_url, "idle", count))
        wait(lambda: led(broker) == 0, "topics are unloaded")
        after, busy = broker.rss_bytes(), idle_cpu(broker, seconds)
        broker.stop(within_s=PATIENCE_S)
        broker.start()
        wait(lambda: led(broker) == 0, "topics are unloaded")
        again = broker.rss_bytes()
    tasks, timers = asyncio.run(left_running(scene, scene.size(500, 20)))
    opened, cold = (after - before) / count, max(0, again - fresh) / count
    return [
        Outcome("idle", f"memory of an idle topic, of {count}, its segment open", memory(opened), None, None),
        Outcome("idle-cold", "… after a restart of the broker", memory(cold), None, None, {"rss": again}),
        Outcome(
            "idle-cpu",
            f"CPU that 10,000 idle topics cost, measured with {count}, their segments open",
            Series("cpu", "ms/s", (max(0.0, busy - quiet) * 10_000 / count,)),
            None,
            at_most(5),
            {"broker_with_them": busy, "broker_without": quiet},
        ),
        Outcome("idle-tasks", "tasks of an idle topic, its segment too", number(tasks, "tasks"), None, at_most(0)),
        Outcome("idle-timers", "timers of an idle topic, its segment too", number(timers, "timers"), None, at_most(0)),
    ]


def memory(value: float) -> Series:
    return Series("memory", "bytes", (value,))


def number(count: int, unit: str) -> Series:
    return Series(unit, unit, (float(count),))


def idle_cpu(broker: BrokerProcess, seconds: float) -> float:
    """Milliseconds of CPU per second without requests."""
    start, used = time.monotonic(), broker.cpu_seconds()
    time.sleep(seconds)
    return (broker.cpu_seconds() - used) * 1000 / (time.monotonic() - start)


async def left_running(scene: Scene, count: int) -> tuple[int, int]:
    """Additional tasks and timers per idle topic, for a node in this process, compared with before the creation.

    Rounded down, so that a short-lived task is not counted."""
    settings = replace(ScalableTopicSettings(), idle_seconds=0.5, sweep_seconds=0.5)
    async with Node(plain_settings(scene.place("tasks"), scalable_topics=settings)) as node:
        await create_all(node.service_url, "warm", 5)
        await until_here(lambda: len(service_of(node).controllers) == 0)
        before = await running(scene.size(40, 8))
        await create_all(node.service_url, "idle", count)
        await until_here(lambda: len(service_of(node).controllers) == 0)
        after = await running(scene.size(40, 8))
    return max(0, after[0] - before[0]) // count, max(0, after[1] - before[1]) // count


async def running(looks: int) -> tuple[int, int]:
    """The fewest of some looks: what is passing by does not count."""
    loop, clock, found = asyncio.get_running_loop(), SystemClock(), list[tuple[int, int]]()
    for _ in range(looks):
        await clock.sleep(0.05)
        timers = [one for one in loop._scheduled if not one.cancelled()]  # type: ignore[attr-defined]  # asyncio has no public word for it
        found.append((len(asyncio.all_tasks()), len(timers)))
    return min(one for one, _ in found), min(other for _, other in found)


# -- failover


def failover(scene: Scene) -> list[Outcome]:
    """kill -9 of the leader → a split of its topic is done by the other broker. SQLite: the session is gone with it."""
    count, sessions = scene.size(10_000, 20), scene.size(500, 5)
    patient = ("--set", "scalable_topics.session_grace_seconds=600")  # consumers stay, though they are not there
    with ClusterProcesses(scene.place("failover"), 2, arguments=(*QUICK_IDLE, *patient)) as cluster:
        one = [one_failover(cluster, f"one-{number}") for number in range(scene.size(5, 1))]
        asyncio.run(create_all(cluster.alive[0].service_url, "many", count))
        asyncio.run(join_all(cluster, "many", sessions))
        many = [one_failover(cluster, f"many-one-{number}", sessions) for number in range(scene.size(3, 1))]
    title = "leader killed → operations accepted again, real processes, {}"
    return [
        Outcome("failover-1", title.format("1 topic"), ms(one), None, at_most(1_000), cpu_of(one)),
        Outcome(
            f"failover-{count}",
            title.format(f"{count} topics, {sessions} of them with consumers"),
            ms(many),
            None,
            at_most(1_000),
            cpu_of(many),
        ),
        Outcome(
            "failover-all",
            f"… all {sessions} are led again",
            Series("all", "ms", tuple(one.everything for one in many)),
            None,
            None,
        ),
    ]


def ms(values: list[Failover]) -> Series:
    return Series("failover", "ms", tuple(one.first for one in values))


def cpu_of(values: list[Failover]) -> dict[str, list[float]]:
    return {"survivor_cpu_ms": [one.cpu for one in values]}


@dataclass(frozen=True, slots=True)
class Failover:
    """In milliseconds."""

    first: float  # to the first split
    everything: float  # until all topics with consumers are led by the survivor
    cpu: float  # of the survivor until the first split: the lower bound on a separate machine


def one_failover(cluster: ClusterProcesses, name: str, sessions: int = 0) -> Failover:
    rest(cluster.alive[0], "PUT", f"{BASE}/{name}?numInitialSegments=1")
    url = rest(cluster.alive[0], "GET", f"{BASE}/{name}/stats")["controller"]
    victim = next(broker for broker in cluster.brokers.values() if broker.service_url == url)
    heir = next(broker for broker in cluster.brokers.values() if broker is not victim)

    def split() -> bool:
        try:
            rest(heir, "POST", f"{BASE}/{name}/split/0?operationId=op", within_s=1.0)
        except (OSError, RestRefused):
            return False
        return True

    wait(lambda: sum(map(led, cluster.alive)) == sessions, "only topics with consumers are led")
    start, used = time.perf_counter(), heir.cpu_seconds()
    victim.kill9()
    while not split():
        if time.perf_counter() - start > PATIENCE_S:
            raise AssertionError("no broker takes over")
    first, cpu = (time.perf_counter() - start) * 1000, (heir.cpu_seconds() - used) * 1000
    wait(lambda: led(heir) >= sessions, "topics with consumers are led")
    everything = (time.perf_counter() - start) * 1000
    cluster.revive()
    return Failover(first, everything, cpu)


async def join_all(cluster: ClusterProcesses, stem: str, count: int) -> None:
    """Register a consumer of an ordered subscription on each of the first `count` topics, at its leader."""
    open_at = [RawClient(broker.service_url) for broker in cluster.alive]
    for raw in open_at:
        await raw.__aenter__()
        await raw.hello(extensions=True)
    try:
        for number in range(count):
            await _join(open_at, topic(stem, number), number)
    finally:
        for raw in open_at:
            await raw.__aexit__(None, None, None)


async def _join(clients: list[RawClient], name: str, number: int) -> None:
    for raw in clients:
        answer = await LayoutClient(raw).register(name, "s", "c", number, initial_position=pb.CommandSubscribe.Earliest)
        if not answer.HasField("error"):
            return
    raise AssertionError(f"no broker leads {name}: {answer.message}")
