"""What one broker knows of its cluster: the latest slot table and the registrations. Both may be out of date."""

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
        """Ignores a table that is older than the known one."""
        if table.serial >= self.table.serial:
            self.table = table

    def info_at(self, incarnation: BrokerIncarnation) -> BrokerInfo | None:
        """None: this incarnation is not registered (any more)."""
        info = self.brokers.get(incarnation.broker)
        return info if info is not None and info.broker_incarnation == incarnation else None

    def owner_info(self, topic: str) -> BrokerInfo | None:
        """The broker that serves the topic; None: no broker does at the moment."""
        incarnation = self.table.slots[slot_of(topic)].holder
        return None if incarnation is None or self.table.is_lost(incarnation) else self.info_at(incarnation)

    def ownership_epoch(self, topic: str, incarnation: BrokerIncarnation) -> int | None:
        """Epoch of the topic's slot if this incarnation holds it, else None."""
        slot = self.table.slots[slot_of(topic)]
        return slot.epoch if slot.holder == incarnation else None

    def owner_epoch(self, topic: str) -> int:
        """Epoch of the topic's slot: it changes with every change of the holding broker incarnation."""
        return self.table.slots[slot_of(topic)].epoch

    def is_moving(self, topic: str) -> bool:
        return self.table.slots[slot_of(topic)].next_holder is not None

    @property
    def has_free_slots(self) -> bool:
        return None in {slot.holder for slot in self.table.slots}

    def are_others_able(self, broker: str) -> bool:
        """Whether another broker can take slots."""
        return any(info.broker != broker and not info.is_draining for info in self.brokers.values())

    def broker_on_other_volume(self, volume_id: str) -> BrokerInfo | None:
        """A registered broker that uses another volume, if there is one."""
        return next((info for info in self.brokers.values() if info.volume_id != volume_id), None)
