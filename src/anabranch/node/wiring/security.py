"""Access control and TLS from settings. Only the keys and files of enabled methods are read.

PyJWT, cryptography and bcrypt are imported only when a method needs them.
"""

from __future__ import annotations

import os
import socket
import ssl

from anabranch.broker.catalog.catalog import Catalog
from anabranch.model.errors import Error
from anabranch.node.settings.node import NodeSettings
from anabranch.node.settings.security import SecuritySettings, TlsSettings
from anabranch.rest.isolation import HostNames, IsolationRules
from anabranch.rest.relay import Relay
from anabranch.runtime.blocking import Blocking
from anabranch.runtime.tls import TlsCalls, TlsError, TlsFiles, TlsServer
from anabranch.security.access_control import AccessControl
from anabranch.security.authentication import Authenticator, CertificateMethod, Method


class BadTlsFiles(Error):
    code = "bad-tls-files"


def make_guard(settings: SecuritySettings, catalog: Catalog, blocking: Blocking) -> AccessControl:
    """`blocking` runs password checks only: they are slow by design and must not delay storage."""
    if not settings.methods:
        return AccessControl()
    methods: dict[str, Method] = {}
    for name in settings.methods:
        match name:
            case "token":
                methods[name] = _token_method(settings)
            case "basic":
                from anabranch.security.htpasswd import PasswordMethod

                assert settings.basic_file is not None
                methods[name] = PasswordMethod(settings.basic_file, blocking, os.urandom(32))
            case "tls":
                methods[name] = CertificateMethod()
    return AccessControl(
        catalog,
        authenticator=Authenticator(methods, settings.anonymous_role or None),
        superusers=frozenset(settings.superusers),
        authorizes=settings.authorization,
        refresh_seconds=settings.refresh_seconds,
    )


def _token_method(settings: SecuritySettings) -> Method:
    from anabranch.security import tokens
    from anabranch.security.token_key_file import FollowingTokenMethod, KeyFile

    if settings.token_secret_key:
        file = KeyFile(settings.token_secret_key, tokens.secret_keys)
    else:
        file = KeyFile(settings.token_public_key, lambda content: (tokens.public_key(content),))
    reader = tokens.TokenReader(
        file.keys, skew_ms=int(settings.token_clock_skew_seconds * 1000), audience=settings.token_audience
    )
    return FollowingTokenMethod(reader, settings.token_role_claim, file)


def make_tls(settings: TlsSettings) -> TlsServer | None:
    if settings.cert_file is None or settings.key_file is None:
        return None
    files = TlsFiles(settings.cert_file, settings.key_file, settings.ca_file, settings.require_client_certificate)
    try:
        return TlsServer(files)
    except TlsError as error:
        raise BadTlsFiles(error.reason) from error


def make_peer_tls(settings: TlsSettings) -> TlsCalls:
    """For calls to brokers that have TLS ports only."""
    try:
        return TlsCalls(settings.trust_file or settings.ca_file, settings.cert_file, settings.key_file)
    except TlsError as error:
        raise BadTlsFiles(error.reason) from error


def make_isolation(settings: NodeSettings) -> IsolationRules:
    """The HTTP port is reached under the names that it listens on and advertises, the machine's, and `http.hosts`."""
    http = settings.http
    names = (http.host, settings.network.host, settings.advertised_host, socket.gethostname(), *http.hosts)
    return IsolationRules(HostNames.of(names), http.read_only)


def make_relay(settings: TlsSettings) -> Relay:
    """Without the broker's certificate, because the other broker must see the caller's credentials only."""

    def context() -> ssl.SSLContext:
        try:
            calls = TlsCalls(settings.trust_file or settings.ca_file, None, None)
        except TlsError as error:
            raise BadTlsFiles(error.reason) from error
        return calls.context

    return Relay(context)
