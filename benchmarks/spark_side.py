"""One side of the Spark benchmarks: a session in a process of its own that stays warm, one piece of work per line.

    {"work": "write" | "read" | "sum", "format": …, "options": {…}, "rows": n, "partitions": p, "schema": …}
    {"work": "kafka-topic", "servers": …, "topic": …, "partitions": p}

`write` makes the rows and appends them, `read` takes key and value and throws them away, `sum` counts them and adds up
their lengths, which is also the check that all came. The answer is a line with the seconds it took. Runs under two
versions of pyspark, one of them in an environment without this package: knows pyspark and what it is told.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

KEY = "lpad(cast(id % 10000 as string), 16, 'k') key"
VALUE = "cast(rpad(cast(id as string), 100, '.') as binary) value"
KEY_BYTES, VALUE_BYTES = 16, 100


def session(settings: dict[str, str]) -> Any:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName("bench")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def write(spark: Any, told: dict[str, Any]) -> None:
    rows = spark.range(0, told["rows"], 1, told["partitions"]).selectExpr(KEY, VALUE)
    rows.write.format(told["format"]).options(**told["options"]).mode("append").save()


def loaded(spark: Any, told: dict[str, Any]) -> Any:
    reader = spark.read.format(told["format"]).options(**told["options"])
    if told.get("schema"):
        reader = reader.schema(told["schema"])
    return reader.load().select("key", "value")


def read(spark: Any, told: dict[str, Any]) -> None:
    loaded(spark, told).write.format("noop").mode("overwrite").save()


def add_up(spark: Any, told: dict[str, Any]) -> None:
    found = loaded(spark, told).selectExpr("count(*)", "sum(length(value))", "sum(length(key))").first()
    rows = told["rows"]
    if tuple(found) != (rows, VALUE_BYTES * rows, KEY_BYTES * rows):
        raise RuntimeError(f"{rows} rows were written, this came back: {found}")


def kafka_topic(spark: Any, told: dict[str, Any]) -> None:
    """By Kafka's own client, which is in the JVM anyway; ready when each partition has a leader."""
    java, kafka = spark._jvm.java.util, spark._jvm.org.apache.kafka.clients.admin
    settings = java.Properties()
    settings.put("bootstrap.servers", told["servers"])
    admin = kafka.Admin.create(settings)
    try:
        wanted = kafka.NewTopic(told["topic"], told["partitions"], 1)
        admin.createTopics(java.Collections.singleton(wanted)).all().get()
        deadline = time.monotonic() + 60
        while True:
            found = admin.describeTopics(java.Collections.singleton(told["topic"])).allTopicNames().get()
            leaders = [one.leader() for one in found[told["topic"]].partitions()]
            if len(leaders) == told["partitions"] and None not in leaders:
                return
            if time.monotonic() > deadline:
                raise RuntimeError(f"no leaders: {leaders}")
            time.sleep(0.05)
    finally:
        admin.close()


WORK = {"write": write, "read": read, "sum": add_up, "kafka-topic": kafka_topic}


def main() -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    answers = os.fdopen(os.dup(1), "w")  # what else is printed, by Spark or the JVM, goes to the log
    os.dup2(2, 1)
    spark = session(json.loads(sys.argv[1]))
    for line in sys.stdin:
        told = json.loads(line)
        began = time.perf_counter()
        try:
            WORK[told["work"]](spark, told)
            answer: dict[str, Any] = {"seconds": time.perf_counter() - began}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"[:2000]}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    spark.stop()


if __name__ == "__main__":
    main()
