"""Tenants and clusters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from anabranch.admin.group import Group, Names
from anabranch.admin.paths import cluster_url, tenant_body, tenant_url


class Tenants(Group):
    """Owners of namespaces."""

    async def list(self) -> Names:
        return await self._names("GET", "/admin/v2/tenants")

    async def get(self, tenant: str) -> dict[str, Any]:
        return await self._object("GET", tenant_url(tenant))

    async def create(
        self,
        tenant: str,
        *,
        admin_roles: Sequence[str] = (),
        allowed_clusters: Sequence[str] = (),
        exist_ok: bool = False,
    ) -> None:
        """`allowed_clusters`: clusters of its namespaces; at least one. `exist_ok`: leaves an existing tenant as it
        is."""
        path, body = tenant_url(tenant), tenant_body(admin_roles, allowed_clusters)
        await self._create("PUT", path, body, exist_ok=exist_ok, proof=path)

    async def update(
        self, tenant: str, *, admin_roles: Sequence[str] = (), allowed_clusters: Sequence[str] = ()
    ) -> None:
        """Replaces both lists."""
        await self._done("POST", tenant_url(tenant), tenant_body(admin_roles, allowed_clusters))

    async def delete(self, tenant: str, *, force: bool = False) -> None:
        """`force`: with its namespaces and their topics."""
        await self._done("DELETE", tenant_url(tenant), query={"force": force})


class Clusters(Group):
    """Names and addresses of clusters."""

    async def list(self) -> Names:
        return await self._names("GET", "/admin/v2/clusters")

    async def get(self, cluster: str) -> dict[str, Any]:
        return await self._object("GET", cluster_url(cluster))

    async def create(self, cluster: str, addresses: dict[str, Any], *, exist_ok: bool = False) -> None:
        """`addresses` has `serviceUrl`, `brokerServiceUrl` and their TLS forms. `exist_ok`: leaves an existing one
        unchanged."""
        path = cluster_url(cluster)
        await self._create("PUT", path, addresses, exist_ok=exist_ok, proof=path)

    async def update(self, cluster: str, addresses: dict[str, Any]) -> None:
        await self._done("POST", cluster_url(cluster), addresses)

    async def delete(self, cluster: str) -> None:
        await self._done("DELETE", cluster_url(cluster))
