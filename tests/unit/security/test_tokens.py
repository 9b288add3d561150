"""Tokens: every algorithm, every key format, and everything that must be refused."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from anabranch.model.errors import BadRequest
from anabranch.node.token_commands import create_key_pair, create_secret_key, create_token, validate_token
from anabranch.security import tokens
from anabranch.security.authentication import Credentials, Unauthenticated
from anabranch.security.token_key_file import FollowingTokenMethod, KeyFile
from anabranch.security.tokens import ALGORITHMS, HMAC_BYTES, BadKey, TokenKey, TokenMethod, TokenReader

NOW = 1_700_000_000_000
SECRET = bytes(range(64))
PAIRS = {name: tokens.new_key_pair(name) for name in ALGORITHMS if name not in HMAC_BYTES}


def text64(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def by_hand(claims: Any, secret: bytes = SECRET, header: Any = None) -> bytes:
    """HS256 on the standard library alone, to compare PyJWT with."""
    head = {"alg": "HS256", "typ": "JWT"} if header is None else header
    signed = text64(json.dumps(head).encode()) + b"." + text64(json.dumps(claims).encode())
    return signed + b"." + text64(hmac.digest(secret, signed, hashlib.sha256))


def reader(*keys: TokenKey, **options: Any) -> TokenReader:
    return TokenReader(keys or tokens.secret_keys(SECRET), **options)


def signing_and_checking(algorithm: str) -> tuple[TokenKey, TokenKey]:
    if algorithm in HMAC_BYTES:
        (key,) = tokens.secret_keys(SECRET)
        return key, key
    private, public = PAIRS[algorithm]
    return tokens.private_key(private), tokens.public_key(public)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
async def test_every_algorithm_both_ways(algorithm: str) -> None:
    signing, checking = signing_and_checking(algorithm)
    made = tokens.make_token({"sub": "me", "exp": NOW // 1000 + 60}, signing, algorithm)
    assert json.loads(base64.urlsafe_b64decode(made.split(".")[0] + "=="))["alg"] == algorithm
    found = await TokenMethod(reader(checking)).identify(Credentials("token", made.encode()), NOW)
    assert (found.role, found.method, found.expires_ms) == ("me", "token", NOW + 60_000)
    for other in ALGORITHMS:
        _, wrong = signing_and_checking(other)
        if wrong.algorithms != checking.algorithms:
            with pytest.raises(Unauthenticated):
                reader(wrong).claims(made.encode(), NOW)


def test_hand_made_token_is_accepted() -> None:
    assert reader().claims(by_hand({"sub": "me"}), NOW) == {"sub": "me"}


def test_key_decides_the_algorithm_not_the_token() -> None:
    """The classic: the public key, known to all, taken as an HMAC secret."""
    private, public = PAIRS["RS256"]
    checking = tokens.public_key(public)
    pem = checking.key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    for secret in (public, pem):
        with pytest.raises(Unauthenticated):
            reader(checking).claims(by_hand({"sub": "root"}, secret), NOW)
    unsigned = text64(b'{"alg":"none"}') + b"." + text64(b'{"sub":"root"}') + b"."
    for key in (checking, *tokens.secret_keys(SECRET)):
        with pytest.raises(Unauthenticated):
            reader(key).claims(unsigned, NOW)
    assert private


def test_short_secret_allows_only_short_algorithms() -> None:
    (short,) = tokens.secret_keys(SECRET[:32])
    assert short.algorithms == ("HS256",)
    with pytest.raises(BadRequest):
        tokens.make_token({"sub": "me"}, short, "HS512")


@pytest.mark.parametrize(
    ("claims", "fits"),
    [
        ({"exp": NOW // 1000 + 1}, True),
        ({"exp": NOW / 1000 + 0.5}, True),
        ({"exp": NOW // 1000}, False),
        ({"exp": NOW // 1000 - 1}, False),
        ({"nbf": NOW // 1000}, True),
        ({"nbf": NOW // 1000 + 1}, False),
        ({"exp": "soon"}, False),
        ({"exp": True}, False),
        ({"exp": 1e300}, False),
        ({"exp": None}, True),
        ({"nbf": []}, False),
        ({"iat": NOW, "aud": "x", "iss": 5, "jti": 7}, True),
    ],
)
def test_times(claims: dict[str, Any], fits: bool) -> None:
    token = by_hand({"sub": "me", **claims})
    if fits:
        assert reader().claims(token, NOW)["sub"] == "me"
    else:
        with pytest.raises(Unauthenticated):
            reader().claims(token, NOW)


async def test_skew_and_audience() -> None:
    late = by_hand({"sub": "me", "exp": NOW // 1000 - 5})
    found = await TokenMethod(reader(skew_ms=6_000)).identify(Credentials("token", late), NOW)
    assert found.expires_ms == NOW + 1_000, "not asked for again at once"
    with pytest.raises(Unauthenticated):
        reader(skew_ms=5_000).claims(late, NOW)
    for audience, fits in (("a", True), (["b", "a"], True), ("b", False), ([], False), (None, False)):
        token = by_hand({"sub": "me", "aud": audience})
        if fits:
            assert reader(audience="a").claims(token, NOW)
        else:
            with pytest.raises(Unauthenticated):
                reader(audience="a").claims(token, NOW)


@pytest.mark.parametrize(
    ("claims", "claim", "role"),
    [
        ({"sub": "me"}, "sub", "me"),
        ({"sub": "me", "role": "you"}, "role", "you"),
        ({"sub": ["first", "second"]}, "sub", "first"),
        ({"sub": []}, "sub", None),
        ({"sub": ""}, "sub", None),
        ({"sub": "  "}, "sub", None),
        ({"sub": "a\nb"}, "sub", None),
        ({"sub": 7}, "sub", None),
        ({"other": "x"}, "sub", None),
    ],
)
async def test_the_role_is_a_claim(claims: dict[str, Any], claim: str, role: str | None) -> None:
    method = TokenMethod(reader(), claim)
    if role is None:
        with pytest.raises(Unauthenticated):
            await method.identify(Credentials("token", by_hand(claims)), NOW)
    else:
        assert (await method.identify(Credentials("token", by_hand(claims)), NOW)).role == role


@pytest.mark.parametrize(
    "token",
    [
        b"",
        b".",
        b"..",
        b"a.b.c",
        b"\xff\xfe",
        by_hand("text"),
        by_hand([1]),
        by_hand({"sub": "me"})[:-2],
        by_hand({"sub": "me"}, b"another secret of enough length..."),
        by_hand({"sub": "me"}) + b"\n.x",
        by_hand({"sub": "me"}, header={"alg": ["HS256"]}),
        by_hand({"sub": "me"}, header={"alg": "HS256", "crit": ["b64"], "b64": False}),
        by_hand({"sub": "me"}, header=[]),
        b"x" * 60_000,
    ],
)
def test_malformed_token_is_refused_and_not_repeated(token: bytes) -> None:
    with pytest.raises(Unauthenticated) as caught:
        reader().claims(token, NOW)
    shown = str(caught.value).encode()
    assert len(shown) < 100
    for part in token.split(b"."):
        assert len(part) < 8 or part not in shown


def test_any_changed_byte_invalidates_the_token() -> None:
    token = by_hand({"sub": "me"})
    for place in range(0, len(token) - 1, 7):
        changed = bytearray(token)
        changed[place] = ord("A") if changed[place] != ord("A") else ord("B")
        with pytest.raises(Unauthenticated):
            reader().claims(bytes(changed), NOW)


# -- keys


def test_secrets_raw_and_base64(tmp_path: Path) -> None:
    raw, text, line = tmp_path / "raw", tmp_path / "text", tmp_path / "line"
    raw.write_bytes(SECRET[:32])
    text.write_bytes(base64.b64encode(SECRET[:32]))
    line.write_bytes(base64.b64encode(SECRET[:32]) + b"\n")
    token = by_hand({"sub": "me"}, SECRET[:32])
    inline = "data:;base64," + base64.b64encode(SECRET[:32]).decode()
    for place in (str(raw), f"file://{raw}", str(text), str(line), inline):
        assert reader(*tokens.secret_keys(tokens.read_key(place))).claims(token, NOW)
    # Pulsar takes the base64 text of a file as the secret itself: such tokens are valid too
    assert reader(*tokens.secret_keys(text.read_bytes())).claims(by_hand({"sub": "me"}, text.read_bytes()), NOW)


@pytest.mark.parametrize("encoding", [serialization.Encoding.PEM, serialization.Encoding.DER])
def test_pairs_in_both_encodings(encoding: serialization.Encoding) -> None:
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    public = key.public_key().public_bytes(encoding, serialization.PublicFormat.SubjectPublicKeyInfo)
    token = tokens.make_token({"sub": "me"}, tokens.private_key(private))
    assert reader(tokens.public_key(public)).claims(token.encode(), NOW)


def test_weak_and_unsupported_keys_are_refused() -> None:
    weak = rsa.generate_private_key(public_exponent=65537, key_size=1024).public_key()
    der = serialization.Encoding.DER
    spki = serialization.PublicFormat.SubjectPublicKeyInfo
    curve = ec.generate_private_key(ec.SECP256K1()).public_key()
    for content in (weak.public_bytes(der, spki), curve.public_bytes(der, spki), b"", b"rubbish", PAIRS["RS256"][0]):
        with pytest.raises(BadKey):
            tokens.public_key(content)
    for content in (b"", b"short", SECRET[:31], base64.b64encode(SECRET[:16])):
        with pytest.raises(BadKey):
            tokens.secret_keys(content)
    with pytest.raises(BadKey):
        tokens.private_key(PAIRS["RS256"][1])


def test_secret_given_as_path_is_not_in_the_error() -> None:
    for place in ("s3cr3t-by-mistake", "data:;base64,s3cr3t-by-mistake!", "data:s3cr3t-by-mistake", "s3cr3t\0by"):
        with pytest.raises(BadKey) as caught:
            tokens.read_key(place)
        assert "s3cr3t" not in str(caught.value)
    assert "s3cr3t" not in repr(TokenKey(b"s3cr3t", ("HS256",))) + repr(Credentials("token", b"s3cr3t"))


# -- what the command line does


def test_key_files_are_private_and_never_overwritten(tmp_path: Path) -> None:
    private, public = tmp_path / "private.key", tmp_path / "public.key"
    create_key_pair("ES256", private, public)
    assert private.stat().st_mode & 0o077 == 0
    with pytest.raises(Exception, match="exists already"):
        create_key_pair("ES256", private, tmp_path / "other.key")
    assert not (tmp_path / "other.key").exists()
    token = create_token(
        "me",
        secret_key=None,
        private_key=str(private),
        algorithm=None,
        expires_ms=NOW + 60_000,
        claims={"team": "a"},
        headers={"kid": "1"},
    )
    found = validate_token(token, secret_key=None, public_key=str(public), now_ms=NOW)
    assert found == {"sub": "me", "team": "a", "exp": NOW // 1000 + 60}
    with pytest.raises(Unauthenticated, match="expired"):
        validate_token(token, secret_key=None, public_key=str(public), now_ms=NOW + 60_000)


@pytest.mark.parametrize("algorithm", HMAC_BYTES)
def test_secrets_are_new_and_long_enough(algorithm: str) -> None:
    raw, text = create_secret_key(algorithm, as_base64=False), create_secret_key(algorithm, as_base64=True)
    assert len(raw) == HMAC_BYTES[algorithm] == len(base64.b64decode(text))
    assert raw != create_secret_key(algorithm, as_base64=False)


async def test_changed_key_file_is_reloaded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    place, other = tmp_path / "secret.key", bytes(reversed(SECRET))
    place.write_bytes(SECRET)
    file = KeyFile(str(place), tokens.secret_keys)
    method = FollowingTokenMethod(TokenReader(file.keys), "sub", file)

    async def role(secret: bytes) -> str:
        return (await method.identify(Credentials("token", by_hand({"sub": "me"}, secret)), NOW)).role

    def exchange(content: bytes) -> None:
        fresh = tmp_path / "fresh"
        fresh.write_bytes(content)
        fresh.rename(place)

    assert await role(SECRET) == "me"
    with pytest.raises(Unauthenticated):
        await role(other)
    exchange(other)
    assert await role(other) == "me"
    with pytest.raises(Unauthenticated):
        await role(SECRET)
    exchange(b"short")
    assert await role(other) == "me" and "last good key" in caplog.text
    place.unlink()
    assert await role(other) == "me"
    exchange(SECRET)
    assert await role(SECRET) == "me"


def test_key_in_data_url_never_changes() -> None:
    file = KeyFile("data:;base64," + base64.b64encode(SECRET).decode(), tokens.secret_keys)
    assert not file.follow() and file.keys[0].key == SECRET


def test_missing_key_file_is_named_unless_it_may_be_a_key(tmp_path: Path) -> None:
    for place in (f"{tmp_path}/secret.key", "secret.key", "./secret", f"file://{tmp_path}/secret"):
        with pytest.raises(BadKey, match=place.removeprefix("file://").removeprefix("./")):
            tokens.read_key(place)
    for place in ("c2VjcmV0/c2VjcmV0c2VjcmV0", f"{tmp_path}/c2VjcmV0c2VjcmV0c2Vj+cmV0", "secret words"):
        with pytest.raises(BadKey) as caught:
            tokens.read_key(place)
        assert "ecr" not in str(caught.value).replace("secret key", "")
        assert "write file:PATH" in str(caught.value)
