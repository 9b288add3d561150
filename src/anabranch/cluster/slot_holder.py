"""The slots of one broker: serves what the table gives it, hands over what has a next holder. Never awaits.

    held ─(next holder planned)→ closing ─(topics closed)→ closed ─(table names the next holder)→ handed over

A slot's topics are closed before another broker can serve them, because the holder itself writes the next holder into
the table. A slot that is taken away in any other way means that this broker incarnation was declared dead: it stops
serving everything at once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import assert_never

from anabranch.cluster.director import ReadTable, SaveTable, Stamp, TableRaced, TableSaved, TableSeen, newer
from anabranch.cluster.slot_table import Table
from anabranch.model.broker_incarnation import BrokerIncarnation


# events ---------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Closed:
    """The topics of these slots are durable and not served here any more."""

    slots: frozenset[int]


@dataclass(frozen=True, slots=True)
class CloseFailed:
    """Some of it may not be durable: only a recovery of this broker's log shows what was confirmed."""

    reason: str


Event = TableSeen | TableSaved | TableRaced | Closed | CloseFailed


# effects --------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Serve:
    """From now on this broker serves exactly these slots."""

    slots: frozenset[int]


@dataclass(frozen=True, slots=True)
class Close:
    """Close the topics of these slots and tell their clients the next holder; answered by Closed or CloseFailed."""

    next_holders: tuple[tuple[int, BrokerIncarnation], ...]


@dataclass(frozen=True, slots=True)
class StopServing:
    """Stop serving everything and confirm nothing; the broker joins again as a new incarnation."""

    reason: str


Effect = ReadTable | SaveTable | Serve | Close | StopServing


class SlotHolder:
    def __init__(self, incarnation: BrokerIncarnation) -> None:
        self.incarnation = incarnation
        self.serving: frozenset[int] = frozenset()
        self._table: Table | None = None
        self._stamp: Stamp = None
        self._closing: frozenset[int] = frozenset()
        self._closed: frozenset[int] = frozenset()
        self._saving: Table | None = None
        self._newest: TableSeen | None = None  # seen while a write was in flight
        self._floor = 0  # serial; older tables are ignored
        self._has_stopped = False

    def begin(self) -> list[Effect]:
        return [ReadTable()]

    @property
    def is_empty(self) -> bool:
        """Whether this broker holds no slot, as far as it knows; a drained broker may then leave."""
        return self._table is not None and not self._table.held_by(self.incarnation)

    @property
    def unsettled(self) -> frozenset[int]:
        """Slots that are closed or being closed here and have no new holder yet; their clients wait."""
        return self._closing | self._closed

    def handle(self, event: Event) -> list[Effect]:
        if self._has_stopped:
            return []
        match event:
            case TableSeen(table, stamp):
                if table.serial < self._floor:
                    return []
                if self._saving is not None:
                    self._newest = newer(self._newest, event)
                    return self._stop_serving("declared dead") if table.is_lost(self.incarnation) else []
                self._table, self._stamp, self._floor = table, stamp, table.serial
            case TableSaved(stamp):
                assert self._saving is not None
                seen = newer(TableSeen(self._saving, stamp), self._newest)
                self._table, self._stamp, self._floor = seen.table, seen.stamp, seen.table.serial
                self._saving = self._newest = None
            case TableRaced():
                self._saving = self._newest = None
                return [ReadTable()]
            case Closed(slots):
                self._closing -= slots
                self._closed |= slots
            case CloseFailed(reason):
                return self._stop_serving(reason)
            case _:
                assert_never(event)
        return self._decide()

    def _decide(self) -> list[Effect]:
        table = self._table
        if table is None or self._saving is not None:
            return []
        held = table.held_by(self.incarnation)
        taken = (self.serving | self._closing) - held
        if table.is_lost(self.incarnation) or taken:
            return self._stop_serving("declared dead" if table.is_lost(self.incarnation) else "slots were taken away")
        moving = table.moving_from(self.incarnation)
        self._closed &= held  # handed-over slots are done
        starts = {
            number: next_holder for number, next_holder in moving.items() if number not in self._closing | self._closed
        }
        effects: list[Effect] = []
        # If a planned move was dropped after the topics were closed, the slot is served again.
        serving = held - self._closing - frozenset(moving)
        self._closed -= serving
        if serving != self.serving:
            self.serving = serving
            effects.append(Serve(serving))
        if starts:
            self._closing |= frozenset(starts)
            effects.append(Close(tuple(sorted(starts.items()))))
        ready = {number: next_holder for number, next_holder in moving.items() if number in self._closed}
        if ready:
            self._saving = replace(table.with_holders(ready), serial=table.serial + 1)
            effects.append(SaveTable(self._saving, self._stamp, "handed over"))
        return effects

    def _stop_serving(self, reason: str) -> list[Effect]:
        self._has_stopped = True
        self.serving = self._closing = self._closed = frozenset()
        return [Serve(self.serving), StopServing(reason)]
