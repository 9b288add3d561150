"""Messages of topics over HTTP: the newest, and pages; order, batches, bounds, rights; no trace is left."""

from __future__ import annotations

import time
import uuid
from typing import Any
from urllib.parse import urlencode

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


def pages(rest: Rest, path: str, **query: object) -> list[list[dict[str, Any]]]:
    """All pages until the end."""
    found, asked = list[list[dict[str, Any]]](), dict(query)
    while True:
        page = rest.expect("GET", f"{path}/page?{urlencode(asked)}")
        found.append(page["messages"])
        if page["isEnd"]:
            return found
        asked = {**{key: query[key] for key in query if key in ("count", "segment")}, "after": page["next"]}


def test_pages_go_through_a_topic_from_its_beginning_and_from_a_time(broker: BrokerProcess, rest: Rest) -> None:
    name = f"m-{uuid.uuid4().hex[:8]}"
    rest.expect("PUT", f"{SCALABLE}/{name}?numInitialSegments=2", {})
    path = f"{BROWSE}/scalable/public/default/{name}/messages"
    sent = [{"payload": f"m{number}", "key": f"k{number % 5}"} for number in range(20)]
    for start in (0, 10):
        results = rest.expect("POST", path, {"messages": sent[start : start + 10]})["results"]
        assert all("messageId" in one for one in results), results
        if not start:
            rest.expect("POST", f"{SCALABLE}/{name}/split/0")
            until = max(one["publishTimeMs"] for one in rest.expect("GET", path)) + 1
            while time.time() * 1000 < until:
                pass
    found = [one for page in pages(rest, path, count=3) for one in page]
    assert sorted(one["payload"] for one in found) == sorted(one["payload"] for one in sent)
    for key in range(5):
        of_key = [one["payload"] for one in found if one["key"] == f"k{key}"]
        assert of_key == [f"m{number}" for number in range(key, 20, 5)], "in the order of their key"
    later = [one["payload"] for page in pages(rest, path, time=until) for one in page]
    assert sorted(later) == sorted(f"m{number}" for number in range(10, 20))
    assert rest.expect("GET", f"{path}/count?time={until}") == {"total": 20, "from": 10}
    assert rest.expect("GET", f"{path}/count?time={10**15}")["from"] == 0
    (one,) = {one["segment"] for one in found if one["payload"] == "m0"}
    first = next(it for it in found if it["segment"] == one)
    of_one = pages(rest, path, segment=one, position=first["id"])
    assert of_one[0][0] == first and {it["segment"] for page in of_one for it in page} == {one}
    end = rest.expect("GET", f"{path}/page?time={10**15}")
    assert end["messages"] == [] and end["isEnd"]
    rest.expect("POST", path, {"messages": [{"payloadBase64": "//4="}]})
    assert [it["payloadBase64"] for it in rest.expect("GET", f"{path}/page?after={end['next']}")["messages"]] == [
        "//4="
    ]
    assert rest.expect("GET", f"{SCALABLE}/{name}/stats")["subscriptions"] == {}


def test_pages_of_batches_and_partitions(rest: Rest, client: pulsar.Client) -> None:
    name = f"m-{uuid.uuid4().hex[:8]}"
    publish_batch(client, f"persistent://public/default/{name}", [b"a", b"b", b"c"])
    path = f"{BROWSE}/persistent/public/default/{name}/messages"
    assert [[one["payload"] for one in page] for page in pages(rest, path, count=2)] == [["a", "b"], ["c"]]
    assert rest.expect("GET", f"{path}/count") == {"total": 3, "from": 3}
    second = rest.expect("GET", path)[1]["id"]
    page = rest.expect("GET", f"{path}/page?position={second}")
    assert [one["payload"] for one in page["messages"]] == ["b", "c"]
    rest.expect("PUT", f"/admin/v2/persistent/public/default/{name}-p/partitions", 3)
    producer = client.create_producer(f"persistent://public/default/{name}-p", batching_enabled=False)
    for number in range(9):
        producer.send(str(number).encode(), partition_key=str(number))
    found = pages(rest, f"{BROWSE}/persistent/public/default/{name}-p/messages", count=4)
    assert sorted(one["payload"] for some in found for one in some) == [str(number) for number in range(9)]
    for query in ("time=-1", "time=x", "time=1&position=1:0", "position=1", "position=x", "after=1", "count=0"):
        assert rest.call("GET", f"{path}/page?{query}")[0] == 400, query
    assert rest.call("GET", f"{path}-p/page?position=1:0")[0] == 404
    assert rest.call("GET", f"{BROWSE}/persistent/public/default/{name}-p/messages/page?position=1:0")[0] == 400


def test_messages_posted_to_a_scalable_topic_reach_consumers_in_order(broker: BrokerProcess, rest: Rest) -> None:
    name = f"m-{uuid.uuid4().hex[:8]}"
    rest.expect("PUT", f"{SCALABLE}/{name}?numInitialSegments=4", {})
    path, full = f"{BROWSE}/scalable/public/default/{name}/messages", f"topic://public/default/{name}"
    with (
        anabranch.blocking.connect(broker.service_url) as client,
        client.stream_consumer(full, subscription="s", start="earliest") as consumer,
        client.producer(full) as producer,
    ):
        producer.send(b"first", key="k1")
        messages = [{"payload": f"m{n}", "key": "k1", "properties": {"n": str(n)}} for n in range(5)]
        results = rest.expect("POST", path, {"messages": messages})["results"]
        assert len({one["segment"] for one in results}) == 1
        producer.send(b"last", key="k1")
        got = [consumer.receive(timeout=20) for _ in range(7)]
    assert [one and one.data for one in got] == [b"first", *(f"m{n}".encode() for n in range(5)), b"last"]
    assert got[3] is not None and dict(got[3].properties) == {"n": "2"}
    bad: list[Any] = [None, {}, {"messages": []}]
    bad += [{"messages": [{"payloadBase64": one}]} for one in ("*", 1, None)]
    for wrong in bad:
        assert rest.call("POST", path, wrong)[0] == 400, wrong
    missing = path.replace(name, f"{name}-none")
    assert rest.call("POST", missing, {"messages": [{"payload": "x"}]})[0] == 404
