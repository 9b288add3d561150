"""The leader of a migration is killed, or frozen, at every step: another broker finishes or undoes it, never half.

Two brokers as processes, on SQLite and ZooKeeper. Whatever the step, the topic is scalable with every subscription on
every segment and every message, or it is the regular topic that it was, writable.
"""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

import anabranch
from anabranch.protocol.commands import BaseCommand
from tests.support.processes.broker_process import BrokerProcess
from tests.support.processes.cluster import RestRefused, rest
from tests.support.processes.scalable_cluster import NAMESPACE, Brokers, ask_aside, kill_at, scalable_brokers
from tests.support.traffic.raw_client import RawClient

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("migration-failover")]

PATIENCE = 60.0
PARTITIONS = 8  # enough that each of two brokers has some
STEPS = [
    "before-term",
    "before-adopt",
    "after-adopt:2",
    "before-create",
    "after-create",
    "before-seal",
    "after-seal:2",
    "before-commit",
    "after-commit",
]
UNDO_STEPS = ["after-undo", "before-release", "after-release"]


def every_step(*in_ci: str) -> list[Any]:
    """Those before the commit. The others are in `make soak`, because a stop lasts longer than a session."""
    return [pytest.param(one, marks=() if one in in_ci else pytest.mark.soak) for one in STEPS[1:-1]]


FROZEN_STEPS = every_step("after-adopt:2", "before-commit")
OWNER_STEPS = every_step("after-adopt:2", "before-seal")


