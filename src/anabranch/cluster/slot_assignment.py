"""Assignment of slots to brokers: a pure function of table and members. Sticky, balanced, fewest moves, deterministic.

Two separate steps: `fill` gives slots without a living holder a new one at once; `balance` then plans moves of slots
with living holders, as few as balance needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from anabranch.cluster.load_report import Load
from anabranch.cluster.slot_table import Table
from anabranch.model.broker_incarnation import BrokerIncarnation


@dataclass(frozen=True, slots=True)
class Member:
    """A registered broker."""

    incarnation: BrokerIncarnation
    is_draining: bool = False  # gives all slots away, gets none
    load: Load | None = None  # as last reported


def fill(table: Table, members: Mapping[str, Member], free: frozenset[int]) -> Table:
    """Free slots get holders: first an earlier incarnation's broker, else the broker with the fewest slots."""
    counts = _counts(table, members, free)
    if not counts:
        return table
    share = -(-len(table.slots) // len(counts))
    holders: dict[int, BrokerIncarnation | None] = {}
    for number in sorted(free):
        before = table.slots[number].holder
        again = members.get(before.broker) if before is not None else None
        if again is not None and again.incarnation in counts and counts[again.incarnation] < share:
            chosen = again.incarnation
        else:
            chosen = min(counts, key=lambda incarnation: (counts[incarnation], incarnation))
        counts[chosen] += 1
        holders[number] = chosen
    return table.with_holders(holders)


def balance(table: Table, members: Mapping[str, Member]) -> Table:
    """Plans moves; drops planned moves whose holder or next holder cannot take part any more."""
    able = {member.incarnation for member in members.values() if not member.is_draining}
    present = {member.incarnation for member in members.values()}
    dropped: dict[int, BrokerIncarnation | None] = {
        number: None
        for number, slot in enumerate(table.slots)
        if slot.next_holder is not None and (slot.next_holder not in able or slot.holder not in present)
    }
    table = table.with_next_holders(dropped)
    if not able:
        return table
    held: dict[BrokerIncarnation, list[int]] = {incarnation: [] for incarnation in present}
    for number, slot in enumerate(table.slots):
        incarnation = slot.next_holder or slot.holder
        if incarnation in held:
            held[incarnation].append(number)
    next_holders: dict[int, BrokerIncarnation | None] = {}
    givers = [incarnation for incarnation in sorted(present - able) if held[incarnation]]
    for incarnation in givers:
        for number in list(held[incarnation]):
            _give(table, held, next_holders, incarnation, number, min(able, key=lambda one: (len(held[one]), one)))
    while True:
        most = max(able, key=lambda one: (len(held[one]), one))
        least = min(able, key=lambda one: (len(held[one]), one))
        if len(held[most]) - len(held[least]) <= 1:
            break
        number = next((n for n in held[most] if table.slots[n].holder != most), held[most][-1])
        _give(table, held, next_holders, most, number, least)
    return table.with_next_holders(next_holders)


def _give(
    table: Table,
    held: dict[BrokerIncarnation, list[int]],
    next_holders: dict[int, BrokerIncarnation | None],
    giver: BrokerIncarnation,
    number: int,
    taker: BrokerIncarnation,
) -> None:
    held[giver].remove(number)
    held[taker].append(number)
    next_holders[number] = None if table.slots[number].holder == taker else taker


def _counts(table: Table, members: Mapping[str, Member], free: frozenset[int]) -> dict[BrokerIncarnation, int]:
    """Number of slots of each member that takes slots; planned moves count as done."""
    able = [member.incarnation for member in members.values() if not member.is_draining]
    if not able:  # a draining broker is better than none
        able = [member.incarnation for member in members.values()]
    counts = dict.fromkeys(able, 0)
    for number, slot in enumerate(table.slots):
        incarnation = slot.next_holder or slot.holder
        if number not in free and incarnation in counts:
            counts[incarnation] += 1
    return counts
