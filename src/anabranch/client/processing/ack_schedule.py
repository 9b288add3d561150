"""State machine of `ack_every`: what a stream consumer acknowledges by itself, and when.

    handed out ── the application calls receive again ──▶ processed ── every N messages, or after an interval ──▶ acked

The call of receive is the application's statement that it is done with everything it got before. So what the last call
returned is never acknowledged by itself, also not when the consumer closes. The machine reads no clock: `Decision.ARM`
asks its owner to call `due` after the interval.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Generic, TypeVar

P = TypeVar("P")


class Decision(Enum):
    NOTHING = auto()
    ARM = auto()  # call `due` after the interval
    ACK = auto()  # acknowledge what `due` returns


class AckSchedule(Generic[P]):
    """P is the position of a message in the stream; an ack of a position covers everything handed out before."""

    def __init__(self, messages: int | None, *, has_interval: bool) -> None:
        self._messages = messages
        self._has_interval = has_interval
        self._is_armed = False
        self.is_urgent = False  # acknowledge at every call: another consumer, or the next segments, wait for it
        self._latest: P | None = None
        self._handed_out = 0  # numbers of messages since the beginning
        self._processed: P | None = None
        self._processed_count = 0
        self._acked_count = 0

    def handed_out(self, position: P, count: int = 1) -> None:
        """The messages up to this position were returned to the application; `count` of them are new."""
        self._latest = position
        self._handed_out += count

    def receive_called(self) -> Decision:
        self._processed, self._processed_count = self._latest, self._handed_out
        waiting = self._processed_count - self._acked_count
        if not waiting:
            return Decision.NOTHING
        if self.is_urgent or (self._messages is not None and waiting >= self._messages):
            return Decision.ACK
        if self._has_interval and not self._is_armed:
            self._is_armed = True
            return Decision.ARM
        return Decision.NOTHING

    def due(self, *, is_timer: bool = False) -> P | None:
        """What to acknowledge now; None if everything that is processed is acknowledged."""
        if is_timer:
            self._is_armed = False
        if self._processed_count == self._acked_count:
            return None
        self._acked_count = self._processed_count
        return self._processed
