"""Registration of the data source with a Python for its workers that has this package.

Spark starts workers with `PYSPARK_PYTHON`, or the first `python3` on the path. That one lacks this package if the
driver runs in a virtual environment that is not activated. Workers of a local master then use the driver's Python.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import Any

from anabranch.model.errors import Error

CHECK_SECONDS = 60.0
_CHECK = "import anabranch.spark.data_source"


class WorkersLackPackage(Error):
    """The Python of Spark's workers cannot import this package."""

    code = "spark-workers-lack-package"


def register_source(spark: Any, source: type) -> None:
    if not hasattr(spark, "_jsparkSession"):  # Spark Connect: the server has a Python of its own
        spark.dataSource.register(source)
        return
    context = spark.sparkContext
    python = context.pythonExec
    if "PYSPARK_PYTHON" not in os.environ and str(context.master).startswith("local"):
        context.pythonExec = sys.executable  # functions made now keep it; Spark has no parameter for one function
    else:
        _check(python)
    try:
        spark.dataSource.register(source)
    finally:
        context.pythonExec = python


def _check(python: str) -> None:
    """The driver plans with this Python, too, so it must have the package on this machine."""
    found = shutil.which(python)
    if found is not None and os.path.abspath(found) == os.path.abspath(sys.executable):
        return
    advice = f"set PYSPARK_PYTHON={sys.executable} before the Spark session is created"
    if found is None:
        raise WorkersLackPackage(f"Spark's Python workers run {python!r}, which does not exist here: {advice}")
    try:
        done = subprocess.run([found, "-c", _CHECK], capture_output=True, text=True, timeout=CHECK_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as cause:
        raise WorkersLackPackage(f"Spark's Python workers run {found}, which does not start: {advice}") from cause
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["it fails without a message"])[-1]
        raise WorkersLackPackage(f"Spark's Python workers run {found}, where anabranch fails ({reason}): {advice}")
