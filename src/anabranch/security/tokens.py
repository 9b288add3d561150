"""JSON Web Tokens: reads keys, makes and checks tokens. The caller gives the time.

The allowed algorithms follow from the key, never from the token: a secret allows HS256/384/512 if it is long
enough, an RSA key RS256/384/512, an EC key the one that belongs to its curve. PyJWT and cryptography do the
cryptography and are imported when a key is first read, so that a broker without tokens does not pay for them.

Keys are files as Pulsar's tools write them: secrets raw or base64, public keys X.509 and private keys PKCS#8, in DER or
PEM; or the same bytes as `data:;base64,…`. No error text holds a key, a token or a part of one.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, unquote_to_bytes, urlsplit

from anabranch.model.errors import BadRequest, Error
from anabranch.security.authentication import Credentials, Identity, Unauthenticated

SECRET_BYTES_MIN = 32
RSA_BITS_MIN = 2048
HMAC_BYTES = {"HS256": 32, "HS384": 48, "HS512": 64}
RSA_ALGORITHMS = ("RS256", "RS384", "RS512")
CURVE_ALGORITHMS = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
ALGORITHMS = (*HMAC_BYTES, *RSA_ALGORITHMS, *CURVE_ALGORITHMS.values())
_FILE_NAME = re.compile(r"(?:.*/)?[\w-]+(?:\.[A-Za-z]{2,10})+")  # has an extension, which no base64 text has
_BASE64 = re.compile(rb"[A-Za-z0-9+/\s]+={0,2}\s*")


class BadKey(Error):
    """A key that cannot be read or must not be used."""

    code = "bad-key"


class SecurityMissing(Error):
    """An optional package that this method needs is not installed."""

    code = "not-installed"

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} needs further packages: pip install 'anabranch[security]'")


@dataclass(frozen=True, slots=True, repr=False)
class TokenKey:
    """One key and the algorithms that it allows, the default one first."""

    key: Any  # bytes, or a key of the cryptography package
    algorithms: tuple[str, ...]


# -- keys


def read_key(place: str) -> bytes:
    """The bytes behind a path, a file: URL or a data: URL. Errors name the file only if it cannot be a key that was
    given by mistake."""
    if place.startswith("data:"):
        head, comma, content = place.partition(",")
        if not comma:
            raise BadKey("a data: URL without a comma holds no key")
        if not head.endswith(";base64"):
            return unquote_to_bytes(content)
        try:
            return base64.b64decode(content, validate=True)
        except (binascii.Error, ValueError) as error:
            raise BadKey("a data: URL that is not base64 holds no key") from error
    path = Path(unquote(urlsplit(place).path) if place.startswith("file:") else place)
    try:
        return path.read_bytes()
    except (OSError, ValueError) as error:
        words = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else "not a path"
        is_name = place.startswith(("file:", "./", "../")) or _FILE_NAME.fullmatch(place)
        name = f"{path}" if is_name else "(not shown, because it may be a key; write file:PATH)"
        raise BadKey(f"the key file {name} cannot be read: {words}") from error


def secret_keys(content: bytes) -> tuple[TokenKey, ...]:
    """The secrets that the content may be. Base64 text may also be a raw secret, as which Pulsar reads a file, so
    tokens of either are valid. New tokens are made with the first."""
    if _BASE64.fullmatch(content):
        try:
            decoded = base64.b64decode(b"".join(content.split()), validate=True)
        except (binascii.Error, ValueError):
            decoded = b""
        candidates = [decoded, content, content.strip()] if len(decoded) >= SECRET_BYTES_MIN else [content]
    else:
        candidates = [content]
    if len(candidates[0]) < SECRET_BYTES_MIN:
        raise BadKey(f"a secret key has at least {SECRET_BYTES_MIN} bytes, this one {len(candidates[0])}")
    return tuple(_secret_key(secret) for secret in dict.fromkeys(candidates))


def _secret_key(secret: bytes) -> TokenKey:
    return TokenKey(secret, tuple(name for name, size in HMAC_BYTES.items() if size <= len(secret)))


def public_key(content: bytes) -> TokenKey:
    """X.509 SubjectPublicKeyInfo, DER or PEM."""
    try:
        from cryptography.hazmat.primitives import serialization
    except ImportError as error:
        raise SecurityMissing("token authentication") from error
    load = serialization.load_pem_public_key if b"-----BEGIN" in content[:4096] else serialization.load_der_public_key
    try:
        return _asymmetric(load(content))
    except Error:
        raise
    except Exception as error:  # the library raises several kinds for a file that is something else
        raise BadKey("the public key is neither DER nor PEM of an X.509 public key") from error


def private_key(content: bytes) -> TokenKey:
    """PKCS#8 without a password, DER or PEM."""
    try:
        from cryptography.hazmat.primitives import serialization
    except ImportError as error:
        raise SecurityMissing("token authentication") from error
    load = serialization.load_pem_private_key if b"-----BEGIN" in content[:4096] else serialization.load_der_private_key
    try:
        return _asymmetric(load(content, None))
    except Error:
        raise
    except Exception as error:  # as above
        raise BadKey("the private key is neither DER nor PEM of a PKCS#8 key without password") from error


