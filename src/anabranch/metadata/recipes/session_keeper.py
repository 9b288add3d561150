"""One session for a process, for as long as the process lives: opened again whenever it was lost.

The machine decides (no await, no clock); `SessionKeeper` does. Locks, elections and registrations hang on a keeper and
hear `SessionUp` (again after every loss: put your keys again) and `SessionDown` (your keys are gone or going).

A session counts as lost at the latest at its `valid_until`, also when nobody has said so: past that moment the store
may have ended it. That is final, a later sign of life does not bring it back, so a holder that was told "lost" never
has to believe the opposite.

When only we think so (the store was away, or we stood still) the keys may well be there. So such a session is closed a
while after the next one is up: its users move their keys over, and nobody sees them vanish in between.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self, assert_never

from anabranch.metadata.interface import MetadataStore, Session, SessionEvent, SessionLost
from anabranch.model.errors import Error
from anabranch.runtime.chance import Chance
from anabranch.runtime.clock import Clock, Timer
from anabranch.runtime.retry_delays import RETRY_DELAYS, RetryDelays
from anabranch.runtime.tasks import TaskOwner

log = logging.getLogger(__name__)


# events ---------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Begun:
    """Start to keep a session."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A session was opened; it is valid for `left_s` more seconds as far as we know."""

    left_s: float


@dataclass(frozen=True, slots=True)
class OpenFailed:
    """No session: the store did not give one."""


@dataclass(frozen=True, slots=True)
class Rested:
    """The pause after a failure is over."""


@dataclass(frozen=True, slots=True)
class Heard:
    """The session `number` had an event."""

    number: int
    event: SessionEvent


@dataclass(frozen=True, slots=True)
class Looked:
    """The session `number` is valid for `left_s` more seconds (not more than 0: it is overdue)."""

    number: int
    left_s: float


@dataclass(frozen=True, slots=True)
class Lingered:
    """The session `number` has been overdue for long enough."""

    number: int


@dataclass(frozen=True, slots=True)
class Ended:
    """Keep no session any more."""


Event = Begun | Opened | OpenFailed | Rested | Heard | Looked | Lingered | Ended


# effects --------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Open:
    """Open session `number`; the answer is Opened or OpenFailed."""

    number: int


@dataclass(frozen=True, slots=True)
class Rest:
    """Wait a moment after so many failures in a row; the answer is Rested."""

    failures: int


@dataclass(frozen=True, slots=True)
class LookIn:
    """See in so many seconds whether the session is still valid; the answer is Looked."""

    number: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Linger:
    """Give the users of an overdue session its ttl to move their keys to the next; the answer is Lingered."""

    number: int


@dataclass(frozen=True, slots=True)
class Discard:
    """Close the session, whether or not the store can still be reached."""

    number: int


@dataclass(frozen=True, slots=True)
class TellUp:
    number: int


@dataclass(frozen=True, slots=True)
class TellDown:
    number: int
    reason: str


@dataclass(frozen=True, slots=True)
class TellConnection:
    number: int
    is_connected: bool


Effect = Open | Rest | LookIn | Linger | Discard | TellUp | TellDown | TellConnection


