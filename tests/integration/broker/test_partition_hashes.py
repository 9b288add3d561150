"""The hash of a regular topic's producers, found from the keys that stock clients have written."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pulsar

from anabranch.broker.admin.partition_hashes import PartitionHashes
from anabranch.broker.admin.subscriptions import SubscriptionAdmin
from anabranch.broker.admin.topic_maintenance import TopicMaintenance
from anabranch.broker.admin.topics import TopicAdmin
from anabranch.model.names import TopicName
from anabranch.model.partition_hash import PARTITION_HASH_PROPERTY, PartitionHash, Verdict
from anabranch.node.node import Node
from tests.support.processes.in_process_cluster import nodes
from tests.support.processes.scalable_nodes import one_node
from tests.support.traffic.stock_client import new_client

TOPIC = TopicName.parse("persistent://public/default/orders")
KEYS = [f"customer-{number}" for number in range(40)]
Router = Callable[[Any, int], int]


def java(message: Any, count: int) -> int:
    return PartitionHash.JAVA_STRING.partition_of(message.partition_key(), count)


def write(service_url: str, keys: list[str], router: Router | None = None, *, batching: bool = False) -> None:
    stock = new_client(service_url, operation_timeout_seconds=30)
    try:
        producer = stock.create_producer(
            str(TOPIC),
            batching_enabled=batching,
            batching_type=pulsar.BatchingType.KeyBased,
            compression_type=pulsar.CompressionType.LZ4,
            message_router=router,
        )
        for key in keys:
            producer.send_async(b"x", None, partition_key=key)
        producer.flush()
    finally:
        stock.close()


def topics_of(node: Node) -> TopicAdmin:
    return TopicAdmin(lambda: node.services, SubscriptionAdmin(lambda: node.services))


async def test_the_default_of_the_stock_client_is_found_and_a_property_decides(tmp_path: Path) -> None:
    async with one_node(tmp_path) as node:
        hashes = PartitionHashes(lambda: node.services)
        await topics_of(node).create_partitions(str(TOPIC), 5, {})
        assert (await hashes.report(TOPIC)).as_json()["verdict"] == "unknown"
        await asyncio.to_thread(write, node.service_url, KEYS)
        found = await hashes.report(TOPIC)
        assert (found.partition_hash, found.source) == (PartitionHash.BOOST, "keys")
        assert found.finding.keys == len(KEYS) == found.as_json()["matches"]["boost"]
        maintenance = TopicMaintenance(lambda: node.services)
        await maintenance.add_properties(str(TOPIC), {PARTITION_HASH_PROPERTY: "java-string"})
        fixed = await hashes.report(TOPIC)
        assert (fixed.partition_hash, fixed.source) == (PartitionHash.JAVA_STRING, "property")
        assert await hashes.of_topic(TOPIC) is PartitionHash.JAVA_STRING


async def test_keys_of_the_owners_of_all_partitions_decide(tmp_path: Path) -> None:
    async with nodes(tmp_path, "a", "b") as (one, other):
        await topics_of(one).create_partitions(str(TOPIC), 8, {})
        await asyncio.to_thread(write, other.service_url, KEYS, java, batching=True)
        for node in (one, other):
            found = (await PartitionHashes(partial(getattr, node, "services")).report(TOPIC)).finding
            assert (found.verdict, found.partition_hash) == (Verdict.FOUND, PartitionHash.JAVA_STRING)
        await asyncio.to_thread(write, other.service_url, KEYS[:8])
        mixed = (await PartitionHashes(lambda: one.services).report(TOPIC)).finding
        assert (mixed.verdict, mixed.partition_hash) == (Verdict.MIXED, PartitionHash.JAVA_STRING)
