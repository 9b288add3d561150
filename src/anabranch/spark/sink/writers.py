"""The sink: what a write task does with its rows, and which promises go together with what. Runs in executors.

| delivery           | producer name                             | sequence id of row n | a row is stored           |
|--------------------|-------------------------------------------|----------------------|---------------------------|
| `effectively-once` | query (or idempotency key), and partition | batch id · 2³² + n   | once, whatever is retried |
|                    | or bucket                                 |                      |                           |
| `at-least-once`    | its own for every attempt                 | n                    | once or more              |

A batch that runs again must bring the same rows in the same order to the same partitions. That is so without a shuffle;
after one, `sortBy` makes the order certain, and `producers=buckets` the names, whatever the number of partitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from anabranch.client.encryption.options import Encryption
from anabranch.client.messages.compression import Compression
from anabranch.model.names import Domain, TopicName
from anabranch.model.partition_hash import PartitionHash
from anabranch.runtime.chance import secret_bytes
from anabranch.spark.client.access import Access, BadSparkOption
from anabranch.spark.client.cluster_client import ClusterClient, cluster_of
from anabranch.spark.encryption_options import encryption_of
from anabranch.spark.options import ASYNC_PROGRESS, SINK_OPTIONS, Given
from anabranch.spark.sink.buckets import BUCKET, BUCKETS_MAX
from anabranch.spark.sink.segment_writer import Rows
from anabranch.spark.sink.topic_writer import NotDeduplicating, OnReplay, OutletOptions, TopicWriter

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
    BUCKET: (IntegerType(), LongType()),  # of `producers=buckets`; passed over otherwise
}
PASSED_OVER = frozenset({"segment", "message_id", "publish_time", "producer_name", "sequence_id"})
"""Columns of the source that a copy has and the new message gets anew."""


VERSIONS_MAX = 1 << 31


class Delivery(StrEnum):
    EFFECTIVELY_ONCE = "effectively-once"
    AT_LEAST_ONCE = "at-least-once"


class Producers(StrEnum):
    """The unit that has a producer name of its own."""

    PARTITIONS = "partitions"
    BUCKETS = "buckets"


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
    idempotency_version: int | None
    buckets: int  # 0: names go by partition
    outlet: OutletOptions

    @staticmethod
    def of(options: Mapping[str, str]) -> SinkOptions:
        given = Given(options, SINK_OPTIONS)
        if (given.text("delivery") or "").lower() == "exactly-once":
            raise BadSparkOption(
                "delivery=exactly-once is refused: it needs transactions, which brokers do not have yet. "
                "delivery=effectively-once stores each row once, too, where a replay brings the same rows"
            )
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
        version = given.parsed("idempotencyVersion", int, None, "a whole number")
        if version is not None and (key is None or not 0 <= version < VERSIONS_MAX):
            raise BadSparkOption(f"idempotencyVersion goes with idempotencyKey and is 0 to {VERSIONS_MAX - 1}")
        sort_by = tuple(name.strip() for name in (given.text("sortBy") or "").split(",") if name.strip())
        encryption = encryption_of(given.text)
        return SinkOptions(
            given.access(),
            None if topic is None else checked_topic(topic),
            delivery,
            given.text("producerPrefix") or "spark",
            sort_by,
            key,
            version,
            _buckets(given, delivery, sort_by),
            OutletOptions(
                entry_rows=given.number("entryMaxRows", 1_000, 1),
                entry_bytes=given.number("entryMaxBytes", 128 * 1024, 1),
                in_flight_bytes=given.number("maxInFlight", 16 << 20, 1),
                compression=given.choice("compression", Compression, Compression.NONE, Compression),
                send_timeout_s=given.number("sendTimeoutMs", 60_000, 1) / 1000,
                is_exact=delivery is Delivery.EFFECTIVELY_ONCE,
                partition_hash=given.choice("partitionHash", PartitionHash, None, PartitionHash),
                on_replay=_on_replay(given, encryption),
                encryption=encryption,
            ),
        )


def _on_replay(given: Given, encryption: Encryption | None) -> OnReplay:
    """The broker has no checksum of encrypted rows, and the sink no private key to read them back."""
    if encryption is None:
        return given.choice("onNonDeterministicReplay", OnReplay, OnReplay.FAIL, OnReplay)
    chosen = given.choice("onNonDeterministicReplay", OnReplay, OnReplay.IGNORE, OnReplay)
    if chosen is not OnReplay.IGNORE:
        raise BadSparkOption("with encryption, onNonDeterministicReplay is ignore: stored rows cannot be compared")
    return chosen


def _buckets(given: Given, delivery: Delivery, sort_by: tuple[str, ...]) -> int:
    count = given.number("buckets", 0)
    if given.choice("producers", Producers, Producers.PARTITIONS, Producers) is Producers.PARTITIONS:
        if count:
            raise BadSparkOption("buckets goes with producers=buckets")
        return 0
    if not 1 <= count <= BUCKETS_MAX:
        raise BadSparkOption(f"producers=buckets needs buckets, 1 to {BUCKETS_MAX}, not {count}")
    if delivery is Delivery.AT_LEAST_ONCE:
        raise BadSparkOption("producers=buckets is for delivery=effectively-once; at-least-once recognises nothing")
    if not sort_by:
        raise BadSparkOption(
            "producers=buckets needs sortBy: rows come into buckets by a shuffle, whose order is not the same when a "
            "batch runs again"
        )
    return count


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
    if options.buckets and BUCKET not in names:
        raise BadSparkOption(f"producers=buckets needs a column {BUCKET}: write to_buckets(rows, {options.buckets})")
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

    def of_bucket(self, bucket: int) -> Identity:
        """A bucket is the same one in whatever task it is."""
        return replace(self, name=f"{self.name.rpartition('/')[0]}/bucket-{bucket}")


def identity(options: SinkOptions, job: str, now_ms: int) -> Identity:
    """From the task's own context: the same for every attempt, unless delivery is at least once."""
    context = TaskContext.get()
    partition = 0 if context is None else context.partitionId()
    if options.delivery is Delivery.AT_LEAST_ONCE:
        return Identity(f"{options.producer_prefix}-{secret_bytes(8).hex()}", 0, now_ms)
    query = None if context is None else context.getLocalProperty(QUERY_ID)
    batch = None if context is None else context.getLocalProperty(BATCH_ID)
    run = 0 if query is None or batch is None else int(batch)
    if options.idempotency_key is not None:
        job = options.idempotency_key
        run = run if options.idempotency_version is None else options.idempotency_version
    elif query is not None and batch is not None:
        job = query
    return Identity(f"{options.producer_prefix}/{job}/{partition}", run << BATCH_SHIFT, now_ms)


