"""Only requests that are signed with the secret are accepted: once, in time, by the receiver they name."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.interbroker.secret import SECRET_KEY, BadSecret, load_secret
from anabranch.interbroker.signature import (
    WINDOW_MS,
    NotABroker,
    Secret,
    SeenOnce,
    Signature,
    is_answer,
    sign,
    sign_answer,
    verify,
)
from anabranch.metadata.interface import ANY
from anabranch.metadata.memory.store import MemoryStore
from anabranch.model.broker_incarnation import BrokerIncarnation
from anabranch.runtime.clock import SystemClock

SECRET, OTHER = Secret(bytes(range(32))), Secret(bytes(range(1, 33)))
ME = BrokerIncarnation("b2", 7)
NOW = 1_000_000


def signed(secret: Secret = SECRET, **changed: object) -> Signature:
    said = {"sender": "b1", "receiver": ME, "sent_ms": NOW, "nonce": "3-1", **changed}
    return sign(secret, "POST", "/p", b"body", **said)  # type: ignore[arg-type]  # fields by name


def check(given_: Signature, *, method: str = "POST", path: str = "/p", body: bytes = b"body", now: int = NOW) -> None:
    verify(SECRET, method, path, body, Signature.load(given_.dump()), me=ME, now_ms=now)


def test_signed_request_is_accepted() -> None:
    check(signed())
    check(signed(), now=NOW + WINDOW_MS - 1)
    check(signed(), now=NOW - WINDOW_MS + 1)


@pytest.mark.parametrize("late", [WINDOW_MS, -WINDOW_MS, 10 * WINDOW_MS])
def test_request_outside_the_time_window_is_refused(late: int) -> None:
    with pytest.raises(NotABroker, match="old"):
        check(signed(), now=NOW + late)


def test_any_changed_field_is_refused() -> None:
    wrongs: list[Callable[[], None]] = [
        lambda: check(signed(OTHER)),
        lambda: check(signed(), method="GET"),
        lambda: check(signed(), path="/q"),
        lambda: check(signed(), body=b"bodz"),
        lambda: check(signed(receiver=BrokerIncarnation("b2", 6))),
        lambda: check(signed(receiver=BrokerIncarnation("b3", 7))),
        lambda: check(Signature("b9", ME, NOW, "3-1", signed().mac)),
        lambda: check(Signature("b1", ME, NOW + 1, "3-1", signed().mac)),
        lambda: check(Signature("b1", ME, NOW, "3-2", signed().mac)),
    ]
    for wrong in wrongs:
        with pytest.raises(NotABroker):
            wrong()


@given(st.text(max_size=200))
def test_any_malformed_signature_is_refused(text: str) -> None:
    with pytest.raises(NotABroker):
        verify(SECRET, "POST", "/p", b"", Signature.load(text), me=ME, now_ms=NOW)


def test_request_is_accepted_once() -> None:
    seen = SeenOnce(count_max=3)
    seen.take(signed(), NOW)
    with pytest.raises(NotABroker, match="twice"):
        seen.take(signed(), NOW + WINDOW_MS)
    seen.take(signed(nonce="3-2"), NOW)
    seen.take(signed(sender="b3"), NOW)
    with pytest.raises(NotABroker, match="many"):
        seen.take(signed(nonce="3-4"), NOW)
    seen.take(signed(nonce="3-4"), NOW + 2 * WINDOW_MS)
    assert len(seen) == 1, "what is too old to be accepted is forgotten"


def test_answer_signature_is_valid_for_one_request() -> None:
    mac = sign_answer(SECRET, signed(), 200, b"{}")
    assert is_answer(SECRET, signed(), 200, b"{}", mac)
    assert not is_answer(SECRET, signed(), 404, b"{}", mac)
    assert not is_answer(SECRET, signed(), 200, b"[]", mac)
    assert not is_answer(SECRET, signed(nonce="3-2"), 200, b"{}", mac)
    assert not is_answer(OTHER, signed(), 200, b"{}", mac)


def test_secret_is_not_in_repr() -> None:
    assert SECRET.key.hex() not in repr(SECRET) + str(SECRET) and repr(SECRET.key) not in repr(SECRET)


async def test_secret_is_created_once() -> None:
    async with MemoryStore(SystemClock()) as store:
        first = await load_secret(store, b"a" * 32)
        assert first == await load_secret(store, b"b" * 32) == Secret(b"a" * 32)
        await store.put(SECRET_KEY, b"zz", expected=ANY)
        with pytest.raises(BadSecret):
            await load_secret(store, b"c" * 32)
