"""Membership: processes register under a prefix with a value, and all see the same list.

A registration lives with the keeper's session and is put again after every loss of it. If another process has
registered the id, the registration waits (`is_registered` stays False) until that process's session ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from anabranch.metadata.interface import BadKey, MetadataStore, Versioned
from anabranch.metadata.recipes.key_claim import Acquire, KeyHeld, KeyLost, KeyWritten, decode_claim
from anabranch.metadata.recipes.key_claim_runner import ClaimEvent, KeyClaimRunner
from anabranch.metadata.recipes.session_keeper import SessionKeeper
from anabranch.metadata.recipes.subtree_mirror import Mirror
from anabranch.runtime.chance import Chance
from anabranch.runtime.clock import Clock
from anabranch.runtime.retry_delays import RETRY_DELAYS, RetryDelays


class Registration:
    """This process as a member. `async with` registers it and removes it."""

    def __init__(self, keeper: SessionKeeper, prefix: str, member: str, value: bytes) -> None:
        if not member or "/" in member:
            raise BadKey(f"a member id is one part of a path, without slashes, not {member!r}")
        self._value = value
        self._written: bytes | None = None
        self._changed = asyncio.Event()
        self._claim = KeyClaimRunner(keeper, f"{prefix}/{member}", is_contended=False, on_event=self._on_claim_event)

    @property
    def is_registered(self) -> bool:
        """Is this process registered, as far as it knows? False once the session is overdue."""
        lease = self._claim.held_lease
        return self._written is not None and lease is not None and lease.is_valid

    async def __aenter__(self) -> Self:
        self._claim.start()
        self._claim.post(Acquire(self._value))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._claim.close()

    async def wait_registered(self, seconds: float) -> None:
        """Wait until registered with the present value; TimeoutError after `seconds` (it keeps trying)."""
        async with asyncio.timeout(seconds):
            while self._written != self._value:
                self._changed.clear()
                await self._changed.wait()

    async def update(self, value: bytes, seconds: float) -> None:
        """Store another value; it is kept over lost sessions."""
        self._value = value
        self._claim.post(Acquire(value))
        await self.wait_registered(seconds)

    def _on_claim_event(self, event: ClaimEvent) -> None:
        match event:
            case KeyHeld() | KeyLost():
                self._written = None
            case KeyWritten(_, value):
                self._written = value
            case _:
                pass
        self._changed.set()


@dataclass(frozen=True, slots=True)
class Joined:
    member: str
    value: bytes


@dataclass(frozen=True, slots=True)
class Altered:
    """The same member with another value, or registered again after a lost session."""

    member: str
    value: bytes


@dataclass(frozen=True, slots=True)
class Left:
    member: str


MemberEvent = Joined | Altered | Left


class Members:
    """The list of registered members."""

    def __init__(
        self,
        store: MetadataStore,
        prefix: str,
        *,
        clock: Clock,
        chance: Chance,
        retry_delays: RetryDelays = RETRY_DELAYS,
    ) -> None:
        self._start = f"{prefix}/"
        self._mirror = Mirror(store, prefix, clock=clock, chance=chance, retry_delays=retry_delays)

    async def __aenter__(self) -> Self:
        await self._mirror.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._mirror.close()

    async def wait_ready(self, seconds: float) -> None:
        """Wait until the list has been read for the first time."""
        await self._mirror.wait_ready(seconds)

    @property
    def is_current(self) -> bool:
        """False while a change of the list is known and not read yet."""
        return self._mirror.is_current

    async def wait_current(self, seconds: float) -> None:
        await self._mirror.wait_current(seconds)

    def refresh(self) -> None:
        """Read the list again."""
        self._mirror.refresh()

    @property
    def now(self) -> Mapping[str, bytes]:
        """Member id → value."""
        return {self._member(key): _value(found) for key, found in self._mirror.now.items() if self._is_member(key)}

    async def changes(self) -> AsyncIterator[MemberEvent]:
        """The present members as Joined, then every change. A reader that falls far behind reads `now`."""
        events = self._mirror.changes()
        try:
            for member, value in self.now.items():
                yield Joined(member, value)
            async for change in events:
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
            events.close()

    def _is_member(self, key: str) -> bool:
        return key.startswith(self._start) and "/" not in key[len(self._start) :]

    def _member(self, key: str) -> str:
        return key[len(self._start) :]


def _value(found: Versioned) -> bytes:
    return decode_claim(found.value, found.version).value
