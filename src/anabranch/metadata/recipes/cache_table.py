"""What a cache may remember and for how long: the machine under `cache.py`. No await, clock or chance.

Reads of one key follow each other (a *flight* each), so what they find never goes back in time. A hint that the key
changed makes the flight of that moment stale: who asked before may still have its answer, nobody who asks later, and it
is not kept. A flight that we have overtaken (by a write of our own, or by a read that had to be fresh) is of no use to
anybody: they read again.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

T = TypeVar("T")


class Flight:
    """One read of one key under way."""

    __slots__ = ("key", "is_synced", "is_stale", "is_overtaken")

    def __init__(self, key: str, is_synced: bool) -> None:
        self.key, self.is_synced = key, is_synced
        self.is_stale = False
        self.is_overtaken = False


class CacheTable(Generic[T]):
    """At most `entries_max` entries, the least recently used go first. `None` is an entry, too: known to be absent."""

    def __init__(self, entries_max: int) -> None:
        assert entries_max > 0
        self.entries: OrderedDict[str, T | None] = OrderedDict()
        self._entries_max = entries_max
        self._flights: dict[str, Flight] = {}
        self._is_trusted = True

    def flight(self, key: str) -> Flight | None:
        """The read of this key that is under way."""
        return self._flights.get(key)

    def begin(self, key: str, is_synced: bool = False) -> Flight:
        assert key not in self._flights, "reads of one key follow each other"
        flight = self._flights[key] = Flight(key, is_synced)
        return flight

    def finish(self, flight: Flight, found: T | None) -> None:
        """Keep what was found, unless it may be out of date already."""
        del self._flights[flight.key]
        if flight.is_stale or not self._is_trusted:
            return
        self.entries[flight.key] = found
        self.entries.move_to_end(flight.key)
        if len(self.entries) > self._entries_max:
            self.entries.popitem(last=False)

    def fail(self, flight: Flight) -> None:
        del self._flights[flight.key]

    def changed(self, key: str) -> None:
        """Somebody wrote this key."""
        self.entries.pop(key, None)
        if (flight := self._flights.get(key)) is not None:
            flight.is_stale = True

    def overtake(self, key: str) -> None:
        """We know, or are about to learn, something newer than any read that is under way."""
        self.changed(key)
        if (flight := self._flights.get(key)) is not None:
            flight.is_overtaken = True

    def forget(self) -> None:
        """Changes may have been missed."""
        self.entries.clear()
        for flight in self._flights.values():
            flight.is_stale = True

    def trust(self, is_trusted: bool) -> None:
        """Not trusted (the store is out of reach, no changes would be heard): nothing is kept."""
        self._is_trusted = is_trusted
        self.forget()
