"""Namespaces: create, show, delete, their topics and bundles. Single policies are in `policies`."""

from __future__ import annotations

from typing import Any

from anabranch.broker.admin.service import BrokerAdmin
from anabranch.broker.catalog.bundles import boundaries_of, holds, parse_bundles, parse_range, place_of
from anabranch.broker.catalog.policy_fields import parse_record
from anabranch.broker.schemas.policy import AUTO_UPDATE, AUTO_UPDATE_STRATEGY, STRATEGY, VALIDATION, check_policy
from anabranch.model.errors import BadRequest, NotAllowed
from anabranch.model.names import Domain, check_subscription_name, check_tenant
from anabranch.rest.errors import ForceRefused, NotEmpty
from anabranch.rest.http_message import NO_CONTENT, Request, Response, json_response
from anabranch.rest.router import Route
from anabranch.rest.routes.policies import NAMESPACE
from anabranch.rest.routes.topics import namespace_of
from anabranch.security.authorization import Grants
from anabranch.security.permissions import NAMESPACE_ADMIN, NAMESPACE_LIST, SUPERVISE, TENANT_ADMIN

_MODES = {
    "PERSISTENT": (Domain.PERSISTENT,),
    "NON_PERSISTENT": (Domain.NON_PERSISTENT,),
    "ALL": (Domain.PERSISTENT, Domain.NON_PERSISTENT),
}
_ALGORITHMS = ("range_equally_divide", "topic_count_equally_divide", "flow_or_qps_equally_divide")


