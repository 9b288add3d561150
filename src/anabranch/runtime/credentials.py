"""Who we are to a broker: tokens, passwords, certificates; and whom we trust. Knows files and ssl; no sockets.

Whatever is secret stays out of `repr`, so it cannot reach a log by accident. A token is asked for whenever a broker
wants to know who we are, so one in a file or from a function may change while connections live.
"""

from __future__ import annotations

import base64
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol


class NoCredentials(Exception):
    """They could not be had just now. (Not on the common root: this floor knows none.)"""


class Credentials(Protocol):
    """One way to sign in."""

    @property
    def method(self) -> str:
        """Its name in the binary protocol."""

    def data(self) -> bytes:
        """What to show, fresh. Raises NoCredentials."""

    def header(self) -> str | None:
        """The value of HTTP's Authorization; None: there is none. Raises NoCredentials."""


@dataclass(frozen=True, slots=True)
class Token:
    """A text, a file that has it, or a function that gives the current one."""

    source: str | Path | Callable[[], str] = field(repr=False)
    method = "token"

    def text(self) -> str:
        try:
            if isinstance(self.source, Path):
                return self.source.read_text().strip()
            return self.source if isinstance(self.source, str) else self.source()
        except Exception as cause:  # a function of the application may raise anything
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
    """The client certificate of `Tls` says who we are."""

    method = "tls"

    def data(self) -> bytes:
        return b""

    def header(self) -> None:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """Whom to trust, and our own certificate where brokers want one. Files are PEM; without any the machine decides."""

    trust_file: str | Path | None = None
    certificate_file: str | Path | None = None
    key_file: str | Path | None = None
    check_hostname: bool = True

    def context(self) -> ssl.SSLContext:
        """Raises OSError (ssl.SSLError is one) when the files are not usable."""
        made = ssl.create_default_context(cafile=None if self.trust_file is None else str(self.trust_file))
        made.check_hostname = self.check_hostname
        if self.certificate_file is not None:
            # An encrypted key must not make a program ask on its terminal.
            made.load_cert_chain(self.certificate_file, self.key_file, password=lambda: b"")
        return made


def token_credentials(token: str | Path | Callable[[], str] | None) -> Token | None:
    return None if token is None else Token(token)


def tls_context(tls: Tls | ssl.SSLContext | None) -> ssl.SSLContext | None:
    return tls.context() if isinstance(tls, Tls) else tls
