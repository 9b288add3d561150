"""The Spark session of a job, local or on a cluster, with suitable settings."""

from __future__ import annotations

import os
import re
import shutil
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

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
LISTENS_SECONDS = 10.0
MASTERS = re.compile(r"local|local\[(\d+|\*)(,\d+)?\]|local-cluster\[\d+,\d+,\d+\]|yarn|(spark|sc|k8s)://.+")


class NoSpark(Error):
    """Spark cannot run here."""

    code = "no-spark"


class JobFailed(Error):
    """A job failed; the reason is the first cause that Spark reports."""

    code = "job-failed"


@contextmanager
def job_session(master: str | None, name: str) -> Iterator[Any]:
    """A session for one job, ended with it. What Spark wraps in pages of text becomes one line."""
    try:
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # py4j has no types
        from pyspark.errors import PySparkException
    except ImportError as cause:
        raise NoSpark("pyspark is not installed: pip install 'anabranch[spark]'") from cause
    try:
        session = open_session(master, name)
        try:
            yield session
        finally:
            session.stop()
    except (PySparkException, Py4JError) as error:
        raise JobFailed(first_cause(str(error))) from error


def first_cause(text: str) -> str:
    """What one of our own errors said, if Spark tells of one; else what Java threw first; else Spark's first line."""
    ours = re.findall(r"^anabranch\.[\w.]+: (.+)$", text, re.MULTILINE)
    if ours:
        return str(ours[-1])
    java = re.search(r"^: (?:[\w$]+\.)+[\w$]+: (.+)$", text, re.MULTILINE)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return java[1] if java else (lines[0] if lines else "Spark does not say why")


def open_session(master: str | None, name: str) -> Any:
    """`master` as Spark writes it (`local[2]`, `spark://…`), or `sc://…` of Spark Connect; None: all cores here."""
    try:
        from pyspark.sql import SparkSession
    except ImportError as cause:
        raise NoSpark("pyspark is not installed: pip install 'anabranch[spark]'") from cause
    master = master or "local[*]"
    if not MASTERS.fullmatch(master):
        raise NoSpark(
            f"{master} is no Spark master: local, local[N], spark://HOST:PORT, sc://HOST:PORT, yarn, k8s://URL"
        )
    _check_somebody_listens(master)
    if master.startswith("sc://"):
        return SparkSession.builder.remote(master).appName(name).getOrCreate()
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        raise NoSpark("Spark needs a Java runtime (17 or newer) on the PATH")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master(master).appName(name)
    for key, value in {**SETTINGS, **(LOCAL_SETTINGS if master.startswith("local") else {})}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def addresses(master: str) -> list[tuple[str, int]]:
    """Where a master listens, as `spark://one:7077,two:7077` and `sc://one:15002/;token=x` say; none for others."""
    scheme, found, rest = master.partition("://")
    port = {"spark": 7077, "sc": 15002}.get(scheme)
    if not found or port is None:
        return []
    places = [urlsplit(f"//{one}") for one in rest.partition("/")[0].split(",")]
    try:
        return [(one.hostname or "", one.port or port) for one in places]
    except ValueError as cause:
        raise NoSpark(f"{master} is no address of a Spark master: {cause}") from cause


def _check_somebody_listens(master: str) -> None:
    """Spark itself goes on trying for minutes."""
    failure: OSError | None = None
    for host, port in (places := addresses(master)):
        try:
            socket.create_connection((host, port), LISTENS_SECONDS).close()
            return
        except OSError as error:
            failure = error
    if failure is not None:
        where = ", ".join(f"{host}:{port}" for host, port in places)
        raise NoSpark(f"no Spark master listens at {where}: {failure.strerror or failure}") from failure
