"""Subscriptions by which clients come to a segment before its topic's registry has made their cursors there.

Whoever comes asks the registry and waits for its answer: the cursor, or why there will be none. Knows a clock; must not
know segments, or who the registry is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from anabranch.model.errors import NotAllowed
from anabranch.runtime.clock import Clock

REGISTRY_SECONDS = 10.0  # how long a SUBSCRIBE by an unknown name waits for the registry
ASK_SECONDS = 1.0  # it is asked again, should its leader have changed meanwhile


class PendingCursors:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._answers: dict[str, asyncio.Event] = {}  # of names that somebody waits for
        self._denied: dict[str, str] = {}  # what the registry said to them instead of a cursor

    async def wait(self, name: str, *, is_there: Callable[[], bool], ask: Callable[[], None]) -> bool:
        """Is it there now? NotAllowed: it will not be. `ask` is called again and again, and may raise."""
        answered = self._answers.setdefault(name, asyncio.Event())
        until = self._clock.monotonic() + REGISTRY_SECONDS
        self._denied.pop(name, None)
        while not is_there() and name not in self._denied and self._clock.monotonic() < until:
            ask()
            try:
                async with asyncio.timeout(ASK_SECONDS):
                    await answered.wait()
            except TimeoutError:
                continue
        if (denied := self._denied.get(name)) is not None:
            self._answers.pop(name, None)
            raise NotAllowed(denied)
        if not is_there():
            self._answers.pop(name, None)
            return False
        return True

    def made(self, name: str) -> None:
        if (waiting := self._answers.pop(name, None)) is not None:
            waiting.set()

    def denied(self, name: str, reason: str) -> None:
        """The registry does not make it, and will not: who waits for it is told."""
        if name in self._answers:
            self._denied[name] = reason
            self._answers.pop(name).set()

    def look_again(self) -> None:
        """Everybody asks once more: to those who wait at a topic that closes, it says so."""
        for waiting in self._answers.values():
            waiting.set()
