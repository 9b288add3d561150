"""Load of a broker: what is reported, and when. Pure; time is an argument.

Loads are bytes per second, in and out. A report has the total, the busiest slots and the idlest slots: enough for an
exact exchange, small enough for a registration. It carries the serial of the table under which it was measured, so the
director never decides on loads from before the last move.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from heapq import nlargest, nsmallest

BUSIEST, IDLEST = 16, 8
LOOK_SECONDS = 10.0  # between two measurements, so also between two reports at least
REST_SECONDS = 20.0  # after a change of the table: moved topics are open and measured by then
CHANGE = 0.25  # of the total; smaller changes are not reported
CHANGE_BYTES_MIN = 256 * 1024.0


@dataclass(frozen=True, slots=True)
class Load:
    """Of one broker, measured under the table `serial`."""

    serial: int
    total: float
    slots: tuple[tuple[int, float], ...]  # the busiest and the idlest it holds


def summarize(serial: int, held: frozenset[int], loads: Mapping[int, float]) -> Load:
    """`loads` by slot; missing slots are idle."""
    known = {slot: loads.get(slot, 0.0) for slot in sorted(held)}
    busiest = nlargest(BUSIEST, known.items(), key=lambda item: item[1])
    idlest = nsmallest(IDLEST, known.items(), key=lambda item: item[1])
    reported = dict(idlest) | dict(busiest)
    return Load(
        serial, round(sum(known.values())), tuple((slot, round(load)) for slot, load in sorted(reported.items()))
    )


class LoadReporter:
    """Decides when a report is due: first, after each change of the table, and after a change of the load."""

    def __init__(self) -> None:
        self._serial = -1
        self._since = 0.0
        self._reported: Load | None = None

    def looked(self, now: float, serial: int, held: frozenset[int], loads: Mapping[int, float]) -> Load | None:
        if serial != self._serial:
            self._serial, self._since = serial, now
        if now - self._since < REST_SECONDS:
            return None
        load = summarize(serial, held, loads)
        if self._reported is not None and self._reported.serial == serial and not _differs(self._reported, load):
            return None
        self._reported = load
        return load


def _differs(old: Load, new: Load) -> bool:
    enough = max(CHANGE * max(old.total, new.total), CHANGE_BYTES_MIN)
    before, after = dict(old.slots), dict(new.slots)
    shifts = (abs(after[slot] - before[slot]) for slot in before.keys() & after.keys())
    return abs(new.total - old.total) > enough or max(shifts, default=0.0) > enough
