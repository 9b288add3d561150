"""Service URLs: host, port, and whether the connection is encrypted."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from anabranch.client.errors import BadServiceUrl

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int
    is_tls: bool = False

    @classmethod
    def parse(cls, url: str) -> Address:
        try:
            parts = urlsplit(url)
        except ValueError as cause:
            raise BadServiceUrl(f"{url!a} cannot be read: {cause}") from cause
        if parts.scheme in ("http", "https"):
            raise BadServiceUrl(f"{url!r} is the address of the REST API; clients connect to pulsar://host:6650")
        try:
            host, port = parts.hostname, parts.port
        except ValueError as cause:
            raise BadServiceUrl(f"{url!r} has an invalid port") from cause
        if parts.scheme not in ("pulsar", "pulsar+ssl") or not host:
            raise BadServiceUrl(f"{url!r} is not a service URL like pulsar://localhost:6650")
        try:
            host.encode("idna")  # as for DNS
        except UnicodeError as cause:
            raise BadServiceUrl(f"{url!a} has an invalid host name") from cause
        if not host.isprintable() or " " in host:
            raise BadServiceUrl(f"{url!a} has an invalid host name")
        is_tls = parts.scheme == "pulsar+ssl"
        return cls(host, port or (6651 if is_tls else 6650), is_tls)

    @classmethod
    def parse_all(cls, url: str) -> tuple[Address, ...]:
        """`pulsar://one:6650,two:6650` names several brokers of one cluster; each port is optional."""
        scheme, slashes, hosts = url.partition("://")
        return tuple(cls.parse(f"{scheme}{slashes}{host.strip('/ ')}") for host in hosts.split(","))

    def is_same_place(self, other: Address) -> bool:
        """True for the same port of the same host; all names of loopback are equal."""
        if (self.port, self.is_tls) != (other.port, other.is_tls):
            return False
        return self.host == other.host or {self.host, other.host} <= _LOOPBACK

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"pulsar{'+ssl' if self.is_tls else ''}://{host}:{self.port}"
