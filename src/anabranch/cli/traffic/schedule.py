"""Messages on a schedule: which are due, and their payloads. Pure; time is an argument.

The load is open loop. Message i is due at i / rate, whether or not earlier messages were answered, and its latency
counts from then. A broker that stalls cannot hide the stall by slowing the load down.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct

_STAMP = Struct(">d")
STAMP_BYTES = _STAMP.size


@dataclass(slots=True)
class Schedule:
    """Due times of `count` messages (0: endless) at `rate` per second (0: all at once)."""

    rate: float
    count: int
    began: float = 0.0
    taken: int = 0

    @property
    def is_over(self) -> bool:
        return bool(self.count) and self.taken >= self.count

    def due_at(self, index: int) -> float:
        return self.began + index / self.rate if self.rate else self.began

    def take_due(self, now: float, most: int) -> range:
        """The messages that are due now, at most so many; they count as taken."""
        ready = int((now - self.began) * self.rate) + 1 if self.rate else self.taken + most
        end = min(ready, self.taken + most, self.count or ready)
        found = range(self.taken, max(self.taken, end))
        self.taken = found.stop
        return found

    def wait_seconds(self, now: float) -> float:
        """Until the next message is due."""
        return max(0.0, self.due_at(self.taken) - now)


def stamped(due: float, size: int) -> bytes:
    """A payload of `size` bytes that starts with its due time, if it is long enough."""
    return _STAMP.pack(due).ljust(size, b".")[:size] if size >= STAMP_BYTES else b"." * size


def stamp_of(data: bytes) -> float | None:
    return _STAMP.unpack_from(data)[0] if len(data) >= STAMP_BYTES else None


def key_of(index: int, keys: int) -> str | None:
    return f"key-{index % keys}" if keys else None
