"""The sink on a real broker: rows become messages once, whatever fails on the way; what cannot be kept is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException

from anabranch import Checkpoint, blocking
from tests.support.processes.broker_process import BrokerProcess
from tests.support.spark.session import Traffic, check_complete, check_key_order, finish

pytestmark = pytest.mark.slow

VALUE = "to_json(named_struct('k', concat('key-', id % 4), 'n', id div 4)) value"


def rows_of(spark: Any, count: int) -> Any:
    return spark.range(0, count, 1, 2).selectExpr(
        "concat('key-', id % 4) key", VALUE, "timestamp_millis(id + 1) event_time"
    )


def stored(spark: Any, broker: BrokerProcess, topic: str) -> list[Any]:
    found = spark.read.format("anabranch").option("serviceUrl", broker.service_url).option("topic", topic)
    return list(found.load().orderBy("message_id").collect())


def writer(df: Any, broker: BrokerProcess, topic: str, **options: str) -> Any:
    made = df.write.format("anabranch").option("serviceUrl", broker.service_url).option("topic", topic).mode("append")
    return made.options(**options)


def stream_writer(df: Any, broker: BrokerProcess, topic: str, checkpoint: Path, **options: str) -> Any:
    made = df.writeStream.format("anabranch").option("serviceUrl", broker.service_url).option("topic", topic)
    return made.option("checkpointLocation", str(checkpoint)).options(**options).trigger(availableNow=True)


def source(spark: Any, broker: BrokerProcess, topic: str, **options: str) -> Any:
    made = spark.readStream.format("anabranch").option("serviceUrl", broker.service_url).option("topic", topic)
    return made.option("startingOffsets", "earliest").options(**options).load().select("key", "value")


def test_a_batch_write_is_stored_once_and_read_back(spark: Any, broker: BrokerProcess) -> None:
    for _ in range(2):  # the whole job again: recognised by its key
        writer(rows_of(spark, 4_000), broker, "sink-batch", idempotencyKey="job-7", compression="zstd").save()
    rows = stored(spark, broker, "sink-batch")
    check_complete(rows, {f"key-{i}": 1_000 for i in range(4)})
    assert {row.key for row in rows} == {f"key-{i}" for i in range(4)}
    assert rows[0].event_time is not None
    writer(rows_of(spark, 8), broker, "sink-batch", idempotencyKey="job-8").save()
    assert len(stored(spark, broker, "sink-batch")) == 4_008


def test_a_replay_with_other_rows_is_noticed(spark: Any, broker: BrokerProcess) -> None:
    writer(rows_of(spark, 400), broker, "sink-other", idempotencyKey="job").save()
    other = rows_of(spark, 400).selectExpr("key", "concat(value, '!') value")
    with pytest.raises(PySparkException, match="rows that the task brings again for segment 0 are not the"):
        writer(other, broker, "sink-other", idempotencyKey="job").save()
    writer(other, broker, "sink-other", idempotencyKey="job", onNonDeterministicReplay="ignore").save()
    check_complete(stored(spark, broker, "sink-other"), {f"key-{i}": 100 for i in range(4)})


def test_the_topic_may_be_a_column(spark: Any, broker: BrokerProcess) -> None:
    rows = rows_of(spark, 40).selectExpr("key", "value", "concat('sink-column-', substr(key, 5)) topic")
    made = rows.write.format("anabranch").option("serviceUrl", broker.service_url).mode("append")
    made.save()
    for i in range(4):
        check_complete(stored(spark, broker, f"sink-column-{i}"), {f"key-{i}": 10})


def test_null_values_are_tombstones_in_source_and_sink(spark: Any, broker: BrokerProcess, tmp_path: Path) -> None:
    """SDK → source → sink → SDK. A tombstone is no empty value, which is a message like others."""
    sent = [("a", b"1"), ("b", b""), ("a", None), ("c", None), ("a", b"2")]
    with blocking.connect(broker.service_url) as client:
        with client.producer("sink-null-in") as producer:
            for key, value in sent:
                producer.send(value, key=key)
        rows = source(spark, broker, "sink-null-in")
        finish(stream_writer(rows, broker, "sink-null-out", tmp_path / "checkpoint").start())
        with client.checkpoint_consumer("sink-null-out", start=Checkpoint.earliest()) as reader:
            messages = [reader.receive(timeout=60.0) for _ in sent]
    assert [(one.key, one.value, one.is_tombstone) for one in messages if one is not None] == [
        (key, value, value is None) for key, value in sent
    ]


def test_a_stream_survives_failing_tasks_and_killed_workers(spark: Any, broker: BrokerProcess, tmp_path: Path) -> None:
    traffic = Traffic(broker.service_url, "sink-faults-in", keys=8)
    traffic.publish(200)

    def faulty(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os
        import signal

        context = TaskContext.get()
        assert context is not None
        yield from batches
        if context.attemptNumber() == 0:  # everything is written by now, nothing is finished
            raise RuntimeError("a task fails after its write")
        if context.attemptNumber() == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    read = source(spark, broker, "sink-faults-in", maxRowsPerTrigger="1000")
    broken = read.mapInArrow(faulty, "key string, value binary")
    finish(stream_writer(broken, broker, "sink-faults-out", tmp_path / "checkpoint").start())
    rows = stored(spark, broker, "sink-faults-out")
    check_complete(rows, traffic.sent)
    check_key_order(rows)


def test_a_batch_that_is_run_again_is_recognised(spark: Any, broker: BrokerProcess, tmp_path: Path) -> None:
    traffic = Traffic(broker.service_url, "sink-again-in", keys=4)
    traffic.publish(50)
    crashes = [True]

    def put(batch: Any, _: int) -> None:
        writer(batch, broker, "sink-again-out").save()
        if crashes:
            crashes.pop()
            raise RuntimeError("the driver fails after the write, before Spark knows")

    for _ in range(2):
        read = source(spark, broker, "sink-again-in")
        query = (
            read.writeStream.foreachBatch(put)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination(120)
        except PySparkException as error:
            assert "fails after the write" in str(error)
    rows = stored(spark, broker, "sink-again-out")
    check_complete(rows, traffic.sent)
    check_key_order(rows)


def test_what_cannot_be_promised_is_refused(spark: Any, broker: BrokerProcess, tmp_path: Path) -> None:
    rows = rows_of(spark, 4)
    with pytest.raises(PySparkException, match="mode overwrite is refused"):
        writer(rows, broker, "sink-refused").mode("overwrite").save()
    with pytest.raises(PySparkException, match="column other means nothing to a message"):
        writer(rows.withColumn("other", rows.key), broker, "sink-refused").save()
    with pytest.raises(PySparkException, match="idempotencyKey is for delivery=effectively-once"):
        writer(rows, broker, "sink-refused", delivery="at-least-once", idempotencyKey="x").save()
    with pytest.raises(PySparkException, match="there must be a column value"):
        writer(rows.select("key"), broker, "sink-refused").save()
    with pytest.raises(PySparkException, match=r"no option deliver; did you mean delivery\?"):
        writer(rows, broker, "sink-refused", deliver="x").save()
    Traffic(broker.service_url, "sink-refused-in", keys=1).publish(1)
    read = source(spark, broker, "sink-refused-in")
    with pytest.raises(PySparkException, match="asyncProgressTrackingEnabled does not go with"):
        query = stream_writer(
            read, broker, "sink-refused", tmp_path / "a", asyncProgressTrackingEnabled="true",
            _asyncProgressTrackingOverrideSinkSupportCheck="true",
        ).trigger(processingTime="1 second").start()  # fmt: skip
        finish(query)
    with pytest.raises(PySparkException, match="output mode complete is refused"):
        counted = read.groupBy("key").count().selectExpr("key", "cast(count as string) value")
        finish(stream_writer(counted, broker, "sink-refused", tmp_path / "b").outputMode("complete").start())


def test_effectively_once_needs_a_topic_that_deduplicates(spark: Any, tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", arguments=["--sync", "none"]) as plain:
        writer(rows_of(spark, 4), plain, "sink-plain", delivery="at-least-once").save()
        with pytest.raises(PySparkException, match="sink-plain does not deduplicate"):
            writer(rows_of(spark, 4), plain, "sink-plain").save()
        assert len(stored(spark, plain, "sink-plain")) == 4
