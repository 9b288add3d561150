"""Answers for caches and slow lines: `304 Not Modified` for a known ETag, gzip for long JSON and text."""

from __future__ import annotations

import gzip
from dataclasses import replace

from anabranch.rest.http_message import Request, Response

GZIP_BYTES_MIN = 32 * 1024  # below it the time costs more than the bytes
GZIP_BYTES_MAX = 2 * 1024 * 1024  # above it the event loop would stand still for too long
_LEVEL = 1
_COMPRESSIBLE = ("application/json", "text/", "image/svg+xml")


def compressed(data: bytes, level: int = _LEVEL) -> bytes:
    return gzip.compress(data, level, mtime=0)


def accepts_gzip(request: Request) -> bool:
    for part in request.headers.get("accept-encoding", "").split(","):
        coding, _, weight = part.partition(";")
        if coding.strip().lower() in ("gzip", "*"):
            return weight.replace(" ", "").lower() not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


def encoded(request: Request, response: Response) -> Response:
    """The response as this client may get it. Streams and failures are not changed."""
    if response.status != 200 or response.pieces is not None:
        return response
    names = {name.lower(): value for name, value in response.headers}
    if (tag := names.get("etag")) is not None and is_known(request, tag):
        return replace(response, status=304, body=b"", content_type=None)
    if not GZIP_BYTES_MIN <= len(response.body) <= GZIP_BYTES_MAX or "content-encoding" in names:
        return response
    if not (response.content_type or "").startswith(_COMPRESSIBLE):
        return response
    headers = (*response.headers, ("Vary", "Accept-Encoding"))
    if not accepts_gzip(request):
        return replace(response, headers=headers)
    return replace(response, body=compressed(response.body), headers=(*headers, ("Content-Encoding", "gzip")))


def is_known(request: Request, tag: str) -> bool:
    """Whether the client has this version (`If-None-Match`)."""
    known = request.headers.get("if-none-match")
    if known is None or request.method not in ("GET", "HEAD"):
        return False
    return known.strip() == "*" or tag in (one.strip().removeprefix("W/") for one in known.split(","))
