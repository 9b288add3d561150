"""Synthetic days for simulations: a diurnal curve, bursts, one hot key, a growing key set. The same each time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import cos, pi

from anabranch.model.autoscale.simulation import SLOTS, Traffic

DAY_SECONDS = 86_400


@dataclass(frozen=True, slots=True)
class Burst:
    at: float  # seconds from the beginning
    seconds: float
    factor: float


BURSTS = (
    Burst(3 * 3600, 300, 2.0),
    Burst(7 * 3600 + 600, 600, 1.5),
    Burst(9 * 3600 + 1800, 120, 2.0),
    Burst(12 * 3600, 900, 1.3),
    Burst(15 * 3600 + 300, 600, 1.5),
    Burst(20 * 3600, 300, 2.0),
)


@dataclass(frozen=True, slots=True)
class Scenario:
    """Traffic of one day. It is lowest at the beginning and end, and highest in the middle."""

    name: str
    about: str
    peak: float = 75_000.0  # messages per second
    ratio: float = 10.0  # of the peak to the lowest rate
    message_bytes: int = 1_000
    bursts: tuple[Burst, ...] = ()
    hot_key_share: float = 0.0  # of all messages that have one key
    hot_key: int = 0x5A5A
    slots_first: int = SLOTS  # the part of the ring that has keys in the beginning; all of it at the end

    def rate(self, at: float) -> float:
        lowest = self.peak / self.ratio
        rate = lowest + (self.peak - lowest) * (1 - cos(2 * pi * at / DAY_SECONDS)) / 2
        for burst in self.bursts:
            if burst.at <= at < burst.at + burst.seconds:
                rate *= burst.factor
        return rate

    def traffic(self, tick_seconds: float, *, times: float = 1.0) -> Iterator[Traffic]:
        count = int(DAY_SECONDS / tick_seconds)
        for number in range(count):
            rate = times * self.rate(number * tick_seconds)
            used = max(1, round(self.slots_first + (SLOTS - self.slots_first) * number / count))
            each = rate * (1 - self.hot_key_share) / used
            slots = dict.fromkeys(range(used), (each, each * self.message_bytes))
            hot = rate * self.hot_key_share
            yield Traffic(slots, {self.hot_key: (hot, hot * self.message_bytes)} if hot else {})


SCENARIOS = {
    one.name: one
    for one in (
        Scenario("steady", "the same rate all day", ratio=1.0),
        Scenario("diurnal", "ten times as much at noon as at night"),
        Scenario("bursts", "the diurnal day with six bursts of 2 to 15 minutes", bursts=BURSTS),
        Scenario("hot-key", "the diurnal day; one key has 30 % of all messages", hot_key_share=0.3),
        Scenario("growing", "the diurnal day; keys fill the ring from one end in the course of it", slots_first=8),
    )
}
