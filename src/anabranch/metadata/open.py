"""Opens the store of a metadata URL. The only module of this package that names all backends."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from anabranch.metadata.interface import ExtraMissing, MetadataStore, UnknownStore
from anabranch.metadata.store_security import NO_SECURITY, OPTIONS, split_options
from anabranch.metadata.write_gate import GatedStore
from anabranch.runtime.clock import Clock

_HOST = re.compile(r"(?:[\w.-]*|\[[0-9a-fA-F:.]+\])(?::\d*)?")

KNOWN = (
    "memory:",
    "sqlite:///DIR",
    "etcd://HOST:PORT[,HOST:PORT][/PREFIX]",
    "zk://HOST:PORT[,HOST:PORT][/CHROOT]",
    "oxia://HOST[:PORT][,HOST[:PORT]][/NAMESPACE[/PREFIX]]",
)

DEADLINE_MS = 8_000
"""Deadline of one operation, reconnecting included. Bulk operations have longer ones."""


def open_store(url: str, clock: Clock, deadline_ms: int = DEADLINE_MS) -> GatedStore:
    """The gated store behind `url`, not opened yet: `async with open_store(url, clock) as store`."""
    return GatedStore(bare_store(url, clock, deadline_ms))


def bare_store(url: str, clock: Clock, deadline_ms: int = DEADLINE_MS) -> MetadataStore:
    """Without the write gate: for moving data between stores."""
    scheme, _, rest = url.partition(":")
    if scheme in ("zk", "etcd", "oxia") and without_user(url) != url:
        raise UnknownStore(
            f"a metadata URL has no user or password before its hosts: write {without_credentials(url)}?user=NAME&"
            "password-file=FILE"
        )
    security = NO_SECURITY
    if scheme in OPTIONS:
        rest, security = split_options(scheme, rest)
    if scheme == "memory" and not rest:
        from anabranch.metadata.memory.store import MemoryStore

        return MemoryStore(clock)
    if scheme == "sqlite" and rest.startswith("///") and len(rest) > 3:
        from anabranch.metadata.sqlite.store import SqliteStore

        return SqliteStore(sqlite_folder(rest), clock, deadline_ms)
    if scheme == "etcd" and rest:
        with needing("etcd"):
            from anabranch.metadata.etcd.store import EtcdStore, parse_url

        return EtcdStore(*parse_url(rest), clock, deadline_ms=deadline_ms, security=security)
    if scheme == "zk" and rest:
        from anabranch.metadata.zookeeper.address import parse_url as parse_zookeeper_url
        from anabranch.metadata.zookeeper.store import ZooKeeperStore

        return ZooKeeperStore(*parse_zookeeper_url(rest), clock, request_s=deadline_ms / 1000, security=security)
    if scheme == "oxia":
        with needing("oxia"):
            from anabranch.metadata.oxia.store import open_oxia

        return open_oxia(rest, clock, deadline_ms=deadline_ms, security=security)
    raise UnknownStore(f"no metadata store for {without_credentials(url)!r}; this release has {' and '.join(KNOWN)}")


@contextmanager
def needing(extra: str) -> Iterator[None]:
    """A failed import inside raises ExtraMissing with the extra to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("anabranch"):
            raise
        raise ExtraMissing(extra) from error


def without_credentials(url: str) -> str:
    """`etcd://user:word@host/x?key=…` as `etcd://host/x`, for display."""
    return url if url.startswith("sqlite:") else without_user(url).partition("?")[0]


def without_user(url: str) -> str:
    """Handles a slash in the password too: what precedes it is then not a list of hosts."""
    scheme, mark, rest = url.partition("://")
    hosts = rest.partition("/")[0]
    if "@" in rest and ("@" in hosts or not _are_hosts(hosts)):
        rest = rest.rpartition("@")[2]
    return scheme + mark + rest


def _are_hosts(written: str) -> bool:
    return all(_HOST.fullmatch(host) for host in written.split(","))


def sqlite_folder(rest: str) -> Path:
    """`///x` and `////x` both mean `/x`, `///./x` is relative. Taken literally: no %XX, so any path can be written."""
    path = rest[2:]
    return Path(path[1:]) if path.startswith(("//", "/./", "/../")) else Path(path)
