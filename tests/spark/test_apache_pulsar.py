"""Spark itself on Apache Pulsar's broker: batch, streams, sink, jobs, and copies between the two systems."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import anabranch.admin.blocking
from anabranch.spark import audit, copy, stats
from anabranch.spark.jobs.copy import CopyJob
from tests.services.available import pulsar_broker_node
from tests.services.pulsar_broker import PulsarNode
from tests.support.processes.broker_process import BrokerProcess
from tests.support.spark.session import Traffic, check_complete, check_key_order, finish, wait_until

pytestmark = pytest.mark.slow

NAMESPACE = "public/exact"
START_SECONDS = 180.0


@pytest.fixture(scope="module")
def apache(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PulsarNode]:
    node = pulsar_broker_node(tmp_path_factory.mktemp("apache"))
    try:
        node.start(within_s=START_SECONDS)
        with anabranch.admin.blocking.connect(node.http_url) as admin:
            admin.namespaces.create(NAMESPACE)
            admin.namespaces.set_policy(NAMESPACE, "retention", {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1})
            admin.namespaces.set_policy(NAMESPACE, "deduplication", True)
        yield node
    finally:
        node.kill9()


@pytest.fixture
def topic(apache: PulsarNode) -> str:
    return topic_of(apache, 3)


def topic_of(apache: PulsarNode, partitions: int) -> str:
    name = f"persistent://{NAMESPACE}/t-{uuid.uuid4().hex[:8]}"
    with anabranch.admin.blocking.connect(apache.http_url) as admin:
        admin.topics.create(name, partitions=partitions)
    return name


def options(apache: PulsarNode, topic: str) -> dict[str, str]:
    return {"serviceUrl": apache.service_url, "adminUrl": apache.http_url, "topic": topic}


def read(spark: Any, apache: PulsarNode, topic: str) -> list[Any]:
    rows = spark.read.format("anabranch").options(**options(apache, topic)).load()
    return list(rows.orderBy("message_id").collect())


def test_a_stream_from_topic_to_topic_through_a_kill(
    spark: Any, apache: PulsarNode, topic: str, tmp_path: Path
) -> None:
    """The broker is killed while the query runs; afterwards new partitions come. Each row is stored once, in order."""
    target = topic_of(apache, 2)
    traffic = Traffic(apache.service_url, topic, keys=6)
    traffic.publish(30)
    source = spark.readStream.format("anabranch").options(**options(apache, topic), maxRowsPerTrigger="60")
    rows = source.option("startingOffsets", "earliest").load().select("key", "value")
    made = rows.writeStream.format("anabranch").options(**options(apache, target))
    made = made.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = made.start()
    wait_until(lambda: bool(query.lastProgress) and query.lastProgress["numInputRows"] > 0, "the first batch")
    apache.kill9()
    apache.start(within_s=START_SECONDS)
    traffic.publish(10)
    query.processAllAvailable()
    query.stop()
    with anabranch.admin.blocking.connect(apache.http_url) as admin:
        admin.topics.add_partitions(topic, 5)
    traffic.publish(10)
    finish(made.trigger(availableNow=True).start())
    found = read(spark, apache, target)
    check_complete(found, traffic.sent)
    check_key_order(found)


def test_jobs_look_at_a_topic(spark: Any, apache: PulsarNode, topic: str) -> None:
    Traffic(apache.service_url, topic, keys=4).publish(10)
    given = {"adminUrl": apache.http_url}
    verdict = audit(spark, apache.service_url, topic, counter="n", options=given)
    assert (verdict.is_sound, verdict.messages, verdict.keys) == (True, 40, 4)
    assert stats(spark, apache.service_url, topic, options=given).messages == 40
    rows = spark.read.format("anabranch").options(**options(apache, topic)).option("metadata", "segments").load()
    found = rows.collect()
    assert [row.segment for row in found] == [0, 1, 2]
    assert all(row.messages is None for row in found), "Pulsar does not count them"
    assert sum(row.entries for row in found) > 0


def test_copies_between_the_systems_resume(
    spark: Any, apache: PulsarNode, topic: str, broker: BrokerProcess, tmp_path: Path
) -> None:
    """Both ways, each in two runs: a run copies what came since."""
    ours, back = f"topic://public/default/copy-{uuid.uuid4().hex[:8]}", topic_of(apache, 4)
    traffic = Traffic(apache.service_url, topic, keys=6)
    there = CopyJob(
        apache.service_url, topic, ours, str(tmp_path / "there"), broker.service_url, rows_per_batch=100,
        admin_url=apache.http_url,
    )  # fmt: skip
    home = CopyJob(
        broker.service_url, ours, back, str(tmp_path / "home"), apache.service_url, target_admin_url=apache.http_url
    )
    for rounds in (40, 15):
        traffic.publish(rounds)
        assert copy(spark, there).rows == rounds * 6
        assert copy(spark, home).rows == rounds * 6
    found = read(spark, apache, back)
    check_complete(found, traffic.sent)
    check_key_order(found)
    assert copy(spark, there).rows == copy(spark, home).rows == 0


def test_no_secret_is_in_plans_and_errors(spark: Any, apache: PulsarNode, topic: str) -> None:
    rows = spark.read.format("anabranch").options(**options(apache, topic)).option("client.token", "hush-hush").load()
    shown = rows._jdf.queryExecution().toString()
    assert "hush-hush" not in shown
    assert json.dumps(read(spark, apache, topic)) == "[]"
