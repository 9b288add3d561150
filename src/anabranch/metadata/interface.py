"""The metadata port: small versioned values under path-like keys. Knows no backend.

It has only what every backend can guarantee (memory, SQLite, ZooKeeper, etcd, Oxia). Keys are paths such as
`/topics/a`, any unicode but NUL, without empty parts. Parents need not exist. Recipes (elections, membership) are
written on this port once.

Versions are opaque numbers: compare them for equality only. They are logical, so a move to another store keeps them
(`envelope.py`). Two writes of one key never have the same version while the key exists. After a deletion its numbers
may come again (ZooKeeper starts anew), so a record that can be re-created carries an incarnation or a term in its
value. Keys below `/.meta` belong to this package: `children("/")` and `scan("/")` do not show them.

There are no keys below an ephemeral key, because ZooKeeper cannot have them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from types import TracebackType
from typing import Protocol, Self, runtime_checkable

from anabranch.model.errors import BadRequest, Error, NotFound

VALUE_BYTES_MAX = 1_000_000
"""The smallest limit among the backends (ZooKeeper's request size), less the key."""

KEY_BYTES_MAX = 8_192

RESERVED = "/.meta"
"""Parent of the keys that this package uses itself: epochs, sequences."""


class Rule(Enum):
    ABSENT = "absent"
    ANY = "any"


ABSENT = Rule.ABSENT
"""The key must not exist: exactly one of several creators succeeds."""

ANY = Rule.ANY
"""Any present value, or none."""

Version = int
Expected = Rule | Version


class VersionMismatch(Error):
    """Another write was first; read again and decide again."""

    code = "version-mismatch"

    def __init__(self, key: str, expected: Expected, found: Version | None) -> None:
        wanted = expected.value if isinstance(expected, Rule) else f"version {expected}"
        super().__init__(f"{key}: expected {wanted}, found {'nothing' if found is None else f'version {found}'}")
        self.key, self.expected, self.found = key, expected, found


class KeyMissing(NotFound):
    """There is no key to delete."""

    def __init__(self, key: str) -> None:
        super().__init__(f"no metadata under {key}")
        self.key = key


class BadKey(BadRequest):
    """Not a key that the port accepts."""

    code = "bad-key"


class ValueTooLarge(BadRequest):
    code = "value-too-large"

    def __init__(self, key: str, size: int) -> None:
        super().__init__(f"{key}: {size} bytes are more than the {VALUE_BYTES_MAX} that a metadata value may have")
        self.key, self.size = key, size


class SessionLost(Error):
    """The session has ended (closed, expired, or ended by another process); its keys are gone. Open a new one."""

    code = "session-lost"


class StoreUnavailable(Error):
    """The store did not answer. Whether a write happened is known only by reading again."""

    code = "metadata-unavailable"
    retryable = True


class OutcomeUnknown(StoreUnavailable):
    """The connection was lost after a write was sent: read again, then decide. Never repeat it blindly."""

    code = "metadata-outcome-unknown"


class StoreFull(StoreUnavailable):
    """The disk or the quota is full; nothing was written. Reads and unconditional deletes still work."""

    code = "metadata-full"


class StoreIncompatible(Error):
    """The data was written by a newer release; this one must not use it."""

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
"""A key and its record, as in bulk operations."""


class ChangeKind(StrEnum):
    CREATED = "created"
    MODIFIED = "modified"
    DELETED = "deleted"
    INVALIDATED = "invalidated"  # changes were missed: discard all cached state below `key`


@dataclass(frozen=True, slots=True)
class Change:
    kind: ChangeKind
    key: str


class SessionEvent(StrEnum):
    DISCONNECTED = "disconnected"  # the session may still exist, at least until `valid_until`
    RECONNECTED = "reconnected"  # the session still exists, with its keys
    LOST = "lost"  # the session has ended; its keys are gone or will be soon


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Properties in which backends differ; for migration and for display."""

    name: str
    is_durable: bool
    is_shared: bool  # several processes see the same data
    has_snapshot_scan: bool  # bulk_scan is a snapshot
    ttl_ms_min: int  # the shortest session that is granted


class Session(Protocol):
    """Owner of ephemeral keys. They are deleted when it is closed, and when its process dies."""

    @property
    def ttl_ms(self) -> int:
        """As granted by the store; may be more than requested."""

    @property
    def valid_until(self) -> float:
        """Time (`clock.monotonic()`) before which the store cannot have ended the session.

        It is one ttl after the *send* time of the latest confirmed keep-alive. A leader stops here at the latest,
        whatever events it has or has not received.
        """

    @property
    def is_lost(self) -> bool: ...

    def listen(self, callback: Callable[[SessionEvent], None]) -> Callable[[], None]:
        """Call `callback` in the loop on every event from now on; calling the returned function ends it."""

    async def wait_lost(self) -> None:
        """Wait until the session has ended, for any reason."""

    async def close(self) -> None: ...


class Watch(Protocol):
    """A stream of hints. It is registered when it is made, so no later change is missed."""

    def __aiter__(self) -> AsyncIterator[Change]: ...

    async def __anext__(self) -> Change: ...

    def close(self) -> None:
        """End the iteration. Closing the store does it too."""


class MetadataStore(Protocol):
    """`expected` has no default: ABSENT, ANY or the version last seen.

    A cancelled write may still happen. `key` may be "/" for the whole tree in children, scan and watch.
    """

    async def get(self, key: str) -> Versioned | None: ...

    async def put(self, key: str, value: bytes, *, expected: Expected, session: Session | None = None) -> Version:
        """Write durably and return the new version. The key then belongs to `session`, or to none."""

    async def delete(self, key: str, *, expected: Expected) -> None:
        """Raises KeyMissing. Keys below it stay."""

    async def sync(self) -> None:
        """Reads after this see every write confirmed before it, of any client. Other reads may be slightly outdated."""

    async def children(self, key: str) -> list[str]:
        """Names directly below, sorted, including those that only deeper keys imply."""

    def scan(self, prefix: str) -> AsyncIterator[tuple[str, Versioned]]:
        """The key itself and all below it, parents before children. Not a snapshot: concurrent changes may show."""

    async def open_session(self, ttl_ms: int) -> Session: ...

    def watch(self, prefix: str) -> Watch:
        """Changes of the key itself and all below it, in order per key. They are hints: read again after one."""

    @property
    def capabilities(self) -> Capabilities: ...

    def bulk_scan(self, prefix: str) -> AsyncIterator[list[Item]]:
        """Like scan, without reserved keys, in large pages."""

    async def bulk_write(self, items: Sequence[Item], *, preserve: bool) -> None:
        """Write many records over present ones. Not atomic; no ephemeral keys.

        With `preserve`, versions and times are stored as given; `raise_versions` must have been called with a higher
        number. Without it these are ordinary writes.
        """

    async def bulk_delete(self, keys: Sequence[str]) -> None:
        """Delete many keys of any version; missing ones are ignored. Not atomic."""

    async def raise_versions(self, floor: Version) -> None:
        """Make every later version of this store exceed `floor`. Only for an empty store.

        Other clients that have the store open apply it after their next `sync` at the latest.
        """

    async def open(self) -> None: ...

    async def close(self) -> None:
        """End sessions and watches and let queued writes finish. Safe to repeat."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


@runtime_checkable
class Sharded(Protocol):
    """A store that delivers changes in order per shard only."""

    def keys_in_all_shards(self, below: str) -> list[str]:
        """Keys that begin with `below`, at least one in every shard."""


@runtime_checkable
class Counting(Protocol):
    """A store that knows how large it is without reading it."""

    async def keys_about(self) -> int:
        """Number of all keys, for a progress display: keys of the store itself may be counted too."""


def check_key(key: str) -> None:
    """Raise BadKey unless `key` can hold a value."""
    if not key.startswith("/") or key.endswith("/") or "//" in key or "\0" in key:
        raise BadKey(f"metadata keys are paths like /a/b, not {key!r}")
    try:
        size = len(key.encode())
    except UnicodeEncodeError as error:
        raise BadKey(f"metadata key {key!r} is not valid unicode") from error
    if size > KEY_BYTES_MAX:
        raise BadKey(f"a metadata key may have at most {KEY_BYTES_MAX} bytes, not {size}: {key[:60]}…")


def check_tree(key: str) -> str:
    """Like check_key, but "/" is allowed; returns the key without a final slash ("" for the root)."""
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
    """Raise VersionMismatch unless a put may proceed. Every backend with transactions decides with this."""
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
