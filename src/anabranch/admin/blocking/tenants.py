"""The blocking form of `anabranch.admin.tenants`. Written by scripts/generate_blocking_admin.py; edit
that module, not this one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from anabranch.admin.blocking.group import Group, Names, Objects
from anabranch.admin.paths import cluster_url, tenant_body, tenant_url

_ISOLATION = "namespaceIsolationPolicies"


class Tenants(Group):
    """Owners of namespaces."""

    def list(self) -> Names:
        """Names of all tenants."""
        return self._names("GET", "/admin/v2/tenants")

    def get(self, tenant: str) -> dict[str, Any]:
        """Admin roles and allowed clusters of a tenant."""
        return self._object("GET", tenant_url(tenant))

    def create(
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
        self._create("PUT", path, body, exist_ok=exist_ok, proof=path)

    def update(self, tenant: str, *, admin_roles: Sequence[str] = (), allowed_clusters: Sequence[str] = ()) -> None:
        """Replaces both lists."""
        self._done("POST", tenant_url(tenant), tenant_body(admin_roles, allowed_clusters))

    def delete(self, tenant: str, *, force: bool = False) -> None:
        """`force`: with its namespaces and their topics."""
        self._done("DELETE", tenant_url(tenant), query={"force": force})


class Clusters(Group):
    """Names and addresses of clusters."""

    def list(self) -> Names:
        """Names of all clusters."""
        return self._names("GET", "/admin/v2/clusters")

    def get(self, cluster: str) -> dict[str, Any]:
        """Addresses of a cluster."""
        return self._object("GET", cluster_url(cluster))

    def create(self, cluster: str, addresses: dict[str, Any], *, exist_ok: bool = False) -> None:
        """`addresses` has `serviceUrl`, `brokerServiceUrl` and their TLS forms. `exist_ok`: leaves an existing one
        unchanged."""
        path = cluster_url(cluster)
        self._create("PUT", path, addresses, exist_ok=exist_ok, proof=path)

    def update(self, cluster: str, addresses: dict[str, Any]) -> None:
        """Replaces the addresses of a cluster."""
        self._done("POST", cluster_url(cluster), addresses)

    def delete(self, cluster: str) -> None:
        """Deletes the record of a cluster."""
        self._done("DELETE", cluster_url(cluster))

    # -- stored for tools; the brokers do not act on them

    def peers(self, cluster: str) -> Any:
        """Names of the peer clusters; None when none were set."""
        return self._value("GET", cluster_url(cluster, "peers"))

    def set_peers(self, cluster: str, peers: Sequence[str]) -> None:
        """Stores the names of peer clusters, for tools."""
        self._done("POST", cluster_url(cluster, "peers"), [*peers])

    def failure_domains(self, cluster: str) -> dict[str, Any]:
        """By name; each has `brokers`."""
        return self._object("GET", cluster_url(cluster, "failureDomains"))

    def failure_domain(self, cluster: str, domain: str) -> dict[str, Any]:
        """Brokers of one failure domain."""
        return self._object("GET", cluster_url(cluster, "failureDomains", domain))

    def set_failure_domain(self, cluster: str, domain: str, brokers: Sequence[str]) -> None:
        """Creates or replaces it."""
        self._done("POST", cluster_url(cluster, "failureDomains", domain), {"brokers": [*brokers]})

    def delete_failure_domain(self, cluster: str, domain: str) -> None:
        """Deletes a failure domain."""
        self._done("DELETE", cluster_url(cluster, "failureDomains", domain))

    def isolation_policies(self, cluster: str) -> dict[str, Any]:
        """By name; each has `namespaces`, `primary`, `secondary` and `auto_failover_policy`."""
        return self._object("GET", cluster_url(cluster, _ISOLATION))

    def isolation_policy(self, cluster: str, name: str) -> dict[str, Any]:
        """One isolation policy of namespaces."""
        return self._object("GET", cluster_url(cluster, _ISOLATION, name))

    def set_isolation_policy(self, cluster: str, name: str, isolation: Mapping[str, Any]) -> None:
        """Creates or replaces it."""
        self._done("POST", cluster_url(cluster, _ISOLATION, name), dict(isolation))

    def delete_isolation_policy(self, cluster: str, name: str) -> None:
        """Deletes an isolation policy."""
        self._done("DELETE", cluster_url(cluster, _ISOLATION, name))

    def isolation_of_brokers(self, cluster: str) -> Objects:
        """What the isolation policies say of each broker."""
        return self._objects("GET", cluster_url(cluster, _ISOLATION, "brokers"))

    def isolation_of_broker(self, cluster: str, broker: str) -> dict[str, Any]:
        """Isolation policies that concern one broker."""
        return self._object("GET", cluster_url(cluster, _ISOLATION, "brokers", broker))
