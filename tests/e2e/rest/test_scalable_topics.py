"""/admin/v2/scalable against a real broker: every route, what it refuses and how, and `anabranch watch`."""

from __future__ import annotations

import contextlib
import io
import json
import urllib.request
import uuid
from collections.abc import Callable
from typing import Any

import pulsar
import pytest

import anabranch.blocking
from anabranch.cli.main import main
from tests.e2e.conftest import StartBroker
from tests.support.processes.broker_process import BrokerProcess
from tests.support.traffic.stock_calls import Rest

BASE = "/admin/v2/scalable/public/default"


@pytest.fixture
def rest(broker: BrokerProcess) -> Rest:
    return Rest(broker.http_url)


@pytest.fixture
def name() -> str:
    return f"s-{uuid.uuid4().hex[:10]}"


@pytest.fixture
def of(rest: Rest, name: str) -> Callable[[str], str]:
    """Path of a call about a topic with four segments."""
    rest.expect("PUT", f"{BASE}/{name}?numInitialSegments=4", {"owner": "me"})

    def path(call: str) -> str:
        return f"{BASE}/{name}{call}"

    return path


def refused(answer: tuple[int, Any], status: int, code: str) -> str:
    assert (answer[0], answer[1]["error"]) == (status, code), answer
    assert set(answer[1]) == {"reason", "error"}
    return str(answer[1]["reason"])


def active(rest: Rest, path: str) -> list[int]:
    return [int(key) for key, one in rest.expect("GET", path)["segments"].items() if one["state"] == "ACTIVE"]


class TestTopics:
    def test_record_has_pulsar_fields(self, rest: Rest, of: Callable[[str], str]) -> None:
        found = rest.expect("GET", of(""))
        assert (found["epoch"], found["nextSegmentId"], found["properties"]) == (0, 4, {"owner": "me"})
        first = found["segments"]["0"]
        assert first["hashRange"] == {"start": 0, "end": 16383}
        assert (first["state"], first["sealedAtEpoch"], first["sealedAtMs"]) == ("ACTIVE", -1, -1)
        derived = {name: first[name] for name in ("active", "sealed", "root", "leaf", "legacy")}
        assert derived == {"active": True, "sealed": False, "root": True, "leaf": True, "legacy": False}

    def test_listing_with_filters(self, rest: Rest, of: Callable[[str], str], name: str) -> None:
        full = f"topic://public/default/{name}"
        assert full in rest.expect("GET", BASE)
        assert full in rest.expect("GET", f"{BASE}?property=owner%3Dme")
        assert full not in rest.expect("GET", f"{BASE}?property=owner%3Dme&property=a%3Db")
        refused(rest.call("GET", f"{BASE}?property=owner"), 412, "bad-filter")
        refused(rest.call("GET", "/admin/v2/scalable/public/nowhere"), 404, "namespace-not-found")

    def test_creating_twice_or_with_invalid_arguments(self, rest: Rest, of: Callable[[str], str]) -> None:
        refused(rest.call("PUT", of("")), 409, "topic-exists")
        refused(rest.call("PUT", of("-x?numInitialSegments=0")), 412, "bad-segment-count")
        refused(rest.call("PUT", of("-x?numInitialSegments=many")), 400, "bad-request")
        refused(rest.call("PUT", of("-x"), [1]), 400, "bad-request")
        refused(rest.call("PUT", of("-x?numInitialSegments=1000")), 412, "too-many-segments")

    def test_deleted_topic_can_be_created_again(self, rest: Rest, of: Callable[[str], str], name: str) -> None:
        before = rest.expect("GET", of("/stats"))["incarnation"]
        rest.expect("POST", of("/split/0"))
        rest.expect("DELETE", of(""))
        assert f"topic://public/default/{name}" not in rest.expect("GET", BASE)
        refused(rest.call("GET", of("")), 404, "topic-not-found")
        refused(rest.call("GET", of("/stats")), 404, "topic-not-found")
        refused(rest.call("DELETE", of("")), 404, "topic-not-found")
        rest.expect("PUT", of(""))
        again = rest.expect("GET", of("/stats"))
        assert (again["epoch"], again["totalSegments"]) == (0, 1)
        assert again["incarnation"] != before

    def test_regular_and_scalable_topic_exclude_each_other(
        self, rest: Rest, of: Callable[[str], str], name: str, client: pulsar.Client
    ) -> None:
        assert rest.call("PUT", f"/admin/v2/persistent/public/default/{name}")[0] == 409
        assert rest.call("PUT", f"/admin/v2/persistent/public/default/{name}/partitions", 2)[0] == 409
        with pytest.raises(pulsar.TopicNotFound):
            client.create_producer(f"persistent://public/default/{name}")
        rest.expect("PUT", f"/admin/v2/persistent/public/default/{name}-plain")
        assert rest.call("PUT", f"{BASE}/{name}-plain")[0] == 409
        rest.expect("PUT", f"/admin/v2/persistent/public/default/{name}-parts/partitions", 2)
        assert rest.call("PUT", f"{BASE}/{name}-parts")[0] == 409
        listed = rest.expect("GET", "/admin/v2/persistent/public/default")
        assert not [topic for topic in listed if topic.startswith(f"persistent://public/default/{name}/")]
        assert f"persistent://public/default/{name}" not in listed


