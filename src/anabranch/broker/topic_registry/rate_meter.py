"""Rates of growing counters over a rolling window. Pure: times and values are arguments."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

WINDOW_SECONDS = 60.0
SAMPLES_MAX = 7


class Meter:
    """Rates of several counters that are read together, since the oldest reading within the window; the first is 0.
    Readings that follow each other closely are not stored.

    While its counters grow, a meter must be read at least once per window. While they do not grow it need not be read:
    if the last reading is older than the window, the counters had the same values at the window's edge."""

    __slots__ = ("_readings", "_samples_max", "_window")

    def __init__(self, window_seconds: float = WINDOW_SECONDS, samples_max: int = SAMPLES_MAX) -> None:
        self._window, self._samples_max = window_seconds, samples_max
        self._readings: deque[tuple[float, tuple[int, ...]]] = deque()

    def rates(self, now: float, values: Sequence[int]) -> tuple[float, ...]:
        readings, taken = self._readings, tuple(values)
        if readings and any(new < old for new, old in zip(taken, readings[-1][1], strict=True)):
            readings.clear()  # the counters were reset
        # One reading from before the window is kept as long as there is none at its edge.
        while len(readings) > 1 and readings[1][0] <= now - self._window:
            readings.popleft()
        if not readings:
            readings.append((now, taken))
            return (0.0,) * len(taken)
        if len(readings) == 1 and readings[0][0] < now - self._window:
            readings[0] = (now - self._window, readings[0][1])
        then, before = readings[0]
        if now - readings[-1][0] >= self._window / (self._samples_max - 1):
            readings.append((now, taken))
        passed = now - then
        if passed <= 0:
            return (0.0,) * len(taken)
        return tuple((new - old) / passed for new, old in zip(taken, before, strict=True))
