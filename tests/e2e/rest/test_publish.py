"""Messages posted over HTTP reach stock consumers, durably and in order; what cannot be published is said."""

from __future__ import annotations

import json
from typing import Any

import pulsar

from tests.support.processes.broker_process import BrokerProcess
from tests.support.traffic.stock_calls import EARLIEST, Rest, receive_all
from tests.support.traffic.stock_client import new_client


def path(topic: str) -> str:
    return "/topics/" + topic.replace("://", "/")


def test_posted_messages_are_received(broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    rest = Rest(broker.http_url)
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    messages = [{"payload": f"hello {n}", "key": f"k{n}", "properties": {"n": str(n)}} for n in range(5)]
    answer = rest.expect("POST", path(topic), {"producerName": "web", "messages": messages})
    assert [one["errorCode"] for one in answer["messagePublishResults"]] == [0] * 5
    got = receive_all(consumer, 5)
    assert [one.data() for one in got] == [f"hello {n}".encode() for n in range(5)]
    assert got[3].partition_key() == "k3" and got[3].properties() == {"n": "3"} and got[3].producer_name() == "web"
    first = answer["messagePublishResults"][0]["messageId"].split(":")
    assert [int(one) for one in first[:2]] == [got[0].message_id().ledger_id(), got[0].message_id().entry_id()]


def test_with_a_schema(broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    rest = Rest(broker.http_url)
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST, schema=pulsar.schema.StringSchema())
    body = {"valueSchema": json.dumps({"type": "STRING"}), "messages": [{"payload": "é"}]}
    assert rest.expect("POST", path(topic), body)["schemaVersion"] >= 0
    assert receive_all(consumer, 1)[0].value() == "é"
    avro = {"type": "AVRO", "schema": '{"type":"record","name":"R","fields":[]}'}
    status, answer = rest.call("POST", path(topic), {"valueSchema": avro, "messages": [{"payload": "{}"}]})
    assert status == 400 and "AVRO" in answer["reason"]


def test_invalid_messages_are_refused(broker: BrokerProcess, topic: str) -> None:
    rest = Rest(broker.http_url)
    good = {"messages": [{"payload": "x"}]}
    assert rest.call("POST", path(topic), good)[0] == 404  # and is not created
    rest.expect("PUT", f"/admin/v2/{topic.replace('://', '/')}")
    wrongs: list[Any] = [None, [], {}, {"messages": []}, {"messages": ["x"]}, {"messages": [{"key": 1}]}]
    for wrong in wrongs:
        assert rest.call("POST", path(topic), wrong)[0] == 400, wrong
    assert rest.call("POST", path(topic), {"messages": [{"payload": "x", "properties": {"a": 1}}]})[0] == 400
    assert rest.call("POST", path(topic), {"messages": [{"payload": "x", "eventTime": -5}]})[0] == 400
    rest.create_partitioned(f"{topic}-parts", 2)
    assert rest.call("POST", path(f"{topic}-parts"), good)[0] == 405
    rest.expect("POST", path(f"{topic}-parts-partition-1"), good)
    rest.expect("POST", f"/admin/v2/{topic.replace('://', '/')}/terminate")
    assert rest.call("POST", path(topic), good)[0] == 412


def test_posted_messages_survive_kill_9(private_broker: BrokerProcess) -> None:
    rest, topic = Rest(private_broker.http_url), "persistent://public/default/posted"
    rest.expect("PUT", "/admin/v2/persistent/public/default/posted")
    rest.expect("PUT", "/admin/v2/persistent/public/default/posted/subscription/s", "earliest")
    rest.expect("POST", path(topic), {"messages": [{"payload": "kept"}]})
    private_broker.kill9()
    private_broker.start()
    client = new_client(private_broker.service_url)
    assert receive_all(client.subscribe(topic, "s"), 1)[0].data() == b"kept"
    client.close()
