"""`register` where the first `python3` on the path is not the Python that runs the program."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes.broker_process import BrokerProcess
from tests.support.spark.session import Traffic, lean_home, require_java

pytestmark = pytest.mark.slow


_REGISTERS = """
import sys
from pyspark.sql import SparkSession
from anabranch.spark import register

spark = SparkSession.builder.master(sys.argv[2]).config("spark.ui.enabled", "false").getOrCreate()
register(spark)
reader = spark.read.format("anabranch").option("serviceUrl", sys.argv[1])
print("rows", reader.option("topic", "not-activated").load().count())
"""


def run_not_activated(folder: Path, url: str, master: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The first `python3` on the path is not the one that runs the program, and has no packages."""
    require_java()
    bare = folder / "bin"
    bare.mkdir()
    (bare / "python3").write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "$@"\n')
    (bare / "python3").chmod(0o755)
    program = folder / "registers.py"
    program.write_text(_REGISTERS)
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK")}
    env |= {"PATH": f"{bare}:{env['PATH']}", "SPARK_HOME": lean_home()} | environment
    return subprocess.run(
        [sys.executable, str(program), url, master], env=env, capture_output=True, text=True, timeout=600, check=False
    )


def test_register_from_an_environment_that_is_not_activated(broker: BrokerProcess, tmp_path: Path) -> None:
    Traffic(broker.service_url, "not-activated", keys=4).publish(5)
    done = run_not_activated(tmp_path, broker.service_url, "local[1]")
    assert "rows 20" in done.stdout, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"


def test_register_names_the_setting_if_workers_lack_the_package(broker: BrokerProcess, tmp_path: Path) -> None:
    done = run_not_activated(tmp_path, broker.service_url, "local[1]", PYSPARK_PYTHON=str(tmp_path / "bin" / "python3"))
    last = done.stderr.strip().splitlines()[-1]
    assert "set PYSPARK_PYTHON=" in last and "No module named" in last, done.stderr[-3000:]
