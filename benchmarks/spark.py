"""The Spark pipeline: `make bench-spark` or `python -m benchmarks.spark [--rows 2000000] [--rounds 4] [--quick] …`.

Batch reads and writes of keyed messages of 100 bytes (16-byte keys) against Spark's own Parquet and against Spark's own
Kafka source and sink on a Kafka broker of this machine; and the fixed cost of a micro-batch against the built-in rate
source. All in one run; the sides take turns, and each session is warm and runs in a separate process.

Expected before measuring: Parquet 3-5 M rows/s on two cores; ours is bound by the loopback, one copy per entry, the
decoder (0.05 µs a message in C, 0.25 in Python) and the JVM's way from Arrow to rows: 0.4-0.6 of Parquet with the C
codec, 0.25-0.4 with the Python codec. Kafka's source makes an object of every record, 0.5-0.6 M rows/s: 3 × with the C
codec. Its sink needs 3 µs a row and its broker, with batches of 16 KB, nearly as much: 1.5 ×. A micro-batch costs two
Python calls more than rate's.

Our broker has synced what it acknowledges; Kafka, as it comes, has not.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from statistics import median
from typing import Any

import pyspark

from anabranch.protocol import codec
from anabranch.spark.jobs.session import open_session
from benchmarks.spark_sessions.session import VALUE
from benchmarks.spark_sessions.sessions import (
    PARTS,
    KafkaRows,
    OurRows,
    ParquetRows,
    Store,
    broker_of,
    kafka_side,
    our_side,
)
from benchmarks.support import report
from benchmarks.support.measure import Goal, Outcome, Run, Scene, Series, at_least, at_most, short, side_by_side
from tests.services import Unavailable, kafka, spark_kafka

ROWS, ROUNDS = 2_000_000, 4  # an even number: every side goes first as often as last
QUERIES = {"read": "key and value to noop", "sum": "count and sum of lengths"}


def piece(store: Store, name: str, rounds: int, title: str) -> Callable[[], float]:
    """One piece of work of a store, called once per round. Each round prints a line. `name` is a query, or `write`."""
    numbers = itertools.count(1)

    def work() -> float:
        rate = store.write() if name == "write" else store.query(name)
        shown = f"{title} {next(numbers)} of {rounds}: {store.label}, {name}"
        report.say(f"    {time.strftime('%H:%M:%S')} {shown}: {short(rate)} rows/s, {store.rows / rate:.1f} s")
        return rate

    return work


def warm(scene: Scene, *stores: Store) -> None:
    """What is read afterwards is there; unless it is quick, everything is loaded and compiled."""
    rounds, names = scene.size(2, 1), ["write", *(() if scene.quick else QUERIES)]
    pieces = [piece(store, name, rounds, "warm-up") for store in stores for name in names]
    for _ in range(rounds):
        for work in pieces:
            work()


def compared(name: str, title: str, ours: Store, others: list[tuple[Store, Goal | None]], rounds: int) -> list[Outcome]:
    """One row for each of the others; ours is measured once per round. `name` is a query, or `write`."""
    stores = [ours, *(store for store, _ in others)]
    for store in stores:
        store.cpu_us.clear()
    mine, *theirs = side_by_side(rounds, *(piece(store, name, rounds, "round") for store in stores))
    return [
        Outcome(
            f"{store.label}-{name}-{ours.label}",
            f"{title}, {ours.label} against {store.label}",
            Series(ours.label, "rows/s", mine),
            Series(store.label, "rows/s", values),
            goal,
            {
                "rows": ours.rows,
                "codec": codec.IMPLEMENTATION,
                "cpu_us_per_row": {one.label: one.cpu_us_median for one in (ours, store)},
                "kafka": kafka.version(),
                "pyspark": {"ours": pyspark.__version__, "kafka": spark_kafka.version()},
            },
        )
        for (store, goal), values in zip(others, theirs, strict=True)
    ]


def batch(scene: Scene, rows: int = ROWS, rounds: int = ROUNDS) -> list[Outcome]:
    """Reads and writes with the C and the Python codec, against Parquet."""
    count, rounds = scene.size(rows, 2_000), scene.size(rounds, 1)
    place = scene.place("batch")
    report.say(f"  {count} rows; our broker and a Spark session for each codec are starting")
    with ExitStack() as stack:
        broker = broker_of(place, stack)
        native = stack.enter_context(our_side(place / "native.log", codec="native"))
        python = native if scene.quick else stack.enter_context(our_side(place / "python.log", codec="python"))
        parquet = ParquetRows(native, count, place / "rows")
        ours = OurRows(native, count, broker, "ours")
        pure = OurRows(python, count, broker, "ours in Python")
        warm(scene, ours, pure, parquet)
        found: list[Outcome] = []
        for name, title in QUERIES.items():
            found += compared(name, f"read: {title}", ours, [(parquet, at_least(0.4))], rounds)
            found += compared(name, f"read: {title}", pure, [(parquet, at_least(0.15))], rounds)
        return found + compared("write", "write, effectively once", ours, [(parquet, None)], rounds)


def against_kafka(scene: Scene, rows: int = ROWS, rounds: int = ROUNDS) -> list[Outcome]:
    """The same work by Spark's own Kafka source and sink, as they come, and with batches and polls as large as ours."""
    try:
        kafka.obtain(), spark_kafka.obtain()
    except Unavailable as error:
        report.say(f"  left out, no Kafka here: {error}")
        return []
    count, rounds = scene.size(rows, 2_000), scene.size(rounds, 1)
    place = scene.place("kafka")
    report.say(f"  {count} rows; our broker, Kafka {kafka.version()} and a Spark session for each are starting")
    with ExitStack() as stack:
        broker = broker_of(place, stack)
        server = stack.enter_context(kafka.cluster(place / "server", settings={"num.partitions": str(PARTS)}))
        ours = OurRows(stack.enter_context(our_side(place / "ours.log", codec="native")), count, broker, "ours")
        side = stack.enter_context(kafka_side(place / "kafka.log"))
        plain = KafkaRows(side, count, server, "kafka")
        tuned = KafkaRows(side, count, server, "kafka, tuned", is_tuned=True)
        warm(scene, ours, plain, tuned)
        others: list[tuple[Store, Goal | None]] = [(plain, at_least(1.0)), (tuned, None)]
        found: list[Outcome] = []
        for name, title in QUERIES.items():
            found += compared(name, f"read: {title}", ours, others, rounds)
        return found + compared("write", "write, effectively once", ours, others, rounds)


