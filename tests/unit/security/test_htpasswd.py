"""htpasswd files: kinds of entries, changes while the broker runs, and refusals."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import bcrypt
import pytest

from anabranch.runtime.blocking import Blocking, ThreadBlocking
from anabranch.security import htpasswd as passwords
from anabranch.security.authentication import Authenticator, CertificateMethod, Credentials, Unauthenticated
from anabranch.security.authentication import http_credentials as from_http
from anabranch.security.htpasswd import BadPasswordFile, PasswordMethod, apr1, matches, parse_htpasswd
from tests.support.in_memory.credentials import PASSWORDS, basic_header, write_htpasswd


@pytest.fixture
async def blocking() -> AsyncIterator[Blocking]:
    made = ThreadBlocking(1)
    yield made
    await made.close()


def basic(user: str, password: str) -> Credentials:
    return Credentials("basic", f"{user}:{password}".encode())


@pytest.mark.parametrize(
    ("password", "salt", "stored"),
    [  # openssl passwd -apr1 -salt SALT PASSWORD
        ("hunter2 and more than sixteen", "abcdefgh", "$apr1$abcdefgh$URn7xdppZX1umQI7dA9is1"),
        ("", "abcdefgh", "$apr1$abcdefgh$L.PT565ESX4Tp2bqNs7Ie."),
        ("x", "1", "$apr1$1$OmoL/VETosDXTe4UiL9wc0"),
    ],
)
def test_apr1_matches_openssl(password: str, salt: str, stored: str) -> None:
    assert apr1(password.encode(), salt) == stored
    assert matches(stored, password.encode())
    assert not matches(stored, password.encode() + b"!")


def test_sha_matches_apache() -> None:
    assert matches("{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=", b"password")
    assert not matches("{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=", b"Password")


def test_bcrypt_of_every_prefix() -> None:
    stored = bcrypt.hashpw(b"pass word", bcrypt.gensalt(4)).decode()
    for prefix in ("$2a$", "$2b$", "$2y$"):
        assert matches(stored.replace("$2b$", prefix, 1), b"pass word")
        assert not matches(stored.replace("$2b$", prefix, 1), b"pass_word")
    long = bcrypt.hashpw(b"x" * 72, bcrypt.gensalt(4)).decode()
    assert matches(long, b"x" * 80)  # bcrypt reads no more bytes, and htpasswd truncates too
    assert not matches("$2y$04$broken", b"x")


def test_odd_passwords_match_no_entry() -> None:
    stored = bcrypt.hashpw(b"a", bcrypt.gensalt(4)).decode()
    assert not matches(stored, b"a\0b")
    assert not matches("{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=", b"p" * 10_000)


@pytest.mark.parametrize(
    "text", ["alice", ":x", "a:plain", "a:$1$old$crypt", "a:$6$salt$x", "a:{SHA}x\na:{SHA}y", "a:"]
)
def test_bad_htpasswd_file_error_names_line_without_content(text: str) -> None:
    with pytest.raises(BadPasswordFile, match=r"line \d") as caught:
        parse_htpasswd(text)
    assert "crypt" not in str(caught.value).replace("bcrypt", "") and "plain" not in str(caught.value)


async def test_users_authenticate(tmp_path: Path, blocking: Blocking) -> None:
    method = PasswordMethod(write_htpasswd(tmp_path), blocking, b"k" * 32)
    for user, password in PASSWORDS.items():
        for _ in range(2):  # the second time from memory
            found = await method.identify(basic(user, password), 0)
            assert (found.role, found.method, found.expires_ms) == (user, "basic", None)
        for wrong in (password + "x", password[:-1], "", PASSWORDS["alice" if user != "alice" else "bob"]):
            with pytest.raises(Unauthenticated) as caught:
                await method.identify(basic(user, wrong), 0)
            assert user not in str(caught.value)
    for data in (b"", b"alice", b":x", b"\xff:x", b"mallory:x"):
        with pytest.raises(Unauthenticated):
            await method.identify(Credentials("basic", data), 0)


async def test_unknown_user_takes_as_long_as_a_known_one(
    tmp_path: Path, blocking: Blocking, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = PasswordMethod(write_htpasswd(tmp_path), blocking, b"k" * 32)
    checks = []
    real = passwords.matches

    def counted(stored: str, given: bytes) -> bool:
        checks.append(stored)
        return real(stored, given)

    monkeypatch.setattr(passwords, "matches", counted)
    with pytest.raises(Unauthenticated) as unknown:
        await method.identify(basic("mallory", "x"), 0)
    with pytest.raises(Unauthenticated) as known:
        await method.identify(basic("alice", "x"), 0)
    assert len(checks) == 2
    assert str(unknown.value) == str(known.value)
    with pytest.raises(Unauthenticated):  # even with the password of the entry that it was compared with
        await method.identify(basic("mallory", PASSWORDS["alice"]), 0)


async def test_changed_htpasswd_file_takes_effect_at_once(tmp_path: Path, blocking: Blocking) -> None:
    path = write_htpasswd(tmp_path, bob="one", carol="two")
    method = PasswordMethod(path, blocking, b"k" * 32)
    await method.identify(basic("bob", "one"), 0)
    write_htpasswd(tmp_path, bob="three", dave="four")
    os.utime(path, ns=(1, 1))  # as if the clock had not moved on far enough to tell
    for user, password in (("bob", "one"), ("carol", "two")):
        with pytest.raises(Unauthenticated):
            await method.identify(basic(user, password), 0)
    await method.identify(basic("bob", "three"), 0)
    await method.identify(basic("dave", "four"), 0)
    path.write_text("rubbish")
    await method.identify(basic("bob", "three"), 0)  # the last good file
    path.unlink()
    await method.identify(basic("bob", "three"), 0)


def test_missing_htpasswd_file_fails_at_start(tmp_path: Path) -> None:
    class Unused:
        pass

    with pytest.raises(BadPasswordFile, match="/none cannot be read: No such file"):
        PasswordMethod(tmp_path / "none", Unused(), b"k")  # type: ignore[arg-type]  # it is never asked


# -- several methods


async def test_each_method_accepts_only_its_own_credentials(tmp_path: Path, blocking: Blocking) -> None:
    method = PasswordMethod(write_htpasswd(tmp_path), blocking, b"k" * 32)
    both = Authenticator({"basic": method, "tls": CertificateMethod()}, "guest")
    assert (await both.identify(Credentials("none"), 0)).role == "guest"
    assert (await both.identify(Credentials("", b"", "node-1"), 0)).role == "guest"
    assert (await both.identify(Credentials("token", b"x"), 0)).role == "guest", "the method is not enabled"
    assert (await both.identify(Credentials("tls", b"", "node-1"), 0)).role == "node-1"
    assert (await both.identify(basic("alice", PASSWORDS["alice"]), 0)).role == "alice"
    refused = [
        Credentials("tls"),
        basic("alice", "wrong"),
        Credentials("basic", b"x" * 70_000),
    ]
    for credentials in refused:  # never the anonymous role
        with pytest.raises(Unauthenticated):
            await both.identify(credentials, 0)
    assert (both.successes, both.failures) == (5, len(refused))
    with pytest.raises(Unauthenticated):
        await Authenticator({"basic": method}).identify(Credentials("none"), 0)
    with pytest.raises(Unauthenticated, match="'token' is not enabled"):
        await Authenticator({"basic": method}).identify(Credentials("token", b"x"), 0)


def test_credentials_of_http_requests() -> None:
    assert from_http("Bearer  abc ", None, True) == Credentials("token", b"abc")
    assert from_http("bearer abc", "cn", True).method == "token"
    assert from_http(basic_header("bob", "a:b"), None, False) == Credentials("basic", b"bob:a:b")
    assert from_http(None, "cn", True) == Credentials("tls", b"", "cn")
    assert from_http(None, "cn", False) == Credentials("none")
    assert from_http(None, None, True) == Credentials("none")
    for header in ("", "Digest x", "Negotiate"):  # no method has that name
        assert from_http(header, None, True).method == f"HTTP {header.partition(' ')[0]}"
    for header in ("Basic !!!", "Basic a"):
        with pytest.raises(Unauthenticated):
            from_http(header, "cn", True)
