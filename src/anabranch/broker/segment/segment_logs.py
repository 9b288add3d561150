"""Port to the logs of segments. A deleted segment may leave a tombstone (`storage/topic/tombstone.py`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from anabranch.broker.catalog.policies import Retention
from anabranch.model.names import TopicName
from anabranch.storage.topic.tombstone import TopicPresence
from anabranch.storage.topic.topic_log import TopicLog


class SegmentLogs(Protocol):
    """Calls are made under this broker's ownership epoch: Superseded or ServedElsewhere when another broker owns it."""

    @property
    def retention(self) -> Retention:
        """Retention of scalable topics whose namespace has no policy."""

    async def open(self, name: TopicName, create_with: Mapping[str, str] | None, *, is_first: bool = False) -> TopicLog:
        """Opens the segment's log. With `create_with` a missing one is created with these properties; without it,
        NotFound. `is_first`: create without a look; AlreadyExists when the segment or its tombstone is there."""

    async def peek(self, name: TopicName) -> TopicPresence:
        """What exists under the name, without opening it."""

    async def names(self, namespace: str) -> list[TopicName]:
        """Everything that has a record: segments and tombstones."""

    async def clear(self, name: TopicName, is_old: Callable[[Mapping[str, str]], bool]) -> bool:
        """Deletes a tombstone if `is_old` accepts its properties; True when it was deleted."""

    async def write_tombstone(self, name: TopicName, properties: Mapping[str, str]) -> None:
        """Writes a tombstone for a segment that does not exist; durable when it returns. AlreadyExists."""
