"""Data keys wrapped with public keys, and unwrapped with private keys. Pure functions, except for fresh randomness.

| key | wrapped data key                                                                                   |
|-----|----------------------------------------------------------------------------------------------------|
| RSA | RSAES-OAEP with SHA-1 and MGF1-SHA-1, as all clients of Pulsar                                     |
| EC  | ECIES as in Bouncy Castle, which Pulsar's Java client uses; other clients of Pulsar do not read it |

ECIES: ephemeral point V (uncompressed), ciphertext C, tag T. KDF2 with SHA-1 makes from V and the shared secret first
the MAC key (128 bits), then a key stream that is XORed with the data key. T is HMAC-SHA-1 of C and eight zero bytes,
the length of an absent encoding parameter.
"""

from __future__ import annotations

import re
from typing import NoReturn

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, hmac, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.kdf.x963kdf import X963KDF

from anabranch.client.encryption.options import EncryptionKey
from anabranch.client.errors import UnusableKey

PublicKey = rsa.RSAPublicKey | ec.EllipticCurvePublicKey
PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey

RSA_BITS_MIN = 1024
MAC_KEY_BYTES = 16
TAG_BYTES = 20
NO_PARAMETER = bytes(8)
_OAEP = padding.OAEP(padding.MGF1(hashes.SHA1()), hashes.SHA1(), None)
_PARAMETERS = re.compile(rb"-----BEGIN EC PARAMETERS-----.*?-----END EC PARAMETERS-----\s*", re.DOTALL)
_POINT = serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint


def public_key(name: str, key: EncryptionKey) -> PublicKey:
    """Raises UnusableKey."""
    content = _bytes_of(key)
    try:
        if b"-----BEGIN CERTIFICATE-----" in content:
            from cryptography import x509

            found: object = x509.load_pem_x509_certificate(content).public_key()
        else:
            found = serialization.load_pem_public_key(content)
    except (ValueError, UnsupportedAlgorithm) as cause:
        _refuse(name, "public", content, cause)
    if isinstance(found, rsa.RSAPublicKey):
        return _checked_rsa(name, found)
    if isinstance(found, ec.EllipticCurvePublicKey):
        return found
    raise UnusableKey(_kind(name, found))


def private_key(name: str, key: EncryptionKey) -> PrivateKey:
    """Raises UnusableKey."""
    content = _bytes_of(key)
    try:
        found = serialization.load_pem_private_key(content, None)
    except TypeError as cause:
        raise UnusableKey(
            f"key {name!r}: its private key has a password; give it without one, from a function"
        ) from cause
    except (ValueError, UnsupportedAlgorithm) as cause:
        _refuse(name, "private", content, cause)
    if isinstance(found, rsa.RSAPrivateKey):
        _checked_rsa(name, found.public_key())
        return found
    if isinstance(found, ec.EllipticCurvePrivateKey):
        return found
    raise UnusableKey(_kind(name, found))


def wrapped(key: PublicKey, data_key: bytes) -> bytes:
    if isinstance(key, rsa.RSAPublicKey):
        return key.encrypt(data_key, _OAEP)
    ephemeral = ec.generate_private_key(key.curve)
    point = ephemeral.public_key().public_bytes(*_POINT)
    mac_key, stream = _derived(point, ephemeral.exchange(ec.ECDH(), key), len(data_key))
    cipher = _xored(data_key, stream)
    return point + cipher + _tag(mac_key, cipher).finalize()


def unwrapped(key: PrivateKey, value: bytes) -> bytes | None:
    """The data key; None if it was not wrapped for this key, or is damaged."""
    try:
        if isinstance(key, rsa.RSAPrivateKey):
            return key.decrypt(value, _OAEP)
        size = _point_bytes(key, value)
        point, cipher, tag = value[:size], value[size:-TAG_BYTES], value[-TAG_BYTES:]
        public = ec.EllipticCurvePublicKey.from_encoded_point(key.curve, point)
        mac_key, stream = _derived(point, key.exchange(ec.ECDH(), public), len(cipher))
        _tag(mac_key, cipher).verify(tag)
        return _xored(cipher, stream)
    except (ValueError, InvalidSignature):
        return None


def _derived(point: bytes, secret: bytes, size: int) -> tuple[bytes, bytes]:
    made = X963KDF(hashes.SHA1(), MAC_KEY_BYTES + size, None).derive(point + secret)
    return made[:MAC_KEY_BYTES], made[MAC_KEY_BYTES:]


def _tag(mac_key: bytes, cipher: bytes) -> hmac.HMAC:
    made = hmac.HMAC(mac_key, hashes.SHA1())
    made.update(cipher + NO_PARAMETER)
    return made


def _xored(data: bytes, stream: bytes) -> bytes:
    return bytes(one ^ other for one, other in zip(data, stream, strict=True))


def _point_bytes(key: ec.EllipticCurvePrivateKey, value: bytes) -> int:
    """Length of the point at the start. Raises ValueError."""
    field_bytes = (key.curve.key_size + 7) // 8
    size = {2: 1 + field_bytes, 3: 1 + field_bytes, 4: 1 + 2 * field_bytes}.get(value[0] if value else 0)
    if size is None or len(value) <= size + TAG_BYTES:
        raise ValueError("not ECIES of this curve")
    return size


def _checked_rsa(name: str, key: rsa.RSAPublicKey) -> rsa.RSAPublicKey:
    if key.key_size < RSA_BITS_MIN:
        raise UnusableKey(f"key {name!r}: RSA keys must have at least {RSA_BITS_MIN} bits, it has {key.key_size}")
    return key


def _bytes_of(key: EncryptionKey) -> bytes:
    """Without the curve that `openssl ecparam -genkey` writes first; the key names it, too."""
    return _PARAMETERS.sub(b"", key.pem.encode() if isinstance(key.pem, str) else bytes(key.pem))


def _refuse(name: str, wanted: str, content: bytes, cause: Exception) -> NoReturn:
    """The texts of the library are not repeated, because they are long and name no remedy."""
    other = "private" if wanted == "public" else "public"
    if f"{other.upper()} KEY-----".encode() in content:
        raise UnusableKey(f"key {name!r}: it is a {other} key, but a {wanted} key is needed") from cause
    if b"-----BEGIN " not in content:
        raise UnusableKey(f"key {name!r}: it has no PEM block ('-----BEGIN … KEY-----')") from cause
    raise UnusableKey(f"key {name!r}: its {wanted} key is damaged, or of a kind that is not supported") from cause


def _kind(name: str, found: object) -> str:
    kind = type(found).__name__.removesuffix("PublicKey").removesuffix("PrivateKey").lstrip("_")
    return f"key {name!r}: {kind} keys are not supported; RSA and EC keys are"
