"""HTTP request and response as values."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from anabranch.model.errors import BadRequest

JSON = "application/json"
TEXT = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str  # as sent, still encoded, without the query
    params: Mapping[str, str] = field(default_factory=dict)  # from the route's pattern, decoded
    query: Mapping[str, str] = field(default_factory=dict)  # last value of each name
    query_pairs: tuple[tuple[str, str], ...] = ()  # all values, for names that may be repeated
    headers: Mapping[str, str] = field(default_factory=dict)  # lower-case names
    body: bytes = b""
    certificate_name: str | None = None  # of the client certificate that TLS has verified
    is_encrypted: bool = False  # over TLS
    role: str | None = None  # of the caller; None where the broker does not authenticate, and for open routes

    def flag(self, name: str, default: bool = False) -> bool:
        """A boolean query parameter; `?force` alone means true."""
        text = self.query.get(name)
        if text is None:
            return default
        if text.lower() in ("true", "1", ""):
            return True
        if text.lower() in ("false", "0"):
            return False
        raise BadRequest(f"query parameter {name} must be true or false, not {text!r}")

    def texts(self, name: str) -> list[str]:
        """All values of a query parameter."""
        return [value for key, value in self.query_pairs if key == name]

    def json(self) -> Any:
        """The body as JSON; None if it is empty, which clients also send with a JSON content type."""
        if not self.body.strip():
            return None
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError) as error:
            raise BadRequest(f"the body is not JSON: {error}") from error


@dataclass(frozen=True, slots=True)
class Response:
    status: int = 200
    body: bytes = b""
    content_type: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    pieces: AsyncIterator[bytes] | None = None  # sent after the body, as they are made
    is_live: bool = False  # each piece is sent at once, and the pieces end only with the connection or the server


NO_CONTENT = Response(204)


def json_response(value: Any, status: int = 200) -> Response:
    return Response(status, json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(), JSON)


def raw_response(text: str, content_type: str = JSON) -> Response:
    """The text unchanged. Pulsar sends bare strings (`ok`) as application/json, and clients rely on it."""
    return Response(200, text.encode(), content_type)
