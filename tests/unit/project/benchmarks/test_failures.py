"""A failed measure is reported in a few lines, its logs are kept, and the other measures still run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.spark_sessions.session import LINE_CHARACTERS, gist
from benchmarks.spark_sessions.sessions import LOG_LINES, Side, SideFailed, last_words
from benchmarks.support import report
from benchmarks.support.measure import Failed, Outcome, Scene, Series

JAVA = """Py4JJavaError: An error occurred while calling o202.save.
: org.apache.spark.SparkException: Job aborted due to stage failure: Lost task: TimeoutException: Expiring 130 record(s)

Driver stacktrace:
\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:2935)
\tat java.base/java.lang.Thread.run(Thread.java:840)
Caused by: org.apache.kafka.common.errors.TimeoutException: Expiring 130 record(s)
\t... 1 more
"""
PYTHON = """Traceback (most recent call last):
  File "writer.py", line 7, in write
    raise Refused("no")
anabranch.errors.Refused: no
"""


def test_a_java_error_without_its_frames() -> None:
    assert gist(JAVA).splitlines() == [
        "Py4JJavaError: An error occurred while calling o202.save.",
        ": org.apache.spark.SparkException: Job aborted due to stage failure: Lost task: TimeoutException: "
        "Expiring 130 record(s)",
        "Caused by: org.apache.kafka.common.errors.TimeoutException: Expiring 130 record(s)",
    ]


def test_a_python_error_without_its_frames() -> None:
    assert gist(PYTHON) == "anabranch.errors.Refused: no"


def test_lines_are_bounded_and_the_first_and_last_stay() -> None:
    text = "\n".join(["first", "x" * 10_000, *map(str, range(100)), "same", "same"])
    assert gist(text).splitlines() == ["first", "…", "97", "98", "99", "same"]
    assert gist("\n".join(["first", "x" * 10_000])).splitlines() == ["first", "x" * LINE_CHARACTERS]
    assert gist("") == ""


def test_last_lines_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "kafka1.log"
    log.write_text("".join(f"line {number}\n" for number in range(100_000)) + "WARN first\n\tat frame\nERROR second\n")
    *earlier, first, second = last_words(log).splitlines()
    assert earlier == ["--- kafka1.log ---", *(f"line {number}" for number in range(100_000 - LOG_LINES + 2, 100_000))]
    assert [first, second] == ["WARN first", "ERROR second"]


def test_session_that_exits_is_reported_in_one_line(tmp_path: Path) -> None:
    log = tmp_path / "side.log"
    with Side(log, {}, python="false") as side, pytest.raises(SideFailed, match="read: ") as found:
        side("read")
    assert found.value.logs == (log,)
    assert len(str(found.value).splitlines()) == 1


def test_failed_measure_is_reported_and_the_others_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def fails(scene: Scene) -> list[Outcome]:
        log = scene.place("broker") / "broker.log"
        log.write_text("its last words")
        raise Failed("the broker went away", [log, scene.directory / "never-written.log"])

    def works(scene: Scene) -> list[Outcome]:
        return [Outcome("works", "it works", Series("ours", "rows/s", (1.0,)), None, None)]

    target = tmp_path / "found.json"
    code = report.run("test", {"fails": fails, "works": works}, (), ["--json", str(target), "--dir", str(tmp_path)])
    assert code == 1
    shown = capsys.readouterr().out
    assert "fails FAILED after" in shown
    assert "the broker went away" in shown
    record = json.loads(target.read_text())
    assert record["failed"] == {"fails": "the broker went away"}
    assert [one["name"] for one in record["measures"]] == ["works"]
    (kept,) = (tmp_path / "found.fails-logs").iterdir()
    assert kept.read_text() == "its last words"
