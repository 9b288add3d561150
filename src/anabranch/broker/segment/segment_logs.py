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
        """With `create_with` it is made when it is not there, with these properties; otherwise NotFound. `is_first`: made
        without looking, AlreadyExists when it or its grave is there."""

    async def peek(self, name: TopicName) -> TopicPresence:
        """What is there, without opening it."""

    async def names(self, namespace: str) -> list[TopicName]:
        """Everything that has a record: segments, and graves."""

    async def clear(self, name: TopicName, is_old: Callable[[Mapping[str, str]], bool]) -> bool:
        """Forget a grave that is old; True when that was done."""

    async def write_tombstone(self, name: TopicName, properties: Mapping[str, str]) -> None:
        """A grave for what is not there; durable when it returns. AlreadyExists for what is."""
