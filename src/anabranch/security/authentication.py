"""Authentication: credentials in, an identity or a refusal out. Several methods can be enabled at once.

A refusal has a reason for the operator's log, which repeats no part of the credentials.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from anabranch.model.errors import Error

DATA_BYTES_MAX = 64 * 1024


class Unauthenticated(Error):
    """No credentials, or wrong ones."""

    code = "authentication"


@dataclass(frozen=True, slots=True)
class Identity:
    role: str
    method: str
    expires_ms: int | None = None  # wall clock; None: as long as the connection lives


@dataclass(frozen=True, slots=True, repr=False)
class Credentials:
    """What a client presents. Its repr shows nothing of it."""

    method: str
    data: bytes = b""
    certificate_name: str | None = None  # common name of a client certificate that TLS has verified

    def __repr__(self) -> str:
        return f"<Credentials {self.method!r}>"


class Method(Protocol):
    name: str

    async def identify(self, credentials: Credentials, now_ms: int) -> Identity:
        """Raises Unauthenticated."""


class CertificateMethod:
    """mTLS: the verified client certificate's common name is the role."""

    name = "tls"

    async def identify(self, credentials: Credentials, now_ms: int) -> Identity:
        if not credentials.certificate_name:
            raise Unauthenticated("no client certificate with one common name was presented")
        return Identity(credentials.certificate_name, self.name)


class Authenticator:
    """All enabled methods. What presents none of them has the anonymous role, if there is one, as in Pulsar. Wrong
    credentials of an enabled method are refused even then."""

    def __init__(self, methods: Mapping[str, Method], anonymous_role: str | None = None) -> None:
        self.methods = dict(methods)
        self._anonymous = anonymous_role or None
        self.successes = 0
        self.failures = 0

    async def identify(self, credentials: Credentials, now_ms: int) -> Identity:
        try:
            found = await self._identify(credentials, now_ms)
        except Unauthenticated:
            self.failures += 1
            raise
        self.successes += 1
        return found

    async def _identify(self, credentials: Credentials, now_ms: int) -> Identity:
        if len(credentials.data) > DATA_BYTES_MAX:
            raise Unauthenticated("credentials are too long")
        method = self.methods.get(credentials.method)
        if method is not None:
            return await method.identify(credentials, now_ms)
        if self._anonymous is not None:
            return Identity(self._anonymous, "anonymous")
        if credentials.method not in ("", "none"):
            raise Unauthenticated(f"authentication method {credentials.method[:32]!r} is not enabled")
        raise Unauthenticated("authentication is required")


def http_credentials(authorization: str | None, certificate_name: str | None, certificates_count: bool) -> Credentials:
    """What an HTTP request presents: its Authorization header, else its client certificate, else nothing."""
    if authorization is not None:
        scheme, _, value = authorization.strip().partition(" ")
        match scheme.lower():
            case "bearer":
                return Credentials("token", value.strip().encode("latin-1", "replace"), certificate_name)
            case "basic":
                return Credentials("basic", _decoded(value.strip()), certificate_name)
            case _:
                return Credentials(f"HTTP {scheme}", b"", certificate_name)
    if certificate_name is not None and certificates_count:
        return Credentials(CertificateMethod.name, b"", certificate_name)
    return Credentials("none")


def _decoded(value: str) -> bytes:
    try:
        return base64.b64decode(value.encode("latin-1", "replace"), validate=True)
    except (binascii.Error, ValueError) as error:
        raise Unauthenticated("the Basic credentials are not base64") from error
