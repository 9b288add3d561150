"""The SDK with two brokers: redirects, and a crash of the broker that serves the topic."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator

import pytest

import anabranch
from anabranch import Backoff, ConnectionPolicy
from tests.support.processes.cluster import ClusterProcesses

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("cluster")]

RETRY_DELAYS = 30.0
QUICK = ConnectionPolicy(backoff=Backoff(initial=0.02, maximum=0.2))


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    with ClusterProcesses(tmp_path_factory.mktemp("sdk-cluster"), 2, session_ms=2_000) as started:
        started.wait_settled()
        yield started


async def test_topics_are_found_again_after_a_broker_died(cluster: ClusterProcesses) -> None:
    topics = [f"persistent://public/default/t-{uuid.uuid4().hex[:12]}" for _ in range(16)]
    async with anabranch.connect(cluster.service_url, connection=QUICK) as client:
        producers = [await client.producer(topic) for topic in topics]
        consumers = [await client.stream_consumer(topic, subscription="s") for topic in topics]
        assert len(client._pool._connections) == 2, "both brokers serve some of the topics"
        for producer in producers:
            for n in range(5):
                producer.send_nowait(b"%d" % n)
            await producer.flush(timeout=RETRY_DELAYS)
        cluster.alive[0].kill9()
        for producer in producers:
            for n in range(5, 10):
                producer.send_nowait(b"%d" % n)
        await asyncio.gather(*(producer.flush(timeout=RETRY_DELAYS) for producer in producers))
        for consumer in consumers:
            first_seen: dict[bytes, None] = {}
            while len(first_seen) < 10:
                message = await consumer.receive(timeout=RETRY_DELAYS)
                assert message is not None, f"{consumer.topic}: only {list(first_seen)}"
                first_seen[message.value] = None
            assert list(first_seen) == [b"%d" % n for n in range(10)]
