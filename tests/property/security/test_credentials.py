"""Arbitrary credentials end in an identity or a refusal, never in another error."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.model.errors import Error
from anabranch.security.authentication import Authenticator, CertificateMethod, Credentials, Unauthenticated
from anabranch.security.authentication import http_credentials as from_http
from anabranch.security.authorization import Grants
from anabranch.security.tokens import BadKey, TokenMethod, TokenReader, public_key, secret_keys
from tests.support.in_memory.credentials import SECRET, token_of

NOW = 1_700_000_000_000
AUTHENTICATOR = Authenticator({"token": TokenMethod(TokenReader(secret_keys(SECRET))), "tls": CertificateMethod()})
GOOD = token_of("me").encode()


@st.composite
def damaged_tokens(draw: st.DrawFn) -> bytes:
    """A good token with some bytes changed, cut or repeated."""
    place = draw(st.integers(0, len(GOOD)))
    return GOOD[:place] + draw(st.binary(max_size=20)) + GOOD[place + draw(st.integers(0, 20)) :]


@given(st.one_of(damaged_tokens(), st.binary(max_size=300)), st.sampled_from(["token", "tls", "none", "", "x"]))
@settings(max_examples=300, deadline=None)
def test_any_credentials(data: bytes, method: str) -> None:
    try:
        found = asyncio.run(AUTHENTICATOR.identify(Credentials(method, data), NOW))
    except Unauthenticated:
        return
    assert (data.strip(), method, found.role) == (GOOD, "token", "me")


@given(st.text(max_size=200))
def test_any_authorization_header(text: str) -> None:
    try:
        found = from_http(text, None, True)
        assert found.method in ("token", "basic") or found.method.startswith("HTTP ")
        identified = asyncio.run(AUTHENTICATOR.identify(found, NOW))
    except Unauthenticated:
        return
    assert (found.data.strip(), found.method, identified.role) == (GOOD, "token", "me")


@given(st.binary(max_size=400))
def test_any_key_file(content: bytes) -> None:
    for read in (secret_keys, public_key):
        try:
            read(content)
        except BadKey as error:
            assert len(error.reason) < 200


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.just("produce"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["namespace_auth", "destination_auth", "subscription_auth_roles"]), JSON))
def test_any_policies(policies: dict[str, object]) -> None:
    try:
        made = Grants.load({"auth_policies": policies})
    except Error:
        return
    assert Grants.load(made.dump()) == made
