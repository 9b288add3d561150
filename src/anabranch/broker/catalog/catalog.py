"""Reads and writes the records of tenants, namespaces, clusters and topics in the metadata store.

Keys: `/clusters/C`, `/tenants/T`, `/namespaces/T/N`, `/partitioned/DOMAIN/T/N/NAME`, and the topic records that storage
writes below `/managed/T/N/persistent/NAME`; a topic exists if it has such a record. NAME is the form-url-encoded local
name.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from anabranch.broker.catalog.cluster_records import ClusterRecords
from anabranch.broker.catalog.migrated_topics import MigratedTopic, migrated_topic
from anabranch.broker.catalog.name_conflicts import resolve_for_regular, resolve_for_scalable
from anabranch.broker.catalog.partition_holds import CAS_TRIES, DELETING, hold, mark_deletion
from anabranch.broker.catalog.policies import LOCAL_CLUSTER, Policies
from anabranch.broker.catalog.topic_policy_records import TopicPolicyRecords, topic_policies_key
from anabranch.broker.errors import (
    FewerPartitions,
    NamespaceNotFound,
    TooManyTopics,
    TopicMigrated,
    TopicMigrating,
    TopicNotFound,
)
from anabranch.broker.settings import BrokerSettings
from anabranch.metadata.interface import ABSENT, ANY, KeyMissing, MetadataStore, OutcomeUnknown, VersionMismatch
from anabranch.model.errors import AlreadyExists, BadRequest, NotAllowed, NotFound
from anabranch.model.metadata_keys import scalable_namespace_key, scalable_topic_key
from anabranch.model.names import Domain, TopicName, check_namespace, check_tenant, parse_namespace
from anabranch.security.authorization import Grants

DEFAULT_TENANT, DEFAULT_NAMESPACE = "public", "public/default"
EARLIER_COUNTS_MAX = 8
"""Earlier numbers of partitions that the record of a topic keeps, newest first: recent keys were routed by them."""
_REGULAR = (Domain.PERSISTENT, Domain.NON_PERSISTENT)


@dataclass(frozen=True, slots=True)
class NamespacePolicies:
    """The record of a namespace; None: the broker's default."""

    deduplication: bool | None = None
    other: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> NamespacePolicies:
        other = dict(record)
        return cls(other.pop("deduplicationEnabled", None), other)

    @classmethod
    def load(cls, value: bytes) -> NamespacePolicies:
        return cls.of(json.loads(value))

    @property
    def record(self) -> dict[str, Any]:
        """All policies, under Pulsar's names."""
        record: dict[str, Any] = dict(self.other)
        if self.deduplication is not None:
            record["deduplicationEnabled"] = self.deduplication
        return record

    def dump(self) -> bytes:
        return json.dumps(self.record).encode()


