"""Topic lookup over HTTP, for clients with an `http://` service URL."""

from __future__ import annotations

from anabranch.broker.admin.namespaces import NamespaceAdmin
from anabranch.broker.admin.topics import TopicAdmin
from anabranch.rest.http_message import Request, Response, json_response, raw_response
from anabranch.rest.params import topic_of
from anabranch.rest.router import Route
from anabranch.security.permissions import TOPIC_LOOKUP

TOPIC_PARAMS = "{domain:persistent|non-persistent}/{tenant}/{namespace}/{topic}"


class LookupCalls:
    def __init__(self, topics: TopicAdmin, namespaces: NamespaceAdmin) -> None:
        self._topics = topics
        self._namespaces = namespaces

    async def lookup(self, request: Request) -> Response:
        listener = request.query.get("listenerName") or request.headers.get("x-pulsar-listenername")
        found = await self._topics.lookup(str(topic_of(request)), request.flag("authoritative"), listener)
        # The C++ client rejects an answer without a TLS address, even if it does not use TLS.
        return json_response({**found, "brokerUrlSsl": found.get("brokerUrlTls", "")})

    async def bundle(self, request: Request) -> Response:
        return raw_response(await self._namespaces.bundle_of(str(topic_of(request))))


def lookup_routes(topics: TopicAdmin, namespaces: NamespaceAdmin) -> list[Route]:
    calls = LookupCalls(topics, namespaces)
    return [
        Route("GET", f"/lookup/v2/topic/{TOPIC_PARAMS}", calls.lookup, "The broker that serves a topic", TOPIC_LOOKUP),
        Route(
            "GET",
            f"/lookup/v2/destination/{TOPIC_PARAMS}",
            calls.lookup,
            "The broker that serves a topic (old path)",
            TOPIC_LOOKUP,
        ),
        Route(
            "GET",
            f"/lookup/v2/topic/{TOPIC_PARAMS}/bundle",
            calls.bundle,
            "The bundle of a topic",
            TOPIC_LOOKUP,
        ),
    ]
