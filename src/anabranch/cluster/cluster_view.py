"""What one broker knows of its cluster: the latest slot table it saw and the card of everybody who is registered.

Answers where a topic is from these two alone. Pure: it is told, it never looks; what it says may be old.
"""

from __future__ import annotations

from collections.abc import Mapping

from anabranch.cluster.broker_info import BrokerInfo
from anabranch.cluster.slot_table import Table
from anabranch.cluster.slots import slot_of
from anabranch.model.broker_incarnation import BrokerIncarnation


class ClusterView:
    def __init__(self) -> None:
        self.table = Table()
        self.brokers: Mapping[str, BrokerInfo] = {}

    def note_table(self, table: Table) -> None:
        """An earlier one than we know comes too late."""
        if table.serial >= self.table.serial:
            self.table = table

    def info_at(self, incarnation: BrokerIncarnation) -> BrokerInfo | None:
        """None: that life of the broker is not registered (any more)."""
        info = self.brokers.get(incarnation.broker)
        return info if info is not None and info.broker_incarnation == incarnation else None

    def owner_info(self, topic: str) -> BrokerInfo | None:
        """Of the broker that serves a topic; None: nobody does at the moment."""
        incarnation = self.table.slots[slot_of(topic)].holder
        return None if incarnation is None or self.table.is_lost(incarnation) else self.info_at(incarnation)

    def ownership_epoch(self, topic: str, incarnation: BrokerIncarnation) -> int | None:
        """The epoch in which this seat holds the topic's slot; None: it does not."""
        slot = self.table.slots[slot_of(topic)]
        return slot.epoch if slot.holder == incarnation else None

    def owner_epoch(self, topic: str) -> int:
        """Another number whenever the topic's slot has another holder, or the same one in another life."""
        return self.table.slots[slot_of(topic)].epoch

    def is_moving(self, topic: str) -> bool:
        return self.table.slots[slot_of(topic)].next_holder is not None

    @property
    def has_free_slots(self) -> bool:
        return None in {slot.holder for slot in self.table.slots}

    def are_others_able(self, broker: str) -> bool:
        """Is there anybody else who takes slots?"""
        return any(info.broker != broker and not info.is_draining for info in self.brokers.values())

    def broker_on_other_volume(self, volume_id: str) -> BrokerInfo | None:
        """One who works on another volume: brokers of one cluster share one."""
        return next((info for info in self.brokers.values() if info.volume_id != volume_id), None)
