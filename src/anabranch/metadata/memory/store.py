"""Metadata in memory: a complete backend without durability, for tests, demos and simulations.

A `MemoryStore` is a client of a `MemoryData`, its own or a shared one. Requests, answers, keep-alives and events
between the two can be delayed, lost or cut off (`faults.py`). All time comes from the clock, so a run under a simulated
clock is deterministic.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Self, TypeVar

from anabranch.metadata.interface import (
    Capabilities,
    Change,
    ChangeKind,
    Expected,
    Item,
    OutcomeUnknown,
    Session,
    SessionEvent,
    SessionLost,
    StoreUnavailable,
    Version,
    Versioned,
    check_key,
    check_tree,
    check_value,
)
from anabranch.metadata.memory.data import MemoryData
from anabranch.metadata.memory.faults import Faults, Kind, Loss, NoFaults, Operation
from anabranch.metadata.memory.sessions import DelayedEvents, MemorySession
from anabranch.metadata.watch_fanout import TreeWatch, WatchFanout
from anabranch.model.errors import Error
from anabranch.runtime.clock import Clock

BULK_ROWS = 5000
CAPABILITIES = Capabilities("memory", is_durable=False, is_shared=False, has_snapshot_scan=True, ttl_ms_min=1)

T = TypeVar("T")
_WRITES = frozenset({Kind.PUT, Kind.DELETE, Kind.BULK, Kind.OPEN_SESSION, Kind.CLOSE_SESSION})


class MemoryStore:
    """The data lives as long as its MemoryData; otherwise the contract of the port holds."""

    def __init__(
        self, clock: Clock, data: MemoryData | None = None, faults: Faults | None = None, name: str = "memory"
    ) -> None:
        self._clock = clock
        self._data = data or MemoryData(clock)
        self._faults = faults or NoFaults()
        self._name = name
        self._sessions: dict[MemorySession, None] = {}  # in the order they were opened
        self._watches = WatchFanout()
        self._events = DelayedEvents(clock, self._watches.publish)
        self._stop_listening: Callable[[], None] | None = None
        self._is_cut = False

    @property
    def data(self) -> MemoryData:
        """For another store on the same data."""
        return self._data

    async def open(self) -> None:
        """Safe to repeat: the same store can serve one broker after another."""
        if self._stop_listening is None:
            self._stop_listening = self._data.listen(self._on_changes)

    async def close(self) -> None:
        """End the sessions; if cut off, they end after their ttl."""
        if not self._is_cut:
            for session in tuple(self._sessions):
                self._data.end_session(session.session_id)
        self.crash()

    def crash(self) -> None:
        """Stop as by SIGKILL: the data receives nothing more, and sessions end after their ttl."""
        if self._stop_listening is not None:
            self._stop_listening()
            self._stop_listening = None
        for session in tuple(self._sessions):
            self._forget(session)
        self._watches.close()

    def cut(self) -> None:
        """From now on nothing passes between this store and its data in either direction."""
        self._is_cut = True
        self._events.clear()
        for session in self._sessions:
            session.set_connected(False)

    def heal(self) -> None:
        """Connect again: every watch gets INVALIDATED, every session learns whether it still exists."""
        self._is_cut = False
        self._events.add([Change(ChangeKind.INVALIDATED, "/")], 0.0)
        for session in tuple(self._sessions):
            session.keep_alive()

    def expire(self, session: Session) -> None:
        """End one session at the data, as if its keep-alives had been too late."""
        assert isinstance(session, MemorySession)
        self._data.end_session(session.session_id)

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def capabilities(self) -> Capabilities:
        return CAPABILITIES

    async def get(self, key: str) -> Versioned | None:
        check_key(key)
        return await self._ask(Kind.GET, key, lambda: self._data.get(key))

    async def put(self, key: str, value: bytes, *, expected: Expected, session: Session | None = None) -> Version:
        check_key(key)
        check_value(key, value)
        owner, content = self._own(session), bytes(value)
        try:
            return await self._ask(Kind.PUT, key, lambda: self._data.put(key, content, expected, owner))
        except SessionLost:
            if isinstance(session, MemorySession):
                self._forget(session)
            raise

    async def delete(self, key: str, *, expected: Expected) -> None:
        check_key(key)
        await self._ask(Kind.DELETE, key, lambda: self._data.delete(key, expected))

    async def sync(self) -> None:
        await self._ask(Kind.SYNC, "", lambda: None)

    async def children(self, key: str) -> list[str]:
        tree = check_tree(key)
        return await self._ask(Kind.CHILDREN, key, lambda: self._data.children(tree))

    async def scan(self, prefix: str) -> AsyncIterator[tuple[str, Versioned]]:
        tree = check_tree(prefix)
        for key in await self._ask(Kind.SCAN, prefix, lambda: self._data.keys(tree)):
            if (found := self._data.get(key)) is not None:
                yield key, found

    async def bulk_scan(self, prefix: str) -> AsyncIterator[list[Item]]:
        tree = check_tree(prefix)

        def snapshot() -> list[Item]:
            found = ((key, self._data.get(key)) for key in self._data.keys(tree))
            return [(key, one) for key, one in found if one is not None]

        items = await self._ask(Kind.SCAN, prefix, snapshot)
        for start in range(0, len(items), BULK_ROWS):
            yield items[start : start + BULK_ROWS]

    async def keys_about(self) -> int:
        return await self._ask(Kind.SCAN, "/", lambda: len(self._data.keys("")))

    async def bulk_write(self, items: Sequence[Item], *, preserve: bool) -> None:
        for key, given in items:
            check_key(key)
            check_value(key, given.value)
        for start in range(0, len(items), BULK_ROWS):
            part = items[start : start + BULK_ROWS]
            await self._ask(Kind.BULK, part[0][0], partial(self._data.write_over, part, preserve))

    async def bulk_delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            check_key(key)
        for start in range(0, len(keys), BULK_ROWS):
            part = keys[start : start + BULK_ROWS]
            await self._ask(Kind.BULK, part[0], partial(self._data.delete_all, part))

    async def raise_versions(self, floor: Version) -> None:
        await self._ask(Kind.BULK, "", lambda: self._data.raise_versions(floor))

    async def open_session(self, ttl_ms: int) -> Session:
        granted = max(ttl_ms, CAPABILITIES.ttl_ms_min)
        session = MemorySession(granted, self._clock, self._close_session, self._keep_alive)
        await self._ask(
            Kind.OPEN_SESSION, "", lambda: session.on_granted(self._data.open_session(granted, session.on_ended))
        )
        self._sessions[session] = None
        session.schedule_keep_alive()
        return session

    def watch(self, prefix: str) -> TreeWatch:
        self._check_open()
        return self._watches.add(prefix)

    async def _ask(self, kind: Kind, key: str, apply: Callable[[], T]) -> T:
        """One request and its answer, with the fate that `faults` decides."""
        self._check_open()
        fate = self._faults.decide(Operation(self._name, kind, key))
        if self._is_cut or fate.loss is Loss.REFUSED:
            raise StoreUnavailable("the metadata store cannot be reached")
        lost = (OutcomeUnknown if kind in _WRITES else StoreUnavailable)("the metadata store did not answer")
        if fate.loss is Loss.LATE:
            self._after(fate.request_s, partial(self._apply_late, apply))
            raise lost
        if fate.request_s:
            await self._clock.sleep(fate.request_s)
        if fate.loss is Loss.REQUEST or self._is_cut or self._stop_listening is None:
            raise lost
        refused: Exception | None = None
        try:
            answer = apply()
        except Exception as error:  # an error is an answer too, and may be lost
            refused = error
        if fate.answer_s:
            await self._clock.sleep(fate.answer_s)
        if fate.loss is Loss.ANSWER or self._is_cut:
            raise lost
        if refused is not None:
            raise refused
        return answer

    def _apply_late(self, apply: Callable[[], object]) -> None:
        """No caller waits for the answer, so an error is dropped."""
        try:
            apply()
        except Error:
            return

    def _keep_alive(self, session: MemorySession) -> None:
        """Send a keep-alive; `on_keep_alive_answered` is called with its answer."""
        fate = self._faults.decide(Operation(self._name, Kind.KEEP_ALIVE, ""))
        sent_at = self._clock.monotonic()
        if self._is_cut or fate.loss in (Loss.REFUSED, Loss.REQUEST):
            session.set_connected(False)
            return

        def arrive() -> None:
            if session in self._sessions and not self._is_cut:
                alive = self._data.keep_alive(session.session_id)
                self._after(fate.answer_s, lambda: answered(alive))

        def answered(alive: bool) -> None:
            if session not in self._sessions:
                return
            if self._is_cut or fate.loss is Loss.ANSWER:
                session.set_connected(False)
            elif alive:
                session.on_keep_alive_answered(sent_at)
            else:
                self._forget(session)

        self._after(fate.request_s, arrive)

    def _after(self, seconds: float, call: Callable[[], None]) -> None:
        if seconds:
            self._clock.call_later(seconds, call)
        else:
            call()

    def _on_changes(self, changes: Sequence[Change]) -> None:
        if self._is_cut:
            return  # `heal` invalidates everything
        fate = self._faults.decide(Operation(self._name, Kind.EVENT, changes[0].key))
        lost = fate.loss is not Loss.NOTHING
        self._events.add([Change(ChangeKind.INVALIDATED, "/")] if lost else changes, fate.request_s)

    async def _close_session(self, session: MemorySession) -> None:
        if session in self._sessions:
            self._forget(session)  # it is not used again, whatever becomes of the request
            await self._ask(Kind.CLOSE_SESSION, "", lambda: self._data.end_session(session.session_id))

    def _forget(self, session: MemorySession) -> None:
        self._sessions.pop(session, None)
        session.stop()
        session.notify(SessionEvent.LOST)

    def _own(self, session: Session | None) -> int | None:
        if session is None:
            return None
        if not isinstance(session, MemorySession) or session not in self._sessions:
            raise SessionLost("the session has ended")
        return session.session_id

    def _check_open(self) -> None:
        if self._stop_listening is None:
            raise StoreUnavailable("the metadata store is not open")
