"""Every REST route and command of auto-scaling, asked at each of three brokers: at the leader and at others."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.support.processes.broker_process import BrokerProcess
from tests.support.processes.cluster import RestRefused, rest
from tests.support.processes.scalable_cluster import NAMESPACE, Brokers, configured_brokers, new_topic

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("autoscale-rest")]

NAMESPACE_POLICY = f"/admin/v2/namespaces/{NAMESPACE}/scalableTopicAutoScalePolicy"


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    with configured_brokers(tmp_path_factory.mktemp("rest"), "sqlite", (), size=3) as found:
        yield found


@pytest.fixture(params=["leader", "second", "third"])
def broker(request: pytest.FixtureRequest, brokers: Brokers, topic: str) -> BrokerProcess:
    leader = brokers.leader_of(topic)
    others = [one for one in brokers.processes.brokers.values() if one is not leader]
    return {"leader": leader, "second": others[0], "third": others[1]}[request.param]


@pytest.fixture
def topic(brokers: Brokers) -> str:
    return new_topic(brokers, 2)


def path(topic: str, rest_of_it: str) -> str:
    return f"/admin/v2/scalable/{NAMESPACE}/{topic}/{rest_of_it}"


def command(broker: BrokerProcess, *words: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "anabranch", "admin", *words, "--admin-url", broker.http_url]
    return subprocess.run(line, capture_output=True, text=True, timeout=60)


def test_policy_of_a_topic_is_set_shown_and_removed(broker: BrokerProcess, topic: str) -> None:
    policy = path(topic, "autoScalePolicy")
    assert rest(broker, "GET", policy) is None
    assert rest(broker, "POST", policy, {"maxSegments": 16, "splitFactorMax": 4}) is None
    assert rest(broker, "GET", policy) == {"maxSegments": 16, "splitFactorMax": 4}
    applied = rest(broker, "GET", f"{policy}?applied=true")
    assert (applied["maxSegments"], applied["splitFactorMax"], applied["minSegments"]) == (16, 4, 1)
    assert rest(broker, "DELETE", policy) is None
    assert rest(broker, "GET", policy) is None


def test_policy_that_contradicts_itself_is_refused(broker: BrokerProcess, topic: str) -> None:
    for at in (path(topic, "autoScalePolicy"), path(topic, "autoscale/try"), NAMESPACE_POLICY):
        with pytest.raises(RestRefused) as refused:
            rest(broker, "POST", at, {"minSegments": 9, "maxSegments": 3})
        assert refused.value.status == 412


def test_policy_of_the_namespace_is_set_shown_and_removed(broker: BrokerProcess, topic: str) -> None:
    assert rest(broker, "POST", NAMESPACE_POLICY, {"minSegments": 2}) is None
    try:
        assert rest(broker, "GET", NAMESPACE_POLICY) == {"minSegments": 2}
        assert rest(broker, "GET", f"{NAMESPACE_POLICY}?applied=true")["minSegments"] == 2
        assert rest(broker, "GET", path(topic, "autoScalePolicy?applied=true"))["minSegments"] == 2
    finally:
        assert rest(broker, "DELETE", NAMESPACE_POLICY) is None
    assert rest(broker, "GET", NAMESPACE_POLICY) is None


def test_namespace_policy_that_contradicts_a_topic_names_it(broker: BrokerProcess, topic: str) -> None:
    rest(broker, "POST", path(topic, "autoScalePolicy"), {"maxSegments": 3})
    with pytest.raises(RestRefused, match=topic) as refused:
        rest(broker, "POST", NAMESPACE_POLICY, {"minSegments": 5})
    assert refused.value.status == 412
    rest(broker, "DELETE", path(topic, "autoScalePolicy"))


def test_state_trial_and_numbers(broker: BrokerProcess, topic: str) -> None:
    found = rest(broker, "GET", path(topic, "autoscale"))
    assert found["activeSegments"] == 2
    assert set(found["levels"]) == {"broker", "namespace", "topic"}
    tried = rest(broker, "POST", path(topic, "autoscale/try"), {"enabled": True})
    assert tried["action"] == "none"
    assert rest(broker, "GET", path(topic, "autoscaler-metric")) == {
        "activeSegments": 2,
        "backlog": 0,
        "wantedConsumers": 2,
    }
    assert rest(broker, "GET", path(topic, "autoscaler-metric?subscription=s"))["backlog"] == 0


def test_commands(broker: BrokerProcess, topic: str) -> None:
    done = command(broker, "scalable-topics", "set-auto-scale-policy", topic, "--max-segments", "16")
    assert done.returncode == 0, done.stderr
    shown = command(broker, "scalable-topics", "get-auto-scale-policy", topic, "--json")
    assert json.loads(shown.stdout) == {"maxSegments": 16}, shown.stderr
    applied = command(broker, "scalable-topics", "get-auto-scale-policy", topic, "--applied", "--json")
    assert json.loads(applied.stdout)["maxSegments"] == 16, applied.stderr
    assert "now: nothing" in command(broker, "scalable-topics", "explain", topic).stdout
    assert command(broker, "scalable-topics", "remove-auto-scale-policy", topic).returncode == 0
    namespace = "scalable-topic-auto-scale-policy"
    assert command(broker, "namespaces", f"set-{namespace}", NAMESPACE, "--min-segments", "2").returncode == 0
    shown = command(broker, "namespaces", f"get-{namespace}", NAMESPACE, "--json")
    assert json.loads(shown.stdout) == {"minSegments": 2}, shown.stderr
    assert command(broker, "namespaces", f"remove-{namespace}", NAMESPACE).returncode == 0
