"""Real brokers for end-to-end tests: one shared per test process, private ones on request; their logs on failure."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest

from tests.support.processes.broker_process import BrokerProcess
from tests.support.traffic.stock_client import new_client

StartBroker = Callable[..., BrokerProcess]


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """The shared broker of this test process. Use own topics; never stop or kill it."""
    process = BrokerProcess(tmp_path_factory.mktemp("shared") / "data").start()
    try:
        yield process
        process.stop()
    finally:
        process.close()


@pytest.fixture
def start_broker(tmp_path: Path) -> Iterator[StartBroker]:
    """Start private brokers: `start_broker("name", arguments=[…])`; each gets its own data directory under tmp_path."""
    started: list[BrokerProcess] = []

    def start(name: str = "data", **options: Any) -> BrokerProcess:
        process = BrokerProcess(tmp_path / name, **options)
        started.append(process)
        return process.start()

    yield start
    for process in started:
        process.close()


@pytest.fixture
def private_broker(start_broker: StartBroker) -> BrokerProcess:
    """A broker of this test alone: kill it, restart it, fill it."""
    return start_broker()


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[pulsar.Client]:
    """The stock client on the shared broker."""
    stock = new_client(broker.service_url)
    yield stock
    stock.close()


@pytest.fixture
def topic() -> str:
    """A topic name nobody else uses."""
    return f"persistent://public/default/t-{uuid.uuid4().hex[:12]}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """A failed test shows the end of the log of every broker it used."""
    report = yield
    if report.failed:
        for name, value in getattr(item, "funcargs", {}).items():
            if isinstance(value, BrokerProcess):
                report.sections.append((f"broker log ({name})", value.log_tail()))
    return report
