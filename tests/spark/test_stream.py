"""Streaming queries on a real broker: admission, restarts, crashes of tasks, drivers and brokers, holes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from anabranch.spark import Lag, LagListener
from tests.support.processes.broker_process import BrokerProcess
from tests.support.spark.session import Traffic, check_complete, finish, offsets_in, wait_until

pytestmark = pytest.mark.slow


def stream(spark: Any, broker: BrokerProcess, topic: str, **options: str) -> Any:
    made = spark.readStream.format("anabranch").option("serviceUrl", broker.service_url).option("topic", topic)
    return made.options(**{"startingOffsets": "earliest", **options}).load()


def to_parquet(df: Any, folder: Path) -> Any:
    made = df.writeStream.format("parquet").option("path", str(folder / "out"))
    return made.option("checkpointLocation", str(folder / "checkpoint"))


def rows_in(spark: Any, folder: Path) -> list[Any]:
    return list(spark.read.parquet(str(folder / "out")).collect())


def admin(broker: BrokerProcess, method: str, path: str, body: object = None) -> None:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{broker.http_url}/admin/v2/{path}", data=data, method=method)
    request.add_header("Content-Type", "application/json")
    urllib.request.urlopen(request, timeout=30).close()


def test_limits_restarts_and_lag(spark: Any, broker: BrokerProcess, tmp_path: Path) -> None:
    traffic = Traffic(broker.service_url, "stream-limits", keys=10)
    for _ in range(3):
        traffic.publish(20)
    options = {"maxRowsPerTrigger": "200"}
    reported: list[Lag] = []
    listener = LagListener(reported.append)
    spark.streams.addListener(listener)
    query = to_parquet(stream(spark, broker, "stream-limits", **options), tmp_path).trigger(availableNow=True).start()
    finish(query)
    check_complete(rows_in(spark, tmp_path), traffic.sent)
    progress = [one for one in query.recentProgress if one["numInputRows"]]
    assert [one["numInputRows"] for one in progress] == [200, 200, 200]
    assert json.loads(progress[0]["sources"][0]["latestOffset"])["backlogRows"] == 400
    assert json.loads(progress[-1]["sources"][0]["latestOffset"])["backlogRows"] == 0
    wait_until(lambda: bool(reported) and reported[-1].batch >= 2, "the listener got every batch")
    spark.streams.removeListener(listener)
    assert [one.backlog_rows for one in reported if one.query == query.id][:3] == [400, 200, 0]
    first, second, _ = offsets_in(tmp_path / "checkpoint")
    assert "b" in next(iter(first["topics"].values()))["s"]["0"], "batch 0 says where it began"
    assert "b" not in next(iter(second["topics"].values()))["s"]["0"]
    traffic.publish(5)
    finish(to_parquet(stream(spark, broker, "stream-limits", **options), tmp_path).trigger(availableNow=True).start())
    check_complete(rows_in(spark, tmp_path), traffic.sent)


def test_a_crash_in_batch_0_loses_nothing(spark: Any, broker: BrokerProcess, tmp_path: Path) -> None:
    """Spark does not keep where batch 0 began, and asks again after a restart, when "latest" is further on."""
    traffic = Traffic(broker.service_url, "stream-batch-0", keys=4)
    traffic.publish(3)
    seen: list[Any] = []
    crashes = [True]

    def put(batch: Any, number: int) -> None:
        if crashes:
            crashes.pop()
            raise RuntimeError("a crash in batch 0")
        seen.extend(batch.collect())

    def query() -> Any:
        df = stream(spark, broker, "stream-batch-0", startingOffsets="latest")
        made = df.writeStream.foreachBatch(put).option("checkpointLocation", str(tmp_path / "checkpoint"))
        return made.start()

    one = query()
    wait_until(lambda: one.lastProgress is not None or not one.isActive, "the query knows where it starts")
    traffic.publish(2)
    with pytest.raises(PySparkException, match="a crash in batch 0"):
        one.awaitTermination(120)
    traffic.publish(4)
    two = query()
    wait_until(lambda: len(seen) >= 6 * 4 or not two.isActive, "everything after the start is read")
    two.stop()
    assert sorted(json.loads(bytes(row.value))["n"] for row in seen) == sorted(list(range(3, 9)) * 4)


def test_the_broker_is_killed_in_the_middle(spark: Any, tmp_path: Path) -> None:
    settings = {"ANABRANCH_TOPICS_RETENTION_MS": "-1", "ANABRANCH_TOPICS_RETENTION_BYTES": "-1"}
    with BrokerProcess(tmp_path / "data", environment=settings) as broker:
        traffic = Traffic(broker.service_url, "stream-killed", keys=8)
        traffic.publish(100)
        query = to_parquet(stream(spark, broker, "stream-killed", maxRowsPerTrigger="200"), tmp_path).start()
        wait_until(lambda: bool(query.lastProgress) and query.lastProgress["numInputRows"] > 0, "the first batch")
        broker.kill9()
        broker.start()
        traffic.publish(50)
        query.processAllAvailable()
        query.stop()
        check_complete(rows_in(spark, tmp_path), traffic.sent)


DRIVER = """
import sys
from tests.support.spark.session import session
url, topic, folder = sys.argv[1:]
spark = session("local[1,3]")
df = spark.readStream.format("anabranch").option("serviceUrl", url).option("topic", topic)
df = df.option("startingOffsets", "earliest").option("maxRowsPerTrigger", "100").load()
query = df.writeStream.format("parquet").option("path", folder + "/out")
query = query.option("checkpointLocation", folder + "/checkpoint").start()
print("started", flush=True)
query.awaitTermination()
"""


def test_the_driver_is_killed_and_another_one_goes_on(spark: Any, broker: BrokerProcess, tmp_path: Path) -> None:
    traffic = Traffic(broker.service_url, "stream-driver", keys=8)
    for _ in range(12):
        traffic.publish(10)
    command = [sys.executable, "-c", DRIVER, broker.service_url, "stream-driver", str(tmp_path)]
    with (tmp_path / "driver.log").open("wb") as log:
        driver = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        wait_until(lambda: len(offsets_in(tmp_path / "checkpoint")) >= 3 or driver.poll() is not None, "some batches")
        assert driver.poll() is None, (tmp_path / "driver.log").read_text()[-2000:]
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    finish(to_parquet(stream(spark, broker, "stream-driver"), tmp_path).trigger(availableNow=True).start())
    check_complete(rows_in(spark, tmp_path), traffic.sent)


def test_a_topic_created_again_is_noticed(spark: Any, broker: BrokerProcess, tmp_path: Path) -> None:
    traffic = Traffic(broker.service_url, "stream-again", keys=4)
    traffic.publish(5)
    finish(to_parquet(stream(spark, broker, "stream-again"), tmp_path).trigger(availableNow=True).start())
    admin(broker, "DELETE", "persistent/public/default/stream-again?force=true")
    again = Traffic(broker.service_url, "stream-again", keys=4)
    again.publish(2)
    with pytest.raises(PySparkException, match="stream-again was deleted and created again"):
        finish(to_parquet(stream(spark, broker, "stream-again"), tmp_path).trigger(availableNow=True).start())
    taken = stream(spark, broker, "stream-again", failOnDataLoss="false")
    finish(to_parquet(taken, tmp_path).trigger(availableNow=True).start())
    assert len(rows_in(spark, tmp_path)) == traffic.total + again.total


def test_trimmed_data_is_a_loss_and_a_subscription_holds_it(spark: Any, broker: BrokerProcess, tmp_path: Path) -> None:
    admin(broker, "PUT", "namespaces/public/short", {})
    admin(broker, "POST", "namespaces/public/short/retention", {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0})
    held, lost = (Traffic(broker.service_url, f"public/short/{name}", keys=4) for name in ("held", "lost"))
    for traffic, options in ((held, {"subscription": "spark"}), (lost, {})):
        traffic.publish(3)
        folder = tmp_path / traffic.topic.rpartition("/")[2]
        finish(to_parquet(stream(spark, broker, traffic.topic, **options), folder).trigger(availableNow=True).start())
        traffic.publish(2)  # of these, Spark has seen nothing
        path = traffic.topic.replace("public/short/", "persistent/public/short/")
        admin(broker, "PUT", f"{path}/unload")
        admin(broker, "POST", f"{path}/trim")
        traffic.publish(1)
    finish(
        to_parquet(stream(spark, broker, held.topic, subscription="spark"), tmp_path / "held")
        .trigger(availableNow=True)
        .start()
    )
    check_complete(rows_in(spark, tmp_path / "held"), held.sent)
    with pytest.raises(PySparkException, match="the next entry to read was"):
        finish(to_parquet(stream(spark, broker, lost.topic), tmp_path / "lost").trigger(availableNow=True).start())
    taken = stream(spark, broker, lost.topic, failOnDataLoss="false")
    finish(to_parquet(taken, tmp_path / "lost").trigger(availableNow=True).start())
    numbers = {json.loads(bytes(row.value))["n"] for row in rows_in(spark, tmp_path / "lost")}
    assert numbers == {0, 1, 2, 5}
