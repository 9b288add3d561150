"""Session keeper: one session per process for its whole lifetime, opened again after every loss.

`KeeperMachine` decides (no await, no clock); `SessionKeeper` acts. Elections and registrations use a keeper and receive
`SessionUp` (after every loss too: put your keys again) and `SessionDown` (your keys are gone or will be soon).

A session counts as lost at its `valid_until` at the latest, even without any notice, because the store may have ended
it by then. This is final: a later answer does not revive it, so a user that was notified of the loss never has to take
it back.

If only the process thinks so (the store was unreachable, or the process was stopped), the keys may still exist. Such a
session is therefore closed one ttl after the next one is up: its users move their keys over, and other processes never
see the keys vanish.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self, assert_never

from anabranch.metadata.interface import MetadataStore, Session, SessionEvent, SessionLost
from anabranch.model.errors import Error
from anabranch.runtime.chance import Chance
from anabranch.runtime.clock import Clock, Timer
from anabranch.runtime.logs import get_logger
from anabranch.runtime.retry_delays import RETRY_DELAYS, RetryDelays
from anabranch.runtime.tasks import TaskOwner

log = get_logger(__name__)


# events ---------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Started:
    """Start keeping a session."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A session was opened; it is valid for at least `left_s` more seconds."""

    left_s: float


@dataclass(frozen=True, slots=True)
class OpenFailed:
    """The store did not open a session."""


@dataclass(frozen=True, slots=True)
class PauseEnded:
    """The pause after a failure is over."""


@dataclass(frozen=True, slots=True)
class SessionEventReceived:
    """The session `number` had an event."""

    number: int
    event: SessionEvent


@dataclass(frozen=True, slots=True)
class ValidityChecked:
    """The session `number` is valid for `left_s` more seconds; 0 or less means overdue."""

    number: int
    left_s: float


@dataclass(frozen=True, slots=True)
class GraceEnded:
    """The grace period of the overdue session `number` is over."""

    number: int


@dataclass(frozen=True, slots=True)
class Stopped:
    """Stop keeping a session."""


Event = Started | Opened | OpenFailed | PauseEnded | SessionEventReceived | ValidityChecked | GraceEnded | Stopped


# effects --------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Open:
    """Open session `number`; the answer is Opened or OpenFailed."""

    number: int


@dataclass(frozen=True, slots=True)
class Pause:
    """Pause after this many failures in a row; the answer is PauseEnded."""

    failures: int


@dataclass(frozen=True, slots=True)
class CheckValidity:
    """Check after `seconds` whether the session is still valid; the answer is ValidityChecked."""

    number: int
    seconds: float


@dataclass(frozen=True, slots=True)
class StartGrace:
    """Give users of an overdue session one ttl to move their keys to the next; the answer is GraceEnded."""

    number: int


@dataclass(frozen=True, slots=True)
class Discard:
    """Close the session, whether or not the store is reachable."""

    number: int


@dataclass(frozen=True, slots=True)
class NotifyUp:
    number: int


@dataclass(frozen=True, slots=True)
class NotifyDown:
    number: int
    reason: str


@dataclass(frozen=True, slots=True)
class NotifyConnection:
    number: int
    is_connected: bool


Effect = Open | Pause | CheckValidity | StartGrace | Discard | NotifyUp | NotifyDown | NotifyConnection


