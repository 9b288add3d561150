"""Rates of growing counters over a rolling window. Pure: time and values are handed in, whenever somebody looks."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

WINDOW_SECONDS = 60.0
SAMPLES_MAX = 7


class Meter:
    """Several counters that are looked at together. The rate is that since the oldest look within the window, so the
    first look says 0; looks that follow each other closely are not remembered one by one.

    Whoever has one looks at least once in a window while its counters grow, and need not while they do not: when the
    last look is older than the window, they were at the window's edge what they were then."""

    __slots__ = ("_looks", "_samples_max", "_window")

    def __init__(self, window_seconds: float = WINDOW_SECONDS, samples_max: int = SAMPLES_MAX) -> None:
        self._window, self._samples_max = window_seconds, samples_max
        self._looks: deque[tuple[float, tuple[int, ...]]] = deque()

    def rates(self, now: float, values: Sequence[int]) -> tuple[float, ...]:
        looks, taken = self._looks, tuple(values)
        if looks and any(new < old for new, old in zip(taken, looks[-1][1], strict=True)):
            looks.clear()  # counted from the beginning again
        # One look from before the window stays as long as there is none at its edge.
        while len(looks) > 1 and looks[1][0] <= now - self._window:
            looks.popleft()
        if not looks:
            looks.append((now, taken))
            return (0.0,) * len(taken)
        if len(looks) == 1 and looks[0][0] < now - self._window:
            looks[0] = (now - self._window, looks[0][1])
        then, before = looks[0]
        if now - looks[-1][0] >= self._window / (self._samples_max - 1):
            looks.append((now, taken))
        passed = now - then
        if passed <= 0:
            return (0.0,) * len(taken)
        return tuple((new - old) / passed for new, old in zip(taken, before, strict=True))