def _asymmetric(key: Any) -> TokenKey:
    from cryptography.hazmat.primitives.asymmetric import ec, rsa

    if isinstance(key, (rsa.RSAPublicKey, rsa.RSAPrivateKey)):
        if key.key_size < RSA_BITS_MIN:
            raise BadKey(f"an RSA key has at least {RSA_BITS_MIN} bits, this one {key.key_size}")
        return TokenKey(key, RSA_ALGORITHMS)
    if isinstance(key, (ec.EllipticCurvePublicKey, ec.EllipticCurvePrivateKey)) and key.curve.name in CURVE_ALGORITHMS:
        return TokenKey(key, (CURVE_ALGORITHMS[key.curve.name],))
    raise BadKey("only RSA keys and EC keys on P-256, P-384 and P-521 are supported")


def new_secret(algorithm: str, random_bytes: bytes) -> bytes:
    """As much of the given randomness as the algorithm uses."""
    size = HMAC_BYTES[algorithm]
    assert len(random_bytes) >= size
    return random_bytes[:size]


def new_key_pair(algorithm: str) -> tuple[bytes, bytes]:
    """(private PKCS#8, public X.509), both DER, as Pulsar's tool writes them."""
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec, rsa
    except ImportError as error:
        raise SecurityMissing("a key pair") from error
    made: Any
    if algorithm in RSA_ALGORITHMS:
        made = rsa.generate_private_key(public_exponent=65537, key_size=RSA_BITS_MIN)
    else:
        curves = {"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1(), "ES512": ec.SECP521R1()}
        made = ec.generate_private_key(curves[algorithm])
    der = serialization.Encoding.DER
    secret = made.private_bytes(der, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    public = made.public_key().public_bytes(der, serialization.PublicFormat.SubjectPublicKeyInfo)
    return secret, public


# -- tokens


def _signatures() -> Any:
    try:
        import jwt
    except ImportError as error:
        raise SecurityMissing("token authentication") from error
    return jwt.PyJWS()


def make_token(
    claims: Mapping[str, Any], key: TokenKey, algorithm: str | None = None, headers: Mapping[str, str] | None = None
) -> str:
    chosen = algorithm or key.algorithms[0]
    if chosen not in key.algorithms:
        raise BadRequest(f"this key makes {', '.join(key.algorithms)} tokens, not {chosen}")
    text = json.dumps(dict(claims), separators=(",", ":"), ensure_ascii=False).encode()
    made = _signatures().encode(text, key.key, algorithm=chosen, headers=dict(headers or {}))
    return str(made)


class TokenReader:
    """Checks signature and times with any of the keys given."""

    def __init__(self, keys: Sequence[TokenKey], *, skew_ms: int = 0, audience: str = "") -> None:
        self.keys = tuple(keys)
        self._skew_ms = skew_ms
        self._audience = audience
        self._signatures = _signatures()

    def claims(self, token: bytes, now_ms: int) -> dict[str, Any]:
        """The claims of a valid token; raises Unauthenticated."""
        claims = _parsed(self._payload(token.strip()))
        expires_ms, begins_ms = self.expires_ms(claims), _time(claims, "nbf")
        if expires_ms is not None and now_ms >= expires_ms:
            raise Unauthenticated("the token has expired")
        if begins_ms is not None and now_ms < begins_ms - self._skew_ms:
            raise Unauthenticated("the token is not valid yet")
        if self._audience:
            audience = claims.get("aud")
            if self._audience not in (audience if isinstance(audience, list) else [audience]):
                raise Unauthenticated("the token is for another audience")
        return claims

    def expires_ms(self, claims: Mapping[str, Any]) -> int | None:
        """When `claims` begins to refuse the token, clock tolerance included."""
        expires_ms = _time(claims, "exp")
        return None if expires_ms is None else expires_ms + self._skew_ms

    def _payload(self, token: bytes) -> bytes:
        from jwt.exceptions import PyJWTError

        for key in self.keys:
            try:
                payload: bytes = self._signatures.decode(token, key.key, algorithms=list(key.algorithms))
            except (PyJWTError, ValueError, TypeError, RecursionError):
                continue  # the next key may match; the detail would help only an attacker
            return payload
        raise Unauthenticated("the token is malformed or not signed by a known key")


def _parsed(payload: bytes) -> dict[str, Any]:
    try:
        claims = json.loads(payload, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise Unauthenticated("the token's content is not JSON") from error
    if not isinstance(claims, dict):
        raise Unauthenticated("the token's content is not an object")
    return claims


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _time(claims: Mapping[str, Any], name: str) -> int | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < 1 << 53:
        raise Unauthenticated(f"the token's {name} is not a time")
    return int(value * 1000)


class TokenMethod:
    """Method `token`: the role is a claim of a signed token."""

    name = "token"

    def __init__(self, reader: TokenReader, role_claim: str = "sub") -> None:
        self._reader = reader
        self._role_claim = role_claim

    async def identify(self, credentials: Credentials, now_ms: int) -> Identity:
        claims = self._reader.claims(credentials.data, now_ms)
        return Identity(role_of(claims, self._role_claim), self.name, self._reader.expires_ms(claims))


def role_of(claims: Mapping[str, Any], role_claim: str) -> str:
    """A text, or the first of a list of texts, as Pulsar reads it."""
    role = claims.get(role_claim)
    if isinstance(role, list) and role:
        role = role[0]
    if not isinstance(role, str) or not role.strip() or not role.isprintable():
        raise Unauthenticated(f"the token has no role in its claim {role_claim!r}")
    return role
