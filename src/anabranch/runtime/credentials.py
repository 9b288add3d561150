"""Credentials of a client: token, password or certificate; and the CAs that it trusts.

Secrets do not appear in `repr`, so that they cannot reach a log by accident. A token is requested each time a broker
asks for credentials, so one from a file or a function may change while connections are open.
"""

from __future__ import annotations

import base64
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol


class NoCredentials(Exception):
    """The credentials are not available. `retryable`: a function failed; otherwise a file is missing or unreadable.

    Not a subclass of the common error, which this layer cannot import.
    """

    def __init__(self, text: str, *, retryable: bool) -> None:
        super().__init__(text)
        self.retryable = retryable


class BadTlsFile(OSError):
    """A file of `Tls` or of a server is missing or has no usable content. The text names the file."""


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
    """A token: text, a file that holds it (a Path, or text like `file:///run/secrets/token`), or a function that
    returns the current one. Files and functions are read again for every connection."""

    source: str | Path | Callable[[], str] = field(repr=False)
    method = "token"

    def text(self) -> str:
        """Raises NoCredentials."""
        if isinstance(self.source, Path):
            return _token_in(self.source)
        if isinstance(self.source, str):
            file = file_of(self.source)
            return self.source if file is None else _token_in(file)
        try:
            return self.source()
        except Exception as cause:  # a function of the application may raise any error
            raise NoCredentials(f"no token: its function raised {type(cause).__name__}", retryable=True) from cause

    def data(self) -> bytes:
        return self.text().encode()

    def header(self) -> str:
        text = self.text()
        if not (text.isascii() and text.isprintable()):  # an HTTP library would show the token in its error
            raise NoCredentials("the token has a line break or another character that no token has", retryable=False)
        return f"Bearer {text}"


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
        """Raises BadTlsFile."""
        made = client_context(self.trust_file)
        made.check_hostname = self.check_hostname
        if self.certificate_file is not None:
            load_certificate(made, self.certificate_file, self.key_file)
        elif self.key_file is not None:
            raise BadTlsFile(f"key_file {self.key_file} is given without certificate_file")
        return made


def client_context(trust_file: str | Path | None) -> ssl.SSLContext:
    """A context that verifies brokers, by the system's CAs or by those of a file. Raises BadTlsFile."""
    if trust_file is None:
        return ssl.create_default_context()
    with _reading_cas(trust_file):
        return ssl.create_default_context(cafile=str(trust_file))


def trust(context: ssl.SSLContext, file: str | Path) -> None:
    """Trust the CAs of this file. Raises BadTlsFile."""
    with _reading_cas(file):
        context.load_verify_locations(file)


@contextmanager
def _reading_cas(file: str | Path) -> Iterator[None]:
    _check_readable(file)
    try:
        yield
    except ssl.SSLError as error:
        raise BadTlsFile(f"{file}: {error.reason or error} (PEM certificates are expected)") from error


def load_certificate(context: ssl.SSLContext, certificate: str | Path, key: str | Path | None) -> None:
    """Load the own certificate and its key. Raises BadTlsFile, which names the file; the errors of ssl do not."""
    for file in (certificate, key):
        if file is not None:
            _check_readable(file)
    try:
        # An encrypted key must not make a program prompt on its terminal.
        context.load_cert_chain(certificate, key, password=lambda: b"")
    except (ssl.SSLError, ValueError) as error:
        files = f"{certificate}" if key is None else f"{certificate} and {key}"
        why = (error.reason if isinstance(error, ssl.SSLError) else None) or str(error)
        raise BadTlsFile(
            f"{files}: {why} (a PEM certificate and its own key are expected, the key without a password)"
        ) from error


def _check_readable(file: str | Path) -> None:
    try:
        with open(file, "rb"):
            pass
    except OSError as error:
        raise BadTlsFile(f"{file}: {error.strerror or error}") from error


def file_of(text: str) -> Path | None:
    """The path of `file:///a/b`, `file:/a/b` or `file:b`; None for other text."""
    if not text.startswith("file:"):
        return None
    return Path(text.removeprefix("file:").removeprefix("//"))


def _token_in(file: Path) -> str:
    try:
        text = file.read_text().strip()
    except (OSError, UnicodeDecodeError) as cause:
        why = cause.strerror if isinstance(cause, OSError) else "it is not text"
        raise NoCredentials(f"the token file {file} cannot be read: {why}", retryable=False) from cause
    if not text:
        raise NoCredentials(f"the token file {file} is empty", retryable=False)
    return text


def token_credentials(token: str | Path | Callable[[], str] | None) -> Token | None:
    return None if token is None else Token(token)


def tls_context(tls: Tls | ssl.SSLContext | None) -> ssl.SSLContext | None:
    return tls.context() if isinstance(tls, Tls) else tls
