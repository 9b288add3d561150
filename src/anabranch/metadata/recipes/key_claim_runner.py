"""Where a claim meets the world: performs what a `ClaimMachine` asks for and brings back the answers.

Foreign outcomes become events here: a refused compare-and-set is Raced, a write without an answer is Unknown, a read
without one Failed. Knows the port and a session keeper; decides nothing.
"""

from __future__ import annotations

import asyncio
import logging
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
    Look,
    Pause,
    Paused,
    PauseKind,
    Put,
    Raced,
    Seen,
    SessionBegan,
    SessionOver,
    TellFree,
    TellHeld,
    TellLost,
    TellOther,
    TellWritten,
    Unknown,
    Unwant,
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
from anabranch.runtime.tasks import TaskOwner

log = logging.getLogger(__name__)

Told = TellHeld | TellWritten | TellLost | TellFree | TellOther


class KeyClaimRunner:
    """One key that this process holds or tries to hold. `told` hears everything, in order, in the loop."""

    def __init__(self, keeper: SessionKeeper, key: str, *, is_contended: bool, told: Callable[[Told], None]) -> None:
        self._keeper = keeper
        self._store = keeper.store
        self.key = key
        self._told = told
        self._machine = ClaimMachine(keeper.ticket(), is_contended=is_contended)
        self._lease: Lease | None = None
        self._held_lease: Lease | None = None
        self._numbers = 0
        self._events: deque[Event] = deque()
        self._is_handling = False
        self._is_started = self._is_closed = False
        self._pause: Timer | None = None
        self._free = asyncio.Event()
        self._tasks = TaskOwner("holder")
        self._watch: Watch | None = None
        self._unlisten: Callable[[], None] | None = None

    @property
    def held_lease(self) -> Lease | None:
        """The session the key is held with; None while it is not held."""
        return self._held_lease

    def start(self) -> None:
        """Begin to listen: to the key first, so that no change after the first look is missed."""
        if self._is_started:
            return
        self._is_started = True
        self._watch = self._store.watch(self.key)
        self._tasks.spawn(self._follow(self._watch), "watch")
        self._unlisten = self._keeper.listen(self._on_session)
        if self._keeper.lease is not None:
            self._on_session(SessionUp(self._keeper.lease))

    def post(self, event: Event) -> None:
        """One after the other, also when an event is posted while another is handled."""
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
        """Give the key up; False when the store did not confirm in time (it is not held any more either way)."""
        self._free.clear()
        self.post(Unwant())
        if self._machine.is_free:
            return True
        try:
            async with asyncio.timeout(seconds):
                await self._free.wait()
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """Release, then stop. What the store did not confirm ends with the session."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if self._is_started and not await self.release(self._keeper.patience.answer_s):
                log.warning("key left to its session", extra={"key": self.key})
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
                pass  # out of reach for a moment: the lease says how long that may last

    async def _follow(self, watch: Watch) -> None:
        async for change in watch:
            if change.key == self.key or len(change.key) < len(self.key):  # a shorter one: everything is in doubt
                self.post(Changed())

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Look() | Put() | Delete():
                self._tasks.spawn(self._ask(effect, self._lease), type(effect).__name__.lower())
            case Pause(number, kind, failures):
                if self._pause is not None:
                    self._pause.cancel()
                patience, chance = self._keeper.patience, self._keeper.chance.random()
                seconds = (
                    patience.scatter(chance) if kind is PauseKind.SCATTER else patience.retry_after(failures, chance)
                )
                self._pause = self._keeper.clock.call_later(seconds, lambda: self.post(Paused(number)))
            case TellHeld():
                self._held_lease = self._lease
                self._told(effect)
            case TellLost():
                self._held_lease = None
                self._told(effect)
            case TellFree():
                self._free.set()
                self._told(effect)
            case TellWritten() | TellOther():
                self._told(effect)
            case _:
                assert_never(effect)

    async def _ask(self, effect: Look | Put | Delete, lease: Lease | None) -> None:
        is_write = not isinstance(effect, Look)
        try:
            async with asyncio.timeout(self._keeper.patience.answer_s):
                answer = await self._answer(effect, lease)
        except VersionMismatch:
            answer = Raced()
        except KeyMissing:
            answer = Deleted()
        except (OutcomeUnknown, TimeoutError):
            answer = Unknown() if is_write else Failed()
        except StoreUnavailable as error:
            log.debug("store away", extra={"key": self.key, "reason": str(error)})
            answer = Failed()
        except Error as error:
            log.warning("metadata request refused", extra={"key": self.key, "reason": str(error)})
            answer = Failed()
        self.post(answer)

    async def _answer(self, effect: Look | Put | Delete, lease: Lease | None) -> Event:
        match effect:
            case Look(sync):
                if sync:
                    await self._store.sync()
                found = await self._store.get(self.key)
                return Seen(None if found is None else decode_claim(found.value, found.version))
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
