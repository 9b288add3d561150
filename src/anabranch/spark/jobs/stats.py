"""The job `stats`: how a topic's messages lie over its segments, its keys and over time, and where it would split well.

A split point is the ring position that halves a segment's bytes; it is suggested for segments that have more than their
share. Keys are counted exactly; a picture is drawn by `anabranch.spark.jobs.plots`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

HOT_KEYS = 10
TIME_STEPS = 60
LAYOUT = "segment bigint, state string, hash_start int, hash_end int, parents array<bigint>"


@dataclass(frozen=True, slots=True)
class SegmentStats:
    segment: int
    messages: int
    bytes: int
    keys: int
    share: float  # of all bytes
    hash_start: int
    hash_end: int
    is_active: bool
    parents: tuple[int, ...]
    split_at: int | None  # halves its bytes; None: it is sealed, has less than its share, or one key


@dataclass(frozen=True, slots=True)
class KeyStats:
    key: str
    messages: int
    bytes: int
    segment: int


@dataclass(frozen=True, slots=True)
class TopicStats:
    topic: str
    messages: int
    bytes: int
    keys: int
    skew: float  # bytes of the largest segment over the mean
    segments: tuple[SegmentStats, ...]
    hot_keys: tuple[KeyStats, ...]
    over_time: tuple[tuple[datetime, int, int], ...]  # equal steps: when it begins, messages, bytes
    step_seconds: float

    def as_dict(self) -> dict[str, Any]:
        made = asdict(self)
        made["over_time"] = [[at.isoformat(), messages, size] for at, messages, size in self.over_time]
        return made


def stats(spark: Any, service_url: str, topic: str, *, options: Mapping[str, str] | None = None) -> TopicStats:
    from pyspark.sql import functions as f

    def reader() -> Any:
        made = spark.read.format("anabranch").option("serviceUrl", service_url).option("topic", topic)
        return made.options(**dict(options or {}))

    rows = reader().schema("key string, value binary, segment bigint, publish_time timestamp").load()
    sized = rows.select("key", "segment", "publish_time", f.octet_length("value").alias("size"))
    ringed = sized.mapInArrow(
        with_ring, "key string, segment bigint, publish_time timestamp, size int, ring int"
    ).cache()
    try:
        keys = (
            ringed.groupBy("segment", "key", "ring")
            .agg(f.count("*").alias("messages"), f.coalesce(f.sum("size"), f.lit(0)).alias("bytes"))
            .cache()
        )
        segments = (
            keys.groupBy("segment")
            .agg(
                f.sum("messages").alias("messages"),
                f.sum("bytes").alias("bytes"),
                f.count("key").alias("keys"),
            )
            .orderBy("segment")
            .collect()
        )
        layout = {one.segment: one for one in reader().option("metadata", "segments").schema(LAYOUT).load().collect()}
        total = sum(row.bytes for row in segments)
        mean = total / len(segments) if segments else 0.0
        cuts = _split_points(keys, f)
        hot = keys.filter("key is not null").orderBy(f.desc("bytes"), "key").limit(HOT_KEYS).collect()
        found = tuple(
            _segment_stats(row, layout[row.segment], total, cuts.get(row.segment) if row.bytes >= mean else None)
            for row in segments
            if row.segment in layout  # not collected meanwhile
        )
        steps, seconds = _over_time(ringed, f)
        return TopicStats(
            topic,
            sum(row.messages for row in segments),
            total,
            keys.select("key").distinct().filter("key is not null").count(),
            max((row.bytes for row in segments), default=0) / mean if mean else 0.0,
            found,
            tuple(KeyStats(row.key, row.messages, row.bytes, row.segment) for row in hot),
            steps,
            seconds,
        )
    finally:
        ringed.unpersist()


def _segment_stats(row: Any, known: Any, total: int, split_at: int | None) -> SegmentStats:
    is_active = known.state == "ACTIVE"
    return SegmentStats(
        row.segment,
        row.messages,
        row.bytes,
        row.keys,
        row.bytes / total if total else 0.0,
        known.hash_start,
        known.hash_end,
        is_active,
        tuple(known.parents),
        split_at if is_active and row.keys > 1 else None,
    )


def with_ring(batches: Iterator[Any]) -> Iterator[Any]:
    """Adds each key's position on the ring (low half of its hash), null where there is no key."""
    import numpy as np
    import pyarrow as pa

    from anabranch.protocol import codec

    for batch in batches:
        keys = batch.column("key")
        ring = np.asarray(codec.key_hashes(keys)).astype(np.int64) & 0xFFFF
        found = pa.array(ring.astype(np.int32), mask=~np.asarray(keys.is_valid()))
        yield batch.append_column("ring", found)


def _split_points(keys: Any, f: Any) -> dict[int, int]:
    from pyspark.sql.window import Window

    by_ring = Window.partitionBy("segment").orderBy("ring")
    whole = Window.partitionBy("segment")
    rings = keys.filter("ring is not null").groupBy("segment", "ring").agg(f.sum("bytes").alias("bytes"))
    summed = rings.select(
        "segment",
        "ring",
        f.sum("bytes").over(by_ring).alias("upto"),
        f.sum("bytes").over(whole).alias("total"),
        f.min("ring").over(whole).alias("low"),
    )
    # The position where the second half begins; never the first one, which would leave nothing to its left.
    halves = summed.filter("2 * upto > total and ring > low").groupBy("segment").agg(f.min("ring").alias("at"))
    return {row.segment: row.at for row in halves.collect()}


def _over_time(rows: Any, f: Any) -> tuple[tuple[tuple[datetime, int, int], ...], float]:
    """Equal steps from the first message to the last, empty ones too; and how long a step is."""
    ends = rows.agg(f.min("publish_time").alias("first"), f.max("publish_time").alias("last")).first()
    if ends.first is None:
        return (), 0.0
    seconds = max((ends.last - ends.first).total_seconds() / TIME_STEPS, 0.001)
    step = f.floor((f.col("publish_time").cast("double") - f.lit(ends.first.timestamp())) / seconds)
    found = rows.groupBy(step.alias("step")).agg(f.count("*").alias("n"), f.sum("size").alias("size"))
    sums = {int(row.step): (row.n, row.size or 0) for row in found.collect()}
    began = ends.first.timestamp()
    steps = range(max(sums) + 1)
    return tuple((datetime.fromtimestamp(began + i * seconds, UTC), *sums.get(i, (0, 0))) for i in steps), seconds
