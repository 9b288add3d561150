"""Fixtures of the stock-client suite: a client with short timeouts and REST on the shared broker."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pulsar
import pytest

from tests.support.processes.broker_process import BrokerProcess
from tests.support.traffic.stock_calls import Rest
from tests.support.traffic.stock_client import new_client


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
