"""Exchanges slots between brokers when one of them carries much more load. A pure function of table and members.

Invariants:

- A busy slot is exchanged for an idle one, so every broker keeps its number of slots and `slot_assignment` does not
  undo the exchange.
- Both loads were measured under the present table, and each exchange narrows the gap. With constant loads the
  exchanges end, and no slot moves back.
- Nothing moves before one broker is well above the average, and then only as much as brings it near the average.
  Fluctuations move nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from anabranch.cluster.slot_assignment import Member
from anabranch.cluster.slot_table import Table
from anabranch.model.broker_incarnation import BrokerIncarnation

LOPSIDED = 1.25  # times the average: above this, slots are exchanged
LEVEL = 1.1  # times the average: below this, enough were exchanged
LOAD_MIN = 1024 * 1024.0  # bytes per second above the average; less is not worth a move
GAIN = 0.002  # of the average; an exchange must gain more (one of many equally busy slots gains 0.004)
EXCHANGES_MAX = 8  # per decision; the next ones are decided on new measurements


def exchange_slots(table: Table, members: Mapping[str, Member]) -> Table:
    """The table with next holders for the exchanged slots; unchanged while slots move, while a load is missing, or when
    the loads are even enough."""
    able = [member for member in members.values() if not member.is_draining]
    incarnations = {member.incarnation for member in able}
    loads: dict[BrokerIncarnation, float] = {}
    slots: dict[BrokerIncarnation, dict[int, float]] = {}
    for member in able:
        if member.load is None or member.load.serial != table.serial:
            return table
        loads[member.incarnation] = member.load.total
        slots[member.incarnation] = dict(member.load.slots)
    if len(able) < 2 or any(slot.next_holder is not None or slot.holder not in incarnations for slot in table.slots):
        return table
    mean = sum(loads.values()) / len(loads)
    if max(loads.values()) <= mean * LOPSIDED + LOAD_MIN:
        return table
    next_holders: dict[int, BrokerIncarnation | None] = {}
    while len(next_holders) < 2 * EXCHANGES_MAX:
        most = max(loads, key=lambda incarnation: (loads[incarnation], incarnation))
        least = min(loads, key=lambda incarnation: (loads[incarnation], incarnation))
        if loads[most] <= mean * LEVEL:
            break
        found = _exchange(slots[most], slots[least], loads[most] - loads[least], mean * GAIN)
        if found is None:
            break
        busy, idle = found
        shift = slots[most].pop(busy) - slots[least].pop(idle)
        next_holders[busy], next_holders[idle] = least, most
        loads[most] -= shift
        loads[least] += shift
    return table.with_next_holders(next_holders)


def _exchange(
    giver: Mapping[int, float], taker: Mapping[int, float], gap: float, gain: float
) -> tuple[int, int] | None:
    """A busy slot and the idlest one: the pair that brings both loads closest together. None: no pair gains enough."""
    if not giver or not taker:
        return None
    idle = min(taker, key=lambda slot: (taker[slot], slot))
    shifts = {slot: load - taker[idle] for slot, load in giver.items()}
    worth = {slot: shift for slot, shift in shifts.items() if gain < shift < gap - gain}
    if not worth:
        return None
    return min(worth, key=lambda slot: (abs(gap / 2 - worth[slot]), slot)), idle
