"""Clusters: names with addresses, and stored records about them that this broker does not act on."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from anabranch.broker.admin.brokers import BrokersAdmin
from anabranch.broker.admin.namespaces import NamespaceAdmin
from anabranch.model.errors import BadRequest, NotAllowed, NotFound
from anabranch.rest.http_message import NO_CONTENT, Request, Response, json_response
from anabranch.rest.router import Route
from anabranch.security.permissions import SIGNED_IN, SUPERVISE

_TEXTS = ("serviceUrl", "serviceUrlTls", "brokerServiceUrl", "brokerServiceUrlTls", "proxyServiceUrl", "listenerName")
_STORED = ("failureDomains", "namespaceIsolationPolicies")  # have calls of their own
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


def names_of(value: Any, what: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise BadRequest(f"{what} is a list of names")
    return list(dict.fromkeys(value))


def parse_domain(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadRequest('the body must be an object like {"brokers": ["host:8080"]}')
    return {"brokers": names_of(value.get("brokers", []), "brokers")}


def parse_isolation(value: Any) -> dict[str, Any]:
    """Pulsar's NamespaceIsolationData: expressions of namespaces and of primary and secondary brokers."""
    if not isinstance(value, dict):
        raise BadRequest('the body must be an object like {"namespaces": ["t/.*"], "primary": ["broker-.*"]}')
    data: dict[str, Any] = {key: names_of(value.get(key) or [], key) for key in ("namespaces", "primary", "secondary")}
    failover = value.get("auto_failover_policy")
    if failover is not None:
        if not isinstance(failover, dict) or not isinstance(failover.get("parameters", {}), dict):
            raise BadRequest("auto_failover_policy is an object with policy_type and parameters")
        parameters = {str(key): str(one) for key, one in failover.get("parameters", {}).items()}
        data["auto_failover_policy"] = {"policy_type": str(failover.get("policy_type")), "parameters": parameters}
    return data


