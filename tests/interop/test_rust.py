"""The Rust client of Apache Pulsar on our broker. Building it takes minutes, so this is a soak."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from tests.services.available import pulsar_rust
from tests.services.pulsar_rust import RustClient
from tests.support.processes.broker_process import BrokerProcess

pytestmark = pytest.mark.soak

NUMBERED = [f"m{number}" for number in range(100)]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("rust") / "data") as process:
        yield process
        assert process.log_complaints() == []


@pytest.fixture
def rust(broker: BrokerProcess) -> RustClient:
    return pulsar_rust(broker.service_url)


@pytest.fixture
def topic() -> str:
    return f"persistent://public/default/rust-{uuid.uuid4().hex[:8]}"


@pytest.mark.conformance("Exclusive", client="Rust")
def test_exclusive(rust: RustClient, topic: str) -> None:
    assert rust("exclusive", topic)["received"] == NUMBERED


@pytest.mark.conformance("Failover", client="Rust")
def test_failover(rust: RustClient, topic: str) -> None:
    assert rust("failover", topic)["received"] == NUMBERED


@pytest.mark.conformance("Shared", client="Rust")
def test_shared(rust: RustClient, topic: str) -> None:
    assert sorted(rust("shared", topic)["received"]) == sorted(NUMBERED)


@pytest.mark.conformance("Key_Shared", client="Rust")
def test_key_shared(rust: RustClient, topic: str) -> None:
    assert rust("key-shared", topic)["received"] == NUMBERED


@pytest.mark.conformance("negative acknowledgement", client="Rust")
def test_nack(rust: RustClient, topic: str) -> None:
    assert rust("nack", topic)["received"] == ["m0"]
