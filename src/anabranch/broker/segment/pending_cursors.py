"""SUBSCRIBEs that arrive at a segment before the topic's registry has created their cursor there.

Each asks the registry and waits for its answer: the cursor, or the reason why there will be none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from anabranch.model.errors import NotAllowed
from anabranch.runtime.clock import Clock

REGISTRY_SECONDS = 10.0  # a SUBSCRIBE with an unknown name waits so long for the registry
ASK_SECONDS = 1.0  # between two requests, because the leader may have changed


class PendingCursors:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._answers: dict[str, asyncio.Event] = {}  # by subscription, while a SUBSCRIBE waits
        self._denied: dict[str, str] = {}  # by subscription: reason of the registry's refusal

    async def wait(self, name: str, *, is_there: Callable[[], bool], ask: Callable[[], None]) -> bool:
        """Whether the cursor exists now. NotAllowed: the registry refused. `ask` is called repeatedly and may raise."""
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
        """The registry refuses the subscription: waiting requests fail with the reason."""
        if name in self._answers:
            self._denied[name] = reason
            self._answers.pop(name).set()

    def look_again(self) -> None:
        """Waiting requests call `ask` once more; it raises if the topic is closing."""
        for waiting in self._answers.values():
            waiting.set()
