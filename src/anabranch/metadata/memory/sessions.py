"""Keep-alives of memory sessions, and the ordered delivery of events."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from anabranch.metadata.interface import Change, SessionEvent
from anabranch.metadata.session_base import SessionBase
from anabranch.runtime.clock import Clock, Timer

KEEP_ALIVES_PER_TTL = 3


class MemorySession(SessionBase):
    """The client's view of a session. `valid_until` is one ttl after the latest answered keep-alive was sent."""

    def __init__(
        self,
        ttl_ms: int,
        clock: Clock,
        close: Callable[[MemorySession], Awaitable[None]],
        keep_alive: Callable[[MemorySession], None],
    ) -> None:
        super().__init__(ttl_ms)
        self._clock = clock
        self._close = close
        self._keep_alive = keep_alive
        self._timer: Timer | None = None
        self._is_connected = True
        self._valid_until = clock.monotonic() + ttl_ms / 1000
        self.session_id = 0

    @property
    def valid_until(self) -> float:
        return self._valid_until

    async def close(self) -> None:
        await self._close(self)

    def on_granted(self, session_id: int) -> None:
        self.session_id = session_id

    def on_ended(self) -> None:
        """The data ended it. A connected client is notified at once, others after reconnecting."""
        if self._is_connected and not self.is_lost:
            self.keep_alive()

    def schedule_keep_alive(self) -> None:
        self._timer = self._clock.call_later(self._ttl_ms / 1000 / KEEP_ALIVES_PER_TTL, self._on_timer)

    def _on_timer(self) -> None:
        self.keep_alive()
        if not self.is_lost:
            self.schedule_keep_alive()

    def keep_alive(self) -> None:
        self._keep_alive(self)

    def on_keep_alive_answered(self, sent_at: float) -> None:
        self._valid_until = max(self._valid_until, sent_at + self._ttl_ms / 1000)
        self.set_connected(True)

    def set_connected(self, is_connected: bool) -> None:
        if is_connected != self._is_connected:
            self._is_connected = is_connected
            self.notify(SessionEvent.RECONNECTED if is_connected else SessionEvent.DISCONNECTED)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


class DelayedEvents:
    """Delivers events to the watches in order, each after its delay at the earliest."""

    def __init__(self, clock: Clock, publish: Callable[[Sequence[Change]], None]) -> None:
        self._clock = clock
        self._publish = publish
        self._waiting: deque[tuple[float, Sequence[Change]]] = deque()

    def add(self, changes: Sequence[Change], delay_s: float) -> None:
        if not self._waiting and not delay_s:
            self._publish(changes)
            return
        due = self._clock.monotonic() + delay_s
        self._waiting.append((max(due, self._waiting[-1][0]) if self._waiting else due, changes))
        if len(self._waiting) == 1:
            self._arm()

    def clear(self) -> None:
        """Drop the pending events. The timer may still fire, for later events or for none."""
        self._waiting.clear()

    def _arm(self) -> None:
        self._clock.call_later(max(0.0, self._waiting[0][0] - self._clock.monotonic()), self._on_timer)

    def _on_timer(self) -> None:
        now = self._clock.monotonic()
        while self._waiting and self._waiting[0][0] <= now:
            self._publish(self._waiting.popleft()[1])
        if self._waiting:
            self._arm()