def write_task(options: SinkOptions, job: str, batches: Iterable[pa.RecordBatch]) -> Written:
    cluster = cluster_of(options.access)
    who = identity(options, job, cluster.now_ms())
    outlets: dict[Lot, TopicWriter] = {}
    count = 0
    try:
        for lot, rows in rows_of(options, batches, who.first):
            count += len(rows)
            if count > ROWS_MAX:
                raise BadRows(f"more than {ROWS_MAX} rows in one task")
            if lot not in outlets:
                bucket, topic = lot
                if options.outlet.is_exact:
                    check_deduplicates(cluster, topic)
                name = who.name if bucket is None else who.of_bucket(bucket).name
                outlets[lot] = TopicWriter(cluster, topic, name, who.epoch, options.outlet)
            outlets[lot].send(rows)
        for outlet in outlets.values():
            outlet.finish()
        known = sum(outlet.rows_known for outlet in outlets.values())
    finally:
        for outlet in outlets.values():
            outlet.close()
    context = TaskContext.get()
    return Written(0 if context is None else context.partitionId(), count, known)


def check_deduplicates(cluster: ClusterClient, topic: str) -> None:
    view = cluster.layout(topic, creates=True)
    names = [view.backing(one) for one in view.layout.active[:1]]
    for name in names:
        if not cluster.deduplicates(name):
            raise NotDeduplicating(
                f"{topic} does not deduplicate, so delivery=effectively-once cannot be kept. Switch deduplication on "
                "for its namespace, write to a topic:// topic, or choose delivery=at-least-once"
            )


Lot = tuple[int | None, str]
"""Bucket, if there are any, and topic: what is numbered for itself."""


def _sorted(batches: Iterable[pa.RecordBatch], names: Sequence[str]) -> Iterable[pa.RecordBatch]:
    found = list(batches)
    if not found:  # a task of an empty Spark partition gets no batch, so there is no schema to build a table with
        return found
    ordered: list[pa.RecordBatch] = (
        pa.Table.from_batches(found).sort_by([(name, "ascending") for name in names]).to_batches()
    )
    return ordered


def rows_of(options: SinkOptions, batches: Iterable[pa.RecordBatch], first: int) -> Iterator[tuple[Lot, Rows]]:
    """The task's rows by bucket and topic, numbered in their order."""
    if options.sort_by:
        batches = _sorted(batches, options.sort_by)
    firsts: dict[Lot, int] = {}
    for batch in batches:
        if not batch.num_rows:
            continue
        columns = {name: batch.column(name) for name in batch.schema.names}
        for bucket, of_bucket in _by(columns, BUCKET if options.buckets else None):
            if bucket is not None and not 0 <= bucket < options.buckets:
                raise BadRows(f"column {BUCKET} has {bucket}, where there are {options.buckets} buckets from 0 on")
            for topic, some in _by(of_bucket, "topic" if options.topic is None else None):
                lot = bucket, options.topic or checked_topic(topic)
                made = as_rows(some, firsts.get(lot, first))
                firsts[lot] = made.first + len(made)
                yield lot, made


def _by(columns: Mapping[str, Any], name: str | None) -> Iterator[tuple[Any, Mapping[str, Any]]]:
    """The rows of each value of a column; all of them, when there is none to go by."""
    if name is None:
        yield None, columns
        return
    by = columns[name]
    if by.null_count:
        raise BadRows(f"column {name} is null in some row")
    values = pc.unique(by).to_pylist()
    for value in values:
        picked = None if len(values) == 1 else pc.equal(by, value)
        yield value, columns if picked is None else {name: one.filter(picked) for name, one in columns.items()}


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
        if options.idempotency_key is not None:
            raise BadSparkOption("idempotencyKey is for batch writes: a stream is recognised by its checkpoint")
        self._options = options
        self._job = secret_bytes(8).hex()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return write_task(self._options, self._job, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  Spark's name
        """Every row is persisted by now; a replay of this batch finds that and sends nothing."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  Spark's name
        """The batch runs again under the same id: what was written is recognised then."""
