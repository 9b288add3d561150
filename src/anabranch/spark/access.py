"""How to reach a cluster: a value that travels to executors. What is secret in it is never shown."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from anabranch.client.address import Address
from anabranch.model.errors import BadRequest


class BadSparkOption(BadRequest):
    """An option that does not exist, cannot have this value, or does not go with another one."""

    code = "bad-spark-option"


CLIENT_OPTIONS = ("token", "tokenFile", "tlsTrustCertsFilePath", "tlsHostnameVerification")


@dataclass(frozen=True, slots=True)
class Access:
    service_url: str
    token: str | None = field(default=None, repr=False)
    token_file: str | None = None
    trust_file: str | None = None
    verifies_hostname: bool = True
    operation_timeout_ms: int = 30_000

    @staticmethod
    def of(service_url: str, client: Mapping[str, str], operation_timeout_ms: int) -> Access:
        """`client` has the options that begin with `client.`, without that, in lower case."""
        Address.parse_all(service_url)
        given = dict(client)
        made = Access(
            service_url,
            given.get("token"),
            given.get("tokenfile"),
            given.get("tlstrustcertsfilepath"),
            given.get("tlshostnameverification", "true").lower() != "false",
            operation_timeout_ms,
        )
        if made.token is not None and made.token_file is not None:
            raise BadSparkOption("client.token and client.tokenFile exclude each other")
        return made

    def current_token(self) -> str:
        return Path(self.token_file).read_text().strip() if self.token_file is not None else self.token or ""

    @property
    def signs_in(self) -> bool:
        return self.token is not None or self.token_file is not None

    def tls(self) -> ssl.SSLContext | None:
        if not Address.parse_all(self.service_url)[0].is_tls:
            return None
        made = ssl.create_default_context(cafile=self.trust_file)
        made.check_hostname = self.verifies_hostname
        return made
