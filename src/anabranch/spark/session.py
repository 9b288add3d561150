"""The Spark session of a job: local or on a cluster, with the settings that suit us. Knows nothing of topics."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from anabranch.model.errors import Error

SETTINGS = {
    "spark.python.unix.domain.socket.enabled": "true",  # a task's start costs 40 ms less
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",
}
LOCAL_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}


class NoSpark(Error):
    """Spark cannot run here."""

    code = "no-spark"


class JobFailed(Error):
    """A job could not do its work; the reason is the first cause, where Spark tells it."""

    code = "job-failed"


@contextmanager
def job_session(master: str | None, name: str) -> Iterator[Any]:
    """A session for one job, ended with it. What Spark wraps in pages of text becomes one line."""
    session = open_session(master, name)
    from pyspark.errors import PySparkException

    try:
        yield session
    except PySparkException as error:
        raise JobFailed(first_cause(str(error))) from error
    finally:
        session.stop()


def first_cause(text: str) -> str:
    """What one of our own errors said, if Spark tells of one; else Spark's first line."""
    ours = re.findall(r"^anabranch\.[\w.]+: (.+)$", text, re.MULTILINE)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return str(ours[-1]) if ours else (lines[0] if lines else "Spark does not say why")


def open_session(master: str | None, name: str) -> Any:
    """`master` as Spark writes it (`local[2]`, `spark://…`), or `sc://…` of Spark Connect; None: all cores here."""
    try:
        from pyspark.sql import SparkSession
    except ImportError as cause:
        raise NoSpark("pyspark is not installed: pip install 'anabranch[spark]'") from cause
    if master is not None and master.startswith("sc://"):
        return SparkSession.builder.remote(master).appName(name).getOrCreate()
    master = master or "local[*]"
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        raise NoSpark("Spark needs a Java runtime (17 or newer) on the PATH")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master(master).appName(name)
    for key, value in {**SETTINGS, **(LOCAL_SETTINGS if master.startswith("local") else {})}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark
