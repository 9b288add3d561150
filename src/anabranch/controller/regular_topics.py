"""Synthetic layouts: a regular topic, partitioned or not, presented to layout sessions as segments.

A session of a regular topic is kept in memory, on the broker that the client asked; nothing is stored for it. Every
broker derives the same layout from the number of partitions and the partition hash, so a client that loses its session
opens it again anywhere. The epoch is always 0: a migration commits epoch 1, which is higher than any that was sent.

The consumers of a regular topic have no session with the controller. The owners of the partitions choose between them,
as they do for v4 consumers of the same subscription.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from anabranch.model.errors import NotAllowed
from anabranch.model.layout import Layout
from anabranch.model.names import Domain, TopicName
from anabranch.model.partition_hash import PartitionHash
from anabranch.model.routing import MOD_N

LOOK_AGAIN_SECONDS = 2.0
"""First delay until a topic whose hash is not known is examined again, while it has watchers. It doubles each time."""
LOOK_AGAIN_SECONDS_MAX = 600.0


class TopicNotMigrated(NotAllowed):
    """The call needs a scalable topic, and the topic is a regular one."""

    code = "topic-not-migrated"

    def __init__(self, topic: TopicName) -> None:
        command = f"anabranch admin scalable-topics migrate-to-scalable {topic.scalable}"
        super().__init__(f"{regular_name(topic)} is a regular topic: migrate it first ({command})")


@dataclass(frozen=True, slots=True)
class RegularTopic:
    name: TopicName  # persistent://
    partitions: int = 0  # 0: not partitioned
    partition_hash: PartitionHash | None = None  # None: not known, or of no importance

    @property
    def is_hash_wanted(self) -> bool:
        """Whether keys that are published later may show the hash."""
        return self.partitions > 1 and self.partition_hash is None

    def layout(self, now_ms: int) -> Layout:
        """Clients of a topic whose hash is not known use the hash of the SDK, as PIP-475 proposes."""
        names = [str(self.name.partition(index)) for index in range(self.partitions)] or [str(self.name)]
        routing = replace(MOD_N, partition_hash=self.partition_hash or PartitionHash.MURMUR3)
        return Layout.synthetic(names, now_ms=now_ms, routing=routing)


def regular_name(topic: TopicName) -> TopicName:
    """The regular topic with the name of this topic, partition or segment."""
    return TopicName(Domain.PERSISTENT, topic.tenant, topic.namespace, topic.scalable.local)
