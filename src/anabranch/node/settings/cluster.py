"""Settings of a broker that shares its data directory and metadata store with others."""

from __future__ import annotations

from dataclasses import dataclass, field

from anabranch.runtime.settings import require_all


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    enabled: bool = field(
        default=False, metadata={"help": "join the other brokers of this metadata store (`anabranch broker` sets it)"}
    )
    session_ms: int = field(
        default=5_000,
        metadata={"help": "a broker that is silent for this long is replaced; some stores allow only longer sessions"},
    )
    front_port: int = field(
        default=-1, metadata={"help": "a port that all brokers of this machine share for lookups; -1 = none"}
    )
    front_http_port: int = field(default=-1, metadata={"help": "the same for HTTP"})
    front_tls_port: int = field(default=-1, metadata={"help": "cluster.front_port with TLS"})
    front_tls_http_port: int = field(default=-1, metadata={"help": "cluster.front_http_port with TLS"})
    drain_seconds: float = field(default=10.0, metadata={"help": "time for a stopping broker to hand over its topics"})

    def __post_init__(self) -> None:
        require_all(
            (self.session_ms >= 1_000, "cluster.session_ms", "at least 1000"),
            (self.drain_seconds >= 0, "cluster.drain_seconds", "not negative"),
        )