class TestOperations:
    def test_split_and_merge(self, rest: Rest, of: Callable[[str], str]) -> None:
        assert rest.call("POST", of("/split/0")) == (204, None)
        assert rest.call("POST", of("/split/1?into=3")) == (204, None)
        assert rest.call("POST", of("/split/2?at=9000,a000")) == (204, None)
        assert rest.call("POST", of("/merge/4/5")) == (204, None)
        assert rest.call("POST", of("/merge?segments=8,7,6")) == (204, None)
        found = rest.expect("GET", of(""))
        assert (found["epoch"], found["nextSegmentId"]) == (5, 14)
        assert sorted(active(rest, of(""))) == [3, 9, 10, 11, 12, 13]
        assert found["segments"]["13"]["parentIds"] == [6, 7, 8]
        assert found["segments"]["10"]["hashRange"] == {"start": 0x9000, "end": 0x9FFF}

    def test_invalid_splits_and_merges_are_refused(self, rest: Rest, of: Callable[[str], str]) -> None:
        rest.expect("POST", of("/split/0"))
        refused(rest.call("POST", of("/split/0")), 409, "segment-not-active")
        refused(rest.call("POST", of("/split/99")), 404, "unknown-segment")
        refused(rest.call("POST", of("/split/x")), 400, "bad-request")
        refused(rest.call("POST", of("/split/1?into=1")), 400, "bad-request")
        refused(rest.call("POST", of("/split/1?into=4&at=5000")), 400, "bad-request")
        refused(rest.call("POST", of("/split/1?at=0001")), 422, "bad-split")
        refused(rest.call("POST", of("/split/1?into=1000")), 412, "too-many-segments")
        refused(rest.call("POST", of("/merge/1/3")), 422, "bad-merge")
        refused(rest.call("POST", of("/merge/1/1")), 422, "bad-merge")
        refused(rest.call("POST", of("/merge/0/1")), 409, "segment-not-active")
        refused(rest.call("POST", of("/merge?segments=1")), 422, "bad-merge")
        refused(rest.call("POST", of("-none/split/0")), 404, "topic-not-found")
        assert rest.expect("GET", of(""))["epoch"] == 1

    def test_operation_with_same_id_runs_once(self, rest: Rest, of: Callable[[str], str]) -> None:
        for _ in range(2):
            assert rest.call("POST", of("/split/0?operationId=mine"))[0] == 204
        assert rest.expect("GET", of(""))["epoch"] == 1
        refused(rest.call("POST", of(f"/split/1?operationId={'x' * 201}")), 400, "bad-request")

    def test_stats(self, rest: Rest, of: Callable[[str], str], name: str, broker: BrokerProcess) -> None:
        rest.expect("POST", of("/split/0"))
        found = rest.expect("GET", of("/stats"))
        assert (found["totalSegments"], found["activeSegments"], found["sealedSegments"]) == (6, 5, 1)
        assert found["segments"]["0"]["name"] == f"segment://public/default/{name}/0000-3fff-0"
        assert found["segments"]["4"]["broker"] == broker.service_url
        assert (found["operation"], found["lastOperation"]["kind"]) == (None, "SPLIT")
        rest.expect("PUT", of("/subscriptions/all"))
        with (
            anabranch.blocking.connect(broker.service_url) as client,
            client.producer(f"topic://public/default/{name}") as out,
        ):
            for number in range(20):
                out.send(b"x", key=f"key-{number}")
        found = rest.expect("GET", of("/stats"))
        assert found["subscriptions"]["all"]["msgBacklog"] == 20
        assert sum(one["backlog"].get("all", 0) for one in found["segments"].values()) == 20


