"""Asyncio shell of `ClaimMachine`: performs its effects on the store and returns the answers as events.

A refused compare-and-set becomes Raced, a write without an answer Uncertain, a read without an answer Failed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import assert_never

from anabranch.metadata.interface import KeyMissing, OutcomeUnknown, StoreUnavailable, VersionMismatch, Watch
from anabranch.metadata.recipes.key_claim import (
    Changed,
    ClaimMachine,
    Delete,
    Deleted,
    Effect,
    Event,
    Failed,
    KeyHeld,
    KeyLost,
    KeyRead,
    KeyReleased,
    KeyWritten,
    Pause,
    PauseEnded,
    PauseKind,
    Put,
    Raced,
    ReadKey,
    Release,
    SessionBegan,
    SessionOver,
    Uncertain,
    Wrote,
    decode_claim,
    encode_claim,
)
from anabranch.metadata.recipes.session_keeper import (
    KeeperEvent,
    Lease,
    SessionDown,
    SessionKeeper,
    SessionUp,
)
from anabranch.model.errors import Error
from anabranch.runtime.clock import Timer
from anabranch.runtime.logs import get_logger
from anabranch.runtime.tasks import TaskOwner

log = get_logger(__name__)

ClaimEvent = KeyHeld | KeyWritten | KeyLost | KeyReleased


class KeyClaimRunner:
    """One key that this process holds or tries to hold. `on_event` is called in the loop, in order."""

    def __init__(
        self, keeper: SessionKeeper, key: str, *, is_contended: bool, on_event: Callable[[ClaimEvent], None]
    ) -> None:
        self._keeper = keeper
        self._store = keeper.store
        self.key = key
        self._on_event = on_event
        self._machine = ClaimMachine(keeper.ticket(), is_contended=is_contended)
        self._lease: Lease | None = None
        self._held_lease: Lease | None = None
        self._numbers = 0
        self._events: deque[Event] = deque()
        self._is_handling = False
        self._is_started = self._is_closed = False
        self._pause: Timer | None = None
        self._free = asyncio.Event()
        self._tasks = TaskOwner("key-claim")
        self._watch: Watch | None = None
        self._unlisten: Callable[[], None] | None = None

    @property
    def held_lease(self) -> Lease | None:
        """The session with which the key is held; None if it is not held."""
        return self._held_lease

    def start(self) -> None:
        """Start. The watch comes before the first read, so that no later change is missed."""
        if self._is_started:
            return
        self._is_started = True
        self._watch = self._store.watch(self.key)
        self._tasks.spawn(self._follow(self._watch), "watch")
        self._unlisten = self._keeper.listen(self._on_session)
        if self._keeper.lease is not None:
            self._on_session(SessionUp(self._keeper.lease))

    def post(self, event: Event) -> None:
        """Handle events one after another, also those posted while another one is handled."""
        self._events.append(event)
        if self._is_handling:
            return
        self._is_handling = True
        try:
            while self._events:
                for effect in self._machine.handle(self._events.popleft()):
                    self._perform(effect)
        finally:
            self._is_handling = False

    async def release(self, seconds: float) -> bool:
        """Release the key; False if the store did not confirm it in time. The key counts as released in both cases."""
        self._free.clear()
        self.post(Release())
        if self._machine.is_free:
            return True
        try:
            async with asyncio.timeout(seconds):
                await self._free.wait()
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """Release, then stop. A key whose release was not confirmed ends with its session."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if self._is_started and not await self.release(self._keeper.retry_delays.answer_s):
                log.warning("metadata key not released; it ends with its session", extra={"key": self.key})
        finally:
            if self._unlisten is not None:
                self._unlisten()
            if self._watch is not None:
                self._watch.close()
            if self._pause is not None:
                self._pause.cancel()
            await self._tasks.close()

    def _on_session(self, event: KeeperEvent) -> None:
        match event:
            case SessionUp(lease):
                if lease is not self._lease:
                    self._lease = lease
                    self._numbers += 1
                    self.post(SessionBegan(self._numbers))
            case SessionDown(lease, reason):
                if lease is self._lease:
                    self._lease = None
                    self.post(SessionOver(reason))
            case _:
                pass  # the store is unreachable: the lease decides how long the session counts

    async def _follow(self, watch: Watch) -> None:
        async for change in watch:
            if change.key == self.key or len(change.key) < len(self.key):  # a parent: an invalidation
                self.post(Changed())

    def _perform(self, effect: Effect) -> None:
        match effect:
            case ReadKey() | Put() | Delete():
                self._tasks.spawn(self._ask(effect, self._lease), type(effect).__name__.lower())
            case Pause(number, kind, failures):
                if self._pause is not None:
                    self._pause.cancel()
                retry_delays, chance = self._keeper.retry_delays, self._keeper.chance.random()
                seconds = (
                    retry_delays.scatter(chance)
                    if kind is PauseKind.SCATTER
                    else retry_delays.retry_after(failures, chance)
                )
                self._pause = self._keeper.clock.call_later(seconds, lambda: self.post(PauseEnded(number)))
            case KeyHeld():
                self._held_lease = self._lease
                self._on_event(effect)
            case KeyLost():
                self._held_lease = None
                self._on_event(effect)
            case KeyReleased():
                self._free.set()
                self._on_event(effect)
            case KeyWritten():
                self._on_event(effect)
            case _:
                assert_never(effect)

    async def _ask(self, effect: ReadKey | Put | Delete, lease: Lease | None) -> None:
        is_write = not isinstance(effect, ReadKey)
        try:
            async with asyncio.timeout(self._keeper.retry_delays.answer_s):
                answer = await self._answer(effect, lease)
        except VersionMismatch:
            answer = Raced()
        except KeyMissing:
            answer = Deleted()
        except (OutcomeUnknown, TimeoutError):
            answer = Uncertain() if is_write else Failed()
        except StoreUnavailable as error:
            log.debug("metadata store unavailable", extra={"key": self.key, "reason": str(error)})
            answer = Failed()
        except Error as error:
            log.warning("metadata request refused", extra={"key": self.key, "reason": str(error)})
            answer = Failed()
        self.post(answer)

    async def _answer(self, effect: ReadKey | Put | Delete, lease: Lease | None) -> Event:
        match effect:
            case ReadKey(sync):
                if sync:
                    await self._store.sync()
                found = await self._store.get(self.key)
                return KeyRead(None if found is None else decode_claim(found.value, found.version))
            case Put(claim, value, expected):
                if lease is None or not lease.is_valid:
                    return Failed()
                stored = encode_claim(claim, value)
                return Wrote(await self._store.put(self.key, stored, expected=expected, session=lease.session))
            case Delete(version):
                await self._store.delete(self.key, expected=version)
                return Deleted()
            case _:
                assert_never(effect)
