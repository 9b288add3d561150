"""Separate processes: the example of the guide, the command line, Spark Connect."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from anabranch import blocking
from tests.support.processes.broker_process import BrokerProcess
from tests.support.spark.session import Traffic, check_complete, check_key_order, lean_home, require_java, wait_until

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


def run(arguments: list[str], folder: Path, **environment: str) -> str:
    require_java()
    env = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT), "SPARK_HOME": lean_home()}
    env |= environment
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=env, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def test_the_example_of_the_guide(broker: BrokerProcess, tmp_path: Path) -> None:
    shown = run([str(ROOT / "examples/spark/events_to_table.py"), broker.service_url], tmp_path)
    assert "ada" in shown
    assert (tmp_path / "orders.png").stat().st_size > 5_000


def test_audit_from_the_command_line(broker: BrokerProcess, tmp_path: Path) -> None:
    Traffic(broker.service_url, "outside-audit", keys=4).publish(10)
    shown = run(
        ["-m", "anabranch", "spark", "audit", "outside-audit", "--counter", "n", "--master", "local[1]", "--json"],
        tmp_path,
        ANABRANCH_SERVICE_URL=broker.service_url,
    )
    found: dict[str, Any] = json.loads(shown.strip().splitlines()[-1])
    assert (found["sound"], found["messages"], found["keys"]) == (True, 40, 4)


def test_a_copy_that_is_killed_goes_on(broker: BrokerProcess, tmp_path: Path) -> None:
    traffic = Traffic(broker.service_url, "outside-copy", keys=8)
    for _ in range(10):
        traffic.publish(20)
    require_java()
    command = [sys.executable, "-m", "anabranch", "spark", "copy", "outside-copy", "outside-copy-out"]
    command += ["--checkpoint", str(tmp_path / "checkpoint"), "--rows-per-batch", "160", "--master", "local[1]"]
    environment = {**os.environ, "ANABRANCH_SERVICE_URL": broker.service_url, "TMPDIR": str(tmp_path)}
    environment["SPARK_HOME"] = lean_home()
    with (tmp_path / "first.log").open("wb") as log:
        first = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        begun = tmp_path / "checkpoint" / "offsets"
        wait_until(lambda: len(list(begun.glob("[0-9]*"))) >= 3 or first.poll() is not None, "some batches")
    finally:
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
    shown = run([*command[1:], "--json"], tmp_path, ANABRANCH_SERVICE_URL=broker.service_url)
    copied = json.loads(shown)
    assert 0 < copied["rows"] < traffic.total, "the rest"
    assert json.loads(run([*command[1:], "--json"], tmp_path, ANABRANCH_SERVICE_URL=broker.service_url))["rows"] == 0
    with blocking.connect(broker.service_url) as client:
        consumer = client.stream_consumer("outside-copy-out", subscription="s", start="earliest")
        rows = []
        with consumer:
            for _ in range(traffic.total):
                message = consumer.receive(timeout=30.0)
                assert message is not None
                rows.append({"value": message.value})
            assert consumer.receive(timeout=0.2) is None, "nothing twice"
    check_complete(rows, traffic.sent)
    check_key_order(rows)


def test_what_goes_wrong_is_one_clear_line(broker: BrokerProcess, tmp_path: Path) -> None:
    require_java()
    environment = {**os.environ, "ANABRANCH_SERVICE_URL": broker.service_url, "TMPDIR": str(tmp_path)}
    environment["SPARK_HOME"] = lean_home()
    command = [sys.executable, "-m", "anabranch", "spark", "audit", "topic://public/default/outside-nowhere"]
    done = subprocess.run(
        [*command, "--master", "local[1]"], env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 1
    assert done.stdout == ""
    words, where = done.stderr.strip().splitlines()[-1], done.stderr.strip().splitlines()[0]
    assert words.startswith("anabranch: ")
    assert "outside-nowhere" in words
    assert "Traceback" not in done.stderr
    assert where.startswith("Spark's own words are in ")


CONNECT = """
import sys
from pyspark.sql import SparkSession
from anabranch.spark import register

url, folder = sys.argv[1:]
spark = SparkSession.builder.remote("local[1]").getOrCreate()
register(spark)
read = spark.read.format("anabranch").option("serviceUrl", url).option("topic", "outside-connect").load()
print("rows", read.count())
query = (
    spark.readStream.format("anabranch").option("serviceUrl", url).option("topic", "outside-connect")
    .option("startingOffsets", "earliest").load().select("key", "value")
    .writeStream.format("anabranch").option("serviceUrl", url).option("topic", "outside-connect-out")
    .option("checkpointLocation", folder + "/checkpoint").trigger(availableNow=True).start()
)
query.awaitTermination()
out = spark.read.format("anabranch").option("serviceUrl", url).option("topic", "outside-connect-out").load()
print("copied", out.count())
spark.stop()
"""


def test_spark_connect(broker: BrokerProcess, tmp_path: Path) -> None:
    Traffic(broker.service_url, "outside-connect", keys=4).publish(10)
    shown = run(["-c", CONNECT, broker.service_url, str(tmp_path)], tmp_path)
    assert "rows 40" in shown
    assert "copied 40" in shown
