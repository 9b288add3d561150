"""One side of the Spark benchmarks: a warm session in a separate process. Each line of input is one request.

    {"work": "write" | "read" | "sum", "format": …, "options": {…}, "rows": n, "partitions": p, "schema": …}
    {"work": "kafka-topic", "servers": …, "topic": …, "partitions": p}

`write` generates rows and appends them. `read` reads key and value and discards them. `sum` counts the rows and adds up
their lengths, which also checks that none is missing. The answer is a line of JSON with the seconds or a short error.
The program runs under two versions of pyspark, one of them in an environment without this package, so it imports
pyspark only.
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
OMITTED_LINES = {"Driver stacktrace:", "Traceback (most recent call last):"}
LINE_CHARACTERS = 400


def session(settings: dict[str, str]) -> Any:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName("bench")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark: Any = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    # Kafka's clients retry for minutes and log the reason as a warning
    loggers = spark._jvm.org.apache.logging.log4j
    loggers.core.config.Configurator.setLevel("org.apache.kafka", loggers.Level.WARN)
    return spark


def write(spark: Any, request: dict[str, Any]) -> None:
    rows = spark.range(0, request["rows"], 1, request["partitions"]).selectExpr(KEY, VALUE)
    rows.write.format(request["format"]).options(**request["options"]).mode("append").save()


def loaded(spark: Any, request: dict[str, Any]) -> Any:
    reader = spark.read.format(request["format"]).options(**request["options"])
    if request.get("schema"):
        reader = reader.schema(request["schema"])
    return reader.load().select("key", "value")


def read(spark: Any, request: dict[str, Any]) -> None:
    loaded(spark, request).write.format("noop").mode("overwrite").save()


def add_up(spark: Any, request: dict[str, Any]) -> None:
    found = loaded(spark, request).selectExpr("count(*)", "sum(length(value))", "sum(length(key))").first()
    rows = request["rows"]
    if tuple(found) != (rows, VALUE_BYTES * rows, KEY_BYTES * rows):
        raise RuntimeError(f"{rows} rows were written, this came back: {found}")


def kafka_topic(spark: Any, request: dict[str, Any]) -> None:
    """Create a topic with Kafka's own client in the JVM. It is ready when each partition leader reports its log end.

    A leader in the metadata is not enough, because metadata are published before the leader has created its log. A
    producer that sends earlier has its first batch refused, and a later pipelined batch accepted as the partition's
    first. Each retry of the first batch is then out of order, until it expires after 120 s (KAFKA-15591).
    """
    java, admins = spark._jvm.java.util, spark._jvm.org.apache.kafka.clients.admin
    settings = java.Properties()
    settings.put("bootstrap.servers", request["servers"])
    admin = admins.Admin.create(settings)
    try:
        wanted = admins.NewTopic(request["topic"], request["partitions"], 1)
        admin.createTopics(java.Collections.singleton(wanted)).all().get()
        ends = java.HashMap()
        for number in range(request["partitions"]):
            partition = spark._jvm.org.apache.kafka.common.TopicPartition(request["topic"], number)
            ends.put(partition, admins.OffsetSpec.latest())
        admin.listOffsets(ends).all().get()  # retries while there is no leader, for up to a minute
    finally:
        admin.close()


def without_frames(text: str) -> list[str]:
    """The lines of an error or a log without Java and Python stack frames (indented lines) and without duplicates."""
    lines = (line[:LINE_CHARACTERS] for line in text.splitlines() if line and not line[0].isspace())
    return list(dict.fromkeys(line for line in lines if line not in OMITTED_LINES))


def gist(error: str, lines: int = 6) -> str:
    """The first and the last lines of an error."""
    kept = without_frames(error)
    return "\n".join(kept if len(kept) <= lines else [kept[0], "…", *kept[len(kept) - lines + 2 :]])


WORK = {"write": write, "read": read, "sum": add_up, "kafka-topic": kafka_topic}


def main() -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    answers = os.fdopen(os.dup(1), "w")  # other output of Spark and the JVM goes to the log
    os.dup2(2, 1)
    spark = session(json.loads(sys.argv[1]))
    for line in sys.stdin:
        request = json.loads(line)
        began = time.perf_counter()
        try:
            WORK[request["work"]](spark, request)
            answer: dict[str, Any] = {"seconds": time.perf_counter() - began}
        except Exception as error:
            answer = {"error": gist(f"{type(error).__name__}: {error}")}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    spark.stop()


if __name__ == "__main__":
    main()
