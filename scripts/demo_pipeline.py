"""The demo's pipeline on Spark: a topic as a stream → Parquet, and counted per key → another topic; then an audit.

A separate program, so that the JVM is no child of the demo's event loop. `scripts.demo_spark` and it exchange lines:

    → (nothing)         ← {"ready": true}           both queries run
    → "finish"          ← {"parquet": {key: rows}, "totals": {key: number}, "audit": {…}, "batches": n}
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from anabranch.spark import audit
from anabranch.spark.jobs.session import open_session


def source(spark: Any, url: str, topic: str, schema: str, *, is_stream: bool) -> Any:
    reader = (spark.readStream if is_stream else spark.read).format("anabranch").schema(schema)
    return reader.option("serviceUrl", url).option("topic", topic).option("startingOffsets", "earliest").load()


def start(spark: Any, url: str, topic: str, target: str, folder: Path) -> list[Any]:
    from pyspark.sql import functions as f

    events = source(spark, url, topic, "key string, value binary", is_stream=True)

    def count(batch: Any, batch_id: int) -> None:
        """How many each key had in this batch; a batch that runs again writes nothing twice."""
        counted = batch.groupBy("key").agg(f.count("*").cast("string").alias("value"))
        writer = counted.write.format("anabranch").mode("append").option("serviceUrl", url).option("topic", target)
        writer.option("sortBy", "key").option("idempotencyKey", f"totals-{batch_id}").save()

    rows = events.writeStream.format("parquet").option("path", str(folder / "orders"))
    named = (("rows", rows), ("totals", events.writeStream.foreachBatch(count)))
    return [query.option("checkpointLocation", str(folder / name)).start() for name, query in named]


def outcome(spark: Any, url: str, topic: str, target: str, folder: Path, batches: int) -> dict[str, Any]:
    from pyspark.sql import functions as f

    parquet = spark.read.parquet(str(folder / "orders")).groupBy("key").count().collect()
    counts = source(spark, url, target, "key string, value binary", is_stream=False)
    sums = counts.groupBy("key").agg(f.sum(f.col("value").cast("string").cast("bigint")).alias("total")).collect()
    return {
        "parquet": {row["key"]: row["count"] for row in parquet},
        "totals": {row["key"]: row["total"] for row in sums},
        "audit": audit(spark, url, topic).as_dict(),
        "batches": batches,
    }


def main() -> int:
    url, topic, target, place = sys.argv[1:]
    folder = Path(place)
    spark = open_session("local[2]", "demo")
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    spark.conf.set(
        "spark.sql.adaptive.coalescePartitions.enabled", "false"
    )  # the sink wants the same tasks on a replay
    queries = start(spark, url, topic, target, folder)
    print(json.dumps({"ready": True}), flush=True)
    sys.stdin.readline()
    for query in queries:
        query.processAllAvailable()
    batches = sum(query.lastProgress["batchId"] + 1 for query in queries if query.lastProgress is not None)
    for query in queries:
        query.stop()
    print(json.dumps(outcome(spark, url, topic, target, folder, batches)), flush=True)
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
