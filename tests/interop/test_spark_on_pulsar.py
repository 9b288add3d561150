"""The Spark source and sink on Apache Pulsar's broker, without Spark: planning, streams, losses, limits, writing."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from pyspark.sql.streaming.datasource import ReadMaxBytes, ReadMaxRows

import anabranch.admin.blocking
from anabranch import blocking
from anabranch.admin.blocking import BlockingAdmin
from anabranch.spark.client.extents import ClusterCannot
from anabranch.spark.offsets.advance import LostData
from anabranch.spark.sink.topic_writer import NotDeduplicating
from tests.services.pulsar_broker import PulsarNode
from tests.support.spark.session import Traffic, check_complete, check_key_order, wait_until
from tests.support.spark.without_spark import Stream, read_batch, write_rows

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("pulsar")]

PATHS = pytest.mark.parametrize("has_admin", [False, True], ids=["binary", "admin"])
SHAPES = pytest.mark.parametrize("partitions", [0, 3], ids=["plain", "partitioned"])
KEEP = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}


@dataclass(frozen=True)
class Pulsar:
    node: PulsarNode
    admin: BlockingAdmin
    keeping: str  # a namespace that retains everything
    deduplicating: str  # and one that deduplicates, too

    def topic(self, partitions: int = 0, namespace: str | None = None) -> str:
        name = f"persistent://{namespace or self.keeping}/t-{uuid.uuid4().hex[:10]}"
        if partitions:
            self.admin.topics.create(name, partitions=partitions)
        else:
            self.admin.topics.create(name)
        return name

    def options(self, topic: str, *, has_admin: bool = True, **more: str) -> dict[str, str]:
        found = {"serviceUrl": self.node.service_url, "topic": topic, **more}
        return {**found, "adminUrl": self.node.http_url} if has_admin else found

    def traffic(self, topic: str, keys: int = 5) -> Traffic:
        return Traffic(self.node.service_url, topic, keys)

    def roll(self, topic: str) -> None:
        """A load closes the ledger."""
        self.admin.topics.unload(topic)

    def ledgers(self, topic: str) -> list[int]:
        return [one["ledgerId"] for one in self.admin.topics.internal_stats(topic)["ledgers"]]


@pytest.fixture(scope="module")
def pulsar(apache: PulsarNode) -> Iterator[Pulsar]:
    with anabranch.admin.blocking.connect(apache.http_url) as admin:
        names = [f"public/spark-{uuid.uuid4().hex[:6]}" for _ in range(2)]
        for name in names:
            admin.namespaces.create(name)
            admin.namespaces.set_policy(name, "retention", KEEP)
        admin.namespaces.set_policy(names[1], "deduplication", True)
        yield Pulsar(apache, admin, *names)


# -- batches


@PATHS
@SHAPES
def test_a_batch_reads_everything_there_is(pulsar: Pulsar, partitions: int, has_admin: bool) -> None:
    topic = pulsar.topic(partitions)
    traffic = pulsar.traffic(topic)
    traffic.publish(20)
    pulsar.roll(topic)
    traffic.publish(10)
    tasks = read_batch(pulsar.options(topic, has_admin=has_admin))
    check_complete([row for rows in tasks for row in rows], traffic.sent)
    ordered = sorted((row for rows in tasks for row in rows), key=lambda row: row["message_id"])
    check_key_order(ordered)


def test_ranges_are_cut_inside_ledgers(pulsar: Pulsar) -> None:
    topic = pulsar.topic()
    traffic = pulsar.traffic(topic)
    for _ in range(6):
        traffic.publish(2)
    pulsar.roll(topic)
    for _ in range(6):
        traffic.publish(2)
    tasks = read_batch(pulsar.options(topic, minPartitions="6"))
    assert len(tasks) > len(pulsar.ledgers(topic)) and all(tasks)
    check_complete([row for rows in tasks for row in rows], traffic.sent)
    tasks = read_batch(pulsar.options(topic, maxRecordsPerPartition="20"))
    assert len(tasks) > len(pulsar.ledgers(topic))
    check_complete([row for rows in tasks for row in rows], traffic.sent)


@PATHS
def test_a_batch_begins_and_ends_at_times(pulsar: Pulsar, has_admin: bool) -> None:
    topic = pulsar.topic(2)
    traffic = pulsar.traffic(topic)
    traffic.publish(3)
    middle = _between_publish_times()
    traffic.publish(4)
    wanted = pulsar.options(topic, has_admin=has_admin)
    (later,) = [sum(map(len, read_batch({**wanted, "startingTimestamp": str(middle)})))]
    (earlier,) = [sum(map(len, read_batch({**wanted, "endingTimestamp": str(middle)})))]
    assert (earlier, later) == (3 * 5, 4 * 5)
    assert sum(map(len, read_batch({**wanted, "startingTimestamp": str(middle + 3_600_000)}))) == 0


def _between_publish_times() -> int:
    """A time that no message has: publish times are milliseconds."""
    now = int(time.time() * 1000) + 2
    wait_until(lambda: time.time() * 1000 > now + 2, "later than the time")
    return now


@PATHS
def test_an_empty_topic_is_read_as_nothing(pulsar: Pulsar, has_admin: bool) -> None:
    topic = pulsar.topic(2)
    assert sum(map(len, read_batch(pulsar.options(topic, has_admin=has_admin)))) == 0


def test_what_needs_counts_is_refused_by_name_without_admin_url(pulsar: Pulsar) -> None:
    topic = pulsar.topic()
    for name in ("maxRowsPerTrigger", "maxBytesPerTrigger", "minRowsPerTrigger"):
        with pytest.raises(ClusterCannot, match=f"{name}.*adminUrl"):
            Stream(pulsar.options(topic, has_admin=False, **{name: "10"}))
    for name in ("maxRecordsPerPartition", "maxBytesPerPartition"):
        with pytest.raises(ClusterCannot, match=f"{name}.*adminUrl"):
            read_batch(pulsar.options(topic, has_admin=False, **{name: "10"}))


# -- streams


@PATHS
@SHAPES
def test_a_stream_goes_on_from_its_checkpoint(pulsar: Pulsar, partitions: int, has_admin: bool) -> None:
    """Through a restart, loads by the broker, closed ledgers, and new partitions."""
    topic = pulsar.topic(partitions)
    traffic = pulsar.traffic(topic)
    options = pulsar.options(topic, has_admin=has_admin)
    traffic.publish(4)
    stream = Stream(options)
    found = stream.take()
    pulsar.roll(topic)
    traffic.publish(3)
    found += stream.take()
    stream.stop()
    pulsar.roll(topic)
    traffic.publish(2)
    stream = Stream(options, stream.log)
    found += stream.take()
    if partitions:
        pulsar.admin.topics.add_partitions(topic, partitions + 2)
        traffic.publish(5)

        def is_all_there() -> bool:
            found.extend(stream.take())
            return len(found) >= traffic.total

        wait_until(is_all_there, "the new partitions")
    check_complete(found, traffic.sent)
    stream.stop()


@PATHS
def test_latest_is_where_a_stream_starts(pulsar: Pulsar, has_admin: bool) -> None:
    topic = pulsar.topic(2)
    traffic = pulsar.traffic(topic)
    traffic.publish(2)
    stream = Stream(pulsar.options(topic, has_admin=has_admin, startingOffsets="latest"))
    assert stream.take() == []
    traffic.publish(1)
    assert sorted(json.loads(row["value"])["n"] for row in stream.take()) == [2] * 5
    stream.stop()


def test_rows_of_a_batch_are_limited(pulsar: Pulsar) -> None:
    topic = pulsar.topic(2)
    traffic = pulsar.traffic(topic, keys=10)
    for _ in range(20):
        traffic.publish(2)
    stream = Stream(pulsar.options(topic))
    batches = [stream.batch(ReadMaxRows(100)) or []]
    assert 50 <= len(batches[0]) <= 150
    assert stream.report["backlogRows"] == pytest.approx(400 - len(batches[0]), rel=0.2)
    assert stream.report["backlogBytes"] > 0
    batches.append(stream.batch(ReadMaxBytes(1)) or [])
    assert 1 <= len(batches[1]) <= 20, "one entry"
    check_complete([row for rows in batches for row in rows] + stream.take(ReadMaxRows(100)), traffic.sent)
    assert stream.report["backlogRows"] == 0
    stream.stop()


# -- scalable topics of Pulsar 5


@PATHS
def test_a_stream_follows_splits_and_merges(pulsar: Pulsar, has_admin: bool) -> None:
    topic = f"topic://{pulsar.keeping}/s-{uuid.uuid4().hex[:8]}"
    pulsar.admin.scalable_topics.create(topic)
    traffic = pulsar.traffic(topic, keys=8)
    traffic.publish(5)
    options = pulsar.options(topic, has_admin=has_admin)
    stream = Stream(options)
    found = stream.take()
    pulsar.admin.scalable_topics.split(topic, 0)
    traffic.publish(5)
    found += stream.take()
    stream.stop()
    pulsar.admin.scalable_topics.merge(topic, [1, 2])
    traffic.publish(5)
    stream = Stream(options, stream.log)
    found += stream.take()
    assert len(found) == traffic.total, stream.log
    check_complete(found, traffic.sent)
    check_key_order(found)
    stream.stop()
    check_complete([row for task in read_batch(options) for row in task], traffic.sent)


def test_a_regular_topic_that_becomes_scalable_keeps_its_offsets(pulsar: Pulsar) -> None:
    topic = pulsar.topic(2)
    traffic = pulsar.traffic(topic, keys=6)
    options = pulsar.options(topic)
    traffic.publish(4)
    stream = Stream(options)
    found = stream.take()
    traffic.publish(2)
    stream.stop()
    pulsar.admin.scalable_topics.migrate(topic)
    traffic.publish(3)
    stream = Stream(options, stream.log)
    found += stream.take()
    check_complete(found, traffic.sent)
    stream.stop()


# -- losses


@PATHS
def test_entries_deleted_before_they_were_read_are_an_error(pulsar: Pulsar, has_admin: bool) -> None:
    topic = pulsar.topic()
    traffic = pulsar.traffic(topic)
    options = pulsar.options(topic, has_admin=has_admin)
    traffic.publish(2)
    stream = Stream(options)
    stream.take()
    stream.stop()
    traffic.publish(3)
    _delete_closed_ledgers(pulsar, topic)
    traffic.publish(1)
    with pytest.raises(LostData, match="was deleted"):
        Stream(options, stream.log).take()
    again = Stream({**options, "failOnDataLoss": "false"}, stream.log)
    assert sorted(json.loads(row["value"])["n"] for row in again.take()) == [5] * 5
    again.stop()


def _delete_closed_ledgers(pulsar: Pulsar, topic: str) -> None:
    before = pulsar.ledgers(topic)[-1]
    pulsar.roll(topic)
    pulsar.admin.topics.truncate(topic)
    wait_until(lambda: before not in pulsar.ledgers(topic), "the ledger is deleted")


def test_a_stream_that_keeps_up_is_not_told_of_a_loss(pulsar: Pulsar) -> None:
    """Nothing is retained: every ledger is deleted as soon as it is closed, and the stream has read it before."""
    topic = pulsar.topic(namespace="public/default")
    traffic = pulsar.traffic(topic)
    stream = Stream(pulsar.options(topic))
    found = stream.take()
    for _ in range(2):
        traffic.publish(2)
        found += stream.take()
        pulsar.roll(topic)
        found += stream.take()
    traffic.publish(1)
    found += stream.take()
    check_complete(found, traffic.sent)
    stream.stop()


@PATHS
def test_a_subscription_keeps_what_is_not_read(pulsar: Pulsar, has_admin: bool) -> None:
    """In a namespace that retains nothing, while the query is stopped and loads close ledgers."""
    topic = pulsar.topic(namespace="public/default")
    traffic = pulsar.traffic(topic)
    options = pulsar.options(topic, has_admin=has_admin, subscription="query")
    stream = Stream(options)
    stream.take()
    traffic.publish(2)
    found = stream.take()
    stream.stop()
    traffic.publish(2)
    pulsar.roll(topic)
    traffic.publish(2)
    stream = Stream(options, stream.log)
    found += stream.take()
    stream.take()  # tells the subscription that the last batch is done
    stream.stop()
    pulsar.roll(topic)
    traffic.publish(2)
    pulsar.roll(topic)
    stream = Stream(options, stream.log)
    found += stream.take()
    check_complete(found, traffic.sent)
    stream.stop()


# -- writing


@SHAPES
def test_rows_are_written_once_where_the_topic_deduplicates(pulsar: Pulsar, partitions: int) -> None:
    topic = pulsar.topic(partitions, pulsar.deduplicating)
    rows: list[tuple[str | None, bytes]] = [(f"key-{n % 7}", b"%d" % n) for n in range(300)]
    options = pulsar.options(topic, idempotencyKey="job", entryMaxRows="20")
    first, again = write_rows(options, rows[:200]), write_rows(options, rows)
    assert (first.rows, first.known, again.rows, again.known) == (200, 0, 300, 200)
    found = [row for task in read_batch(pulsar.options(topic)) for row in task]
    assert sorted(int(row["value"]) for row in found) == list(range(300))
    pulsar.roll(topic)
    assert write_rows(options, rows).known == 300
    assert sum(map(len, read_batch(pulsar.options(topic)))) == 300


def test_keys_go_where_the_sdk_sends_them(pulsar: Pulsar) -> None:
    topic = pulsar.topic(4)
    for given, name in (("murmur3-32", "murmur3-32"), ("java-string", "java-string")):
        wanted = pulsar.options(topic, delivery="at-least-once", partitionHash=given)
        write_rows(wanted, [(f"{name}-{n}", b"spark") for n in range(20)])
        with (
            blocking.connect(pulsar.node.service_url) as client,
            client.producer(topic, partition_hash=name) as producer,
        ):
            for n in range(20):
                producer.send(b"sdk", key=f"{name}-{n}")
    rows = [row for task in read_batch(pulsar.options(topic)) for row in task]
    places = {(row["key"], row["value"]): row["segment"] for row in rows}
    assert len(places) == 80
    assert all(place == places[key, b"sdk"] for (key, _), place in places.items())


def test_effectively_once_is_refused_where_it_cannot_be_kept(pulsar: Pulsar) -> None:
    plain, exact = pulsar.topic(), pulsar.topic(namespace=pulsar.deduplicating)
    with pytest.raises(NotDeduplicating):
        write_rows(pulsar.options(plain), [("k", b"v")])
    with pytest.raises(ClusterCannot, match=r"effectively-once.*adminUrl"):
        write_rows(pulsar.options(exact, has_admin=False), [("k", b"v")])
    assert write_rows(pulsar.options(plain, has_admin=False, delivery="at-least-once"), [("k", b"v")]).rows == 1
    missing = f"persistent://{pulsar.deduplicating}/t-{uuid.uuid4().hex[:10]}"
    assert write_rows(pulsar.options(missing), [("k", b"v")]).rows == 1
