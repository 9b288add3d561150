"""`metadata=segments`: the segments of a topic as rows, one per segment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, IntegerType, LongType, StringType, StructField, StructType, TimestampType

from anabranch.client.topic.topic_view import TopicView
from anabranch.spark.client.access import BadSparkOption
from anabranch.spark.client.cluster_client import cluster_of
from anabranch.spark.offsets.topic_view import SegmentExtent, View
from anabranch.spark.options import SourceOptions
from anabranch.spark.source.planning import topics_of

SEGMENT_COLUMNS = StructType(
    [
        StructField("topic", StringType(), True),
        StructField("segment", LongType(), True),
        StructField("state", StringType(), True),
        StructField("hash_start", IntegerType(), True),
        StructField("hash_end", IntegerType(), True),
        StructField("parents", ArrayType(LongType(), True), True),
        StructField("children", ArrayType(LongType(), True), True),
        StructField("first", StringType(), True),
        StructField("end", StringType(), True),
        StructField("entries", LongType(), True),
        StructField("messages", LongType(), True),
        StructField("bytes", LongType(), True),
        StructField("created_at", TimestampType(), True),
        StructField("sealed_at", TimestampType(), True),
    ]
)


class SegmentsReader(DataSourceReader):
    """One task, which asks; the answer is as of then."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        known = {one.name: one.dataType for one in SEGMENT_COLUMNS.fields}
        for one in schema.fields:
            if known.get(one.name) != one.dataType:
                raise BadSparkOption(f"there is no column {one.name} {one.dataType.simpleString()} of segments")
        self._options = options
        self._schema = to_arrow_schema(schema, timezone="UTC")

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        cluster = cluster_of(self._options.access)
        found = []
        for topic in topics_of(cluster, self._options):
            found += segment_rows(cluster.view(topic), cluster.layout(topic))
        yield pa.RecordBatch.from_pylist(found, schema=self._schema)


def segment_rows(view: View, seen: TopicView) -> list[dict[str, Any]]:
    rows = []
    for one, segment in sorted(view.segments.items()):
        known = seen.layout.segments.get(one)
        rows.append(
            {
                "topic": view.topic,
                "segment": one,
                "state": "SEALED" if segment.is_sealed else "ACTIVE",
                "hash_start": segment.span[0],
                "hash_end": segment.span[1],
                "parents": list(segment.parent_ids),
                "children": list(segment.child_ids),
                "first": str(segment.first),
                "end": str(segment.end),
                "entries": sum(ledger.entries for ledger in segment.ledgers),
                "messages": _messages(segment),
                "bytes": sum(ledger.bytes for ledger in segment.ledgers),
                "created_at": None if known is None else _moment(known.created_at_ms),
                "sealed_at": None if known is None else _moment(known.sealed_at_ms),
            }
        )
    return rows


def _messages(segment: SegmentExtent) -> int | None:
    """None where the cluster does not count them."""
    counts = [ledger.messages for ledger in segment.ledgers]
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def _moment(ms: int) -> datetime | None:
    return datetime.fromtimestamp(ms / 1000, UTC) if ms > 0 else None
