"""Leader election with fencing terms. The machines are `claim.ClaimMachine` and `term.TermMachine`; this is the shell.

A leader has a term, unique and growing over all time: across lost sessions, restarts of the store and a move to another
store. Its leadership ends, at the latest, at its session's `valid_until`, and nobody else is elected before. It calls
`leadership.check()` before every act, and sends the term along, so that who receives it can refuse lower ones.
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
    Amend,
    TellFree,
    TellHeld,
    TellLost,
    TellOther,
    TellWritten,
    Want,
    decode_claim,
)
from anabranch.metadata.recipes.key_claim_runner import KeyClaimRunner, Told
from anabranch.metadata.recipes.leader_term import (
    Effect,
    Event,
    RaiseTerm,
    ReadTerm,
    RestTerm,
    TellDeposed,
    TellElected,
    TermDoubtful,
    TermFailed,
    TermMachine,
    TermRaised,
    TermRecord,
    TermRested,
    TermSeen,
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
    """One term of office; over for good once it has ended."""

    def __init__(self, path: str, term: int, lease: Lease) -> None:
        self.path, self.term, self.lease = path, term, lease
        self._ended: str | None = None
        self._over = asyncio.Event()

    @property
    def ended(self) -> str | None:
        """Why it ended; None while nobody has said so."""
        return self._ended

    @property
    def is_valid(self) -> bool:
        return self._ended is None and self.lease.is_valid

    def check(self) -> None:
        """Raise NotLeader unless nobody else can lead at this moment."""
        if not self.is_valid:
            raise NotLeader(f"{self.path}: term {self.term} is over ({self._ended or self.lease.ended})")

    async def wait_ended(self) -> str:
        """Why it ended, once it has."""
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
    """Who leads, as others see it."""

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
        self._news: EventStream[ElectionEvent] = EventStream()
        self._turned = asyncio.Event()
        self._rest: Timer | None = None
        self._tasks = TaskOwner("election")
        self._holder = KeyClaimRunner(keeper, leader_key(path), is_contended=True, told=self._hear)

    @property
    def leadership(self) -> Leadership | None:
        """Ours, while we lead. Ask it to `check()` before acting."""
        return self._leadership

    def events(self) -> AsyncIterator[ElectionEvent]:
        """What happens to this candidate from now on; ends when it is closed."""
        return self._news.read()

    async def __aenter__(self) -> Self:
        self._holder.start()
        self.campaign()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def campaign(self) -> None:
        """Try to lead, until told otherwise."""
        self._holder.post(Want(encode_leader(0, self._candidate)))

    async def wait_elected(self, seconds: float) -> Leadership:
        """Our leadership; TimeoutError when we are not elected in that time (we go on trying)."""
        async with asyncio.timeout(seconds):
            while self._leadership is None or not self._leadership.is_valid:
                self._turned.clear()
                await self._turned.wait()
            return self._leadership

    async def resign(self, seconds: float) -> bool:
        """Stop leading at once and let others; True when the store has confirmed that the way is free."""
        return await self._holder.release(seconds)

    async def close(self) -> None:
        await self._holder.close()
        if self._rest is not None:
            self._rest.cancel()
        await self._tasks.close()
        self._news.close()

    def _hear(self, told: Told) -> None:
        match told:
            case TellHeld() | TellWritten() | TellLost():
                self._post(told)
            case TellFree() | TellOther():
                pass
            case _:
                assert_never(told)

    def _post(self, event: Event) -> None:
        for effect in self._machine.handle(event):
            self._perform(effect)

    def _perform(self, effect: Effect) -> None:
        match effect:
            case ReadTerm() | RaiseTerm():
                self._tasks.spawn(self._ask(effect), type(effect).__name__)
            case RestTerm(claim, failures):
                seconds = self._keeper.patience.retry_after(failures, self._keeper.chance.random())
                self._rest = self._keeper.clock.call_later(seconds, lambda: self._post(TermRested(claim)))
            case WriteLeader(claim, value):
                self._holder.post(Amend(claim, value))
            case TellElected(_, term):
                lease = self._holder.held_lease
                assert lease is not None
                self._leadership = Leadership(self._path, term, lease)
                self._news.tell(Elected(self._leadership))
                self._turned.set()
            case TellDeposed(_, reason):
                leadership, self._leadership = self._leadership, None
                assert leadership is not None
                leadership.end(reason)
                self._news.tell(Deposed(leadership, reason))
            case _:
                assert_never(effect)

    async def _ask(self, effect: ReadTerm | RaiseTerm) -> None:
        try:
            async with asyncio.timeout(self._keeper.patience.answer_s):
                answer = await self._answer(effect)
        except VersionMismatch:
            answer = TermDoubtful(effect.claim)
        except (StoreUnavailable, TimeoutError):
            is_read = isinstance(effect, ReadTerm)
            answer = TermFailed(effect.claim) if is_read else TermDoubtful(effect.claim)
        except Error:
            answer = TermFailed(effect.claim)
        self._post(answer)

    async def _answer(self, effect: ReadTerm | RaiseTerm) -> Event:
        match effect:
            case ReadTerm(claim, sync):
                if sync:
                    await self._store.sync()
                return TermSeen(claim, await read_term(self._store, self._path))
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
    """Who leads; None when nobody does, also while somebody is just being elected."""
    return _leader(await store.get(leader_key(path)))


def _leader(found: Versioned | None) -> Leader | None:
    if found is None:
        return None
    term, value = decode_leader(decode_claim(found.value, found.version).value)
    return Leader(term, value) if term else None
