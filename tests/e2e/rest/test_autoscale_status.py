"""What auto-scaling says of itself: over REST, the admin client and the command line, on a real broker."""

from __future__ import annotations

import json
import re
import time
import urllib.parse
import urllib.request
import uuid
from pathlib import Path
from typing import Any

import pytest

import anabranch.admin
import anabranch.blocking
from anabranch.admin.blocking import BlockingAdmin
from anabranch.cli.main import main
from anabranch.rest.openapi import auto_scale_schemas
from anabranch.rest.openapi.result_schemas import SCALABLE_STATS
from anabranch.runtime.clock import SystemClock
from tests.support.processes.broker_process import BrokerProcess
from tests.support.traffic.json_schemas import complaints
from tests.support.traffic.stock_calls import Rest


@pytest.fixture
def rest(broker: BrokerProcess) -> Rest:
    return Rest(broker.http_url)


@pytest.fixture
def topic(broker: BrokerProcess) -> str:
    """Two segments that no consumer reads; auto-scaling is on with its defaults."""
    name = f"public/default/t{uuid.uuid4().hex[:8]}"
    with anabranch.admin.blocking.connect(broker.http_url) as admin:
        admin.scalable_topics.create(f"topic://{name}", segments=2)
        admin.scalable_topics.set_auto_scale_policy(f"topic://{name}", {"enabled": True})
    return name


def connect(broker: BrokerProcess) -> BlockingAdmin:
    return anabranch.admin.blocking.connect(broker.http_url)


def test_status_names_policy_levels_and_the_rule_that_forbids(rest: Rest, topic: str) -> None:
    found = rest.expect("GET", f"/admin/v2/scalable/{topic}/autoscale")
    assert found["activeSegments"] == 2
    assert found["levels"]["topic"] == {"enabled": True}
    assert found["levels"]["namespace"] is None
    assert found["policy"]["enabled"] is True
    assert found["levels"]["broker"]["maxSegments"] == 64
    assert found["now"]["action"] == "none"
    assert {one["suppressedBy"] for one in found["now"]["suppressed"]} <= {"no-report", "merge-window"}
    assert found["now"]["suppressed"], "cold segments are not merged yet, and that is said"


def test_stats_have_loads_policy_decisions_and_what_would_be_done_now(rest: Rest, topic: str) -> None:
    status = rest.expect("GET", f"/admin/v2/scalable/{topic}/autoscale")
    found = rest.expect("GET", f"/admin/v2/scalable/{topic}/stats")
    assert found["autoScale"]["policy"] == status["policy"]
    assert found["autoScale"]["now"]["action"] == "none"
    assert found["autoScale"]["decisions"][0]["reason"] == "suppressed"
    assert set(found["autoScale"]) == {"policy", "now", "lastSplitAtMs", "lastMergeAtMs", "decisions"}
    deadline = SystemClock().monotonic() + 60
    while "load" not in found["segments"]["0"]:
        assert SystemClock().monotonic() < deadline, "new segments are reported after one sample interval"
        time.sleep(0.2)
        found = rest.expect("GET", f"/admin/v2/scalable/{topic}/stats")
    assert found["segments"]["0"]["load"]["msgRateIn"] == 0


def test_answers_have_the_fields_of_their_schemas_and_no_others(broker: BrokerProcess, rest: Rest) -> None:
    """Of a topic that was split and is hot, with a hot key."""
    name = f"public/default/t{uuid.uuid4().hex[:8]}"
    topic, path = f"topic://{name}", f"/admin/v2/scalable/{name}"
    policy = {"splitRateWindowSeconds": 5, "splitMsgRateInThreshold": 20.0, "mergeMsgRateInThreshold": 5.0}
    policy |= {"splitCooldownSeconds": 0, "maxSegments": 2}
    with connect(broker) as admin, anabranch.blocking.connect(broker.service_url) as client:
        admin.scalable_topics.create(topic)
        admin.scalable_topics.set_auto_scale_policy(topic, {"enabled": True, **policy})
        clock = SystemClock()
        found: dict[str, Any] = {}
        deadline = clock.monotonic() + 90
        with client.producer(topic) as producer:
            while not _has_everything(found):
                assert clock.monotonic() < deadline, f"split, and hot with a hot key: {found}"
                for number in range(20):
                    producer.send_nowait(b"x", key=f"k{number}")
                for _ in range(100):
                    producer.send_nowait(b"x", key="whale")
                producer.flush(30.0)
                time.sleep(0.5)
                found = rest.expect("GET", f"{path}/autoscale")
    assert complaints(found, auto_scale_schemas.STATUS, is_strict=True) == []
    stats = rest.expect("GET", f"{path}/stats")
    assert complaints(stats, SCALABLE_STATS) == []
    assert complaints(stats["autoScale"], auto_scale_schemas.SUMMARY, is_strict=True) == []
    loads = [one["load"] for one in stats["segments"].values() if "load" in one]
    assert loads and [text for one in loads for text in complaints(one, auto_scale_schemas.LOAD, is_strict=True)] == []
    tried = rest.expect("POST", f"{path}/autoscale/try", {"enabled": False})
    assert complaints(tried, auto_scale_schemas.TRIED, is_strict=True) == []
    metric = rest.expect("GET", f"{path}/autoscaler-metric")
    assert complaints(metric, auto_scale_schemas.METRIC, is_strict=True) == []
    applied = rest.expect("GET", f"{path}/autoScalePolicy?applied=true")
    assert complaints(applied, auto_scale_schemas.POLICY, is_strict=True) == []
    own = rest.expect("GET", f"{path}/autoScalePolicy")
    assert complaints(own, auto_scale_schemas.OVERRIDE, is_strict=True) == []


