"""The job `simulate`: what a scaling policy would have done with the traffic of a topic. Spark sums the traffic per
time and ring position; `anabranch.spark.jobs.scaling_policy` applies the rules tick by tick.

Nothing is changed anywhere. Messages with a key are placed by its hash, others by their sequence id, as the
producer does.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from anabranch.spark.client.access import BadSparkOption
from anabranch.spark.jobs.scaling_policy import SLOTS, Load, ScalePolicy, Scaler, Step, Tick

TICKS_MAX = 100_000


@dataclass(frozen=True, slots=True)
class Simulation:
    topic: str
    policy: ScalePolicy
    began: datetime | None  # the first message's time; None: there is none
    seconds: float  # to the last one
    messages: int
    splits: int
    merges: int
    segments_most: int
    segments_last: int
    seconds_above: float  # how long some segment was above a split threshold
    steps: tuple[Step, ...]
    ticks: tuple[Tick, ...]

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "began": None if self.began is None else self.began.isoformat()}


def simulate(
    spark: Any,
    service_url: str,
    topic: str,
    *,
    policy: ScalePolicy | None = None,
    segments: int = 1,
    tick_seconds: float = 10.0,
    times: float = 1.0,
    options: Mapping[str, str] | None = None,
) -> Simulation:
    """`segments` to begin with; `times` as much traffic as there was."""
    if not (tick_seconds > 0 and times > 0):
        raise BadSparkOption("ticks are longer than nothing, and so is the traffic")
    rules = policy or ScalePolicy()
    rules.check()
    began, seconds, sums = _sums(spark, service_url, topic, tick_seconds, dict(options or {}))
    scaler = Scaler.of(rules, segments)
    count = int(seconds // tick_seconds) + 1 if began is not None else 0
    if count > TICKS_MAX:
        raise BadSparkOption(f"{count:,} ticks of {tick_seconds:g} s are too many: make them longer")
    messages = 0
    for number in range(count):
        slots = {}
        for slot, (found, size) in sums.get(number, {}).items():
            messages += found
            slots[slot] = Load(found * times / tick_seconds, size * times / tick_seconds)
        scaler.tick((number + 1) * tick_seconds, slots)
    return Simulation(
        topic,
        rules,
        began,
        seconds,
        messages,
        sum(one.kind == "split" for one in scaler.steps),
        sum(one.kind == "merge" for one in scaler.steps),
        max((one.segments for one in scaler.ticks), default=segments),
        len(scaler.parts),
        tick_seconds * sum(one.pressure > 1 for one in scaler.ticks),
        tuple(scaler.steps),
        tuple(scaler.ticks),
    )


_Sums = dict[int, dict[int, tuple[int, int]]]
"""Tick to slot of the ring to messages and bytes."""


def _sums(
    spark: Any, service_url: str, topic: str, tick_seconds: float, options: dict[str, str]
) -> tuple[datetime | None, float, _Sums]:
    from pyspark.sql import functions as f

    source = spark.read.format("anabranch").option("serviceUrl", service_url).option("topic", topic).options(**options)
    rows = source.schema("key_bytes binary, value binary, sequence_id bigint, publish_time timestamp").load()
    sized = rows.select("key_bytes", "sequence_id", "publish_time", f.octet_length("value").alias("size"))
    placed = sized.mapInArrow(with_slot, "publish_time timestamp, size int, slot int").cache()
    try:
        ends = placed.agg(f.min("publish_time").alias("first"), f.max("publish_time").alias("last")).first()
        if ends.first is None:
            return None, 0.0, {}
        since = f.col("publish_time").cast("double") - f.lit(ends.first.timestamp())
        summed = placed.groupBy(f.floor(since / tick_seconds).alias("tick"), "slot").agg(
            f.count("*").alias("messages"), f.coalesce(f.sum("size"), f.lit(0)).alias("bytes")
        )
        found: _Sums = defaultdict(dict)
        for row in summed.collect():
            found[max(int(row.tick), 0)][row.slot] = (row.messages, row.bytes)
        return ends.first.astimezone(UTC), (ends.last - ends.first).total_seconds(), found
    finally:
        placed.unpersist()


def with_slot(batches: Iterator[Any]) -> Iterator[Any]:
    """Each row's slot of the ring."""
    import numpy as np
    import pyarrow as pa

    from anabranch.model.routing import keyless_position
    from anabranch.protocol import codec

    for batch in batches:
        keys = batch.column("key_bytes")
        ring = np.asarray(codec.key_hashes(keys)).astype(np.int64) & 0xFFFF
        ids = np.asarray(batch.column("sequence_id").fill_null(0))
        spread = keyless_position(ids)  # type: ignore[arg-type]  # all of them at once
        slot = np.where(np.asarray(keys.is_valid()), ring, spread) * SLOTS >> 16
        yield pa.RecordBatch.from_arrays(
            [batch.column("publish_time"), batch.column("size"), pa.array(slot.astype(np.int32))],
            names=["publish_time", "size", "slot"],
        )