class KeeperMachine:
    """Numbers sessions from 1. At most one is up at a time; a number that went down is never up again."""

    def __init__(self) -> None:
        self._number = 0
        self._is_up = False
        self._is_wanted = False
        self._failures = 0
        self._overdue: int | None = None  # its number: down, not closed yet

    def handle(self, event: Event) -> list[Effect]:
        match event:
            case Started():
                if self._is_wanted:
                    return []
                self._is_wanted = True
                return self._open()
            case Opened(left_s):
                if not self._is_wanted:
                    return [Discard(self._number)]
                if left_s <= 0:  # opening took longer than the ttl
                    self._failures += 1
                    return [Discard(self._number), Pause(self._failures)]
                self._is_up, self._failures = True, 0
                grace: list[Effect] = [] if self._overdue is None else [StartGrace(self._overdue)]
                return [NotifyUp(self._number), CheckValidity(self._number, left_s), *grace]
            case OpenFailed():
                self._failures += 1
                return [Pause(self._failures)] if self._is_wanted else []
            case PauseEnded():
                return self._open() if self._is_wanted and not self._is_up else []
            case SessionEventReceived(number, SessionEvent.LOST):
                return self._down("lost") if self._is_current(number) else self._discard_overdue(number)
            case SessionEventReceived(number, kind):
                if not self._is_current(number):
                    return []
                return [NotifyConnection(number, kind is SessionEvent.RECONNECTED)]
            case ValidityChecked(number, left_s):
                if not self._is_current(number):
                    return []
                return [CheckValidity(number, left_s)] if left_s > 0 else self._down("overdue")
            case GraceEnded(number):
                return self._discard_overdue(number)
            case Stopped():
                self._is_wanted = False
                return [*self._discard_overdue(self._overdue), *(self._down("closed") if self._is_up else [])]
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
        effects: list[Effect] = [NotifyDown(ended, reason)]
        if reason == "overdue":
            effects += self._discard_overdue(self._overdue)
            self._overdue = ended
        else:
            effects.append(Discard(ended))
        return [*effects, *(self._open() if self._is_wanted else [])]

    def _discard_overdue(self, number: int | None) -> list[Effect]:
        """Close the session `number` if it is the overdue one."""
        if number is None or number != self._overdue:
            return []
        self._overdue = None
        return [Discard(number)]


# the shell ------------------------------------------------------------------------------------------------------------
class Lease:
    """One session as its users see it. Once ended it stays ended."""

    def __init__(self, name: str, session: Session, clock: Clock, on_overdue: Callable[[], None]) -> None:
        self.name = name
        self.session = session
        self._clock = clock
        self._on_overdue = on_overdue
        self._ended: str | None = None

    @property
    def is_valid(self) -> bool:
        """True if the store cannot have ended it. Check before every action that must not be done twice."""
        if self._ended is None and (self.session.is_lost or self._clock.monotonic() >= self.session.valid_until):
            self._on_overdue()
        return self._ended is None

    @property
    def ended(self) -> str | None:
        """Why it ended; None while it is valid."""
        return self._ended

    def check(self) -> None:
        if not self.is_valid:
            raise SessionLost(f"session {self.name} has ended ({self._ended})")

    def end(self, reason: str) -> None:
        self._ended = self._ended or reason


@dataclass(frozen=True, slots=True)
class SessionUp:
    """A session is up, the first or a new one: put the ephemeral keys (again)."""

    lease: Lease


@dataclass(frozen=True, slots=True)
class SessionDown:
    lease: Lease
    reason: str


@dataclass(frozen=True, slots=True)
class ConnectionChanged:
    """The store is unreachable, or reachable again with the same session."""

    lease: Lease
    is_connected: bool


KeeperEvent = SessionUp | SessionDown | ConnectionChanged


@dataclass(slots=True)
class _KeptSession:
    lease: Lease
    unlisten: Callable[[], None]
    timer: Timer | None = field(default=None)


