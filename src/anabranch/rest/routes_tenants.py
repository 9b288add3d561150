"""Tenants, namespaces and the cluster's name: as much as clients and pulsar-admin ask before anything else."""

from __future__ import annotations

from typing import Any

from anabranch.broker.authorization import Grants, role_set
from anabranch.broker.permissions import NAMESPACE_ADMIN, NAMESPACE_LIST, SIGNED_IN, SUPERVISE, TENANT_ADMIN
from anabranch.model.errors import BadRequest, NotAllowed, NotFound
from anabranch.model.names import Domain, check_tenant
from anabranch.rest.errors import NotEmpty
from anabranch.rest.face import BrokerFace
from anabranch.rest.message import NO_CONTENT, Request, Response, json_response
from anabranch.rest.router import Route
from anabranch.rest.routes_topics import namespace_of

CLUSTER = "standalone"
_MODES = {
    "PERSISTENT": (Domain.PERSISTENT,),
    "NON_PERSISTENT": (Domain.NON_PERSISTENT,),
    "ALL": (Domain.PERSISTENT, Domain.NON_PERSISTENT),
}
_WHOLE_RING = {"boundaries": ["0x00000000", "0xffffffff"], "numBundles": 1}


class TenantCalls:
    def __init__(self, face: BrokerFace) -> None:
        self._face = face

    async def clusters(self, request: Request) -> Response:
        return json_response([CLUSTER])

    async def tenants(self, request: Request) -> Response:
        return json_response(await self._face.list_tenants())

    async def tenant(self, request: Request) -> Response:
        found = await self._face.tenant(request.params["tenant"])
        return json_response({"adminRoles": found.get("adminRoles", []), "allowedClusters": [CLUSTER]})

    async def create_tenant(self, request: Request) -> Response:
        record = parse_tenant(request.json())
        await self._face.create_tenant(check_tenant(request.params["tenant"]), record)
        return NO_CONTENT

    async def update_tenant(self, request: Request) -> Response:
        record = parse_tenant(request.json())
        await self._face.update_tenant(check_tenant(request.params["tenant"]), record)
        return NO_CONTENT

    async def delete_tenant(self, request: Request) -> Response:
        tenant = check_tenant(request.params["tenant"])
        if request.flag("force"):
            raise NotAllowed("tenants with namespaces are not deleted by force; delete the namespaces first")
        if await self._face.list_namespaces(tenant):
            raise NotEmpty("The tenant still has active namespaces")
        await self._face.delete_tenant(tenant)
        return NO_CONTENT

    async def namespaces(self, request: Request) -> Response:
        return json_response(await self._face.list_namespaces(check_tenant(request.params["tenant"])))

    async def namespace(self, request: Request) -> Response:
        await self._check_namespace(request)
        grants = (await self._face.grants(namespace_of(request))).dump()
        return json_response({**grants, "replication_clusters": [CLUSTER], "bundles": _WHOLE_RING, "deleted": False})

    async def bundles(self, request: Request) -> Response:
        await self._check_namespace(request)
        return json_response(_WHOLE_RING)

    async def create_namespace(self, request: Request) -> Response:
        await self._face.create_namespace(namespace_of(request), parse_namespace_access(request.json()))
        return NO_CONTENT

    async def delete_namespace(self, request: Request) -> Response:
        if request.flag("force"):
            raise NotAllowed("namespaces with topics are not deleted by force; delete the topics first")
        namespace = namespace_of(request)
        if await self._all_topics(namespace, _MODES["ALL"]):
            raise NotEmpty("Cannot delete non empty namespace")
        await self._face.delete_namespace(namespace)
        return NO_CONTENT

    async def deduplication(self, request: Request) -> Response:
        enabled = await self._face.get_deduplication(namespace_of(request))
        return Response() if enabled is None else json_response(enabled)

    async def set_deduplication(self, request: Request) -> Response:
        enabled = request.json()
        if not isinstance(enabled, bool):
            raise BadRequest("the body is true or false")
        await self._face.set_deduplication(namespace_of(request), enabled)
        return NO_CONTENT

    async def unset_deduplication(self, request: Request) -> Response:
        await self._face.set_deduplication(namespace_of(request), None)
        return NO_CONTENT

    async def topics(self, request: Request) -> Response:
        """What pattern consumers ask for: topics by mode, partitions one by one."""
        mode = request.query.get("mode", "PERSISTENT")
        if mode not in _MODES:
            raise BadRequest(f"mode is one of {', '.join(_MODES)}, not {mode!r}")
        return json_response(await self._all_topics(namespace_of(request), _MODES[mode]))

    async def _all_topics(self, namespace: str, domains: tuple[Domain, ...]) -> list[str]:
        names: list[str] = []
        for domain in domains:
            names += await self._face.list_topics(namespace, domain.value, include_partitioned=False)
        return names

    async def _check_namespace(self, request: Request) -> None:
        namespace = namespace_of(request)
        if namespace not in await self._face.list_namespaces(request.params["tenant"]):
            raise NotFound("Namespace does not exist")


