"""The one timer of a subscription's delayed messages: set for the earliest of them, moved only when that changes."""

from __future__ import annotations

from collections.abc import Callable

from anabranch.runtime.clock import Clock, Timer


class DelayAlarm:
    __slots__ = ("_clock", "_due_ms", "_ring", "_timer")

    def __init__(self, clock: Clock, ring: Callable[[], None]) -> None:
        self._clock = clock
        self._ring = ring
        self._timer: Timer | None = None
        self._due_ms: int | None = None

    def set(self, due_ms: int | None) -> None:
        """Ring then, not before; None: not at all. Called after every delivery: cheap when nothing changed."""
        if due_ms == self._due_ms and (self._timer is not None or due_ms is None):
            return
        self.stop()
        self._due_ms = due_ms
        if due_ms is not None:
            seconds = max(0.0, (due_ms - self._clock.now_ms()) / 1000)
            self._timer = self._clock.call_later(seconds + 0.001, self._over)

    def _over(self) -> None:
        self._timer = None
        self._ring()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
