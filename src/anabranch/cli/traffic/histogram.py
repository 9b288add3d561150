"""Latencies in buckets of two per cent: memory does not grow with the number of values. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, exp, log

_STEP = log(1.02)
_FLOOR = 1e-6  # seconds; whatever is shorter counts as this


class Histogram:
    def __init__(self) -> None:
        self._buckets: dict[int, int] = {}
        self.count = 0
        self.total = 0.0
        self.highest = 0.0

    def record(self, seconds: float, count: int = 1) -> None:
        bucket = ceil(log(max(seconds, _FLOOR) / _FLOOR) / _STEP)
        self._buckets[bucket] = self._buckets.get(bucket, 0) + count
        self.count += count
        self.total += seconds * count
        self.highest = max(self.highest, seconds)

    def percentile(self, percent: float) -> float:
        """Seconds within which `percent` of all values are, at most two per cent too high; 0 without values."""
        wanted = self.count * percent / 100
        for bucket, reached in self._cumulative():
            if reached >= wanted:
                return min(_FLOOR * exp(bucket * _STEP), self.highest)
        return 0.0

    def _cumulative(self) -> Iterator[tuple[int, int]]:
        reached = 0
        for bucket in sorted(self._buckets):
            reached += self._buckets[bucket]
            yield bucket, reached

    def summary_ms(self) -> dict[str, float]:
        """p50, p99, p99.9, mean and maximum in milliseconds."""
        figures = {f"p{percent:g}": self.percentile(percent) for percent in (50, 99, 99.9)}
        figures["mean"] = self.total / self.count if self.count else 0.0
        figures["max"] = self.highest
        return {name: round(seconds * 1000, 3) for name, seconds in figures.items()}
