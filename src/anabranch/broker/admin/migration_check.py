"""What a migration of a regular topic would do and what blocks it: one report, made from facts. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from anabranch.controller.interface import SubscriptionKind, clients_text, subscription_kinds
from anabranch.controller.segment_host import Adopted, OldClient
from anabranch.model.errors import BadRequest, Error

PARTITIONS_MAX = 1_024
"""Partitions of a topic that can be migrated. Record and layout frame of so many stay below 512 KB."""


class Block(StrEnum):
    OLD_CLIENTS = "v4-clients"
    SCALABLE_TOPIC = "scalable-topic-exists"
    MIGRATION_RUNS = "migration-runs"
    PARTITIONS = "partition-count"
    PARTITION = "partition-of-a-topic"
    TERMINATED = "terminated"
    DELETION = "deletion-runs"
    REPLICATION = "geo-replication"
    COMPACTION = "compaction"
    SUBSCRIPTION = "unknown-subscription"


class MigrationBlocked(Error):
    """The regular topic cannot be migrated now. It was not changed."""

    code = "migration-blocked"


@dataclass(frozen=True, slots=True)
class Blocker:
    kind: Block
    text: str


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """The regular topic as its partitions' owners and the metadata store show it. `partitions` 0: not partitioned."""

    topic: str
    partitions: int
    found: Sequence[Adopted] = ()  # by partition
    terminated: Sequence[str] = ()
    is_scalable: bool = False
    is_migrating: bool = False
    is_partition: bool = False
    is_being_deleted: bool = False
    replication_clusters: Sequence[str] = ()  # more than this one
    compaction_threshold: int = 0
    partition_hash: Mapping[str, Any] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def clients(self) -> list[OldClient]:
        """Each client once, though it has a producer or consumer for every partition."""
        return sorted({client for one in self.found for client in one.clients}, key=str)


def blockers(facts: TopicFacts, *, force: bool, kinds: Mapping[str, str]) -> list[Blocker]:
    """Everything that blocks the migration, at once."""
    known = {name for one in facts.found for name, _ in one.subscriptions}
    unknown = sorted(kinds.keys() - known)
    conditions = (
        (facts.is_partition, Block.PARTITION, f"{facts.topic} is a partition: migrate its topic"),
        (facts.is_scalable, Block.SCALABLE_TOPIC, f"a scalable topic has the name of {facts.topic} already"),
        (facts.is_migrating, Block.MIGRATION_RUNS, f"a migration of {facts.topic} is running"),
        (
            facts.partitions > PARTITIONS_MAX,
            Block.PARTITIONS,
            f"{facts.topic} has {facts.partitions} partitions; at most {PARTITIONS_MAX} can be migrated",
        ),
        (
            facts.is_being_deleted,
            Block.DELETION,
            f"the deletion of {facts.topic} has begun: repeat it, if it was interrupted",
        ),
        (bool(facts.terminated), Block.TERMINATED, f"terminated: {', '.join(facts.terminated[:8])}"),
        (
            bool(facts.replication_clusters),
            Block.REPLICATION,
            f"the namespace is replicated to {', '.join(facts.replication_clusters)}: scalable topics are not",
        ),
        (
            facts.compaction_threshold > 0,
            Block.COMPACTION,
            "the namespace has a compaction threshold: segments are not compacted automatically",
        ),
        (bool(unknown), Block.SUBSCRIPTION, f"no subscription {', '.join(unknown)} on {facts.topic}"),
        (bool(facts.clients) and not force, Block.OLD_CLIENTS, clients_text(facts.clients)),
    )
    return [Blocker(kind, text) for is_true, kind, text in conditions if is_true]


def check_kinds(kinds: Mapping[str, str]) -> dict[str, str]:
    """`SUB` -> `stream` or `queue`, in any case."""
    named = {name: kind.upper() for name, kind in kinds.items()}
    for name, kind in named.items():
        if kind not in (SubscriptionKind.STREAM, SubscriptionKind.QUEUE):
            raise BadRequest(f"the type of subscription {name} is stream or queue, not {kind.lower()}")
    return named


def report(facts: TopicFacts, scalable: str, *, force: bool, kinds: Mapping[str, str]) -> dict[str, Any]:
    found = blockers(facts, force=force, kinds=kinds)
    planned = {name: kind.value for name, kind in subscription_kinds(facts.found, kinds).items()}
    return {
        "topic": facts.topic,
        "scalableTopic": scalable,
        "partitions": facts.partitions,
        "segments": max(1, facts.partitions),
        "subscriptions": planned,
        "properties": dict(facts.properties),
        "partitionHash": dict(facts.partition_hash),
        "clients": [
            {
                "role": one.role,
                "name": one.name,
                "address": one.address,
                "version": one.version,
                "subscription": one.subscription or None,
            }
            for one in facts.clients
        ],
        "blockers": [{"kind": one.kind.value, "reason": one.text} for one in found],
        "possible": not found,
    }
