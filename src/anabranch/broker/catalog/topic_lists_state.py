"""What clients see of the persistent topics of a namespace: names, digest, differences. Pure.

Segments and scalable topics have keys elsewhere, so they are not among them. Partitions are listed one by one, as soon
as the partitioned topic exists.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from anabranch.model.names import TopicName
from anabranch.protocol.topics_hash import topics_hash

SYSTEM_TOPICS = frozenset(
    (
        "__change_events",
        "__transaction_buffer_snapshot",
        "__transaction_buffer_snapshot_indexes",
        "__transaction_buffer_snapshot_segments",
        "transaction_coordinator_assign",
        "__transaction_log_",
    )
)
"""Local names of topics that Pulsar's brokers keep for themselves; clients with patterns must not read them."""
PENDING_ACKS = "__transaction_pending_ack"


@dataclass(frozen=True, slots=True)
class TopicList:
    """Full names and their digest."""

    names: frozenset[str]
    digest: str

    @classmethod
    def of(cls, names: Iterable[str]) -> TopicList:
        found = frozenset(names)
        return cls(found, topics_hash(found))

    def added_since(self, earlier: TopicList) -> list[str]:
        return sorted(self.names - earlier.names)

    def deleted_since(self, earlier: TopicList) -> list[str]:
        return sorted(earlier.names - self.names)


def is_system_topic(topic: TopicName) -> bool:
    local = topic.base.local
    return local in SYSTEM_TOPICS or local.endswith(PENDING_ACKS)


def matched_text(topic: TopicName) -> str:
    """What a pattern is compared with: the name without its domain and partition."""
    return str(topic.base).partition("://")[2]


def parts_of(names: list[str], bytes_max: int) -> Iterator[list[str]]:
    """The names in parts of about this size at most, for one frame each; one part if there are none."""
    part: list[str] = []
    size = 0
    for name in names:
        length = len(name.encode()) + 4
        if part and size + length > bytes_max:
            yield part
            part, size = [], 0
        part.append(name)
        size += length
    yield part


class NamespaceTopics:
    """Topics of one namespace as the store has them. A name is there if it has a record, or its partitioned topic."""

    def __init__(self) -> None:
        self._recorded: set[TopicName] = set()
        self._partitioned: dict[TopicName, int] = {}

    def replace(self, recorded: Iterable[TopicName], partitioned: dict[TopicName, int]) -> None:
        self._recorded, self._partitioned = set(recorded), dict(partitioned)

    def note_record(self, topic: TopicName, *, exists: bool) -> None:
        if exists:
            self._recorded.add(topic)
        else:
            self._recorded.discard(topic)

    def note_partitions(self, topic: TopicName, count: int) -> None:
        """0: there is no such partitioned topic."""
        if count:
            self._partitioned[topic] = count
        else:
            self._partitioned.pop(topic, None)

    def has_record(self, topic: TopicName) -> bool:
        return topic in self._recorded

    def texts(self) -> dict[str, str]:
        """The listed names, each with the text that patterns are compared with."""
        found = {str(topic): matched_text(topic) for topic in self._recorded if not is_system_topic(topic)}
        for topic, count in self._partitioned.items():
            if not is_system_topic(topic):
                text = matched_text(topic)
                found.update((str(topic.partition(index)), text) for index in range(count))
        return found
