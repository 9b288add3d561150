"""Rates and quantiles of about the last minute, from samples of counters.

A sample is taken when metrics are read, at most one in `SPACING_SECONDS`; there is no timer. The base of a rate is the
latest sample that is at least `WINDOW_SECONDS` old, or the oldest one. So the rate is over the last minute or a little
more if metrics are read at least once a minute, over the time since the last reading if not, and since the opening at
first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

WINDOW_SECONDS = 60.0
SPACING_SECONDS = 5.0
_NONE: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Sample:
    at: float  # seconds of a monotonic clock
    messages: int = 0
    bytes: int = 0
    latencies: Sequence[int] = _NONE


@dataclass(frozen=True, slots=True)
class Rates:
    messages: float  # per second
    bytes: float
    latencies: Sequence[int]  # counts per bucket within the window


class Window:
    def __init__(self, opened_at: float) -> None:
        self._samples: deque[Sample] = deque([Sample(opened_at)])

    def rates(self, now: Sample) -> Rates:
        samples = self._samples
        while len(samples) > 1 and samples[1].at <= now.at - WINDOW_SECONDS:
            samples.popleft()
        base = samples[0]
        if now.at - samples[-1].at >= SPACING_SECONDS:
            samples.append(now)
        before = base.latencies or [0] * len(now.latencies)
        seconds = now.at - base.at
        return Rates(
            (now.messages - base.messages) / seconds if seconds > 0 else 0.0,
            (now.bytes - base.bytes) / seconds if seconds > 0 else 0.0,
            [count - earlier for count, earlier in zip(now.latencies, before, strict=True)],
        )
