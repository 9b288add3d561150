"""One Spark session and one broker for all tests of a process; every test has topics of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.broker_process import BrokerProcess
from tests.spark_rig import require_java, session


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    made = session()
    yield made
    made.stop()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    require_java()
    settings = {
        "ANABRANCH_BROKER_DEDUPLICATION": "true",
        "ANABRANCH_TOPICS_RETENTION_MS": "-1",
        "ANABRANCH_TOPICS_RETENTION_BYTES": "-1",
    }
    folder: Path = tmp_path_factory.mktemp("spark-broker")
    with BrokerProcess(folder / "data", arguments=["--sync", "none"], environment=settings) as made:
        yield made