def _has_everything(status: dict[str, Any]) -> bool:
    """Its answer has all parts of the schema that load alone brings about."""
    is_split = any(one["action"] == "split" and one.get("outcome") for one in status.get("decisions", ()))
    return is_split and any("hotKey" in one and "aboveSplitSinceMs" in one for one in status["loads"].values())


def test_metrics_count_decisions_reports_and_the_sums_of_a_topic(broker: BrokerProcess, topic: str) -> None:
    with anabranch.blocking.connect(broker.service_url) as client, client.producer(f"topic://{topic}") as producer:
        producer.send(b"x")
    with urllib.request.urlopen(f"{broker.http_url}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    assert re.search(r'anabranch_scalable_auto_decisions_total\{.*action="none",reason="suppressed"\} [1-9]', text)
    assert re.search(r'anabranch_scalable_auto_suppressed_total\{.*action="merge",suppressed_by=".*"\} [1-9]', text)
    assert re.search(r"anabranch_scalable_load_reports_total\{.*\} \d+", text)
    assert (
        f'pulsar_scalable_topic_msg_backlog{{cluster="standalone",namespace="public/default",topic="topic://{topic}"}}'
        in (text)
    )


def test_keda_trigger_of_the_guide_reads_the_wanted_number_of_consumers(broker: BrokerProcess) -> None:
    """As KEDA's metrics-api scaler does: GET of `url`, the number at `valueLocation`, divided by `targetValue`."""
    guide = (Path(anabranch.__file__).parents[2] / "docs/guides/auto-scaling.md").read_text()
    trigger = dict(re.findall(r'^\s+(url|valueLocation|targetValue): "([^"]+)"$', guide, re.MULTILINE))
    url = urllib.parse.urlsplit(trigger["url"])
    *_, tenant, namespace, name, _ = url.path.split("/")
    (subscription,) = urllib.parse.parse_qs(url.query)["subscription"]
    with connect(broker) as admin:
        admin.scalable_topics.create(f"topic://{tenant}/{namespace}/{name}", segments=3)
        admin.scalable_topics.create_subscription(f"topic://{tenant}/{namespace}/{name}", subscription)
    with urllib.request.urlopen(f"{broker.http_url}{url.path}?{url.query}", timeout=30) as answer:
        value = json.load(answer)
    for part in trigger["valueLocation"].split("."):
        value = value[part]
    assert value / float(trigger["targetValue"]) == 3, "one consumer for each active segment"


def test_try_answers_what_a_policy_would_do_and_does_nothing(broker: BrokerProcess, rest: Rest, topic: str) -> None:
    path = f"/admin/v2/scalable/{topic}/autoscale/try"
    found = rest.expect("POST", path, {"enabled": False})
    assert (found["action"], found["reason"], found["policy"]["enabled"]) == ("none", "disabled", False)
    status, answer = rest.call("POST", path, {"minSegments": 65})[:2]
    assert (status, answer["error"]) == (412, "bad-policy")
    with connect(broker) as admin:
        assert admin.scalable_topics.auto_scale_policy(f"topic://{topic}") == {"enabled": True}
        tried = admin.scalable_topics.try_auto_scale_policy(f"topic://{topic}", {"enabled": False})
        assert tried["reason"] == "disabled"


def test_metric_has_plain_numbers_and_refuses_an_unknown_subscription(broker: BrokerProcess, topic: str) -> None:
    with connect(broker) as admin:
        assert admin.scalable_topics.autoscaler_metric(f"topic://{topic}") == {
            "activeSegments": 2,
            "backlog": 0,
            "wantedConsumers": 2,
        }
        admin.scalable_topics.create_subscription(f"topic://{topic}", "s")
        with anabranch.blocking.connect(broker.service_url) as client, client.producer(f"topic://{topic}") as producer:
            for number in range(5):
                producer.send(b"x", key=f"k{number}")
        assert admin.scalable_topics.autoscaler_metric(f"topic://{topic}", "s")["backlog"] == 5
        with pytest.raises(anabranch.Error, match="no subscription other"):
            admin.scalable_topics.autoscaler_metric(f"topic://{topic}", "other")


def test_unknown_topic_is_404_on_every_call(rest: Rest) -> None:
    for method, path in (("GET", "autoscale"), ("POST", "autoscale/try"), ("GET", "autoscaler-metric")):
        assert (
            rest.call(method, f"/admin/v2/scalable/public/default/none/{path}", {} if method == "POST" else None)[0]
            == 404
        )


def test_explain_shows_the_decision_and_what_suppresses_it(
    broker: BrokerProcess, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["admin", "scalable-topics", "explain", f"topic://{topic}", "--admin-url", broker.http_url]) == 0
    shown = capsys.readouterr().out
    assert "2 active segments; now: nothing" in shown
    assert "suppressed by" in shown.lower()
    assert "overridden by the topic" in shown
