"""The gate that every metadata write passes. A store migration closes it briefly; an open gate costs next to nothing.

    async with gate.permit():        # an operation of several steps: one permit for all of it
        await store.put(…)           # its inner writes join the permit and never wait
        await store.put(…)

Closing waits until all permits are returned and makes new writes wait; a write that waits too long gets a retryable
error. Sessions and reads do not pass the gate: ephemeral keys are never moved, and reads do no harm.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextvars import Context, ContextVar, Token, copy_context
from types import TracebackType
from typing import Self

from anabranch.metadata.interface import (
    Capabilities,
    Expected,
    Item,
    MetadataStore,
    Session,
    Version,
    Versioned,
    Watch,
)
from anabranch.model.errors import Busy, Error

WAIT_MS_MAX = 10_000


class MetadataReadOnly(Error):
    """Metadata is being moved to another store, and writes were not allowed again in time."""

    code = "metadata-read-only"
    retryable = True


class WriteGate:
    def __init__(self, wait_ms_max: int = WAIT_MS_MAX) -> None:
        self._wait_ms_max = wait_ms_max
        self._opened = asyncio.Event()
        self._opened.set()
        self._held: set[Permit] = set()
        self._drained = asyncio.Event()

    @property
    def is_open(self) -> bool:
        return self._opened.is_set()

    @property
    def writes(self) -> int:
        """Number of permits held."""
        return len(self._held)

    def permit(self) -> Entry:
        return Entry(self)

    async def close(self, wait_ms_max: int = WAIT_MS_MAX) -> None:
        """Return once no permit is held. After `wait_ms_max` the gate opens again and Busy is raised."""
        if not self.is_open:
            raise Busy("the metadata write gate is already closed")
        self._opened.clear()
        self._drained.clear()
        try:
            if self._held:
                await asyncio.wait_for(self._drained.wait(), wait_ms_max / 1000)
        except TimeoutError as error:
            self.open()
            raise Busy(f"{self.writes} metadata writes did not finish within {wait_ms_max} ms") from error
        except BaseException:
            self.open()
            raise

    def open(self) -> None:
        self._opened.set()

    async def enter(self) -> Permit:
        """Join the permit that this task or its parent task holds, or wait for a new one."""
        mine = _current.get()
        while mine is not None:
            if mine.gate is self and mine.uses:
                mine.uses += 1
                return mine
            mine = mine.outer
        if not self._opened.is_set():
            try:
                async with asyncio.timeout(self._wait_ms_max / 1000):
                    while not self._opened.is_set():  # it may close again before this waiter runs
                        await self._opened.wait()
            except TimeoutError as error:
                raise MetadataReadOnly(f"metadata was read-only for more than {self._wait_ms_max} ms") from error
        permit = Permit(self, _current.get())
        self._held.add(permit)
        return permit

    def leave(self, permit: Permit) -> None:
        permit.uses -= 1
        if not permit.uses:
            self._held.discard(permit)
            if not self._held:
                self._drained.set()


class Permit:
    """Held while `uses` is above 0. A task that outlives the operation that started it needs a permit of its own."""

    __slots__ = ("gate", "outer", "uses")

    def __init__(self, gate: WriteGate, outer: Permit | None) -> None:
        self.gate = gate
        self.uses: int = 1
        self.outer = outer if outer is not None and outer.uses else None

    def adopt(self) -> Context:
        """Writes of the running task, and of tasks started in the returned context, join this permit from now on.

        The caller of `enter` still calls `leave`.
        """
        _current.set(self)
        return copy_context()


_current: ContextVar[Permit | None] = ContextVar("metadata_write_permit", default=None)


class Entry:
    """`async with gate.permit()`."""

    __slots__ = ("_gate", "_permit", "_token")

    def __init__(self, gate: WriteGate) -> None:
        self._gate = gate

    async def __aenter__(self) -> None:
        self._permit: Permit = await self._gate.enter()
        self._token: Token[Permit | None] = _current.set(self._permit)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _current.reset(self._token)
        self._gate.leave(self._permit)


class GatedStore:
    """Any store behind a gate. A migration works on `inner`."""

    def __init__(self, inner: MetadataStore, gate: WriteGate | None = None) -> None:
        self.inner = inner
        self.gate = gate or WriteGate()

    async def get(self, key: str) -> Versioned | None:
        return await self.inner.get(key)

    async def put(self, key: str, value: bytes, *, expected: Expected, session: Session | None = None) -> Version:
        async with self.gate.permit():
            return await self.inner.put(key, value, expected=expected, session=session)

    async def delete(self, key: str, *, expected: Expected) -> None:
        async with self.gate.permit():
            await self.inner.delete(key, expected=expected)

    async def sync(self) -> None:
        await self.inner.sync()

    async def children(self, key: str) -> list[str]:
        return await self.inner.children(key)

    def scan(self, prefix: str) -> AsyncIterator[tuple[str, Versioned]]:
        return self.inner.scan(prefix)

    async def open_session(self, ttl_ms: int) -> Session:
        return await self.inner.open_session(ttl_ms)

    def watch(self, prefix: str) -> Watch:
        return self.inner.watch(prefix)

    @property
    def capabilities(self) -> Capabilities:
        return self.inner.capabilities

    def bulk_scan(self, prefix: str) -> AsyncIterator[list[Item]]:
        return self.inner.bulk_scan(prefix)

    async def bulk_write(self, items: Sequence[Item], *, preserve: bool) -> None:
        async with self.gate.permit():
            await self.inner.bulk_write(items, preserve=preserve)

    async def bulk_delete(self, keys: Sequence[str]) -> None:
        async with self.gate.permit():
            await self.inner.bulk_delete(keys)

    async def raise_versions(self, floor: Version) -> None:
        async with self.gate.permit():
            await self.inner.raise_versions(floor)

    async def open(self) -> None:
        await self.inner.open()

    async def close(self) -> None:
        await self.inner.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
