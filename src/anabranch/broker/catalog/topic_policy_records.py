"""Policies of single topics in the metadata store.

/topic-policies/TENANT/NAMESPACE/persistent/NAME        of the topic, its partitions, or its segments
/topic-policies/TENANT/NAMESPACE/non-persistent/NAME

A regular, a partitioned and a scalable topic of one name share the key, so a topic that is migrated to a scalable one
keeps its policies: nothing is moved. A record has two parts, `local` and `global`, each with the keys of the
namespace's record; the local part wins.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from anabranch.metadata.interface import ABSENT, ANY, KeyMissing, MetadataStore, VersionMismatch
from anabranch.model.errors import NotAllowed
from anabranch.model.names import Domain, TopicName
from anabranch.model.schema import Strategy

TOPIC_POLICIES = "/topic-policies"
CAS_TRIES = 16
MAPS = frozenset({"backlog_quota_map", "subscriptionDispatchRates"})
"""Keys whose entries are set one by one. Each entry is resolved by itself."""


class Level(StrEnum):
    """Where a value in force comes from."""

    TOPIC = "topic"
    GLOBAL = "topic-global"
    NAMESPACE = "namespace"
    BROKER = "broker"


@dataclass(frozen=True, slots=True)
class TopicOverrides:
    local: Mapping[str, Any] = field(default_factory=dict)
    all_clusters: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def load(cls, value: bytes) -> TopicOverrides:
        record = json.loads(value)
        return cls(record.get("local") or {}, record.get("global") or {})

    def dump(self) -> bytes:
        return json.dumps({"local": dict(self.local), "global": dict(self.all_clusters)}).encode()

    def __bool__(self) -> bool:
        return bool(self.local or self.all_clusters)

    def part(self, *, is_global: bool) -> Mapping[str, Any]:
        return self.all_clusters if is_global else self.local

    def with_part(self, part: Mapping[str, Any], *, is_global: bool) -> TopicOverrides:
        return TopicOverrides(self.local, part) if is_global else TopicOverrides(part, self.all_clusters)

    def levels(self, namespace: Mapping[str, Any]) -> tuple[tuple[Level, Mapping[str, Any]], ...]:
        """The records that may set a policy, the strongest first."""
        return (Level.TOPIC, self.local), (Level.GLOBAL, self.all_clusters), (Level.NAMESPACE, namespace)

    def over(self, namespace: Mapping[str, Any]) -> dict[str, Any]:
        """The namespace's record with the topic's policies in place of the namespace's."""
        record = dict(namespace)
        for part in (self.all_clusters, self.local):
            for key, value in part.items():
                if not is_set(value):
                    continue
                record[key] = {**(record.get(key) or {}), **value} if key in MAPS else value
        return record


NONE = TopicOverrides()


def is_set(value: Any) -> bool:
    """An empty list or map, and the strategy UNDEFINED, mean "as the next level has it", as in Pulsar."""
    return value not in (None, [], {}, Strategy.UNDEFINED)


def topic_policies_key(topic: TopicName) -> str:
    """The same for a topic, its partitions and its segments."""
    scalable, domain = topic.scalable, Domain.PERSISTENT if topic.is_persistent else Domain.NON_PERSISTENT
    return f"{TOPIC_POLICIES}/{scalable.namespace_path}/{domain}/{scalable.encoded_local}"


def namespace_at(key: str) -> str:
    """TENANT/NAMESPACE of a key below `TOPIC_POLICIES`."""
    return "/".join(key.removeprefix(f"{TOPIC_POLICIES}/").split("/", 2)[:2])


class TopicPolicyRecords:
    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def of(self, topic: TopicName) -> TopicOverrides:
        """What the topic sets itself."""
        found = await self._store.get(topic_policies_key(topic))
        return NONE if found is None else TopicOverrides.load(found.value)

    async def of_namespace(self, namespace: str, among: Iterable[TopicName] | None = None) -> dict[str, TopicOverrides]:
        """By `topic_policies_key`: of the topics that set policies. `among`: only of these topics."""
        wanted = None if among is None else {topic_policies_key(topic) for topic in among}
        found: dict[str, TopicOverrides] = {}
        for domain in (Domain.PERSISTENT, Domain.NON_PERSISTENT):
            root = f"{TOPIC_POLICIES}/{namespace}/{domain}"
            for name in await self._store.children(root):
                key = f"{root}/{name}"
                if wanted is None or key in wanted:
                    record = await self._store.get(key)
                    if record is not None:  # deleted since
                        found[key] = TopicOverrides.load(record.value)
        return found

    async def change(self, topic: TopicName, change: Callable[[TopicOverrides], TopicOverrides]) -> None:
        """Compare-and-set with retries: `change` may be called several times, and may raise. A record without
        policies is deleted."""
        key = topic_policies_key(topic)
        for _ in range(CAS_TRIES):
            found = await self._store.get(key)
            before = NONE if found is None else TopicOverrides.load(found.value)
            after = change(before)
            try:
                if after:
                    await self._store.put(key, after.dump(), expected=ABSENT if found is None else found.version)
                elif found is not None:
                    await self._store.delete(key, expected=found.version)
                return
            except (VersionMismatch, KeyMissing):
                continue
        raise NotAllowed(f"{topic} has too many concurrent changes of its policies; try again")

    async def forget(self, topic: TopicName) -> None:
        """The topic was deleted. One that is created again under the name must not inherit its policies."""
        try:
            await self._store.delete(topic_policies_key(topic), expected=ANY)
        except KeyMissing:
            return  # it set none
