"""The route of a request, and the HTTP status of an error."""

from __future__ import annotations

import pytest

from anabranch.metadata.interface import KeyMissing, StoreUnavailable, ValueTooLarge
from anabranch.model.errors import AlreadyExists, BadName, BadRequest, Busy, Error, NotAllowed, NotFound, NotReady
from anabranch.model.position import EARLIEST, LATEST, LONG_MAX, Position
from anabranch.rest.errors import BadPartitionCount, error_response, status_of
from anabranch.rest.http_message import Request, Response
from anabranch.rest.params import parse_position
from anabranch.rest.router import Route, Router, UnknownPath, WrongMethod
from anabranch.rest.routes.topics import parse_partitions, parse_properties


async def handler(request: Request) -> Response:
    return Response()


def router(*table: tuple[str, str]) -> Router:
    return Router([Route(method, pattern, handler, "") for method, pattern in table])


ROUTER = router(
    ("GET", "/a/{domain:persistent|non-persistent}/{tenant}/{topic}"),
    ("PUT", "/a/{domain:persistent|non-persistent}/{tenant}/{topic}"),
    ("GET", "/a/{domain:persistent|non-persistent}/{tenant}/special"),
    ("DELETE", "/a/{domain:persistent|non-persistent}/{tenant}/{topic}/x"),
    ("GET", "/a/namespaces/{tenant}/topics"),
    ("GET", "/metrics"),
)


@pytest.mark.parametrize(
    ("method", "path", "pattern", "params"),
    [
        ("GET", "/a/persistent/t/x", "{topic}", {"domain": "persistent", "tenant": "t", "topic": "x"}),
        ("GET", "/a/non-persistent/t/x", "{topic}", {"domain": "non-persistent", "tenant": "t", "topic": "x"}),
        ("GET", "/a/persistent/t/a%2Fb%25", "{topic}", {"domain": "persistent", "tenant": "t", "topic": "a/b%"}),
        ("GET", "/a/persistent/t/%C3%A9+%2B", "{topic}", {"domain": "persistent", "tenant": "t", "topic": "é +"}),
        ("GET", "/a/persistent/t/special", "special", {"domain": "persistent", "tenant": "t"}),
        ("PUT", "/a/persistent/t/special", "{topic}", {"domain": "persistent", "tenant": "t", "topic": "special"}),
        ("DELETE", "/a/persistent/t/special/x", "x", {"domain": "persistent", "tenant": "t", "topic": "special"}),
        ("GET", "/a/namespaces/t/topics", "topics", {"tenant": "t"}),
        ("GET", "/metrics/", "/metrics", {}),
        ("HEAD", "/metrics", "/metrics", {}),
    ],
)
def test_match(method: str, path: str, pattern: str, params: dict[str, str]) -> None:
    match = ROUTER.match(method, path)
    assert match.route.pattern.endswith(pattern)
    assert match.params == params


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "",
        "/a",
        "/b",
        "/a/other/t/x",
        "//metrics",
        "/metrics/x",
        "/a/persistent//x",
        "metrics",
        "/a/persistent/t/x/y",
    ],
)
def test_unknown_paths(path: str) -> None:
    with pytest.raises(UnknownPath):
        ROUTER.match("GET", path)


def test_wrong_method_lists_the_allowed_ones() -> None:
    with pytest.raises(WrongMethod) as caught:
        ROUTER.match("POST", "/a/persistent/t/x")
    assert caught.value.allowed == ("GET", "HEAD", "OPTIONS", "PUT")
    assert dict(error_response(caught.value).headers) == {"Allow": "GET, HEAD, OPTIONS, PUT"}
    with pytest.raises(WrongMethod) as caught:
        ROUTER.match("GET", "/a/persistent/t/x/x")
    assert caught.value.allowed == ("DELETE", "OPTIONS")


