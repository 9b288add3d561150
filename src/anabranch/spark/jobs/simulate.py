"""The job `simulate`: what a scaling policy would have done with the traffic of a topic, or with a synthetic day.

Spark sums the traffic per time and place on the ring; `anabranch.model.autoscale`, the evaluator of the broker, applies
the rules tick by tick. Nothing is changed anywhere. Messages with a key are placed by its hash, others by their
sequence id, as the producer does. A hash value that has at least 1 % of all messages counts by itself, so that a hot
key is recognised; the others are resolved to 1/256 of the ring.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from anabranch.model.autoscale.load import Rates
from anabranch.model.autoscale.policy import BadPolicy
from anabranch.model.autoscale.scenarios import SCENARIOS
from anabranch.model.autoscale.simulation import SLOT_WIDTH, SimulatedTopic, Traffic
from anabranch.spark.client.access import BadSparkOption
from anabranch.spark.jobs.scaling_policy import Load, ScalePolicy, Step, Tick

TICKS_MAX = 100_000
HOT_SHARE = 0.01
HOT_MAX = 64
"""Hash values that count by themselves: those with this share of all messages, at most so many."""


@dataclass(frozen=True, slots=True)
class Simulation:
    topic: str
    policy: ScalePolicy
    began: datetime | None  # the first message's time; None: there is none, or the day is synthetic
    seconds: float  # to the last one
    messages: int
    splits: int
    merges: int
    segments_most: int
    segments_last: int
    seconds_above: float  # how long some segment was above a split threshold
    steps: tuple[Step, ...]
    ticks: tuple[Tick, ...]
    wasted_segment_hours: float = 0.0  # segments beyond what the total load needs

    @property
    def changes_per_day(self) -> float:
        days = len(self.ticks) * self.ticks[0].at / 86_400 if self.ticks else 0.0
        return (self.splits + self.merges) / days if days else 0.0

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "began": None if self.began is None else self.began.isoformat()}


@dataclass(frozen=True, slots=True)
class RecordedTraffic:
    """The traffic of a topic, or a synthetic day, in ticks. It can be replayed under several policies."""

    topic: str
    tick_seconds: float
    began: datetime | None = None
    seconds: float = 0.0
    messages: int = 0
    ticks: tuple[Traffic, ...] = field(default=(), repr=False)

    def replay(self, policy: ScalePolicy | None = None, *, segments: int = 1, readers: int = 0) -> Simulation:
        """`segments` to begin with; `readers`: subscriptions that read everything, for the rates out."""
        rules = policy or ScalePolicy()
        if not rules.min_segments <= segments <= rules.max_segments:
            raise BadPolicy(f"a topic begins with {rules.min_segments} to {rules.max_segments} segments")
        topic = SimulatedTopic(rules.auto_scale(), segments=segments, tick_seconds=self.tick_seconds, readers=readers)
        for traffic in self.ticks:
            topic.tick(traffic)
        found = topic.outcome()
        return Simulation(
            self.topic,
            rules,
            self.began,
            self.seconds,
            self.messages,
            found.splits,
            found.merges,
            found.segments_most,
            found.segments_last,
            found.seconds_above,
            tuple(
                Step(one.at, one.kind, one.parents, one.children, f"{one.reason}: {one.detail}") for one in topic.steps
            ),
            tuple(
                Tick(one.at, one.segments, _load(one.total), _load(one.hottest), one.pressure) for one in topic.ticks
            ),
            found.wasted_segment_hours,
        )


def _load(rates: Rates) -> Load:
    return Load(rates.msg_rate_in, rates.bytes_rate_in)


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
    (policy or ScalePolicy()).check()
    found = recorded(spark, service_url, topic, tick_seconds=tick_seconds, times=times, options=options)
    return found.replay(policy, segments=segments)


def synthetic(scenario: str, *, tick_seconds: float = 10.0, times: float = 1.0) -> RecordedTraffic:
    """A day of `anabranch.model.autoscale.scenarios`. Needs no Spark."""
    _check(tick_seconds, times)
    if scenario not in SCENARIOS:
        raise BadSparkOption(f"no scenario {scenario!r}; there are {', '.join(SCENARIOS)}")
    ticks = tuple(SCENARIOS[scenario].traffic(tick_seconds, times=times))
    messages = sum(count for one in ticks for count, _ in (*one.slots.values(), *one.keys.values()))
    return RecordedTraffic(
        scenario, tick_seconds, None, len(ticks) * tick_seconds, round(messages * tick_seconds), ticks
    )


def recorded(
    spark: Any,
    service_url: str,
    topic: str,
    *,
    tick_seconds: float = 10.0,
    times: float = 1.0,
    options: Mapping[str, str] | None = None,
) -> RecordedTraffic:
    """The traffic of a topic; `times` as much as there was."""
    _check(tick_seconds, times)
    began, seconds, rows = _sums(spark, service_url, topic, tick_seconds, dict(options or {}))
    if began is None:
        return RecordedTraffic(topic, tick_seconds)
    count = int(seconds // tick_seconds) + 1
    if count > TICKS_MAX:
        raise BadSparkOption(f"{count:,} ticks of {tick_seconds:g} s are too many: make them longer")
    messages, ticks = ticks_of(rows, count, times / tick_seconds)
    return RecordedTraffic(topic, tick_seconds, began, seconds, messages, ticks)


def _check(tick_seconds: float, times: float) -> None:
    if not (tick_seconds > 0 and times > 0):
        raise BadSparkOption("ticks are longer than nothing, and so is the traffic")


Row = tuple[int, int, int, int, int]
"""Tick, slot, hash value (-1: any other of the slot), messages, bytes."""


def ticks_of(rows: Iterable[Row], count: int, factor: float) -> tuple[int, tuple[Traffic, ...]]:
    """Messages in all, and `count` ticks of rates; `factor` makes a rate of a sum."""
    slots: list[dict[int, tuple[float, float]]] = [{} for _ in range(count)]
    keys: list[dict[int, tuple[float, float]]] = [{} for _ in range(count)]
    messages = 0
    for tick, slot, position, found, size in rows:
        at = min(max(tick, 0), count - 1)
        table, place = (slots[at], slot) if position < 0 else (keys[at], position)
        before = table.get(place, (0.0, 0.0))
        table[place] = before[0] + found * factor, before[1] + size * factor
        messages += found
    return messages, tuple(map(Traffic, slots, keys))


def _sums(
    spark: Any, service_url: str, topic: str, tick_seconds: float, options: dict[str, str]
) -> tuple[datetime | None, float, list[Row]]:
    from pyspark.sql import functions as f

    source = spark.read.format("anabranch").option("serviceUrl", service_url).option("topic", topic).options(**options)
    rows = source.schema("key_bytes binary, value binary, sequence_id bigint, publish_time timestamp").load()
    sized = rows.select("key_bytes", "sequence_id", "publish_time", f.octet_length("value").alias("size"))
    placed = sized.mapInArrow(with_position, "publish_time timestamp, size int, position int").cache()
    try:
        ends = placed.agg(
            f.min("publish_time").alias("first"), f.max("publish_time").alias("last"), f.count("*").alias("all")
        ).first()
        if ends.first is None:
            return None, 0.0, []
        counted = placed.groupBy("position").agg(f.count("*").alias("messages"))
        often = counted.where(f.col("messages") >= max(HOT_SHARE * ends.all, 2)).orderBy(f.desc("messages"), "position")
        hot = [row.position for row in often.limit(HOT_MAX).collect()]
        since = f.col("publish_time").cast("double") - f.lit(ends.first.timestamp())
        own = f.when(f.col("position").isin(hot), f.col("position")).otherwise(f.lit(-1))
        slot = f.floor(f.col("position") / SLOT_WIDTH).cast("int")
        summed = placed.groupBy(f.floor(since / tick_seconds).alias("tick"), slot.alias("slot"), own.alias("own")).agg(
            f.count("*").alias("messages"), f.coalesce(f.sum("size"), f.lit(0)).alias("bytes")
        )
        found = [(int(row.tick), row.slot, row.own, row.messages, row.bytes) for row in summed.collect()]
        return ends.first.astimezone(UTC), (ends.last - ends.first).total_seconds(), found
    finally:
        placed.unpersist()


def with_position(batches: Iterator[Any]) -> Iterator[Any]:
    """Each row's position on the ring."""
    import numpy as np
    import pyarrow as pa

    from anabranch.model.routing import keyless_position
    from anabranch.protocol import codec

    for batch in batches:
        keys = batch.column("key_bytes")
        ring = np.asarray(codec.key_hashes(keys)).astype(np.int64) & 0xFFFF
        ids = np.asarray(batch.column("sequence_id").fill_null(0))
        spread = keyless_position(ids)  # type: ignore[arg-type]  # all of them at once
        position = np.where(np.asarray(keys.is_valid()), ring, spread)
        yield pa.RecordBatch.from_arrays(
            [batch.column("publish_time"), batch.column("size"), pa.array(position.astype(np.int32))],
            names=["publish_time", "size", "position"],
        )
