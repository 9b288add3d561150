"""What administrators may ask of this broker, as plain calls with full names. HTTP is one skin over it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import asdict
from typing import Any, Protocol

from anabranch.broker.admin.brokers import BrokersAdmin
from anabranch.broker.admin.namespaces import NamespaceAdmin
from anabranch.broker.admin.owner_routing import OwnerRouting
from anabranch.broker.admin.publish import PublishAdmin
from anabranch.broker.admin.scalable_topics import ScalableAdmin
from anabranch.broker.admin.schemas import SchemaAdmin
from anabranch.broker.admin.subscriptions import SubscriptionAdmin
from anabranch.broker.admin.topic_maintenance import TopicMaintenance
from anabranch.broker.errors import TopicNotFound
from anabranch.broker.placement import ServedElsewhere, check_here
from anabranch.broker.services import SERVER_VERSION, Services
from anabranch.broker.stats.metrics import Metrics
from anabranch.broker.stats.subscription_stats import StatsOptions
from anabranch.broker.stats.topic_stats import internal_stats, merged, topic_stats
from anabranch.broker.topic.topic import Topic
from anabranch.broker.wire.lookup_commands import loaded_non_persistent
from anabranch.broker.wire.server import BrokerServer
from anabranch.model.errors import AlreadyExists, NotAllowed, NotFound
from anabranch.model.names import Domain, TopicName
from anabranch.model.position import EARLIEST, Position
from anabranch.security.authorization import Grants


class Errands(Protocol):
    async def do(self, call: str, arguments: Mapping[str, Any]) -> Any:
        """NotFound for what is none."""


class BrokerAdmin:
    """Implements `rest.face.BrokerFace`. What concerns topics of several brokers is done by each of them."""

    ERRANDS = frozenset({"create_part", "delete_part", "check_deletable", "part_stats", "non_persistent", "is_loaded"})

    def __init__(
        self,
        services: Callable[[], Services],
        server: BrokerServer,
        check_storage: Callable[[], None],
        brokers: BrokersAdmin | None = None,
        scalable: ScalableAdmin | None = None,
    ) -> None:
        self._services = services
        self._server = server
        self._check_storage = check_storage
        self._metrics: Metrics | None = None  # remembers what was seen at the last look
        self.brokers = brokers or BrokersAdmin(services)
        self.publishing = PublishAdmin(services)
        self.schemas = SchemaAdmin(services)
        self.policies = NamespaceAdmin(services)
        self.care = TopicMaintenance(services)
        self.cursors = SubscriptionAdmin(services)
        self.scalable = scalable or ScalableAdmin(services)
        self.reach = OwnerRouting(services, "admin", self, self.ERRANDS)

        self.more_errands: dict[str, Errands] = {}  # groups of others, by their name

    async def errand(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """What another broker of the cluster asks of this one; NotFound for what is no errand."""
        groups = {
            "admin": self.reach,
            "brokers": self.brokers.reach,
            "care": self.care.reach,
            "cursors": self.cursors.reach,
            "policies": self.policies.reach,
            "scalable": self.scalable.reach,
        }
        group, _, call = name.partition(".")
        if group in self.more_errands:
            return await self.more_errands[group].do(call, arguments)
        if group not in groups:
            raise NotFound(f"no errand {name}")
        return await groups[group].do(call, arguments)

    async def check_served(self, topic: str) -> None:
        """Raises ServedElsewhere for a topic of another broker; a parent of partitions is everybody's."""
        services, name = self._services(), TopicName.parse(topic)
        if services.cluster is None or services.cluster.is_here(name):
            return
        if name.partition_index < 0 and await services.catalog.partitions(name):
            return
        await services.cluster.wait_placed(name)
        if not services.cluster.is_here(name):
            raise ServedElsewhere(name, services.cluster.owner_address(name))

    # -- lookup

    async def lookup(self, topic: str, authoritative: bool, listener: str | None) -> dict[str, Any]:
        name, services = TopicName.parse(topic), self._services()
        await services.catalog.check_regular(name)
        await services.placement.wait_placed(name)
        address = services.placement.owner_address(name)
        if address is None:
            raise ServedElsewhere(name, None)
        found = {"brokerUrl": address.service_url, "nativeUrl": address.service_url, "httpUrl": address.http_url}
        if address.service_url_tls is not None:
            found["brokerUrlTls"] = address.service_url_tls
        if address.http_url_tls is not None:
            found["httpUrlTls"] = address.http_url_tls
        return found

    async def partitions(self, topic: str, check_allow_auto_creation: bool) -> int:
        return await self._services().catalog.partitions_or_create(TopicName.parse(topic), check_allow_auto_creation)

    # -- topics

    async def create_topic(self, topic: str, properties: Mapping[str, str]) -> None:
        services, name = self._services(), TopicName.parse(topic)
        if await services.catalog.exists(name) or await services.catalog.partitions(name):
            raise AlreadyExists(f"topic {name} already exists")
        await services.catalog.check_free(name)
        await services.topics.create(name)
        if properties:
            created = await services.topics.get(name, create=True)
            if isinstance(created, Topic):
                await created.log.set_properties(dict(properties))

    async def delete_topic(self, topic: str, force: bool) -> None:
        services, name = self._services(), TopicName.parse(topic)
        if await services.catalog.partitions(name):
            raise NotAllowed(f"{name} is partitioned: delete it with its partitions")
        self._mine(topic)
        loaded = services.topics.loaded(name)
        if force or loaded is None or loaded.is_idle:
            await self._forget_schema(name)
        await services.topics.delete(name, force=force)
        await self._forget_grants(name)

    async def _forget_schema(self, name: TopicName) -> None:
        """A topic's schema goes with it, and first: its clients may be back, with theirs, as soon as it is gone.
        Partitions have none of their own."""
        services = self._services()
        loaded = services.topics.loaded(name)
        if name.partition_index < 0 and (loaded is not None or await services.catalog.exists(name)):
            await services.schemas.forget_topic(name, may_return=loaded is not None and bool(loaded.producers))

    async def create_partitions(self, topic: str, count: int, properties: Mapping[str, str]) -> None:
        services, name = self._services(), TopicName.parse(topic)
        await services.catalog.create_partitioned(name, count, properties)
        await self._make_partitions(name, range(count))

    async def update_partitions(self, topic: str, count: int) -> None:
        services, name = self._services(), TopicName.parse(topic)

        async def prepare(indexes: range) -> None:
            await self._make_partitions(name, indexes)
            await self._carry_subscriptions(name, indexes)

        await services.catalog.grow_partitions(name, count, prepare)

    async def _carry_subscriptions(self, name: TopicName, indexes: range) -> None:
        """New partitions have every subscription of the old ones, from their first message on."""
        if not name.is_persistent:
            return
        catalog, cursors = self._services().catalog, self.cursors.reach
        old = [name.partition(index) for index in range(indexes.start) if await catalog.exists(name.partition(index))]
        carried: dict[str, dict[str, str]] = {}
        for known in await cursors.each(old, "durable"):
            carried.update(known)
        new, start = [name.partition(index) for index in indexes], [EARLIEST.ledger, EARLIEST.entry]
        for subscription, properties in carried.items():
            await cursors.each(new, "make", name=subscription, position=start, properties=properties)

    async def _make_partitions(self, name: TopicName, indexes: range) -> None:
        if name.is_persistent:
            await self.reach.each([name.partition(index) for index in indexes], "create_part")

    async def create_part(self, topic: str) -> None:
        await self._services().topics.create(TopicName.parse(topic))

    async def create_missed_partitions(self, topic: str) -> None:
        name = TopicName.parse(topic)
        count = await self._services().catalog.partitions(name)
        if not count:
            raise TopicNotFound(f"Partitioned Topic {name} not found")
        await self._make_partitions(name, range(count))

    async def delete_partitions(self, topic: str, force: bool) -> None:
        services, name = self._services(), TopicName.parse(topic)
        count = await services.catalog.partitions(name)
        if not count:
            raise TopicNotFound(f"no such partitioned topic: {name}")
        parts = [name.partition(index) for index in range(count)]
        produced = await self.reach.each(parts, "check_deletable", force=force)  # all, before the first one goes
        await services.schemas.forget_topic(name, may_return=any(produced))
        await self.reach.each(parts, "delete_part", force=force)
        await services.catalog.delete_partitioned(name)
        await self._forget_grants(name)

    async def check_deletable(self, topic: str, force: bool) -> bool:
        """Raises NotAllowed; otherwise: has it producers (that will be back)?"""
        services, name = self._services(), self._mine(topic)
        found = services.topics.loaded(name)
        if found is None and not force and await services.catalog.exists(name):
            found = await services.topics.get(name, create=False)
        if not force and isinstance(found, Topic):
            found.check_unused()
        elif not force and found is not None and not found.is_idle:
            raise NotAllowed(f"{name} has connected producers or consumers")
        return found is not None and bool(found.producers)

    async def delete_part(self, topic: str, force: bool) -> None:
        """One partition, if it is there."""
        services, name = self._services(), self._mine(topic)
        if services.topics.loaded(name) is not None or await services.catalog.exists(name):
            await services.topics.delete(name, force=force)

    def _mine(self, topic: str) -> TopicName:
        """Raises ServedElsewhere: what is not loaded here may be loaded there."""
        name = TopicName.parse(topic)
        check_here(self._services().placement, name)
        return name

    async def list_topics(self, namespace: str, domain: str, include_partitioned: bool) -> list[str]:
        services = self._services()
        await services.catalog.policies(namespace)
        if domain == Domain.PERSISTENT:
            names = [str(name) for name in await services.catalog.topics(namespace)]
        else:
            names = await self._non_persistent_everywhere(namespace)
        if include_partitioned:
            names += await self.list_partitioned(namespace, domain)
        return sorted(set(names))

    async def _non_persistent_everywhere(self, namespace: str) -> list[str]:
        found = await self.reach.everywhere("non_persistent", {"namespace": namespace}, absent_ok=True)
        return [name for some in found for name in some]

    async def non_persistent(self, namespace: str) -> list[str]:
        """Loaded on this broker."""
        return loaded_non_persistent(self._services(), namespace)

    async def list_partitioned(self, namespace: str, domain: str) -> list[str]:
        services = self._services()
        await services.catalog.policies(namespace)
        return [str(name) for name in await services.catalog.partitioned_topics(namespace, domain)]

    # -- stats

    async def _existing(self, topic: str) -> Topic:
        name = TopicName.parse(topic)
        found = await self._services().topics.get(name, create=False)
        if not isinstance(found, Topic):
            raise NotAllowed(f"{name} is not persistent")
        return found

    async def topic_stats(self, topic: str, options: StatsOptions) -> dict[str, Any]:
        services, name = self._services(), TopicName.parse(topic)
        found = services.topics.loaded(name)  # what dashboards ask for again and again costs no look into metadata
        if found is None:
            if await services.catalog.partitions(name):
                raise TopicNotFound(f"{name} is partitioned: ask for its partitioned stats")
            found = await services.topics.get(name, create=False)
        book = services.topics.sampler.look(found)
        return await topic_stats(found, book, services.clock.now_ms(), services.address.broker_id, options)

    async def partitioned_stats(self, topic: str, options: StatsOptions) -> dict[str, Any]:
        services, name = self._services(), TopicName.parse(topic)
        count = await services.catalog.partitions(name)
        if not count:
            raise TopicNotFound(f"Partitioned Topic {name} not found")
        parts = [name.partition(index) for index in range(count)]
        figures = await self.reach.each(parts, "part_stats", options=asdict(options))
        return {
            **merged(figures),
            "metadata": {"partitions": count, "deleted": False},
            "partitions": dict(zip(map(str, parts), figures, strict=True)),
        }

    async def part_stats(self, topic: str, options: Mapping[str, bool]) -> dict[str, Any]:
        return await self.topic_stats(topic, StatsOptions(**options))

    async def internal_stats(self, topic: str) -> dict[str, Any]:
        return internal_stats(await self._existing(topic))

    async def terminate_topic(self, topic: str) -> Position:
        found = await self._existing(topic)
        last = await found.terminate()
        return Position(found.log.after(last).ledger, -1) if last == EARLIEST else last

    # -- tenants and namespaces

    async def list_tenants(self) -> list[str]:
        return await self._services().catalog.tenants()

    async def tenant(self, tenant: str) -> dict[str, Any]:
        return await self._services().catalog.tenant(tenant)

    async def create_tenant(self, tenant: str, record: Mapping[str, Any]) -> None:
        await self._services().catalog.create_tenant(tenant, dict(record))

    async def update_tenant(self, tenant: str, record: Mapping[str, Any]) -> None:
        await self._services().catalog.update_tenant(tenant, dict(record))
        await self._server.permissions_changed(tenant)

    async def delete_tenant(self, tenant: str) -> None:
        await self._services().catalog.delete_tenant(tenant)

    async def list_namespaces(self, tenant: str) -> list[str]:
        return await self._services().catalog.namespaces(tenant)

    async def create_namespace(self, namespace: str, record: Mapping[str, Any]) -> None:
        await self._services().catalog.create_namespace(namespace, dict(record))

    async def delete_namespace(self, namespace: str) -> None:
        await self._services().catalog.delete_namespace(namespace)
        await self._services().schemas.forget_namespace(namespace)

    # -- who may do what

    async def grants(self, namespace: str) -> Grants:
        await self._services().catalog.policies(namespace)
        return await self._services().catalog.grants(namespace)

    async def topic_exists(self, topic: str) -> bool:
        services, name = self._services(), TopicName.parse(topic)
        if services.topics.loaded(name) is not None or await services.catalog.exists(name):
            return True
        if await services.catalog.partitions(name.base) > max(name.partition_index, 0):
            return True
        return not name.is_persistent and bool(await self.reach.call_owner(name, "is_loaded"))

    async def is_loaded(self, topic: str) -> bool:
        return self._services().topics.loaded(self._mine(topic)) is not None

    async def change_grants(self, namespace: str, change: Callable[[Grants], Grants]) -> None:
        """Counts at once: what was opened by a grant that is gone is closed."""
        await self._services().catalog.change_grants(namespace, change)
        await self._server.permissions_changed(namespace.partition("/")[0], namespace)

    async def _forget_grants(self, name: TopicName) -> None:
        """A topic created again under the same name is another one."""
        catalog = self._services().catalog
        if str(name) in (await catalog.grants(name.namespace_path)).topics:
            await catalog.change_grants(name.namespace_path, lambda grants: grants.without_topic(name))

    # -- the broker itself

    def health(self) -> None:
        self._check_storage()
        if (peers := self._services().peers) is not None:
            peers.check_valid()

    def metrics(self) -> AsyncIterator[bytes]:
        services = self._services()
        if self._metrics is None:
            settings = services.settings
            self._metrics = Metrics(
                services.clock,
                services.topics.sampler,
                services.schemas.counts,
                per_topic=settings.metrics_topics,
                topics_max=settings.metrics_topics_max,
                version=SERVER_VERSION,
            )
        return self._metrics.page(list(services.topics), self._figures, services.scalable)

    def _figures(self) -> dict[str, float]:
        guard = self._services().guard
        return {
            "anabranch_connections": self._server.connections,
            "anabranch_sign_ins_total": guard.sign_ins[0],
            "anabranch_sign_ins_refused_total": guard.sign_ins[1],
            "anabranch_permissions_refused_total": guard.denials,
        }
