"""The data behind memory stores, as a server would hold it. Synchronous; every call is atomic.

Several `MemoryStore`s (clients) can share one `MemoryData`, as brokers share a ZooKeeper. A session ends by the clock
if its client does not keep it alive. Faults are injected in the store: requests that arrive here are applied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from anabranch.metadata.interface import (
    ANY,
    RESERVED,
    Change,
    ChangeKind,
    Expected,
    Item,
    SessionLost,
    Version,
    Versioned,
    decide_delete,
    decide_put,
    is_within,
)
from anabranch.metadata.memory.key_tree import KeyTree
from anabranch.model.errors import BadRequest
from anabranch.runtime.clock import Clock, Timer

Listener = Callable[[Sequence[Change]], None]


@dataclass(slots=True)
class _Lease:
    """A session as the server sees it."""

    ttl_s: float
    ends_at: float
    on_end: Callable[[], None]
    keys: set[str] = field(default_factory=set)
    timer: Timer | None = None


class MemoryData:
    """One set of keys, versions and sessions. Deterministic: the same calls at the same times give the same data."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._values: dict[str, Versioned] = {}
        self._tree = KeyTree()
        self._owners: dict[str, int] = {}
        self._leases: dict[int, _Lease] = {}
        self._session_count = 0
        self._last_version = 0
        self._listeners: dict[object, Listener] = {}

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` with every change from now on, in order; calling the returned function ends it."""
        ticket = object()
        self._listeners[ticket] = listener

        def end() -> None:
            self._listeners.pop(ticket, None)

        return end

    def get(self, key: str) -> Versioned | None:
        self._expire_due()
        return self._values.get(key)

    def put(self, key: str, value: bytes, expected: Expected, session: int | None) -> Version:
        self._expire_due()
        if session is not None and session not in self._leases:
            raise SessionLost("the session has ended")
        old = self._values.get(key)
        decide_put(key, expected, old.version if old else None)
        self._last_version += 1
        now = self._clock.now_ms()
        created = old.created_ms if old else now
        self._write(key, Versioned(value, self._last_version, created, now, session is not None))
        if session is not None:
            self._owners[key] = session
            self._leases[session].keys.add(key)
        return self._last_version

    def delete(self, key: str, expected: Expected) -> None:
        self._expire_due()
        old = self._values.get(key)
        decide_delete(key, expected, old.version if old else None)
        self._drop([key])

    def children(self, tree: str) -> list[str]:
        self._expire_due()
        return [name for name in self._tree.names(tree) if f"{tree}/{name}" != RESERVED]

    def keys(self, tree: str) -> list[str]:
        """The key itself and all below, parents before children; reserved keys only if `tree` is one."""
        self._expire_due()
        below = self._tree.walk(tree)
        found = [key for key in below if key in self._values and (tree or not is_within(key, RESERVED))]
        return [tree, *found] if tree in self._values else found

    def write_over(self, items: Iterable[Item], preserve: bool) -> None:
        self._expire_due()
        if not preserve:
            for key, given in items:
                self.put(key, given.value, ANY, None)
            return
        items = list(items)
        if any(given.version > self._last_version for _, given in items):
            raise BadRequest("a version is above the floor given to raise_versions")
        for key, given in items:
            self._write(key, replace(given, ephemeral=False))

    def delete_all(self, keys: Iterable[str]) -> None:
        self._expire_due()
        self._drop([key for key in dict.fromkeys(keys) if key in self._values])

    def raise_versions(self, floor: Version) -> None:
        if self.keys(""):
            raise BadRequest("versions can be raised only in an empty store")
        self._last_version = max(self._last_version, floor)

    def open_session(self, ttl_ms: int, on_end: Callable[[], None]) -> int:
        """A new session; `on_end` is called when it has ended, for any reason."""
        self._session_count += 1
        session, ttl_s = self._session_count, ttl_ms / 1000
        self._leases[session] = _Lease(ttl_s, self._clock.monotonic() + ttl_s, on_end)
        self._arm(session)
        return session

    def keep_alive(self, session: int) -> bool:
        """A keep-alive arrived. False if the session has ended."""
        self._expire_due()
        lease = self._leases.get(session)
        if lease is None:
            return False
        lease.ends_at = self._clock.monotonic() + lease.ttl_s
        return True

    def end_session(self, session: int) -> None:
        """End it and delete its keys, atomically. Safe to repeat."""
        lease = self._leases.pop(session, None)
        if lease is None:
            return
        if lease.timer is not None:
            lease.timer.cancel()
        self._drop(sorted(lease.keys))
        lease.on_end()

    def _arm(self, session: int) -> None:
        def on_timer() -> None:
            self._expire_due()
            if session in self._leases:  # it was kept alive meanwhile
                self._arm(session)

        lease = self._leases[session]
        lease.timer = self._clock.call_later(max(0.0, lease.ends_at - self._clock.monotonic()), on_timer)

    def _expire_due(self) -> None:
        """Called before every request too, so that a late timer does not prolong a session."""
        now = self._clock.monotonic()
        for session in [session for session, lease in self._leases.items() if lease.ends_at <= now]:
            self.end_session(session)

    def _write(self, key: str, new: Versioned) -> None:
        kind = ChangeKind.MODIFIED if key in self._values else ChangeKind.CREATED
        if kind is ChangeKind.CREATED:
            self._tree.add(key)
        self._disown(key)
        self._values[key] = new
        self._publish([Change(kind, key)])

    def _drop(self, keys: list[str]) -> None:
        for key in keys:
            self._disown(key)
            del self._values[key]
            self._tree.remove(key)
        self._publish([Change(ChangeKind.DELETED, key) for key in keys])

    def _disown(self, key: str) -> None:
        owner = self._owners.pop(key, None)
        if owner in self._leases:
            self._leases[owner].keys.discard(key)

    def _publish(self, changes: Sequence[Change]) -> None:
        if changes:
            for listener in tuple(self._listeners.values()):
                listener(changes)
