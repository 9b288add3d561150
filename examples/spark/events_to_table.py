"""From events to a table: publish keyed events, read them with Spark as a stream, keep one row per key, draw them.

    anabranch standalone &
    python examples/spark/events_to_table.py [SERVICE_URL]

Ends with a table on the terminal and a picture, `orders.png`, in the current directory.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from pyspark.sql import functions as f

from anabranch import blocking
from anabranch.spark.jobs.session import open_session

URL = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("ANABRANCH_SERVICE_URL", "pulsar://127.0.0.1:6650")
TOPIC = "topic://public/default/orders-example"
CUSTOMERS = ["ada", "bela", "cleo", "dora", "emil"]


def publish(count: int) -> None:
    """Orders of five customers; each customer's orders stay in order, whatever the topic does."""
    with blocking.connect(URL) as client, client.producer(TOPIC) as producer:
        for i in range(count):
            customer = CUSTOMERS[i * i % len(CUSTOMERS)]
            producer.send_nowait(json.dumps({"order": i, "amount": i % 37}).encode(), key=customer)
        producer.flush()


def totals(spark: Any, folder: Path) -> Any:
    """Everything there is now, as a stream: run it again and it goes on where it stopped."""
    events = (
        spark.readStream.format("anabranch")
        .option("serviceUrl", URL)
        .option("topic", TOPIC)
        .option("startingOffsets", "earliest")
        .schema("key string, value binary, publish_time timestamp")
        .load()
    )
    orders = events.select(
        f.col("key").alias("customer"),
        f.from_json(f.col("value").cast("string"), "order bigint, amount bigint").alias("it"),
    ).select("customer", "it.order", "it.amount")
    query = (
        orders.writeStream.format("parquet")
        .option("path", str(folder / "orders"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    table = spark.read.parquet(str(folder / "orders"))
    return table.groupBy("customer").agg(f.count("*").alias("orders"), f.sum("amount").alias("amount"))


def main() -> None:
    publish(1_000)
    spark = open_session("local[2]", "events to a table")
    with tempfile.TemporaryDirectory() as folder:
        rows = totals(spark, Path(folder)).orderBy("customer").collect()
    spark.stop()
    print(f"{'customer':<10}{'orders':>8}{'amount':>8}")
    for row in rows:
        print(f"{row.customer:<10}{row.orders:>8}{row.amount:>8}")
    page, plot = pyplot.subplots(figsize=(6, 3.5), constrained_layout=True)
    plot.bar([row.customer for row in rows], [row.amount for row in rows])
    plot.set_title("amount ordered, by customer")
    page.savefig("orders.png")
    print("orders.png")


if __name__ == "__main__":
    main()
