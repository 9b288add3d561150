"""The URL of the store: `zk://h:p,h:p/chroot`. Pure."""

from __future__ import annotations

from anabranch.metadata.interface import BadKey, UnknownStore, check_key
from anabranch.metadata.zookeeper.paths import escape
from anabranch.zookeeper.address import Server, parse_servers
from anabranch.zookeeper.errors import BadAddress

FORM = "zk://HOST:PORT[,HOST:PORT][/CHROOT]"


def parse_url(rest: str) -> tuple[list[Server], str]:
    """Servers and chroot ("" for none) from what follows `zk:`."""
    if not rest.startswith("//"):
        raise UnknownStore(f"a ZooKeeper metadata URL is written {FORM}")
    hosts, slash, path = rest[2:].partition("/")
    chroot = slash + path.removesuffix("/") if path else ""
    if chroot:
        try:
            check_key(chroot)
        except BadKey as error:
            raise UnknownStore(f"the chroot {chroot!r} of a {FORM} is not a path: {error}") from error
        if escape(chroot) != chroot or f"{chroot}/".startswith("/zookeeper/"):
            raise UnknownStore(f"{chroot!r} cannot be a chroot: ZooKeeper forbids or reserves this path")
    try:
        return parse_servers(hosts), chroot
    except BadAddress as error:
        raise UnknownStore(f"{error.written!r} is not a ZooKeeper server; a metadata URL is written {FORM}") from error
