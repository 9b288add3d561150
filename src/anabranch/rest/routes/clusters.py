"""Clusters: names with addresses."""

from __future__ import annotations

from typing import Any

from anabranch.broker.admin.namespaces import NamespaceAdmin
from anabranch.model.errors import BadRequest
from anabranch.rest.http_message import NO_CONTENT, Request, Response, json_response
from anabranch.rest.router import Route
from anabranch.security.permissions import SIGNED_IN, SUPERVISE

_TEXTS = ("serviceUrl", "serviceUrlTls", "brokerServiceUrl", "brokerServiceUrlTls", "proxyServiceUrl", "listenerName")
_FLAGS = ("brokerClientTlsEnabled", "tlsAllowInsecureConnection", "brokerClientTlsEnabledWithKeyStore")


def parse_cluster(value: Any) -> dict[str, Any]:
    """Addresses and flags of a cluster; null fields count as absent, unknown ones are dropped."""
    if value is None:
        raise BadRequest("cluster data is required")
    if not isinstance(value, dict):
        raise BadRequest('the body must be an object like {"serviceUrl": "http://host:8080", "brokerServiceUrl": "…"}')
    data: dict[str, Any] = {}
    for key in _TEXTS:
        if (text := value.get(key)) is not None:
            if not isinstance(text, str):
                raise BadRequest(f"{key} is a text")
            data[key] = text
    for key in _FLAGS:
        flag = value.get(key, False)
        if not isinstance(flag, bool | None):
            raise BadRequest(f"{key} must be true or false")
        data[key] = bool(flag)
    return data


class ClusterCalls:
    def __init__(self, admin: NamespaceAdmin) -> None:
        self._admin = admin

    async def list_all(self, request: Request) -> Response:
        return json_response(await self._admin.clusters())

    async def get(self, request: Request) -> Response:
        found = await self._admin.cluster(request.params["cluster"])
        return json_response({**dict.fromkeys(_FLAGS, False), **found})

    async def create(self, request: Request) -> Response:
        await self._admin.save_cluster(request.params["cluster"], parse_cluster(request.json()), create=True)
        return Response()

    async def update(self, request: Request) -> Response:
        await self._admin.save_cluster(request.params["cluster"], parse_cluster(request.json()), create=False)
        return Response()

    async def delete(self, request: Request) -> Response:
        await self._admin.delete_cluster(request.params["cluster"])
        return NO_CONTENT


def cluster_routes(admin: NamespaceAdmin) -> list[Route]:
    calls = ClusterCalls(admin)
    cluster = "/admin/v2/clusters/{cluster}"
    return [
        Route("GET", "/admin/v2/clusters", calls.list_all, "Clusters", SIGNED_IN),
        Route("GET", cluster, calls.get, "Addresses of a cluster", SIGNED_IN),
        Route("PUT", cluster, calls.create, "Add a cluster", SUPERVISE),
        Route("POST", cluster, calls.update, "Change a cluster's addresses", SUPERVISE),
        Route("DELETE", cluster, calls.delete, "Delete a cluster that is not in use", SUPERVISE),
    ]
