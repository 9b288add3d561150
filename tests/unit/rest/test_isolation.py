"""Which requests of browsers are served: host names, sites, origins, read-only."""

from __future__ import annotations

from itertools import product

import pytest

from anabranch.model.errors import Error
from anabranch.rest.http_message import Request, Response
from anabranch.rest.isolation import ForeignHost, ForeignOrigin, HostNames, IsolationRules, ReadOnly
from anabranch.rest.router import Route
from anabranch.security.permissions import OPEN, SIGNED_IN

HOSTS = HostNames.of(["broker.example.com", "*.internal.example.com", "Upper.Example.", "anabranch-0", ""])
RULES = IsolationRules(HOSTS)


async def nothing(request: Request) -> Response:
    return Response(204)


CLOSED = Route("GET", "/x", nothing, "", SIGNED_IN)
PAGE = Route("GET", "/", nothing, "", OPEN)


def request(method: str = "GET", **headers: str) -> Request:
    return Request(method, "/x", headers={name.replace("_", "-"): value for name, value in headers.items()})


def refusal(rules: IsolationRules, asked: Request, route: Route | None = CLOSED, *, auth: bool = False) -> str | None:
    try:
        rules.check(asked, route, authenticates=auth)
    except Error as error:
        return error.code
    return None


@pytest.mark.parametrize(
    "host",
    [
        *(
            "localhost",
            "LOCALHOST:8080",
            "localhost.",
            "127.0.0.1:8080",
            "127.9.9.9",
            "[::1]:8080",
            "[::1]",
            "10.0.0.7",
        ),
        *("console.localhost:1", "broker.example.com:8080", "BROKER.EXAMPLE.COM", "a.b.internal.example.com"),
        *("upper.example", "anabranch-0:8080"),
    ],
)
def test_own_names_and_addresses_are_served(host: str) -> None:
    assert HOSTS.includes(host)
    assert refusal(RULES, request(host=host)) is None


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "evil.example:8080", "localhost.evil.example", "evillocalhost", "127.0.0.1.evil.example"),
        *("internal.example.com", "example.com", "xbroker.example.com", "", "[x]", "0x7f.1", "anabranch-1", "*"),
    ],
)
def test_other_names_are_refused(host: str) -> None:
    assert not HOSTS.includes(host)
    assert refusal(RULES, request(host=host)) == ForeignHost.code
    assert refusal(RULES, request(host=host), PAGE) == ForeignHost.code
    assert refusal(RULES, request(host=host), None) == ForeignHost.code


def test_rebound_page_is_refused_though_origin_and_host_agree() -> None:
    asked = request("PUT", host="evil.example:8080", origin="http://evil.example:8080")
    assert refusal(RULES, asked) == ForeignHost.code


def test_any_host_when_all_are_named_or_the_check_is_off() -> None:
    assert refusal(IsolationRules(HostNames.of(["*"])), request(host="evil.example")) is None
    assert refusal(IsolationRules(), request(host="evil.example")) is None


def test_program_without_host_is_served() -> None:
    assert refusal(RULES, request()) is None


def test_credentials_that_are_checked_stand_for_the_host() -> None:
    known = request(host="lb.example", authorization="Bearer x")
    assert refusal(RULES, known, auth=True) is None
    assert refusal(RULES, known, auth=False) == ForeignHost.code  # nothing checks them: a rebound page may send any
    assert refusal(RULES, request(host="lb.example"), auth=True) == ForeignHost.code  # a certificate is ambient
    assert refusal(RULES, request(host="lb.example"), PAGE, auth=True) is None


@pytest.mark.parametrize(
    ("site", "method"), list(product(["cross-site", "same-site", "CROSS-SITE", "new"], ["GET", "POST"]))
)
def test_pages_of_other_sites_are_refused(site: str, method: str) -> None:
    for host in ("localhost:8080", "127.0.0.1"):
        assert refusal(RULES, request(method, host=host, sec_fetch_site=site)) == ForeignOrigin.code
        quiet = request(method, host=host, sec_fetch_site=site, sec_fetch_mode="no-cors", sec_fetch_dest="image")
        assert refusal(RULES, quiet, PAGE) == ForeignOrigin.code


def test_own_page_and_typed_address_are_served() -> None:
    for site in ("same-origin", "none"):
        assert refusal(RULES, request(host="localhost", sec_fetch_site=site)) is None


def test_link_from_another_site_opens_a_page_and_nothing_else() -> None:
    link = request(host="localhost", sec_fetch_site="cross-site", sec_fetch_mode="navigate", sec_fetch_dest="document")
    assert refusal(RULES, link, PAGE) is None
    assert refusal(RULES, link, CLOSED) == ForeignOrigin.code
    frame = request(host="localhost", sec_fetch_site="cross-site", sec_fetch_mode="navigate", sec_fetch_dest="iframe")
    assert refusal(RULES, frame, PAGE) == ForeignOrigin.code


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://localhost:9999", "https://localhost.evil"])
def test_changes_from_other_origins_are_refused(origin: str) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert refusal(RULES, request(method, host="localhost:8080", origin=origin)) == ForeignOrigin.code
    assert refusal(RULES, request("GET", host="localhost:8080", origin=origin)) is None  # it cannot read the answer


def test_changes_from_the_own_origin_are_served() -> None:
    assert refusal(RULES, request("PUT", host="localhost:8080", origin="http://LOCALHOST:8080")) is None


def test_read_only_refuses_all_changes() -> None:
    rules = IsolationRules(HOSTS, is_read_only=True)
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert refusal(rules, request(method, host="localhost")) == ReadOnly.code
    for method in ("GET", "HEAD", "OPTIONS"):
        assert refusal(rules, request(method, host="localhost")) is None
