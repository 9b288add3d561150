"""One Spark session and one broker for all tests of a process; every test has topics of its own. What Spark's processes
say is kept in a file, and shown with the tests that fail."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes.broker_process import BrokerProcess
from tests.support.spark.session import require_java, session, stderr_into

WORDS = pytest.StashKey[Path]()
SAID_BEFORE = pytest.StashKey[int]()
WORDS_MAX = 20_000


@pytest.fixture(scope="session")
def spark(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    words = pytestconfig.stash[WORDS] = tmp_path_factory.mktemp("spark-words") / "stderr.log"
    with stderr_into(words):
        made = session()
    yield made
    made.stop()


def pytest_runtest_setup(item: pytest.Item) -> None:
    words = item.config.stash.get(WORDS, None)
    item.stash[SAID_BEFORE] = words.stat().st_size if words is not None and words.exists() else 0


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    words = item.config.stash.get(WORDS, None)
    if report.failed and words is not None and words.exists():
        said = words.read_bytes()[item.stash.get(SAID_BEFORE, 0) :][-WORDS_MAX:]
        report.sections.append(("Spark's own words", said.decode(errors="replace")))
    return report


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
