"""Where clients with an `http://` service URL begin: which broker serves a topic. Knows HTTP only through values."""

from __future__ import annotations

from anabranch.broker.admin.namespaces import NamespaceAdmin
from anabranch.broker.admin.topics import TopicAdmin
from anabranch.rest.http_message import Request, Response, json_response, raw_response
from anabranch.rest.router import Route
from anabranch.rest.topic_path import topic_of
from anabranch.security.permissions import TOPIC_LOOKUP

TOPIC_PARAMS = "{domain:persistent|non-persistent}/{tenant}/{namespace}/{topic}"


class LookupCalls:
    def __init__(self, topics: TopicAdmin, namespaces: NamespaceAdmin) -> None:
        self._topics = topics
        self._namespaces = namespaces

    async def lookup(self, request: Request) -> Response:
        listener = request.query.get("listenerName") or request.headers.get("x-pulsar-listenername")
        found = await self._topics.lookup(str(topic_of(request)), request.flag("authoritative"), listener)
        # The C++ client calls an answer without a TLS address malformed, even when it does not want TLS.
        return json_response({**found, "brokerUrlSsl": found.get("brokerUrlTls", "")})

    async def bundle(self, request: Request) -> Response:
        return raw_response(await self._namespaces.bundle_of(str(topic_of(request))))


def lookup_routes(topics: TopicAdmin, namespaces: NamespaceAdmin) -> list[Route]:
    calls = LookupCalls(topics, namespaces)
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
