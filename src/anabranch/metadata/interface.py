"""What the rest of the house may know of metadata: small versioned values under path-like keys.

Only what every backend can promise (memory, SQLite, ZooKeeper, etcd, Oxia). Keys are paths such as `/topics/a`, any
unicode but NUL, no empty part. Parents need not exist. This module knows no backend; recipes (locks, elections) are
written on it, once.

Versions are opaque numbers: compare them for equality, never count with them. They are logical: a move to another store
keeps them (`envelope.py`). Two writes of one key never have the same version while the key exists; once it was deleted
its numbers may come again (ZooKeeper starts anew), so a record that can be re-created carries an incarnation or a term
in its value. Keys below `/.meta` belong to this floor: other keys' `children("/")`, `scan("/")` do not show them.

No keys below an ephemeral key: ZooKeeper cannot have them, and nobody should rely on the others.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from types import TracebackType
from typing import Protocol, Self

from anabranch.model.errors import BadRequest, Error, NotFound

VALUE_BYTES_MAX = 1_000_000
"""The smallest limit among the backends (ZooKeeper's request size), with room for the key."""

KEY_BYTES_MAX = 8_192

RESERVED = "/.meta"
"""Below this key: epochs, sequences and whatever else this floor keeps for itself."""


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


class OutcomeUnknown(StoreUnavailable):
    """The connection was lost after a write had left: read again, then decide. Never repeat it blindly."""

    code = "metadata-outcome-unknown"


class StoreFull(StoreUnavailable):
    """The store has no room left (disk or quota) and did not write. Reading and unconditional deletes still work."""

    code = "metadata-full"


class StoreIncompatible(Error):
    """The data was written by a newer release; this one must not touch it."""

    code = "metadata-incompatible"


class RequestTooLarge(BadRequest):
    """More bytes or operations than the server accepts in one request; nothing was written."""

    code = "metadata-request-too-large"


class UnknownStore(BadRequest):
    """A metadata URL that names no backend of this release."""

    code = "unknown-metadata-store"


class ExtraMissing(Error):
    """An optional package that this store needs is not installed."""

    code = "not-installed"

    def __init__(self, extra: str) -> None:
        super().__init__(f"metadata on {extra} needs further packages: pip install 'anabranch[{extra}]'")
        self.extra = extra


@dataclass(frozen=True, slots=True)
class Versioned:
    """One stored value. Times are wall-clock milliseconds of the writer."""

    value: bytes
    version: Version
    created_ms: int
    modified_ms: int
    ephemeral: bool


Item = tuple[str, Versioned]
"""A key with what is stored there, as it moves in bulk."""


class ChangeKind(StrEnum):
    CREATED = "created"
    MODIFIED = "modified"
    DELETED = "deleted"
    INVALIDATED = "invalidated"  # some changes were missed: forget everything known below `key`


@dataclass(frozen=True, slots=True)
class Change:
    kind: ChangeKind
    key: str


class SessionEvent(StrEnum):
    DISCONNECTED = "disconnected"  # nobody knows: the session may live on, until `valid_until`
    RECONNECTED = "reconnected"  # it lived on; its keys are there
    LOST = "lost"  # it ended; its keys are gone or going


@dataclass(frozen=True, slots=True)
class Capabilities:
    """How far a backend goes beyond the common ground; for migration and for people."""

    name: str
    is_durable: bool
    is_shared: bool  # several processes see the same data
    has_snapshot_scan: bool  # bulk_scan shows one moment
    ttl_ms_min: int  # shorter sessions are granted this


class Session(Protocol):
    """The life that ephemeral keys hang on. Closing it deletes them; so does the death of its process."""

    @property
    def ttl_ms(self) -> int:
        """As granted by the store, which may be more than was asked."""

    @property
    def valid_until(self) -> float:
        """On the store's clock (`clock.monotonic()`): before this moment the store cannot have ended the session.

        Counted from the moment the last confirmed sign of life was *sent*. A holder of a lock that must be sure stops
        here, whatever it has or has not heard.
        """

    @property
    def is_lost(self) -> bool: ...

    def listen(self, callback: Callable[[SessionEvent], None]) -> Callable[[], None]:
        """Call `callback` in the loop on every event from now on; the answer ends it."""

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

    async def sync(self) -> None:
        """Reads after this see every write that anyone got confirmed before it. Other reads may be a moment behind."""

    async def children(self, key: str) -> list[str]:
        """Names directly below, sorted; a name counts even if only deeper keys exist. Empty when there are none."""

    def scan(self, prefix: str) -> AsyncIterator[tuple[str, Versioned]]:
        """The key itself and all below it, parents before children. Not a snapshot: changes made meanwhile may show."""

    async def open_session(self, ttl_ms: int) -> Session: ...

    def watch(self, prefix: str) -> Watch:
        """Changes of the key itself and all below it, in order per key. A hint: re-read after it."""

    @property
    def capabilities(self) -> Capabilities: ...

    def bulk_scan(self, prefix: str) -> AsyncIterator[list[Item]]:
        """Like scan (reserved keys excluded), in large pages, at the store's best speed."""

    async def bulk_write(self, items: Sequence[Item], *, preserve: bool) -> None:
        """Write many, over whatever is there, at the store's best speed; not atomic, nothing ephemeral.

        With `preserve` versions and times are kept as given (`raise_versions` must have been called with a higher
        number); without it these are ordinary writes.
        """

    async def bulk_delete(self, keys: Sequence[str]) -> None:
        """Delete many whatever their version; those that are missing are no error. Not atomic."""

    async def raise_versions(self, floor: Version) -> None:
        """From now on every version this store gives is above `floor`. Only an empty store can be asked.

        Others that have it open already know of it after their next `sync`, at the latest.
        """

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
        size = len(key.encode())
    except UnicodeEncodeError as error:
        raise BadKey(f"metadata key {key!r} is not valid unicode") from error
    if size > KEY_BYTES_MAX:
        raise BadKey(f"a metadata key has at most {KEY_BYTES_MAX} bytes, not {size}: {key[:60]}…")


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
