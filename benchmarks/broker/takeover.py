"""The owner of a topic is killed with -9: how long until the next acknowledged send, and until everything is served.

Expected before measuring. SQLite: the lock on the session's file is free at once and looked at every few milliseconds;
three writes of the table and a recovery of at most two log files (64-128 MiB, mostly in the page cache: 0.1-0.2 s); the
stock client waits 100 ms before it looks a topic up, and 100-200 ms more when it asks a dead broker first: 0.3-0.5 s.
Elsewhere the session's timeout goes before that, and servers look for dead sessions every so often: + 0.2-0.5 s.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.commands import BaseCommand, frame
from benchmarks.support.measure import Outcome, Scene, Series, at_most
from benchmarks.support.raw_wire import Frames, Wire, one_batch, one_message, publish, send_frames
from tests.services import available
from tests.support.processes.broker_process import BrokerProcess
from tests.support.processes.cluster import ClusterProcesses
from tests.support.traffic.stock_client import new_client

TOPIC = "persistent://public/default/bench-{}"
SESSION_MS = 3_000


@contextmanager
def brokers(scene: Scene, name: str, size: int, kind: str = "sqlite") -> Iterator[ClusterProcesses]:
    folder = scene.place(name)
    if kind == "sqlite":
        with ClusterProcesses(folder, size) as cluster:
            yield cluster
        return
    with available.KINDS[kind].cluster(folder / "store") as server:
        url = f"{server.url}/default/bench" if kind == "oxia" else f"{server.url}/bench"
        with ClusterProcesses(folder, size, metadata_url=url, session_ms=SESSION_MS) as cluster:
            yield cluster


def stock(scene: Scene, kind: str) -> list[float]:
    """Seconds from the kill to the stock client's next receipt, per round."""
    found: list[float] = []
    with brokers(scene, f"takeover-{kind}", 3, kind) as cluster:
        client = new_client(cluster.service_url)
        topic = TOPIC.format("takeover")
        producer = client.create_producer(topic, send_timeout_millis=0)
        for _ in range(scene.size(9 if kind == "sqlite" else 5, 1)):
            producer.send(b"before")
            owner = cluster.owner(topic)
            start = time.perf_counter()
            owner.kill9()
            producer.send(b"after")
            found.append(time.perf_counter() - start)
            cluster.revive()
        client.close()
    return found


def on_sqlite(scene: Scene) -> list[Outcome]:
    seconds = tuple(stock(scene, "sqlite"))
    title = "kill -9 of the owner → next receipt of the stock client, sqlite"
    return [Outcome("takeover-sqlite", title, Series("gap", "s", seconds), None, at_most(1))]


def on_servers(scene: Scene) -> list[Outcome]:
    """What comes on top of the session's timeout."""
    outcomes = []
    for kind in available.KINDS:
        more = tuple(max(seconds - SESSION_MS / 1000, 0.001) for seconds in stock(scene, kind))
        title = f"the same on {kind}: beyond the session's {SESSION_MS / 1000:g} s"
        outcomes.append(Outcome(f"takeover-{kind}", title, Series("more", "s", more), None, at_most(0.5)))
    return outcomes


# -- the brokers' side


class Lookup:
    """Lookups and producers on a raw connection: no back-off, no waiting but the broker's own."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.wire = Wire(broker.port)

    def ask(self, topics: list[str]) -> list[str]:
        """Who serves them; all asked at once."""
        bodies = [pb.CommandLookupTopic(topic=topic, request_id=self.wire.next_request()) for topic in topics]
        self.wire.sock.sendall(b"".join(frame(BaseCommand(type=BaseCommand.LOOKUP, lookup=one)) for one in bodies))
        answers = {}
        for _ in bodies:
            answer = self.wire.answer(BaseCommand.LOOKUP_RESPONSE)
            answers[answer.request_id] = answer.brokerServiceUrl
        return [answers[one.request_id] for one in bodies]


def served(scene: Scene) -> list[Outcome]:
    """From the death of a broker to all of its topics served: each has a producer elsewhere, then a receipt."""
    count, data_bytes = scene.size(100, 10), scene.size(1 << 30, 1 << 20)
    first, opened, everything = [], [], []
    for number in range(scene.size(5, 1)):
        with brokers(scene, f"takeover-served-{number}", 2) as cluster:
            victim, heir = cluster.brokers["b1"], cluster.brokers["b2"]
            some = [TOPIC.format(f"served-{number}") for number in range(count * 4)]
            owners = zip(some, Lookup(heir).ask(some), strict=True)
            topics = [topic for topic, url in owners if url == victim.service_url][:count]
            fill(victim, topics, data_bytes)
            survivor = Lookup(heir)
            start = time.perf_counter()
            victim.kill9()
            while set(survivor.ask(topics)) != {heir.service_url}:  # it may not have noticed yet
                assert time.perf_counter() - start < 30, "no broker takes over"
            survivor.wire.produce_all(dict(enumerate(topics[:1])))
            publish_one(survivor.wire, 0)
            first.append(time.perf_counter() - start)
            survivor.wire.produce_all(dict(enumerate(topics[1:], start=1)))
            opened.append(time.perf_counter() - start)
            publish_each(survivor.wire, range(1, len(topics)))
            everything.append(time.perf_counter() - start)
    title = f"kill -9 → first of {count} topics with a receipt elsewhere, {data_bytes >> 20} MiB written"
    return [
        Outcome("takeover-served", title, Series("first", "s", tuple(first)), None, at_most(0.3)),
        Outcome("takeover-opened", f"… all {count} open", Series("open", "s", tuple(opened)), None, at_most(0.3)),
        Outcome("takeover-all", f"… all {count} with a receipt", Series("all", "s", tuple(everything)), None, None),
    ]


def publish_one(wire: Wire, producer_id: int) -> None:
    publish(wire, send_frames(one_message(100), 1, producer_id=producer_id), window=1)


def publish_each(wire: Wire, producers: range) -> None:
    """One message for each, all sent at once."""
    payload = one_message(100)
    wire.sock.sendall(b"".join(send_frames(payload, 1, producer_id=producer).data for producer in producers))
    for _ in producers:
        wire.answer(BaseCommand.SEND_RECEIPT)


def fill(broker: BrokerProcess, topics: list[str], data_bytes: int) -> None:
    """So much through the log, spread over all topics; the last of it is in the log only."""
    payload = one_batch(100, 1000)
    each = max(data_bytes // len(payload) // len(topics), 1)
    with Wire(broker.port) as wire:
        wire.produce_all(dict(enumerate(topics, start=1)))
        for producer in range(1, len(topics) + 1):
            publish(wire, _frames(payload, each, producer), window=20)


def _frames(payload: bytes, count: int, producer: int) -> Frames:
    return send_frames(payload, count, 100, producer_id=producer)
