"""The director: decides the next slot table from the present one and the members. Never awaits.

One write of the table is in flight at a time. The slots of a vanished broker incarnation are reassigned in three
durable steps, in this order:

    table lists it as dead  →  its log is fenced and recovered  →  table names the next holders

A director that dies in between leaves the table as it is, and the next director continues from there. A log may be
recovered twice without harm (see `storage/log/recovery.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import assert_never

from anabranch.cluster.load_balancing import exchange_slots
from anabranch.cluster.slot_assignment import Member, balance, fill
from anabranch.cluster.slot_table import Table
from anabranch.model.broker_incarnation import BrokerIncarnation

Stamp = int | None
"""The version of a table that was read; None when there is none yet."""


# events ---------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class TableSeen:
    """The stored table (an empty one with stamp None when there is no record)."""

    table: Table
    stamp: Stamp


@dataclass(frozen=True, slots=True)
class MembersSeen:
    """The brokers that are registered at the moment."""

    members: Mapping[str, Member]


@dataclass(frozen=True, slots=True)
class TableSaved:
    """The last requested write is stored."""

    stamp: int


@dataclass(frozen=True, slots=True)
class TableRaced:
    """The write was not stored, or its outcome is unknown: read the table again."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """The log of this incarnation is fenced, and its entries are in the ledger files."""

    incarnation: BrokerIncarnation


@dataclass(frozen=True, slots=True)
class RecoveryFailed:
    """The recovery is tried again after a pause."""

    incarnation: BrokerIncarnation


@dataclass(frozen=True, slots=True)
class Waited:
    """Brokers that lost their session together with the director had time to register again."""


Event = TableSeen | MembersSeen | TableSaved | TableRaced | Recovered | RecoveryFailed | Waited


# effects --------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class ReadTable:
    """Answered by TableSeen."""


@dataclass(frozen=True, slots=True)
class SaveTable:
    """Compare-and-set; answered by TableSaved or TableRaced."""

    table: Table
    expected: Stamp
    reason: str


@dataclass(frozen=True, slots=True)
class Recover:
    """Fence the log of an incarnation and write it to the ledger files; answered by Recovered or RecoveryFailed."""

    incarnation: BrokerIncarnation


@dataclass(frozen=True, slots=True)
class StepDown:
    """A director with a higher term has written the table: this one has lost the office."""

    term: int


Effect = ReadTable | SaveTable | Recover | StepDown


class Director:
    """One term. A new director is made after each election; its first events are the table, then the members.

    `is_patient`: this broker lost its own session a moment ago, so the store may have been unavailable for all brokers.
    No broker is declared dead before `Waited`.
    """

    def __init__(self, term: int, is_patient: bool = False) -> None:
        self._term = term
        self._is_patient = is_patient
        self._table: Table | None = None
        self._stamp: Stamp = None
        self._members: Mapping[str, Member] | None = None
        self._saving: Table | None = None
        self._newest: TableSeen | None = None  # seen while a write was in flight
        self._floor = 0  # serial; older tables are ignored
        self._recovering: set[BrokerIncarnation] = set()
        self._recovered: set[BrokerIncarnation] = set()
        self._is_over = False

    def handle(self, event: Event) -> list[Effect]:
        if self._is_over:
            return []
        match event:
            case TableSeen(table, stamp):
                if table.serial < self._floor:
                    return []  # notifications may arrive late
                if self._saving is not None:
                    self._newest = newer(self._newest, event)
                    return []  # decided when the outcome of the write is known
                self._table, self._stamp, self._floor = table, stamp, table.serial
            case MembersSeen(members):
                self._members = members
            case TableSaved(stamp):
                assert self._saving is not None
                seen = newer(TableSeen(self._saving, stamp), self._newest)
                self._table, self._stamp, self._floor = seen.table, seen.stamp, seen.table.serial
                self._saving = self._newest = None
            case TableRaced():
                self._saving = self._newest = self._table = None
                return [ReadTable()]
            case Waited():
                self._is_patient = False
            case Recovered(incarnation):
                self._recovering.discard(incarnation)
                self._recovered.add(incarnation)
            case RecoveryFailed(incarnation):
                self._recovering.discard(incarnation)
            case _:
                assert_never(event)
        return self._decide()

    def _decide(self) -> list[Effect]:
        table, members = self._table, self._members
        if table is None or members is None or self._saving is not None:
            return []
        if table.term > self._term:
            self._is_over = True
            return [StepDown(table.term)]
        effects: list[Effect] = []
        planned, reason = plan(table, members, frozenset(self._recovered), self._is_patient)
        for incarnation in sorted((table.dead & planned.dead) - self._recovering - self._recovered):
            self._recovering.add(incarnation)
            effects.append(Recover(incarnation))
        if planned != table:
            self._saving = replace(planned, term=self._term, serial=table.serial + 1)
            effects.append(SaveTable(self._saving, self._stamp, reason))
        return effects


def newer(one: TableSeen | None, other: TableSeen | None) -> TableSeen:
    """The table with the higher serial; at least one is not None."""
    found = [seen for seen in (one, other) if seen is not None]
    return max(found, key=lambda seen: seen.table.serial)


def plan(
    table: Table, members: Mapping[str, Member], recovered: frozenset[BrokerIncarnation], is_patient: bool = False
) -> tuple[Table, str]:
    """The next table and the reason. `recovered`: incarnations whose logs are known to be in the ledger files."""
    living = {member.incarnation for member in members.values() if not table.is_lost(member.incarnation)}
    followed = {  # a broker registers after it has recovered its own log, so its earlier incarnations are settled
        incarnation
        for incarnation in table.incarnations | table.dead
        if (member := members.get(incarnation.broker)) is not None and member.incarnation.number > incarnation.number
    }
    settled = (
        followed
        | (recovered & table.dead)
        | {incarnation for incarnation in table.incarnations | table.dead if table.is_over(incarnation)}
    )
    gone = frozenset() if is_patient else table.incarnations - living - settled - table.dead
    free = frozenset(number for number, slot in enumerate(table.slots) if slot.holder is None or slot.holder in settled)
    able = {name: member for name, member in members.items() if member.incarnation in living}
    planned = table.with_dead(gone)
    if able:
        planned = balance(fill(planned.settle(settled), able, free), able)
    if planned == table:  # nothing else to do: balance the load
        return exchange_slots(table, able), "load"
    reasons = [f"{incarnation} is gone" for incarnation in sorted(gone)] + [
        f"{incarnation} is settled" for incarnation in sorted(settled)
    ]
    return planned, "; ".join(reasons) or "balance"
