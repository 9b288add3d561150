"""A topic's policy, set at any of three brokers, is in force on all of them: on partitions and segments elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pulsar
import pytest

import anabranch
import anabranch.admin
from tests.support.processes.broker_process import BrokerProcess
from tests.support.processes.cluster import ClusterProcesses, rest
from tests.support.traffic.stock_client import new_client

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("cluster")]

BIG = b"x" * 4_000
PARTS = 12


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    with ClusterProcesses(tmp_path_factory.mktemp("topic-policies"), 3) as started:
        yield started


def set_size(broker: BrokerProcess, path: str, size: int | None) -> None:
    if size is None:
        rest(broker, "DELETE", f"{path}/maxMessageSize")
    else:
        rest(broker, "POST", f"{path}/maxMessageSize", size)


@pytest.mark.conformance("policies of a topic: largest message", client="Python", brokers=3)
def test_policy_set_at_any_broker_is_in_force_on_all_partitions(cluster: ClusterProcesses) -> None:
    path = "/admin/v2/persistent/public/default/parts"
    rest(cluster.alive[0], "PUT", f"{path}/partitions", PARTS)
    names = [f"persistent://public/default/parts-partition-{index}" for index in range(PARTS)]
    assert len({cluster.owner(name).http_url for name in names}) == 3, "every broker has a partition"
    client = new_client(cluster.service_url)
    try:
        producers = [client.create_producer(name, batching_enabled=False) for name in names]

        def accepted() -> list[bool]:
            found = []
            for producer in producers:
                try:
                    producer.send(BIG)
                    found.append(True)
                except pulsar.PulsarException:
                    found.append(False)
            return found

        assert accepted() == [True] * PARTS
        for broker in cluster.alive:
            set_size(broker, path, 2_000)
            assert [rest(one, "GET", f"{path}/maxMessageSize") for one in cluster.alive] == [2_000] * 3
            cluster.until(
                lambda: accepted() == [False] * PARTS, f"{broker.http_url}: the policy is not in force everywhere"
            )
            set_size(broker, path, None)
            cluster.until(lambda: accepted() == [True] * PARTS, f"{broker.http_url}: it stays in force somewhere")
    finally:
        client.close()


async def test_policy_set_at_any_broker_is_in_force_on_all_segments(cluster: ClusterProcesses) -> None:
    topic, path = "topic://public/default/segments", "/admin/v2/topic/public/default/segments"
    async with AsyncExitStack() as stack:
        admin = await stack.enter_async_context(anabranch.admin.connect(cluster.alive[0].http_url))
        client = await stack.enter_async_context(anabranch.connect(cluster.service_url))
        await admin.scalable_topics.create(topic, segments=PARTS)
        shown = (await admin.scalable_topics.stats(topic))["segments"].values()
        assert len({one["broker"] for one in shown}) == 3, "every broker has a segment"
        producer = await stack.enter_async_context(client.producer(topic))

        async def accepted() -> set[bool]:
            found = set()
            for number in range(10 * PARTS):  # keys of all segments
                try:
                    await producer.send(BIG, key=f"k{number}")
                    found.add(True)
                except anabranch.Error:
                    found.add(False)
            return found

        async def until(wanted: set[bool]) -> None:
            async with asyncio.timeout(30):
                while True:
                    if await accepted() == wanted:
                        return

        await until({True})
        for broker in cluster.alive:
            await asyncio.to_thread(set_size, broker, path, 2_000)
            await until({False})
            await asyncio.to_thread(set_size, broker, path, None)
            await until({True})


def test_policies_of_a_topic_move_with_it(tmp_path: Path) -> None:
    """The broker that takes over reads them from the metadata store."""
    name, path = "persistent://public/default/moves", "/admin/v2/persistent/public/default/moves"
    with ClusterProcesses(tmp_path, 2) as two:
        rest(two.alive[0], "PUT", path)
        rest(two.alive[0], "POST", f"{path}/maxProducers", 1)
        first = two.owner(name)
        first.kill9()
        two.until(lambda: two.owner(name) is not first, "no broker takes over")
        client = new_client(two.service_url, operation_timeout_seconds=5)
        try:
            held = client.create_producer(name)
            with pytest.raises(pulsar.PulsarException):
                client.create_producer(name)
            assert held.is_connected()
        finally:
            client.close()
