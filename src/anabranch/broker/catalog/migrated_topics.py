"""Regular topics that became scalable topics, as the scalable topic's record shows them. Pure.

| name                                | while the migration runs           | after it                              |
|-------------------------------------|------------------------------------|---------------------------------------|
| the old name of a partitioned topic | refused for now (TopicMigrating)   | refused for good (TopicMigrated)      |
| a topic that a segment wraps        | served to clients that follow only | served, until it is garbage collected |
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache

from anabranch.broker.errors import TopicMigrated, TopicMigrating
from anabranch.model.errors import Error
from anabranch.model.names import TopicName


@dataclass(frozen=True, slots=True)
class MigratedTopic:
    """`wrapped`: the topics that segments still wrap."""

    incarnation: int
    old_name: str
    partitions: int
    wrapped: frozenset[str]
    is_running: bool  # not committed
    is_undone: bool  # the partitions are being released

    def error(self, name: TopicName) -> Error:
        """Why a client of regular topics is refused."""
        if self.is_running:
            return TopicMigrating(f"{self.old_name} is being migrated to {name.scalable}; try again")
        return TopicMigrated(self.old_name)


@lru_cache(maxsize=64)
def migrated_topic(value: bytes) -> MigratedTopic | None:
    """None for a scalable topic that was never a regular one."""
    if b'"migratedFrom"' not in value:
        return None
    record = json.loads(value)
    origin = record.get("migratedFrom")
    if origin is None:
        return None
    old_name, partitions = str(origin["topic"]), int(origin.get("partitions", 0))
    names = {
        str(index): f"{old_name}-partition-{index}" if partitions else old_name for index in range(max(1, partitions))
    }
    is_running = (record.get("operation") or {}).get("kind") == "MIGRATION"
    return MigratedTopic(
        int(record.get("incarnation", 0)),
        old_name,
        partitions,
        frozenset(names[one] for one in names.keys() & record["segments"].keys()),
        is_running,
        is_running and bool(record.get("deleting")),
    )
