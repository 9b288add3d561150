"""Without the packages of the extra, Spark's entry points name the extra."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("call", ["register(None)", "copy", "simulate"])
@pytest.mark.parametrize("package", ["pyarrow", "pyspark"])
def test_missing_package_names_the_extra(call: str, package: str) -> None:
    program = f"""
import sys
sys.modules[{package!r}] = None  # as if it were not installed
import anabranch, anabranch.spark
try:
    anabranch.spark.{call}
except (anabranch.Error, ImportError) as error:
    print(type(error).__name__, isinstance(error, anabranch.Error), error)
else:
    print("not needed")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    if done.stdout == "not needed\n":
        assert call != "register(None)"
        return
    assert done.stdout.startswith(f"SparkMissing True {package}") and "anabranch[spark]" in done.stdout
