"""Rate limit of a copy, so that the process that copies can serve meanwhile."""

from __future__ import annotations

from anabranch.runtime.clock import Clock

LAG_S_MAX = 0.005
PROBE_S = 0.001
BACK_OFF_S_MAX = 0.1
ADAPTIVE_RECORDS = 250
UNLIMITED_RECORDS = 5_000
UNLIMITED = 0


class Pace:
    """`rate` is records per second; UNLIMITED, or None to adapt: the copy yields while the event loop lags."""

    def __init__(self, clock: Clock, rate: int | None) -> None:
        self._clock = clock
        self._rate = rate
        self._back_off_s = 0.0
        self._next = clock.monotonic()

    @property
    def page_records(self) -> int:
        """Largest page to work on between two calls of `wait`."""
        if self._rate is None:
            return ADAPTIVE_RECORDS
        return UNLIMITED_RECORDS if self._rate == UNLIMITED else max(1, min(ADAPTIVE_RECORDS, self._rate // 10))

    async def wait(self, records: int) -> None:
        """Called after each page of `records`."""
        if self._rate == UNLIMITED:
            return
        if self._rate is not None:
            now = self._clock.monotonic()
            self._next = max(self._next, now - 1.0) + records / self._rate
            if self._next > now:
                await self._clock.sleep(self._next - now)
            return
        began = self._clock.monotonic()
        await self._clock.sleep(PROBE_S)
        lag_s = self._clock.monotonic() - began - PROBE_S
        if lag_s > LAG_S_MAX:
            self._back_off_s = min(max(2 * self._back_off_s, LAG_S_MAX), BACK_OFF_S_MAX)
            await self._clock.sleep(self._back_off_s)
        else:
            self._back_off_s /= 2
