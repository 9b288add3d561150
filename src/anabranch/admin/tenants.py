"""Tenants and clusters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from anabranch.admin.group import Group, Names, Objects
from anabranch.admin.paths import cluster_url, tenant_body, tenant_url

_ISOLATION = "namespaceIsolationPolicies"


class Tenants(Group):
    """Owners of namespaces."""

    async def list(self) -> Names:
        """Names of all tenants."""
        return await self._names("GET", "/admin/v2/tenants")

    async def get(self, tenant: str) -> dict[str, Any]:
        """Admin roles and allowed clusters of a tenant."""
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
        """Names of all clusters."""
        return await self._names("GET", "/admin/v2/clusters")

    async def get(self, cluster: str) -> dict[str, Any]:
        """Addresses of a cluster."""
        return await self._object("GET", cluster_url(cluster))

    async def create(self, cluster: str, addresses: dict[str, Any], *, exist_ok: bool = False) -> None:
        """`addresses` has `serviceUrl`, `brokerServiceUrl` and their TLS forms. `exist_ok`: leaves an existing one
        unchanged."""
        path = cluster_url(cluster)
        await self._create("PUT", path, addresses, exist_ok=exist_ok, proof=path)

    async def update(self, cluster: str, addresses: dict[str, Any]) -> None:
        """Replaces the addresses of a cluster."""
        await self._done("POST", cluster_url(cluster), addresses)

    async def delete(self, cluster: str) -> None:
        """Deletes the record of a cluster."""
        await self._done("DELETE", cluster_url(cluster))

    # -- stored for tools; the brokers do not act on them

    async def peers(self, cluster: str) -> Any:
        """Names of the peer clusters; None when none were set."""
        return await self._value("GET", cluster_url(cluster, "peers"))

    async def set_peers(self, cluster: str, peers: Sequence[str]) -> None:
        """Stores the names of peer clusters, for tools."""
        await self._done("POST", cluster_url(cluster, "peers"), [*peers])

    async def failure_domains(self, cluster: str) -> dict[str, Any]:
        """By name; each has `brokers`."""
        return await self._object("GET", cluster_url(cluster, "failureDomains"))

    async def failure_domain(self, cluster: str, domain: str) -> dict[str, Any]:
        """Brokers of one failure domain."""
        return await self._object("GET", cluster_url(cluster, "failureDomains", domain))

    async def set_failure_domain(self, cluster: str, domain: str, brokers: Sequence[str]) -> None:
        """Creates or replaces it."""
        await self._done("POST", cluster_url(cluster, "failureDomains", domain), {"brokers": [*brokers]})

    async def delete_failure_domain(self, cluster: str, domain: str) -> None:
        """Deletes a failure domain."""
        await self._done("DELETE", cluster_url(cluster, "failureDomains", domain))

    async def isolation_policies(self, cluster: str) -> dict[str, Any]:
        """By name; each has `namespaces`, `primary`, `secondary` and `auto_failover_policy`."""
        return await self._object("GET", cluster_url(cluster, _ISOLATION))

    async def isolation_policy(self, cluster: str, name: str) -> dict[str, Any]:
        """One isolation policy of namespaces."""
        return await self._object("GET", cluster_url(cluster, _ISOLATION, name))

    async def set_isolation_policy(self, cluster: str, name: str, isolation: Mapping[str, Any]) -> None:
        """Creates or replaces it."""
        await self._done("POST", cluster_url(cluster, _ISOLATION, name), dict(isolation))

    async def delete_isolation_policy(self, cluster: str, name: str) -> None:
        """Deletes an isolation policy."""
        await self._done("DELETE", cluster_url(cluster, _ISOLATION, name))

    async def isolation_of_brokers(self, cluster: str) -> Objects:
        """What the isolation policies say of each broker."""
        return await self._objects("GET", cluster_url(cluster, _ISOLATION, "brokers"))

    async def isolation_of_broker(self, cluster: str, broker: str) -> dict[str, Any]:
        """Isolation policies that concern one broker."""
        return await self._object("GET", cluster_url(cluster, _ISOLATION, "brokers", broker))
