"""Which calls the caller may make, so that a page can disable what would be refused and say why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from urllib.parse import parse_qsl

from anabranch.model.errors import BadRequest, Error
from anabranch.rest.access import AccessFilter
from anabranch.rest.http_message import Request, Response, json_response
from anabranch.rest.isolation import READS
from anabranch.rest.router import Route, Router, UnknownPath
from anabranch.security.permissions import SIGNED_IN

CALLS_MAX = 64


class AllowedCalls:
    def __init__(self, router: Callable[[], Router], access: AccessFilter | None, *, is_read_only: bool) -> None:
        """`access`: None at a broker without authentication, where everybody may do everything."""
        self._router = router
        self._access = access
        self._is_read_only = is_read_only

    async def show(self, request: Request) -> Response:
        texts = request.texts("call")
        if len(texts) > CALLS_MAX:
            raise BadRequest(f"at most {CALLS_MAX} calls at once")
        calls = [self._parsed(request, text) for text in texts]
        role, reasons = None, [""] * len(calls)
        if self._access is not None:
            role, reasons = await self._access.refusals(request, calls)
        if self._is_read_only:
            refused = "this port is read-only (http.read_only)"
            reasons = [
                reason or (refused if call.method not in READS else "")
                for reason, (_, call) in zip(reasons, calls, strict=True)
            ]
        shown = [{"allowed": not reason, "reason": reason} for reason in reasons]
        return json_response({"role": role, "readOnly": self._is_read_only, "calls": shown})

    def _parsed(self, request: Request, text: str) -> tuple[Route, Request]:
        method, _, target = text.partition(" ")
        path, _, query = target.partition("?")
        try:
            if not path.startswith("/"):
                raise UnknownPath(path)
            found = self._router().match(method, path)
        except Error as error:
            raise BadRequest(f"call is like `POST /admin/v2/…`, not {text[:200]!r}: {error.reason}") from error
        pairs = tuple(parse_qsl(query, keep_blank_values=True))
        call = replace(
            request, method=method, path=path, params=found.params, query=dict(pairs), query_pairs=pairs, body=b""
        )
        return found.route, call


def access_routes(calls: AllowedCalls) -> list[Route]:
    summary = "Which of the given calls the caller may make, and why not the others; makes none of them"
    return [Route("GET", "/anabranch/v1/access", calls.show, summary, SIGNED_IN)]
