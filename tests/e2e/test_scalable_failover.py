"""The leader of a scalable topic is killed, or frozen, in the middle of a split or merge: another broker finishes it.

Two brokers as processes, on SQLite and ZooKeeper. Whatever step the leader dies at, the operation has one outcome, no
segment is sealed but active, none is left over, and every subscription has its cursor on every segment.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from anabranch.node.scalable import DIE_AT
from tests import services
from tests.broker_process import BrokerProcess
from tests.cluster_processes import ClusterProcesses, RestRefused, rest

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("scalable-failover")]

SESSION_MS = 2_000
NAMESPACE = "public/default"

SPLIT_STEPS = [
    "before-plan",
    "after-plan",
    "before-create",
    "after-create",
    "after-create:2",
    "before-seal",
    "after-seal",
    "before-commit",
    "after-commit",
    "tell-layout",
]
MERGE_STEPS = ["after-create", "after-seal", "after-seal:2", "before-commit"]


class Brokers:
    """The cluster, and the file that names the step at which a leader is to die."""

    def __init__(self, processes: ClusterProcesses, die_at: Path) -> None:
        self.processes, self.die_at = processes, die_at

    def any(self) -> BrokerProcess:
        return self.processes.alive[0]

    def ask(self, method: str, path: str, body: object = None) -> Any:
        return rest(self.any(), method, f"/admin/v2/scalable/{NAMESPACE}/{path}", body)

    def insist(self, method: str, path: str) -> Any:
        """Again, at whoever lives, until it is answered: the same operation is not done twice."""
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


@pytest.fixture(scope="module", params=["sqlite", "zk"])
def started(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    folder = tmp_path_factory.mktemp("failover")
    url = None
    if request.param == "zk":
        url = f"zk://127.0.0.1:{services.shared('zk').nodes[0].port}/t{uuid.uuid4().hex[:12]}"
    die_at = folder / "die-at"
    environment = {DIE_AT: str(die_at)}
    with ClusterProcesses(folder, 2, metadata_url=url, session_ms=SESSION_MS, environment=environment) as processes:
        yield Brokers(processes, die_at)


@pytest.fixture
def brokers(started: Brokers) -> Iterator[Brokers]:
    yield started
    started.die_at.unlink(missing_ok=True)
    started.processes.revive()


def new_topic(brokers: Brokers, segments: int) -> str:
    topic = f"t-{uuid.uuid4().hex[:10]}"
    brokers.insist("PUT", f"{topic}?numInitialSegments={segments}")
    brokers.ask("PUT", f"{topic}/subscriptions/s?type=STREAM")
    return topic


def kill_at(brokers: Brokers, step: str, path: str) -> None:
    """Ask for the operation, and wait until its leader is dead."""
    alive = len(brokers.processes.alive)
    brokers.die_at.write_text(step)

    def call() -> None:
        try:
            brokers.ask("POST", path)
        except (OSError, RestRefused):
            return  # its leader died, as it should

    asking = threading.Thread(target=call)
    asking.start()
    brokers.processes.until(lambda: len(brokers.processes.alive) < alive, f"nobody died at {step}", 30.0)
    asking.join(30.0)


def check_whole(brokers: Brokers, topic: str, active: list[int], operation: str) -> None:
    record = brokers.insist("GET", topic)
    segments = {int(key): one for key, one in record["segments"].items()}
    assert sorted(one for one, it in segments.items() if it["state"] == "ACTIVE") == active
    assert record["epoch"] == 1
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


@pytest.mark.parametrize("step", SPLIT_STEPS)
def test_a_split_whose_leader_is_killed(brokers: Brokers, step: str) -> None:
    topic = new_topic(brokers, 1)
    kill_at(brokers, step, f"{topic}/split/0?operationId=op")
    if step != "before-plan":  # it goes on though nobody asks
        brokers.until(lambda: brokers.ask("GET", topic)["epoch"] == 1, "the split was not finished")
    brokers.insist("POST", f"{topic}/split/0?operationId=op")
    check_whole(brokers, topic, [1, 2], "op")


@pytest.mark.parametrize("step", MERGE_STEPS)
def test_a_merge_whose_leader_is_killed(brokers: Brokers, step: str) -> None:
    topic = new_topic(brokers, 3)
    kill_at(brokers, step, f"{topic}/merge/0/1?operationId=op")
    brokers.until(lambda: brokers.ask("GET", topic)["epoch"] == 1, "the merge was not finished")
    brokers.insist("POST", f"{topic}/merge/0/1?operationId=op")
    check_whole(brokers, topic, [2, 3], "op")


def test_a_leader_that_was_frozen_past_its_session_changes_nothing(brokers: Brokers) -> None:
    topic = new_topic(brokers, 1)
    url = brokers.ask("GET", f"{topic}/stats")["controller"]
    leader = next(one for one in brokers.processes.brokers.values() if one.service_url == url)
    other = next(one for one in brokers.processes.brokers.values() if one is not leader)
    leader.freeze()
    path = f"/admin/v2/scalable/{NAMESPACE}/{topic}"

    def split() -> bool:
        try:
            rest(other, "POST", f"{path}/split/0?operationId=op")
        except (OSError, RestRefused):
            return False
        return True

    brokers.processes.until(split, "nobody took the topic over", 60.0)
    leader.thaw()

    def refused() -> bool:
        """The former leader is asked directly, under another id: it must not do it on its own old layout."""
        try:
            rest(leader, "POST", f"{path}/split/0?operationId=late")
        except (OSError, RestRefused):
            return True
        return False

    assert refused()
    check_whole(brokers, topic, [1, 2], "op")


def test_a_topic_that_is_being_deleted_is_gone_for_good(brokers: Brokers) -> None:
    topic = new_topic(brokers, 2)
    alive = len(brokers.processes.alive)
    brokers.die_at.write_text("before-delete:2")  # the first is the intent in the record, the second a segment's

    def call() -> None:
        try:
            brokers.ask("DELETE", f"{topic}?force=true")
        except (OSError, RestRefused):
            return

    asking = threading.Thread(target=call)
    asking.start()
    brokers.processes.until(lambda: len(brokers.processes.alive) < alive, "nobody died", 30.0)
    asking.join(30.0)

    def is_gone() -> bool:
        return topic not in " ".join(rest(brokers.any(), "GET", f"/admin/v2/scalable/{NAMESPACE}"))

    brokers.until(is_gone, "the deletion was not finished")
    brokers.insist("PUT", f"{topic}?numInitialSegments=1")  # at once, another life of the name
    assert brokers.insist("GET", topic)["epoch"] == 0
