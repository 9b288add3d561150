"""Load rises and falls by itself, and the leader is killed in the middle of the split and of the merge that follow: a
successor finishes them, nothing is lost or stored twice, and every key stays in order."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import anabranch
from anabranch import Backoff, ConnectionPolicy, StreamConsumer
from tests.support.processes.cluster import RestRefused
from tests.support.processes.scalable_cluster import Brokers, configured_brokers
from tests.support.traffic.delivery_audit import Numbered, by_stream, decode, judge
from tests.support.traffic.paced_load import PacedLoad
from tests.support.traffic.read_all_segments import stored

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("scalable-failover")]

STEPS = [
    ("before-plan", "after-plan"),
    ("after-plan", "before-create"),
    ("before-create", "after-create"),
    ("after-create", "before-seal"),
    ("after-create:2", "after-seal"),
    ("before-seal", "after-seal:2"),
    ("after-seal", "before-commit"),
    ("before-commit", "after-commit"),
    ("after-commit", "before-plan"),
]
"""At which the leader is killed: in the split, in the merge."""
RATE = 400.0
SETTINGS = {
    "auto_scale_enabled": "true",
    "max_segments": 2,
    "split_rate_window_seconds": 5,
    "split_cooldown_seconds": 0,
    "merge_cooldown_seconds": 0,
    "merge_window_seconds": 1,
    "split_msg_rate_in_threshold": 280,
    "merge_msg_rate_in_threshold": 270,
    "load_report_interval_seconds": 1,
    "auto_scale_interval_seconds": 5,
}
QUICK = ConnectionPolicy(backoff=Backoff(initial=0.02, maximum=0.2))
SECONDS = 120.0


ARGUMENTS = [word for name, value in SETTINGS.items() for word in ("--set", f"scalable_topics.{name}={value}")]


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    with configured_brokers(tmp_path_factory.mktemp("autoscale"), "sqlite", ARGUMENTS) as found:
        yield found


@pytest.fixture
def brokers(started: Brokers) -> Brokers:
    started.die_at.unlink(missing_ok=True)
    started.processes.revive()
    return started


async def eventually(done: Callable[[], bool], complaint: str) -> None:
    """Asked in a thread, so that producer and consumer go on."""

    def tried() -> bool:
        try:
            return done()
        except (OSError, RestRefused):
            return False

    try:
        async with asyncio.timeout(SECONDS):
            while not await asyncio.to_thread(tried):  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.05)
    except TimeoutError as error:
        raise AssertionError(f"{complaint} within {SECONDS:g} s") from error


def record_of(brokers: Brokers, topic: str) -> Any:
    return brokers.ask("GET", topic)


def active(record: Any) -> list[int]:
    return [int(key) for key, one in record["segments"].items() if one["state"] == "ACTIVE"]


def is_whole(record: Any, segments: int) -> bool:
    """So many active segments, and nothing runs or is left over."""
    return len(active(record)) == segments and "operation" not in record and record["garbage"] == []


async def read(consumer: StreamConsumer, seen: list[Numbered]) -> None:
    async for message in consumer:
        seen.append(decode(message.data))
        await consumer.ack_cumulative(message)


@pytest.mark.parametrize(("split_step", "merge_step"), STEPS)
async def test_leader_killed_in_automatic_changes(brokers: Brokers, split_step: str, merge_step: str) -> None:
    await live(brokers, split_step, merge_step)


async def test_leader_killed_in_automatic_changes_on_zookeeper(tmp_path: Path) -> None:
    """Split and merge are past the point of no return."""
    with configured_brokers(tmp_path, "zk", ARGUMENTS) as brokers:
        await live(brokers, "after-seal", "before-commit")


async def live(brokers: Brokers, split_step: str, merge_step: str) -> None:
    topic, seen = f"auto-{uuid.uuid4().hex[:8]}", list[Numbered]()
    name = f"topic://public/default/{topic}"
    await asyncio.to_thread(brokers.insist, "PUT", f"{topic}?numInitialSegments=1")
    async with (
        anabranch.connect(brokers.processes.service_url, connection=QUICK) as client,
        client.stream_consumer(name, subscription="s", start="earliest") as consumer,
        client.producer(name, name="auto") as producer,
    ):
        reading = asyncio.ensure_future(read(consumer, seen))
        load = PacedLoad(producer, RATE)
        await killed_at(brokers, split_step, load)
        await eventually(lambda: is_whole(record_of(brokers, topic), 2), "the split was not finished")
        brokers.die_at.write_text(merge_step)
        load.is_over = True
        await eventually(lambda: len(brokers.processes.alive) == 1, f"no broker died at {merge_step}")
        await asyncio.to_thread(brokers.processes.revive)
        await eventually(lambda: is_whole(record_of(brokers, topic), 1), "the merge was not finished")
        await load.task
        assert load.errors == []
        wanted = set(load.sent)
        await eventually(lambda: wanted <= set(seen), "not everything was read")
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    verdict = judge(by_stream(load.sent), by_stream(seen))
    assert verdict.holds, f"read: {verdict}"  # after a kill, what was not acknowledged is read again
    kept = [decode(one.data) for one in await stored(brokers.any().service_url, name)]
    verdict = judge(by_stream(load.sent), by_stream(kept))
    assert verdict.holds, f"stored: {verdict}"
    assert verdict.repeated == 0, f"stored twice: {verdict}"


async def killed_at(brokers: Brokers, step: str, load: PacedLoad) -> None:
    """Starts the load; when this returns, the leader has died at this step of the split and runs again."""
    brokers.die_at.write_text(step)
    load.start()
    await eventually(lambda: len(brokers.processes.alive) == 1, f"no broker died at {step}")
    await asyncio.to_thread(brokers.processes.revive)
