"""Server addresses: `HOST:PORT,HOST:PORT` to a list of `Server`. Pure."""

from __future__ import annotations

from typing import NamedTuple

from anabranch.zookeeper.errors import BadAddress

PORT = 2181


class Server(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_servers(written: str, separator: str = ",") -> list[Server]:
    """Raises BadAddress. A missing port is 2181; IPv6 addresses stand in brackets."""
    return [parse_server(one) for one in written.split(separator)]


def parse_server(written: str) -> Server:
    if written.startswith("["):
        host, closed, rest = written[1:].partition("]")
        port = rest[1:] if rest.startswith(":") else ("" if closed and not rest else "?")
    else:
        host, _, port = written.partition(":")
        if ":" in written and not port:
            port = "?"
    number = int(port) if port.isascii() and port.isdigit() else PORT if not port else 0
    if not host or any(character in host for character in " @?#[]") or not 0 < number < 65536:
        raise BadAddress(written)
    return Server(host, number)
