"""Permissions of namespaces, topics and subscriptions. What a grant allows is decided in `security.authorization`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from anabranch.broker.admin.tenants import TenantAdmin
from anabranch.broker.admin.topics import TopicAdmin
from anabranch.model.errors import NotFound
from anabranch.model.names import TopicName, check_subscription_name
from anabranch.rest.access import body_topics
from anabranch.rest.http_message import NO_CONTENT, Request, Response, json_response
from anabranch.rest.params import topic_of
from anabranch.rest.router import Route
from anabranch.rest.routes.lookup import TOPIC_PARAMS
from anabranch.rest.routes.topics import namespace_of
from anabranch.security.authorization import Grants, parse_actions, parse_mode, parse_role, role_set, shown
from anabranch.security.permissions import BODY_TOPICS_ADMIN, NAMESPACE_ADMIN, TOPIC_ADMIN

NOTHING: frozenset[str] = frozenset()


class PermissionCalls:
    def __init__(self, tenants: TenantAdmin, topics: TopicAdmin) -> None:
        self._tenants = tenants
        self._topics = topics

    async def _change(self, request: Request, change: Callable[[Grants], Grants]) -> Response:
        await self._tenants.change_grants(namespace_of(request), change)
        return NO_CONTENT

    # -- namespaces

    async def of_namespace(self, request: Request) -> Response:
        return json_response(shown((await self._tenants.grants(namespace_of(request))).namespace))

    async def grant_namespace(self, request: Request) -> Response:
        role, actions = parse_role(request.params["role"]), parse_actions(request.json())
        return await self._change(request, lambda grants: grants.with_namespace_role(role, actions))

    async def revoke_namespace(self, request: Request) -> Response:
        role = parse_role(request.params["role"])
        return await self._change(request, lambda grants: grants.with_namespace_role(role, NOTHING))

    # -- subscriptions

    async def of_subscriptions(self, request: Request) -> Response:
        return json_response(shown((await self._tenants.grants(namespace_of(request))).subscriptions))

    async def grant_subscription(self, request: Request) -> Response:
        """An empty list removes the restriction: every role with `consume` may use the subscription."""
        name, roles = check_subscription_name(request.params["subscription"]), role_set(request.json()) or None
        return await self._change(request, lambda grants: grants.with_subscription(name, roles))

    async def revoke_subscription(self, request: Request) -> Response:
        """Without its last role only admins may use the subscription; in Pulsar every role could again."""
        name, role = check_subscription_name(request.params["subscription"]), parse_role(request.params["role"])

        def change(grants: Grants) -> Grants:
            roles = grants.subscriptions.get(name)
            return grants if roles is None else grants.with_subscription(name, roles - {role})

        return await self._change(request, change)

    async def mode(self, request: Request) -> Response:
        return json_response((await self._tenants.grants(namespace_of(request))).mode.value)

    async def set_mode(self, request: Request) -> Response:
        mode = parse_mode(request.json())
        return await self._change(request, lambda grants: replace(grants, mode=mode))

    # -- topics

    async def _existing(self, request: Request) -> TopicName:
        topic = topic_of(request)
        if not await self._topics.exists(str(topic)):
            raise NotFound(f"Topic {topic} not found")
        return topic

    async def of_topic(self, request: Request) -> Response:
        """Grants of the namespace and of the topic together, as Pulsar shows them."""
        topic = await self._existing(request)
        grants = await self._tenants.grants(topic.namespace_path)
        own = grants.topics.get(str(topic), {})
        roles = {*grants.namespace, *own}
        return json_response(shown({role: {*grants.namespace.get(role, ()), *own.get(role, ())} for role in roles}))

    async def grant_topic(self, request: Request) -> Response:
        topic, role = await self._existing(request), parse_role(request.params["role"])
        actions = parse_actions(request.json())
        return await self._change(request, lambda grants: grants.with_topic_role(topic, role, actions))

    async def revoke_topic(self, request: Request) -> Response:
        topic, role = await self._existing(request), parse_role(request.params["role"])
        return await self._change(request, lambda grants: grants.with_topic_role(topic, role, NOTHING))

    # -- many topics at once

    async def grant_topics(self, request: Request) -> Response:
        return await self._many(request, lambda entry: parse_actions(entry.get("actions")))

    async def revoke_topics(self, request: Request) -> Response:
        return await self._many(request, lambda entry: NOTHING)

    async def _many(self, request: Request, actions_of: Callable[[dict[str, object]], frozenset[str]]) -> Response:
        """All entries are parsed before the first is applied."""
        entries = request.json()
        wanted = [
            (topic, parse_role(entry.get("role")), actions_of(entry))
            for topic, entry in zip(body_topics(entries), entries, strict=True)
        ]
        for namespace in dict.fromkeys(topic.namespace_path for topic, _, _ in wanted):
            mine = [one for one in wanted if one[0].namespace_path == namespace]

            def change(grants: Grants, mine: list[tuple[TopicName, str, frozenset[str]]] = mine) -> Grants:
                for topic, role, actions in mine:
                    grants = grants.with_topic_role(topic, role, actions)
                return grants

            await self._tenants.change_grants(namespace, change)
        return NO_CONTENT


def permission_routes(tenants: TenantAdmin, topics: TopicAdmin) -> list[Route]:
    calls = PermissionCalls(tenants, topics)
    namespace, topic = "/admin/v2/namespaces/{tenant}/{namespace}", f"/admin/v2/{TOPIC_PARAMS}"
    return [
        Route("GET", f"{namespace}/permissions", calls.of_namespace, "Permissions in a namespace", NAMESPACE_ADMIN),
        Route("POST", f"{namespace}/permissions/{{role}}", calls.grant_namespace, "Grant a role", NAMESPACE_ADMIN),
        Route("DELETE", f"{namespace}/permissions/{{role}}", calls.revoke_namespace, "Revoke a role", NAMESPACE_ADMIN),
        Route(
            "GET",
            f"{namespace}/permissions/subscription",
            calls.of_subscriptions,
            "Roles of the subscriptions",
            NAMESPACE_ADMIN,
        ),
        Route(
            "POST",
            f"{namespace}/permissions/subscription/{{subscription}}",
            calls.grant_subscription,
            "Restrict a subscription to roles",
            NAMESPACE_ADMIN,
        ),
        Route(
            "DELETE",
            f"{namespace}/permissions/{{subscription}}/{{role}}",
            calls.revoke_subscription,
            "Revoke a role's access to a subscription",
            NAMESPACE_ADMIN,
        ),
        Route(
            "GET",
            f"{namespace}/subscriptionAuthMode",
            calls.mode,
            "Rule for the names of subscriptions",
            NAMESPACE_ADMIN,
        ),
        Route(
            "POST",
            f"{namespace}/subscriptionAuthMode",
            calls.set_mode,
            "Set the rule for the names of subscriptions",
            NAMESPACE_ADMIN,
        ),
        Route(
            "POST",
            "/admin/v2/namespaces/grantPermissionsOnTopics",
            calls.grant_topics,
            "Grant on many topics",
            BODY_TOPICS_ADMIN,
        ),
        Route(
            "POST",
            "/admin/v2/namespaces/revokePermissionsOnTopics",
            calls.revoke_topics,
            "Revoke on many topics",
            BODY_TOPICS_ADMIN,
        ),
        Route("GET", f"{topic}/permissions", calls.of_topic, "Permissions on a topic", TOPIC_ADMIN),
        Route("POST", f"{topic}/permissions/{{role}}", calls.grant_topic, "Grant a role on a topic", TOPIC_ADMIN),
        Route("DELETE", f"{topic}/permissions/{{role}}", calls.revoke_topic, "Revoke a role", TOPIC_ADMIN),
    ]
