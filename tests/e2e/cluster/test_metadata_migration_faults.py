"""A process of three is killed or stopped at every step of a metadata migration, while clients and administrators work.

A step is held by what really delays it: a slow copy, a stopped bystander, an ephemeral key that no broker moves.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import pulsar
import pytest

from anabranch.metadata.interface import ABSENT
from anabranch.metadata.open import bare_store
from anabranch.runtime.clock import SystemClock
from tests.support.processes.broker_process import BrokerProcess
from tests.support.processes.cluster import ClusterProcesses, RestRefused, rest
from tests.support.processes.sigstop import stop_outside
from tests.support.traffic.stock_client import new_client

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("cluster")]

ROOT = "/admin/v2/metadata/migration"
STOP_S = 8.0
"""Longer than the sessions of the migration."""
IN_CI = {
    ("CLOSE_GATES", "coordinator", "kill"),
    ("COPY_CHANGES", "coordinator", "stop"),
    ("SWITCH", "participant", "kill"),
}
STORIES = [
    pytest.param(*story, marks=() if story in IN_CI else pytest.mark.soak)
    for story in product(
        ("PRE_COPY", "VERIFY_TREE", "CLOSE_GATES", "COPY_CHANGES", "SWITCH"),
        ("coordinator", "participant"),
        ("kill", "stop"),
    )
]


class Administrator(threading.Thread):
    """Creates topics through all brokers in turn; what was confirmed must stay."""

    def __init__(self, cluster: ClusterProcesses) -> None:
        super().__init__()
        self._cluster, self._end = cluster, threading.Event()
        self.created: list[str] = []

    def run(self) -> None:
        number = 0
        while not self._end.wait(0.02):
            brokers = self._cluster.alive
            number += 1
            name = f"made-{number}"
            try:
                rest(brokers[number % len(brokers)], "PUT", f"/admin/v2/persistent/public/default/{name}", within_s=3)
            except (OSError, RestRefused):
                continue  # not confirmed
            self.created.append(name)

    def stop(self) -> None:
        self._end.set()
        self.join(30)
        assert not self.is_alive()


class Publisher(threading.Thread):
    def __init__(self, client: pulsar.Client) -> None:
        super().__init__()
        self._producer = client.create_producer("flow", batching_enabled=False, send_timeout_millis=90_000)
        self._end = threading.Event()
        self.sent: list[int] = []

    def run(self) -> None:
        while not self._end.wait(0.002):
            number = len(self.sent)
            self._producer.send(b"%d" % number)
            self.sent.append(number)

    def stop(self) -> None:
        self._end.set()
        self.join(100)
        assert not self.is_alive()


@contextmanager
def foreign_key(url: str) -> Iterator[None]:
    """An ephemeral key of a tool: no broker moves it, so the last step waits for it."""
    loop, done = asyncio.new_event_loop(), asyncio.Event()
    ready = threading.Event()

    async def hold() -> None:
        async with bare_store(url, SystemClock()) as store:
            session = await store.open_session(30_000)
            await store.put("/held-by-a-tool", b"", expected=ABSENT, session=session)
            ready.set()
            await done.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(hold()))
    thread.start()
    try:
        assert ready.wait(30)
        yield
    finally:
        loop.call_soon_threadsafe(done.set)
        thread.join(30)
        loop.close()


def status(broker: BrokerProcess) -> dict[str, Any]:
    try:
        found: dict[str, Any] = rest(broker, "GET", f"{ROOT}/status", within_s=5)
    except (OSError, RestRefused):
        return {"phase": None, "subPhase": None}
    return found


def start(broker: BrokerProcess, target: Path, rate: int = 0) -> None:
    rest(broker, "POST", f"{ROOT}/start", {"targetUrl": f"sqlite:///{target}", "rate": rate}, within_s=30)


def wait_step(broker: BrokerProcess, step: str, within_s: float = 60.0) -> None:
    deadline = time.monotonic() + within_s
    while (found := status(broker))["subPhase"] != step:
        assert time.monotonic() < deadline, found
        assert found["phase"] != "FAILED", found
        time.sleep(0.01)


def reach(step: str, brokers: list[BrokerProcess], folder: Path, stack: ExitStack) -> ExitStack:
    """The migration is at `step` and stays there until the returned stack is closed, or a deadline of the product."""
    witness, coordinator, bystander = brokers
    held = stack.enter_context(ExitStack())

    def freeze() -> None:
        stop_outside(bystander.pid, folder / "source")
        held.callback(bystander.thaw)

    match step:
        case "PRE_COPY" | "VERIFY_TREE":
            start(coordinator, folder / "target", rate=100)
        case "CLOSE_GATES":
            freeze()
            start(coordinator, folder / "target")
        case "COPY_CHANGES":
            held.enter_context(foreign_key(f"sqlite:///{folder}/source"))
            start(coordinator, folder / "target")
        case _:
            with foreign_key(f"sqlite:///{folder}/source"):
                start(coordinator, folder / "target")
                wait_step(witness, "COPY_CHANGES")
                freeze()
            wait_completed(witness)
            return held
    wait_step(coordinator if step == "VERIFY_TREE" else witness, step)  # only the coordinator knows that one
    return held


def wait_completed(broker: BrokerProcess, within_s: float = 60.0) -> None:
    deadline = time.monotonic() + within_s
    while (found := status(broker))["phase"] != "COMPLETED":
        assert time.monotonic() < deadline, found
        time.sleep(0.01)


def wait_all(brokers: list[BrokerProcess], within_s: float = 90.0) -> str:
    """Every broker says the same end; its phase."""
    deadline = time.monotonic() + within_s
    while True:
        found = [status(broker) for broker in brokers]
        phases = {one["phase"] for one in found}
        if len(phases) == 1 and (phases == {"FAILED"} or all(one.get("allSwitched") for one in found)):
            return str(phases.pop())
        assert time.monotonic() < deadline, found
        time.sleep(0.1)


@pytest.mark.parametrize(("step", "victim", "fault"), STORIES)
def test_a_fault_at_a_step_loses_no_confirmed_write(step: str, victim: str, fault: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        cluster = stack.enter_context(
            ClusterProcesses(tmp_path, 3, metadata_url=f"sqlite:///{tmp_path}/source", session_ms=3_000)
        )
        brokers = list(cluster.brokers.values())
        for number in range(60):
            rest(brokers[0], "PUT", f"/admin/v2/persistent/public/default/before-{number}")
        client = new_client(cluster.service_url)
        stack.callback(client.close)
        consumer = client.subscribe("flow", "s", initial_position=pulsar.InitialPosition.Earliest)
        publisher, administrator = Publisher(client), Administrator(cluster)
        publisher.start()
        administrator.start()
        try:
            held = reach(step, brokers, tmp_path, stack)
            sufferer = brokers[1] if victim == "coordinator" else brokers[0]
            if fault == "kill":
                sufferer.kill9()
            else:
                stop_outside(sufferer.pid, tmp_path / "source")
                time.sleep(STOP_S)  # the length of the fault itself
                sufferer.thaw()
            held.close()
            cluster.revive()  # with the old URL
            phase = wait_all(brokers)
            if step == "SWITCH":
                assert phase == "COMPLETED"
            start(brokers[2], tmp_path / "second")
            assert wait_all(brokers) == "COMPLETED", status(brokers[2])
        finally:
            administrator.stop()
            publisher.stop()
        for number in publisher.sent:
            message = consumer.receive(timeout_millis=30_000)
            while int(message.data()) < number:  # sent again after the kill
                message = consumer.receive(timeout_millis=30_000)
            assert message.data() == b"%d" % number
            consumer.acknowledge(message)
        assert administrator.created, "nothing was written"
        for broker in brokers:
            listed = rest(broker, "GET", "/admin/v2/persistent/public/default", within_s=30)
            names = {name.rpartition("/")[2] for name in listed}
            assert set(administrator.created) <= names, sorted(set(administrator.created) - names)[:5]
