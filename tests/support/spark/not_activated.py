"""A Spark program without an activated environment: the first `python3` on the path is not the one that runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.spark.session import lean_home, require_java

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
