"""The newest messages of topics over HTTP: order, batches, bounds, rights; no trace is left."""

from __future__ import annotations

import uuid

import pulsar
import pytest

import anabranch.blocking
from tests.support.processes.broker_process import BrokerProcess
from tests.support.traffic.stock_calls import Rest, publish_batch

SCALABLE, BROWSE = "/admin/v2/scalable/public/default", "/anabranch/v1"


@pytest.fixture
def rest(broker: BrokerProcess) -> Rest:
    return Rest(broker.http_url)


def test_newest_of_all_segments_come_first(broker: BrokerProcess, rest: Rest) -> None:
    name = f"m-{uuid.uuid4().hex[:8]}"
    rest.expect("PUT", f"{SCALABLE}/{name}?numInitialSegments=2", {})
    path = f"{BROWSE}/scalable/public/default/{name}/messages"
    assert rest.expect("GET", path) == []
    with (
        anabranch.blocking.connect(broker.service_url) as client,
        client.producer(f"topic://public/default/{name}") as producer,
    ):
        for number in range(30):
            producer.send(f"m{number}".encode(), key=f"k{number}", properties={"n": str(number)})
            if number == 10:
                rest.expect("POST", f"{SCALABLE}/{name}/split/0")
        producer.send(b"\xff\xfe", key="k0")
        producer.send(b"y" * 10_000, key="k0")
    found = rest.expect("GET", f"{path}?count=200")
    assert len(found) == 32
    times = [one["publishTimeMs"] for one in found]
    assert times == sorted(times, reverse=True)
    by_payload = {one.get("payload"): one for one in found}
    assert {f"m{number}" for number in range(30)} <= set(by_payload)
    assert by_payload["m7"]["key"] == "k7" and by_payload["m7"]["properties"]["n"] == "7"
    assert by_payload["y" * 4096]["size"] == 10_000
    assert any(one.get("payloadBase64") == "//4=" for one in found)
    sealed = rest.expect("GET", f"{path}?segment=0&count=200")
    assert sealed and {one["segment"] for one in sealed} == {0}
    assert len(rest.expect("GET", f"{path}?count=3")) == 3
    for query, status in (("count=0", 400), ("count=201", 400), ("segment=99", 404), ("segment=x", 400)):
        assert rest.call("GET", f"{path}?{query}")[0] == status
    assert rest.expect("GET", f"{SCALABLE}/{name}/stats")["subscriptions"] == {}


def test_batches_and_partitions_of_regular_topics(broker: BrokerProcess, rest: Rest, client: pulsar.Client) -> None:
    name = f"m-{uuid.uuid4().hex[:8]}"
    publish_batch(client, f"persistent://public/default/{name}", [b"a", b"b", b"c"])
    path = f"{BROWSE}/persistent/public/default/{name}/messages"
    found = rest.expect("GET", path)
    assert [one["payload"] for one in found] == ["c", "b", "a"]
    assert [one["id"].rpartition(":")[2] for one in found] == ["2", "1", "0"] and found[0]["segment"] is None
    rest.expect("PUT", f"/admin/v2/persistent/public/default/{name}-p/partitions", 3)
    producer = client.create_producer(f"persistent://public/default/{name}-p", batching_enabled=False)
    for number in range(9):
        producer.send(str(number).encode(), partition_key=str(number))
    found = rest.expect("GET", f"{BROWSE}/persistent/public/default/{name}-p/messages")
    assert {one["payload"] for one in found} == {str(number) for number in range(9)}
    assert rest.call("GET", f"{BROWSE}/persistent/public/default/{name}-none/messages")[0] == 404


def test_compressed_payloads_are_shown_or_named(rest: Rest, client: pulsar.Client) -> None:
    name = f"m-{uuid.uuid4().hex[:8]}"
    for kind in (pulsar.CompressionType.ZLib, pulsar.CompressionType.LZ4):
        producer = client.create_producer(f"persistent://public/default/{name}", compression_type=kind)
        producer.send(b"z" * 500)
    found = rest.expect("GET", f"{BROWSE}/persistent/public/default/{name}/messages")
    assert len(found) == 2
    assert all(one.get("payload") == "z" * 500 or one["unreadable"] for one in found)
