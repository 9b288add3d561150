"""Settings of authentication, authorization and TLS. Values only; no file is read here."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from anabranch.runtime.settings import require_all

METHODS = ("token", "basic", "tls")


@dataclass(frozen=True, slots=True, kw_only=True)
class SecuritySettings:
    methods: tuple[str, ...] = field(
        default=(), metadata={"help": "authentication methods: token, basic, tls; none = authentication is off"}
    )
    authorization: bool = field(
        default=False, metadata={"help": "check what a role may do; off = every authenticated role may do everything"}
    )
    superusers: tuple[str, ...] = field(default=(), metadata={"help": "roles that may do everything"})
    anonymous_role: str = field(
        default="", metadata={"help": "role of clients without credentials; empty = credentials are required"}
    )
    token_secret_key: str = field(
        default="",
        repr=False,
        metadata={"help": "file (raw or base64) or data:;base64,… of the tokens' secret", "secret": True, "file": True},
    )
    token_public_key: str = field(
        default="", metadata={"help": "file (X.509, DER or PEM) of the key that checks tokens", "file": True}
    )
    token_role_claim: str = field(default="sub", metadata={"help": "claim of a token that holds the role"})
    token_audience: str = field(default="", metadata={"help": "tokens must be for this audience (aud); empty = any"})
    token_clock_skew_seconds: float = field(default=0.0, metadata={"help": "tolerance for exp and nbf"})
    basic_file: Path | None = field(
        default=None, metadata={"help": "htpasswd file: bcrypt, apr1 or {SHA} entries", "file": True}
    )
    open_metrics: bool = field(default=True, metadata={"help": "/metrics is served without authentication"})
    refresh_seconds: float = field(default=30.0, metadata={"help": "time to present new credentials after expiry"})

    def __post_init__(self) -> None:
        keys = (bool(self.token_secret_key), bool(self.token_public_key))
        require_all(
            (set(self.methods) <= set(METHODS), "security.methods", f"any of {', '.join(METHODS)}"),
            (
                "token" not in self.methods or any(keys),
                "security.methods",
                "token needs security.token_secret_key or security.token_public_key",
            ),
            (not all(keys), "security.token_public_key", "not together with security.token_secret_key"),
            ("basic" not in self.methods or self.basic_file is not None, "security.basic_file", "needed for basic"),
            (not self.authorization or bool(self.methods), "security.authorization", "needs security.methods"),
            (bool(self.token_role_claim), "security.token_role_claim", "not empty"),
            (self.token_clock_skew_seconds >= 0, "security.token_clock_skew_seconds", "0 or more"),
            (self.refresh_seconds > 0, "security.refresh_seconds", "greater than 0"),
            (
                not self.anonymous_role or self.anonymous_role not in self.superusers,
                "security.anonymous_role",
                "not a super-user",
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    cert_file: Path | None = field(
        default=None, metadata={"help": "PEM certificate chain; empty = no TLS ports", "file": True}
    )
    key_file: Path | None = field(default=None, metadata={"help": "PEM private key, without password", "file": True})
    ca_file: Path | None = field(
        default=None, metadata={"help": "PEM of the authority that signs client certificates", "file": True}
    )
    require_client_certificate: bool = field(default=False, metadata={"help": "refuse clients without a certificate"})
    port: int = field(default=6651, metadata={"help": "binary port with TLS; 0 = any free one"})
    http_port: int = field(default=8443, metadata={"help": "HTTPS port; 0 = any free one"})
    only: bool = field(
        default=False, metadata={"help": "open no plain ports; network.port and http.port are not used then"}
    )
    trust_file: Path | None = field(
        default=None,
        metadata={
            "help": "PEM of the authority that signs brokers' certificates, for calls between brokers that have "
            "TLS ports only; empty = tls.ca_file, or the machine's authorities"
        },
    )

    def __post_init__(self) -> None:
        require_all(
            (0 <= self.port <= 65535, "tls.port", "between 0 and 65535"),
            (0 <= self.http_port <= 65535, "tls.http_port", "between 0 and 65535"),
            (
                (self.cert_file is None) == (self.key_file is None),
                "tls.key_file",
                "tls.cert_file and tls.key_file come together",
            ),
            (self.ca_file is None or self.cert_file is not None, "tls.ca_file", "needs tls.cert_file"),
            (
                not self.require_client_certificate or self.ca_file is not None,
                "tls.require_client_certificate",
                "needs tls.ca_file",
            ),
            (not self.only or self.cert_file is not None, "tls.only", "needs tls.cert_file and tls.key_file"),
        )

    @property
    def is_on(self) -> bool:
        return self.cert_file is not None