@pytest.fixture(scope="module", params=["sqlite", "zk"])
def started(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    with scalable_brokers(tmp_path_factory.mktemp("migration"), request.param) as found:
        yield found


@pytest.fixture
def brokers(started: Brokers) -> Brokers:
    """Both serve, whatever the test before did to them."""
    started.die_at.unlink(missing_ok=True)
    started.processes.revive()
    return started


def regular(brokers: Brokers, method: str, path: str, body: object = None) -> Any:
    return rest(brokers.any(), method, f"/admin/v2/persistent/{NAMESPACE}/{path}", body)


def new_regular_topic(brokers: Brokers, partitions: int = PARTITIONS) -> str:
    topic = f"m-{uuid.uuid4().hex[:10]}"
    brokers.until(lambda: regular(brokers, "PUT", f"{topic}/partitions", partitions) is None, "topic not created")
    return topic


async def publish(brokers: Brokers, topic: str, numbers: range) -> None:
    async with anabranch.connect(brokers.any().service_url) as client, client.producer(topic) as producer:
        for number in numbers:
            producer.send_nowait(b"%d" % number, key=f"k{number % 7}")
        await producer.flush(timeout=PATIENCE)


async def read_all(brokers: Brokers, topic: str, subscription: str, count: int) -> list[int]:
    """The numbers of a queue subscription; also waits a moment for messages too many."""
    found: list[int] = []
    async with (
        anabranch.connect(brokers.any().service_url) as client,
        client.queue_consumer(topic, subscription=subscription, start="earliest") as consumer,
    ):
        while len(found) < count:
            message = await consumer.receive(timeout=PATIENCE)
            assert message is not None, f"only {sorted(found)} of {count}"
            found.append(int(message.value))
            await consumer.ack(message)
        extra = await consumer.receive(timeout=0.5)
        assert extra is None, f"one too many: {extra.value!r}"
    return sorted(found)


async def subscribe(brokers: Brokers, topic: str) -> None:
    async with (
        anabranch.connect(brokers.any().service_url) as client,
        client.queue_consumer(topic, subscription="work", start="earliest"),
    ):
        return


def is_migrated(brokers: Brokers, topic: str) -> bool:
    return str(brokers.ask("GET", f"{topic}/migration")["phase"]) == "DONE"


def check_migrated(brokers: Brokers, topic: str) -> None:
    brokers.until(lambda: is_migrated(brokers, topic), "the migration was not finished")
    record = brokers.ask("GET", topic)
    assert "operation" not in record
    states = [one["state"] for one in record["segments"].values()]
    assert states == ["SEALED"] * PARTITIONS + ["ACTIVE"] * PARTITIONS
    with pytest.raises(RestRefused) as refused:
        regular(brokers, "GET", f"{topic}/partitions")
    assert refused.value.status == 410
    asyncio.run(publish(brokers, f"topic://{NAMESPACE}/{topic}", range(20, 30)))
    assert asyncio.run(read_all(brokers, f"topic://{NAMESPACE}/{topic}", "work", 30)) == list(range(30))


@pytest.mark.parametrize("step", STEPS)
def test_migration_whose_leader_is_killed_is_finished_by_the_next_leader(brokers: Brokers, step: str) -> None:
    topic = new_regular_topic(brokers)
    asyncio.run(subscribe(brokers, f"persistent://{NAMESPACE}/{topic}"))
    asyncio.run(publish(brokers, f"persistent://{NAMESPACE}/{topic}", range(20)))
    kill_at(brokers, step, "POST", f"{topic}/migrate")
    check_migrated(brokers, topic)


@pytest.mark.parametrize("step", FROZEN_STEPS)
def test_leader_frozen_past_its_session_changes_nothing(brokers: Brokers, step: str) -> None:
    topic = new_regular_topic(brokers)
    asyncio.run(subscribe(brokers, f"persistent://{NAMESPACE}/{topic}"))
    asyncio.run(publish(brokers, f"persistent://{NAMESPACE}/{topic}", range(20)))
    asking = freeze_at(brokers, step, f"{topic}/migrate")
    frozen = frozen_broker(brokers)
    check_migrated(brokers, topic)
    frozen.thaw()
    asking.join(30.0)
    brokers.processes.revive()
    assert is_migrated(brokers, topic)


def freeze_at(brokers: Brokers, step: str, path: str) -> threading.Thread:
    brokers.die_at.write_text(f"stop {step}")
    asking = ask_aside(brokers, "POST", path)
    brokers.processes.until(
        lambda: any(one.is_frozen for one in brokers.processes.alive), f"no broker stood still at {step}", 30.0
    )
    return asking


def frozen_broker(brokers: Brokers) -> BrokerProcess:
    return next(one for one in brokers.processes.alive if one.is_frozen)


@pytest.mark.parametrize("is_killed", [True, False], ids=["kill -9", "SIGSTOP"])
@pytest.mark.parametrize("step", OWNER_STEPS)
def test_owner_that_does_not_lead_stops_it_for_a_moment_only(brokers: Brokers, step: str, is_killed: bool) -> None:
    """The leader stands still at the step while the owner of the other partitions is killed, or stopped past its
    session."""
    topic = new_regular_topic(brokers)
    asyncio.run(subscribe(brokers, f"persistent://{NAMESPACE}/{topic}"))
    asyncio.run(publish(brokers, f"persistent://{NAMESPACE}/{topic}", range(20)))
    owner = aside_from_leader(brokers, step, topic)
    if is_killed:
        owner.kill9()
    else:
        owner.freeze()
    for one in brokers.processes.alive:
        if one is not owner:
            one.thaw()
    brokers.until(lambda: is_migrated(brokers, topic), "the migration was not finished without the other broker")
    brokers.processes.revive()
    check_migrated(brokers, topic)


def aside_from_leader(brokers: Brokers, step: str, topic: str) -> BrokerProcess:
    """The leader of the migration stands still at the step; the result is the other broker."""
    freeze_at(brokers, step, f"{topic}/migrate")
    brokers.die_at.unlink(missing_ok=True)
    return next(one for one in brokers.processes.alive if not one.is_frozen)


async def attach_old_client(brokers: Brokers, topic: str, attached: threading.Event, done: threading.Event) -> None:
    """A producer of a stock client on a partition of a running broker, until `done`."""
    async with RawClient(brokers.any().service_url) as raw:
        await raw.hello()
        for index in range(PARTITIONS):
            answer = await raw.producer(f"persistent://{NAMESPACE}/{topic}-partition-{index}", producer_id=index)
            if answer.kind == BaseCommand.PRODUCER_SUCCESS:
                attached.set()
        await asyncio.to_thread(done.wait, PATIENCE)


@pytest.mark.parametrize("step", UNDO_STEPS)
def test_undo_whose_leader_is_killed_is_finished_by_the_next_leader(brokers: Brokers, step: str) -> None:
    """A client that cannot follow attaches after the check. The migration is undone, also when its leader dies."""
    topic = new_regular_topic(brokers)
    asyncio.run(subscribe(brokers, f"persistent://{NAMESPACE}/{topic}"))
    asyncio.run(publish(brokers, f"persistent://{NAMESPACE}/{topic}", range(20)))
    asking = freeze_at(brokers, "before-adopt", f"{topic}/migrate")
    frozen, attached, done = frozen_broker(brokers), threading.Event(), threading.Event()
    client = threading.Thread(target=lambda: asyncio.run(attach_old_client(brokers, topic, attached, done)))
    client.start()
    assert attached.wait(10.0), "the running broker owns no partition"
    alive = len(brokers.processes.alive)
    brokers.die_at.write_text(step)
    frozen.thaw()
    brokers.processes.until(lambda: len(brokers.processes.alive) < alive, f"no broker died at {step}", 30.0)
    done.set()
    client.join(30.0)
    asking.join(30.0)
    brokers.processes.revive()
    check_regular(brokers, topic)


def check_regular(brokers: Brokers, topic: str) -> None:
    """It is the regular topic that it was."""
    brokers.until(lambda: brokers.ask("GET", f"{topic}/migration")["phase"] == "NONE", "it was not undone")
    name = f"persistent://{NAMESPACE}/{topic}"
    assert regular(brokers, "GET", f"{topic}/partitions")["partitions"] == PARTITIONS
    asyncio.run(publish(brokers, name, range(20, 30)))
    assert asyncio.run(read_all(brokers, name, "work", 30)) == list(range(30))
    attached, done = threading.Event(), threading.Event()
    done.set()
    asyncio.run(attach_old_client(brokers, topic, attached, done))
    assert attached.is_set(), "stock clients are refused after the undo"
