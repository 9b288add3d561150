"""Slots that an administrator wants at a certain broker, as a change of the table. Pure.

The broker gives as many slots back as it gets, to those it got them from: the director finds the table balanced and
leaves it. Where it has not enough to give back, the director moves what is too much away again.
"""

from __future__ import annotations

from collections.abc import Iterable

from anabranch.cluster.slot_table import BrokerIncarnation, Table


def plan_move(table: Table, slots: Iterable[int], to: BrokerIncarnation) -> Table:
    """Heirs for the slots that another seat holds; slots without a living holder are the director's."""
    wanted = sorted(set(slots))
    givers: list[BrokerIncarnation] = []
    heirs: dict[int, BrokerIncarnation | None] = {}
    for number in wanted:
        slot = table.slots[number]
        if slot.holder == to:
            if slot.heir is not None:
                heirs[number] = None  # it stays
        elif slot.holder is not None and slot.holder not in table.dead and slot.heir != to:
            heirs[number] = to
            givers.append(slot.heir or slot.holder)
    spare = [
        number
        for number, slot in enumerate(table.slots)
        if slot.holder == to and slot.heir is None and number not in wanted
    ]
    heirs.update(zip(reversed(spare), givers, strict=False))
    return table.with_heirs(heirs)
