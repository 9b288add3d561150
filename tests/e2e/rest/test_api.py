"""The HTTP port of a real broker, asked by plain HTTP and by the stock client with an `http://` service URL."""

from __future__ import annotations

import http.client
import json
import re
import time
import uuid
from contextlib import suppress
from typing import Any
from urllib.parse import quote

import pulsar
import pytest

from tests.support.processes.broker_process import HOST, BrokerProcess
from tests.support.traffic.stock_calls import eventually
from tests.support.traffic.stock_client import new_client

ADMIN = "/admin/v2"


def ask(broker: BrokerProcess, method: str, path: str, body: object = None) -> tuple[int, Any]:
    """(status, body): JSON decoded when it is JSON, text otherwise, None when empty."""
    connection = http.client.HTTPConnection(HOST, broker.http_port, timeout=10)
    try:
        data = None if body is None else json.dumps(body)
        connection.request(method, path, data, {"Content-Type": "application/json"})
        response = connection.getresponse()
        text = response.read().decode()
    finally:
        connection.close()
    if not text:
        return response.status, None
    try:
        return response.status, json.loads(text)
    except ValueError:
        return response.status, text


@pytest.fixture
def name() -> str:
    return f"h-{uuid.uuid4().hex[:12]}"


def path_of(name: str, domain: str = "persistent") -> str:
    return f"{ADMIN}/{domain}/public/default/{quote(name, safe='')}"


@pytest.fixture
def http_client(broker: BrokerProcess) -> Any:
    stock = new_client(broker.http_url)
    yield stock
    stock.close()


@pytest.mark.parametrize("domain", ["persistent", "non-persistent"])
def test_stock_client_over_http(http_client: pulsar.Client, name: str, domain: str) -> None:
    topic = f"{domain}://public/default/{name}"
    consumer = http_client.subscribe(topic, "s")
    producer = http_client.create_producer(topic)
    producer.send(b"hello")
    message = consumer.receive(10_000)
    assert message.data() == b"hello"
    consumer.acknowledge(message)


def test_stock_client_over_http_on_partitions(broker: BrokerProcess, http_client: pulsar.Client, name: str) -> None:
    assert ask(broker, "PUT", path_of(name) + "/partitions", 3) == (204, None)
    assert http_client.get_topic_partitions(name) == [
        f"persistent://public/default/{name}-partition-{i}" for i in range(3)
    ]
    consumer = http_client.subscribe(name, "s", initial_position=pulsar.InitialPosition.Earliest)
    producer = http_client.create_producer(name)
    for number in range(9):
        producer.send(str(number).encode())
    got = [consumer.receive(10_000) for _ in range(9)]
    assert sorted(int(message.data()) for message in got) == list(range(9))
    assert {message.partition_key() for message in got} == {""}
    assert len({message.topic_name() for message in got}) == 3


def test_stock_pattern_consumer_over_http(broker: BrokerProcess, http_client: pulsar.Client, name: str) -> None:
    for suffix in ("a", "b"):
        assert ask(broker, "PUT", path_of(f"{name}-{suffix}"))[0] == 204
    consumer = http_client.subscribe(re.compile(f"persistent://public/default/{name}-.*"), "s")
    for suffix in ("a", "b"):
        http_client.create_producer(f"{name}-{suffix}").send(suffix.encode())
    assert sorted(consumer.receive(10_000).data() for _ in range(2)) == [b"a", b"b"]


def test_stock_client_over_http_with_a_missing_namespace(http_client: pulsar.Client) -> None:
    with pytest.raises(pulsar.PulsarException):
        http_client.create_producer("persistent://public/nowhere/x")


@pytest.mark.parametrize("odd", ["ü 日本", "per%cent", "que?ry&x=1", "plus+sign", "semi;colon", "sharp#"])
def test_odd_names_are_equal_on_both_ports(
    broker: BrokerProcess, http_client: pulsar.Client, client: pulsar.Client, name: str, odd: str
) -> None:
    topic = f"persistent://public/default/{name}-{odd}"
    http_client.create_producer(topic).send(b"over http")
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert reader.read_next(10_000).data() == b"over http"
    assert topic in ask(broker, "GET", f"{ADMIN}/persistent/public/default")[1]
    status, stats = ask(broker, "GET", path_of(f"{name}-{odd}") + "/stats")
    assert (status, stats["msgInCounter"]) == (200, 1)


