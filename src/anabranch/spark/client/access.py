"""Addresses and credentials of a cluster: a value that is sent to executors. Secrets in it are never printed."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from anabranch.admin.client import Origin
from anabranch.client.connection.address import Address
from anabranch.model.errors import BadRequest
from anabranch.runtime.credentials import Basic, Certificate, Credentials, Tls, Token


class BadSparkOption(BadRequest):
    """An option that does not exist, cannot have this value, or does not go with another one."""

    code = "bad-spark-option"


CLIENT_OPTIONS = (
    "token",
    "tokenFile",
    "user",
    "password",
    "tlsCertificateFilePath",
    "tlsKeyFilePath",
    "tlsTrustCertsFilePath",
    "tlsHostnameVerification",
)


@dataclass(frozen=True, slots=True)
class Access:
    service_url: str
    token: str | None = field(default=None, repr=False)
    token_file: str | None = None
    trust_file: str | None = None
    verifies_hostname: bool = True
    operation_timeout_ms: int = 30_000
    user: str | None = None
    password: str = field(default="", repr=False)
    certificate_file: str | None = None
    key_file: str | None = None
    admin_url: str | None = None  # of Apache Pulsar's REST; Anabranch's brokers are not asked there

    @staticmethod
    def of(
        service_url: str, client: Mapping[str, str], operation_timeout_ms: int, admin_url: str | None = None
    ) -> Access:
        """`client` has the options that begin with `client.`, without that, in lower case."""
        Address.parse_all(service_url)
        if admin_url is not None:
            Origin.parse(admin_url)
        given = dict(client)
        made = Access(
            service_url,
            given.get("token"),
            given.get("tokenfile"),
            given.get("tlstrustcertsfilepath"),
            given.get("tlshostnameverification", "true").lower() != "false",
            operation_timeout_ms,
            given.get("user"),
            given.get("password", ""),
            given.get("tlscertificatefilepath"),
            given.get("tlskeyfilepath"),
            admin_url,
        )
        ways = {
            "client.token": made.token,
            "client.tokenFile": made.token_file,
            "client.user": made.user,
            "client.tlsCertificateFilePath": made.certificate_file,
        }
        several = [name for name, value in ways.items() if value is not None]
        if len(several) > 1:
            raise BadSparkOption(f"{' and '.join(several)} exclude each other: one of them says who we are")
        if (made.user is None) != (not made.password):
            raise BadSparkOption("client.user and client.password go together")
        return made

    def credentials(self) -> Credentials | None:
        """None: no authentication."""
        if self.token is not None:
            return Token(self.token)
        if self.token_file is not None:
            return Token(Path(self.token_file))
        if self.user is not None:
            return Basic(self.user, self.password)
        return None if self.certificate_file is None else Certificate()

    def tls(self) -> ssl.SSLContext | None:
        return self._tls_context() if Address.parse_all(self.service_url)[0].is_tls else None

    def admin_tls(self) -> ssl.SSLContext | None:
        return self._tls_context() if (self.admin_url or "").startswith("https://") else None

    def _tls_context(self) -> ssl.SSLContext:
        return Tls(
            trust_file=self.trust_file,
            certificate_file=self.certificate_file,
            key_file=self.key_file,
            check_hostname=self.verifies_hostname,
        ).context()
