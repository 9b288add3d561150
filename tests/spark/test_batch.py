"""Batch queries on a real broker: what is read, how it is cut up, and what is refused."""

from __future__ import annotations

import json
from dataclasses import dataclass, make_dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from anabranch import blocking
from anabranch.client.config import Batching
from anabranch.schema import Avro, Json
from tests.support.processes.broker_process import BrokerProcess
from tests.support.spark.session import Traffic, check_complete, check_key_order

pytestmark = pytest.mark.slow


def reader(spark: Any, broker: BrokerProcess, **options: object) -> Any:
    made = spark.read.format("anabranch").option("serviceUrl", broker.service_url)
    for name, value in options.items():
        made = made.option(name, str(value))
    return made


def test_all_columns_of_a_topic(spark: Any, broker: BrokerProcess) -> None:
    with blocking.connect(broker.service_url) as client, client.producer("batch-columns", name="writer") as producer:
        producer.send(b"one", key="k", properties={"a": "b"}, event_time=1_700_000_000_123)
        producer.send(b"two", key=b"\xff\x00")
        producer.send(b"three")
    found = reader(spark, broker, topic="batch-columns", includeKeyBytes=True).load()
    assert found.columns == [
        "key", "value", "properties", "topic", "segment", "message_id", "publish_time", "event_time",
        "producer_name", "sequence_id", "key_bytes",
    ]  # fmt: skip
    one, two, three = found.orderBy("message_id").collect()
    assert (one.key, bytes(one.value), one.properties) == ("k", b"one", {"a": "b"})
    assert one.event_time.timestamp() == 1_700_000_000.123
    assert (one.topic, one.segment, one.producer_name) == ("persistent://public/default/batch-columns", 0, "writer")
    assert (two.key, bytes(two.key_bytes), two.event_time) == (None, b"\xff\x00", None)
    assert (three.key, three.key_bytes, three.properties) == (None, None, {})
    assert one.sequence_id < two.sequence_id < three.sequence_id
    assert len(bytes(one.message_id)) == 28


def test_compressed_batches_are_read(spark: Any, broker: BrokerProcess) -> None:
    codecs = ["none", "lz4", "zlib", "zstd", "snappy"]
    for name in codecs:
        policy = Batching(max_delay=0.05)
        with (
            blocking.connect(broker.service_url) as client,
            client.producer(f"batch-{name}", compression=name, batching=policy) as producer,
        ):
            for i in range(500):
                producer.send_nowait(b"%d-" % i * 50, key=f"{i % 7}")
            producer.flush(30.0)
    topics = ",".join(f"batch-{name}" for name in codecs)
    found = reader(spark, broker, topics=topics).schema("topic string, key string, value binary").load()
    rows = sorted((row.topic.rpartition("-")[2], row.key, bytes(row.value)) for row in found.collect())
    assert rows == sorted((name, f"{i % 7}", b"%d-" % i * 50) for name in codecs for i in range(500))


def test_partitions_several_topics_and_cutting(spark: Any, broker: BrokerProcess) -> None:
    one, other = (Traffic(broker.service_url, f"batch-many-{i}", keys=8) for i in range(2))
    one.publish(40)
    other.publish(10)
    both = reader(spark, broker, topics="batch-many-0,batch-many-1").load()
    assert both.groupBy("topic").count().count() == 2
    check_complete(both.filter("topic like '%many-0'").collect(), one.sent)
    check_complete(both.filter("topic like '%many-1'").collect(), other.sent)
    pattern = reader(spark, broker, topicsPattern="persistent://public/default/batch-many-.*").load()
    assert pattern.count() == one.total + other.total
    whole = reader(spark, broker, topic="batch-many-0", preserveKeyOrder=True, minPartitions=4).load()
    assert whole.rdd.getNumPartitions() == 1
    check_key_order(whole.collect())


def test_times_and_offsets(spark: Any, broker: BrokerProcess, tmp_path: Path) -> None:
    traffic = Traffic(broker.service_url, "batch-times", keys=4)
    traffic.publish(5)
    first = reader(spark, broker, topic="batch-times").load()
    border = max(row.publish_time for row in first.select("publish_time").collect())
    millis = int(border.timestamp() * 1000) + 1
    traffic.publish(3)
    late = reader(spark, broker, topic="batch-times", startingTimestamp=millis).load()
    assert {json.loads(bytes(row.value))["n"] for row in late.collect()} == {5, 6, 7}
    early = reader(spark, broker, topic="batch-times", endingTimestamp=millis).load()
    check_complete(early.collect(), dict.fromkeys(traffic.keys, 5))
    strict = {"startingTimestamp": "2999-01-01", "startingTimestampStrategy": "error"}
    with pytest.raises(PySparkException, match="batch-times has nothing published at or after"):
        reader(spark, broker, topic="batch-times", **strict).load().count()
    nothing = reader(spark, broker, topic="batch-times", startingOffsets="latest").load()
    assert nothing.count() == 0


