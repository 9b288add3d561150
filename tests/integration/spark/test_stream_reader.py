"""What a stream's reader answers Spark: nothing that was published before the question is left out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from anabranch.spark.columns import default_schema
from anabranch.spark.data_source import task_of
from anabranch.spark.offsets.offset import load
from anabranch.spark.options import SourceOptions
from anabranch.spark.source.stream_reader import StreamReader
from tests.support.processes.broker_process import BrokerProcess
from tests.support.spark.session import Traffic

ROUNDS = 20


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data") as made:
        yield made


def reader(broker: BrokerProcess, topic: str, **more: str) -> StreamReader:
    given = {"serviceUrl": broker.service_url, "topic": topic, "startingOffsets": "earliest", **more}
    options = SourceOptions.of(given, streaming=True)
    return StreamReader(task_of(options, default_schema(options)))


def latest(made: StreamReader, start: dict[str, Any]) -> dict[str, Any]:
    return made.latestOffset(start, ReadAllAvailable())


def test_an_answer_includes_what_was_published_before_the_question(broker: BrokerProcess) -> None:
    """`processAllAvailable` relies on it: a single "nothing new" ends its wait."""
    traffic = Traffic(broker.service_url, "fresh", keys=2)
    traffic.publish(1)
    made = reader(broker, "fresh")
    reached = latest(made, made.initialOffset())
    for _ in range(ROUNDS):
        traffic.publish(1)
        found = latest(made, reached)
        assert load(found) != load(reached)
        reached = found
    assert latest(made, reached) == reached
    made.stop()


def test_a_broker_that_restarted_is_asked_before_the_answer_is_nothing_new(broker: BrokerProcess) -> None:
    traffic = Traffic(broker.service_url, "restarted", keys=2)
    traffic.publish(1)
    made = reader(broker, "restarted")
    reached = latest(made, made.initialOffset())
    broker.kill9()
    broker.start()
    traffic.publish(1)
    assert load(latest(made, reached)) != load(reached)
    made.stop()
