"""What runs in processes of its own: the example of the guide, the command line, Spark Connect."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.broker_process import BrokerProcess
from tests.spark_rig import Traffic, require_java

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


def run(arguments: list[str], folder: Path, **environment: str) -> str:
    require_java()
    env = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT), **environment}
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
