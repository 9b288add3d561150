"""Slots that change places because one broker is much busier than the others. A pure function of table and members.

Only exchanges: a busy slot for an idle one, so that everybody keeps as many as the balance of counts gave them, and the
two decisions never undo each other. Every exchange is exact (both loads were measured, under this very table) and
narrows the gap, so with constant loads it ends, and nothing ever comes back. Nothing happens before one broker is well
above the others, and then only as much as brings it near them: fluctuations move nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from anabranch.cluster.slot_assignment import Member
from anabranch.cluster.slot_table import Table
from anabranch.model.broker_incarnation import BrokerIncarnation

LOPSIDED = 1.25  # times the average: from here on something is done
LEVEL = 1.1  # times the average: here it is enough
LOAD_MIN = 1024 * 1024.0  # bytes per second above the average that are worth a move at all
GAIN = 0.002  # of the average: an exchange that wins less is not made (a slot of many that are equally busy wins 0.004)
EXCHANGES_MAX = 8  # in one go; the next ones are decided when these have been measured


def exchange_slots(table: Table, members: Mapping[str, Member]) -> Table:
    """Heirs for the slots to exchange; the table itself when it is not at rest, not measured, or level enough."""
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
    """A busy slot for the idlest one: the pair that leaves the two closest together. None: none is worth it."""
    if not giver or not taker:
        return None
    idle = min(taker, key=lambda slot: (taker[slot], slot))
    shifts = {slot: load - taker[idle] for slot, load in giver.items()}
    worth = {slot: shift for slot, shift in shifts.items() if gain < shift < gap - gain}
    if not worth:
        return None
    return min(worth, key=lambda slot: (abs(gap / 2 - worth[slot]), slot)), idle
