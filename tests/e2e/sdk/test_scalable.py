"""The SDK's producers on scalable topics of broker processes: many structure changes under load, brokers killed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import anabranch
import anabranch.admin
from anabranch import Backoff, ConnectionPolicy
from anabranch.admin.scalable import ScalableTopics
from tests.e2e.conftest import StartBroker
from tests.support.processes.cluster import ClusterProcesses
from tests.support.traffic.keyed_load import KeyedLoad
from tests.support.traffic.read_all_segments import stored

TOPIC = "topic://public/default/orders"
QUICK = ConnectionPolicy(backoff=Backoff(initial=0.02, maximum=0.2))
DEEP = ["--set", "scalable_topics.max_dag_depth=1000"]  # for a topic that is split and merged again and again
CHANGES = 50  # splits, and as many merges


async def turns(topics: ScalableTopics, load: KeyedLoad, first: int, count: int, progress: int = 40) -> int:
    """Split the only segment in two and merge the two again, `count` times; the id of the segment that is left."""
    whole = first
    for _ in range(count):
        await load.progress(progress)
        await topics.split(TOPIC, whole)
        await load.progress(progress)
        await topics.merge(TOPIC, [whole + 1, whole + 2])
        whole += 3
    return whole


async def test_scenarios_30_and_31_a_hundred_changes_under_pipelined_load(start_broker: StartBroker) -> None:
    broker = start_broker(arguments=DEEP)
    async with (
        anabranch.admin.connect(broker.http_url) as admin,
        anabranch.connect(broker.service_url, connection=QUICK) as client,
        client.producer(TOPIC, name="shop") as producer,
    ):
        load = KeyedLoad(producer)
        async with load.running():
            await turns(admin.scalable_topics, load, 0, CHANGES)
        verdict = load.verdict(one.data for one in await stored(broker.service_url, TOPIC))
        assert verdict.holds, verdict
        assert verdict.repeated == 0
    assert asyncio.all_tasks() == {asyncio.current_task()}, "the client left tasks behind"


async def test_scenario_32_brokers_are_killed_between_and_during_changes(tmp_path: Path) -> None:
    with ClusterProcesses(tmp_path, 2) as cluster:
        one, other = cluster.brokers.values()
        async with (
            anabranch.connect(cluster.service_url, connection=QUICK) as client,
            client.producer(TOPIC, name="shop", send_timeout=60) as producer,
        ):
            load = KeyedLoad(producer)
            async with load.running():
                segment = 0
                for victim, witness in ((one, other), (other, one)):
                    async with anabranch.admin.connect(witness.http_url) as admin:
                        segment = await turns(admin.scalable_topics, load, segment, 1)
                        await load.progress()
                        await asyncio.to_thread(victim.kill9)
                        await load.progress()
                        segment = await turns(admin.scalable_topics, load, segment, 2)
                        await asyncio.to_thread(cluster.revive)
                        segment = await turns(admin.scalable_topics, load, segment, 1)
        verdict = load.verdict([message.data for message in await stored(one.service_url, TOPIC)])
        assert verdict.holds, verdict
        assert verdict.repeated == 0
