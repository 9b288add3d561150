"""Acks that a stream consumer sends by itself (`ack_every`). `AckSchedule` decides; this shell has the timer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar

from anabranch.client.config import AckEvery, seconds
from anabranch.client.processing.ack_schedule import AckSchedule, Decision
from anabranch.runtime.clock import Clock, Timer

P = TypeVar("P")


class AutoAcks(Generic[P]):
    def __init__(self, every: AckEvery, ack: Callable[[P], None], clock: Clock) -> None:
        """`ack` is called on the event loop with a position; it must not raise."""
        self._schedule: AckSchedule[P] = AckSchedule(every.messages, has_interval=every.interval is not None)
        self._interval_s = 0.0 if every.interval is None else seconds(every.interval)
        self._ack = ack
        self._clock = clock
        self._timer: Timer | None = None
        self._is_closed = False
        self.handed_out = self._schedule.handed_out

    def receive_called(self) -> None:
        """The application calls a receive method: it is done with everything that it got before."""
        if self._is_closed:
            return
        match self._schedule.receive_called():
            case Decision.ACK:
                self._flush()
            case Decision.ARM:
                self._timer = self._clock.call_later(self._interval_s, partial(self._flush, is_timer=True))

    def set_urgent(self, is_urgent: bool) -> None:
        """Whether acks are needed at once, because a segment moves or its children wait."""
        self._schedule.is_urgent = is_urgent
        if is_urgent and not self._is_closed:
            self._flush()

    def close(self) -> None:
        """Acknowledge what is processed, and nothing later."""
        if not self._is_closed:
            self._flush()
            self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _flush(self, *, is_timer: bool = False) -> None:
        if (position := self._schedule.due(is_timer=is_timer)) is not None:
            self._ack(position)
