"""Delivers the outcome of appends to their sinks, for all ledgers together, once per turn of the event loop.

Bookies confirm entries ledger by ledger. The broker flushes receipts and dispatches once per *group*, which is what has
been confirmed in one turn. A group waits while the broker's session is in doubt, because a later owner may have
recovered the ledgers in a moment when a bookie did not know of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Protocol

from anabranch.runtime.clock import Clock
from anabranch.runtime.logs import get_logger
from anabranch.storage.interface import Fenced, IgnoringListener, StoreListener

log = get_logger(__name__)

CONFIRM_AGAIN_S = 0.05


class Deliverable(Protocol):
    def deliver(self) -> None: ...

    def fail(self, error: Fenced) -> None: ...


class Delivery:
    def __init__(self, clock: Clock, writers: Callable[[], Iterable[Deliverable]]) -> None:
        """`writers`: all open ones, which fail when the session has ended."""
        self._clock, self._writers = clock, writers
        self._listener: StoreListener = IgnoringListener()
        self._ready: dict[Deliverable, None] = {}
        self._is_scheduled = False
        self.fenced: Fenced | None = None
        self.groups = 0

    def start(self, listener: StoreListener) -> None:
        self._listener = listener

    def add(self, writer: Deliverable) -> None:
        self._ready[writer] = None
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        try:
            if self.fenced is None and not self._listener.may_confirm():
                self._clock.call_later(CONFIRM_AGAIN_S, self._run)
                return
        except Fenced as error:
            self._fence(error)
        self._is_scheduled = False
        ready, self._ready = self._ready, {}
        for writer in ready:
            writer.deliver()
        self.groups += 1
        self._listener.on_group_end()
        self._listener.on_batches(len(ready))

    def _fence(self, error: Fenced) -> None:
        log.error("appends are refused until the broker restarts", extra={"reason": str(error)})
        self.fenced = error
        for writer in list(self._writers()):
            writer.fail(error)
        self._listener.on_fenced()