class Catalog:
    def __init__(self, store: MetadataStore, settings: BrokerSettings) -> None:
        self._store = store
        self.settings = settings
        self.topic_policies = TopicPolicyRecords(store)
        self.cluster_records = ClusterRecords(store)

    def use_settings(self, settings: BrokerSettings) -> None:
        """From now on; the policies of loaded topics have to be applied again."""
        self.settings = settings

    async def ensure_defaults(self) -> None:
        """Creates `public/default` and this cluster's record if they are missing."""
        for key in (
            f"/clusters/{LOCAL_CLUSTER}",
            f"/tenants/{DEFAULT_TENANT}",
            f"/namespaces/{DEFAULT_NAMESPACE}",
        ):
            if await self._store.get(key) is None:
                try:
                    await self._store.put(key, b"{}", expected=ABSENT)
                except VersionMismatch:
                    continue  # another broker was first

    # -- tenants and namespaces

    async def tenants(self) -> list[str]:
        return sorted(await self._store.children("/tenants"))

    async def tenant(self, tenant: str) -> dict[str, Any]:
        """The tenant's record: `adminRoles` and `allowedClusters` if they were given."""
        found = await self._store.get(f"/tenants/{check_tenant(tenant)}")
        if found is None:
            raise NotFound("Tenant does not exist")
        record: dict[str, Any] = json.loads(found.value)
        return record

    async def update_tenant(self, tenant: str, record: dict[str, Any]) -> None:
        """Replaces the record."""
        found = await self._store.get(f"/tenants/{check_tenant(tenant)}")
        if found is None:
            raise NotFound(f"Tenant {tenant} not found")
        try:
            await self._store.put(f"/tenants/{tenant}", json.dumps(record).encode(), expected=found.version)
        except VersionMismatch as raced:
            raise NotAllowed(f"tenant {tenant!r} was changed concurrently; try again") from raced

    async def create_tenant(self, tenant: str, record: dict[str, Any]) -> None:
        check_tenant(tenant)
        try:
            await self._store.put(f"/tenants/{tenant}", json.dumps(record).encode(), expected=ABSENT)
        except VersionMismatch as taken:
            raise AlreadyExists(f"tenant {tenant!r} already exists") from taken

    async def delete_tenant(self, tenant: str) -> None:
        check_tenant(tenant)
        if await self._store.children(f"/namespaces/{tenant}"):
            raise NotAllowed(f"tenant {tenant!r} still has namespaces")
        try:
            await self._store.delete(f"/tenants/{tenant}", expected=ANY)
        except KeyMissing as missing:
            raise NotFound(f"no such tenant: {tenant!r}") from missing

    async def namespaces(self, tenant: str) -> list[str]:
        if await self._store.get(f"/tenants/{tenant}") is None:
            raise NotFound(f"no such tenant: {tenant!r}")
        return [f"{tenant}/{name}" for name in sorted(await self._store.children(f"/namespaces/{tenant}"))]

    async def create_namespace(self, namespace: str, record: dict[str, Any] | None = None) -> None:
        """`record` holds policies under Pulsar's names."""
        tenant, name = parse_namespace(namespace)
        check_namespace(name)
        if await self._store.get(f"/tenants/{tenant}") is None:
            raise NotFound(f"no such tenant: {tenant!r}")
        try:
            await self._store.put(f"/namespaces/{tenant}/{name}", json.dumps(record or {}).encode(), expected=ABSENT)
        except VersionMismatch as taken:
            raise AlreadyExists(f"namespace {namespace!r} already exists") from taken

    async def delete_namespace(self, namespace: str) -> None:
        await self.policies(namespace)
        scalable = await self._store.children(scalable_namespace_key(namespace))
        if scalable or await self.topics(namespace) or await self.partitioned_topics(namespace, "persistent"):
            raise NotAllowed(f"namespace {namespace!r} still has topics")
        await self._store.delete(f"/namespaces/{namespace}", expected=ANY)

    async def policies(self, namespace: str) -> NamespacePolicies:
        found = await self._store.get(f"/namespaces/{namespace}")
        if found is None:
            raise NamespaceNotFound(f"Namespace does not exist: {namespace}")
        return NamespacePolicies.load(found.value)

    async def effective(self, namespace: str) -> Policies:
        """The policies in force for topics that set none, with the broker's defaults."""
        return Policies.of((await self.policies(namespace)).record, self.settings)

    async def record_of(self, topic: TopicName) -> dict[str, Any]:
        """What the topic and its namespace set, under Pulsar's names; the topic's policies win."""
        return (await self.topic_policies.of(topic)).over((await self.policies(topic.namespace_path)).record)

    async def effective_of(self, topic: TopicName) -> Policies:
        """The policies in force for the topic, its partitions and its segments."""
        return Policies.of(await self.record_of(topic), self.settings)

    async def effective_of_all(self, namespace: str, topics: Iterable[TopicName]) -> Callable[[TopicName], Policies]:
        """The same for many topics of one namespace, with few reads."""
        record, own = (await self.policies(namespace)).record, await self.topic_policies.of_namespace(namespace, topics)
        known = {key: Policies.of(overrides.over(record), self.settings) for key, overrides in own.items()}
        common = Policies.of(record, self.settings)
        return lambda topic: known.get(topic_policies_key(topic), common)

    async def set_deduplication(self, namespace: str, enabled: bool | None) -> None:
        await self.change_policies(namespace, lambda policies: replace(policies, deduplication=enabled))

    async def change_policies(
        self, namespace: str, change: Callable[[NamespacePolicies], NamespacePolicies]
    ) -> NamespacePolicies:
        """Compare-and-set with retries; returns the stored policies. `change` may be called several times."""
        for _ in range(CAS_TRIES):
            found = await self._store.get(f"/namespaces/{namespace}")
            if found is None:
                raise NamespaceNotFound(f"Namespace does not exist: {namespace}")
            changed = change(NamespacePolicies.load(found.value))
            try:
                await self._store.put(f"/namespaces/{namespace}", changed.dump(), expected=found.version)
                return changed
            except VersionMismatch:
                continue
        raise NotAllowed(f"namespace {namespace!r} has too many concurrent changes; try again")

    # -- permissions: a missing record grants nothing

    async def tenant_admins(self, tenant: str) -> frozenset[str]:
        found = await self._store.get(f"/tenants/{check_tenant(tenant)}")
        return frozenset() if found is None else frozenset(json.loads(found.value).get("adminRoles") or ())

    async def grants(self, namespace: str) -> Grants:
        tenant, name = parse_namespace(namespace)
        found = await self._store.get(f"/namespaces/{tenant}/{name}")
        return Grants() if found is None else Grants.load(NamespacePolicies.load(found.value).other)

    async def change_grants(self, namespace: str, change: Callable[[Grants], Grants]) -> None:
        """Changes only the grants in the namespace's record."""

        def changed(policies: NamespacePolicies) -> NamespacePolicies:
            return replace(policies, other={**policies.other, **change(Grants.load(policies.other)).dump()})

        await self.change_policies(namespace, changed)

    async def forget_grants(self, topic: TopicName) -> None:
        """A topic that is created again under the same name must not inherit permissions."""
        known = await self.grants(topic.namespace_path)
        if known != known.without_topic(topic):
            await self.change_grants(topic.namespace_path, lambda grants: grants.without_topic(topic))

    # -- clusters

    async def delete_cluster(self, name: str) -> None:
        """NotAllowed while a tenant or namespace refers to it."""
        await self.cluster_records.record(name)
        if name == LOCAL_CLUSTER:
            raise NotAllowed("this broker's own cluster cannot be deleted")
        for tenant in await self.tenants():
            if name in (await self.tenant(tenant)).get("allowedClusters", ()):
                raise NotAllowed(f"cluster {name!r} is allowed to tenant {tenant!r}")
            for namespace in await self.namespaces(tenant):
                record = (await self.policies(namespace)).other
                if name in (*record.get("replication_clusters", ()), *record.get("allowed_clusters", ())):
                    raise NotAllowed(f"cluster {name!r} is used by namespace {namespace!r}")
        await self.cluster_records.delete(name)

    # -- topics

    @staticmethod
    def topic_key(topic: TopicName) -> str:
        return f"/managed/{topic.namespace_path}/{topic.domain}/{topic.encoded_local}"

    @staticmethod
    def topics_key(namespace: str) -> str:
        """Parent of the records of its persistent topics, partitions one by one."""
        return f"/managed/{namespace}/persistent"

    @staticmethod
    def _partitioned_key(topic: TopicName) -> str:
        return f"/partitioned/{topic.domain}/{topic.namespace_path}/{topic.encoded_local}"

    async def is_scalable(self, topic: TopicName) -> bool:
        """Whether a scalable topic has the name. Then no regular one may be created."""
        return await self._store.get(scalable_topic_key(topic)) is not None

    async def is_regular(self, topic: TopicName) -> bool:
        """Whether a regular topic, partitioned or not, has the name, after a sync of the store."""
        await self._store.sync()
        return await self.exists(topic) or bool(await self.partitions(topic))

    async def resolve_name_conflict(self, topic: TopicName, *, is_new: bool = True) -> None:
        """For a regular topic with a record: AlreadyExists if a scalable one has the name (`name_conflicts`)."""
        if topic.domain in _REGULAR:
            await resolve_for_regular(self._store, topic, sync=is_new)

    async def clear_name(self, topic: TopicName) -> None:
        """For a scalable topic that is led: deletes what an interrupted creation of this regular one left."""
        await resolve_for_scalable(self._store, topic, self.topic_key(topic), self._partitioned_key(topic))

    async def migrated(self, topic: TopicName, *, is_fresh: bool = False) -> MigratedTopic | None:
        """The migration of the regular topic with this name, or of which this is a partition."""
        if topic.domain is not Domain.PERSISTENT:
            return None
        if is_fresh:
            await self._store.sync()
        found = await self._store.get(scalable_topic_key(topic))
        return None if found is None else migrated_topic(found.value)

    async def check_not_migrated(self, topic: TopicName, *, is_fresh: bool = False) -> None:
        """TopicMigrated, TopicMigrating."""
        migrated = await self.migrated(topic, is_fresh=is_fresh)
        if migrated is not None:
            raise migrated.error(topic)

    async def check_regular(self, topic: TopicName) -> bool:
        """TopicNotFound, as with Pulsar, if the name belongs to a scalable topic; TopicMigrated, TopicMigrating for an
        old name. Returns whether a segment wraps the topic: its owner knows which clients it admits."""
        if topic.domain not in _REGULAR or not await self.is_scalable(topic):
            return False
        migrated = await self.migrated(topic)
        if migrated is not None:
            if str(topic) in migrated.wrapped:
                return True
            raise migrated.error(topic)
        if await self.exists(topic) or await self.partitions(topic):  # a creator crashed between write and check
            try:
                await self.resolve_name_conflict(topic)
                return False
            except AlreadyExists:
                pass  # the scalable topic stays
        raise TopicNotFound(f"Topic {topic} not found: {topic.scalable} is a scalable topic")

    async def check_free(self, topic: TopicName) -> None:
        """Before a regular topic is created: AlreadyExists if a scalable one has the name."""
        if topic.domain in _REGULAR and await self.is_scalable(topic):
            raise AlreadyExists(f"{topic.scalable} already exists: a regular topic cannot have its name")

    async def exists(self, topic: TopicName) -> bool:
        return await self._store.get(self.topic_key(topic)) is not None

    async def topics(self, namespace: str) -> list[TopicName]:
        """Persistent topics, partitions one by one."""
        tenant, name = parse_namespace(namespace)
        encoded = await self._store.children(self.topics_key(namespace))
        return [TopicName.from_rest("persistent", tenant, name, local) for local in sorted(encoded)]

    async def partitions(self, topic: TopicName) -> int:
        """0 for a plain (or absent) topic."""
        return int((await self.partitioned_record(topic)).get("partitions", 0))

    async def partitioned_record(self, topic: TopicName) -> dict[str, Any]:
        """`partitions` and, if any, `properties`; empty for a plain (or absent) topic."""
        found = await self._store.get(self._partitioned_key(topic))
        record: dict[str, Any] = {} if found is None else json.loads(found.value)
        return record

    async def change_partitioned(self, topic: TopicName, change: Callable[[dict[str, str]], dict[str, str]]) -> None:
        """Change the properties of a partitioned topic."""
        for _ in range(CAS_TRIES):
            found = await self._store.get(self._partitioned_key(topic))
            if found is None:
                raise TopicNotFound(f"no such partitioned topic: {topic}")
            record = json.loads(found.value)
            changed = {**record, "properties": change(record.get("properties", {}))}
            try:
                await self._store.put(
                    self._partitioned_key(topic), json.dumps(changed).encode(), expected=found.version
                )
                return
            except VersionMismatch:
                continue
        raise NotAllowed(f"{topic} has too many concurrent changes; try again")

    async def partitioned_topics(self, namespace: str, domain: str) -> list[TopicName]:
        tenant, name = parse_namespace(namespace)
        encoded = await self._store.children(f"/partitioned/{domain}/{namespace}")
        return [TopicName.from_rest(domain, tenant, name, local) for local in sorted(encoded)]

    def _check_count(self, count: int) -> None:
        if not 1 <= count <= self.settings.partitions_max:
            raise BadRequest(f"number of partitions must be between 1 and {self.settings.partitions_max}")

    async def create_partitioned(
        self, topic: TopicName, count: int, properties: Mapping[str, str] | None = None
    ) -> None:
        self._check_count(count)
        await self.check_room(topic.namespace_path, count if topic.is_persistent else 0)
        if topic.partition_index >= 0:
            raise BadRequest("a partitioned topic's name cannot end like a partition's")
        if await self.exists(topic):
            raise AlreadyExists(f"topic {topic} already exists and is not partitioned")
        await self.check_free(topic)
        record = {"partitions": count, **({"properties": dict(properties)} if properties else {})}
        key, value = self._partitioned_key(topic), json.dumps(record).encode()
        try:
            await self._store.put(key, value, expected=ABSENT)
        except VersionMismatch as taken:
            raise AlreadyExists(f"partitioned topic {topic} already exists") from taken
        except OutcomeUnknown:  # the record may exist, so the conflict is resolved here too
            await self._resolve_partitioned(topic, key, value)
            raise
        await self._resolve_partitioned(topic, key, value)

    async def _resolve_partitioned(self, topic: TopicName, key: str, value: bytes) -> None:
        try:
            await self.resolve_name_conflict(topic)
        except AlreadyExists:
            found = await self._store.get(key)
            if found is not None and found.value == value:
                try:
                    await self._store.delete(key, expected=found.version)
                except (VersionMismatch, KeyMissing):
                    pass  # changed or deleted by another broker
            raise

    async def grow_partitions(self, topic: TopicName, count: int, prepare: Callable[[range], Awaitable[None]]) -> None:
        """Adds partitions. `prepare` creates them before a client can see the new count."""
        self._check_count(count)
        found = await self._store.get(self._partitioned_key(topic))
        if found is None:
            raise TopicNotFound(f"no such partitioned topic: {topic}")
        await self.check_not_migrated(topic)
        record = json.loads(found.value)
        if record.get(DELETING):
            raise NotAllowed(f"{topic} is being deleted: its deletion was interrupted, repeat it")
        before = int(record["partitions"])
        if count < before:
            raise FewerPartitions(f"{topic} has {before} partitions; partitions can only be added")
        if count > before:
            await self.check_room(topic.namespace_path, count - before if topic.is_persistent else 0)
            await prepare(range(before, count))
            earlier = [before, *record.get("earlierPartitions", ())][:EARLIER_COUNTS_MAX]
            grown = json.dumps({**record, "partitions": count, "earlierPartitions": earlier}).encode()
            await self._store.put(self._partitioned_key(topic), grown, expected=found.version)

    async def hold_partitions(self, topic: TopicName, count: int) -> bool:
        """See `partition_holds.hold`."""
        return await hold(self._store, self._partitioned_key(topic), count)

    async def begin_deletion(self, topic: TopicName) -> None:
        """Before the partitions are deleted one by one. Raises TopicMigrated, TopicMigrating."""
        key = self._partitioned_key(topic)
        await mark_deletion(self._store, key, is_deleting=True)
        await self._store.sync()
        try:
            await self.check_not_migrated(topic)
        except (TopicMigrated, TopicMigrating):
            await mark_deletion(self._store, key, is_deleting=False)
            raise

    async def delete_partitioned(self, topic: TopicName) -> None:
        try:
            await self._store.delete(self._partitioned_key(topic), expected=ANY)
        except KeyMissing as missing:
            raise TopicNotFound(f"no such partitioned topic: {topic}") from missing

    async def partitions_or_create(self, topic: TopicName, auto_create: bool) -> int:
        """Number of partitions for PARTITIONED_METADATA. Creates a missing partitioned topic if policy allows it."""
        holds = await self.effective(topic.namespace_path)
        _check_local(holds, topic.namespace_path)
        if topic.partition_index >= 0:
            return 0
        if topic.domain is Domain.TOPIC:
            raise TopicNotFound(f"Topic {topic} not found: it is not a regular topic")
        await self.check_regular(topic)
        count = await self.partitions(topic)
        if count or await self.exists(topic):
            return count
        if not topic.is_persistent:
            return 0
        if not (auto_create and holds.auto_create_topics):
            raise TopicNotFound(f"Topic {topic} not found")
        if holds.auto_create_partitions:
            try:
                await self.create_partitioned(topic, holds.auto_create_partitions)
            except AlreadyExists:
                return await self.partitions(topic)
            return holds.auto_create_partitions
        return 0

    async def check_may_load(self, topic: TopicName, create: bool) -> bool:
        """Whether the topic exists; TopicNotFound if it does not and may not be created."""
        holds = await self.effective(topic.namespace_path)
        _check_local(holds, topic.namespace_path)
        is_wrapped = await self.check_regular(topic)
        if await self.exists(topic):
            return True
        index = topic.partition_index
        if is_wrapped and index < 0:
            raise TopicNotFound(f"Topic {topic} not found: it was deleted while it was migrated")
        if is_wrapped:
            return True  # a partition that was never used
        record = await self.partitioned_record(topic.base) if index >= 0 else {}
        if (count := int(record.get("partitions", 0))) > 0:
            await self.check_regular(topic.base)
            if record.get(DELETING):
                raise TopicNotFound(f"{topic.base} is being deleted")
            if index >= count:
                raise TopicNotFound(f"{topic.base} has only {count} partitions")
            return False
        if not (create and holds.auto_create_topics):
            raise TopicNotFound(f"Topic {topic} not found")
        if index < 0 and await self.partitions(topic) > 0:
            raise NotAllowed(f"{topic} is partitioned: use one of its partitions")
        if topic.is_persistent:
            await self.check_room(topic.namespace_path, 1)
        return False

    async def check_room(self, namespace: str, count: int) -> None:
        """TooManyTopics if the namespace may not have `count` more topics."""
        holds = await self.effective(namespace)
        _check_local(holds, namespace)
        if holds.topics_max and len(await self._store.children(self.topics_key(namespace))) + count > (
            holds.topics_max
        ):
            raise TooManyTopics(f"Exceed maximum number of topics in namespace {namespace}: {holds.topics_max}")


def _check_local(holds: Policies, namespace: str) -> None:
    if not holds.is_local:
        raise NotAllowed(
            f"Namespace missing local cluster name in clusters list: {LOCAL_CLUSTER} is not in {namespace}'s"
        )
