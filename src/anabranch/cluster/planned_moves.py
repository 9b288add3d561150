"""A move of slots to one broker, asked for by an administrator, as a change of the table. Pure.

The broker gives as many slots back as it gets, to the brokers that give. So the table stays balanced, and the director
leaves it. If the broker has too few slots to give back, the director moves the surplus away again.
"""

from __future__ import annotations

from collections.abc import Iterable

from anabranch.cluster.slot_table import Table
from anabranch.model.broker_incarnation import BrokerIncarnation


def plan_move(table: Table, slots: Iterable[int], to: BrokerIncarnation) -> Table:
    """The table with `to` as next holder of the slots that others hold. Slots without a living holder are left to the
    director."""
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
