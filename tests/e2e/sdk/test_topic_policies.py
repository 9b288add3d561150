"""Policies of a scalable topic: one policy for all its segments, those of a later split too."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

import anabranch
import anabranch.admin
from anabranch.admin.admin import Admin
from tests.e2e.conftest import StartBroker
from tests.support.processes.broker_process import BrokerProcess

KEYS = [f"k{number}" for number in range(32)]
BIG = b"x" * 4_000
WITHIN_S = 20.0


@pytest.fixture
def topic() -> str:
    return f"topic://public/default/tp-{uuid.uuid4().hex[:12]}"


@asynccontextmanager
async def connected(broker: BrokerProcess) -> AsyncIterator[tuple[Admin, anabranch.Client]]:
    async with anabranch.admin.connect(broker.http_url) as admin, anabranch.connect(broker.service_url) as client:
        yield admin, client


async def big_ones(client: anabranch.Client, topic: str) -> set[str]:
    """Whether large messages of keys of all segments are accepted."""
    found = set()
    async with client.producer(topic) as producer:
        for key in KEYS:
            try:
                await producer.send(BIG, key=key)
                found.add("accepted")
            except anabranch.Error as error:
                assert "maximum message size" in str(error)
                found.add("refused")
    return found


async def eventually(check: Callable[[], Any], wanted: object) -> None:
    async with asyncio.timeout(WITHIN_S):
        while True:
            if await check() == wanted:
                return
            await asyncio.sleep(0.02)


async def test_policy_is_in_force_on_all_segments_and_on_those_of_a_split(broker: BrokerProcess, topic: str) -> None:
    async with connected(broker) as (admin, client):
        await admin.scalable_topics.create(topic, segments=2)
        assert await big_ones(client, topic) == {"accepted"}
        await admin.topic_policies.set(topic, "maxMessageSize", 2_000)
        assert await big_ones(client, topic) == {"refused"}
        await admin.scalable_topics.split(topic, 0)
        assert await big_ones(client, topic) == {"refused"}
        await admin.topic_policies.remove(topic, "maxMessageSize")
        assert await big_ones(client, topic) == {"accepted"}


async def test_most_producers_hold_for_each_segment(broker: BrokerProcess, topic: str) -> None:
    async with connected(broker) as (admin, client):
        await admin.scalable_topics.create(topic, segments=2)
        await admin.topic_policies.set(topic, "maxProducers", 1)
        async with client.producer(topic) as first:
            await first.send(b"x", key="a")
            with pytest.raises(anabranch.Error, match="max producers limit 1"):
                async with client.producer(topic) as second:
                    await second.send(b"x", key="a")
        await admin.topic_policies.remove_all(topic)
        assert (await admin.topic_policies.applied(topic))["maxProducers"] == {
            "value": 0,
            "level": "broker",
            "enforced": True,
        }


async def test_retention_of_a_scalable_topic_removes_drained_segments(start_broker: StartBroker, topic: str) -> None:
    """The broker's default keeps segments for seven days; the topic keeps nothing."""
    broker = start_broker(arguments=["--set", "broker.sweep_seconds=0.1", "--set", "scalable_topics.sweep_seconds=0.2"])
    async with connected(broker) as (admin, client):
        await admin.scalable_topics.create(topic, segments=1)
        kept = await admin.topic_policies.get(topic, "retention", applied=True)
        assert kept == {"retentionTimeInMinutes": 7 * 24 * 60, "retentionSizeInMB": -1}
        async with client.producer(topic) as producer:
            await producer.send(b"x", key="a")
        await admin.scalable_topics.split(topic, 0)

        async def segments() -> set[str]:
            return set((await admin.scalable_topics.metadata(topic))["segments"])

        assert "0" in await segments()
        await admin.topic_policies.set(topic, "retention", {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0})
        await eventually(segments, {"1", "2"})


async def test_policies_of_a_scalable_topic_outlive_a_restart(private_broker: BrokerProcess, topic: str) -> None:
    async with connected(private_broker) as (admin, _):
        await admin.scalable_topics.create(topic, segments=2)
        await admin.topic_policies.set(topic, "maxMessageSize", 2_000)
    private_broker.restart()
    async with connected(private_broker) as (admin, client):
        assert await admin.topic_policies.get(topic, "maxMessageSize") == 2_000
        assert await big_ones(client, topic) == {"refused"}
