"""Tenants, namespaces and the cluster's name: as much as clients and pulsar-admin ask before anything else."""

from __future__ import annotations

from typing import Any

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
        if request.params["tenant"] not in await self._face.list_tenants():
            raise NotFound("Tenant does not exist")
        return json_response({"adminRoles": [], "allowedClusters": [CLUSTER]})

    async def create_tenant(self, request: Request) -> Response:
        _check_tenant_info(request.json())
        await self._face.create_tenant(check_tenant(request.params["tenant"]))
        return NO_CONTENT

    async def namespaces(self, request: Request) -> Response:
        return json_response(await self._face.list_namespaces(check_tenant(request.params["tenant"])))

    async def namespace(self, request: Request) -> Response:
        await self._check_namespace(request)
        return json_response({"replication_clusters": [CLUSTER], "bundles": _WHOLE_RING, "deleted": False})

    async def bundles(self, request: Request) -> Response:
        await self._check_namespace(request)
        return json_response(_WHOLE_RING)

    async def create_namespace(self, request: Request) -> Response:
        await self._face.create_namespace(namespace_of(request))
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


def _check_tenant_info(value: Any) -> None:
    """The body may name roles and clusters; what cannot be honoured yet is refused rather than dropped."""
    if value is None:
        return
    if not isinstance(value, dict):
        raise BadRequest('the body is an object like {"allowedClusters": ["standalone"]}')
    if value.get("adminRoles"):
        raise BadRequest("admin roles are not kept in this release")
    if not set(value.get("allowedClusters") or [CLUSTER]) <= {CLUSTER}:
        raise BadRequest(f"the only cluster is {CLUSTER}")


def tenant_routes(face: BrokerFace) -> list[Route]:
    calls = TenantCalls(face)
    tenant, namespace = "/admin/v2/tenants/{tenant}", "/admin/v2/namespaces/{tenant}/{namespace}"
    return [
        Route("GET", "/admin/v2/clusters", calls.clusters, "Clusters"),
        Route("GET", "/admin/v2/tenants", calls.tenants, "Tenants"),
        Route("GET", tenant, calls.tenant, "One tenant"),
        Route("PUT", tenant, calls.create_tenant, "Create a tenant"),
        Route("GET", "/admin/v2/namespaces/{tenant}", calls.namespaces, "Namespaces of a tenant"),
        Route("GET", namespace, calls.namespace, "One namespace"),
        Route("PUT", namespace, calls.create_namespace, "Create a namespace"),
        Route("DELETE", namespace, calls.delete_namespace, "Delete an empty namespace"),
        Route("GET", f"{namespace}/bundles", calls.bundles, "Hash ranges of a namespace"),
        Route("GET", f"{namespace}/deduplication", calls.deduplication, "Is deduplication on? Empty: not set"),
        Route("POST", f"{namespace}/deduplication", calls.set_deduplication, "Turn deduplication on or off"),
        Route("DELETE", f"{namespace}/deduplication", calls.unset_deduplication, "Back to the broker's default"),
        Route("GET", f"{namespace}/topics", calls.topics, "Topics of a namespace by mode"),
    ]