class KeeperMachine:
    """Numbers sessions from 1; at most one is up at a time, and a number that went down never comes up again."""

    def __init__(self) -> None:
        self._number = 0
        self._is_up = False
        self._is_wanted = False
        self._failures = 0
        self._overdue: int | None = None  # down, not closed yet

    def handle(self, event: Event) -> list[Effect]:
        match event:
            case Begun():
                if self._is_wanted:
                    return []
                self._is_wanted = True
                return self._open()
            case Opened(left_s):
                if not self._is_wanted:
                    return [Discard(self._number)]
                if left_s <= 0:  # the answer took longer than the session lasts
                    self._failures += 1
                    return [Discard(self._number), Rest(self._failures)]
                self._is_up, self._failures = True, 0
                linger: list[Effect] = [] if self._overdue is None else [Linger(self._overdue)]
                return [TellUp(self._number), LookIn(self._number, left_s), *linger]
            case OpenFailed():
                self._failures += 1
                return [Rest(self._failures)] if self._is_wanted else []
            case Rested():
                return self._open() if self._is_wanted and not self._is_up else []
            case Heard(number, SessionEvent.LOST):
                return self._down("lost") if self._is_current(number) else self._let_go(number)
            case Heard(number, what):
                if not self._is_current(number):
                    return []
                return [TellConnection(number, what is SessionEvent.RECONNECTED)]
            case Looked(number, left_s):
                if not self._is_current(number):
                    return []
                return [LookIn(number, left_s)] if left_s > 0 else self._down("overdue")
            case Lingered(number):
                return self._let_go(number)
            case Ended():
                self._is_wanted = False
                return [*self._let_go(self._overdue), *(self._down("closed") if self._is_up else [])]
            case _:
                assert_never(event)

    def _is_current(self, number: int) -> bool:
        return self._is_up and number == self._number

    def _open(self) -> list[Effect]:
        self._number += 1
        return [Open(self._number)]

    def _down(self, reason: str) -> list[Effect]:
        self._is_up = False
        ended = self._number
        effects: list[Effect] = [TellDown(ended, reason)]
        if reason == "overdue":
            effects += self._let_go(self._overdue)
            self._overdue = ended
        else:
            effects.append(Discard(ended))
        return [*effects, *(self._open() if self._is_wanted else [])]

    def _let_go(self, number: int | None) -> list[Effect]:
        """Close the overdue session, if this is it."""
        if number is None or number != self._overdue:
            return []
        self._overdue = None
        return [Discard(number)]


# the shell ------------------------------------------------------------------------------------------------------------
class Lease:
    """One session as its users see it. Once it has ended it stays ended."""

    def __init__(self, name: str, session: Session, clock: Clock, overdue: Callable[[], None]) -> None:
        self.name = name
        self.session = session
        self._clock = clock
        self._overdue = overdue
        self._ended: str | None = None

    @property
    def is_valid(self) -> bool:
        """Can the store not have ended it? Look before every act that must not be done twice."""
        if self._ended is None and (self.session.is_lost or self._clock.monotonic() >= self.session.valid_until):
            self._overdue()
        return self._ended is None

    @property
    def ended(self) -> str | None:
        """Why it ended; None while it lives."""
        return self._ended

    def check(self) -> None:
        if not self.is_valid:
            raise SessionLost(f"session {self.name} has ended ({self._ended})")

    def end(self, reason: str) -> None:
        self._ended = self._ended or reason


@dataclass(frozen=True, slots=True)
class SessionUp:
    """A session is there, the first or a new one: whatever should live with it is to be put (again)."""

    lease: Lease


@dataclass(frozen=True, slots=True)
class SessionDown:
    lease: Lease
    reason: str


@dataclass(frozen=True, slots=True)
class ConnectionChanged:
    """The store is out of reach, or back with the same session. Caches stop believing what they have."""

    lease: Lease
    is_connected: bool


KeeperEvent = SessionUp | SessionDown | ConnectionChanged


@dataclass(slots=True)
class _Kept:
    lease: Lease
    unlisten: Callable[[], None]
    alarm: Timer | None = field(default=None)


