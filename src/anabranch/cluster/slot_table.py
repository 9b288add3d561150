"""The slot table: which broker incarnation holds which slot. A value with its codec; every change makes a new table."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from anabranch.cluster.slots import SLOTS
from anabranch.model.broker_incarnation import BrokerIncarnation
from anabranch.model.errors import Error

FORMAT = 1


class BadTable(Error):
    """This release cannot decode the stored slot table."""

    code = "bad-slot-table"


@dataclass(frozen=True, slots=True)
class Slot:
    holder: BrokerIncarnation | None = None
    epoch: int = 0  # ownership epoch: grows whenever the holder changes
    next_holder: BrokerIncarnation | None = None  # of a planned move; the present holder completes it


@dataclass(frozen=True, slots=True)
class Table:
    slots: tuple[Slot, ...] = (Slot(),) * SLOTS
    dead: frozenset[BrokerIncarnation] = frozenset()  # declared dead; their logs are not recovered yet
    term: int = 0  # of the director that wrote it last
    serial: int = 0  # grows with every write: orders tables
    over: frozenset[BrokerIncarnation] = (
        frozenset()
    )  # last one per broker: it and all earlier ones are fenced and recovered

    def is_lost(self, incarnation: BrokerIncarnation) -> bool:
        """Declared dead, recovered or not: it never serves again. A later incarnation of the broker may."""
        return incarnation in self.dead or self.is_over(incarnation)

    def is_over(self, incarnation: BrokerIncarnation) -> bool:
        return any(incarnation.broker == last.broker and incarnation.number <= last.number for last in self.over)

    def held_by(self, incarnation: BrokerIncarnation) -> frozenset[int]:
        return frozenset(number for number, slot in enumerate(self.slots) if slot.holder == incarnation)

    def moving_from(self, incarnation: BrokerIncarnation) -> dict[int, BrokerIncarnation]:
        """Slots that this incarnation has to hand over, with the next holders."""
        return {
            number: slot.next_holder
            for number, slot in enumerate(self.slots)
            if slot.holder == incarnation and slot.next_holder is not None
        }

    @property
    def incarnations(self) -> frozenset[BrokerIncarnation]:
        return frozenset(slot.holder for slot in self.slots if slot.holder is not None)

    def with_holders(self, holders: Mapping[int, BrokerIncarnation | None]) -> Table:
        """Sets holders and removes planned moves; the epoch grows where the holder changes."""
        slots = list(self.slots)
        for number, holder in holders.items():
            slot = slots[number]
            epoch = slot.epoch if slot.holder == holder else slot.epoch + 1
            slots[number] = Slot(holder, epoch)
        return replace(self, slots=tuple(slots))

    def with_next_holders(self, next_holders: Mapping[int, BrokerIncarnation | None]) -> Table:
        slots = list(self.slots)
        for number, next_holder in next_holders.items():
            slots[number] = replace(slots[number], next_holder=next_holder)
        return replace(self, slots=tuple(slots))

    def with_dead(self, incarnations: Iterable[BrokerIncarnation]) -> Table:
        return replace(self, dead=self.dead | frozenset(incarnations))

    def settle(self, incarnations: Iterable[BrokerIncarnation]) -> Table:
        """Their logs are in the ledger files: their slots are free, and these incarnations never serve again."""
        last = dict(self.over)
        for broker, number in incarnations:
            last[broker] = max(number, last.get(broker, number))
        over = frozenset(BrokerIncarnation(broker, number) for broker, number in last.items())
        return replace(self, dead=self.dead - frozenset(incarnations), over=over)


def encode_table(table: Table) -> bytes:
    """Incarnations are listed once and referenced by index, which keeps the record small."""
    incarnations = sorted(
        table.incarnations | table.dead | {slot.next_holder for slot in table.slots if slot.next_holder is not None}
    )
    number = {incarnation: index for index, incarnation in enumerate(incarnations)}
    rows = [
        [-1 if slot.holder is None else number[slot.holder], slot.epoch]
        + ([] if slot.next_holder is None else [number[slot.next_holder]])
        for slot in table.slots
    ]
    record = {
        "format": FORMAT,
        "term": table.term,
        "serial": table.serial,
        "seats": incarnations,
        "dead": sorted(number[incarnation] for incarnation in table.dead),
        "over": sorted(table.over),
        "slots": rows,
    }
    return json.dumps(record, separators=(",", ":")).encode()


def decode_table(data: bytes) -> Table:
    try:
        record: dict[str, Any] = json.loads(data)
        if record["format"] > FORMAT:
            raise BadTable(f"slot table has format {record['format']}, this release reads up to {FORMAT}")
        incarnations = [BrokerIncarnation(str(broker), int(number)) for broker, number in record["seats"]]
        rows = [tuple(row) for row in record["slots"]]
        known = {row: _slot(incarnations, *row) for row in set(rows)}  # most rows are equal
        slots = tuple(known[row] for row in rows)
        table = Table(
            slots,
            frozenset(incarnations[index] for index in record["dead"]),
            int(record["term"]),
            int(record["serial"]),
            frozenset(BrokerIncarnation(str(broker), int(number)) for broker, number in record["over"]),
        )
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise BadTable(f"slot table cannot be decoded: {error}") from error
    if len(table.slots) != SLOTS:
        raise BadTable(f"slot table has {len(table.slots)} slots, expected {SLOTS}")
    return table


def _slot(incarnations: list[BrokerIncarnation], holder: int, epoch: int, next_holder: int | None = None) -> Slot:
    return Slot(
        incarnations[holder] if holder >= 0 else None,
        int(epoch),
        None if next_holder is None else incarnations[next_holder],
    )
