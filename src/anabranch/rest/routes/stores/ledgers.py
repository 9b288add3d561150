"""Ledgers on Apache BookKeeper: list, show, check, recover, delete orphans."""

from __future__ import annotations

from anabranch.broker.admin.stores.ledgers import ORPHAN_AGE_S, LedgersAdmin
from anabranch.model.errors import BadRequest
from anabranch.rest.http_message import Request, Response, json_response
from anabranch.rest.router import Route
from anabranch.security.permissions import SUPERVISE

LIMIT, LIMIT_MAX = 100, 1000
_ID_MAX = 2**63 - 1


class LedgerCalls:
    def __init__(self, admin: LedgersAdmin) -> None:
        self._admin = admin

    async def list(self, request: Request) -> Response:
        after = _number(request, "after", -1, _ID_MAX)
        limit = _number(request, "limit", LIMIT, LIMIT_MAX)
        if limit < 1:
            raise BadRequest(f"limit is a number from 1 to {LIMIT_MAX}")
        return json_response(await self._admin.list(after=after, limit=limit))

    async def show(self, request: Request) -> Response:
        return json_response(await self._admin.show(_ledger(request)))

    async def check(self, request: Request) -> Response:
        return json_response(await self._admin.check(orphan_age_s=_age(request)))

    async def recover(self, request: Request) -> Response:
        return json_response(await self._admin.recover(_ledger(request)))

    async def delete_orphans(self, request: Request) -> Response:
        dry_run = request.flag("dryRun") if "dryRun" in request.query else True
        return json_response(await self._admin.delete_orphans(dry_run=dry_run, orphan_age_s=_age(request)))


def _ledger(request: Request) -> int:
    text = request.params["ledger"]
    if not (text.isascii() and text.isdigit()) or int(text) > _ID_MAX:
        raise BadRequest(f"{text!r} is no ledger id")
    return int(text)


def _age(request: Request) -> int:
    return _number(request, "orphanAgeSeconds", ORPHAN_AGE_S, 10**9)


def _number(request: Request, name: str, default: int, highest: int) -> int:
    text = request.query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit()) or int(text) > highest:
        raise BadRequest(f"{name} is a number from 0 to {highest}")
    return int(text)


def ledger_routes(admin: LedgersAdmin) -> list[Route]:
    calls = LedgerCalls(admin)
    root = "/anabranch/v1/ledgers"
    return [
        Route("GET", root, calls.list, "Ledgers on BookKeeper, by id", SUPERVISE),
        Route("GET", f"{root}/check", calls.check, "Under-replicated, missing and orphaned ledgers", SUPERVISE),
        Route("DELETE", f"{root}/orphans", calls.delete_orphans, "Delete ledgers that no topic names", SUPERVISE),
        Route("GET", f"{root}/{{ledger}}", calls.show, "A ledger and its copies on bookies", SUPERVISE),
        Route("POST", f"{root}/{{ledger}}/recover", calls.recover, "Close a ledger; fences its writer", SUPERVISE),
    ]
