"""The director: sees table and members, decides the next table, has dead brokers' logs recovered. Never awaits.

One write of the table is on its way at a time. Nothing is taken from a seat that vanished before three things happened
in this order, each of them durable: the table names it dead; its log is fenced and recovered; the table names the next
holders. A director that dies in between leaves the table as it is, and the next one goes on from there. Recovery may be
done twice; that is harmless (see `storage/log/recovery.py`).
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
    """The table as it stands (an empty one with stamp None when there is no record)."""

    table: Table
    stamp: Stamp


@dataclass(frozen=True, slots=True)
class MembersSeen:
    """Everybody who is registered at the moment."""

    members: Mapping[str, Member]


@dataclass(frozen=True, slots=True)
class TableSaved:
    """The write that was asked for last is in the store."""

    stamp: int


@dataclass(frozen=True, slots=True)
class TableRaced:
    """It is not there, or nobody knows: the table must be read again."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """The log of this seat is in the ledger files, and it can confirm nothing any more."""

    incarnation: BrokerIncarnation


@dataclass(frozen=True, slots=True)
class RecoveryFailed:
    """Try again after a while."""

    incarnation: BrokerIncarnation


@dataclass(frozen=True, slots=True)
class Waited:
    """Whoever lost its session together with the director has had the time to register again."""


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
    """Fence the log of a seat and bring it into the ledger files; answered by Recovered or RecoveryFailed."""

    incarnation: BrokerIncarnation


@dataclass(frozen=True, slots=True)
class StepDown:
    """Somebody with a higher term has written: we are the director no longer."""

    term: int


Effect = ReadTable | SaveTable | Recover | StepDown


class Director:
    """For one term of office; a new one is made after each election, and told the table and then the members.

    `is_patient`: our own session was lost a moment ago, so the store may have been away for all; nobody is declared
    dead before `Waited`.
    """

    def __init__(self, term: int, is_patient: bool = False) -> None:
        self._term = term
        self._is_patient = is_patient
        self._table: Table | None = None
        self._stamp: Stamp = None
        self._members: Mapping[str, Member] | None = None
        self._saving: Table | None = None
        self._newest: TableSeen | None = None  # seen while our own write was under way
        self._floor = 0  # no table earlier than this one counts any more
        self._recovering: set[BrokerIncarnation] = set()
        self._recovered: set[BrokerIncarnation] = set()
        self._is_over = False

    def handle(self, event: Event) -> list[Effect]:
        if self._is_over:
            return []
        match event:
            case TableSeen(table, stamp):
                if table.serial < self._floor:
                    return []  # hints may come late
                if self._saving is not None:
                    self._newest = newer(self._newest, event)
                    return []  # what comes of our own write decides
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
    """The later of two tables; at least one was seen."""
    found = [seen for seen in (one, other) if seen is not None]
    return max(found, key=lambda seen: seen.table.serial)


def plan(
    table: Table, members: Mapping[str, Member], recovered: frozenset[BrokerIncarnation], is_patient: bool = False
) -> tuple[Table, str]:
    """The next table, and why. `recovered`: seats whose logs are known to be in the ledger files."""
    living = {member.incarnation for member in members.values() if not table.is_lost(member.incarnation)}
    followed = {  # a broker registers only after it has recovered its own log: its earlier lives are settled
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
    if planned == table:  # at rest: only now loads count
        return exchange_slots(table, able), "load"
    reasons = [f"{incarnation} is gone" for incarnation in sorted(gone)] + [
        f"{incarnation} is settled" for incarnation in sorted(settled)
    ]
    return planned, "; ".join(reasons) or "balance"
