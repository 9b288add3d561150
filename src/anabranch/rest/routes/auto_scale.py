"""Auto-scale policies (PIP-483) of scalable topics and namespaces.

204 for GET when nothing is set; 412 for values that contradict each other or the levels around them. `?applied=true`
answers the policy in force.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anabranch.broker.admin.auto_scale import NAMESPACE_KEY, AutoScaleAdmin
from anabranch.model.errors import BadRequest
from anabranch.rest.http_message import NO_CONTENT, Request, Response, json_response
from anabranch.rest.params import topic_of
from anabranch.rest.router import Route
from anabranch.rest.routes.policies import body_of
from anabranch.rest.routes.topics import namespace_of
from anabranch.security.permissions import NAMESPACE_ADMIN, TOPIC_ADMIN, TOPIC_LOOKUP

POLICY_BYTES_MAX = 8_192
"""Fields that this version does not know are stored too, in the topic record or the namespace's."""

_TOPIC = "/admin/v2/scalable/{tenant}/{namespace}/{topic}/autoScalePolicy"
_STATUS = "/admin/v2/scalable/{tenant}/{namespace}/{topic}/autoscale"
_METRIC = "/admin/v2/scalable/{tenant}/{namespace}/{topic}/autoscaler-metric"
_NAMESPACE = f"/admin/v2/namespaces/{{tenant}}/{{namespace}}/{NAMESPACE_KEY}"


class AutoScaleCalls:
    def __init__(self, admin: AutoScaleAdmin) -> None:
        self._admin = admin

    async def topic_policy(self, request: Request) -> Response:
        return _shown(await self._admin.topic_policy(str(topic_of(request)), request.flag("applied")))

    async def set_topic_policy(self, request: Request) -> Response:
        await self._admin.set_topic_policy(str(topic_of(request)), _policy(request))
        return NO_CONTENT

    async def remove_topic_policy(self, request: Request) -> Response:
        await self._admin.set_topic_policy(str(topic_of(request)), None)
        return NO_CONTENT

    async def status(self, request: Request) -> Response:
        return json_response(await self._admin.status(str(topic_of(request))))

    async def try_policy(self, request: Request) -> Response:
        policy = _policy(request) if request.body else {}
        return json_response(await self._admin.try_policy(str(topic_of(request)), policy))

    async def metric(self, request: Request) -> Response:
        return json_response(await self._admin.metric(str(topic_of(request)), request.query.get("subscription")))

    async def namespace_policy(self, request: Request) -> Response:
        return _shown(await self._admin.namespace_policy(namespace_of(request), request.flag("applied")))

    async def set_namespace_policy(self, request: Request) -> Response:
        await self._admin.set_namespace_policy(namespace_of(request), _policy(request))
        return NO_CONTENT

    async def remove_namespace_policy(self, request: Request) -> Response:
        await self._admin.set_namespace_policy(namespace_of(request), None)
        return NO_CONTENT


def _policy(request: Request) -> Mapping[str, Any]:
    if len(request.body) > POLICY_BYTES_MAX:
        raise BadRequest(f"a policy has at most {POLICY_BYTES_MAX} bytes")
    body = body_of(request)
    if not isinstance(body, dict):
        raise BadRequest('the body is an object like {"maxSegments": 16}')
    return {name: value for name, value in body.items() if value is not None}


def _shown(policy: Mapping[str, Any] | None) -> Response:
    return NO_CONTENT if policy is None else json_response(policy)


def auto_scale_routes(admin: AutoScaleAdmin) -> list[Route]:
    calls = AutoScaleCalls(admin)
    return [
        Route(
            "GET", _TOPIC, calls.topic_policy, "Auto-scale policy of a topic (?applied=true: in force)", TOPIC_LOOKUP
        ),
        Route(
            "POST", _TOPIC, calls.set_topic_policy, "Set the auto-scale policy of a topic", TOPIC_ADMIN, at_owner=True
        ),
        Route(
            "DELETE",
            _TOPIC,
            calls.remove_topic_policy,
            "Unset the auto-scale policy of a topic",
            TOPIC_ADMIN,
            at_owner=True,
        ),
        Route(
            "GET",
            _STATUS,
            calls.status,
            "Auto-scaling of a topic: policy, loads, decisions and why nothing happens now",
            TOPIC_LOOKUP,
            at_owner=True,
        ),
        Route(
            "POST",
            f"{_STATUS}/try",
            calls.try_policy,
            "What a policy would do with the topic now, without doing it",
            TOPIC_ADMIN,
            at_owner=True,
        ),
        Route("GET", _METRIC, calls.metric, "Numbers for autoscalers of consumers (?subscription=NAME)", TOPIC_LOOKUP),
        Route(
            "GET",
            _NAMESPACE,
            calls.namespace_policy,
            "Auto-scale policy of a namespace (?applied=true: in force)",
            NAMESPACE_ADMIN,
        ),
        Route(
            "POST", _NAMESPACE, calls.set_namespace_policy, "Set the auto-scale policy of a namespace", NAMESPACE_ADMIN
        ),
        Route(
            "DELETE",
            _NAMESPACE,
            calls.remove_namespace_policy,
            "Unset the auto-scale policy of a namespace",
            NAMESPACE_ADMIN,
        ),
    ]
