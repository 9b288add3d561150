"""A cluster of broker processes with scalable topics on any metadata store, whose leaders die or stand still on call.

Knows the steps' hook (`node.scalable.DIE_AT`) and the REST of scalable topics; what is to hold afterwards is here too,
so that every test of a failure asks for the same.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from anabranch.node.wiring.scalable_topics import DIE_AT
from tests import services
from tests.support.processes.broker_process import BrokerProcess
from tests.support.processes.cluster import ClusterProcesses, RestRefused, rest

SESSION_MS = 2_000
NAMESPACE = "public/default"


class Brokers:
    """The cluster, and the file that names the step at which a leader is to die or to stand still."""

    def __init__(self, processes: ClusterProcesses, die_at: Path) -> None:
        self.processes, self.die_at = processes, die_at

    def any(self) -> BrokerProcess:
        return next(broker for broker in self.processes.alive if not broker.is_frozen)

    def leader_of(self, topic: str) -> BrokerProcess:
        url = self.ask("GET", f"{topic}/stats")["controller"]
        return next(broker for broker in self.processes.brokers.values() if broker.service_url == url)

    def ask(self, method: str, path: str, body: object = None) -> Any:
        return rest(self.any(), method, f"/admin/v2/scalable/{NAMESPACE}/{path}", body)

    def insist(self, method: str, path: str) -> Any:
        """Repeats the call at any running broker until it is answered; operations are idempotent."""
        found: list[Any] = []

        def asked() -> bool:
            try:
                found.append(self.ask(method, path))
            except OSError:
                return False
            except RestRefused as error:
                if error.status not in (503, 504):
                    raise
                return False
            return True

        self.processes.until(asked, f"{method} {path} is not answered", 60.0)
        return found[0]

    def until(self, done: Callable[[], bool], complaint: str) -> None:
        def tried() -> bool:
            try:
                return done()
            except (OSError, RestRefused):
                return False

        self.processes.until(tried, complaint, 60.0)


@contextmanager
def scalable_brokers(folder: Path, store: str, **environment: str) -> Iterator[Brokers]:
    """Two of them, on SQLite or on the shared server of that kind."""
    with configured_brokers(folder, store, (), environment=environment) as found:
        yield found


@contextmanager
def configured_brokers(
    folder: Path, store: str, arguments: Sequence[str], *, size: int = 2, environment: Mapping[str, str] | None = None
) -> Iterator[Brokers]:
    """`arguments`: of the command that starts each."""
    die_at = folder / "die-at"
    with ClusterProcesses(
        folder,
        size,
        metadata_url=store_url(store),
        session_ms=SESSION_MS,
        arguments=arguments,
        environment={DIE_AT: str(die_at), **(environment or {})},
    ) as processes:
        yield Brokers(processes, die_at)


def store_url(store: str) -> str | None:
    """A separate prefix on the shared server; None: SQLite beside the data."""
    if store == "sqlite":
        return None
    place = f"t{uuid.uuid4().hex[:12]}"
    port = services.shared(store).nodes[0].port
    return f"{store}://127.0.0.1:{port}/{f'default/{place}' if store == 'oxia' else place}"


def new_topic(brokers: Brokers, segments: int) -> str:
    topic = f"t-{uuid.uuid4().hex[:10]}"
    brokers.insist("PUT", f"{topic}?numInitialSegments={segments}")
    brokers.ask("PUT", f"{topic}/subscriptions/s?type=STREAM")
    return topic


def kill_at(brokers: Brokers, step: str, method: str, path: str) -> None:
    """Ask for the operation, and wait until its leader is dead."""
    alive = len(brokers.processes.alive)
    brokers.die_at.write_text(step)
    asking = ask_aside(brokers, method, path)
    brokers.processes.until(lambda: len(brokers.processes.alive) < alive, f"no broker died at {step}", 30.0)
    asking.join(30.0)


def ask_aside(brokers: Brokers, method: str, path: str) -> threading.Thread:
    """Who is not answered any more does not mind."""

    def call() -> None:
        try:
            rest(brokers.any(), method, f"/admin/v2/scalable/{NAMESPACE}/{path}", within_s=5.0)
        except (OSError, RestRefused):
            return  # its leader died or stands still, as it should

    asking = threading.Thread(target=call)
    asking.start()
    return asking


def check_whole(brokers: Brokers, topic: str, active: list[int], operation: str, epoch: int = 1) -> None:
    """The ring is tiled by these, nothing runs or is left over, and every segment has the subscription's cursor."""
    record = brokers.insist("GET", topic)
    segments = {int(key): one for key, one in record["segments"].items()}
    assert sorted(one for one, it in segments.items() if it["state"] == "ACTIVE") == active
    assert record["epoch"] == epoch
    assert "operation" not in record
    assert record["garbage"] == []
    assert (record["lastOperation"]["id"], record["lastOperation"]["outcome"]) == (operation, "COMMITTED")
    spans = sorted((segments[one]["hashRange"]["start"], segments[one]["hashRange"]["end"]) for one in active)
    assert (spans[0][0], spans[-1][1]) == (0, 0xFFFF)
    assert all(before[1] + 1 == after[0] for before, after in pairwise(spans))

    def has_cursors() -> bool:  # every owner answers, also those that have just taken a dead one's segments over
        stats = brokers.ask("GET", f"{topic}/stats")["segments"]
        return all("s" in stats[str(one)].get("backlog", {}) for one in segments)

    brokers.until(has_cursors, "not every segment has the subscription's cursor")
