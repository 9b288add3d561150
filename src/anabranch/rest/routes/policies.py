"""Policies of namespaces: a generic handler over the table in `broker.catalog.policy_fields`, and those of another
form (quotas by type, properties, clusters)."""

from __future__ import annotations

from typing import Any

from anabranch.broker.admin.namespaces import NamespaceAdmin
from anabranch.broker.catalog.policies import QuotaType
from anabranch.broker.catalog.policy_fields import RULES, PolicyField, cluster_names, one_of, quota, words
from anabranch.model.errors import BadRequest, NotAllowed
from anabranch.rest.http_message import NO_CONTENT, Request, Response, json_response, raw_response
from anabranch.rest.router import Handler, Route
from anabranch.rest.routes.topics import namespace_of
from anabranch.security.permissions import NAMESPACE_ADMIN, SUPERVISE

NAMESPACE = "/admin/v2/namespaces/{tenant}/{namespace}"
UNSET = Response()  # Pulsar's answer for a policy that is not set
TEXT_MAX = 1_024


def body_of(request: Request) -> Any:
    """The body as JSON; BadRequest if it is empty. `null` is allowed."""
    if not request.body.strip():
        raise BadRequest("the body is missing")
    return request.json()


class PolicyCalls:
    def __init__(self, admin: NamespaceAdmin) -> None:
        self._admin = admin

    # -- policies of the table

    def get(self, rule: PolicyField) -> Handler:
        async def call(request: Request) -> Response:
            value = rule.shown(await self._admin.record(namespace_of(request)))
            return UNSET if value is None else json_response(value)

        return call

    def set(self, rule: PolicyField) -> Handler:
        async def call(request: Request) -> Response:
            is_removal = rule.empty_removes and not request.body.strip()
            value = None if is_removal else body_of(request)

            def change(record: dict[str, Any]) -> dict[str, Any]:
                return rule.stored(record, None if value is None else rule.parse(value, record))

            await self._admin.change(namespace_of(request), change)
            return NO_CONTENT

        return call

    def remove(self, rule: PolicyField) -> Handler:
        async def call(request: Request) -> Response:
            await self._admin.change(namespace_of(request), lambda record: rule.stored(record, None))
            return NO_CONTENT

        return call

    # -- backlog quotas, one per type

    async def quotas(self, request: Request) -> Response:
        return json_response((await self._admin.record(namespace_of(request))).get("backlog_quota_map", {}))

    async def set_quota(self, request: Request) -> Response:
        kind, value = _quota_type(request), body_of(request)
        return await self._change_quota(request, kind, value)

    async def remove_quota(self, request: Request) -> Response:
        return await self._change_quota(request, _quota_type(request), None)

    async def _change_quota(self, request: Request, kind: str, value: Any) -> Response:
        def change(record: dict[str, Any]) -> dict[str, Any]:
            known = {key: one for key, one in record.get("backlog_quota_map", {}).items() if key != kind}
            if value is not None:
                known[kind] = quota(value, kind, record)
            return {**record, "backlog_quota_map": known}

        await self._admin.change(namespace_of(request), change)
        return NO_CONTENT

    # -- properties

    async def properties(self, request: Request) -> Response:
        return json_response((await self._admin.record(namespace_of(request))).get("properties", {}))

    async def add_properties(self, request: Request) -> Response:
        added = words(body_of(request), {})
        await self._merge(request, added)
        return NO_CONTENT

    async def clear_properties(self, request: Request) -> Response:
        await self._admin.change(namespace_of(request), lambda record: {**record, "properties": {}})
        return NO_CONTENT

    async def property(self, request: Request) -> Response:
        found = (await self._admin.record(namespace_of(request))).get("properties", {})
        value = found.get(request.params["key"])
        return UNSET if value is None else raw_response(value)

    async def set_property(self, request: Request) -> Response:
        await self._merge(request, {request.params["key"]: request.params["value"]})
        return NO_CONTENT

    async def remove_property(self, request: Request) -> Response:
        """Answers with the removed value."""
        key, before = request.params["key"], await self.property(request)

        def change(record: dict[str, Any]) -> dict[str, Any]:
            kept = {name: value for name, value in record.get("properties", {}).items() if name != key}
            return {**record, "properties": kept}

        await self._admin.change(namespace_of(request), change)
        return before

    async def _merge(self, request: Request, added: dict[str, str]) -> None:
        await self._admin.change(
            namespace_of(request), lambda record: {**record, "properties": {**record.get("properties", {}), **added}}
        )

    # -- clusters of the namespace

    async def replication(self, request: Request) -> Response:
        return json_response((await self._admin.shown(namespace_of(request)))["replication_clusters"])

    async def set_replication(self, request: Request) -> Response:
        names = cluster_names(body_of(request), {})
        if not names:
            raise NotAllowed("Must have at least one cluster")
        return await self._set_clusters(request, "replication_clusters", names)

    async def allowed_clusters(self, request: Request) -> Response:
        return json_response((await self._admin.record(namespace_of(request))).get("allowed_clusters", []))

    async def set_allowed_clusters(self, request: Request) -> Response:
        return await self._set_clusters(request, "allowed_clusters", cluster_names(body_of(request), {}))

    async def _set_clusters(self, request: Request, key: str, names: list[str]) -> Response:
        await self._admin.record(namespace_of(request))
        await self._admin.check_replication(request.params["tenant"], names)
        await self._admin.change(namespace_of(request), lambda record: {**record, key: names})
        return Response()

    # -- values that are only stored, for tools

    async def remove_offload(self, request: Request) -> Response:
        await self._admin.change(namespace_of(request), lambda record: _without(record, "offload_policies"))
        return NO_CONTENT

    async def anti_affinity(self, request: Request) -> Response:
        group = (await self._admin.record(namespace_of(request))).get("antiAffinityGroup")
        return UNSET if group is None else raw_response(group)

    async def set_anti_affinity(self, request: Request) -> Response:
        try:
            group = request.body.decode()
        except UnicodeDecodeError as error:
            raise BadRequest("the group's name must be UTF-8") from error
        if not group.strip() or len(group) > TEXT_MAX:
            raise NotAllowed("antiAffinityGroup can't be empty")
        await self._admin.change(namespace_of(request), lambda record: {**record, "antiAffinityGroup": group})
        return NO_CONTENT

    async def remove_anti_affinity(self, request: Request) -> Response:
        await self._admin.change(namespace_of(request), lambda record: _without(record, "antiAffinityGroup"))
        return NO_CONTENT

    async def pause(self, request: Request) -> Response:
        record = await self._admin.record(namespace_of(request))
        return json_response(bool(record.get("dispatcherPauseOnAckStatePersistentEnabled")))

    async def set_pause(self, request: Request) -> Response:
        key = "dispatcherPauseOnAckStatePersistentEnabled"
        await self._admin.change(namespace_of(request), lambda record: {**record, key: True})
        return NO_CONTENT

    async def remove_pause(self, request: Request) -> Response:
        key = "dispatcherPauseOnAckStatePersistentEnabled"
        await self._admin.change(namespace_of(request), lambda record: _without(record, key))
        return NO_CONTENT