class StoredRecordCalls:
    """Records of one kind in the record of a cluster, each under a name."""

    def __init__(self, admin: NamespaceAdmin, key: str, parse: Callable[[Any], dict[str, Any]], what: str) -> None:
        self._admin, self._key, self._parse, self._what = admin, key, parse, what

    async def _all(self, request: Request) -> dict[str, Any]:
        found: dict[str, Any] = (await self._admin.cluster(request.params["cluster"])).get(self._key, {})
        return found

    async def list_all(self, request: Request) -> Response:
        return json_response(await self._all(request))

    async def get(self, request: Request) -> Response:
        found = (await self._all(request)).get(request.params["name"])
        if found is None:
            raise NotFound(f"{self._what} {request.params['name']} does not exist")
        return json_response(found)

    async def set(self, request: Request) -> Response:
        value = self._parse(request.json())
        await self._change(request, lambda known: {**known, request.params["name"]: value})
        return NO_CONTENT

    async def delete(self, request: Request) -> Response:
        await self.get(request)
        name = request.params["name"]
        await self._change(request, lambda known: {key: one for key, one in known.items() if key != name})
        return Response()

    async def _change(self, request: Request, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        await self._admin.change_cluster(
            request.params["cluster"], lambda record: {**record, self._key: change(record.get(self._key, {}))}
        )


class IsolationOfBrokers:
    """Which brokers the stored isolation policies name. Nothing acts on them."""

    def __init__(self, admin: NamespaceAdmin, brokers: BrokersAdmin) -> None:
        self._admin, self._brokers = admin, brokers

    async def list_all(self, request: Request) -> Response:
        names = await self._brokers.names(request.params["cluster"])
        policies = await self._policies(request)
        return json_response([isolation_of(name, policies) for name in names])

    async def get(self, request: Request) -> Response:
        broker = request.params["broker"]
        if broker not in await self._brokers.names(request.params["cluster"]):
            raise NotFound(f"Broker {broker} does not exist")
        return json_response(isolation_of(broker, await self._policies(request)))

    async def _policies(self, request: Request) -> dict[str, Any]:
        found: dict[str, Any] = (await self._admin.cluster(request.params["cluster"])).get(_STORED[1], {})
        return found


def isolation_of(broker: str, policies: Mapping[str, Any]) -> dict[str, Any]:
    """Pulsar's BrokerNamespaceIsolationData of one broker."""
    shown: dict[str, Any] = {"brokerName": broker, "namespaceRegex": [], "primary": False}
    for name, policy in policies.items():
        is_primary, is_secondary = (any_matches(policy.get(key, []), broker) for key in ("primary", "secondary"))
        if is_primary or is_secondary:
            shown["policyName"] = name
            shown["primary"] = shown["primary"] or is_primary
            shown["namespaceRegex"] = [*shown["namespaceRegex"], *policy.get("namespaces", [])]
    return shown


def any_matches(patterns: Sequence[str], broker: str) -> bool:
    """An expression of the whole name, or of the host alone."""
    names = (broker, broker.rpartition(":")[0])
    try:
        return any(re.fullmatch(pattern, name) for pattern in patterns for name in names)
    except re.error:
        return False  # one that Java understands and Python does not


class ClusterCalls:
    def __init__(self, admin: NamespaceAdmin) -> None:
        self._admin = admin

    async def list_all(self, request: Request) -> Response:
        return json_response(await self._admin.clusters())

    async def get(self, request: Request) -> Response:
        found = await self._admin.cluster(request.params["cluster"])
        shown = {key: value for key, value in found.items() if key not in _STORED}
        return json_response({**dict.fromkeys(_FLAGS, False), **shown})

    async def peers(self, request: Request) -> Response:
        found = (await self._admin.cluster(request.params["cluster"])).get("peerClusterNames")
        return Response() if found is None else json_response(found)

    async def set_peers(self, request: Request) -> Response:
        names, cluster = names_of(request.json(), "the body"), request.params["cluster"]
        if cluster in names:
            raise NotAllowed(f"cluster {cluster} cannot be a peer of itself")
        await self._admin.check_clusters(names)
        await self._admin.change_cluster(cluster, lambda record: {**record, "peerClusterNames": names})
        return NO_CONTENT

    async def create(self, request: Request) -> Response:
        await self._admin.save_cluster(request.params["cluster"], parse_cluster(request.json()), create=True)
        return Response()

    async def update(self, request: Request) -> Response:
        data = parse_cluster(request.json())

        def change(record: dict[str, Any]) -> dict[str, Any]:
            return {**data, **{key: record[key] for key in (*_STORED, "peerClusterNames") if key in record}}

        await self._admin.change_cluster(request.params["cluster"], change)
        return Response()

    async def delete(self, request: Request) -> Response:
        await self._admin.delete_cluster(request.params["cluster"])
        return NO_CONTENT


def cluster_routes(admin: NamespaceAdmin, brokers: BrokersAdmin) -> list[Route]:
    calls, isolated = ClusterCalls(admin), IsolationOfBrokers(admin, brokers)
    cluster = "/admin/v2/clusters/{cluster}"
    domains = StoredRecordCalls(admin, "failureDomains", parse_domain, "failure domain")
    isolation = StoredRecordCalls(admin, "namespaceIsolationPolicies", parse_isolation, "isolation policy")
    stored: list[Route] = []
    for one, path, what in (
        (domains, "failureDomains", "Failure domains (stored only)"),
        (isolation, "namespaceIsolationPolicies", "Namespace isolation policies (stored only)"),
    ):
        stored += [
            Route("GET", f"{cluster}/{path}", one.list_all, what, SUPERVISE),
            Route("GET", f"{cluster}/{path}/{{name}}", one.get, f"One of: {what}", SUPERVISE),
            Route("POST", f"{cluster}/{path}/{{name}}", one.set, f"Set one of: {what}", SUPERVISE),
            Route("DELETE", f"{cluster}/{path}/{{name}}", one.delete, f"Delete one of: {what}", SUPERVISE),
        ]
    of_brokers = f"{cluster}/namespaceIsolationPolicies/brokers"
    return [
        *stored,
        Route("GET", of_brokers, isolated.list_all, "Brokers that isolation policies name", SUPERVISE),
        Route("GET", f"{of_brokers}/{{broker}}", isolated.get, "Isolation policies of a broker", SUPERVISE),
        Route("GET", f"{cluster}/peers", calls.peers, "Peer clusters (stored only)", SUPERVISE),
        Route("POST", f"{cluster}/peers", calls.set_peers, "Set the peer clusters", SUPERVISE),
        Route("GET", "/admin/v2/clusters", calls.list_all, "Clusters", SIGNED_IN),
        Route("GET", cluster, calls.get, "Addresses of a cluster", SIGNED_IN),
        Route("PUT", cluster, calls.create, "Add a cluster", SUPERVISE),
        Route("POST", cluster, calls.update, "Change a cluster's addresses", SUPERVISE),
        Route("DELETE", cluster, calls.delete, "Delete a cluster that is not in use", SUPERVISE),
    ]
