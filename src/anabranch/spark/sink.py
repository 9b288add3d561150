"""The sink: what a write task does with its rows, and which promises go together with what. Runs in executors.

| delivery           | producer name                             | sequence id of row n | a row is stored           |
|--------------------|-------------------------------------------|----------------------|---------------------------|
| `effectively-once` | query (or idempotency key), and partition | batch id · 2³² + n   | once, whatever is retried |
| `at-least-once`    | its own for every attempt                 | n                    | once or more              |

A batch that runs again must bring the same rows in the same order to the same partitions. That is so without a shuffle;
after one, `sortBy` makes the order certain.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, DataType, LongType, MapType, StringType, StructType, TimestampType

from anabranch.client.compression import Compression
from anabranch.model.names import Domain, TopicName
from anabranch.runtime.chance import secret_bytes
from anabranch.spark.access import Access, BadSparkOption
from anabranch.spark.cluster import Cluster, cluster_of
from anabranch.spark.options import ASYNC_PROGRESS, SINK_OPTIONS, Given
from anabranch.spark.outlet import NotDeduplicating, Outlet, OutletOptions, Rows

BATCH_SHIFT = 32
ROWS_MAX = (1 << BATCH_SHIFT) - 1
BATCH_ID = "streaming.sql.batchId"
QUERY_ID = "sql.streaming.queryId"

INPUT: dict[str, tuple[DataType, ...]] = {
    "value": (BinaryType(), StringType()),
    "key": (StringType(), BinaryType()),
    "key_bytes": (BinaryType(),),
    "properties": (MapType(StringType(), StringType()),),
    "event_time": (TimestampType(), LongType()),
    "topic": (StringType(),),
}
PASSED_OVER = frozenset({"segment", "message_id", "publish_time", "producer_name", "sequence_id"})
"""Columns of the source that a copy has and the new message gets anew."""


_ON_REPLAY = {"fail": True, "ignore": False}


class Delivery(StrEnum):
    EFFECTIVELY_ONCE = "effectively-once"
    AT_LEAST_ONCE = "at-least-once"


class BadRows(BadSparkOption):
    """Columns that the sink cannot take."""

    code = "bad-rows"


@dataclass(frozen=True, slots=True)
class SinkOptions:
    access: Access
    topic: str | None  # None: the column says it
    delivery: Delivery
    producer_prefix: str
    sort_by: tuple[str, ...]
    idempotency_key: str | None
    outlet: OutletOptions

    @staticmethod
    def of(options: Mapping[str, str]) -> SinkOptions:
        given = Given(options, SINK_OPTIONS)
        delivery = given.choice("delivery", Delivery, Delivery.EFFECTIVELY_ONCE, Delivery)
        if delivery is Delivery.EFFECTIVELY_ONCE and given.is_on(ASYNC_PROGRESS):
            raise BadSparkOption(
                f"{ASYNC_PROGRESS} does not go with delivery=effectively-once: a batch id may come back with other "
                "rows. Choose delivery=at-least-once, or leave progress tracking as it is"
            )
        topic = given.text("topic")
        key = given.text("idempotencyKey")
        if key is not None and delivery is Delivery.AT_LEAST_ONCE:
            raise BadSparkOption("idempotencyKey is for delivery=effectively-once; at-least-once recognises nothing")
        sort_by = tuple(name.strip() for name in (given.text("sortBy") or "").split(",") if name.strip())
        return SinkOptions(
            given.access(),
            None if topic is None else checked_topic(topic),
            delivery,
            given.text("producerPrefix") or "spark",
            sort_by,
            key,
            OutletOptions(
                entry_rows=given.number("entryMaxRows", 1_000, 1),
                entry_bytes=given.number("entryMaxBytes", 128 * 1024, 1),
                in_flight_bytes=given.number("maxInFlight", 16 << 20, 1),
                compression=given.choice("compression", Compression, Compression.NONE, Compression),
                send_timeout_s=given.number("sendTimeoutMs", 60_000, 1) / 1000,
                is_exact=delivery is Delivery.EFFECTIVELY_ONCE,
                checks_replay=given.choice("onNonDeterministicReplay", _ON_REPLAY.__getitem__, True, _ON_REPLAY),
            ),
        )


def checked_topic(text: str) -> str:
    name = TopicName.parse(text)
    if name.domain not in (Domain.PERSISTENT, Domain.TOPIC):
        raise BadSparkOption(f"{text}: rows go to persistent:// and topic:// topics")
    return str(name)


def check_columns(schema: StructType, options: SinkOptions) -> None:
    names = {field.name: field.dataType for field in schema.fields}
    if "value" not in names:
        raise BadRows(f"there must be a column value (binary or string); there are {', '.join(names)}")
    for name, kind in names.items():
        if name in INPUT:
            if not any(type(kind) is type(one) for one in INPUT[name]):
                wanted = " or ".join(one.simpleString() for one in INPUT[name])
                raise BadRows(f"column {name} is {wanted}, not {kind.simpleString()}")
        elif name not in PASSED_OVER:
            raise BadRows(f"column {name} means nothing to a message; known are {', '.join(INPUT)}")
    if {"key", "key_bytes"} <= set(names):
        raise BadRows("columns key and key_bytes exclude each other in what is written")
    if options.topic is None and "topic" not in names:
        raise BadSparkOption("say where to write: option topic, or a column topic")
    for name in options.sort_by:
        if name not in names:
            raise BadSparkOption(f"sortBy names {name}, which is no column")


@dataclass
class Written(WriterCommitMessage):
    """What one task did."""

    partition: int
    rows: int
    known: int  # of these, what an earlier attempt had persisted


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a task is for the broker."""

    name: str
    first: int  # sequence id of its first row
    epoch: int  # of two that call themselves the same, the one with the higher epoch is right


