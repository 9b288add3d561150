"""Fixtures of the stock-client suite: a client with short timeouts and REST on the shared broker."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pulsar
import pytest

from tests.support.processes.broker_process import BrokerProcess
from tests.support.processes.cluster import ClusterProcesses
from tests.support.traffic.stock_calls import Rest
from tests.support.traffic.stock_client import new_client

SWIFT = ("broker.sweep_seconds=0.1", "topics.ledger_bytes_max=20000")


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[pulsar.Client]:
    """A stock client of this test on the shared broker."""
    stock = new_client(broker.service_url, operation_timeout_seconds=10)
    yield stock
    stock.close()


@pytest.fixture
def other_client(broker: BrokerProcess) -> Iterator[pulsar.Client]:
    """A second client: its own connection, as from another process."""
    stock = new_client(broker.service_url, operation_timeout_seconds=10)
    yield stock
    stock.close()


@pytest.fixture(scope="session", params=[1, pytest.param(3, marks=pytest.mark.soak)])
def swift_broker(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[BrokerProcess | ClusterProcesses]:
    """For tests of policies: sweeps ten times a second and goes on to a new ledger after 20 kB. Never stop it. In soaks
    also three brokers, where clients and calls for a topic end at any of them."""
    words = [word for value in SWIFT for word in ("--set", value)]
    folder = tmp_path_factory.mktemp("swift")
    if request.param > 1:
        with ClusterProcesses(folder, request.param, arguments=words) as cluster:
            yield cluster
        return
    process = BrokerProcess(folder / "data", arguments=words).start()
    try:
        yield process
        process.stop()
    finally:
        process.close()


@pytest.fixture
def swift_client(swift_broker: BrokerProcess | ClusterProcesses) -> Iterator[pulsar.Client]:
    """A stock client of this test that does not try again for long: policies refuse."""
    stock = new_client(swift_broker.service_url, operation_timeout_seconds=3)
    yield stock
    stock.close()


@pytest.fixture
def rest(broker: BrokerProcess) -> Rest:
    """Admin calls on the shared broker."""
    return Rest(broker.http_url)


@pytest.fixture
def partitioned_topic(rest: Rest) -> str:
    """A fresh topic of three partitions."""
    name = f"persistent://public/default/p-{uuid.uuid4().hex[:12]}"
    rest.create_partitioned(name, 3)
    return name


@pytest.fixture(scope="session")
def dedup_namespace(broker: BrokerProcess) -> str:
    """A namespace with deduplication switched on."""
    rest = Rest(broker.http_url)
    namespace = "public/dedup-ns"
    rest.create_namespace(namespace)
    rest.expect("POST", f"/admin/v2/namespaces/{namespace}/deduplication", True)
    return namespace
