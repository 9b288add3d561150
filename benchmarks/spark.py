"""The Spark pipeline: `make bench-spark` or `python -m benchmarks.spark [--quick] …`.

Batch reads and writes of keyed messages of 100 bytes (16-byte keys) against Spark's own Parquet in the same run, and
the fixed cost of a micro-batch against the built-in rate source. Expected before measuring: Parquet 3-5 M rows/s on two
cores; ours is bound by the loopback, one copy per entry and the decoder (0.05 µs a message in C, about 1 µs in Python):
0.4-0.6 of Parquet with the C codec, 0.15-0.25 with its twin. A micro-batch costs two Python calls more than rate's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from statistics import median
from typing import Any

from anabranch import codec
from anabranch.spark.session import open_session
from benchmarks import report
from benchmarks.measure import Outcome, Run, Scene, Series, at_least, at_most, side_by_side
from tests.broker_process import BrokerProcess

ROWS = 2_000_000
PARTS = 4
VALUE = "cast(rpad(cast(id as string), 100, '.') as binary) value"
KEY = "lpad(cast(id % 10000 as string), 16, 'k') key"


def broker_of(scene: Scene, stack: ExitStack) -> BrokerProcess:
    settings = {
        "ANABRANCH_BROKER_DEDUPLICATION": "true",
        "ANABRANCH_TOPICS_RETENTION_MS": "-1",
        "ANABRANCH_TOPICS_RETENTION_BYTES": "-1",
    }
    return stack.enter_context(BrokerProcess(scene.place("spark") / "data", environment=settings))


def rows_of(spark: Any, count: int) -> Any:
    return spark.range(0, count, 1, PARTS).selectExpr(KEY, VALUE)


def timed(work: Callable[[], object], rows: int) -> float:
    """Rows per second."""
    start = time.perf_counter()
    work()
    return rows / (time.perf_counter() - start)


def batch(scene: Scene) -> list[Outcome]:
    """Writing and reading 2 M rows, ours and Parquet's in turns."""
    rows, rounds = scene.size(ROWS, 2_000), scene.size(3, 1)
    spark = open_session("local[2]", "bench")
    with ExitStack() as stack:
        broker = broker_of(scene, stack)
        folder = scene.place("parquet")
        topics = iter(range(1_000_000))
        last = ""

        def write_ours() -> float:
            nonlocal last
            last = f"bench-{next(topics)}"
            made = rows_of(spark, rows).write.format("anabranch").option("serviceUrl", broker.service_url)
            return timed(lambda: made.option("topic", last).mode("append").save(), rows)

        def write_parquet() -> float:
            return timed(lambda: rows_of(spark, rows).write.mode("overwrite").parquet(str(folder / "rows")), rows)

        def read_ours() -> float:
            made = spark.read.format("anabranch").option("serviceUrl", broker.service_url).option("topic", last)
            return timed(
                lambda: counted(made.option("minPartitions", "2").schema("key string, value binary").load()), rows
            )

        def read_parquet() -> float:
            return timed(lambda: counted(spark.read.parquet(str(folder / "rows"))), rows)

        def counted(df: Any) -> None:
            found = df.selectExpr("count(*) c", "sum(length(value)) s", "max(length(key)) k").first()
            assert (found.c, found.s, found.k) == (rows, 100 * rows, 16), found

        write_ours(), write_parquet(), read_ours(), read_parquet()  # everything is loaded once
        written, written_parquet = side_by_side(rounds, write_ours, write_parquet)
        read, read_parquet_ = side_by_side(rounds, read_ours, read_parquet)
    spark.stop()
    is_native = codec.IMPLEMENTATION == "native"
    notes = {"rows": rows, "codec": codec.IMPLEMENTATION}
    return [
        Outcome(
            "read",
            f"batch read, {codec.IMPLEMENTATION} codec",
            Series("ours", "rows/s", read),
            Series("parquet", "rows/s", read_parquet_),
            at_least(0.4 if is_native else 0.15),
            notes,
        ),
        Outcome(
            "write",
            "batch write, effectively once",
            Series("ours", "rows/s", written),
            Series("parquet", "rows/s", written_parquet),
            None,
            notes,
        ),
    ]


def micro_batch(scene: Scene) -> list[Outcome]:
    """Median time of a trigger with one task and few rows, after the first batches."""
    batches = scene.size(40, 3)
    spark = open_session("local[2]", "bench")
    with ExitStack() as stack:
        broker = broker_of(scene, stack)
        source = spark.range(0, batches + 20, 1, 1).selectExpr("cast(id as string) key", VALUE)
        made = source.write.format("anabranch").option("serviceUrl", broker.service_url).option("topic", "micro")
        made.option("entryMaxRows", "1").mode("append").save()

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
            df = spark.readStream.format("anabranch").option("serviceUrl", broker.service_url).option("topic", "micro")
            df = df.option("startingOffsets", "earliest").option("maxRowsPerTrigger", "1")
            return trigger_ms(df.schema("key string, value binary").load(), "ours")

        def rate() -> float:
            df = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", "1").option("numPartitions", "1")
            return trigger_ms(df.load(), "rate")

        mine, theirs = side_by_side(scene.size(3, 1), ours, rate)
    spark.stop()
    return [
        Outcome(
            "micro-batch",
            "fixed cost of a micro-batch",
            Series("ours", "ms", mine),
            Series("rate source", "ms", theirs),
            at_most(2.0),
        )
    ]


MEASURES: dict[str, Run] = {"batch": batch, "micro-batch": micro_batch}


def main(arguments: list[str] | None = None) -> int:
    return report.run("benchmarks.spark", MEASURES, (), arguments, mark="-spark")


if __name__ == "__main__":
    raise SystemExit(main())
