"""Histogram of latencies. Buckets grow by a fifth, so a quantile is at most that much too high."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

FIRST_SECONDS = 0.00005
GROWTH = 1.2
BOUNDS: tuple[float, ...] = tuple(FIRST_SECONDS * GROWTH**step for step in range(80))  # the last one is 90 s
"""Upper bounds of the buckets, in seconds. One more bucket has everything above."""


class Latencies:
    """Counts since the beginning. Adding one costs a search in 80 bounds."""

    __slots__ = ("counts", "maximum", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.total = 0.0  # seconds
        self.maximum = 0.0

    def add(self, latency_s: float) -> None:
        self.counts[bisect_left(BOUNDS, latency_s)] += 1
        self.total += latency_s
        if latency_s > self.maximum:
            self.maximum = latency_s


def quantile(counts: Sequence[int], share: float, maximum: float = BOUNDS[-1]) -> float | None:
    """The upper bound of the bucket that has this share of all latencies, in seconds; None if there are none. Never
    above `maximum`, the highest latency that is known."""
    left = share * sum(counts)
    if not left:
        return None
    for bound, count in zip(BOUNDS, counts, strict=False):
        left -= count
        if left <= 0:
            return min(bound, maximum)
    return min(BOUNDS[-1], maximum)
