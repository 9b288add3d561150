"""What the rest of the house may know of metadata: small versioned values under path-like keys.

Only what every backend can promise (memory, SQLite, ZooKeeper, etcd, Oxia). Keys are paths such as `/topics/a`, any
unicode but NUL, no empty part. Parents need not exist. Versions are opaque numbers: compare them for equality, never
count with them. This module knows no backend; recipes (locks, elections) are written on it, once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import Enum, StrEnum
from types import TracebackType
from typing import Protocol, Self

from anabranch.model.errors import BadRequest, Error, NotFound

VALUE_BYTES_MAX = 1_000_000
"""The smallest limit among the backends (ZooKeeper's request size), with room for the key."""


class Rule(Enum):
    ABSENT = "absent"
    ANY = "any"


ABSENT = Rule.ABSENT
"""The key must not exist: only one creator wins."""

ANY = Rule.ANY
"""Whatever is there, or nothing."""

Version = int
Expected = Rule | Version


class VersionMismatch(Error):
    """Somebody else wrote first; read again and decide again."""

    code = "version-mismatch"

    def __init__(self, key: str, expected: Expected, found: Version | None) -> None:
        wanted = expected.value if isinstance(expected, Rule) else f"version {expected}"
        super().__init__(f"{key}: expected {wanted}, found {'nothing' if found is None else f'version {found}'}")
        self.key, self.expected, self.found = key, expected, found


class KeyMissing(NotFound):
    """Nothing to delete under this key."""

    def __init__(self, key: str) -> None:
        super().__init__(f"no metadata under {key}")
        self.key = key


class BadKey(BadRequest):
    """Not a path this port accepts."""

    code = "bad-key"


class ValueTooLarge(BadRequest):
    code = "value-too-large"

    def __init__(self, key: str, size: int) -> None:
        super().__init__(f"{key}: {size} bytes are more than the {VALUE_BYTES_MAX} a metadata value may have")
        self.key, self.size = key, size


class SessionLost(Error):
    """The session ended (closed, expired or reaped by others); its keys are gone. Open a new one."""

    code = "session-lost"


class StoreUnavailable(Error):
    """The store did not answer. A write may or may not have happened: read again."""

    code = "metadata-unavailable"
    retryable = True


class StoreIncompatible(Error):
    """The data was written by a newer release; this one must not touch it."""

    code = "metadata-incompatible"


class UnknownStore(BadRequest):
    """A metadata URL that names no backend of this release."""

    code = "unknown-metadata-store"


@dataclass(frozen=True, slots=True)
class Versioned:
    """One stored value. Times are wall-clock milliseconds of the writer."""

    value: bytes
    version: Version
    created_ms: int
    modified_ms: int
    ephemeral: bool


class ChangeKind(StrEnum):
    CREATED = "created"
    MODIFIED = "modified"
    DELETED = "deleted"
    INVALIDATED = "invalidated"  # some changes were missed: forget everything known below `key`


@dataclass(frozen=True, slots=True)
class Change:
    kind: ChangeKind
    key: str


class Session(Protocol):
    """The life that ephemeral keys hang on. Closing it deletes them; so does the death of its process."""

    @property
    def is_lost(self) -> bool: ...

    async def wait_lost(self) -> None:
        """Return once the session has ended, for whatever reason."""

    async def close(self) -> None: ...


class Watch(Protocol):
    """A stream of hints. Registered when it is made, so nothing that happens afterwards is missed."""

    def __aiter__(self) -> AsyncIterator[Change]: ...

    async def __anext__(self) -> Change: ...

    def close(self) -> None:
        """End the iteration; also done by closing the store."""


class MetadataStore(Protocol):
    """There is no default for `expected`: ABSENT, ANY or the version last seen.

    A cancelled write may still happen. `key` may be "/" where a whole tree is meant (children, scan, watch).
    """

    async def get(self, key: str) -> Versioned | None: ...

    async def put(self, key: str, value: bytes, *, expected: Expected, session: Session | None = None) -> Version:
        """Write durably and return the new version. The session given now (or none) is the one the key lives with."""

    async def delete(self, key: str, *, expected: Expected) -> None:
        """Raises KeyMissing when there is nothing. Keys below stay."""

    async def children(self, key: str) -> list[str]:
        """Names directly below, sorted; a name counts even if only deeper keys exist. Empty when there are none."""

    def scan(self, prefix: str) -> AsyncIterator[tuple[str, Versioned]]:
        """The key itself and all below it, parents before children. Not a snapshot: changes made meanwhile may show."""

    async def open_session(self, ttl_ms: int) -> Session: ...

    def watch(self, prefix: str) -> Watch:
        """Changes of the key itself and all below it, in order per key. A hint: re-read after it."""

    async def open(self) -> None: ...

    async def close(self) -> None:
        """End sessions and watches, let queued writes finish. Safe to repeat."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def check_key(key: str) -> None:
    """Raise BadKey unless `key` can hold a value."""
    if not key.startswith("/") or key.endswith("/") or "//" in key or "\0" in key:
        raise BadKey(f"metadata keys are paths like /a/b, not {key!r}")
    try:
        key.encode()
    except UnicodeEncodeError as error:
        raise BadKey(f"metadata key {key!r} is not valid unicode") from error


def check_tree(key: str) -> str:
    """Like check_key but "/" is fine; returns the key without a final slash ("" for the root)."""
    if key == "/":
        return ""
    check_key(key)
    return key


def check_value(key: str, value: bytes) -> None:
    if len(value) > VALUE_BYTES_MAX:
        raise ValueTooLarge(key, len(value))


def is_within(key: str, tree: str) -> bool:
    """Is `key` the root of the tree (as check_tree returns it) or below it?"""
    return key.startswith(tree) and (len(key) == len(tree) or key[len(tree)] == "/")


def decide_put(key: str, expected: Expected, found: Version | None) -> None:
    """Raise VersionMismatch unless a put may go on. Every backend with a transaction decides with this."""
    if expected is ANY or (found is None if expected is ABSENT else found == expected):
        return
    raise VersionMismatch(key, expected, found)


def decide_delete(key: str, expected: Expected, found: Version | None) -> None:
    if expected is ABSENT:
        raise BadRequest(f"{key}: a delete cannot expect the key to be absent")
    if found is None:
        raise KeyMissing(key)
    if expected is not ANY and found != expected:
        raise VersionMismatch(key, expected, found)
