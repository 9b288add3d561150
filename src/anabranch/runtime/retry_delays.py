"""Delays between attempts of recipes. Values only; the caller draws the random numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RetryDelays:
    """`answer_s` bounds each request; `spread_s` is the window over which many waiters spread their attempts."""

    answer_s: float = 10.0
    spread_s: float = 0.05
    retry_s: float = 0.05
    retry_s_max: float = 2.0

    def retry_after(self, failures: int, chance: float) -> float:
        """Seconds before attempt `failures` + 1: doubling, with jitter so that processes do not retry in step."""
        return min(self.retry_s * 2.0 ** min(max(failures - 1, 0), 16), self.retry_s_max) * (0.5 + chance / 2)

    def scatter(self, chance: float) -> float:
        return self.spread_s * chance


RETRY_DELAYS = RetryDelays()