def identity(options: SinkOptions, job: str, now_ms: int) -> Identity:
    """From the task's own context: the same for every attempt, unless delivery is at least once."""
    context = TaskContext.get()
    partition = 0 if context is None else context.partitionId()
    if options.delivery is Delivery.AT_LEAST_ONCE:
        return Identity(f"{options.producer_prefix}-{secret_bytes(8).hex()}", 0, now_ms)
    query = None if context is None else context.getLocalProperty(QUERY_ID)
    batch = None if context is None else context.getLocalProperty(BATCH_ID)
    if options.idempotency_key is not None:
        return Identity(f"{options.producer_prefix}/{options.idempotency_key}/{partition}", 0, now_ms)
    if query is not None and batch is not None:
        return Identity(f"{options.producer_prefix}/{query}/{partition}", int(batch) << BATCH_SHIFT, now_ms)
    return Identity(f"{options.producer_prefix}/{job}/{partition}", 0, now_ms)


def write_task(options: SinkOptions, job: str, batches: Iterable[pa.RecordBatch]) -> Written:
    cluster = cluster_of(options.access)
    who = identity(options, job, cluster.now_ms())
    outlets: dict[str, Outlet] = {}
    count = 0
    try:
        for topic, rows in rows_of(options, batches, who.first):
            count += len(rows)
            if count > ROWS_MAX:
                raise BadRows(f"more than {ROWS_MAX} rows in one task")
            if topic not in outlets:
                if options.outlet.is_exact:
                    check_deduplicates(cluster, topic)
                outlets[topic] = Outlet(cluster, topic, who.name, who.epoch, options.outlet)
            outlets[topic].send(rows)
        for outlet in outlets.values():
            outlet.finish()
        known = sum(outlet.rows_known for outlet in outlets.values())
    finally:
        for outlet in outlets.values():
            outlet.close()
    context = TaskContext.get()
    return Written(0 if context is None else context.partitionId(), count, known)


def check_deduplicates(cluster: Cluster, topic: str) -> None:
    view = cluster.layout(topic)
    names = [view.backing(one) for one in view.layout.active[:1]]
    for name in names:
        if not cluster.deduplicates(name):
            raise NotDeduplicating(
                f"{topic} does not deduplicate, so delivery=effectively-once cannot be kept. Switch deduplication on "
                "for its namespace, write to a topic:// topic, or choose delivery=at-least-once"
            )


def rows_of(options: SinkOptions, batches: Iterable[pa.RecordBatch], first: int) -> Iterator[tuple[str, Rows]]:
    """The task's rows by topic, numbered in their order."""
    if options.sort_by:
        whole = pa.Table.from_batches(list(batches)) if not isinstance(batches, pa.Table) else batches
        batches = whole.sort_by([(name, "ascending") for name in options.sort_by]).to_batches()
    firsts: dict[str, int] = {}
    for batch in batches:
        if not batch.num_rows:
            continue
        columns = {name: batch.column(name) for name in batch.schema.names}
        if options.topic is not None:
            yield options.topic, as_rows(columns, first)
            first += batch.num_rows
            continue
        topics = columns["topic"]
        if topics.null_count:
            raise BadRows("column topic is null in some row")
        for topic in pc.unique(topics).to_pylist():
            picked = pc.equal(topics, topic)
            made = as_rows({name: column.filter(picked) for name, column in columns.items()}, firsts.get(topic, first))
            firsts[topic] = made.first + len(made)  # each topic counts for itself
            yield checked_topic(topic), made


def as_rows(columns: Mapping[str, Any], first: int) -> Rows:
    event_time = columns.get("event_time")
    if event_time is not None and pa.types.is_timestamp(event_time.type):
        event_time = event_time.cast(pa.timestamp("ms", event_time.type.tz), safe=False).cast(pa.int64())
    key = columns.get("key_bytes", columns.get("key"))
    return Rows(first, columns["value"], key, event_time, columns.get("properties"))


class BatchWriter(DataSourceArrowWriter):
    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._job = secret_bytes(8).hex()  # made once on the driver: attempts of a task share it

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return write_task(self._options, self._job, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Every row is persisted by now."""

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """What was written stays: nothing can be taken back from a topic. An effectively-once retry completes it."""


class StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._job = secret_bytes(8).hex()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return write_task(self._options, self._job, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  Spark's name
        """Every row is persisted by now; a replay of this batch finds that and sends nothing."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  Spark's name
        """The batch runs again under the same id: what was written is recognised then."""
