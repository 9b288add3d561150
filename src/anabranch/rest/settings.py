"""Settings of the HTTP port."""

from __future__ import annotations

from dataclasses import dataclass, field

from anabranch.runtime.settings import require_all

KIB = 1 << 10
MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings:
    host: str = field(default="127.0.0.1", metadata={"help": "address the HTTP port listens on"})
    port: int = field(default=8080, metadata={"help": "HTTP port; 0 = any free one"})
    insecure: bool = field(default=False, metadata={"help": "allow listening beyond loopback without authentication"})
    hosts: tuple[str, ...] = field(
        default=(),
        metadata={
            "help": "further names under which HTTP is reached, like console.example.com or *.example.com; * = any"
        },
    )
    read_only: bool = field(default=False, metadata={"help": "serve only GET and HEAD over HTTP"})
    console: bool = field(default=True, metadata={"help": "serve the web console at /"})
    streams_max: int = field(default=100, metadata={"help": "live answers (event streams) at a time; more get 503"})
    body_bytes_max: int = field(default=1 * MIB, metadata={"help": "largest request body"})
    header_bytes_max: int = field(default=32 * KIB, metadata={"help": "largest request line and headers"})
    connections_max: int = field(default=1_000, metadata={"help": "open HTTP connections; more are answered 503"})
    connections_per_address_max: int = field(
        default=0, metadata={"help": "connections from one address; 0 = no separate limit"}
    )
    idle_seconds: float = field(default=60.0, metadata={"help": "an idle keep-alive connection is closed after this"})
    read_seconds: float = field(default=15.0, metadata={"help": "a started request must have arrived within this"})
    handle_seconds: float = field(default=60.0, metadata={"help": "a request must be answered within this"})

    def __post_init__(self) -> None:
        require_all(
            (0 <= self.port <= 65535, "http.port", "between 0 and 65535"),
            (self.body_bytes_max >= KIB, "http.body_bytes_max", "at least 1 KiB"),
            (self.header_bytes_max >= KIB, "http.header_bytes_max", "at least 1 KiB"),
            (self.streams_max >= 0, "http.streams_max", "0 or more"),
            (self.connections_max >= 1, "http.connections_max", "at least 1"),
            (self.connections_per_address_max >= 0, "http.connections_per_address_max", "0 or more"),
            (self.idle_seconds > 0, "http.idle_seconds", "greater than 0"),
            (self.read_seconds > 0, "http.read_seconds", "greater than 0"),
            (self.handle_seconds > 0, "http.handle_seconds", "greater than 0"),
        )
