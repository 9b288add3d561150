"""Leader election with fencing terms: the asyncio shell of `ClaimMachine` and `TermMachine`.

A leader has a term that is unique and grows for ever: over lost sessions, restarts of the store and a move to another
store. Its leadership ends at its session's `valid_until` at the latest, and no other candidate is elected before. A
leader calls `leadership.check()` before every action and sends the term along, so that receivers can reject lower ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from types import TracebackType
from typing import Self, assert_never

from anabranch.metadata.interface import MetadataStore, StoreUnavailable, Versioned, VersionMismatch
from anabranch.metadata.recipes.event_stream import EventStream
from anabranch.metadata.recipes.key_claim import (
    Acquire,
    ChangeValue,
    KeyHeld,
    KeyLost,
    KeyReleased,
    KeyWritten,
    decode_claim,
)
from anabranch.metadata.recipes.key_claim_runner import ClaimEvent, KeyClaimRunner
from anabranch.metadata.recipes.leader_term import (
    Effect,
    Event,
    NotifyDeposed,
    NotifyElected,
    PauseTerm,
    RaiseTerm,
    ReadTerm,
    TermFailed,
    TermMachine,
    TermPauseEnded,
    TermRaised,
    TermRead,
    TermRecord,
    TermUncertain,
    WriteLeader,
    decode_leader,
    encode_leader,
)
from anabranch.metadata.recipes.session_keeper import Lease, SessionKeeper
from anabranch.model.errors import Error
from anabranch.runtime.clock import Timer
from anabranch.runtime.tasks import TaskOwner


class NotLeader(Error):
    """The leadership has ended, or may have."""

    code = "not-leader"
    retryable = True


class Leadership:
    """The leadership of one term. Once ended it stays ended."""

    def __init__(self, path: str, term: int, lease: Lease) -> None:
        self.path, self.term, self.lease = path, term, lease
        self._ended: str | None = None
        self._over = asyncio.Event()

    @property
    def ended(self) -> str | None:
        """Why it ended; None while its end is not known."""
        return self._ended

    @property
    def is_valid(self) -> bool:
        return self._ended is None and self.lease.is_valid

    def check(self) -> None:
        """Raise NotLeader if another candidate may lead at this moment."""
        if not self.is_valid:
            raise NotLeader(f"{self.path}: term {self.term} has ended ({self._ended or self.lease.ended})")

    async def wait_ended(self) -> str:
        """Wait for the end and return its reason."""
        await self._over.wait()
        return self._ended or ""

    def end(self, reason: str) -> None:
        self._ended = self._ended or reason
        self._over.set()


@dataclass(frozen=True, slots=True)
class Elected:
    leadership: Leadership


@dataclass(frozen=True, slots=True)
class Deposed:
    leadership: Leadership
    reason: str  # lost, overdue, closed (the session); deleted, taken (the key); released


ElectionEvent = Elected | Deposed


@dataclass(frozen=True, slots=True)
class Leader:
    """The present leader as stored."""

    term: int
    value: bytes


class Election:
    """A candidate. `async with` takes part; `resign` stops until `campaign` is called again."""

    def __init__(self, keeper: SessionKeeper, path: str, candidate: bytes) -> None:
        self._keeper = keeper
        self._store = keeper.store
        self._path = path
        self._candidate = candidate
        self._machine = TermMachine(candidate)
        self._leadership: Leadership | None = None
        self._events: EventStream[ElectionEvent] = EventStream()
        self._elected = asyncio.Event()
        self._pause: Timer | None = None
        self._tasks = TaskOwner("election")
        self._claim = KeyClaimRunner(keeper, leader_key(path), is_contended=True, on_event=self._on_claim_event)

    @property
    def leadership(self) -> Leadership | None:
        """The leadership while this candidate leads. Call its `check()` before acting."""
        return self._leadership

    def events(self) -> AsyncIterator[ElectionEvent]:
        """Events of this candidate from now on; ends when it is closed."""
        return self._events.read()

    async def __aenter__(self) -> Self:
        self._claim.start()
        self.campaign()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def campaign(self) -> None:
        """Try to lead until `resign` is called."""
        self._claim.post(Acquire(encode_leader(0, self._candidate)))

    async def wait_elected(self, seconds: float) -> Leadership:
        """The leadership; TimeoutError if not elected in that time (the candidate keeps trying)."""
        async with asyncio.timeout(seconds):
            while self._leadership is None or not self._leadership.is_valid:
                self._elected.clear()
                await self._elected.wait()
            return self._leadership

    async def resign(self, seconds: float) -> bool:
        """Stop leading at once; True if the store has confirmed that the leader key is released."""
        return await self._claim.release(seconds)

    async def close(self) -> None:
        await self._claim.close()
        if self._pause is not None:
            self._pause.cancel()
        await self._tasks.close()
        self._events.close()

    def _on_claim_event(self, event: ClaimEvent) -> None:
        match event:
            case KeyHeld() | KeyWritten() | KeyLost():
                self._post(event)
            case KeyReleased():
                pass
            case _:
                assert_never(event)

    def _post(self, event: Event) -> None:
        for effect in self._machine.handle(event):
            self._perform(effect)

    def _perform(self, effect: Effect) -> None:
        match effect:
            case ReadTerm() | RaiseTerm():
                self._tasks.spawn(self._ask(effect), type(effect).__name__)
            case PauseTerm(claim, failures):
                seconds = self._keeper.retry_delays.retry_after(failures, self._keeper.chance.random())
                self._pause = self._keeper.clock.call_later(seconds, lambda: self._post(TermPauseEnded(claim)))
            case WriteLeader(claim, value):
                self._claim.post(ChangeValue(claim, value))
            case NotifyElected(_, term):
                lease = self._claim.held_lease
                assert lease is not None
                self._leadership = Leadership(self._path, term, lease)
                self._events.publish(Elected(self._leadership))
                self._elected.set()
            case NotifyDeposed(_, reason):
                leadership, self._leadership = self._leadership, None
                assert leadership is not None
                leadership.end(reason)
                self._events.publish(Deposed(leadership, reason))
            case _:
                assert_never(effect)

    async def _ask(self, effect: ReadTerm | RaiseTerm) -> None:
        try:
            async with asyncio.timeout(self._keeper.retry_delays.answer_s):
                answer = await self._answer(effect)
        except VersionMismatch:
            answer = TermUncertain(effect.claim)
        except (StoreUnavailable, TimeoutError):
            is_read = isinstance(effect, ReadTerm)
            answer = TermFailed(effect.claim) if is_read else TermUncertain(effect.claim)
        except Error:
            answer = TermFailed(effect.claim)
        self._post(answer)

    async def _answer(self, effect: ReadTerm | RaiseTerm) -> Event:
        match effect:
            case ReadTerm(claim, sync):
                if sync:
                    await self._store.sync()
                return TermRead(claim, await read_term(self._store, self._path))
            case RaiseTerm(claim, term, expected):
                await self._store.put(term_key(self._path), TermRecord.encode(term, claim), expected=expected)
                return TermRaised(claim, term)
            case _:
                assert_never(effect)


def leader_key(path: str) -> str:
    return f"{path}/leader"


def term_key(path: str) -> str:
    return f"{path}/term"


async def read_term(store: MetadataStore, path: str) -> TermRecord | None:
    found = await store.get(term_key(path))
    return None if found is None else TermRecord.decode(found.value, found.version)


async def read_leader(store: MetadataStore, path: str) -> Leader | None:
    """The leader; None if there is none, also while a candidate is being elected."""
    return _leader(await store.get(leader_key(path)))


def _leader(found: Versioned | None) -> Leader | None:
    if found is None:
        return None
    term, value = decode_leader(decode_claim(found.value, found.version).value)
    return Leader(term, value) if term else None