def test_life_of_a_topic(broker: BrokerProcess, client: pulsar.Client, name: str) -> None:
    full = f"persistent://public/default/{name}"
    assert ask(broker, "GET", path_of(name) + "/partitions")[0] == 404
    assert ask(broker, "PUT", path_of(name), {"owner": "me"}) == (204, None)
    status, body = ask(broker, "PUT", path_of(name))
    assert (status, body["error"]) == (409, "already-exists")
    assert ask(broker, "GET", path_of(name) + "/partitions") == (200, {"partitions": 0, "deleted": False})
    assert full in ask(broker, "GET", f"{ADMIN}/namespaces/public/default/topics")[1]
    assert ask(broker, "PUT", path_of(name) + "/subscription/s%2F1", "earliest")[0] == 204
    assert ask(broker, "PUT", path_of(name) + "/subscription/s%2F1")[0] == 409
    assert ask(broker, "GET", path_of(name) + "/subscriptions") == (200, ["s/1"])
    producer = client.create_producer(full)
    producer.send(b"x")
    consumer = client.subscribe(full, "s/1")
    assert consumer.receive(10_000).data() == b"x"
    status, stats = ask(broker, "GET", path_of(name) + "/stats")
    assert status == 200
    assert len(stats["publishers"]) == 1 and list(stats["subscriptions"]) == ["s/1"]
    status, body = ask(broker, "DELETE", path_of(name))
    assert status == 412 and body["reason"]
    status, body = ask(broker, "DELETE", path_of(name) + "/subscription/s%2F1")
    assert status == 412
    consumer.close()
    producer.close()
    assert ask(broker, "DELETE", path_of(name) + "/subscription/s%2F1") == (204, None)
    assert ask(broker, "DELETE", path_of(name) + "/subscription/s%2F1")[0] == 404
    internal = ask(broker, "GET", path_of(name) + "/internalStats")
    assert internal[0] == 200 and internal[1]["ledgers"]
    assert ask(broker, "DELETE", path_of(name)) == (204, None)
    status, body = ask(broker, "DELETE", path_of(name))
    assert status == 404
    assert full not in ask(broker, "GET", f"{ADMIN}/persistent/public/default")[1]


def test_life_of_a_partitioned_topic(broker: BrokerProcess, client: pulsar.Client, name: str) -> None:
    full, path = f"persistent://public/default/{name}", path_of(name) + "/partitions"
    assert ask(broker, "PUT", path, 0)[0] == 406
    assert ask(broker, "PUT", path, "three")[0] == 400
    assert ask(broker, "PUT", path, 2) == (204, None)
    assert ask(broker, "PUT", path, 2)[0] == 409
    assert full in ask(broker, "GET", f"{ADMIN}/persistent/public/default/partitioned")[1]
    listed = ask(broker, "GET", f"{ADMIN}/persistent/public/default")[1]
    assert {f"{full}-partition-0", f"{full}-partition-1"} <= set(listed) and full not in listed
    assert ask(broker, "POST", path, 4) == (204, None)
    assert ask(broker, "GET", path)[1]["partitions"] == 4
    assert ask(broker, "POST", path, 3)[0] == 422
    client.create_producer(full).send(b"x")
    status, stats = ask(broker, "GET", path_of(name) + "/partitioned-stats")
    assert (status, stats["msgInCounter"], len(stats["partitions"])) == (200, 1, 4)
    assert ask(broker, "GET", path_of(name) + "/partitioned-stats?perPartition=false")[1]["partitions"] == {}
    assert ask(broker, "DELETE", path)[0] == 412
    assert ask(broker, "DELETE", path + "?force=true") == (204, None)


def test_tenants_and_namespaces(broker: BrokerProcess, client: pulsar.Client, name: str) -> None:
    space = f"{ADMIN}/namespaces/{name}/n"
    assert ask(broker, "PUT", space)[0] == 404
    assert ask(broker, "PUT", f"{ADMIN}/tenants/{name}", {"allowedClusters": ["standalone"]}) == (204, None)
    assert ask(broker, "PUT", f"{ADMIN}/tenants/{name}", {"allowedClusters": ["standalone"]})[0] == 409
    assert name in ask(broker, "GET", f"{ADMIN}/tenants")[1]
    assert ask(broker, "PUT", space) == (204, None)
    assert ask(broker, "GET", f"{ADMIN}/namespaces/{name}") == (200, [f"{name}/n"])
    client.create_producer(f"persistent://{name}/n/x").send(b"1")
    assert ask(broker, "DELETE", space)[0] == 409
    assert ask(broker, "DELETE", f"{ADMIN}/persistent/{name}/n/x?force=true")[0] == 204
    assert ask(broker, "DELETE", space) == (204, None)
    assert ask(broker, "PUT", f"{ADMIN}/namespaces/{name}/bad!")[0] == 412


