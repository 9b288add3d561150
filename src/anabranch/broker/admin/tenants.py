"""Tenants, their namespaces and the permissions granted in them, for administrators.

Namespaces are named `tenant/namespace`. Policies of namespaces are in `namespaces`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from anabranch.broker.services import Services
from anabranch.broker.wire.server import BrokerServer
from anabranch.security.authorization import Grants


class TenantAdmin:
    def __init__(self, services: Callable[[], Services], server: BrokerServer) -> None:
        self._services = services
        self._server = server

    async def list_tenants(self) -> list[str]:
        return await self._services().catalog.tenants()

    async def tenant(self, tenant: str) -> dict[str, Any]:
        """The stored record; NotFound."""
        return await self._services().catalog.tenant(tenant)

    async def create_tenant(self, tenant: str, record: Mapping[str, Any]) -> None:
        await self._services().catalog.create_tenant(tenant, dict(record))

    async def update_tenant(self, tenant: str, record: Mapping[str, Any]) -> None:
        await self._services().catalog.update_tenant(tenant, dict(record))
        await self._server.permissions_changed(tenant)

    async def delete_tenant(self, tenant: str) -> None:
        await self._services().catalog.delete_tenant(tenant)

    async def list_namespaces(self, tenant: str) -> list[str]:
        """As `tenant/namespace`, sorted; NotFound for an unknown tenant."""
        return await self._services().catalog.namespaces(tenant)

    async def create_namespace(self, namespace: str, record: Mapping[str, Any]) -> None:
        """`record`: policies under Pulsar's names."""
        await self._services().catalog.create_namespace(namespace, dict(record))

    async def delete_namespace(self, namespace: str) -> None:
        await self._services().catalog.delete_namespace(namespace)
        await self._services().schemas.forget_namespace(namespace)

    # -- permissions

    async def grants(self, namespace: str) -> Grants:
        """NotFound for an unknown namespace."""
        await self._services().catalog.policies(namespace)
        return await self._services().catalog.grants(namespace)

    async def change_grants(self, namespace: str, change: Callable[[Grants], Grants]) -> None:
        """Takes effect at once: producers and consumers that lose their permission are closed."""
        await self._services().catalog.change_grants(namespace, change)
        await self._server.permissions_changed(namespace.partition("/")[0], namespace)