def parse_policies(value: Any) -> dict[str, Any]:
    """The initial policies of a namespace: none, or an object under Pulsar's names."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise BadRequest('the body must be an object of policies like {"message_ttl_in_seconds": 60}')
    record = parse_record(value)
    if value.get("auth_policies") or value.get("subscription_auth_mode"):
        record.update(Grants.load(value).dump())
    if (bundles := parse_bundles(value.get("bundles"))) is not None:
        record["bundles"] = bundles
    for key in (STRATEGY, AUTO_UPDATE_STRATEGY, AUTO_UPDATE, VALIDATION):
        if (said := value.get(key)) is not None:
            check_policy(key, said)
            record[key] = said
    return record


class NamespaceCalls:
    def __init__(self, admin: BrokerAdmin) -> None:
        self._tenants = admin.tenants
        self._topics = admin.topics
        self._namespaces = admin.namespaces

    async def list_all(self, request: Request) -> Response:
        return json_response(await self._tenants.list_namespaces(check_tenant(request.params["tenant"])))

    async def get(self, request: Request) -> Response:
        return json_response(await self._namespaces.shown(namespace_of(request)))

    async def create(self, request: Request) -> Response:
        namespace, record = namespace_of(request), parse_policies(request.json())
        clusters = {*record.get("replication_clusters", ()), *record.get("allowed_clusters", ())}
        if clusters:
            await self._namespaces.check_replication(request.params["tenant"], clusters)
        await self._tenants.create_namespace(namespace, record)
        return NO_CONTENT

    async def delete(self, request: Request) -> Response:
        if request.flag("force"):
            raise ForceRefused("Broker doesn't allow forced deletion of namespaces")
        namespace = namespace_of(request)
        await self._namespaces.record(namespace)
        if await self._all_topics(namespace, _MODES["ALL"]):
            raise NotEmpty("Cannot delete non empty namespace")
        await self._tenants.delete_namespace(namespace)
        return NO_CONTENT

    async def topics(self, request: Request) -> Response:
        """Topics by mode, each partition by itself; used by pattern consumers."""
        mode = request.query.get("mode", "PERSISTENT")
        if mode not in _MODES:
            raise BadRequest(f"mode is one of {', '.join(_MODES)}, not {mode!r}")
        return json_response(await self._all_topics(namespace_of(request), _MODES[mode]))

    async def _all_topics(self, namespace: str, domains: tuple[Domain, ...]) -> list[str]:
        names: list[str] = []
        for domain in domains:
            names += await self._topics.list_all(namespace, domain.value, include_partitioned=False)
        return names

    async def of_group(self, request: Request) -> Response:
        """Namespaces of a tenant with this anti-affinity group (stored only)."""
        await self._namespaces.cluster(request.params["cluster"])
        tenant, group = check_tenant(request.query.get("tenant", "")), request.params["group"]
        groups = {
            namespace: (await self._namespaces.record(namespace)).get("antiAffinityGroup")
            for namespace in await self._tenants.list_namespaces(tenant)
        }
        return json_response([namespace for namespace, one in groups.items() if one == group])

    # -- bundles

    async def bundle_topics(self, request: Request, domains: tuple[Domain, ...]) -> list[str]:
        namespace = namespace_of(request)
        boundaries = boundaries_of(await self._namespaces.record(namespace))
        span = parse_range(request.params["bundle"], boundaries)
        return [name for name in await self._all_topics(namespace, domains) if holds(span, name)]

    async def non_persistent_of_bundle(self, request: Request) -> Response:
        return json_response(await self.bundle_topics(request, (Domain.NON_PERSISTENT,)))

    async def positions(self, request: Request) -> Response:
        """The hash of each topic of a bundle, or of those that `topics` names, with commas."""
        wanted = [name for name in request.query.get("topics", "").split(",") if name]
        names = await self.bundle_topics(request, _MODES["ALL"])
        positions = {name: place_of(name) for name in names if not wanted or name in wanted}
        bundle = request.params["bundle"]
        return json_response({"namespace": namespace_of(request), "bundle": bundle, "topicHashPositions": positions})

    async def delete_bundle(self, request: Request) -> Response:
        """A bundle without topics. Bundles are only ranges of hashes here, so nothing is left to delete then."""
        if request.flag("force"):
            raise ForceRefused("Broker doesn't allow forced deletion of namespaces")
        if await self.bundle_topics(request, _MODES["ALL"]):
            raise NotEmpty("Cannot delete non empty bundle")
        return NO_CONTENT

    async def bundles(self, request: Request) -> Response:
        return json_response((await self._namespaces.shown(namespace_of(request)))["bundles"])

    async def unload(self, request: Request) -> Response:
        destination = request.query.get("destinationBroker") or None
        await self._namespaces.unload(namespace_of(request), request.params.get("bundle"), destination)
        return NO_CONTENT

    async def split(self, request: Request) -> Response:
        algorithm = request.query.get("splitAlgorithmName") or _ALGORITHMS[0]
        if algorithm not in _ALGORITHMS:
            raise NotAllowed(f"Unsupported namespace bundle split algorithm: {algorithm}")
        await self._namespaces.split_bundle(namespace_of(request), request.params["bundle"])
        return NO_CONTENT

    async def clear_backlog(self, request: Request) -> Response:
        params = request.params
        await self._namespaces.clear_backlog(namespace_of(request), params.get("bundle"), params.get("subscription"))
        return NO_CONTENT

    async def unsubscribe(self, request: Request) -> Response:
        name = check_subscription_name(request.params["subscription"])
        await self._namespaces.unsubscribe(namespace_of(request), request.params.get("bundle"), name)
        return NO_CONTENT


def namespace_routes(admin: BrokerAdmin) -> list[Route]:
    calls = NamespaceCalls(admin)
    routes = [
        Route("GET", "/admin/v2/namespaces/{tenant}", calls.list_all, "Namespaces of a tenant", TENANT_ADMIN),
        Route("GET", NAMESPACE, calls.get, "One namespace: all its policies", NAMESPACE_ADMIN),
        Route("PUT", NAMESPACE, calls.create, "Create a namespace, with policies if any", TENANT_ADMIN),
        Route("DELETE", NAMESPACE, calls.delete, "Delete an empty namespace", TENANT_ADMIN),
        Route("GET", f"{NAMESPACE}/topics", calls.topics, "Topics of a namespace by mode", NAMESPACE_LIST),
        Route("GET", f"{NAMESPACE}/bundles", calls.bundles, "Hash ranges of a namespace", NAMESPACE_LIST),
        Route("PUT", f"{NAMESPACE}/{{bundle}}/split", calls.split, "Split a bundle in two", SUPERVISE),
        Route(
            "DELETE",
            f"{NAMESPACE}/{{bundle}}",
            calls.delete_bundle,
            "Delete a bundle without topics",
            TENANT_ADMIN,
            takes=lambda params: params["bundle"].startswith("0x"),  # else a policy that cannot be deleted
        ),
        Route(
            "GET",
            f"{NAMESPACE}/{{bundle}}/topicHashPositions",
            calls.positions,
            "Hashes of the topics of a bundle",
            NAMESPACE_LIST,
        ),
        Route(
            "GET",
            "/admin/v2/non-persistent/{tenant}/{namespace}/{bundle}",
            calls.non_persistent_of_bundle,
            "Non-persistent topics of a bundle",
            NAMESPACE_LIST,
        ),
        Route(
            "GET",
            "/admin/v2/namespaces/{cluster}/antiAffinity/{group}",
            calls.of_group,
            "Namespaces of an anti-affinity group (stored only)",
            SUPERVISE,
        ),
    ]
    for prefix in (NAMESPACE, f"{NAMESPACE}/{{bundle}}"):
        routes += [
            Route("PUT", f"{prefix}/unload", calls.unload, "Close topics; their clients reconnect", TENANT_ADMIN),
            Route("POST", f"{prefix}/clearBacklog", calls.clear_backlog, "Skip all backlogs", NAMESPACE_ADMIN),
            Route(
                "POST",
                f"{prefix}/clearBacklog/{{subscription}}",
                calls.clear_backlog,
                "Skip the backlogs of one subscription",
                NAMESPACE_ADMIN,
            ),
            Route(
                "POST",
                f"{prefix}/unsubscribe/{{subscription}}",
                calls.unsubscribe,
                "Delete a subscription everywhere",
                NAMESPACE_ADMIN,
            ),
        ]
    return routes
