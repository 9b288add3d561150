"""Auto-scale policies over REST and the admin client: both levels, what is in force, what is refused."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

import anabranch.admin
from anabranch.admin.blocking import BlockingAdmin
from anabranch.controller.settings import ScalableTopicsSettings
from tests.support.processes.broker_process import BrokerProcess
from tests.support.traffic.stock_calls import Rest

DEFAULT = ScalableTopicsSettings().auto_scale_policy.to_json()


@pytest.fixture
def rest(broker: BrokerProcess) -> Rest:
    return Rest(broker.http_url)


@pytest.fixture
def namespace(broker: BrokerProcess) -> str:
    made = f"public/n{uuid.uuid4().hex[:8]}"
    with anabranch.admin.blocking.connect(broker.http_url) as admin:
        admin.namespaces.create(made)
        admin.scalable_topics.create(f"{made}/orders")
    return made


def paths(namespace: str) -> tuple[str, str]:
    return (
        f"/admin/v2/scalable/{namespace}/orders/autoScalePolicy",
        f"/admin/v2/namespaces/{namespace}/scalableTopicAutoScalePolicy",
    )


@pytest.mark.parametrize("level", [0, 1], ids=["topic", "namespace"])
class TestBothLevels:
    def test_unset_policy_answers_204_and_the_applied_one_is_complete(
        self, rest: Rest, namespace: str, level: int
    ) -> None:
        path = paths(namespace)[level]
        assert rest.call("GET", path)[0] == 204
        assert rest.expect("GET", f"{path}?applied=true") == DEFAULT

    def test_policy_is_set_shown_as_it_was_given_applied_and_removed(
        self, rest: Rest, namespace: str, level: int
    ) -> None:
        path = paths(namespace)[level]
        given = {"maxSegments": 16, "splitCooldownSeconds": 5, "ofALaterVersion": [1]}
        assert rest.call("POST", path, given)[0] == 204
        assert rest.expect("GET", path) == given
        applied = rest.expect("GET", f"{path}?applied=true")
        assert applied == {**DEFAULT, "maxSegments": 16, "splitCooldownSeconds": 5}
        assert rest.call("POST", path, {"minSegments": 2})[0] == 204
        assert rest.expect("GET", path) == {"minSegments": 2}, "set replaces"
        assert rest.call("DELETE", path)[0] == 204
        assert rest.call("GET", path)[0] == 204
        assert rest.call("DELETE", path)[0] == 204, "safe to repeat"

    @pytest.mark.parametrize(
        ("body", "status", "word"),
        [
            ({"minSegments": 0}, 412, "bad-policy"),
            ({"minSegments": 65}, 412, "bad-policy"),
            ({"splitMsgRateInThreshold": 1000}, 412, "bad-policy"),
            ({"maxSegments": "many"}, 412, "bad-policy"),
            ([], 400, "bad-request"),
            (5, 400, "bad-request"),
            ({"x": "y" * 10_000}, 400, "bad-request"),
        ],
        ids=lambda one: str(one)[:40],
    )
    def test_bad_policy_is_refused_and_changes_nothing(
        self, rest: Rest, namespace: str, level: int, body: Any, status: int, word: str
    ) -> None:
        path = paths(namespace)[level]
        answer = rest.call("POST", path, body)
        assert (answer[0], answer[1]["error"]) == (status, word), answer
        assert rest.call("GET", path)[0] == 204


def test_topic_overrides_namespace_field_by_field(rest: Rest, namespace: str) -> None:
    topic, whole = paths(namespace)
    rest.expect("POST", whole, {"maxSegments": 32, "minSegments": 2})
    rest.expect("POST", topic, {"maxSegments": 8})
    applied = rest.expect("GET", f"{topic}?applied=true")
    assert (applied["maxSegments"], applied["minSegments"]) == (8, 2)
    assert rest.expect("GET", f"{whole}?applied=true")["maxSegments"] == 32


def test_topic_policy_is_checked_against_its_namespace(rest: Rest, namespace: str) -> None:
    topic, whole = paths(namespace)
    rest.expect("POST", whole, {"minSegments": 4})
    answer = rest.call("POST", topic, {"maxSegments": 2})
    assert (answer[0], answer[1]["error"]) == (412, "bad-policy")


def test_namespace_change_that_breaks_a_topic_is_refused_with_its_name(rest: Rest, namespace: str) -> None:
    topic, whole = paths(namespace)
    rest.expect("POST", whole, {"minSegments": 2, "splitMsgRateInThreshold": 50_000})
    rest.expect("POST", topic, {"maxSegments": 2, "mergeMsgRateInThreshold": 40_000})
    for method, body in (("POST", {"minSegments": 4}), ("DELETE", None)):
        answer = rest.call(method, whole, body)
        assert (answer[0], answer[1]["error"]) == (412, "bad-policy")
        assert f"topic://{namespace}/orders" in answer[1]["reason"]
    assert rest.expect("GET", whole)["minSegments"] == 2


def test_limits_of_a_manual_split_follow_both_levels_at_once(rest: Rest, namespace: str) -> None:
    topic, whole = paths(namespace)
    split = f"/admin/v2/scalable/{namespace}/orders/split/0"
    rest.expect("POST", whole, {"maxSegments": 1})
    assert rest.call("POST", split)[0] == 412
    rest.expect("POST", topic, {"maxSegments": 2})
    rest.expect("POST", split)
    assert rest.call("POST", f"/admin/v2/scalable/{namespace}/orders/split/1")[0] == 412


def test_policy_survives_a_split(rest: Rest, namespace: str) -> None:
    topic, _ = paths(namespace)
    rest.expect("POST", topic, {"maxSegments": 4})
    rest.expect("POST", f"/admin/v2/scalable/{namespace}/orders/split/0")
    assert rest.expect("GET", topic) == {"maxSegments": 4}
    assert rest.expect("GET", f"/admin/v2/scalable/{namespace}/orders")["autoScalePolicy"] == {"maxSegments": 4}


def test_missing_topic_and_namespace_are_404(rest: Rest, namespace: str) -> None:
    for method, body in (("GET", None), ("POST", {"maxSegments": 4}), ("DELETE", None)):
        assert rest.call(method, f"/admin/v2/scalable/{namespace}/none/autoScalePolicy", body)[0] == 404
        assert rest.call(method, "/admin/v2/namespaces/public/none/scalableTopicAutoScalePolicy", body)[0] == 404


async def test_admin_client_async(broker: BrokerProcess, namespace: str) -> None:
    async with anabranch.admin.connect(broker.http_url) as admin:
        topic = f"{namespace}/orders"
        assert await admin.scalable_topics.auto_scale_policy(topic) is None
        await admin.scalable_topics.set_auto_scale_policy(topic, {"maxSegments": 4})
        assert await admin.scalable_topics.auto_scale_policy(topic) == {"maxSegments": 4}
        assert (await admin.scalable_topics.auto_scale_policy(topic, applied=True))["minSegments"] == 1
        await admin.scalable_topics.remove_auto_scale_policy(topic)
        assert await admin.scalable_topics.auto_scale_policy(topic) is None
        await admin.namespaces.set_auto_scale_policy(namespace, {"maxSegments": 4})
        assert await admin.namespaces.auto_scale_policy(namespace) == {"maxSegments": 4}
        assert (await admin.namespaces.auto_scale_policy(namespace, applied=True))["maxSegments"] == 4
        await admin.namespaces.remove_auto_scale_policy(namespace)
        assert await admin.namespaces.auto_scale_policy(namespace) is None


def test_admin_client_blocking(broker: BrokerProcess, namespace: str) -> None:
    with anabranch.admin.blocking.connect(broker.http_url) as admin:
        assert isinstance(admin, BlockingAdmin)
        topic = f"{namespace}/orders"
        admin.scalable_topics.set_auto_scale_policy(topic, {"maxSegments": 4})
        assert admin.scalable_topics.auto_scale_policy(topic, applied=True)["maxSegments"] == 4
        admin.scalable_topics.remove_auto_scale_policy(topic)
        admin.namespaces.set_auto_scale_policy(namespace, {"minSegments": 2})
        assert admin.namespaces.auto_scale_policy(namespace) == {"minSegments": 2}
        with pytest.raises(anabranch.admin.AdminError, match="minSegments"):
            admin.namespaces.set_auto_scale_policy(namespace, {"minSegments": 0})
