"""The Spark benchmark runs, tiny, so that it does not rot; against Kafka only when asked for (`-m soak`)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.spark import triggers
from benchmarks.spark_sessions.sessions import kafka_side
from benchmarks.support.measure import Scene
from tests.services import kafka
from tests.support.spark.session import require_java

pytestmark = pytest.mark.slow


def run(tmp_path: Path, *measures: str) -> list[str]:
    """The names of what was measured."""
    require_java()
    chosen = [word for name in measures for word in ("--only", name)]
    target = tmp_path / "found.json"
    command = [sys.executable, "-m", "benchmarks.spark", "--quick", *chosen, "--json", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]  # goals mean nothing at this size
    return [one["name"] for one in json.loads(target.read_text())["measures"]]


def test_against_parquet(tmp_path: Path) -> None:
    found = run(tmp_path, "batch")
    assert {"parquet-read-ours", "parquet-read-ours in Python", "parquet-write-ours"} <= set(found)


def test_against_the_rate_source(spark: Any, tmp_path: Path) -> None:
    (found,) = triggers(Scene(tmp_path, quick=True), spark)
    assert found.name == "micro-batch"
    assert found.ratio > 0


@pytest.mark.soak
def test_against_kafka(tmp_path: Path) -> None:
    """Fetches 450 MB the first time."""
    found = run(tmp_path, "kafka")
    assert {"kafka-read-ours", "kafka-sum-ours", "kafka-write-ours"} <= set(found)


@pytest.mark.soak
def test_a_topic_of_kafka_is_ready_once_it_is_said_to_be(tmp_path: Path) -> None:
    """Else the first batch of a partition may be refused and, a later one having been taken, expires after 120 s."""
    require_java()
    log = tmp_path / "session.log"
    with kafka.cluster(tmp_path / "server") as server, kafka_side(log) as side:
        for topic, partitions in [("warm-up", 4), *((f"many-{number}", 200) for number in range(4))]:
            side("kafka-topic", servers=server.hosts, topic=topic, partitions=partitions)
            options = {"kafka.bootstrap.servers": server.hosts, "topic": topic}
            side("write", rows=100_000, partitions=4, format="kafka", options=options)
    assert "NOT_LEADER_OR_FOLLOWER" not in log.read_text(errors="replace")
