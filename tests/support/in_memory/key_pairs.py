"""Keys of the tests of encryption, made once per process."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed25519, rsa


class KeyPair(NamedTuple):
    """PEM."""

    public: bytes
    private: bytes


AnyPrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey | dsa.DSAPrivateKey
CURVES: dict[str, ec.EllipticCurve] = {
    "secp256r1": ec.SECP256R1(),
    "secp521r1": ec.SECP521R1(),
    "secp256k1": ec.SECP256K1(),
    "brainpoolP384r1": ec.BrainpoolP384R1(),
}


@cache
def rsa_pair(number: int = 0, bits: int = 2048) -> KeyPair:
    """`number` distinguishes pairs."""
    return _pem(rsa.generate_private_key(65537, bits))


@cache
def ec_pair(curve: str = "secp256r1") -> KeyPair:
    return _pem(ec.generate_private_key(CURVES[curve]))


@cache
def ed25519_pair() -> KeyPair:
    return _pem(ed25519.Ed25519PrivateKey.generate())


@cache
def dsa_pair() -> KeyPair:
    return _pem(dsa.generate_private_key(2048))


def _pem(
    key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey | dsa.DSAPrivateKey,
) -> KeyPair:
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return KeyPair(key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo), private)