def _without(record: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name != key}


def _quota_type(request: Request) -> str:
    return one_of(request.query.get("backlogQuotaType", QuotaType.SIZE.value), list(QuotaType), "backlogQuotaType")


def policy_routes(admin: NamespaceAdmin) -> list[Route]:
    calls = PolicyCalls(admin)
    routes = []
    for rule in RULES:
        path = f"{NAMESPACE}/{rule.path}"
        routes.append(Route("GET", path, calls.get(rule), rule.summary, NAMESPACE_ADMIN))
        routes.append(Route(rule.verb, path, calls.set(rule), f"Set: {rule.summary}", NAMESPACE_ADMIN))
        if rule.removable:
            routes.append(Route("DELETE", path, calls.remove(rule), f"Unset: {rule.summary}", NAMESPACE_ADMIN))
    others: list[tuple[str, str, Handler, str]] = [
        ("GET", "backlogQuotaMap", calls.quotas, "Backlog quotas: size and age"),
        ("POST", "backlogQuota", calls.set_quota, "Set the quota of one type (?backlogQuotaType=)"),
        ("DELETE", "backlogQuota", calls.remove_quota, "Unset the quota of one type"),
        ("GET", "properties", calls.properties, "Properties of a namespace"),
        ("PUT", "properties", calls.add_properties, "Add properties"),
        ("DELETE", "properties", calls.clear_properties, "Remove all properties"),
        ("GET", "property/{key}", calls.property, "One property, as plain text"),
        ("PUT", "property/{key}/{value}", calls.set_property, "Set one property"),
        ("DELETE", "property/{key}", calls.remove_property, "Remove one property; answers with its value"),
        ("GET", "replication", calls.replication, "Replication clusters of a namespace"),
        ("GET", "allowedClusters", calls.allowed_clusters, "Clusters that a namespace may use"),
        ("DELETE", "removeOffloadPolicies", calls.remove_offload, "Unset the offload policies"),
        ("GET", "antiAffinity", calls.anti_affinity, "Anti-affinity group (stored only)"),
        ("POST", "antiAffinity", calls.set_anti_affinity, "Set the anti-affinity group"),
        ("DELETE", "antiAffinity", calls.remove_anti_affinity, "Unset the anti-affinity group"),
        (
            "GET",
            "dispatcherPauseOnAckStatePersistent",
            calls.pause,
            "Pause dispatch on unsaved acknowledgements (stored only)",
        ),
        (
            "POST",
            "dispatcherPauseOnAckStatePersistent",
            calls.set_pause,
            "Pause dispatch on unsaved acknowledgements (stored only)",
        ),
        (
            "DELETE",
            "dispatcherPauseOnAckStatePersistent",
            calls.remove_pause,
            "Pause dispatch on unsaved acknowledgements (stored only)",
        ),
    ]
    routes += [Route(verb, f"{NAMESPACE}/{path}", call, text, NAMESPACE_ADMIN) for verb, path, call, text in others]
    routes += [
        Route("POST", f"{NAMESPACE}/replication", calls.set_replication, "Set the clusters", SUPERVISE),
        Route("POST", f"{NAMESPACE}/allowedClusters", calls.set_allowed_clusters, "Set the clusters", SUPERVISE),
    ]
    return routes