def test_path_that_is_not_utf8_is_a_bad_request() -> None:
    with pytest.raises(BadRequest):
        ROUTER.match("GET", "/a/persistent/t/%FF")


def test_one_route_per_method_and_path() -> None:
    with pytest.raises(AssertionError, match="routed twice"):
        router(("GET", "/a/{x}"), ("GET", "/a/{y}"))


class OddlyNotFound(NotFound):
    code = "oddly-not-found"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (BadRequest("x"), 400),
        (ValueTooLarge("/a", 1), 400),
        (NotFound("x"), 404),
        (KeyMissing("/a"), 404),
        (OddlyNotFound("x"), 404),
        (BadPartitionCount("x"), 406),
        (AlreadyExists("x"), 409),
        (BadName("x"), 412),
        (Busy("x"), 412),
        (NotAllowed("x"), 412),
        (NotReady("x"), 503),
        (StoreUnavailable("x"), 503),
        (Error("x"), 500),
    ],
)
def test_status_follows_the_code(error: Error, status: int) -> None:
    assert status_of(error) == status


def test_answer_holds_reason_and_code() -> None:
    response = error_response(OddlyNotFound('no "x"'))
    assert response.body == b'{"reason":"no \\"x\\"","error":"oddly-not-found"}'
    assert dict(error_response(NotReady("x")).headers) == {"Retry-After": "1"}


def test_flags() -> None:
    request = Request("GET", "/", query={"a": "true", "b": "", "c": "false", "d": "maybe"})
    assert [request.flag(name) for name in "abc"] == [True, True, False]
    assert request.flag("z", True) is True
    with pytest.raises(BadRequest):
        request.flag("d")


def test_bodies() -> None:
    assert Request("PUT", "/", body=b" ").json() is None
    assert Request("PUT", "/", body=b"3").json() == 3
    for body in (b"{", b"\xff", b"[" * 100_000):
        with pytest.raises(BadRequest):
            Request("PUT", "/", body=body).json()


def test_partition_counts() -> None:
    assert [parse_partitions(value) for value in (3, "4", {"partitions": 5, "properties": {"a": "b"}})] == [3, 4, 5]
    wrong: tuple[object, ...] = (None, "x", True, 1.5, [1], {})
    for value in wrong:
        with pytest.raises(BadRequest):
            parse_partitions(value)
    for value in (0, -1):
        with pytest.raises(BadPartitionCount):
            parse_partitions(value)


def test_properties() -> None:
    assert parse_properties(None) == {}
    assert parse_properties({"a": "b"}) == {"a": "b"}
    wrong: list[object] = [[], "x", {"a": 1}]
    for value in wrong:
        with pytest.raises(BadRequest):
            parse_properties(value)


def test_positions() -> None:
    assert parse_position("latest") == LATEST
    assert parse_position("earliest") == parse_position({}) == EARLIEST
    assert parse_position({"ledgerId": LONG_MAX, "entryId": LONG_MAX}) == LATEST
    assert parse_position({"ledgerId": 3, "entryId": 4, "partitionIndex": -1}) == Position(3, 4)
    wrong: list[object] = [None, "58:0", 3, [], {"ledgerId": "x"}, {"ledgerId": True}]
    for value in wrong:
        with pytest.raises(BadRequest):
            parse_position(value)


def test_route_that_does_not_take_the_values_is_not_served() -> None:
    routes = [
        Route("GET", "/n/{name}/policy", handler, ""),
        Route("DELETE", "/n/{name}/{range}", handler, "", takes=lambda params: params["range"].startswith("0x")),
    ]
    found = Router(routes)
    assert found.match("DELETE", "/n/a/0x1_0x2").params == {"name": "a", "range": "0x1_0x2"}
    with pytest.raises(WrongMethod) as caught:
        found.match("DELETE", "/n/a/policy")
    assert caught.value.allowed == ("GET", "HEAD", "OPTIONS")
    with pytest.raises(UnknownPath):
        found.match("DELETE", "/n/a/other")
