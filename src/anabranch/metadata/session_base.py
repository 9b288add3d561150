"""Base of the backends' sessions: listeners, and the single transition to lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from anabranch.metadata.interface import SessionEvent


class SessionBase:
    """`notify` passes events to the listeners; LOST is the last of them and is passed once."""

    def __init__(self, ttl_ms: int) -> None:
        self._ttl_ms = ttl_ms
        self._lost = asyncio.Event()
        self._listeners: dict[object, Callable[[SessionEvent], None]] = {}

    @property
    def ttl_ms(self) -> int:
        return self._ttl_ms

    @property
    def is_lost(self) -> bool:
        return self._lost.is_set()

    async def wait_lost(self) -> None:
        await self._lost.wait()

    def listen(self, callback: Callable[[SessionEvent], None]) -> Callable[[], None]:
        ticket = object()
        self._listeners[ticket] = callback

        def end() -> None:
            self._listeners.pop(ticket, None)

        return end

    def notify(self, event: SessionEvent) -> None:
        if self.is_lost:
            return
        if event is SessionEvent.LOST:
            self._lost.set()
        for callback in tuple(self._listeners.values()):
            callback(event)