def test_deduplication_switch(broker: BrokerProcess, name: str) -> None:
    ask(broker, "PUT", f"{ADMIN}/tenants/{name}")
    ask(broker, "PUT", f"{ADMIN}/namespaces/{name}/n")
    path = f"{ADMIN}/namespaces/{name}/n/deduplication"
    assert ask(broker, "GET", path) == (200, None)
    assert ask(broker, "POST", path, True) == (204, None)
    assert ask(broker, "GET", path) == (200, True)
    assert ask(broker, "DELETE", path) == (204, None)
    assert ask(broker, "GET", path) == (200, None)


def test_terminate(broker: BrokerProcess, name: str) -> None:
    stock = new_client(broker.service_url)
    producer = stock.create_producer(name)
    last = producer.send(b"x")
    status, body = ask(broker, "POST", path_of(name) + "/terminate")
    assert (status, body["ledgerId"], body["entryId"]) == (200, last.ledger_id(), last.entry_id())
    with pytest.raises(pulsar.PulsarException):
        producer.send(b"y")
    with suppress(pulsar.AlreadyClosed):  # the wheel ends the producer by itself, and may say so here
        stock.close()


def test_health_metrics_and_unknown_paths(broker: BrokerProcess) -> None:
    assert ask(broker, "GET", f"{ADMIN}/brokers/health") == (200, "ok")
    assert ask(broker, "GET", "/status.html") == (200, "OK")
    status, text = ask(broker, "GET", "/metrics")
    assert status == 200
    assert re.search(r"^anabranch_topics_loaded \d+$", text, re.M)
    status, body = ask(broker, "GET", f"{ADMIN}/schemas/public/default/x/schema")
    assert (status, body["reason"]) == (404, "Schema not found")
    status, body = ask(broker, "GET", "/nowhere")
    assert (status, body["error"]) == (404, "unknown-path")
    status, body = ask(broker, "PATCH", f"{ADMIN}/tenants")
    assert (status, body["error"]) == (405, "wrong-method")


def test_lookup(broker: BrokerProcess, name: str) -> None:
    status, found = ask(broker, "GET", f"/lookup/v2/topic/persistent/public/default/{name}")
    assert (status, found["brokerUrl"], found["httpUrl"]) == (200, broker.service_url, broker.http_url)
    assert ask(broker, "GET", f"/lookup/v2/topic/persistent/bad!/default/{name}")[0] == 412
    assert ask(broker, "GET", f"/lookup/v2/topic/other/public/default/{name}")[0] == 404


def test_stats_have_times_of_the_topic_and_of_each_consumer(broker: BrokerProcess, name: str) -> None:
    began = int(time.time() * 1000) - 1
    client = new_client(broker.service_url)
    try:
        consumer = client.subscribe(f"persistent://public/default/{name}", "s")
        producer = client.create_producer(f"persistent://public/default/{name}")
        fresh = ask(broker, "GET", f"{path_of(name)}/stats")[1]["subscriptions"]["s"]["consumers"][0]
        assert (fresh["lastConsumedTimestamp"], fresh["lastAckedTimestamp"]) == (0, 0)
        assert fresh["firstConsumedFlowTimestamp"] == fresh["lastConsumedFlowTimestamp"] >= began
        producer.send(b"x")
        consumer.acknowledge(consumer.receive(10_000))

        def stats() -> Any:
            return ask(broker, "GET", f"{path_of(name)}/stats")[1]

        eventually(lambda: stats()["subscriptions"]["s"]["consumers"][0]["lastAckedTimestamp"] > 0, what="the ack")
        found = stats()
    finally:
        client.close()
    now = int(time.time() * 1000) + 1
    assert began <= found["topicCreationTimeStamp"] <= found["lastPublishTimeStamp"] <= now
    one = found["subscriptions"]["s"]
    (its,) = one["consumers"]
    assert its["firstMessagesSentTimestamp"] == its["lastConsumedTimestamp"] <= its["lastAckedTimestamp"] <= now
    assert its["lastAckedTime"].endswith("Z") and its["lastConsumedTime"].endswith("Z")
    assert one["lastConsumedFlowTimestamp"] == its["lastConsumedFlowTimestamp"] >= began
    assert one["lastAckedTimestamp"] >= began


def test_creation_time_of_a_topic_survives_an_unload(broker: BrokerProcess, name: str) -> None:
    assert ask(broker, "PUT", path_of(name))[0] == 204
    before = ask(broker, "GET", f"{path_of(name)}/stats")[1]["topicCreationTimeStamp"]
    assert before > 0
    assert ask(broker, "PUT", f"{path_of(name)}/unload")[0] == 204
    assert ask(broker, "GET", f"{path_of(name)}/stats")[1]["topicCreationTimeStamp"] == before
