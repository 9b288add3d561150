"""How busy a broker is: what it measures, what of it is worth telling, and when. Pure; time is an argument.

Loads are bytes per second, in and out. A report names the total, the busiest slots and the idlest ones: enough for an
exact exchange of one for the other, small enough for a registration. It carries the serial of the table it was measured
under, so nobody decides on what was true before the last move.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from heapq import nlargest, nsmallest

BUSIEST, IDLEST = 16, 8
LOOK_SECONDS = 10.0  # between two looks, so also the least time between two reports
REST_SECONDS = 20.0  # so long must a table have stood: topics that came have been opened and measured by then
CHANGE = 0.25  # of the total: less is not worth a write
CHANGE_BYTES_MIN = 256 * 1024.0


@dataclass(frozen=True, slots=True)
class Load:
    """Of one broker, measured under the table `serial`."""

    serial: int
    total: float
    slots: tuple[tuple[int, float], ...]  # the busiest and the idlest it holds


def summarize(serial: int, held: frozenset[int], loads: Mapping[int, float]) -> Load:
    """`loads` by slot; slots that are not named are idle."""
    known = {slot: loads.get(slot, 0.0) for slot in sorted(held)}
    busiest = nlargest(BUSIEST, known.items(), key=lambda item: item[1])
    idlest = nsmallest(IDLEST, known.items(), key=lambda item: item[1])
    reported = dict(idlest) | dict(busiest)
    return Load(
        serial, round(sum(known.values())), tuple((slot, round(load)) for slot, load in sorted(reported.items()))
    )


class LoadReporter:
    """Says when a report is due: at first, after every change of the table, and when the load itself has changed."""

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
