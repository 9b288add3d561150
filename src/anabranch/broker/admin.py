"""What administrators may ask of this broker, as plain calls with full names. HTTP is one skin over it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from anabranch.broker.authorization import Grants
from anabranch.broker.cursor_admin import CursorAdmin
from anabranch.broker.errors import TopicNotFound
from anabranch.broker.metrics import Metrics
from anabranch.broker.namespace_admin import NamespaceAdmin
from anabranch.broker.schema_admin import SchemaAdmin
from anabranch.broker.server import BrokerServer
from anabranch.broker.services import SERVER_VERSION, Services
from anabranch.broker.stats import StatsOptions, internal_stats, merged, topic_stats
from anabranch.broker.subscription import Subscription
from anabranch.broker.topic import Topic
from anabranch.broker.topic_admin import TopicAdmin
from anabranch.model.errors import AlreadyExists, NotAllowed
from anabranch.model.names import Domain, TopicName
from anabranch.model.position import EARLIEST, Position


class BrokerAdmin:
    """Implements `rest.face.BrokerFace`."""

    def __init__(
        self, services: Callable[[], Services], server: BrokerServer, check_storage: Callable[[], None]
    ) -> None:
        self._services = services
        self._server = server
        self._check_storage = check_storage
        self._metrics: Metrics | None = None  # remembers what was seen at the last look
        self.schemas = SchemaAdmin(services)
        self.policies = NamespaceAdmin(services)
        self.care = TopicAdmin(services)
        self.cursors = CursorAdmin(services)

    # -- lookup

    async def lookup(self, topic: str, authoritative: bool, listener: str | None) -> dict[str, Any]:
        TopicName.parse(topic)
        address = self._services().address
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
        await services.topics.create(name)
        if properties:
            created = await services.topics.get(name, create=True)
            if isinstance(created, Topic):
                await created.log.set_properties(dict(properties))

    async def delete_topic(self, topic: str, force: bool) -> None:
        services, name = self._services(), TopicName.parse(topic)
        if await services.catalog.partitions(name):
            raise NotAllowed(f"{name} is partitioned: delete it with its partitions")
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
        topics = self._services().topics
        if not name.is_persistent:
            return
        carried: dict[str, Mapping[str, str]] = {}
        for index in range(indexes.start):
            if await self._services().catalog.exists(name.partition(index)):
                old = await topics.get(name.partition(index), create=False)
                for one in old.subscriptions.values():
                    if isinstance(one, Subscription) and one.is_durable:
                        carried[one.name] = dict(one.cursor.properties)
        for index in indexes if carried else ():
            new = await topics.get(name.partition(index), create=False)
            assert isinstance(new, Topic)
            for subscription, properties in carried.items():
                await new.create_subscription(subscription, new.resolve(EARLIEST), properties)

    async def _make_partitions(self, name: TopicName, indexes: range) -> None:
        if name.is_persistent:
            for index in indexes:
                await self._services().topics.create(name.partition(index))

    async def delete_partitions(self, topic: str, force: bool) -> None:
        services, name = self._services(), TopicName.parse(topic)
        count = await services.catalog.partitions(name)
        if not count:
            raise TopicNotFound(f"no such partitioned topic: {name}")
        if not force:
            for index in range(count):
                loaded = services.topics.loaded(name.partition(index))
                if loaded is not None and not loaded.is_idle:
                    raise NotAllowed(f"{name} has connected producers or consumers")
        parts = [services.topics.loaded(name.partition(index)) for index in range(count)]
        produced = any(part is not None and part.producers for part in parts)
        await services.schemas.forget_topic(name, may_return=produced)
        for index in range(count):
            partition = name.partition(index)
            if services.topics.loaded(partition) is not None or await services.catalog.exists(partition):
                await services.topics.delete(partition, force=force)
        await services.catalog.delete_partitioned(name)
        await self._forget_grants(name)

    async def list_topics(self, namespace: str, domain: str, include_partitioned: bool) -> list[str]:
        services = self._services()
        await services.catalog.policies(namespace)
        if domain == Domain.PERSISTENT:
            names = [str(name) for name in await services.catalog.topics(namespace)]
        else:
            loaded = (topic.name for topic in services.topics)
            names = [str(n) for n in loaded if n.domain is Domain.NON_PERSISTENT and n.namespace_path == namespace]
        if include_partitioned:
            names += await self.list_partitioned(namespace, domain)
        return sorted(set(names))

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
        if await services.catalog.partitions(name):
            raise TopicNotFound(f"{name} is partitioned: ask for its partitioned stats")
        found = await services.topics.get(name, create=False)
        return await topic_stats(found, services.clock.now_ms(), services.address.broker_id, options)

    async def partitioned_stats(self, topic: str, options: StatsOptions) -> dict[str, Any]:
        services, name = self._services(), TopicName.parse(topic)
        count = await services.catalog.partitions(name)
        if not count:
            raise TopicNotFound(f"Partitioned Topic {name} not found")
        parts = {str(name.partition(i)): await self.topic_stats(str(name.partition(i)), options) for i in range(count)}
        return {
            **merged(list(parts.values())),
            "metadata": {"partitions": count, "deleted": False},
            "partitions": parts,
        }

    async def internal_stats(self, topic: str) -> dict[str, Any]:
        return internal_stats(await self._existing(topic))

    async def terminate_topic(self, topic: str) -> Position:
        return await (await self._existing(topic)).terminate()

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
        return await services.catalog.partitions(name.base) > max(name.partition_index, 0)

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

    def metrics(self) -> AsyncIterator[bytes]:
        services = self._services()
        if self._metrics is None:
            settings = services.settings
            self._metrics = Metrics(
                services.clock,
                per_topic=settings.metrics_topics,
                topics_max=settings.metrics_topics_max,
                version=SERVER_VERSION,
            )
        return self._metrics.page(list(services.topics), self._figures)

    def _figures(self) -> dict[str, float]:
        guard = self._services().guard
        return {
            "anabranch_connections": self._server.connections,
            "anabranch_sign_ins_total": guard.sign_ins[0],
            "anabranch_sign_ins_refused_total": guard.sign_ins[1],
            "anabranch_permissions_refused_total": guard.denials,
        }
