"""Spark's Kafka source and sink, for comparison: a pyspark in a separate virtual environment, and their four jars."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

from tests.services import cache

_POM = cache.BUILDS / "spark_kafka" / "pom.xml"


def obtain() -> Path:
    """The directory with both; the first installation downloads 400 MB."""
    if shutil.which("java") is None:
        raise cache.Unavailable("java is not installed")
    return cache.once("spark-kafka", _POM, _build, within_s=900)


def is_here() -> bool:
    """Is it in the cache already?"""
    return cache.has("spark-kafka", _POM)


def version() -> str:
    found = re.search(r"<spark.version>([^<]+)<", _POM.read_text())
    assert found is not None
    return found[1]


def python() -> Path:
    """The interpreter that imports that pyspark."""
    return obtain() / "venv" / "bin" / "python"


def jars() -> list[Path]:
    return sorted((obtain() / "jars").glob("*.jar"))


def _build(into: Path) -> None:
    goal = ["dependency:copy-dependencies", "-DexcludeTransitive=true", f"-DoutputDirectory={into / 'jars'}"]
    cache.run(["mvn", "-q", "-B", "-f", _POM, *goal], within_s=280)
    cache.run([sys.executable, "-m", "venv", into / "venv"], within_s=120)
    # by the interpreter's module: a script's first line would name the directory before its last move
    python = into / "venv" / "bin" / "python"
    options = ["--quiet", "--disable-pip-version-check"]
    cache.run([python, "-m", "pip", "install", *options, f"pyspark=={version()}"], within_s=800)
