"""The admin client: async and blocking calls are the same, and requests are formed correctly."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

import anabranch.admin
import anabranch.admin.blocking
from anabranch.admin import Admin
from anabranch.admin.blocking import BlockingAdmin
from anabranch.admin.client import Answer, Origin, refusal, request_of
from anabranch.admin.errors import BadCall, BadUrl, CannotSignIn
from anabranch.runtime.credentials import Basic, Certificate, Tls, Token
from scripts.generate_blocking_admin import stale
from tests.support.traffic.admin_calls import groups, methods


def test_async_and_blocking_admin_have_the_same_methods() -> None:
    one, other = dict(groups(anabranch.admin.connect())), dict(groups(anabranch.admin.blocking.connect()))
    assert one.keys() == other.keys()
    for name, group in one.items():
        here, there = dict(methods(group)), dict(methods(other[name]))
        assert here.keys() == there.keys(), name
        for method in here:
            assert inspect.iscoroutinefunction(here[method]), f"{name}.{method}"
            assert not inspect.iscoroutinefunction(there[method]), f"{name}.{method}"
            assert str(inspect.signature(here[method])) == str(inspect.signature(there[method])), f"{name}.{method}"
    asynchronous, blocking = (
        inspect.signature(anabranch.admin.connect),
        inspect.signature(anabranch.admin.blocking.connect),
    )
    assert str(asynchronous).partition(" -> ")[0] == str(blocking).partition(" -> ")[0]
    for name in ("call", "close", "url"):
        assert hasattr(Admin, name) and hasattr(BlockingAdmin, name)


def test_generated_blocking_modules_are_up_to_date() -> None:
    assert stale() == [], "run scripts/generate_blocking_admin.py"


async def test_unknown_policy_is_refused_before_a_request_is_sent() -> None:
    async with anabranch.admin.connect() as admin:
        with pytest.raises(BadCall, match="is no policy"):
            await admin.namespaces.policy("a/b", "retension")
        with pytest.raises(BadCall, match="cannot be changed"):
            await admin.namespaces.remove_policy("a/b", "replication")


ORIGIN = Origin.parse("https://h:1/base/")


def test_credentials_are_sent_and_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("from-file\n")
    tokens = iter(["first", "second"])
    supplier = Token(lambda: next(tokens))
    for credentials, expected in (
        (None, None),
        (Token("text"), "Bearer text"),
        (Token(file), "Bearer from-file"),
        (supplier, "Bearer first"),
        (supplier, "Bearer second"),
        (Basic("ann", "pass"), "Basic YW5uOnBhc3M="),
        (Certificate(), None),
    ):
        target, data, headers = request_of(ORIGIN, "PUT", "/x", {"a": 1}, {"q": True, "none": None}, credentials)
        assert (target, data, headers.get("Authorization")) == ("/base/x?q=true", b'{"a": 1}', expected)
        assert "text" not in repr(credentials) and "pass" not in repr(credentials)
    with pytest.raises(CannotSignIn) as caught:
        request_of(ORIGIN, "GET", "/x", None, None, supplier)
    assert caught.value.retryable
    assert (supplier.method, Basic("a", "b").data(), Certificate().data()) == ("token", b"a:b", b"")


def test_missing_tls_files_are_refused() -> None:
    assert Tls().context().check_hostname
    assert not Tls(check_hostname=False).context().check_hostname
    with pytest.raises(OSError):
        Tls(trust_file="/nowhere.pem").context()


@pytest.mark.parametrize("url", ["pulsar://h", "h:8080", "http://", "http://h:port"])
def test_malformed_urls_are_refused(url: str) -> None:
    with pytest.raises(BadUrl):
        anabranch.admin.connect(url)


@pytest.mark.parametrize(
    ("body", "code", "reason"),
    [
        (b'{"reason": "no such tenant", "error": "not-found"}', "not-found", "no such tenant"),
        (b'{"reason": "no such tenant", "code": "not-found"}', "not-found", "no such tenant"),  # an earlier version
        (b'{"reason": "no such tenant"}', "http-404", "no such tenant"),  # Apache Pulsar
        (b'{"reason": "no such tenant", "code": 404}', "http-404", "no such tenant"),
        (b"<html>gone</html>", "http-404", "<html>gone</html>"),
        (b"", "http-404", "Not Found"),
    ],
)
def test_refusals_of_any_broker_are_read(body: bytes, code: str, reason: str) -> None:
    error = refusal(Answer(404, body))
    assert (error.code, error.reason) == (code, reason)