class SessionKeeper:
    """`name` is for display. Recipes mark their writes with `instance`, which is unique over processes and restarts.

    Otherwise a restarted process would take writes of its previous run for its own.
    """

    def __init__(
        self,
        store: MetadataStore,
        *,
        name: str,
        ttl_ms: int,
        clock: Clock,
        chance: Chance,
        retry_delays: RetryDelays = RETRY_DELAYS,
    ) -> None:
        if not name or any(letter.isspace() for letter in name):
            raise ValueError(f"the name of a session keeper must not contain spaces: {name!r}")
        self.store, self.clock, self.chance, self.retry_delays = store, clock, chance, retry_delays
        self._instance = f"{name}~{int(chance.random() * 2**48):012x}"
        self._ttl_ms = ttl_ms
        self._machine = KeeperMachine()
        self._kept: dict[int, _KeptSession] = {}
        self._lease: Lease | None = None
        self._up = asyncio.Event()
        self._listeners: list[Callable[[KeeperEvent], None]] = []
        self._tickets = 0
        self._pause: Timer | None = None
        self._tasks = TaskOwner("session-keeper")

    @property
    def instance(self) -> str:
        return self._instance

    @property
    def lease(self) -> Lease | None:
        """The present session; None while there is none."""
        return self._lease

    def ticket(self) -> str:
        """A unique name for one user of this keeper."""
        self._tickets += 1
        return f"{self._instance}-{self._tickets}"

    def listen(self, callback: Callable[[KeeperEvent], None]) -> Callable[[], None]:
        """Call `callback` in the loop, in order, for every event from now on. `lease` has the present state."""
        self._listeners.append(callback)
        return lambda: self._listeners.remove(callback) if callback in self._listeners else None

    async def wait_lease(self, seconds: float) -> Lease:
        """The session; TimeoutError if there is none within `seconds`."""
        async with asyncio.timeout(seconds):
            while True:
                if self._lease is not None and self._lease.is_valid:
                    return self._lease
                await self._up.wait()

    async def __aenter__(self) -> Self:
        self._post(Started())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End the session, and with it its ephemeral keys. Safe to repeat."""
        self._post(Stopped())
        if self._pause is not None:
            self._pause.cancel()
        await self._tasks.drain(self.retry_delays.answer_s)
        await self._tasks.drain(self.retry_delays.answer_s)  # closes a session that was being opened
        await self._tasks.close()

    def _post(self, event: Event) -> None:
        for effect in self._machine.handle(event):
            self._perform(effect)

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Open(number):
                self._tasks.spawn(self._open(number), f"open-{number}")
            case Pause(failures):
                seconds = self.retry_delays.retry_after(failures, self.chance.random())
                self._pause = self.clock.call_later(seconds, lambda: self._post(PauseEnded()))
            case CheckValidity(number, seconds):
                self._kept[number].timer = self.clock.call_later(seconds, lambda: self._check_validity(number))
            case StartGrace(number):
                kept = self._kept[number]
                seconds = kept.lease.session.ttl_ms / 1000
                kept.timer = self.clock.call_later(seconds, lambda: self._post(GraceEnded(number)))
            case Discard(number):
                self._discard(number)
            case NotifyUp(number):
                self._lease = self._kept[number].lease
                self._up.set()
                log.info("metadata session opened", extra={"session": self._lease.name})
                self._notify(SessionUp(self._lease))
            case NotifyDown(number, reason):
                lease = self._kept[number].lease
                lease.end(reason)
                self._lease = None
                self._up.clear()
                log.info("metadata session ended", extra={"session": lease.name, "reason": reason})
                self._notify(SessionDown(lease, reason))
            case NotifyConnection(number, is_connected):
                self._notify(ConnectionChanged(self._kept[number].lease, is_connected))
            case _:
                assert_never(effect)

    def _notify(self, event: KeeperEvent) -> None:
        for listener in tuple(self._listeners):
            listener(event)

    def _check_validity(self, number: int) -> None:
        kept = self._kept.get(number)
        if kept is not None:
            left_s = 0.0 if kept.lease.session.is_lost else kept.lease.session.valid_until - self.clock.monotonic()
            self._post(ValidityChecked(number, left_s))

    async def _open(self, number: int) -> None:
        try:
            async with asyncio.timeout(self.retry_delays.answer_s):
                session = await self.store.open_session(self._ttl_ms)
        except (Error, TimeoutError) as error:
            log.warning("metadata session not opened; retrying", extra={"reason": str(error) or "no answer"})
            self._post(OpenFailed())
            return
        lease = Lease(f"{self._instance}.{number}", session, self.clock, lambda: self._check_validity(number))
        self._kept[number] = _KeptSession(
            lease, session.listen(lambda event: self._post(SessionEventReceived(number, event)))
        )
        left_s = 0.0 if session.is_lost else session.valid_until - self.clock.monotonic()
        self._post(Opened(left_s))

    def _discard(self, number: int) -> None:
        kept = self._kept.pop(number)
        kept.unlisten()
        if kept.timer is not None:
            kept.timer.cancel()
        kept.lease.end("discarded")
        self._tasks.spawn(self._close_session(kept.lease), f"close-{number}")

    async def _close_session(self, lease: Lease) -> None:
        try:
            async with asyncio.timeout(self.retry_delays.answer_s):
                await lease.session.close()
        except (Error, TimeoutError) as error:  # the store ends it after its ttl
            log.info("metadata session not closed; it will expire", extra={"session": lease.name, "reason": str(error)})
