"""Publish latencies in Pulsar's buckets. Pure."""

from __future__ import annotations

from bisect import bisect_left

BOUNDS_MS = (0.5, 1.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 1000.0)
NAMES = ("le_0_5", "le_1", "le_5", "le_10", "le_20", "le_50", "le_100", "le_200", "le_1000", "overflow")


class Latencies:
    """Counts per bucket, not cumulative, as in Pulsar."""

    __slots__ = ("buckets", "count", "sum_ms")

    def __init__(self) -> None:
        self.buckets = [0] * len(NAMES)
        self.count = 0
        self.sum_ms = 0.0

    def record(self, seconds: float) -> None:
        ms = seconds * 1000
        self.buckets[bisect_left(BOUNDS_MS, ms)] += 1
        self.count += 1
        self.sum_ms += ms
