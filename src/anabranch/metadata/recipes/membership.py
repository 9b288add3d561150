"""Who is there: members register under a prefix with a value, and everybody sees the same list.

A registration lives with the keeper's session and is put again after every loss of it. An id that another process has
registered is waited for (`is_registered` stays False): it is gone when that process's session is.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from anabranch.metadata.interface import BadKey, MetadataStore, Versioned
from anabranch.metadata.recipes.key_claim import TellHeld, TellLost, TellWritten, Want, decode_claim
from anabranch.metadata.recipes.key_claim_runner import KeyClaimRunner, Told
from anabranch.metadata.recipes.session_keeper import SessionKeeper
from anabranch.metadata.recipes.subtree_mirror import Mirror
from anabranch.runtime.chance import Chance
from anabranch.runtime.clock import Clock
from anabranch.runtime.retry_delays import RETRY_DELAYS, RetryDelays


class Registration:
    """This process as a member. `async with` registers and leaves."""

    def __init__(self, keeper: SessionKeeper, prefix: str, member: str, value: bytes) -> None:
        if not member or "/" in member:
            raise BadKey(f"a member's id is one part of a path, not {member!r}")
        self._value = value
        self._written: bytes | None = None
        self._turned = asyncio.Event()
        self._holder = KeyClaimRunner(keeper, f"{prefix}/{member}", is_contended=False, told=self._hear)

    @property
    def is_registered(self) -> bool:
        """Are we there, as far as we know? (Another may think otherwise once the session is overdue.)"""
        lease = self._holder.held_lease
        return self._written is not None and lease is not None and lease.is_valid

    async def __aenter__(self) -> Self:
        self._holder.start()
        self._holder.post(Want(self._value))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._holder.close()

    async def wait_registered(self, seconds: float) -> None:
        """Until we are there with the value of now; TimeoutError when that takes longer (it is tried on)."""
        async with asyncio.timeout(seconds):
            while self._written != self._value:
                self._turned.clear()
                await self._turned.wait()

    async def update(self, value: bytes, seconds: float) -> None:
        """Another value (load, state); kept across lost sessions."""
        self._value = value
        self._holder.post(Want(value))
        await self.wait_registered(seconds)

    def _hear(self, told: Told) -> None:
        match told:
            case TellHeld() | TellLost():
                self._written = None
            case TellWritten(_, value):
                self._written = value
            case _:
                pass
        self._turned.set()


@dataclass(frozen=True, slots=True)
class Joined:
    member: str
    value: bytes


@dataclass(frozen=True, slots=True)
class Altered:
    """The same member, with another value or registered anew after a lost session."""

    member: str
    value: bytes


@dataclass(frozen=True, slots=True)
class Left:
    member: str


MemberEvent = Joined | Altered | Left


class Members:
    """Everybody's view of who is registered."""

    def __init__(
        self, store: MetadataStore, prefix: str, *, clock: Clock, chance: Chance, patience: RetryDelays = RETRY_DELAYS
    ) -> None:
        self._start = f"{prefix}/"
        self._mirror = Mirror(store, prefix, clock=clock, chance=chance, patience=patience)

    async def __aenter__(self) -> Self:
        await self._mirror.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._mirror.close()

    async def wait_ready(self, seconds: float) -> None:
        """Until the list has been read for the first time."""
        await self._mirror.wait_ready(seconds)

    @property
    def is_current(self) -> bool:
        """Is nothing known to be missing from the list?"""
        return self._mirror.is_current

    async def wait_current(self, seconds: float) -> None:
        await self._mirror.wait_current(seconds)

    def refresh(self) -> None:
        """Read the list again, with whatever the store has now."""
        self._mirror.refresh()

    @property
    def now(self) -> Mapping[str, bytes]:
        """Member id → value."""
        return {self._member(key): _value(found) for key, found in self._mirror.now.items() if self._is_member(key)}

    async def changes(self) -> AsyncIterator[MemberEvent]:
        """Those of now as joined, then whatever happens. A reader that falls far behind looks at `now`."""
        news = self._mirror.changes()
        try:
            for member, value in self.now.items():
                yield Joined(member, value)
            async for change in news:
                if not self._is_member(change.key):
                    continue
                member = self._member(change.key)
                if change.new is None:
                    yield Left(member)
                elif change.old is None:
                    yield Joined(member, _value(change.new))
                else:
                    yield Altered(member, _value(change.new))
        finally:
            news.close()

    def _is_member(self, key: str) -> bool:
        return key.startswith(self._start) and "/" not in key[len(self._start) :]

    def _member(self, key: str) -> str:
        return key[len(self._start) :]


def _value(found: Versioned) -> bytes:
    return decode_claim(found.value, found.version).value
