"""Where the logs of segments are: the port that the node fills. What is not there may have a grave (`storage`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from anabranch.broker.catalog.policies import Retention
from anabranch.model.names import TopicName
from anabranch.storage.topic.tombstone import TopicPresence
from anabranch.storage.topic.topic_log import TopicLog


class SegmentLogs(Protocol):
    """All of it in our own ownership epoch: Superseded, or ServedElsewhere, when the segment is another broker's."""

    @property
    def retention(self) -> Retention:
        """Of scalable topics, where the namespace says nothing."""

    async def open(self, name: TopicName, create_with: Mapping[str, str] | None, *, is_first: bool = False) -> TopicLog:
        """Opens the segment's log. With `create_with` a missing one is created with these properties; without it,
        NotFound. `is_first`: create without a look; AlreadyExists when the segment or its tombstone is there."""

    async def peek(self, name: TopicName) -> TopicPresence:
        """What is there, without opening it."""

    async def names(self, namespace: str) -> list[TopicName]:
        """Everything that has a record: segments, and graves."""

    async def clear(self, name: TopicName, is_old: Callable[[Mapping[str, str]], bool]) -> bool:
        """Forget a grave that is old; True when that was done."""

    async def write_tombstone(self, name: TopicName, properties: Mapping[str, str]) -> None:
        """A grave for what is not there; durable when it returns. AlreadyExists for what is."""
