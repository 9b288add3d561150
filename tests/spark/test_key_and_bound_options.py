"""What options choose, with real Spark: keys and parts of the ring, bounded streams, alignment, buckets, segments."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from anabranch.model.routing import key_hash
from anabranch.spark import offsets_at, to_buckets
from tests.support.processes.broker_process import BrokerProcess
from tests.support.spark.scalable_topics import ScalableBroker
from tests.support.spark.session import Traffic, check_complete, check_key_order, finish, wait_until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def rivers(spark: Any) -> Iterator[ScalableBroker]:
    with ScalableBroker() as made:
        yield made


def named(name: str) -> str:
    return f"topic://public/default/{name}"


def batch(spark: Any, url: str, topic: str, **options: str) -> Any:
    made = spark.read.format("anabranch").option("serviceUrl", url).option("topic", topic)
    return made.options(**options).load()


def collected(spark: Any, url: str, topic: str, checkpoint: Path, **options: str) -> list[list[Any]]:
    """The rows of every batch of an AvailableNow run."""
    made = spark.readStream.format("anabranch").option("serviceUrl", url).option("topic", topic)
    found: list[list[Any]] = []
    query = made.options(**{"startingOffsets": "earliest", **options}).load().writeStream
    query = query.foreachBatch(lambda rows, _: found.append(rows.collect()))
    finish(query.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start())
    return [rows for rows in found if rows]


def test_certain_keys_and_parts_of_the_ring(spark: Any, rivers: ScalableBroker, tmp_path: Path) -> None:
    topic, url = named("choice-keys"), rivers.service_url
    rivers.create(topic, 2)
    traffic = Traffic(url, topic, keys=32)
    traffic.publish(5)
    rivers.split(topic, 1)
    traffic.publish(5)
    lower = {key: count for key, count in traffic.sent.items() if key_hash(key) & 0xFFFF <= 0x7FFF}
    assert 0 < len(lower) < 32
    half = batch(spark, url, topic, keyHashRange="0000-7fff")
    check_complete(half.collect(), lower)
    assert {row.segment for row in half.select("segment").distinct().collect()} == {0}
    two = dict(list(lower.items())[:2])
    check_complete(batch(spark, url, topic, keys=",".join(two)).collect(), two)
    seen = [row for rows in collected(spark, url, topic, tmp_path, keyHashRange="0000-7fff") for row in rows]
    check_complete(seen, lower)
    rivers.merge(topic, rivers.active(topic))  # its other parents were never read
    traffic.publish(3)
    seen += [row for rows in collected(spark, url, topic, tmp_path, keyHashRange="0000-7fff") for row in rows]
    check_complete(seen, {key: traffic.sent[key] for key in lower})
    check_key_order(seen)


def test_batches_up_to_the_same_moment(spark: Any, rivers: ScalableBroker, tmp_path: Path) -> None:
    """One segment has most of what was published first, the other most of what came later."""
    topic, url = named("choice-aligned"), rivers.service_url
    rivers.create(topic, 2)
    keys = [f"key-{i}" for i in range(32)]
    halves = [[key for key in keys if (key_hash(key) & 0xFFFF <= 0x7FFF) is is_low] for is_low in (True, False)]
    one, other = Traffic(url, topic), Traffic(url, topic)
    one.keys, other.keys = halves[0][:4], halves[1][:4]
    one.sent, other.sent = dict.fromkeys(one.keys, 0), dict.fromkeys(other.keys, 0)
    for many, few in ((one, other), (other, one)):
        for _ in range(4):
            many.publish(25)
            few.publish(1)
    limits = {"maxRowsPerTrigger": "220"}
    aligned = collected(spark, url, topic, tmp_path / "aligned", readAlignment="publishTime", **limits)
    check_complete([row for rows in aligned for row in rows], {**one.sent, **other.sent})
    assert len(aligned) > 2
    assert all(len(rows) <= 220 for rows in aligned)
    times = [[row.publish_time for row in rows] for rows in aligned]
    assert all(max(before) <= min(after) for before, after in itertools.pairwise(times))
    shared = collected(spark, url, topic, tmp_path / "shared", **limits)
    times = [[row.publish_time for row in rows] for rows in shared]
    assert any(max(before) > min(after) for before, after in itertools.pairwise(times)), "it does matter"


def test_streams_that_end(spark: Any, rivers: ScalableBroker, tmp_path: Path) -> None:
    topic, url = named("choice-bounded"), rivers.service_url
    rivers.create(topic, 1)
    traffic = Traffic(url, topic, keys=4)
    traffic.publish(5)
    before = dict(traffic.sent)
    rivers.split(topic, 0)
    times = batch(spark, url, topic).selectExpr("max(publish_time) t").first()
    border = int(times.t.timestamp() * 1000) + 1
    end = offsets_at(url, topic, border)
    assert end == offsets_at(url, [topic], datetime.fromtimestamp(border / 1000, UTC))
    traffic.publish(3)
    for number, options in enumerate(({"endingOffsets": end}, {"endingTimestamp": str(border)})):
        folder = tmp_path / str(number)
        seen = [row for rows in collected(spark, url, topic, folder, **options) for row in rows]
        check_complete(seen, before)
        seen += [row for rows in collected(spark, url, topic, folder) for row in rows]  # without an end it goes on
        check_complete(seen, traffic.sent)
        check_key_order(seen)
    assert batch(spark, url, topic, startingOffsets=end).count() == traffic.total - sum(before.values())


def test_segments_as_rows(spark: Any, rivers: ScalableBroker) -> None:
    topic, url = named("choice-segments"), rivers.service_url
    rivers.create(topic, 1)
    Traffic(url, topic, keys=4).publish(5)
    rivers.split(topic, 0)
    Traffic(url, topic, keys=4).publish(2)
    rows = batch(spark, url, topic, metadata="segments").orderBy("segment").collect()
    assert [(row.segment, row.state, row.hash_start, row.hash_end) for row in rows] == [
        (0, "SEALED", 0, 65_535),
        (1, "ACTIVE", 0, 32_767),
        (2, "ACTIVE", 32_768, 65_535),
    ]
    assert [row.parents for row in rows] == [[], [0], [0]]
    assert rows[0].children == [1, 2]
    assert rows[0].messages == 20
    assert rows[1].messages + rows[2].messages == 8
    assert rows[0].sealed_at >= rows[0].created_at
    assert rows[1].sealed_at is None
    few = spark.read.format("anabranch").option("serviceUrl", url).option("topic", topic).option("metadata", "segments")
    assert few.schema("segment bigint, bytes bigint").load().columns == ["segment", "bytes"]


def test_long_ranges_are_cut_by_bytes(spark: Any, broker: BrokerProcess) -> None:
    traffic = Traffic(broker.service_url, "choice-bytes", keys=8)
    for _ in range(8):
        traffic.publish(10)
    whole = batch(spark, broker.service_url, "choice-bytes")
    size = batch(spark, broker.service_url, "choice-bytes", metadata="segments").first().bytes
    cut = batch(spark, broker.service_url, "choice-bytes", maxBytesPerPartition=str(size // 4))
    assert whole.rdd.getNumPartitions() == 1
    assert 4 <= cut.rdd.getNumPartitions() <= 8
    check_complete(cut.collect(), traffic.sent)


def test_buckets_are_the_same_whatever_the_partitions(spark: Any, broker: BrokerProcess) -> None:
    """A job that shuffles is run again, and its rows lie otherwise."""
    url = broker.service_url
    rows = spark.range(0, 2_000, 1, 2).selectExpr(
        "concat('key-', id % 7) key", "to_json(named_struct('k', concat('key-', id % 7), 'n', id div 7)) value"
    )
    for partitions in (2, 5):
        shuffled = to_buckets(rows.repartition(partitions), 4)
        made = shuffled.write.format("anabranch").option("serviceUrl", url).option("topic", "choice-buckets")
        made = made.options(producers="buckets", buckets="4", sortBy="key,value", idempotencyKey="job")
        made.mode("append").save()
    found = batch(spark, url, "choice-buckets").collect()
    check_complete(found, {f"key-{i}": 2_000 // 7 + (i < 2_000 % 7) for i in range(7)})
    assert {row.producer_name for row in found} <= {f"spark/job/bucket-{i}" for i in range(4)}
    with pytest.raises(PySparkException, match="producers=buckets needs a column bucket"):
        made = rows.write.format("anabranch").option("serviceUrl", url).option("topic", "choice-buckets")
        made.options(producers="buckets", buckets="4", sortBy="key").mode("append").save()


def test_versions_of_a_job(spark: Any, broker: BrokerProcess) -> None:
    def run(version: int, text: str) -> None:
        made = spark.createDataFrame([(f"{text}-{i}",) for i in range(4)], "value string").coalesce(1).write
        made = made.format("anabranch").option("serviceUrl", broker.service_url).option("topic", "choice-versions")
        made.options(idempotencyKey="job", idempotencyVersion=str(version)).mode("append").save()

    for version, text in ((0, "zero"), (1, "one"), (1, "one"), (0, "zero")):
        run(version, text)
    found = batch(spark, broker.service_url, "choice-versions").orderBy("message_id").collect()
    assert [bytes(row.value).decode() for row in found] == [f"{text}-{i}" for text in ("zero", "one") for i in range(4)]


def test_a_pattern_finds_topics_that_come_later(spark: Any, broker: BrokerProcess, tmp_path: Path) -> None:
    one = Traffic(broker.service_url, "choice-pattern-0", keys=2)
    one.publish(2)
    pattern = "persistent://public/default/choice-pattern-.*"
    made = spark.readStream.format("anabranch").option("serviceUrl", broker.service_url)
    made = made.option("topicsPattern", pattern).option("startingOffsets", "earliest").load()
    seen: list[Any] = []
    query = made.writeStream.foreachBatch(lambda rows, _: seen.extend(rows.collect()))
    query = query.option("checkpointLocation", str(tmp_path)).start()
    try:
        query.processAllAvailable()
        other = Traffic(broker.service_url, "choice-pattern-1", keys=2)
        other.publish(3)
        wait_until(lambda: len(seen) >= one.total + other.total or not query.isActive, "the other topic is read")
    finally:
        query.stop()
    assert query.exception() is None
    assert sorted({row.topic for row in seen}) == [f"persistent://public/default/choice-pattern-{i}" for i in range(2)]
    assert sorted(json.loads(bytes(row.value))["n"] for row in seen) == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2]
