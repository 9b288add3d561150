"""Credentials of a client: token, password or certificate; and the CAs that it trusts.

Secrets do not appear in `repr`, so that they cannot reach a log by accident. A token is requested each time a broker
asks for credentials, so one from a file or a function may change while connections are open.
"""

from __future__ import annotations

import base64
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol


class NoCredentials(Exception):
    """The credentials are not available at the moment.

    Not a subclass of the common error, which this layer cannot import.
    """


class Credentials(Protocol):
    """One authentication method."""

    @property
    def method(self) -> str:
        """Its name in the binary protocol."""

    def data(self) -> bytes:
        """The current credentials. Raises NoCredentials."""

    def header(self) -> str | None:
        """The value of the HTTP header Authorization, or None. Raises NoCredentials."""


@dataclass(frozen=True, slots=True)
class Token:
    """A token: text, a file that holds it, or a function that returns the current one."""

    source: str | Path | Callable[[], str] = field(repr=False)
    method = "token"

    def text(self) -> str:
        try:
            if isinstance(self.source, Path):
                return self.source.read_text().strip()
            return self.source if isinstance(self.source, str) else self.source()
        except Exception as cause:  # a function of the application may raise any error
            what = f"{self.source}" if isinstance(self.source, Path) else "the function that gives it"
            raise NoCredentials(f"no token from {what}: {type(cause).__name__}") from cause

    def data(self) -> bytes:
        return self.text().encode()

    def header(self) -> str:
        return f"Bearer {self.text()}"


@dataclass(frozen=True, slots=True)
class Basic:
    """A user name with a password."""

    user: str
    password: str = field(repr=False)
    method = "basic"

    def data(self) -> bytes:
        return f"{self.user}:{self.password}".encode()

    def header(self) -> str:
        return f"Basic {base64.b64encode(self.data()).decode()}"


@dataclass(frozen=True, slots=True)
class Certificate:
    """Authentication by the client certificate of `Tls`."""

    method = "tls"

    def data(self) -> bytes:
        return b""

    def header(self) -> None:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """Trusted CAs, and a client certificate if brokers require one. Files are PEM; the default is the system's CAs."""

    trust_file: str | Path | None = None
    certificate_file: str | Path | None = None
    key_file: str | Path | None = None
    check_hostname: bool = True

    def context(self) -> ssl.SSLContext:
        """Raises OSError (including ssl.SSLError) if the files are not usable."""
        made = ssl.create_default_context(cafile=None if self.trust_file is None else str(self.trust_file))
        made.check_hostname = self.check_hostname
        if self.certificate_file is not None:
            # An encrypted key must not make a program prompt on its terminal.
            made.load_cert_chain(self.certificate_file, self.key_file, password=lambda: b"")
        return made


def token_credentials(token: str | Path | Callable[[], str] | None) -> Token | None:
    return None if token is None else Token(token)


def tls_context(tls: Tls | ssl.SSLContext | None) -> ssl.SSLContext | None:
    return tls.context() if isinstance(tls, Tls) else tls
