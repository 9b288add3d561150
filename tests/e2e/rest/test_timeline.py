"""The timeline of a scalable topic over HTTP: geometry, ticks, and both as a stream that follows splits and merges."""

from __future__ import annotations

import http.client
import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import anabranch.blocking
from tests.e2e.conftest import StartBroker
from tests.support.processes.broker_process import BrokerProcess
from tests.support.traffic.stock_calls import Rest

SCALABLE = "/admin/v2/scalable/public/default"
TIMELINE = "/anabranch/v1/scalable/public/default"


class Events:
    """A stream as a viewer reads it; each read has a deadline."""

    def __init__(self, answer: http.client.HTTPResponse) -> None:
        self._answer = answer

    def next(self) -> tuple[str, Any]:
        lines: list[str] = []
        while True:
            line = self._answer.readline().decode()
            assert line, "the stream has ended"
            if line == "\n" and lines and lines != [":"]:
                fields = dict(one.split(": ", 1) for one in lines if ": " in one)
                return fields["event"], json.loads(fields["data"])
            lines = [] if line == "\n" else [*lines, line.strip()]

    def until(self, kind: str) -> Any:
        while True:
            name, data = self.next()
            if name == kind:
                return data


@contextmanager
def events(broker: BrokerProcess, path: str) -> Iterator[Events]:
    line = http.client.HTTPConnection("127.0.0.1", broker.http_port, timeout=20)
    line.request("GET", path)
    answer = line.getresponse()
    assert answer.status == 200 and answer.getheader("Content-Type", "").startswith("text/event-stream")
    try:
        yield Events(answer)
    finally:
        line.close()


def by_id(layout: Any) -> dict[int, dict[str, Any]]:
    return {row[0]: dict(zip(layout["columns"], row, strict=True)) for row in layout["rows"]}


@pytest.fixture
def name(broker: BrokerProcess) -> str:
    name = f"t-{uuid.uuid4().hex[:10]}"
    Rest(broker.http_url).expect("PUT", f"{SCALABLE}/{name}?numInitialSegments=2", {})
    return name


def test_geometry_and_its_changes(broker: BrokerProcess, name: str) -> None:
    rest = Rest(broker.http_url)
    first = rest.expect("GET", f"{TIMELINE}/{name}/timeline")
    assert (first["epoch"], first["count"]) == (0, 2)
    rest.expect("POST", f"{SCALABLE}/{name}/split/0")
    changed = rest.expect("GET", f"{TIMELINE}/{name}/timeline?since={first['epoch']}")
    rows = by_id(changed)
    assert sorted(rows) == [0, 2, 3] and changed["count"] == 4
    assert rows[0]["sealedEpoch"] == rows[2]["createdEpoch"] == rows[3]["createdEpoch"] == 1
    assert rows[2]["parents"] == rows[3]["parents"] == [0]
    assert rows[0]["sealedAtMs"] >= rows[0]["createdAtMs"] > 0
    assert (rows[2]["start"], rows[2]["end"], rows[3]["start"], rows[3]["end"]) == (0, 0x3FFF, 0x4000, 0x7FFF)
    assert len(rest.expect("GET", f"{TIMELINE}/{name}/timeline")["rows"]) == 4


def test_tick_has_figures_and_subscriptions(broker: BrokerProcess, name: str) -> None:
    rest = Rest(broker.http_url)
    rest.expect("PUT", f"{SCALABLE}/{name}/subscriptions/audit")
    with (
        anabranch.blocking.connect(broker.service_url) as client,
        client.producer(f"topic://public/default/{name}") as p,
    ):
        for number in range(20):
            p.send(b"x", key=f"k{number}")
    tick = rest.expect("GET", f"{TIMELINE}/{name}/tick")
    assert sum(one["messages"] for one in tick["segments"].values()) == 20
    audit = tick["subscriptions"]["audit"]
    assert (audit["type"], audit["msgBacklog"], audit["consumerCount"]) == ("STREAM", 20, 0)
    assert {one["backlog"] for one in audit["segments"].values()} <= set(range(21))


def test_unknown_topic_is_a_plain_refusal(broker: BrokerProcess) -> None:
    for call in ("timeline", "tick", "events"):
        assert Rest(broker.http_url).call("GET", f"{TIMELINE}/nowhere-{uuid.uuid4().hex}/{call}")[0] == 404


def test_events_follow_splits_merges_and_deletion(broker: BrokerProcess, name: str) -> None:
    rest = Rest(broker.http_url)
    with events(broker, f"{TIMELINE}/{name}/events") as stream, events(broker, f"{TIMELINE}/{name}/events") as second:
        assert sorted(by_id(stream.until("layout"))) == [0, 1]
        assert stream.until("tick")["epoch"] == 0
        second.until("tick")
        rest.expect("POST", f"{SCALABLE}/{name}/split/1")
        for viewer in (stream, second):
            assert sorted(by_id(viewer.until("layout"))) == [1, 2, 3]
            assert viewer.until("tick")["epoch"] == 1
        rest.expect("POST", f"{SCALABLE}/{name}/merge/2/3")
        assert by_id(stream.until("layout"))[4]["parents"] == [2, 3]
        rest.expect("DELETE", f"{SCALABLE}/{name}?force=true")
        assert stream.until("bye")["error"] == "topic-not-found"


def test_broker_with_viewers_stops_at_once(start_broker: StartBroker) -> None:
    broker = start_broker()
    Rest(broker.http_url).expect("PUT", f"{SCALABLE}/stops", {})
    with events(broker, f"{TIMELINE}/stops/events") as stream:
        stream.until("tick")
        broker.stop(within_s=20)
        assert stream.until("bye")["error"] == "stopping"
