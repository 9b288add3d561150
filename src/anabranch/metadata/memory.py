"""Metadata in a dictionary: a real backend without durability, for tests, demos and simulations. Knows no files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Self

from anabranch.metadata.port import (
    Change,
    ChangeKind,
    Expected,
    Session,
    SessionLost,
    StoreUnavailable,
    Version,
    Versioned,
    check_key,
    check_tree,
    check_value,
    decide_delete,
    decide_put,
    is_within,
)
from anabranch.metadata.watches import TreeWatch, Watches
from anabranch.runtime.clock import Clock


class MemorySession:
    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._lost = asyncio.Event()
        self.keys: set[str] = set()

    @property
    def is_lost(self) -> bool:
        return self._lost.is_set()

    async def wait_lost(self) -> None:
        await self._lost.wait()

    async def close(self) -> None:
        self._store.end_session(self)

    def mark_lost(self) -> None:
        self._lost.set()


class MemoryStore:
    """Everything is lost with the object; the contract is otherwise the same."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._values: dict[str, Versioned] = {}
        self._owners: dict[str, MemorySession] = {}
        self._sessions: set[MemorySession] = set()
        self._watches = Watches()
        self._last_version = 0
        self._is_open = False

    async def open(self) -> None:
        self._is_open = True

    async def close(self) -> None:
        for session in tuple(self._sessions):
            self.end_session(session)
        self._watches.close()
        self._is_open = False

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def get(self, key: str) -> Versioned | None:
        self._check_open()
        check_key(key)
        return self._values.get(key)

    async def put(self, key: str, value: bytes, *, expected: Expected, session: Session | None = None) -> Version:
        self._check_open()
        check_key(key)
        check_value(key, value)
        owner = self._own(session)
        old = self._values.get(key)
        decide_put(key, expected, old.version if old else None)
        self._disown(key)
        if owner is not None:
            owner.keys.add(key)
            self._owners[key] = owner
        self._last_version += 1
        now = self._clock.now_ms()
        created = old.created_ms if old else now
        self._values[key] = Versioned(bytes(value), self._last_version, created, now, owner is not None)
        self._watches.publish([Change(ChangeKind.MODIFIED if old else ChangeKind.CREATED, key)])
        return self._last_version

    async def delete(self, key: str, *, expected: Expected) -> None:
        self._check_open()
        check_key(key)
        old = self._values.get(key)
        decide_delete(key, expected, old.version if old else None)
        self._drop(key)

    async def children(self, key: str) -> list[str]:
        self._check_open()
        start = check_tree(key) + "/"
        return sorted({k[len(start) :].split("/", 1)[0] for k in self._values if k.startswith(start)})

    async def scan(self, prefix: str) -> AsyncIterator[tuple[str, Versioned]]:
        self._check_open()
        tree = check_tree(prefix)
        for key in sorted(k for k in self._values if is_within(k, tree)):
            if (found := self._values.get(key)) is not None:
                yield key, found

    async def open_session(self, ttl_ms: int) -> Session:
        self._check_open()
        session = MemorySession(self)
        self._sessions.add(session)
        return session

    def watch(self, prefix: str) -> TreeWatch:
        self._check_open()
        return self._watches.add(prefix)

    def end_session(self, session: MemorySession) -> None:
        """What a crash of the owner would do: all its keys vanish."""
        if session not in self._sessions:
            return
        self._sessions.discard(session)
        for key in sorted(session.keys):
            self._drop(key)
        session.mark_lost()

    def _drop(self, key: str) -> None:
        self._disown(key)
        del self._values[key]
        self._watches.publish([Change(ChangeKind.DELETED, key)])

    def _disown(self, key: str) -> None:
        owner = self._owners.pop(key, None)
        if owner is not None:
            owner.keys.discard(key)

    def _own(self, session: Session | None) -> MemorySession | None:
        if session is None:
            return None
        if not isinstance(session, MemorySession) or session not in self._sessions:
            raise SessionLost("the session has ended")
        return session

    def _check_open(self) -> None:
        if not self._is_open:
            raise StoreUnavailable("the metadata store is not open")
