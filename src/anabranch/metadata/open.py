"""From a metadata URL to a store. The only module of this floor that names all backends."""

from __future__ import annotations

from pathlib import Path

from anabranch.metadata.port import MetadataStore, UnknownStore
from anabranch.runtime.clock import Clock

KNOWN = ("memory:", "sqlite:///DIR")


def open_store(url: str, clock: Clock) -> MetadataStore:
    """The store behind `url`, not opened yet: `async with open_store(url, clock) as store`."""
    scheme, _, rest = url.partition(":")
    if scheme == "memory" and not rest:
        from anabranch.metadata.memory import MemoryStore

        return MemoryStore(clock)
    if scheme == "sqlite" and rest.startswith("///") and len(rest) > 3:
        from anabranch.metadata.sqlite import SqliteStore

        return SqliteStore(sqlite_folder(rest), clock)
    raise UnknownStore(f"no metadata store for {url!r}; this release has {' and '.join(KNOWN)}")


def sqlite_folder(rest: str) -> Path:
    """`///x` and `////x` both mean `/x`, `///./x` is relative. Taken literally: no %XX, so any path can be written."""
    path = rest[2:]
    return Path(path[1:]) if path.startswith(("//", "/./", "/../")) else Path(path)