class TestSubscriptions:
    def test_life(self, rest: Rest, of: Callable[[str], str]) -> None:
        one = of("/subscriptions/audit%2F%C3%BC")
        assert rest.call("PUT", f"{one}?type=STREAM")[0] == 204
        assert rest.call("PUT", f"{one}?type=stream")[0] == 204
        refused(rest.call("PUT", f"{one}?type=QUEUE"), 409, "subscription-of-other-type")
        refused(rest.call("PUT", f"{one}?type=OTHER"), 400, "bad-request")
        assert rest.expect("GET", one)["type"] == "STREAM"
        assert "audit/ü" in rest.expect("GET", of("/stats"))["subscriptions"]
        assert rest.call("POST", f"{one}/seek?timestamp=1000")[0] == 204
        assert rest.call("POST", f"{one}/skip-all")[0] == 204
        refused(rest.call("POST", f"{one}/seek"), 400, "bad-request")
        assert rest.call("DELETE", one)[0] == 204
        for method, call in (("GET", ""), ("POST", "/skip-all"), ("POST", "/seek?timestamp=1"), ("DELETE", "")):
            refused(rest.call(method, f"{one}{call}"), 404, "subscription-not-found")

    def test_backlog_of_a_segment(self, rest: Rest, of: Callable[[str], str], name: str) -> None:
        rest.expect("PUT", of("/subscriptions/jobs?type=QUEUE"))
        segment = f"/admin/v2/segments/public/default/{name}/0000-3fff-0"
        assert rest.call("GET", f"{segment}/subscription/jobs/backlog") == (200, 0)
        assert rest.call("GET", f"{segment}/subscription/none/backlog")[0] == 404

    def test_changes_of_an_active_segment_are_left_to_its_controller(
        self, rest: Rest, of: Callable[[str], str], name: str
    ) -> None:
        segment = f"/admin/v2/segments/public/default/{name}/0000-3fff-0"
        assert rest.call("PUT", segment) == (204, None)
        refused(rest.call("POST", f"{segment}/terminate"), 409, "segment-of-controller")
        refused(rest.call("DELETE", segment), 409, "segment-of-controller")
        assert rest.expect("GET", of(""))["segments"]["0"]["state"] == "ACTIVE"

    def test_segment_with_subscriptions_is_there(self, rest: Rest, of: Callable[[str], str], name: str) -> None:
        segment = f"/admin/v2/segments/public/default/{name}/0000-3fff-0"
        rest.expect("PUT", of("/subscriptions/jobs?type=QUEUE"))
        assert rest.call("PUT", segment, ["jobs"])[0] == 204
        refused(rest.call("PUT", segment, ["jobs", "none"]), 404, "subscription-not-found")
        refused(rest.call("PUT", segment, "jobs"), 400, "bad-request")

    def test_sealed_segment_is_terminated_already(self, rest: Rest, of: Callable[[str], str], name: str) -> None:
        rest.expect("POST", of("/split/0"))
        segment = f"/admin/v2/segments/public/default/{name}/0000-3fff-0"
        assert rest.call("POST", f"{segment}/terminate")[0] == 204
        refused(rest.call("DELETE", segment), 409, "segment-of-controller")

    def test_segments_that_no_record_names(self, rest: Rest, of: Callable[[str], str], name: str) -> None:
        for place in (f"{name}/0000-3fff-7", f"{name}/0000-1fff-0"):
            segment = f"/admin/v2/segments/public/default/{place}"
            refused(rest.call("PUT", segment), 409, "segment-of-controller")
            refused(rest.call("POST", f"{segment}/terminate"), 404, "segment-missing")
            assert rest.call("DELETE", segment)[0] == 204
        missing = "/admin/v2/segments/public/default/no-such-topic/0000-ffff-0"
        assert (rest.call("PUT", missing)[0], rest.call("DELETE", missing)[0]) == (404, 204)


