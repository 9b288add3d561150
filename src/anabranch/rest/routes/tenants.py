"""Tenants: admin roles and allowed clusters."""

from __future__ import annotations

from typing import Any

from anabranch.broker.admin.namespaces import NamespaceAdmin
from anabranch.broker.admin.tenants import TenantAdmin
from anabranch.broker.catalog.policies import LOCAL_CLUSTER
from anabranch.model.errors import BadRequest, NotAllowed
from anabranch.model.names import check_tenant
from anabranch.rest.errors import ForceRefused, NotEmpty
from anabranch.rest.http_message import NO_CONTENT, Request, Response, json_response
from anabranch.rest.router import Route
from anabranch.security.authorization import role_set
from anabranch.security.permissions import SUPERVISE, TENANT_ADMIN


class TenantCalls:
    def __init__(self, tenants: TenantAdmin, namespaces: NamespaceAdmin) -> None:
        self._tenants = tenants
        self._namespaces = namespaces

    async def tenants(self, request: Request) -> Response:
        return json_response(await self._tenants.list_tenants())

    async def tenant(self, request: Request) -> Response:
        found = await self._tenants.tenant(request.params["tenant"])
        return json_response(
            {
                "adminRoles": found.get("adminRoles", []),
                "allowedClusters": found.get("allowedClusters") or [LOCAL_CLUSTER],
            }
        )

    async def create_tenant(self, request: Request) -> Response:
        tenant, record = check_tenant(request.params["tenant"]), await self._record(request)
        await self._tenants.create_tenant(tenant, record)
        return NO_CONTENT

    async def update_tenant(self, request: Request) -> Response:
        tenant, record = check_tenant(request.params["tenant"]), await self._record(request)
        await self._tenants.update_tenant(tenant, record)
        return NO_CONTENT

    async def _record(self, request: Request) -> dict[str, Any]:
        record = parse_tenant(request.json())
        if record.get("allowedClusters", [LOCAL_CLUSTER]) != [LOCAL_CLUSTER]:
            await self._namespaces.check_clusters(record["allowedClusters"])
        return record

    async def delete_tenant(self, request: Request) -> Response:
        tenant = check_tenant(request.params["tenant"])
        if request.flag("force"):
            raise ForceRefused("Broker doesn't allow forced deletion of tenants")
        if await self._tenants.list_namespaces(tenant):
            raise NotEmpty("The tenant still has active namespaces")
        await self._tenants.delete_tenant(tenant)
        return NO_CONTENT


def parse_tenant(value: Any) -> dict[str, Any]:
    """Admin roles and clusters of a tenant; the default is this cluster."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise BadRequest('the body must be an object like {"adminRoles": [], "allowedClusters": ["standalone"]}')
    roles = role_set(value.get("adminRoles") or [])
    clusters = value.get("allowedClusters")
    if clusters is None:
        clusters = [LOCAL_CLUSTER]
    if not isinstance(clusters, list) or not all(isinstance(one, str) for one in clusters):
        raise BadRequest("allowedClusters must be a list of names")
    if not clusters or not all(one.strip() for one in clusters):
        raise NotAllowed("Clusters cannot be empty or blank")
    return {"adminRoles": sorted(roles), "allowedClusters": sorted(set(clusters))}


def tenant_routes(tenants: TenantAdmin, namespaces: NamespaceAdmin) -> list[Route]:
    calls = TenantCalls(tenants, namespaces)
    tenant = "/admin/v2/tenants/{tenant}"
    return [
        Route("GET", "/admin/v2/tenants", calls.tenants, "Tenants", SUPERVISE),
        Route("GET", tenant, calls.tenant, "One tenant", TENANT_ADMIN),
        Route("PUT", tenant, calls.create_tenant, "Create a tenant", SUPERVISE),
        Route("POST", tenant, calls.update_tenant, "Change a tenant's admin roles and clusters", SUPERVISE),
        Route("DELETE", tenant, calls.delete_tenant, "Delete a tenant without namespaces", SUPERVISE),
    ]