def micro_batch(scene: Scene, rounds: int = ROUNDS) -> list[Outcome]:
    spark = open_session("local[2]", "bench")
    try:
        return triggers(scene, spark, rounds)
    finally:
        spark.stop()


def triggers(scene: Scene, spark: Any, rounds: int = ROUNDS) -> list[Outcome]:
    """Median time of a trigger with one task and few rows, after the first batches."""
    with ExitStack() as stack:
        broker = broker_of(scene.place("spark"), stack)
        mine, theirs = trigger_times(scene, spark, rounds, {"serviceUrl": broker.service_url, "topic": "micro"})
    return [
        Outcome(
            "micro-batch",
            "fixed cost of a micro-batch",
            Series("ours", "ms", mine),
            Series("rate source", "ms", theirs),
            at_most(2.0),
        )
    ]


def trigger_times(
    scene: Scene, spark: Any, rounds: int, options: Mapping[str, str]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Median milliseconds per round: one row per batch of a topic, and of the rate source."""
    batches = scene.size(40, 3)
    source = spark.range(0, batches + 20, 1, 1).selectExpr("cast(id as string) key", VALUE)
    written = source.write.format("anabranch").options(**options, delivery="at-least-once", entryMaxRows="1")
    written.mode("append").save()

    def trigger_ms(df: Any, name: str) -> float:
        place = scene.place(name) / str(time.monotonic_ns())
        query = df.writeStream.format("noop").option("checkpointLocation", str(place)).start()
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline and query.isActive:
            done = [one for one in query.recentProgress if one["numInputRows"]]
            if len(done) >= batches + 10:
                break
            time.sleep(0.05)
        query.stop()
        done = [one["durationMs"]["triggerExecution"] for one in query.recentProgress if one["numInputRows"]]
        assert len(done) >= min(batches, 3), f"{name}: {len(done)} batches"
        return float(median(done[min(5, len(done) - 1) :]))

    def ours() -> float:
        df = spark.readStream.format("anabranch").options(**options)
        df = df.option("startingOffsets", "earliest").option("maxRowsPerTrigger", "1")
        return trigger_ms(df.schema("key string, value binary").load(), "ours")

    def rate() -> float:
        df = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", "1").option("numPartitions", "1")
        return trigger_ms(df.load(), "rate")

    mine, theirs = side_by_side(scene.size(rounds, 1), ours, rate)
    return mine, theirs


def sizes(arguments: list[str] | None) -> tuple[int, int, list[str]]:
    """`--rows` and `--rounds`, and the other arguments."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    own, rest = parser.parse_known_args(arguments)
    if own.rows < 1 or own.rounds < 1:
        parser.error("--rows and --rounds are at least 1")
    return own.rows, own.rounds, rest


def main(arguments: list[str] | None = None) -> int:
    rows, rounds, rest = sizes(arguments)
    measures: dict[str, Run] = {
        "batch": partial(batch, rows=rows, rounds=rounds),
        "micro-batch": partial(micro_batch, rounds=rounds),
        "kafka": partial(against_kafka, rows=rows, rounds=rounds),
    }
    return report.run("benchmarks.spark [--rows N] [--rounds N]", measures, (), rest, mark="-spark")


if __name__ == "__main__":
    raise SystemExit(main())
