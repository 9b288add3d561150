"""Brokers of the cluster, health, version, configuration, metrics."""

from __future__ import annotations

from anabranch.broker.admin.service import BrokerAdmin
from anabranch.rest.http_message import NO_CONTENT, TEXT, Request, Response, json_response, raw_response
from anabranch.rest.router import Route
from anabranch.runtime.prometheus_format import CONTENT_TYPE, by_labels
from anabranch.security.permissions import OPEN, SIGNED_IN, SUPERVISE


class BrokerCalls:
    def __init__(self, admin: BrokerAdmin, version: str) -> None:
        self._admin = admin
        self._brokers = admin.brokers
        self._version = version

    async def health(self, request: Request) -> Response:
        self._admin.health()
        return raw_response("ok")

    async def status(self, request: Request) -> Response:
        self._admin.health()
        return raw_response("OK", TEXT)

    async def version(self, request: Request) -> Response:
        return raw_response(self._version)

    async def metrics(self, request: Request) -> Response:
        return Response(200, content_type=CONTENT_TYPE, pieces=self._admin.metrics())

    async def metrics_json(self, request: Request) -> Response:
        text = b"".join([piece async for piece in self._admin.metrics()]).decode()
        return json_response(by_labels(text))

    async def list_all(self, request: Request) -> Response:
        return json_response(await self._brokers.names(request.params.get("cluster")))

    async def details(self, request: Request) -> Response:
        return json_response(await self._brokers.details(request.params["cluster"]))

    async def drain(self, request: Request) -> Response:
        await self._brokers.drain(request.params["cluster"], request.params["broker"])
        return NO_CONTENT

    async def resume(self, request: Request) -> Response:
        await self._brokers.resume(request.params["cluster"], request.params["broker"])
        return NO_CONTENT

    async def leader(self, request: Request) -> Response:
        return json_response(await self._brokers.leader())

    async def owned(self, request: Request) -> Response:
        return json_response(await self._brokers.owned(request.params["cluster"], request.params["broker"]))

    async def machines(self, request: Request) -> Response:
        return json_response(await self._admin.machines.facts())

    async def topics(self, request: Request) -> Response:
        return json_response(await self._brokers.topics())

    async def dynamic_names(self, request: Request) -> Response:
        return json_response(self._brokers.dynamic_names())

    async def dynamic(self, request: Request) -> Response:
        return json_response(self._brokers.dynamic())

    async def configuration(self, request: Request) -> Response:
        return json_response(self._brokers.configuration())

    async def change(self, request: Request) -> Response:
        await self._brokers.change(request.params["setting"], request.params.get("value"))
        return Response()

    async def internal(self, request: Request) -> Response:
        return json_response(self._brokers.internal())

    async def check_quotas(self, request: Request) -> Response:
        await self._brokers.check_quotas()
        return NO_CONTENT


def broker_routes(admin: BrokerAdmin, version: str) -> list[Route]:
    calls = BrokerCalls(admin, version)
    brokers = "/admin/v2/brokers"
    one = f"{brokers}/{{cluster}}/{{broker}}"
    configuration = f"{brokers}/configuration"
    return [
        Route("GET", brokers, calls.list_all, "Brokers of this cluster", SUPERVISE),
        Route("GET", f"{brokers}/{{cluster}}", calls.list_all, "Brokers of a cluster", SUPERVISE),
        Route("GET", f"{brokers}/{{cluster}}/details", calls.details, "Brokers with addresses and slots", SUPERVISE),
        Route("POST", f"{one}/drain", calls.drain, "Move all topics of a broker to the others", SUPERVISE),
        Route("DELETE", f"{one}/drain", calls.resume, "Let topics move to a drained broker again", SUPERVISE),
        Route("GET", f"{brokers}/leaderBroker", calls.leader, "The broker that leads", SIGNED_IN),
        Route(
            "GET",
            f"{one}/ownedNamespaces",
            calls.owned,
            "Bundles that a broker serves",
            SUPERVISE,
        ),
        Route("GET", f"{brokers}/health", calls.health, "Whether this broker serves", SIGNED_IN),
        Route("GET", f"{brokers}/ready", calls.health, "Whether this broker serves (alias of health)", SIGNED_IN),
        Route("GET", f"{brokers}/version", calls.version, "Version of this broker", SIGNED_IN),
        Route("GET", configuration, calls.dynamic_names, "Settings that can change at run time", SUPERVISE),
        Route("GET", f"{configuration}/values", calls.dynamic, "Settings that were changed at run time", SUPERVISE),
        Route("GET", f"{configuration}/runtime", calls.configuration, "Every setting, without secrets", SUPERVISE),
        Route("POST", f"{configuration}/{{setting}}/{{value}}", calls.change, "Change a setting everywhere", SUPERVISE),
        Route("DELETE", f"{configuration}/{{setting}}", calls.change, "Back to the value of the start", SUPERVISE),
        Route("GET", f"{brokers}/internal-configuration", calls.internal, "Where metadata is kept", SUPERVISE),
        Route("GET", f"{brokers}/backlog-quota-check", calls.check_quotas, "Check all backlog quotas now", SUPERVISE),
        Route("GET", f"{brokers}/backlogQuotaCheck", calls.check_quotas, "The same: pulsar-admin's path", SUPERVISE),
        Route("GET", "/anabranch/v1/machines", calls.machines, "Disk, files, clock of each broker", SUPERVISE),
        Route("GET", "/admin/v2/broker-stats/topics", calls.topics, "Stats of all loaded topics", SUPERVISE),
        Route("GET", "/admin/v2/broker-stats/destinations", calls.topics, "The same: its first name", SUPERVISE),
        Route("GET", "/admin/v2/broker-stats/metrics", calls.metrics_json, "Metrics as JSON, by labels", SUPERVISE),
        Route("GET", "/status.html", calls.status, "Health for load balancers", OPEN),
        Route("GET", "/metrics", calls.metrics, "Metrics for Prometheus", OPEN),
    ]
