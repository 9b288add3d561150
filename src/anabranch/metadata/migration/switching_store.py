"""The metadata store of a process whose real store can be replaced while it is used.

Sessions and watches of the process stay the same objects. A replacement has two steps:

    prepare(target)    each session gets a second session in the target, with copies of its ephemeral keys
    switch()           reads, writes, watches and sessions use the target from now on
    discard()          instead of `switch`: the second sessions end, nothing else has changed

Between the steps the migration is undecided: a session counts as valid only as long as both real sessions are, and
`sync` waits, because another process may already write to the target. Writers are kept away by the write gate.

Ephemeral keys get new versions in the target. A compare-and-set with the version that this process holds is translated.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from anabranch.metadata.interface import (
    ABSENT,
    Capabilities,
    Change,
    ChangeKind,
    Expected,
    Item,
    KeyMissing,
    MetadataStore,
    OutcomeUnknown,
    Session,
    SessionEvent,
    SessionLost,
    StoreUnavailable,
    Version,
    Versioned,
    VersionMismatch,
    Watch,
    check_tree,
)
from anabranch.metadata.session_base import SessionBase
from anabranch.model.errors import Error
from anabranch.runtime.logs import get_logger

log = get_logger(__name__)

SYNC_WAIT_S = 10.0
CLOSE_S = 5.0
UNCERTAIN_MAX = 4


class Membership(Protocol):
    """Whether the real store is still that of the cluster. Asked after an answer and before its caller learns it."""

    @property
    def is_vouched(self) -> bool: ...

    async def confirm(self) -> None:
        """Raises OutcomeUnknown if the store may have moved."""


class NoMembership:
    """Of a process that takes no part in migrations."""

    is_vouched = True

    async def confirm(self) -> None:
        """The store never moves."""


@dataclass(frozen=True, slots=True)
class Owned:
    """An ephemeral key as this process wrote it, or may have written it."""

    session: SwitchingSession
    value: bytes


Moved = tuple[frozenset[Version], Version]
"""The versions that an ephemeral key had in earlier stores, since its last write, and the one that it has now."""


class SwitchingSession(SessionBase):
    """A session of the process. `LOST` of the real session ends it; a replacement does not."""

    def __init__(self, real: Session, forget: Callable[[SwitchingSession], None]) -> None:
        super().__init__(real.ttl_ms)
        self.real = real
        self.next: Session | None = None
        self._forget = forget
        self._unlisten = real.listen(self._on_event)
        if real.is_lost:
            self.end()

    @property
    def ttl_ms(self) -> int:
        return self.real.ttl_ms

    @property
    def valid_until(self) -> float:
        return self.real.valid_until if self.next is None else min(self.real.valid_until, self.next.valid_until)

    def _on_event(self, event: SessionEvent) -> None:
        if event is SessionEvent.LOST:
            self.end()
        else:
            self.notify(event)

    def end(self) -> None:
        self._unlisten()
        self._forget(self)
        self.notify(SessionEvent.LOST)

    def replace(self) -> Session:
        """Use the second session from now on; returns the first, which the caller closes when no process needs it."""
        assert self.next is not None
        old, self.real, self.next = self.real, self.next, None
        self._unlisten()
        self._unlisten = self.real.listen(self._on_event)
        if self.real.is_lost:
            self.end()
        return old

    async def close(self) -> None:
        sessions = [self.real] if self.next is None else [self.real, self.next]
        self.end()
        for session in sessions:
            await session.close()


class SwitchingWatch:
    """A watch of the process. After a replacement it shows one INVALIDATED, then the changes of the new store."""

    def __init__(self, prefix: str, real: Watch, registry: dict[SwitchingWatch, None]) -> None:
        self._prefix = prefix
        self._real = real
        self._next: Watch | None = None
        self._registry = registry
        registry[self] = None

    def __aiter__(self) -> AsyncIterator[Change]:
        return self

    async def __anext__(self) -> Change:
        try:
            return await anext(self._real)
        except StopAsyncIteration:
            if self._next is None:
                raise
            self._real, self._next = self._next, None
            return Change(ChangeKind.INVALIDATED, self._prefix)

    def replace(self, store: MetadataStore) -> None:
        if self._next is not None:  # replaced twice before it was read
            self._next.close()
        self._next = store.watch(self._prefix)
        self._real.close()

    def close(self) -> None:
        self._registry.pop(self, None)
        self._real.close()
        if self._next is not None:
            self._next.close()
            self._next = None


class SwitchingStore:
    def __init__(self, real: MetadataStore) -> None:
        self._real = real
        self._membership: Membership = NoMembership()
        self._seconds: list[Session] = []
        self.is_outdated = False  # the store moved without this process: what it shows is not the cluster's
        self._target: MetadataStore | None = None
        self._sessions: dict[SwitchingSession, None] = {}
        self._watches: dict[SwitchingWatch, None] = {}
        self._owned: dict[str, list[Owned]] = {}
        self._moved: dict[str, Moved] = {}
        self._moving: dict[str, Moved] = {}
        self._decided = asyncio.Event()
        self._decided.set()

    @property
    def real(self) -> MetadataStore:
        return self._real

    def take_part(self, membership: Membership) -> None:
        """The process takes part in migrations from now on."""
        self._membership = membership

    async def _confirm(self) -> None:
        if not self._membership.is_vouched:
            await self._membership.confirm()

    async def _confirm_read(self) -> None:
        """A process that no coordinator waits for could see its own writes that came too late."""
        if self.is_outdated or not self._membership.is_vouched:
            try:
                await self._membership.confirm()
            except OutcomeUnknown as error:
                raise StoreUnavailable(error.reason) from error

    # Replacement

    async def prepare(self, target: MetadataStore, keep_sessions: bool = True) -> int:
        """Returns the number of ephemeral keys that exist in the target too. Raises if one of them is not free there.

        Without `keep_sessions`, `switch` ends all sessions: other processes already use the target.
        """
        self._decided.clear()
        self._target = target
        if not keep_sessions:
            return 0
        copied: dict[str, Moved] = {}
        for session in tuple(self._sessions):
            session.next = await target.open_session(session.ttl_ms)
            self._seconds.append(session.next)
        for key, candidates in tuple(self._owned.items()):
            found = await self._real.get(key)
            owner = self._owner(found, candidates)
            if found is None or owner is None:
                self._owned.pop(key, None)
                continue
            version = await target.put(key, found.value, expected=ABSENT, session=owner.next)
            before, now = self._moved.get(key, (frozenset[Version](), found.version))
            earlier = before if now == found.version else frozenset[Version]()
            copied[key] = earlier | {found.version}, version
        self._moving = copied
        return len(copied)

    def _owner(self, found: Versioned | None, candidates: Sequence[Owned]) -> SwitchingSession | None:
        """The session that wrote what was found; None if the key is gone or belongs to another process."""
        if found is None or not found.ephemeral:
            return None
        owners = [owned.session for owned in candidates if owned.value == found.value and owned.session.next]
        return owners[-1] if owners else None

    @property
    def is_target_lost(self) -> bool:
        """Whether a second session has ended, so that a switch would lose keys."""
        return any(session.next is not None and session.next.is_lost for session in self._sessions)

    def target_valid_until(self) -> float:
        """Until when every second session is valid; infinite if there is none."""
        return min((s.next.valid_until for s in self._sessions if s.next is not None), default=float("inf"))

    def switch(self) -> tuple[MetadataStore, list[Session]]:
        """Returns the former store and the sessions that the caller closes when no peer needs their keys.

        Peers that have not switched still see the keys of this process in the former store. Second sessions whose first
        one ended meanwhile are among the returned ones.
        """
        assert self._target is not None
        old, self._real, self._target = self._real, self._target, None
        kept = [session.next for session in self._sessions]
        former = [second for second in self._seconds if second not in kept]
        self._seconds = []
        self._moved, self._moving = self._moving, {}
        self.is_outdated = False
        for session in tuple(self._sessions):
            if session.next is None:
                former.append(session.real)
                session.end()
            else:
                former.append(session.replace())
        for watch in tuple(self._watches):
            watch.replace(self._real)
        self._decided.set()
        return old, former

    async def discard(self) -> None:
        """The source stays. Second sessions end, and with them their keys; an unreachable target ends them itself."""
        self._target, self._moving = None, {}
        seconds, self._seconds = self._seconds, []
        for session in self._sessions:
            session.next = None
        self._decided.set()
        await asyncio.gather(*map(_close_quietly, seconds))

    # The port

    async def get(self, key: str) -> Versioned | None:
        found = await self._real.get(key)
        await self._confirm_read()
        return found

    async def put(self, key: str, value: bytes, *, expected: Expected, session: Session | None = None) -> Version:
        real = self._real
        if session is None:
            version = await real.put(key, value, expected=self._translated(key, expected))
            self._owned.pop(key, None)
        else:
            version = await self._put_ephemeral(key, bytes(value), expected, session)
        self._moved.pop(key, None)
        await self._confirm()
        return version

    async def _put_ephemeral(self, key: str, value: bytes, expected: Expected, session: Session) -> Version:
        if not isinstance(session, SwitchingSession) or session not in self._sessions:
            raise SessionLost("the session has ended")
        owned = Owned(session, value)
        before = self._owned.get(key, [])
        self._owned[key] = [*before[-UNCERTAIN_MAX:], owned]  # first: an answer may be lost
        try:
            version = await self._real.put(key, value, expected=self._translated(key, expected), session=session.real)
        except VersionMismatch:
            self._owned[key] = before
            raise
        self._owned[key] = [owned]
        return version

    async def delete(self, key: str, *, expected: Expected) -> None:
        try:
            await self._real.delete(key, expected=self._translated(key, expected))
        except KeyMissing:
            self._forget_key(key)
            raise
        self._forget_key(key)
        await self._confirm()

    def _forget_key(self, key: str) -> None:
        self._owned.pop(key, None)
        self._moved.pop(key, None)

    def _translated(self, key: str, expected: Expected) -> Expected:
        moved = self._moved.get(key)
        return moved[1] if moved is not None and expected in moved[0] else expected

    async def sync(self) -> None:
        await self._wait_decided()
        await self._real.sync()
        await self._confirm()

    async def _wait_decided(self) -> None:
        if self._decided.is_set():
            return
        try:
            async with asyncio.timeout(SYNC_WAIT_S):
                await self._decided.wait()
        except TimeoutError as error:
            raise StoreUnavailable("the metadata is being moved to another store") from error

    async def children(self, key: str) -> list[str]:
        found = await self._real.children(key)
        await self._confirm_read()
        return found

    async def scan(self, prefix: str) -> AsyncIterator[tuple[str, Versioned]]:
        async for item in self._real.scan(prefix):
            await self._confirm_read()
            yield item

    async def open_session(self, ttl_ms: int) -> Session:
        """Waits while a migration is undecided: the new session would have no part in the target."""
        await self._wait_decided()
        session = SwitchingSession(await self._real.open_session(ttl_ms), self._forget_session)
        if not session.is_lost:
            self._sessions[session] = None
        return session

    def _forget_session(self, session: SwitchingSession) -> None:
        self._sessions.pop(session, None)
        for key, candidates in tuple(self._owned.items()):
            if left := [owned for owned in candidates if owned.session is not session]:
                self._owned[key] = left
            else:
                self._forget_key(key)

    def watch(self, prefix: str) -> Watch:
        check_tree(prefix)
        return SwitchingWatch(prefix, self._real.watch(prefix), self._watches)

    @property
    def capabilities(self) -> Capabilities:
        return self._real.capabilities

    async def bulk_scan(self, prefix: str) -> AsyncIterator[list[Item]]:
        async for page in self._real.bulk_scan(prefix):
            await self._confirm_read()
            yield page

    async def bulk_write(self, items: Sequence[Item], *, preserve: bool) -> None:
        await self._real.bulk_write(items, preserve=preserve)
        for key, _ in items:
            self._forget_key(key)
        await self._confirm()

    async def bulk_delete(self, keys: Sequence[str]) -> None:
        await self._real.bulk_delete(keys)
        for key in keys:
            self._forget_key(key)
        await self._confirm()

    async def raise_versions(self, floor: Version) -> None:
        await self._real.raise_versions(floor)

    async def open(self) -> None:
        await self._real.open()

    async def close(self) -> None:
        await self._real.close()
        for watch in tuple(self._watches):
            watch.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


async def _close_quietly(session: Session) -> None:
    """A store that does not answer ends the session itself."""
    try:
        async with asyncio.timeout(CLOSE_S):
            await session.close()
    except (Error, TimeoutError) as error:
        log.info("a session in the target will expire", extra={"reason": str(error) or "no answer"})