def test_values_as_text_and_projection(spark: Any, broker: BrokerProcess) -> None:
    Traffic(broker.service_url, "batch-text", keys=2).publish(1)
    text = reader(spark, broker, topic="batch-text", valueFormat="string", includeMetadata="none").load()
    assert text.columns == ["key", "value"]
    assert sorted(json.loads(row.value)["k"] for row in text.collect()) == ["key-0", "key-1"]
    with pytest.raises(PySparkException, match="there is no column nonsense"):
        reader(spark, broker, topic="batch-text").schema("nonsense string").load().count()
    with pytest.raises(PySparkException, match="column value is binary, the schema says bigint"):
        reader(spark, broker, topic="batch-text").schema("value long").load().count()


def test_unknown_options_are_refused_with_a_hint(spark: Any, broker: BrokerProcess) -> None:
    with pytest.raises(PySparkException, match=r"there is no option startingoffset.*did you mean startingOffsets\?"):
        reader(spark, broker, topic="x", startingOffset="earliest").load()
    with pytest.raises(PySparkException, match="give one of topic, topics, topicsPattern"):
        reader(spark, broker).load()


def test_a_topic_that_is_not_there(spark: Any, broker: BrokerProcess) -> None:
    for _ in range(2):  # asking does not make it
        for name in ("batch-nowhere", "topic://public/default/batch-nowhere"):
            with pytest.raises(PySparkException, match="TopicNotFound"):
                reader(spark, broker, topic=name).load().count()


def test_secrets_are_not_told(spark: Any, broker: BrokerProcess) -> None:
    with pytest.raises(PySparkException) as caught:
        reader(spark, broker, topic="batch-nowhere", **{"client.token": "s3cr3t"}).load().count()
    assert "s3cr3t" not in str(caught.value)


def test_sql_tables_follow_the_head(spark: Any, broker: BrokerProcess) -> None:
    traffic = Traffic(broker.service_url, "batch-sql", keys=3)
    traffic.publish(2)
    spark.sql(
        f"create or replace temporary view batch_sql using anabranch "
        f"options (serviceUrl '{broker.service_url}', topic 'batch-sql')"
    )
    assert spark.sql("select count(*) c from batch_sql").first().c == 6


@dataclass
class Order:
    id: int
    customer: str
    tags: list[str]
    price: float | None = None


OrderNow = make_dataclass(
    "Order",
    [
        ("id", int),
        ("customer", str),
        ("tags", list[str]),
        ("price", float | None, None),
        ("note", str, "none"),
    ],
)


@pytest.mark.parametrize("form", [Json, Avro])
def test_values_become_columns_by_the_topics_schema(spark: Any, broker: BrokerProcess, form: Any) -> None:
    topic = f"batch-schema-{form.__name__.lower()}"
    with blocking.connect(broker.service_url) as client:
        with client.producer(topic, schema=form(Order)) as producer:
            producer.send(Order(1, "ada", ["a", "b"], 2.5), key="k")
            producer.send(Order(2, "bela", []), key="k")
        with client.producer(topic, schema=form(OrderNow)) as producer:  # the next version of it
            producer.send(OrderNow(3, "cleo", ["c"], None, "later"), key="k")
    found = reader(spark, broker, topic=topic, valueFormat="schema", includeMetadata="none").load()
    assert found.columns == ["key", "id", "customer", "tags", "price", "note"]
    rows = [tuple(row) for row in found.orderBy("id").collect()]
    unknown = None if form is Json else "none"  # Avro fills in what an older writer did not know
    assert rows == [
        ("k", 1, "ada", ["a", "b"], 2.5, unknown),
        ("k", 2, "bela", [], None, unknown),
        ("k", 3, "cleo", ["c"], None, "later"),
    ]
    few = reader(spark, broker, topic=topic, valueFormat="schema").schema("customer string, key string").load()
    assert {row.customer for row in few.collect()} == {"ada", "bela", "cleo"}
