"""Slots that an administrator wants at a certain broker, as a change of the table. Pure.

The broker gives as many slots back as it gets, to those it got them from: the director finds the table balanced and
leaves it. Where it has not enough to give back, the director moves what is too much away again.
"""

from __future__ import annotations

from collections.abc import Iterable

from anabranch.cluster.slot_table import Table
from anabranch.model.broker_incarnation import BrokerIncarnation


def plan_move(table: Table, slots: Iterable[int], to: BrokerIncarnation) -> Table:
    """Heirs for the slots that another seat holds; slots without a living holder are the director's."""
    wanted = sorted(set(slots))
    givers: list[BrokerIncarnation] = []
    next_holders: dict[int, BrokerIncarnation | None] = {}
    for number in wanted:
        slot = table.slots[number]
        if slot.holder == to:
            if slot.next_holder is not None:
                next_holders[number] = None  # it stays
        elif slot.holder is not None and slot.holder not in table.dead and slot.next_holder != to:
            next_holders[number] = to
            givers.append(slot.next_holder or slot.holder)
    spare = [
        number
        for number, slot in enumerate(table.slots)
        if slot.holder == to and slot.next_holder is None and number not in wanted
    ]
    next_holders.update(zip(reversed(spare), givers, strict=False))
    return table.with_next_holders(next_holders)
