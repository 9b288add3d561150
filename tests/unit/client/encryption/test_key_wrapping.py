"""Data keys wrapped for RSA and EC keys, and keys that are refused."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from anabranch.client.encryption.key_wrapping import private_key, public_key, unwrapped, wrapped
from anabranch.client.encryption.options import EncryptionKey
from anabranch.client.errors import UnusableKey
from tests.support.in_memory.key_pairs import KeyPair, dsa_pair, ec_pair, ed25519_pair, rsa_pair

DATA_KEY = bytes(range(32))
PAIRS = {"rsa": rsa_pair(), "p256": ec_pair(), "p521": ec_pair("secp521r1")}


def sides(pair: KeyPair) -> tuple[EncryptionKey, EncryptionKey]:
    return EncryptionKey(pair.public), EncryptionKey(pair.private.decode())


@pytest.mark.parametrize("kind", PAIRS)
def test_only_the_private_key_unwraps_it(kind: str) -> None:
    public, private = sides(PAIRS[kind])
    value = wrapped(public_key("k", public), DATA_KEY)
    assert DATA_KEY not in value
    assert unwrapped(private_key("k", private), value) == DATA_KEY
    for other in (rsa_pair(1), ec_pair("secp256k1"), ec_pair("brainpoolP384r1")):
        assert unwrapped(private_key("k", EncryptionKey(other.private)), value) is None


@pytest.mark.parametrize("kind", PAIRS)
def test_damaged_value_is_not_unwrapped(kind: str) -> None:
    public, private = sides(PAIRS[kind])
    value = wrapped(public_key("k", public), DATA_KEY)
    key = private_key("k", private)
    for place in (0, 1, len(value) // 2, len(value) - 1):
        damaged = bytearray(value)
        damaged[place] ^= 1
        assert unwrapped(key, bytes(damaged)) is None, place
    for part in (b"", value[:1], value[:-1], value[: len(value) // 2]):
        assert unwrapped(key, part) is None


def test_a_file_with_curve_parameters_first_is_read() -> None:
    """As `openssl ecparam -genkey` writes it."""
    pair = ec_pair()
    parameters = b"-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n-----END EC PARAMETERS-----\n"
    key = serialization.load_pem_private_key(pair.private, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL
    private = parameters + key.private_bytes(pem, form, serialization.NoEncryption())
    value = wrapped(public_key("k", EncryptionKey(parameters + pair.public)), DATA_KEY)
    assert unwrapped(private_key("k", EncryptionKey(private)), value) == DATA_KEY


REFUSED = {
    "ed25519": (ed25519_pair().public, "Ed25519 keys are not supported; RSA and EC keys are"),
    "dsa": (dsa_pair().public, "DSA keys are not supported"),
    "private": (rsa_pair().private, "it is a private key, but a public key is needed"),
    "no PEM": (b"secret material", "it has no PEM block"),
    "damaged": (rsa_pair().public.replace(b"A", b"B"), "its public key is damaged"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_unusable_public_key_is_refused_by_name_and_without_its_content(case: str) -> None:
    pem, text = REFUSED[case]
    with pytest.raises(UnusableKey) as caught:
        public_key("orders", EncryptionKey(pem))
    assert text in caught.value.reason and "'orders'" in caught.value.reason
    assert_hidden(pem, caught.value)


def test_unusable_private_key_is_refused() -> None:
    key = serialization.load_pem_private_key(rsa_pair().private, None)
    locked = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"pw")
    )
    cases = {locked: "has a password", rsa_pair().public: "it is a public key", ed25519_pair().private: "Ed25519 keys"}
    for pem, text in cases.items():
        with pytest.raises(UnusableKey, match=text) as caught:
            private_key("orders", EncryptionKey(pem))
        assert_hidden(pem, caught.value)


def assert_hidden(pem: bytes, error: BaseException | None) -> None:
    while error is not None:
        for line in pem.decode().splitlines():
            if not line.startswith("-----"):
                assert line not in str(error) and line not in repr(error)
        error = error.__cause__ or error.__context__
