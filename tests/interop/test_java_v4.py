"""Apache Pulsar's classic Java client on our broker."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from tests.services.available import pulsar_java
from tests.services.pulsar_java import JavaClient
from tests.support.processes.broker_process import BrokerProcess


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("java") / "data") as process:
        yield process
        assert process.log_complaints() == []


@pytest.fixture(scope="module")
def java(broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaClient]:
    client = pulsar_java(broker.service_url, tmp_path_factory.mktemp("log"))
    yield client
    client.close()


@pytest.fixture
def topic() -> str:
    return f"persistent://public/default/java-{uuid.uuid4().hex[:8]}"


@pytest.mark.conformance("transactions: told that there are none", client="Java")
def test_client_with_transactions_is_told_that_there_are_none(java: JavaClient, topic: str) -> None:
    (said,) = java("transactions", topic)
    # its words for a transaction coordinator without partitions; it was TopicNotFound of transaction_coordinator_assign
    assert "The broker doesn't enable the transaction coordinator" in said


@pytest.mark.parametrize("kind", ["Shared", "Key_Shared"])
@pytest.mark.conformance("delayed delivery, Shared and Key_Shared", client="Java")
def test_delayed_message_is_put_aside(java: JavaClient, topic: str, kind: str) -> None:
    assert java("delayed", topic, kind) == ["now", "later"]


@pytest.mark.conformance("pattern of a missing namespace", client="Java")
def test_pattern_of_a_missing_namespace(java: JavaClient, topic: str) -> None:
    assert java("pattern", topic, f"public/java-{uuid.uuid4().hex[:8]}") == ["subscribed"]


@pytest.mark.conformance("pattern: topics created later, by a topic-list watch", client="Java")
def test_pattern_consumer_learns_of_new_topics_without_polling(java: JavaClient, topic: str) -> None:
    namespace = topic.rpartition("/")[0]
    topics = [f"{namespace}/{kind}-{uuid.uuid4().hex[:8]}" for kind in ("new", "later")]
    assert java("pattern-watch", topic, *topics) == topics


@pytest.mark.conformance("schema: bytes", client="Java")
def test_bytes_schema(java: JavaClient, topic: str) -> None:
    assert java("bytes", topic) == ["text"]


@pytest.mark.parametrize("kind", ["json", "avro"])
@pytest.mark.conformance("schema: JSON and Avro records", client="Java")
def test_records(java: JavaClient, topic: str, kind: str) -> None:
    assert java(kind, topic) == ["7", "seven"]


@pytest.mark.conformance("negative acknowledgement", client="Java")
def test_nack(java: JavaClient, topic: str) -> None:
    assert java("nack", topic) == ["1"]


@pytest.mark.conformance("dead letters", client="Java")
def test_dead_letters(java: JavaClient, topic: str) -> None:
    assert java("dead-letter", topic) == ["poison"]


@pytest.mark.conformance("reader", client="Java")
def test_reader(java: JavaClient, topic: str) -> None:
    assert java("reader", topic) == ["m0", "m1", "m2"]


@pytest.mark.conformance("seek", client="Java")
def test_seek(java: JavaClient, topic: str) -> None:
    assert java("seek", topic) == ["m0", "m1"]


@pytest.mark.conformance("chunks", client="Java")
def test_chunks(java: JavaClient, topic: str) -> None:
    assert java("chunks", topic) == ["200000"]
