"""The job `copy`: topic to topic, topic to Parquet and Parquet to topic; resumable, each row once. The source, the
sink and the checkpoint give the guarantee.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from anabranch.spark.client.access import BadSparkOption

PARQUET = "parquet:"
PARQUET_SCHEMA = (
    "key string, value binary, properties map<string,string>, topic string, segment bigint, message_id binary, "
    "publish_time timestamp, event_time timestamp, producer_name string, sequence_id bigint"
)
Watch = Callable[["CopyProgress"], None]


@dataclass(frozen=True, slots=True)
class CopyProgress:
    rows: int
    rows_per_second: float
    backlog_rows: int | None  # what is known to be still ahead


@dataclass(frozen=True, slots=True)
class Copied:
    rows: int
    batches: int
    source: str
    target: str


@dataclass(frozen=True, slots=True)
class Place:
    """A topic, or a folder of Parquet files."""

    topic: str | None = None
    folder: str | None = None

    @staticmethod
    def of(text: str) -> Place:
        """`parquet:FOLDER`, or a topic."""
        if text.startswith(PARQUET):
            return Place(folder=text.removeprefix(PARQUET))
        return Place(topic=text)

    def __str__(self) -> str:
        return self.topic or f"{PARQUET}{self.folder}"


@dataclass(frozen=True, slots=True)
class CopyJob:
    service_url: str
    source: str
    target: str
    checkpoint: str
    target_url: str | None = None  # of another cluster
    start: str = "earliest"
    rows_per_batch: int = 1_000_000  # 0: no limit
    options: Mapping[str, str] = field(default_factory=dict)  # more of source and sink, `client.token` for instance
    admin_url: str | None = None  # of an Apache Pulsar cluster
    target_admin_url: str | None = None


class Tally:
    """Rows per batch. Spark remembers its last hundred reports only, so they are noted as they come."""

    def __init__(self) -> None:
        self._rows: dict[int, int] = {}

    def note(self, reports: Sequence[Mapping[str, Any]]) -> None:
        for one in reports:
            if one["numInputRows"]:
                self._rows[one["batchId"]] = one["numInputRows"]

    @property
    def rows(self) -> int:
        return sum(self._rows.values())

    @property
    def batches(self) -> int:
        return len(self._rows)


def copy(spark: Any, job: CopyJob, watch: Watch | None = None) -> Copied:
    """Copies what there is now; run again with the same checkpoint it goes on where it stopped."""
    source, target = Place.of(job.source), Place.of(job.target)
    if source == target and job.target_url in (None, job.service_url):
        raise BadSparkOption(f"{source} cannot be copied onto itself")
    if source.topic is None and target.topic is None:
        raise BadSparkOption("one side of a copy is a topic")
    if target.folder is not None:
        check_folder(target.folder, job.checkpoint)
    query = _written(_read(spark, job, source), job, target)
    tally = Tally()
    try:
        while not query.awaitTermination(1):
            seen = query.recentProgress
            tally.note(seen)
            if watch is not None:
                watch(progress_of(tally.rows, seen))
    except BaseException:
        query.stop()
        raise
    tally.note(query.recentProgress)
    return Copied(tally.rows, tally.batches, str(source), str(target))


def check_folder(folder: str, checkpoint: str) -> None:
    """Spark would take the batches of a new checkpoint for those that another one has written there, and leave them
    out. Only folders of this machine can be looked into."""
    if "://" in folder or "://" in checkpoint or (Path(checkpoint) / "offsets").is_dir():
        return
    if Path(folder).exists() and not Path(folder).is_dir():
        raise BadSparkOption(f"{folder} is no folder")
    if Path(folder).is_dir() and any(Path(folder).iterdir()):
        raise BadSparkOption(
            f"{folder} is not empty, and {checkpoint} is not the checkpoint of what is in it: choose another folder, "
            "or the checkpoint that the folder was written with"
        )


def _check_parquet(spark: Any, folder: str) -> None:
    """Rows of other people's files would be copied as messages without a value."""
    from pyspark.errors import AnalysisException

    try:
        columns = spark.read.parquet(folder).columns
    except AnalysisException as error:
        raise BadSparkOption(f"{folder} has no Parquet files to copy: {str(error).splitlines()[0]}") from None
    if "value" not in columns:
        raise BadSparkOption(f"{folder} has no column value to make messages of, only {', '.join(columns)}")


def _read(spark: Any, job: CopyJob, place: Place) -> Any:
    if place.topic is None:
        assert place.folder is not None
        if "://" not in place.folder and not Path(place.folder).is_dir():
            raise BadSparkOption(f"there is no folder {place.folder}")
        _check_parquet(spark, place.folder)
        return spark.readStream.schema(PARQUET_SCHEMA).parquet(place.folder)
    made = spark.readStream.format("anabranch").option("serviceUrl", job.service_url).option("topic", place.topic)
    made = made.option("startingOffsets", job.start).option("maxRowsPerTrigger", str(job.rows_per_batch))
    return made.options(**_admin(job.admin_url)).options(**_client(job)).load()


def _written(rows: Any, job: CopyJob, place: Place) -> Any:
    if place.topic is None:
        made = rows.writeStream.format("parquet").option("path", place.folder)
    else:
        rows = rows.select("key", "value", "properties", "event_time")
        made = rows.writeStream.format("anabranch").option("serviceUrl", job.target_url or job.service_url)
        admin_url = job.admin_url if job.target_url in (None, job.service_url) else job.target_admin_url
        made = made.option("topic", place.topic).options(**_admin(admin_url)).options(**job.options)
    return made.option("checkpointLocation", job.checkpoint).trigger(availableNow=True).start()


def _admin(url: str | None) -> dict[str, str]:
    return {} if url is None else {"adminUrl": url}


def _client(job: CopyJob) -> dict[str, str]:
    return {name: value for name, value in job.options.items() if name.lower().startswith("client.")}


def progress_of(rows: int, seen: Sequence[Mapping[str, Any]]) -> CopyProgress:
    """Rows so far, and what the last report says of rate and lag; a folder's files have no lag."""
    last = seen[-1] if seen else None
    backlog = None
    if last is not None and last["sources"]:
        head = last["sources"][0].get("latestOffset")
        found = json.loads(head) if isinstance(head, str) and head.startswith("{") else head
        backlog = found.get("backlogRows") if isinstance(found, dict) else None
    rate = float(last["processedRowsPerSecond"]) if last is not None else 0.0
    return CopyProgress(rows, rate, backlog)