def test_segment_that_no_record_names_any_more_is_deleted(start_broker: StartBroker) -> None:
    """An operator deleted the record of a topic; what is left of its segments goes. Those of other topics stay."""
    process = start_broker()
    own = Rest(process.http_url)
    for topic in ("lost", "kept"):
        own.expect("PUT", f"/admin/v2/scalable/public/default/{topic}?numInitialSegments=2")
    store = f"sqlite:///{process.data / 'metadata'}"
    process.stop()
    assert main(["metadata", "rm", store, "/topics/public/default/lost", "-r", "--yes"]) == 0
    process.start()
    segments = ("0000-7fff-0", "8000-ffff-1")
    lost, kept = (
        [f"/admin/v2/segments/public/default/{topic}/{segment}" for segment in segments] for topic in ("lost", "kept")
    )
    assert all(left_of(store, "lost", segment) for segment in segments)
    for one in lost:
        assert own.call("DELETE", one) == (204, None)
        assert own.call("DELETE", one) == (204, None), "nothing is left to do"
    for one in kept:
        refused(own.call("DELETE", one), 409, "segment-of-controller")
    assert not any(left_of(store, "lost", segment) for segment in segments)
    own.expect("PUT", "/admin/v2/scalable/public/default/lost?numInitialSegments=2")  # the name can be used again
    assert len(own.expect("GET", "/admin/v2/scalable/public/default/lost")["segments"]) == 2
    for one in lost:
        refused(own.call("DELETE", one), 409, "segment-of-controller")


def left_of(store: str, topic: str, segment: str) -> bool:
    """Whether the store has a record of the segment that is no tombstone."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = main(["metadata", "get", store, f"/managed/public/default/segment/{topic}/{segment}"])
    return code == 0 and '"grave"' not in out.getvalue()


def test_metrics(rest: Rest, of: Callable[[str], str], name: str, broker: BrokerProcess) -> None:
    rest.expect("PUT", of("/subscriptions/audit"))
    rest.expect("POST", of("/split/0"))
    with urllib.request.urlopen(f"{broker.http_url}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    mine = {line.split("{")[0]: float(line.rsplit(" ", 1)[1]) for line in lines if f'default/{name}"' in line}
    assert mine["anabranch_scalable_active_segments"] == 5
    assert mine["anabranch_scalable_sealed_segments"] == 1
    assert mine["anabranch_scalable_epoch"] == 1
    totals = {line.split("{")[0]: float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("anabranch_scal")}
    assert totals["anabranch_scalable_splits_total"] >= 1
    assert totals["anabranch_scalable_segments_sealed_total"] >= 1
    assert f'topic="segment://public/default/{name}/0000-1fff-4"' in "\n".join(lines)


class TestWatch:
    def test_changes_are_printed_as_lines(
        self, rest: Rest, of: Callable[[str], str], name: str, broker: BrokerProcess, capsys: pytest.CaptureFixture[str]
    ) -> None:
        words = ["watch", name, "--admin-url", broker.http_url, "--every", "0.1"]
        assert main([*words, "--looks", "1"]) == 0
        assert capsys.readouterr().out.startswith("epoch 0, 4 active and 0 sealed segments\n├──")
        assert main([*words, "--looks", "2", "--json"]) == 0
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [line["activeSegments"] for line in lines] == [4, 4]

    def test_missing_topic_is_not_found(self, broker: BrokerProcess, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["watch", "no-such", "--admin-url", broker.http_url]) == 1
        assert "no-such" in capsys.readouterr().err
