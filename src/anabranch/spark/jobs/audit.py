"""The job `audit`: is a topic complete, without doubles, and is every key in order, over its whole graph of segments?

| check        | looks at                                                                                          |
|--------------|---------------------------------------------------------------------------------------------------|
| `duplicate`  | a producer's sequence id that is there more than once                                             |
| `gap`        | sequence ids of a producer that are missing between others (a Spark batch begins a new run)       |
| `disorder`   | messages of one key from one producer whose sequence ids do not ascend by position                |
| `counter`    | a number in the (JSON) values that must go 0, 1, 2 … for every key                                |

Order over segments is by `message_id`: the segments after a split or merge have higher numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

RUN_BITS = 32  # a Spark batch numbers its rows from batch id · 2^32 on
OFFENDERS_MAX = 20


@dataclass(frozen=True, slots=True)
class Offender:
    check: str
    producer: str | None
    key: str | None
    detail: str


@dataclass(frozen=True, slots=True)
class Verdict:
    topic: str
    messages: int
    keys: int
    producers: int
    segments: int
    duplicates: int
    gaps: int
    disorder: int
    counter_errors: int
    offenders: tuple[Offender, ...]

    @property
    def is_sound(self) -> bool:
        return not (self.duplicates or self.gaps or self.disorder or self.counter_errors)

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "sound": self.is_sound}


def audit(
    spark: Any,
    service_url: str,
    topic: str,
    *,
    counter: str | None = None,
    options: Mapping[str, str] | None = None,
) -> Verdict:
    """`counter` names a field of JSON values that counts each key's messages from 0."""
    columns = "key string, segment bigint, message_id binary, producer_name string, sequence_id bigint"
    source = spark.read.format("anabranch").option("serviceUrl", service_url).option("topic", topic)
    wanted = f"{columns}, value binary" if counter is not None else columns
    rows = source.options(**dict(options or {})).schema(wanted).load().persist()  # looked at several times, read once
    try:
        return _judged(rows, topic, counter)
    finally:
        rows.unpersist()


def _judged(rows: Any, topic: str, counter: str | None) -> Verdict:
    from pyspark.sql import functions as f
    from pyspark.sql.window import Window

    total = rows.agg(
        f.count("*").alias("messages"),
        f.countDistinct("key").alias("keys"),
        f.countDistinct("producer_name").alias("producers"),
        f.countDistinct("segment").alias("segments"),
    ).first()

    named = rows.groupBy("producer_name", "sequence_id").agg(f.count("*").alias("times"))
    doubled = named.filter("times > 1")
    by_number = Window.partitionBy("producer_name", f.shiftright("sequence_id", RUN_BITS)).orderBy("sequence_id")
    missing = (
        named.withColumn("before", f.lag("sequence_id").over(by_number))
        .filter("sequence_id > before + 1")
        .withColumn("missing", f.expr("sequence_id - before - 1"))
    )
    by_place = Window.partitionBy("key", "producer_name").orderBy("message_id")
    turned = (
        rows.filter("key is not null")
        .withColumn("before", f.lag("sequence_id").over(by_place))
        .filter("sequence_id < before")
    )
    doubles = doubled.agg(f.sum(f.col("times") - 1)).first()[0] or 0
    gaps = missing.agg(f.sum("missing")).first()[0] or 0
    disorder = turned.count()
    found = [
        *(Offender("duplicate", row.producer_name, None, f"sequence id {row.sequence_id}, {row.times} times")
          for row in _some(doubled, doubles)),
        *(Offender("gap", row.producer_name, None, f"{row.missing} missing before sequence id {row.sequence_id}")
          for row in _some(missing, gaps)),
        *(Offender("disorder", row.producer_name, row.key, f"sequence id {row.sequence_id} after {row.before}")
          for row in _some(turned, disorder)),
    ]  # fmt: skip
    wrong = 0
    if counter is not None:
        by_key = Window.partitionBy("key").orderBy("message_id")
        counted = rows.withColumn(
            "found", f.get_json_object(f.col("value").cast("string"), f"$.{counter}").cast("long")
        ).withColumn("expected", f.row_number().over(by_key) - 1)
        off = counted.filter("found is null or found != expected")
        wrong = off.count()
        found += [
            Offender("counter", row.producer_name, row.key, f"{counter} is {row.found}, expected {row.expected}")
            for row in _some(off, wrong)
        ]
    return Verdict(
        topic, total.messages, total.keys, total.producers, total.segments, doubles, gaps, disorder, wrong, tuple(found)
    )


def _some(rows: Any, count: int) -> list[Any]:
    return list(rows.limit(OFFENDERS_MAX).collect()) if count else []
