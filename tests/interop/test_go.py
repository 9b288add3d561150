"""Apache Pulsar's Go client on our broker: what only this client met, and its features one by one."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Iterator

import pytest

from tests.services.available import pulsar_go
from tests.services.pulsar_go import GoClient
from tests.support.processes.broker_process import BrokerProcess
from tests.support.traffic.stock_calls import Rest, topic_path

NUMBERED = [f"m{number}" for number in range(100)]
ORDER = {"id": 7, "name": "seven"}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("go") / "data") as process:
        yield process
        assert process.log_complaints() == []


@pytest.fixture
def go(broker: BrokerProcess) -> GoClient:
    return pulsar_go(broker.service_url)


@pytest.fixture
def rest(broker: BrokerProcess) -> Rest:
    return Rest(broker.http_url)


@pytest.fixture
def topic() -> str:
    return f"persistent://public/default/go-{uuid.uuid4().hex[:8]}"


# -- schemas


@pytest.mark.parametrize("kind", ["bytes", "string", "int32", "json", "avro"])
@pytest.mark.conformance("schema: JSON and Avro records", client="Go")
def test_schema_is_registered_and_read_back(go: GoClient, topic: str, kind: str) -> None:
    """A bytes schema is type NONE on the wire: GET_OR_CREATE_SCHEMA of it was refused, and every send failed."""
    found = go("schema", topic, kind)
    assert base64.b64decode(found["version"] or "") in (b"", bytes(8))
    if kind in ("json", "avro"):
        assert found["value"] == ORDER
    elif kind != "int32":
        assert found["payload"] == "text"


@pytest.mark.conformance("schema: bytes", client="Go")
def test_bytes_schema_has_a_version_that_rest_shows(go: GoClient, rest: Rest, topic: str) -> None:
    go("schema", topic, "bytes")
    schemas = topic_path(topic).replace("/persistent/", "/schemas/")
    assert rest.expect("GET", f"{schemas}/schema")["type"] == "NONE"


def test_bytes_producer_after_another_schema_is_compared_with_it(go: GoClient, topic: str) -> None:
    go("schema", topic, "json")
    process = go.start("schema", topic, "string")
    _, complaint = process.communicate(timeout=90)
    assert process.returncode == 1 and "IncompatibleSchema" in complaint


# -- delays, patterns, transactions, policies


@pytest.mark.parametrize("kind", ["shared", "key-shared"])
@pytest.mark.conformance("delayed delivery, Shared and Key_Shared", client="Go")
def test_delayed_message_is_put_aside(go: GoClient, topic: str, kind: str) -> None:
    found = go("delayed", topic, kind)
    assert found["received"] == ["now", "later"] and found["seconds"] >= 1.9


@pytest.mark.conformance("pattern of a missing namespace", client="Go")
def test_pattern_of_a_missing_namespace_finds_topics_when_it_is_created(go: GoClient, rest: Rest, topic: str) -> None:
    namespace = f"public/go-{uuid.uuid4().hex[:8]}"
    process = go.start("pattern", topic, namespace, "1")
    assert process.stderr is not None
    assert any("subscribed" in line for line in process.stderr)
    rest.create_namespace(namespace)
    rest.expect("PUT", topic_path(f"persistent://{namespace}/t"))
    rest.expect("POST", f"/topics/persistent/{namespace}/t", {"messages": [{"payload": "found"}]})
    out, complaint = process.communicate(timeout=90)
    assert process.returncode == 0, complaint
    found = json.loads(out)
    assert found["received"] == ["found"] and found["seconds"] < 20, "30 s was how long it tried again"


@pytest.mark.conformance("transactions: told that there are none", client="Go")
def test_client_with_transactions_is_told_that_there_are_none(go: GoClient, topic: str) -> None:
    found = go("transactions", topic)
    # Its words for a coordinator without partitions; it was TopicNotFound of transaction_coordinator_assign. With one
    # partition this client says "Transactions are not enabled.", but Java's tries that partition for ever.
    assert "The broker doesn't enable the transaction coordinator" in found["error"]


@pytest.mark.conformance("admin client", client="Go")
def test_admin_client_switches_topic_creation_off(broker: BrokerProcess) -> None:
    """It sends `"topicType": ""` and a null number of partitions."""
    namespace = f"public/go-{uuid.uuid4().hex[:8]}"
    found = pulsar_go(broker.http_url)("admin", namespace)
    assert found["partitions"] == 2


# -- features


@pytest.mark.parametrize("kind", ["none", "lz4", "zlib", "zstd", "snappy"])
@pytest.mark.conformance("batches and compression", client="Go")
def test_batches_with_compression(go: GoClient, topic: str, kind: str) -> None:
    assert go("send", topic, kind)["received"] == NUMBERED


@pytest.mark.conformance("chunks", client="Go")
def test_chunks(go: GoClient, topic: str) -> None:
    assert go("send", topic, "chunks")["bytes"] == 200_000


@pytest.mark.conformance("negative acknowledgement", client="Go")
def test_nack(go: GoClient, topic: str) -> None:
    assert go("nack", topic) == {"received": "x", "redelivery": 1}


@pytest.mark.conformance("dead letters", client="Go")
def test_dead_letters(go: GoClient, topic: str) -> None:
    assert go("dead-letter", topic)["received"] == ["poison"]


@pytest.mark.conformance("reader", client="Go")
def test_reader(go: GoClient, topic: str) -> None:
    assert go("reader", topic)["received"] == NUMBERED[:5]


@pytest.mark.conformance("seek", client="Go")
def test_seek(go: GoClient, topic: str) -> None:
    assert go("seek", topic)["received"] == NUMBERED[:3]


@pytest.mark.conformance("partitioned topics", client="Go")
def test_partitions(go: GoClient, rest: Rest, topic: str) -> None:
    rest.create_partitioned(topic, 3)
    assert go("partitions", topic) == {"count": 30, "partitions": 3}


@pytest.mark.conformance("Key_Shared", client="Go")
def test_key_shared(go: GoClient, topic: str) -> None:
    assert go("key-shared", topic) == {"consumers": 2, "keys": 20}


@pytest.mark.conformance("Failover", client="Go")
def test_failover(go: GoClient, topic: str) -> None:
    assert go("failover", topic)["received"] == ["one", "two"]


@pytest.mark.conformance("Exclusive", client="Go")
def test_exclusive(go: GoClient, topic: str) -> None:
    assert "ConsumerBusy" in go("exclusive", topic)["error"]
