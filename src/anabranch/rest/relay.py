"""Passes a request on to the broker that serves its topic, for callers that cannot follow a redirect.

To a web page another broker's port is another origin, so a page cannot follow a 307. The broker that was asked then
asks the owner with the caller's own credentials, and the owner decides as always. It never uses credentials of its own:
a caller that is known only by its TLS certificate gets the redirect. A request is passed on once.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from urllib.parse import urlencode, urlsplit

from anabranch.broker.placement import Address
from anabranch.model.errors import Error
from anabranch.rest.http_message import Request, Response
from anabranch.rest.isolation import OWN_SITES
from anabranch.runtime.http_client import HttpConnection

ASKED = "x-anabranch-relay"
RELAYED = "X-Anabranch-Relayed"
_BODY_BYTES_MAX = 16 * 1024 * 1024
_FORWARDED = ("authorization", "content-type", "accept", "x-pulsar-authoritative")
_KEPT = ("etag", "retry-after", "www-authenticate", "allow")


class RelayFailed(Error):
    """The broker that serves the topic did not answer the request that was passed on to it."""

    code = "broker-unreachable"
    retryable = True


def wants_relay(request: Request) -> bool:
    """Whether the caller is a page of this origin, or asks for it by `X-Anabranch-Relay: 1`."""
    headers = request.headers
    if RELAYED.lower() in headers or (request.certificate_name is not None and "authorization" not in headers):
        return False
    return headers.get("sec-fetch-site") in OWN_SITES or headers.get(ASKED) == "1"


class Relay:
    def __init__(self, tls: Callable[[], ssl.SSLContext] | None = None) -> None:
        """`tls` gives the context for brokers that have TLS ports only; it has no client certificate."""
        self._tls = tls

    async def forward(self, request: Request, owner: Address, seconds_max: float) -> Response:
        """Raises RelayFailed."""
        url = urlsplit(owner.http_url)
        tls = None
        if url.scheme == "https":
            if self._tls is None:
                raise RelayFailed(f"{owner.http_url} has only TLS ports, and this broker has no TLS")
            tls = self._tls()
        host, port = url.hostname or "", url.port or (443 if tls else 80)
        try:
            async with asyncio.timeout(seconds_max):
                connection = await HttpConnection.open(host, port, tls=tls, body_bytes_max=_BODY_BYTES_MAX)
                try:
                    return await _exchanged(connection, request, url.netloc)
                finally:
                    connection.abort()
        except (OSError, TimeoutError) as error:
            raise RelayFailed(
                f"{owner.http_url} serves the topic and did not answer: {error or 'timed out'}"
            ) from error


async def _exchanged(connection: HttpConnection, request: Request, authority: str) -> Response:
    target = request.path + (f"?{urlencode(request.query_pairs)}" if request.query_pairs else "")
    headers = [("Host", authority), (RELAYED, "1")]
    headers += [(name, request.headers[name]) for name in _FORWARDED if name in request.headers]
    body = request.body if request.body or request.method in ("PUT", "POST") else None
    answer = await connection.exchange(request.method, target, headers, body)
    kept = tuple(
        (name, value) for name, value in answer.headers.items() if name in _KEPT or name.startswith("x-anabranch-")
    )
    return Response(answer.status, answer.body, answer.headers.get("content-type"), kept)
