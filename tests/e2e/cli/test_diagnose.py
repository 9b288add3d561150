"""`anabranch doctor`, `explain`, `top`, `wait` and `tail` against a real broker."""

from __future__ import annotations

import json
import shlex
import threading
import uuid
from collections.abc import Callable, Iterator

import pytest

import anabranch.admin
import anabranch.blocking
from anabranch.cli.main import main
from anabranch.testing import Broker

Run = Callable[..., str]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture
def run(broker: Broker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("ANABRANCH_ADMIN_URL", broker.http_url)
    monkeypatch.setenv("ANABRANCH_SERVICE_URL", broker.service_url)

    def act(*arguments: str, exits: int = 0) -> str:
        capsys.readouterr()
        code = main(arguments)
        out, err = capsys.readouterr()
        assert code == exits, f"{arguments}: exit code {code}\n{out}{err}"
        return out + err

    return act


@pytest.fixture
def topic(broker: Broker) -> str:
    """A scalable topic with two segments and ten messages."""
    name = f"topic://public/default/d-{uuid.uuid4().hex[:8]}"
    with anabranch.admin.blocking.connect(broker.http_url) as admin:
        admin.scalable_topics.create(name, segments=2)
    with anabranch.blocking.connect(broker.service_url) as client, client.producer(name) as producer:
        for number in range(10):
            producer.send(f"m{number}".encode(), key=f"k{number % 2}")
    return name


def test_doctor_names_a_subscription_without_readers(run: Run, topic: str) -> None:
    run("admin", "scalable-topics", "create-subscription", topic, "-s", "audit")
    said = run("doctor", exits=1)
    assert "1 brokers" in said and f"{topic}: 10 messages wait for subscription audit" in said
    found = json.loads(run("doctor", "--json", exits=1))
    assert found["severity"] == "warning"
    run("admin", "scalable-topics", "delete-subscription", topic, "-s", "audit", "--force")
    said = run("doctor", exits=1)
    assert topic not in said and "storage.sync = none" in said, "what is left is how tests run their broker"
    assert "further topics were not read" in run("doctor", "--topics", "0", exits=1)
    run("doctor", "--admin-url", "http://127.0.0.1:1", exits=1)


def test_explain(run: Run) -> None:
    said = run("explain", "foreign-host")
    assert "HTTP 403" in said and "not a name of this broker" in said
    assert json.loads(run("explain", "overloaded", "--json"))["retryable"] is True
    assert "did you mean foreign-host" in run("explain", "foreign-hots", exits=1)


def test_top(run: Run, topic: str) -> None:
    assert topic in run("top", "--looks", "1", "--sort", "stored", "--count", "100")
    rows = [json.loads(line) for line in run("top", "--looks", "2", "--every", "0.1", "--json").splitlines()]
    assert len(rows) == 2 and any(one["topic"] == topic and one["stored"] == 10 for one in rows[0])


def test_wait(run: Run, topic: str) -> None:
    run("wait", topic, "--active", "2", "--no-operation", "--timeout", "20s")
    assert "2 segments are active, not 3" in run("wait", topic, "--active", "3", "--timeout", "1s", exits=1)
    assert "no subscription nobody" in run("wait", topic, "--drained", "nobody", "--timeout", "0s", exits=1)
    run("wait", topic, exits=2)
    run("admin", "scalable-topics", "create-subscription", topic, "-s", "audit")
    assert "10 messages wait for audit" in run("wait", topic, "--drained", "audit", "--timeout", "0s", exits=1)
    reader = threading.Thread(target=main, args=(["consume", topic, "-s", "audit", "-n", "10", "--timeout", "20s"],))
    reader.start()
    try:
        run("wait", topic, "--drained", "audit", "--timeout", "60s")
    finally:
        reader.join(60)


def test_tail_leaves_no_trace(run: Run, topic: str, broker: Broker) -> None:
    everything = run("tail", topic, "--all", "--no-follow")
    assert len(everything.splitlines()) == 10
    assert run("tail", topic, "--all", "--no-follow", "--key", "k1", "--format", "%k %v%%").splitlines() == [
        f"k1 m{number}%" for number in (1, 3, 5, 7, 9)
    ]
    assert len(run("tail", topic, "--since", "1h", "--no-follow", "--contains", "m4").splitlines()) == 1
    assert len(run("tail", topic, "--all", "-n", "3").splitlines()) == 3
    objects = [json.loads(line) for line in run("tail", topic, "--all", "--no-follow", "--json").splitlines()]
    by_segment = {one["segment"] for one in objects}
    shown = [len(run("tail", topic, "--all", "--no-follow", "--segment", str(one)).splitlines()) for one in by_segment]
    assert sum(shown) == 10
    with anabranch.admin.blocking.connect(broker.http_url) as admin:
        assert admin.scalable_topics.stats(topic)["subscriptions"] == {}


def test_listing_is_watched_until_it_has_changed(run: Run, broker: Broker, topic: str) -> None:
    name = f"late-{uuid.uuid4().hex[:8]}"
    maker = threading.Timer(0.5, run_create, (broker.http_url, name))
    maker.start()
    said = run("admin", "topics", "list", "public/default", "--watch", "--every", "0.1", "--looks", "12")
    maker.join()
    assert said.count(f"persistent://public/default/{name}\n") == 1, "printed once, when it came"
    ticks = run("admin", "scalable-topics", "list", "public/default", "-w", "--looks", "1", "--json").splitlines()
    assert [topic in json.loads(line) for line in ticks] == [True]


def run_create(http_url: str, name: str) -> None:
    with anabranch.admin.blocking.connect(http_url) as admin:
        admin.topics.create(f"persistent://public/default/{name}")


def test_names_are_completed_from_the_broker(
    run: Run, topic: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    short = topic.rpartition("/")[2]
    run("admin", "scalable-topics", "create-subscription", topic, "-s", "audit")
    hostile = f"topic://public/default/{short}-\u202e"
    run("admin", "scalable-topics", "create", hostile)

    def completed(*words: str) -> list[str]:
        monkeypatch.setenv("_ANABRANCH_COMPLETE", "zsh_complete")
        monkeypatch.setenv("COMP_WORDS", shlex.join(["anabranch", *words]))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        capsys.readouterr()
        with pytest.raises(SystemExit):
            main([])
        monkeypatch.delenv("_ANABRANCH_COMPLETE")
        return capsys.readouterr().out.splitlines()[1::3]

    assert completed("watch", short) == [short], "and not the name with a bidi character"
    assert completed("tail", f"topic://public/default/{short}") == [topic]
    assert completed("admin", "scalable-topics", "stats", "topic://public/") == ["topic://public/default/"]
    assert completed("admin", "scalable-topics", "get-subscription", topic, "--subscription", "a") == ["audit"]
    assert completed("admin", "namespaces", "policies", "public/d") == ["public/default"]
    assert completed("admin", "tenants", "get", "pub") == ["public"]
    assert "standalone" in completed("admin", "clusters", "get", "s")
    run("admin", "scalable-topics", "delete", hostile, "--force")
