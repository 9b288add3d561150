"""TLS from PEM files: contexts of a server, for its ports and for its calls to other servers, reloaded when the files
change.

TLS 1.2 and 1.3, OpenSSL's default ciphers, no renegotiation. With a CA file a client may present a certificate, which
is then verified against it; the caller decides whether it must.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anabranch.runtime.credentials import BadTlsFile, Tls, load_certificate, trust
from anabranch.runtime.logs import get_logger

log = get_logger(__name__)


class TlsError(Exception):
    """The files do not make a usable context. Not a subclass of the common error, which this layer cannot import."""

    code = "bad-tls-files"
    retryable = False

    @property
    def reason(self) -> str:
        return str(self)


@dataclass(frozen=True, slots=True)
class TlsFiles:
    certificate: Path  # chain, the server's own certificate first
    key: Path
    ca: Path | None = None  # CA of client certificates; None: none is requested
    require_client_certificate: bool = False


class TlsContext:
    """A context made from files, and made again when they change."""

    def __init__(self, files: tuple[Path | None, ...], make: Callable[[], ssl.SSLContext]) -> None:
        self._files = files
        self._make = make
        self._stamp = self._stat()
        self.context = make()

    def refresh(self) -> None:
        """New certificates apply to new connections; invalid ones are logged and the last valid ones stay."""
        stamp = self._stat()
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self.context = self._make()
        except TlsError as error:
            log.error(
                "TLS files are not usable; the last valid certificates stay in use", extra={"reason": error.reason}
            )
            return
        log.info("TLS files reloaded")

    def _stat(self) -> tuple[Any, ...]:
        found = []
        for path in self._files:
            try:
                status = os.stat(path) if path is not None else None
            except OSError:
                status = None
            found.append(None if status is None else (status.st_mtime_ns, status.st_size, status.st_ino))
        return tuple(found)


class TlsServer(TlsContext):
    """The context that all TLS ports of a node share."""

    def __init__(self, files: TlsFiles) -> None:
        super().__init__((files.certificate, files.key, files.ca), lambda: _context(files))


class TlsCalls(TlsContext):
    """The context of calls to servers whose certificates are signed by an authority in `trusted`, or by one of the
    machine's. The own certificate is presented to a server that requests one."""

    def __init__(self, trusted: Path | None, certificate: Path | None, key: Path | None) -> None:
        tls = Tls(trust_file=trusted, certificate_file=certificate, key_file=key)

        def make() -> ssl.SSLContext:
            try:
                return tls.context()
            except BadTlsFile as error:
                raise TlsError(f"TLS files: {error}") from error

        super().__init__((trusted, certificate, key), make)


class ServerObject(ssl.SSLObject):
    """The server's side of a connection on asyncio's transports. `on_refused` is called when the handshake fails, while
    the alert for the client is still in the outgoing buffer."""

    on_refused: Callable[[], None] | None = None

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError:
            if self.on_refused is not None:
                self.on_refused()
            raise


def _context(files: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.sslobject_class = ServerObject
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_CIPHER_SERVER_PREFERENCE
    try:
        load_certificate(context, files.certificate, files.key)
        if files.ca is not None:
            trust(context, files.ca)
            context.verify_mode = ssl.CERT_REQUIRED if files.require_client_certificate else ssl.CERT_OPTIONAL
    except BadTlsFile as error:
        raise TlsError(f"TLS files: {error}") from error
    return context


def common_name(certificate: Mapping[str, Any] | None) -> str | None:
    """The subject's common name from `getpeercert`; None without a certificate, or if there is not exactly one."""
    if not certificate:
        return None
    names = [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
    return names[0] if len(names) == 1 and names[0] else None
