"""A lock on a resource: one holder at a time, with a value that says who it is. The machine is `claim.ClaimMachine`.

The lock lives with the keeper's session. When that is lost the lock is (`LockLost`), and when a new one is there it is
tried again; if somebody else was faster, this one waits again. `held.check()` before every act that must not be done
by two: a holder that was paused past its session is stopped there, whatever it has or has not heard.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from types import TracebackType
from typing import Self, assert_never

from anabranch.metadata.interface import MetadataStore, StoreUnavailable
from anabranch.metadata.recipes.event_stream import EventStream
from anabranch.metadata.recipes.key_claim import (
    TellFree,
    TellHeld,
    TellLost,
    TellOther,
    TellWritten,
    Unwant,
    Want,
    decode_claim,
)
from anabranch.metadata.recipes.key_claim_runner import KeyClaimRunner, Told
from anabranch.metadata.recipes.session_keeper import Lease, SessionKeeper
from anabranch.model.errors import Error


class LockNotHeld(Error):
    """The lock is not ours, or not for certain any more."""

    code = "lock-not-held"
    retryable = True


class HeldLock:
    """One holding of a lock; over for good once it has ended."""

    def __init__(self, key: str, claim: str, lease: Lease) -> None:
        self.key, self.claim, self.lease = key, claim, lease
        self._ended: str | None = None

    @property
    def ended(self) -> str | None:
        """Why it ended; None while nobody has said so."""
        return self._ended

    @property
    def is_valid(self) -> bool:
        return self._ended is None and self.lease.is_valid

    def check(self) -> None:
        """Raise LockNotHeld unless nobody else can have the lock at this moment."""
        if not self.is_valid:
            raise LockNotHeld(f"{self.key}: the lock was lost ({self._ended or self.lease.ended})")

    def end(self, reason: str) -> None:
        self._ended = self._ended or reason


@dataclass(frozen=True, slots=True)
class LockAcquired:
    held: HeldLock


@dataclass(frozen=True, slots=True)
class LockLost:
    held: HeldLock
    reason: str  # lost, overdue, closed (the session); deleted, taken (the key); released


@dataclass(frozen=True, slots=True)
class LockBusy:
    """Somebody else has it; we wait."""

    value: bytes


LockEvent = LockAcquired | LockLost | LockBusy


class ResourceLock:
    """`async with` starts it; `acquire` tries until told otherwise, across lost sessions."""

    def __init__(self, keeper: SessionKeeper, key: str, value: bytes) -> None:
        self._key = key
        self._value = value
        self._held: HeldLock | None = None
        self._written: bytes | None = None
        self._news: EventStream[LockEvent] = EventStream()
        self._turned = asyncio.Event()
        self._holder = KeyClaimRunner(keeper, key, is_contended=True, told=self._hear)

    @property
    def held(self) -> HeldLock | None:
        """The holding of now. Ask it to `check()` before acting."""
        return self._held

    def events(self) -> AsyncIterator[LockEvent]:
        """What happens from now on; ends when the lock is closed."""
        return self._news.read()

    async def __aenter__(self) -> Self:
        self._holder.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def acquire(self, seconds: float) -> HeldLock:
        """Hold it; TimeoutError when that takes longer (then, and when cancelled, it is not tried any more)."""
        self._holder.post(Want(self._value))
        try:
            async with asyncio.timeout(seconds):
                while self._held is None or not self._held.is_valid:
                    await self._turn()
                return self._held
        except BaseException:
            self._holder.post(Unwant())
            raise

    async def update(self, value: bytes, seconds: float) -> None:
        """Write another value, and keep it across lost sessions. LockNotHeld when the lock is lost meanwhile."""
        held = self._held
        if held is None:
            raise LockNotHeld(f"{self._key}: the lock is not held")
        held.check()
        self._value = value
        self._holder.post(Want(value))
        async with asyncio.timeout(seconds):
            while self._held is held and self._written != value:
                await self._turn()
        if self._held is not held:
            held.check()

    async def release(self, seconds: float) -> bool:
        """Give it up at once; True when the store has confirmed that the key is gone."""
        return await self._holder.release(seconds)

    async def close(self) -> None:
        await self._holder.close()
        self._news.close()

    async def _turn(self) -> None:
        self._turned.clear()
        await self._turned.wait()

    def _hear(self, told: Told) -> None:
        match told:
            case TellHeld(claim):
                lease = self._holder.held_lease
                assert lease is not None
                self._held, self._written = HeldLock(self._key, claim, lease), None
                self._news.tell(LockAcquired(self._held))
            case TellWritten(_, value):
                self._written = value
            case TellLost(_, reason):
                held, self._held = self._held, None
                assert held is not None
                held.end(reason)
                self._news.tell(LockLost(held, reason))
            case TellOther(holding):
                self._news.tell(LockBusy(holding.value))
            case TellFree():
                pass
            case _:
                assert_never(told)
        self._turned.set()


async def read_lock(store: MetadataStore, key: str) -> bytes | None:
    """The value of who has the lock, None when it is free."""
    found = await store.get(key)
    return None if found is None else decode_claim(found.value, found.version).value


async def wait_released(store: MetadataStore, key: str, seconds: float) -> None:
    """Return once nobody has the lock; TimeoutError when that takes longer."""
    watch = store.watch(key)
    try:
        async with asyncio.timeout(seconds):
            while await store.get(key) is not None:
                if await anext(watch, None) is None:
                    raise StoreUnavailable("the metadata store was closed")
    finally:
        watch.close()
