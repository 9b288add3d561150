"""Where rows come from and go to: several topics, partitions that grow, several brokers, clusters that ask for a token;
and a task that is run again after its target has split."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException

from anabranch import blocking
from anabranch.testing.broker import Broker
from tests.support.in_memory.credentials import Authority, token_of, write_secret
from tests.support.processes.broker_process import BrokerProcess
from tests.support.processes.cluster import ClusterProcesses, rest
from tests.support.spark.scalable_topics import ScalableBroker
from tests.support.spark.session import Traffic, check_complete, check_key_order, finish, wait_until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def rivers(spark: Any) -> Iterator[ScalableBroker]:
    with ScalableBroker() as made:
        yield made


def named(name: str) -> str:
    return f"topic://public/default/{name}"


def stream(spark: Any, url: str, **options: str) -> Any:
    made = spark.readStream.format("anabranch").option("serviceUrl", url).option("startingOffsets", "earliest")
    return made.options(**options).load()


def into(rows: Any, url: str, topic: str, checkpoint: Path, **options: str) -> Any:
    made = rows.select("key", "value").writeStream.format("anabranch").option("serviceUrl", url).option("topic", topic)
    made = made.options(**options).option("checkpointLocation", str(checkpoint))
    return made.trigger(availableNow=True).start()


def stored(spark: Any, url: str, topic: str, **options: str) -> list[Any]:
    found = spark.read.format("anabranch").option("serviceUrl", url).option("topic", topic).options(**options)
    return list(found.load().orderBy("message_id").collect())


def test_several_topics_of_which_one_splits(spark: Any, rivers: ScalableBroker, tmp_path: Path) -> None:
    names, url = [named("many-0"), named("many-1")], rivers.service_url
    for name in names:
        rivers.create(name, 1)
    one, other = (Traffic(url, name, keys=6) for name in names)
    seen: list[Any] = []

    def run() -> None:
        rows = stream(spark, url, topics=",".join(names), maxRowsPerTrigger="50")
        made = rows.writeStream.foreachBatch(lambda batch, _: seen.extend(batch.collect()))
        finish(made.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start())

    for traffic in (one, other):
        traffic.publish(10)
    run()
    rivers.split(names[0], 0, 3)
    one.publish(10)
    other.publish(5)
    run()
    for traffic in (one, other):
        mine = [row for row in seen if row.topic == traffic.topic]
        check_complete(mine, traffic.sent)
        check_key_order(mine)
    assert len({row.segment for row in seen if row.topic == names[0]}) > 1


def test_partitions_that_grow(spark: Any, broker: BrokerProcess, tmp_path: Path) -> None:
    url = broker.service_url
    for name, count in (("parts-in", 2), ("parts-out", 3)):
        rest(broker, "PUT", f"/admin/v2/persistent/public/default/{name}/partitions", count)
    traffic = Traffic(url, "parts-in", keys=16)
    traffic.publish(10)
    finish(into(stream(spark, url, topic="parts-in"), url, "parts-out", tmp_path))
    rest(broker, "POST", "/admin/v2/persistent/public/default/parts-in/partitions", 5)
    traffic.publish(10)
    finish(into(stream(spark, url, topic="parts-in"), url, "parts-out", tmp_path))
    rows = stored(spark, url, "parts-out")
    check_complete(rows, traffic.sent)
    assert {row.segment for row in rows} == {0, 1, 2}
    assert {row.segment for row in stored(spark, url, "parts-in")} == {0, 1, 2, 3, 4}


def test_a_task_is_run_again_after_its_target_has_split(spark: Any, rivers: ScalableBroker, tmp_path: Path) -> None:
    """It fails when part of its rows are stored; what they were stored in is sealed before the next attempt."""
    source, target, url = named("again-in"), named("again-out"), rivers.service_url
    rivers.create(source, 1)
    rivers.create(target, 1)
    traffic = Traffic(url, source, keys=8)
    for _ in range(5):
        traffic.publish(50)
    has_split = tmp_path / "has-split"

    def fails_halfway(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        whole = pa.Table.from_batches(list(batches)).combine_chunks()
        padded = [value + b" " * 400 for value in whole.column("value").to_pylist()]  # more than any buffer on the way
        whole = whole.set_column(1, "value", pa.array(padded, pa.binary()))
        if context.attemptNumber() == 0:
            yield from whole.slice(0, len(whole) // 2).to_batches(100)
            deadline = time.monotonic() + 60
            while not has_split.exists() and time.monotonic() < deadline:
                time.sleep(0.02)
            raise RuntimeError("a task fails when half of its rows are written")
        yield from whole.to_batches(100)

    size = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(size)
    spark.conf.set(size, "100")
    try:
        rows = stream(spark, url, topic=source).select("key", "value")
        query = into(rows.mapInArrow(fails_halfway, "key string, value binary"), url, target, tmp_path / "checkpoint")
        with blocking.connect(url) as client, client.queue_consumer(target, subscription="seen") as consumer:
            assert consumer.receive(timeout=60.0) is not None, "part of it is stored"
        rivers.split(target, 0, 3)
        has_split.touch()
        finish(query)
    finally:
        spark.conf.set(size, before)
    rows = stored(spark, url, target)
    check_complete(rows, traffic.sent)
    check_key_order(rows)
    assert {row.segment for row in rows} == {0, 1, 2, 3}


def test_limits_by_bytes_and_a_least_number_of_rows(spark: Any, broker: BrokerProcess, tmp_path: Path) -> None:
    url = broker.service_url
    traffic = Traffic(url, "limits-in", keys=10)
    for _ in range(4):
        traffic.publish(10)
    size = sum(len(bytes(row.value)) for row in stored(spark, url, "limits-in"))
    rows = stream(spark, url, topic="limits-in", maxBytesPerTrigger=str(size))
    made = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "bytes"))
    query = made.trigger(availableNow=True).start()
    finish(query)
    counts = [one["numInputRows"] for one in query.recentProgress if one["numInputRows"]]
    assert sum(counts) == traffic.total
    assert 1 < len(counts) <= 4, counts
    least = stream(spark, url, topic="limits-in", minRowsPerTrigger="450", maxTriggerDelay="1h")
    query = least.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "least")).start()
    try:
        traffic.publish(4)
        traffic.publish(4)
        wait_until(lambda: bool(query.lastProgress and query.lastProgress["numInputRows"]), "enough has come")
        assert query.recentProgress[0]["numInputRows"] == 0 or query.recentProgress[0]["numInputRows"] >= 450
        assert next(one["numInputRows"] for one in query.recentProgress if one["numInputRows"]) >= 450
    finally:
        query.stop()


def test_a_cluster_that_asks_for_a_token_over_tls(spark: Any, tmp_path: Path) -> None:
    authority, token = Authority(tmp_path), token_of("root")
    files = authority.issue("broker")
    settings = {
        "broker.deduplication": True,
        "security.methods": ("token",),
        "security.authorization": True,
        "security.superusers": ("root",),
        "security.token_secret_key": str(write_secret(tmp_path)),
        "tls.ca_file": authority.path,
        "tls.cert_file": files.certificate,
        "tls.key_file": files.key,
        "tls.port": 0,
        "tls.http_port": 0,
    }
    (tmp_path / "token").write_text(token)
    access = {"client.tlsTrustCertsFilePath": str(authority.path), "client.tokenFile": str(tmp_path / "token")}
    with Broker(settings=settings) as secured:
        with blocking.connect(secured.service_url, token=token) as client, client.producer("secured-in") as producer:
            for n in range(20):
                producer.send(b"%d" % n, key=f"key-{n % 4}")
        url = _tls_url(secured, token)
        rows = stream(spark, url, topic="secured-in", **access)
        finish(into(rows, url, "secured-out", tmp_path / "checkpoint", **access))
        plain = {**access, "client.token": token}
        del plain["client.tokenFile"]
        found = spark.read.format("anabranch").option("serviceUrl", url).option("topic", "secured-out").options(**plain)
        read = found.load()
        assert sorted(int(bytes(row.value)) for row in read.collect()) == list(range(20))
        texts = [read._jdf.queryExecution().toString()]
        texts += [path.read_text(errors="replace") for path in (tmp_path / "checkpoint").rglob("*") if path.is_file()]
        assert "secured-in" in "".join(texts), "what was looked through is what was meant"
        for wrong in ({**plain, "client.token": token[:-4] + "AAAA"}, {"client.token": token}):
            with pytest.raises(PySparkException) as refused:
                made = spark.read.format("anabranch").option("serviceUrl", url).option("topic", "secured-out")
                made.option("operationTimeoutMs", "2000").options(**wrong).load().count()
            texts.append(str(refused.value))
        assert token[:-4] not in "".join(texts), "nothing secret in plans, checkpoints and errors"


def _tls_url(broker: Broker, token: str) -> str:
    request = urllib.request.Request(f"{broker.http_url}/lookup/v2/topic/persistent/public/default/secured-in")
    request.add_header("Authorization", f"Bearer {token}")
    with urllib.request.urlopen(request, timeout=30) as answer:
        return str(json.load(answer)["brokerUrlTls"])


@pytest.mark.xdist_group("cluster")
def test_several_brokers_of_which_one_dies(spark: Any, tmp_path: Path) -> None:
    settings = {
        "ANABRANCH_BROKER_DEDUPLICATION": "true",
        "ANABRANCH_TOPICS_RETENTION_MS": "-1",
        "ANABRANCH_TOPICS_RETENTION_BYTES": "-1",
    }
    with ClusterProcesses(tmp_path, 2, session_ms=2_000, environment=settings) as brokers:
        url, any_broker = brokers.service_url, brokers.alive[0]
        for name in ("spread-in", "spread-out"):
            rest(any_broker, "PUT", f"/admin/v2/persistent/public/default/{name}/partitions", 4)
        owners = {brokers.owner(f"persistent://public/default/spread-in-partition-{i}").port for i in range(4)}
        traffic = Traffic(url, "spread-in", keys=16)
        traffic.publish(40)
        rows = stream(spark, url, topic="spread-in", maxRowsPerTrigger="100").select("key", "value")
        made = rows.writeStream.format("anabranch").option("serviceUrl", url).option("topic", "spread-out")
        query = made.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        try:
            wait_until(lambda: bool(query.lastProgress and query.lastProgress["numInputRows"]), "the first batch")
            any_broker.kill9()
            traffic.publish(10)
            query.processAllAvailable()
        finally:
            query.stop()
        check_complete(stored(spark, url, "spread-out"), traffic.sent)
        assert len(owners) == 2, "both had a part in it"


def test_a_subscription_shows_and_holds_what_is_unread(spark: Any, rivers: ScalableBroker, tmp_path: Path) -> None:
    topic, url = named("held-in"), rivers.service_url
    rivers.create(topic, 1)
    traffic = Traffic(url, topic, keys=4)
    traffic.publish(5)

    def run() -> None:
        rows = stream(spark, url, topic=topic, subscription="spark-holds")
        made = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
        finish(made.trigger(availableNow=True).start())

    run()
    run()  # Spark commits a batch when the next one begins
    rivers.split(topic, 0)
    traffic.publish(3)
    with blocking.connect(url) as client, client.queue_consumer(topic, subscription="spark-holds") as consumer:
        unread = [consumer.receive(timeout=30.0) for _ in range(12)]
        assert consumer.receive(timeout=0.2) is None
    assert sorted(json.loads(message.value)["n"] for message in unread if message is not None) == sorted([5, 6, 7] * 4)
