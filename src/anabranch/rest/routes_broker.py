"""The broker itself: health, version, metrics, and what does not exist yet. Knows HTTP only through values."""

from __future__ import annotations

from anabranch.model.errors import NotFound
from anabranch.rest.face import BrokerFace
from anabranch.rest.message import TEXT, Request, Response, raw_response
from anabranch.rest.router import Route

_PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


class BrokerCalls:
    def __init__(self, face: BrokerFace, version: str) -> None:
        self._face = face
        self._version = version

    async def health(self, request: Request) -> Response:
        self._face.health()
        return raw_response("ok")

    async def status(self, request: Request) -> Response:
        self._face.health()
        return raw_response("OK", TEXT)

    async def version(self, request: Request) -> Response:
        return raw_response(self._version)

    async def metrics(self, request: Request) -> Response:
        return raw_response(self._face.metrics(), _PROMETHEUS)

    async def schema(self, request: Request) -> Response:
        raise NotFound("Schema not found")


def broker_routes(face: BrokerFace, version: str) -> list[Route]:
    calls = BrokerCalls(face, version)
    return [
        Route("GET", "/admin/v2/brokers/health", calls.health, "Does this broker serve?"),
        Route("GET", "/admin/v2/brokers/ready", calls.health, "The same, by another name"),
        Route("GET", "/admin/v2/brokers/version", calls.version, "Version of this broker"),
        Route("GET", "/status.html", calls.status, "Health for load balancers"),
        Route("GET", "/metrics", calls.metrics, "Figures for Prometheus"),
        Route("GET", "/admin/v2/schemas/{tenant}/{namespace}/{topic}/schema", calls.schema, "Schema of a topic"),
        Route("GET", "/admin/v2/schemas/{tenant}/{namespace}/{topic}/schema/{version}", calls.schema, "One version"),
    ]
