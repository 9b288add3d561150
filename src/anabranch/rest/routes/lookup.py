"""Where clients with an `http://` service URL begin: which broker serves a topic. Knows HTTP only through values."""

from __future__ import annotations

from anabranch.broker.admin.service import BrokerAdmin
from anabranch.rest.http_message import Request, Response, json_response, raw_response
from anabranch.rest.router import Route
from anabranch.rest.topic_path import topic_of
from anabranch.security.permissions import TOPIC_LOOKUP

TOPIC_PARAMS = "{domain:persistent|non-persistent}/{tenant}/{namespace}/{topic}"


class LookupCalls:
    def __init__(self, admin: BrokerAdmin) -> None:
        self._admin = admin

    async def lookup(self, request: Request) -> Response:
        listener = request.query.get("listenerName") or request.headers.get("x-pulsar-listenername")
        found = await self._admin.lookup(str(topic_of(request)), request.flag("authoritative"), listener)
        # The C++ client calls an answer without a TLS address malformed, even when it does not want TLS.
        return json_response({**found, "brokerUrlSsl": found.get("brokerUrlTls", "")})

    async def bundle(self, request: Request) -> Response:
        return raw_response(await self._admin.policies.bundle_of(str(topic_of(request))))


def lookup_routes(admin: BrokerAdmin) -> list[Route]:
    calls = LookupCalls(admin)
    return [
        Route("GET", f"/lookup/v2/topic/{TOPIC_PARAMS}", calls.lookup, "The broker that serves a topic", TOPIC_LOOKUP),
        Route("GET", f"/lookup/v2/destination/{TOPIC_PARAMS}", calls.lookup, "The same, by its old name", TOPIC_LOOKUP),
        Route(
            "GET",
            f"/lookup/v2/topic/{TOPIC_PARAMS}/bundle",
            calls.bundle,
            "The hash range a topic is placed by",
            TOPIC_LOOKUP,
        ),
    ]
