"""The URL of the store: `zk://h:p,h:p/chroot`. Pure."""

from __future__ import annotations

from anabranch.metadata.interface import BadKey, UnknownStore, check_key
from anabranch.metadata.zookeeper.paths import escape
from anabranch.zookeeper.connection import Server

PORT = 2181
FORM = "zk://HOST:PORT[,HOST:PORT][/CHROOT]"


def parse_url(rest: str) -> tuple[list[Server], str]:
    """Servers and chroot ("" for none) from what follows `zk:`."""
    if not rest.startswith("//"):
        raise UnknownStore(f"metadata on ZooKeeper is written {FORM}")
    hosts, slash, path = rest[2:].partition("/")
    chroot = slash + path.removesuffix("/") if path else ""
    if chroot:
        try:
            check_key(chroot)
        except BadKey as error:
            raise UnknownStore(f"the chroot {chroot!r} of a {FORM} is no path: {error}") from error
        if escape(chroot) != chroot or f"{chroot}/".startswith("/zookeeper/"):
            raise UnknownStore(f"ZooKeeper has no room for us under {chroot!r}")
    return [_server(host) for host in hosts.split(",")], chroot


def _server(written: str) -> Server:
    if written.startswith("["):
        host, closed, rest = written[1:].partition("]")
        port = rest[1:] if rest.startswith(":") else ("" if closed and not rest else "?")
    else:
        host, _, port = written.partition(":")
        if ":" in written and not port:
            port = "?"
    number = int(port) if port.isascii() and port.isdigit() else PORT if not port else 0
    if not host or any(character in host for character in " @?#[]") or not 0 < number < 65536:
        raise UnknownStore(f"{written!r} is no ZooKeeper server; metadata on it is written {FORM}")
    return Server(host, number)
