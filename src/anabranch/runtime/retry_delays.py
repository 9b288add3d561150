"""How long recipes wait between tries. Values only; the chance is drawn by who waits."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RetryDelays:
    """`answer_s` bounds every single request; `spread_s` is the window over which many waiters scatter their tries."""

    answer_s: float = 10.0
    spread_s: float = 0.05
    retry_s: float = 0.05
    retry_s_max: float = 2.0

    def retry_after(self, failures: int, chance: float) -> float:
        """Seconds before try number `failures` + 1: doubling, and never two processes in step."""
        return min(self.retry_s * 2.0 ** min(max(failures - 1, 0), 16), self.retry_s_max) * (0.5 + chance / 2)

    def scatter(self, chance: float) -> float:
        return self.spread_s * chance


RETRY_DELAYS = RetryDelays()
