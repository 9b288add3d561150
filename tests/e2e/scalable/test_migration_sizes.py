"""A topic with many partitions becomes a scalable topic on three brokers: every subscription, every message, every key
in order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

import anabranch
from tests.support.processes.cluster import ClusterProcesses, rest
from tests.support.processes.scalable_cluster import NAMESPACE, store_url

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("migration-sizes")]

PATIENCE = 120.0
KEYS = 200
SUBSCRIPTIONS = 10
OLD, NEW = f"persistent://{NAMESPACE}/many", f"topic://{NAMESPACE}/many"


@pytest.fixture(
    params=[("sqlite", 64)],
    ids=lambda both: f"{both[0]}-{both[1]}",
)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[ClusterProcesses, int]]:
    store, partitions = request.param
    with ClusterProcesses(tmp_path, 3, metadata_url=store_url(store)) as cluster:
        yield cluster, partitions


async def publish(client: anabranch.Client, topic: str, numbers: range) -> None:
    async with client.producer(topic) as producer:
        for number in numbers:
            producer.send_nowait(b"%d" % number, key=f"k{number % KEYS}")
        await producer.flush(timeout=PATIENCE)


async def traffic(cluster: ClusterProcesses) -> None:
    migrate = f"/admin/v2/scalable-topics/{NAMESPACE}/many/migrate-to-scalable"
    async with anabranch.connect(cluster.service_url) as client:
        await publish(client, OLD, range(KEYS))
        await asyncio.to_thread(rest, cluster.alive[0], "POST", migrate, None, within_s=PATIENCE)
        await publish(client, NEW, range(KEYS, 2 * KEYS))
        async with client.stream_consumer(NEW, subscription="s0") as consumer:
            found: dict[str, list[int]] = {}
            for _ in range(2 * KEYS):
                message = await consumer.receive(timeout=PATIENCE)
                assert message is not None, f"only {sum(map(len, found.values()))} messages"
                found.setdefault(str(message.key), []).append(int(message.value))
    assert found == {f"k{number}": [number, KEYS + number] for number in range(KEYS)}


def test_topic_with_many_partitions_is_migrated_whole(place: tuple[ClusterProcesses, int]) -> None:
    cluster, partitions = place
    path = f"/admin/v2/persistent/{NAMESPACE}/many"
    rest(cluster.alive[0], "PUT", f"{path}/partitions", partitions, within_s=PATIENCE)
    for number in range(SUBSCRIPTIONS):
        rest(cluster.alive[0], "PUT", f"{path}/subscription/s{number}", within_s=PATIENCE)
    asyncio.run(traffic(cluster))
    for broker in cluster.alive:
        stats = rest(broker, "GET", f"/admin/v2/scalable/{NAMESPACE}/many/stats", within_s=PATIENCE)
        assert len(stats["segments"]) == 2 * partitions
        assert set(stats["subscriptions"]) == {f"s{number}" for number in range(SUBSCRIPTIONS)}
        assert sum(one["messages"] for one in stats["segments"].values()) == 2 * KEYS
