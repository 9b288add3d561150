"""Migration of the metadata store: the paths of PIP-454, with abort and verify."""

from __future__ import annotations

from typing import Any

from anabranch.broker.admin.stores.metadata_migration import MetadataMigrationAdmin
from anabranch.model.errors import BadRequest
from anabranch.rest.http_message import NO_CONTENT, Request, Response, json_response
from anabranch.rest.router import Route
from anabranch.security.permissions import SUPERVISE

RATE_MAX = 10_000_000


class MigrationCalls:
    def __init__(self, admin: MetadataMigrationAdmin) -> None:
        self._admin = admin

    async def start(self, request: Request) -> Response:
        fields = _fields(request)
        target, rate, purge = fields.get("targetUrl"), fields.get("rate"), fields.get("purgeTarget", False)
        if not isinstance(target, str) or not target:
            raise BadRequest('name the target: ?target=URL, or {"targetUrl": "URL"} as the body')
        if rate is not None and (isinstance(rate, bool) or not isinstance(rate, int) or not 0 <= rate <= RATE_MAX):
            raise BadRequest(f"rate is a whole number of records per second, 0 to {RATE_MAX}")
        if not isinstance(purge, bool):
            raise BadRequest("purgeTarget is true or false")
        await self._admin.start(target, rate=rate, purge_target=purge)
        return NO_CONTENT

    async def status(self, request: Request) -> Response:
        return json_response(await self._admin.status())

    async def abort(self, request: Request) -> Response:
        await self._admin.abort()
        return NO_CONTENT

    async def verify(self, request: Request) -> Response:
        return json_response(await self._admin.verify())


def _fields(request: Request) -> dict[str, Any]:
    """From the body, or from the query, as Pulsar's client sends them."""
    body = request.json()
    if body is not None and not isinstance(body, dict):
        raise BadRequest('the body is an object such as {"targetUrl": "etcd://HOST:PORT"}')
    fields: dict[str, Any] = dict(body or {})
    if "target" in request.query:
        fields["targetUrl"] = request.query["target"]
    if rate := request.query.get("rate"):
        fields["rate"] = int(rate) if rate.isascii() and rate.isdigit() else rate
    if "purgeTarget" in request.query:
        fields["purgeTarget"] = request.flag("purgeTarget")
    return fields


def metadata_migration_routes(admin: MetadataMigrationAdmin) -> list[Route]:
    calls = MigrationCalls(admin)
    root = "/admin/v2/metadata/migration"
    return [
        Route("POST", f"{root}/start", calls.start, "Move all metadata to another store", SUPERVISE),
        Route("GET", f"{root}/status", calls.status, "State of the last migration of the metadata", SUPERVISE),
        Route("POST", f"{root}/abort", calls.abort, "End a migration that is not decided; nothing changes", SUPERVISE),
        Route("POST", f"{root}/verify", calls.verify, "Compare both stores of the last migration", SUPERVISE),
    ]
