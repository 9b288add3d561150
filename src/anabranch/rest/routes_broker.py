"""The broker itself: health, version, metrics. Knows HTTP only through values."""

from __future__ import annotations

from anabranch.broker.exposition import CONTENT_TYPE
from anabranch.broker.permissions import OPEN, SIGNED_IN
from anabranch.rest.face import BrokerFace
from anabranch.rest.message import TEXT, Request, Response, raw_response
from anabranch.rest.router import Route


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
        return Response(200, content_type=CONTENT_TYPE, pieces=self._face.metrics())


def broker_routes(face: BrokerFace, version: str) -> list[Route]:
    calls = BrokerCalls(face, version)
    return [
        Route("GET", "/admin/v2/brokers/health", calls.health, "Does this broker serve?", SIGNED_IN),
        Route("GET", "/admin/v2/brokers/ready", calls.health, "The same, by another name", SIGNED_IN),
        Route("GET", "/admin/v2/brokers/version", calls.version, "Version of this broker", SIGNED_IN),
        Route("GET", "/status.html", calls.status, "Health for load balancers", OPEN),
        Route("GET", "/metrics", calls.metrics, "Figures for Prometheus", OPEN),
    ]