def parse_tenant(value: Any) -> dict[str, Any]:
    """Admin roles and clusters of a tenant; what cannot be honoured is refused rather than dropped."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise BadRequest('the body is an object like {"adminRoles": [], "allowedClusters": ["standalone"]}')
    roles = role_set(value.get("adminRoles") or [])
    clusters = value.get("allowedClusters") or [CLUSTER]
    if not isinstance(clusters, list) or any(cluster != CLUSTER for cluster in clusters):
        raise BadRequest(f"the only cluster is {CLUSTER}")
    return {"adminRoles": sorted(roles), "allowedClusters": [CLUSTER]}


def parse_namespace_access(value: Any) -> dict[str, Any]:
    """The permissions that a new namespace begins with, from the body of its creation."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise BadRequest('the body is an object like {"auth_policies": {"namespace_auth": {"role": ["produce"]}}}')
    return Grants.load(value).dump() if value.get("auth_policies") or value.get("subscription_auth_mode") else {}


def tenant_routes(face: BrokerFace) -> list[Route]:
    calls = TenantCalls(face)
    tenant, namespace = "/admin/v2/tenants/{tenant}", "/admin/v2/namespaces/{tenant}/{namespace}"
    return [
        Route("GET", "/admin/v2/clusters", calls.clusters, "Clusters", SIGNED_IN),
        Route("GET", "/admin/v2/tenants", calls.tenants, "Tenants", SUPERVISE),
        Route("GET", tenant, calls.tenant, "One tenant", TENANT_ADMIN),
        Route("PUT", tenant, calls.create_tenant, "Create a tenant", SUPERVISE),
        Route("POST", tenant, calls.update_tenant, "Change a tenant's admin roles", SUPERVISE),
        Route("DELETE", tenant, calls.delete_tenant, "Delete a tenant without namespaces", SUPERVISE),
        Route("GET", "/admin/v2/namespaces/{tenant}", calls.namespaces, "Namespaces of a tenant", TENANT_ADMIN),
        Route("GET", namespace, calls.namespace, "One namespace", NAMESPACE_ADMIN),
        Route("PUT", namespace, calls.create_namespace, "Create a namespace", TENANT_ADMIN),
        Route("DELETE", namespace, calls.delete_namespace, "Delete an empty namespace", TENANT_ADMIN),
        Route("GET", f"{namespace}/bundles", calls.bundles, "Hash ranges of a namespace", NAMESPACE_LIST),
        Route(
            "GET",
            f"{namespace}/deduplication",
            calls.deduplication,
            "Is deduplication on? Empty: not set",
            NAMESPACE_ADMIN,
        ),
        Route(
            "POST",
            f"{namespace}/deduplication",
            calls.set_deduplication,
            "Turn deduplication on or off",
            NAMESPACE_ADMIN,
        ),
        Route(
            "DELETE",
            f"{namespace}/deduplication",
            calls.unset_deduplication,
            "Back to the broker's default",
            NAMESPACE_ADMIN,
        ),
        Route("GET", f"{namespace}/topics", calls.topics, "Topics of a namespace by mode", NAMESPACE_LIST),
    ]
