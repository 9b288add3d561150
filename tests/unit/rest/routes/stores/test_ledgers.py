"""What requests about ledgers may hold, and what a broker on files answers."""

from __future__ import annotations

import pytest

from anabranch.broker.admin.stores.ledgers import LedgersAdmin
from anabranch.model.errors import BadRequest, NotAllowed
from anabranch.rest.http_message import Request
from anabranch.rest.router import Router
from anabranch.rest.routes.stores.ledgers import ledger_routes

ROUTER = Router(ledger_routes(LedgersAdmin()))
ROOT = "/anabranch/v1/ledgers"
CALLS = [
    ("GET", ROOT),
    ("GET", f"{ROOT}/check"),
    ("GET", f"{ROOT}/7"),
    ("POST", f"{ROOT}/7/recover"),
    ("DELETE", f"{ROOT}/orphans"),
]


async def call(method: str, path: str, **query: str) -> None:
    found = ROUTER.match(method, path)
    await found.route.handler(Request(method, path, params=found.params, query=query))


@pytest.mark.parametrize(("method", "path"), CALLS)
async def test_a_broker_on_files_says_that_it_has_none(method: str, path: str) -> None:
    with pytest.raises(NotAllowed, match="keeps its ledgers in files"):
        await call(method, path)


@pytest.mark.parametrize("ledger", ["x", "-1", "1.5", "٣", str(2**63)])
async def test_an_id_that_is_none_is_refused(ledger: str) -> None:
    with pytest.raises(BadRequest, match="is no ledger id"):
        await call("GET", f"{ROOT}/{ledger}")
    with pytest.raises(BadRequest, match="is no ledger id"):
        await call("POST", f"{ROOT}/{ledger}/recover")


@pytest.mark.parametrize(
    ("path", "query"),
    [
        (ROOT, {"limit": "0"}),
        (ROOT, {"limit": "1001"}),
        (ROOT, {"after": "x"}),
        (f"{ROOT}/check", {"orphanAgeSeconds": "-1"}),
    ],
)
async def test_numbers_out_of_bounds_are_refused(path: str, query: dict[str, str]) -> None:
    with pytest.raises(BadRequest):
        await call("GET", path, **query)
