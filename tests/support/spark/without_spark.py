"""Source and sink of the pipeline without Spark: what a driver and its executors call, in one process."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit

from anabranch.spark.columns import default_schema
from anabranch.spark.data_source import BatchReader, task_of
from anabranch.spark.options import SourceOptions
from anabranch.spark.sink.writers import SinkOptions, Written, write_task
from anabranch.spark.source.stream_reader import StreamReader

Row = dict[str, Any]


def read_batch(options: dict[str, str]) -> list[list[Row]]:
    """Rows by task."""
    asked = SourceOptions.of(options, streaming=False)
    reader = BatchReader(task_of(asked, default_schema(asked)))
    return [_rows(reader.read(one)) for one in reader.partitions()]


def write_rows(options: dict[str, str], rows: Sequence[tuple[str | None, bytes]]) -> Written:
    """One task; with an `idempotencyKey` the same rows are stored once, however often they are written."""
    keys = pa.array([key for key, _ in rows], pa.string())
    values = pa.array([value for _, value in rows], pa.binary())
    batch = pa.RecordBatch.from_arrays([keys, values], names=["key", "value"])
    return write_task(SinkOptions.of(options), "job", [batch])


class Stream:
    """A streaming query. Its log has the end of each batch as text, as in a checkpoint."""

    def __init__(self, options: dict[str, str], log: Sequence[str] = ()) -> None:
        asked = SourceOptions.of({"startingOffsets": "earliest", **options}, streaming=True)
        self._reader = StreamReader(task_of(asked, default_schema(asked)))
        self.log = list(log) or [json.dumps(self._reader.initialOffset())]

    def batch(self, limit: ReadLimit | None = None) -> list[Row] | None:
        """None: nothing is there for one."""
        start = json.loads(self.log[-1])
        end = self._reader.latestOffset(start, limit or ReadAllAvailable())
        if json.dumps(end) == self.log[-1]:
            return None
        found = [row for one in self._reader.partitions(start, end) for row in _rows(self._reader.read(one))]
        self.log.append(json.dumps(end))
        return found

    def take(self, limit: ReadLimit | None = None) -> list[Row]:
        """Batches until there is nothing for one."""
        found: list[Row] = []
        while (rows := self.batch(limit)) is not None:
            found += rows
        return found

    @property
    def report(self) -> dict[str, Any]:
        return self._reader.reportLatestOffset()

    def stop(self) -> None:
        self._reader.stop()


def _rows(batches: Iterable[pa.RecordBatch]) -> list[Row]:
    return [row for batch in batches for row in batch.to_pylist()]
