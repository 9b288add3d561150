"""What travels between a memory store and its data by itself: signs of life of sessions, and events in their order."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from anabranch.metadata.interface import Change, SessionEvent
from anabranch.metadata.session_base import SessionLife
from anabranch.runtime.clock import Clock, Timer

BEATS_PER_TTL = 3


class MemorySession(SessionLife):
    """The client's view of a session. `valid_until` counts from the moment the last answered sign of life was sent."""

    def __init__(
        self,
        ttl_ms: int,
        clock: Clock,
        close: Callable[[MemorySession], Awaitable[None]],
        beat: Callable[[MemorySession], None],
    ) -> None:
        super().__init__(ttl_ms)
        self._clock = clock
        self._close = close
        self._beat = beat
        self._timer: Timer | None = None
        self._is_connected = True
        self._valid_until = clock.monotonic() + ttl_ms / 1000
        self.session_id = 0

    @property
    def valid_until(self) -> float:
        return self._valid_until

    async def close(self) -> None:
        await self._close(self)

    def granted(self, session_id: int) -> None:
        self.session_id = session_id

    def ended(self) -> None:
        """The data ended it. Who is connected hears of it at once, others when they are again."""
        if self._is_connected and not self.is_lost:
            self.beat()

    def beat_later(self) -> None:
        self._timer = self._clock.call_later(self._ttl_ms / 1000 / BEATS_PER_TTL, self._ring)

    def _ring(self) -> None:
        self.beat()
        if not self.is_lost:
            self.beat_later()

    def beat(self) -> None:
        self._beat(self)

    def beaten(self, sent_at: float) -> None:
        self._valid_until = max(self._valid_until, sent_at + self._ttl_ms / 1000)
        self.connected(True)

    def connected(self, is_connected: bool) -> None:
        if is_connected != self._is_connected:
            self._is_connected = is_connected
            self.tell(SessionEvent.RECONNECTED if is_connected else SessionEvent.DISCONNECTED)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


class EventLine:
    """Events reach the watches in the order they happened, each after its delay at the earliest."""

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
        """What is under way gets lost. The timer may still ring, for nothing or for what came meanwhile."""
        self._waiting.clear()

    def _arm(self) -> None:
        self._clock.call_later(max(0.0, self._waiting[0][0] - self._clock.monotonic()), self._ring)

    def _ring(self) -> None:
        now = self._clock.monotonic()
        while self._waiting and self._waiting[0][0] <= now:
            self._publish(self._waiting.popleft()[1])
        if self._waiting:
            self._arm()
