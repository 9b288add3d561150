"""The data source `anabranch`: what Spark calls for schema, readers and writers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from anabranch.spark.client.access import BadSparkOption
from anabranch.spark.client.cluster_client import cluster_of
from anabranch.spark.columns import check_projection, default_schema
from anabranch.spark.offsets.partitions import Range
from anabranch.spark.options import SourceOptions, Subject, ValueFormat
from anabranch.spark.sink.writers import BatchWriter, SinkOptions, StreamWriter, check_columns
from anabranch.spark.source.planning import batch_partitions, topics_of
from anabranch.spark.source.read_task import Task, read
from anabranch.spark.source.segments_table import SEGMENT_COLUMNS, SegmentsReader
from anabranch.spark.source.value_decoder import Form, ValueReader, value_reader


@dataclass
class RangesPartition(InputPartition):
    """The ranges of one task."""

    ranges: tuple[Range, ...]

    def __init__(self, ranges: Sequence[Range]) -> None:
        super().__init__(None)
        self.ranges = tuple(ranges)


class AnabranchSource(DataSource):
    """`spark.read.format("anabranch")` and its three siblings."""

    @classmethod
    def name(cls) -> str:
        return "anabranch"

    def schema(self) -> StructType:
        options = SourceOptions.of(_texts(self.options), streaming=_might_stream(self.options))
        if options.subject is Subject.SEGMENTS:
            return SEGMENT_COLUMNS
        return default_schema(options, _values_of(options)[1])

    def reader(self, schema: StructType) -> DataSourceReader:
        options = SourceOptions.of(_texts(self.options), streaming=False)
        if options.subject is Subject.SEGMENTS:
            return SegmentsReader(options, schema)
        return BatchReader(task_of(options, schema))

    def streamReader(self, schema: StructType) -> Any:  # noqa: N802  Spark's name
        from anabranch.spark.source.stream_reader import StreamReader

        options = SourceOptions.of(_texts(self.options), streaming=True)
        return StreamReader(task_of(options, schema))

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        return BatchWriter(self._sink(schema, overwrite, "mode overwrite"))

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:  # noqa: N802  Spark's name
        return StreamWriter(self._sink(schema, overwrite, "output mode complete"))

    def _sink(self, schema: StructType, overwrite: bool, what: str) -> SinkOptions:
        options = SinkOptions.of(_texts(self.options))
        if overwrite:
            raise BadSparkOption(f"{what} is refused: a topic is appended to, what is in it cannot be taken back")
        check_columns(schema, options)
        return options


class BatchReader(DataSourceReader):
    def __init__(self, task: Task) -> None:
        self._task = task

    def partitions(self) -> Sequence[InputPartition]:
        options = self._task.options
        return [RangesPartition(one) for one in batch_partitions(cluster_of(options.access), options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, RangesPartition):
            yield from read(self._task, partition.ranges)


def task_of(options: SourceOptions, schema: StructType) -> Task:
    values, fields = _values_of(options)
    check_projection(schema, options, fields)
    return Task(options, to_arrow_schema(schema, timezone="UTC"), values)


def _values_of(options: SourceOptions) -> tuple[ValueReader | None, StructType | None]:
    if options.value_format is ValueFormat.BINARY:
        return None, None
    if options.value_format is ValueFormat.STRING:
        return ValueReader(Form.TEXT, options.access), None
    cluster = cluster_of(options.access)
    return value_reader(cluster, options.access, topics_of(cluster, options))


def _texts(options: Mapping[str, Any]) -> dict[str, str]:
    return {str(name): str(value) for name, value in options.items()}


def _might_stream(options: Mapping[str, Any]) -> bool:
    """The schema is asked for before Spark says which of the two it will be."""
    return "subscription" in {name.lower() for name in options}
