"""Policies of single topics: one handler per verb over the table in `broker.catalog.topic_policies`.

`?isGlobal=true` is about the part that holds in all clusters, `?applied=true` shows the value in force; a header names
its level. Scalable topics are named `topic/TENANT/NAMESPACE/NAME`, or like the regular topic of the name.
"""

from __future__ import annotations

from typing import Any

from anabranch.broker.admin.topic_policies import TopicPolicyAdmin
from anabranch.broker.catalog.policies import QuotaType
from anabranch.broker.catalog.policy_fields import one_of
from anabranch.broker.catalog.topic_policies import TOPIC_POLICIES, TopicPolicy
from anabranch.model.errors import BadRequest
from anabranch.model.names import check_subscription_name
from anabranch.rest.http_message import NO_CONTENT, Request, Response, json_response
from anabranch.rest.params import topic_of
from anabranch.rest.router import Handler, Route
from anabranch.rest.routes.policies import UNSET, body_of
from anabranch.security.permissions import TOPIC_ADMIN

TOPIC = "/admin/v2/{domain:persistent|non-persistent|topic}/{tenant}/{namespace}/{topic}"
LEVEL = "X-Anabranch-Policy-Level"
POLICY_BYTES_MAX = 65_536


class TopicPolicyCalls:
    def __init__(self, admin: TopicPolicyAdmin) -> None:
        self._admin = admin

    def get(self, policy: TopicPolicy) -> Handler:
        async def call(request: Request) -> Response:
            topic, entry = str(topic_of(request)), None if policy.entries_path else _entry(policy, request)
            if not request.flag("applied"):
                value = await self._admin.get(topic, policy, entry, is_global=request.flag("isGlobal"))
                return _shown(policy, policy.rule.unset if value is None else value)
            value, level = await self._admin.applied(topic, policy, entry)
            response = _shown(policy, value)
            return Response(response.status, response.body, response.content_type, ((LEVEL, level.value),))

        return call

    def set(self, policy: TopicPolicy) -> Handler:
        async def call(request: Request) -> Response:
            return await self._set(policy, request, _value(policy, request))

        return call

    def remove(self, policy: TopicPolicy) -> Handler:
        async def call(request: Request) -> Response:
            return await self._set(policy, request, None)

        return call

    async def _set(self, policy: TopicPolicy, request: Request, value: Any) -> Response:
        is_global = request.flag("isGlobal")
        await self._admin.set(str(topic_of(request)), policy, _entry(policy, request), value, is_global=is_global)
        return NO_CONTENT

    async def all_applied(self, request: Request) -> Response:
        return json_response(await self._admin.all_applied(str(topic_of(request))))

    async def remove_all(self, request: Request) -> Response:
        await self._admin.remove_all(str(topic_of(request)))
        return NO_CONTENT


def _value(policy: TopicPolicy, request: Request) -> Any:
    if len(request.body) > POLICY_BYTES_MAX:
        raise BadRequest(f"a policy has at most {POLICY_BYTES_MAX} bytes")
    if policy.bare is not None and request.body.strip() in (b"", b'""'):
        return policy.bare
    if policy.query and not request.body.strip():
        text = request.query.get(policy.query)
        if text is None:
            raise BadRequest(f"the value is sent as ?{policy.query}=")
        return text
    return body_of(request)


def _entry(policy: TopicPolicy, request: Request) -> str | None:
    """The entry of a policy that is a map; None for other policies."""
    if not policy.entry:
        return None
    if policy.entry in request.params:
        return check_subscription_name(request.params[policy.entry])
    return one_of(request.query.get(policy.entry, QuotaType.SIZE.value), list(QuotaType), policy.entry)


def _shown(policy: TopicPolicy, value: Any) -> Response:
    if value is None:
        return NO_CONTENT if policy.is_empty_no_content else UNSET
    return json_response(value)


def topic_policy_routes(admin: TopicPolicyAdmin) -> list[Route]:
    calls = TopicPolicyCalls(admin)
    routes = [
        Route(
            "GET",
            f"{TOPIC}/policies",
            calls.all_applied,
            "All policies in force for a topic, each with the level that sets it",
            TOPIC_ADMIN,
        ),
        Route("DELETE", f"{TOPIC}/policies", calls.remove_all, "Unset all policies of a topic", TOPIC_ADMIN),
    ]
    for policy in TOPIC_POLICIES:
        summary = policy.rule.summary
        path = f"{TOPIC}/{policy.path}"
        changed = f"{TOPIC}/{policy.entries_path}" if policy.entries_path else path
        routes += [
            Route("GET", path, calls.get(policy), f"Topic: {summary}", TOPIC_ADMIN),
            Route(policy.rule.verb, changed, calls.set(policy), f"Set for a topic: {summary}", TOPIC_ADMIN),
            Route("DELETE", changed, calls.remove(policy), f"Unset for a topic: {summary}", TOPIC_ADMIN),
        ]
    return routes