class SessionKeeper:
    """`name` is for people. What recipes write is marked with `instance`, which no other keeper ever has.

    Not of another process, and not of an earlier start of this one: or a restarted process would take its past self's
    writes for its own.
    """

    def __init__(
        self,
        store: MetadataStore,
        *,
        name: str,
        ttl_ms: int,
        clock: Clock,
        chance: Chance,
        patience: RetryDelays = RETRY_DELAYS,
    ) -> None:
        if not name or any(letter.isspace() for letter in name):
            raise ValueError(f"the name of a keeper is one word, not {name!r}")
        self.store, self.clock, self.chance, self.patience = store, clock, chance, patience
        self._instance = f"{name}~{int(chance.random() * 2**48):012x}"
        self._ttl_ms = ttl_ms
        self._machine = KeeperMachine()
        self._kept: dict[int, _Kept] = {}
        self._lease: Lease | None = None
        self._up = asyncio.Event()
        self._listeners: list[Callable[[KeeperEvent], None]] = []
        self._tickets = 0
        self._rest: Timer | None = None
        self._tasks = TaskOwner("session-keeper")

    @property
    def instance(self) -> str:
        return self._instance

    @property
    def lease(self) -> Lease | None:
        """The session of now; None while there is none."""
        return self._lease

    def ticket(self) -> str:
        """A name for one user of this keeper that nobody else ever has."""
        self._tickets += 1
        return f"{self._instance}-{self._tickets}"

    def listen(self, callback: Callable[[KeeperEvent], None]) -> Callable[[], None]:
        """Called in the loop, in order, at the moment it is known. Look at `lease` for what was before."""
        self._listeners.append(callback)
        return lambda: self._listeners.remove(callback) if callback in self._listeners else None

    async def wait_lease(self, seconds: float) -> Lease:
        """The session; TimeoutError when there is none for that long."""
        async with asyncio.timeout(seconds):
            while True:
                if self._lease is not None and self._lease.is_valid:
                    return self._lease
                await self._up.wait()

    async def __aenter__(self) -> Self:
        self._post(Begun())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End the session: everything that hangs on it goes. Safe to repeat."""
        self._post(Ended())
        if self._rest is not None:
            self._rest.cancel()
        await self._tasks.drain(self.patience.answer_s)
        await self._tasks.drain(self.patience.answer_s)  # a session that was just being opened is closed as well
        await self._tasks.close()

    def _post(self, event: Event) -> None:
        for effect in self._machine.handle(event):
            self._perform(effect)

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Open(number):
                self._tasks.spawn(self._open(number), f"open-{number}")
            case Rest(failures):
                seconds = self.patience.retry_after(failures, self.chance.random())
                self._rest = self.clock.call_later(seconds, lambda: self._post(Rested()))
            case LookIn(number, seconds):
                self._kept[number].alarm = self.clock.call_later(seconds, lambda: self._look(number))
            case Linger(number):
                kept = self._kept[number]
                seconds = kept.lease.session.ttl_ms / 1000
                kept.alarm = self.clock.call_later(seconds, lambda: self._post(Lingered(number)))
            case Discard(number):
                self._discard(number)
            case TellUp(number):
                self._lease = self._kept[number].lease
                self._up.set()
                log.info("metadata session opened", extra={"session": self._lease.name})
                self._tell(SessionUp(self._lease))
            case TellDown(number, reason):
                lease = self._kept[number].lease
                lease.end(reason)
                self._lease = None
                self._up.clear()
                log.info("metadata session ended", extra={"session": lease.name, "reason": reason})
                self._tell(SessionDown(lease, reason))
            case TellConnection(number, is_connected):
                self._tell(ConnectionChanged(self._kept[number].lease, is_connected))
            case _:
                assert_never(effect)

    def _tell(self, event: KeeperEvent) -> None:
        for listener in tuple(self._listeners):
            listener(event)

    def _look(self, number: int) -> None:
        kept = self._kept.get(number)
        if kept is not None:
            left_s = 0.0 if kept.lease.session.is_lost else kept.lease.session.valid_until - self.clock.monotonic()
            self._post(Looked(number, left_s))

    async def _open(self, number: int) -> None:
        try:
            async with asyncio.timeout(self.patience.answer_s):
                session = await self.store.open_session(self._ttl_ms)
        except (Error, TimeoutError) as error:
            log.warning("no metadata session", extra={"reason": str(error) or "no answer"})
            self._post(OpenFailed())
            return
        lease = Lease(f"{self._instance}.{number}", session, self.clock, lambda: self._look(number))
        self._kept[number] = _Kept(lease, session.listen(lambda event: self._post(Heard(number, event))))
        left_s = 0.0 if session.is_lost else session.valid_until - self.clock.monotonic()
        self._post(Opened(left_s))

    def _discard(self, number: int) -> None:
        kept = self._kept.pop(number)
        kept.unlisten()
        if kept.alarm is not None:
            kept.alarm.cancel()
        kept.lease.end("discarded")
        self._tasks.spawn(self._close_session(kept.lease), f"close-{number}")

    async def _close_session(self, lease: Lease) -> None:
        try:
            async with asyncio.timeout(self.patience.answer_s):
                await lease.session.close()
        except (Error, TimeoutError) as error:  # the store ends it by itself when its time has passed
            log.info("metadata session left to expire", extra={"session": lease.name, "reason": str(error)})
