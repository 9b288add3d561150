"""One side of the Spark benchmarks: a session in a process of its own that stays warm, one piece of work per line.

    {"work": "write" | "read" | "sum", "format": …, "options": {…}, "rows": n, "partitions": p, "schema": …}
    {"work": "kafka-topic", "servers": …, "topic": …, "partitions": p}

`write` makes the rows and appends them, `read` takes key and value and throws them away, `sum` counts them and adds up
their lengths, which is also the check that all came. The answer is a line with the seconds it took, or with what went
wrong, in a few lines. Runs under two versions of pyspark, one of them in an environment without this package: knows
pyspark and what it is told.
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
NOT_TOLD = {"Driver stacktrace:", "Traceback (most recent call last):"}
LINE_CHARACTERS = 400


def session(settings: dict[str, str]) -> Any:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName("bench")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark: Any = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    # Kafka's clients try again for minutes; why they had to, they tell as a warning
    loggers = spark._jvm.org.apache.logging.log4j
    loggers.core.config.Configurator.setLevel("org.apache.kafka", loggers.Level.WARN)
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
    """By Kafka's own client, which is in the JVM anyway. Ready when each partition's leader says where its log ends.

    That the metadata name a leader is not enough: they are published before the leader has made its log. A producer
    that is quicker has its first batch refused and a later one, sent without waiting, taken as the partition's first;
    from then on the first batch is out of order whenever it is sent again, until it expires after 120 s (KAFKA-15591).
    """
    java, admins = spark._jvm.java.util, spark._jvm.org.apache.kafka.clients.admin
    settings = java.Properties()
    settings.put("bootstrap.servers", told["servers"])
    admin = admins.Admin.create(settings)
    try:
        wanted = admins.NewTopic(told["topic"], told["partitions"], 1)
        admin.createTopics(java.Collections.singleton(wanted)).all().get()
        ends = java.HashMap()
        for number in range(told["partitions"]):
            partition = spark._jvm.org.apache.kafka.common.TopicPartition(told["topic"], number)
            ends.put(partition, admins.OffsetSpec.latest())
        admin.listOffsets(ends).all().get()  # asks again while there is no leader; gives up after a minute
    finally:
        admin.close()


def without_frames(text: str) -> list[str]:
    """The lines of an error or a log but for the frames of Java and Python, which are indented; each line once."""
    told = (line[:LINE_CHARACTERS] for line in text.splitlines() if line and not line[0].isspace())
    return list(dict.fromkeys(line for line in told if line not in NOT_TOLD))


def gist(error: str, lines: int = 6) -> str:
    """How it begins and how it ends."""
    kept = without_frames(error)
    return "\n".join(kept if len(kept) <= lines else [kept[0], "…", *kept[len(kept) - lines + 2 :]])


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
            answer = {"error": gist(f"{type(error).__name__}: {error}")}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    spark.stop()


if __name__ == "__main__":
    main()
