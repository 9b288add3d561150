"""Topics and partitions for administrators: lookup, creation, deletion, listing and stats.

Topics are named in full (`persistent://tenant/namespace/topic`). What concerns the partitions of a topic is done by the
broker that serves each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from anabranch.broker.admin.owner_routing import OwnerRouting
from anabranch.broker.admin.subscriptions import SubscriptionAdmin
from anabranch.broker.errors import TopicNotFound
from anabranch.broker.placement import ServedElsewhere, check_here
from anabranch.broker.segment.owned_segment import segment_of
from anabranch.broker.services import Services
from anabranch.broker.stats.subscription_stats import StatsOptions
from anabranch.broker.stats.topic_stats import internal_stats, merged, topic_stats
from anabranch.broker.topic.topic import Topic
from anabranch.broker.wire.lookup_commands import loaded_non_persistent
from anabranch.interbroker.peer_calls import peer_call
from anabranch.model.errors import AlreadyExists, NotAllowed
from anabranch.model.names import Domain, TopicName
from anabranch.model.position import EARLIEST, Position


class TopicAdmin:
    def __init__(self, services: Callable[[], Services], subscriptions: SubscriptionAdmin) -> None:
        self._services = services
        self._subscriptions = subscriptions
        self._routing = OwnerRouting(services)

    async def check_served(self, topic: str) -> None:
        """Raises ServedElsewhere for a topic of another broker. Every broker answers for a partitioned topic."""
        services, name = self._services(), TopicName.parse(topic)
        if services.cluster is None or services.cluster.is_here(name):
            return
        if name.partition_index < 0 and await services.catalog.partitions(name):
            return
        await services.cluster.wait_placed(name)
        if not services.cluster.is_here(name):
            raise ServedElsewhere(name, services.cluster.owner_address(name))

    async def check_not_migrated(self, topic: str) -> None:
        """TopicMigrated, TopicMigrating for the old name of a scalable topic. A loaded regular topic needs no metadata
        read, because dashboards poll its stats."""
        services, name = self._services(), TopicName.parse(topic)
        loaded = services.topics.loaded(name)
        if loaded is None or segment_of(loaded) is not None:
            await services.catalog.check_not_migrated(name)

    # -- lookup

    async def lookup(self, topic: str, authoritative: bool, listener: str | None) -> dict[str, Any]:
        """`brokerUrl`, `httpUrl` and `nativeUrl` of the broker that serves the topic, and its TLS addresses if any."""
        name, services = TopicName.parse(topic), self._services()
        await services.catalog.check_regular(name)
        await services.placement.wait_placed(name)
        address = services.placement.owner_address(name)
        if address is None:
            raise ServedElsewhere(name, None)
        address = address.of_listener(listener)
        found = {"brokerUrl": address.service_url, "nativeUrl": address.service_url, "httpUrl": address.http_url}
        if address.service_url_tls is not None:
            found["brokerUrlTls"] = address.service_url_tls
        if address.http_url_tls is not None:
            found["httpUrlTls"] = address.http_url_tls
        return found

    async def partitions(self, topic: str, check_allow_auto_creation: bool) -> int:
        """Number of partitions, 0 for a topic without; NotFound if there is none and none may be created."""
        return await self._services().catalog.partitions_or_create(TopicName.parse(topic), check_allow_auto_creation)

    # -- topics

    async def create(self, topic: str, properties: Mapping[str, str]) -> None:
        services, name = self._services(), TopicName.parse(topic)
        if await services.catalog.exists(name) or await services.catalog.partitions(name):
            raise AlreadyExists(f"topic {name} already exists")
        await services.catalog.check_free(name)
        await services.topics.create(name)
        if properties:
            created = await services.topics.get(name, create=True)
            if isinstance(created, Topic):
                await created.log.set_properties(dict(properties))

    async def delete(self, topic: str, force: bool) -> None:
        services, name = self._services(), TopicName.parse(topic)
        if await services.catalog.partitions(name):
            raise NotAllowed(f"{name} is partitioned: delete it with its partitions")
        self._served_name(topic)
        await services.catalog.check_not_migrated(name, is_fresh=True)
        loaded = services.topics.loaded(name)
        if force or loaded is None or loaded.is_idle:
            await self._delete_schema(name)
        await services.topics.delete(name, force=force)
        await services.catalog.forget_grants(name)
        if name.partition_index < 0:  # a partition uses the policies of its partitioned topic
            await services.catalog.topic_policies.forget(name)

    async def _delete_schema(self, name: TopicName) -> None:
        """Deletes the schema before its topic, because clients may recreate both as soon as the topic is gone. The
        schema of a partitioned topic belongs to the parent."""
        services = self._services()
        loaded = services.topics.loaded(name)
        if name.partition_index < 0 and (loaded is not None or await services.catalog.exists(name)):
            await services.schemas.forget_topic(name, may_return=loaded is not None and bool(loaded.producers))

    async def create_partitions(self, topic: str, count: int, properties: Mapping[str, str]) -> None:
        services, name = self._services(), TopicName.parse(topic)
        await services.catalog.create_partitioned(name, count, properties)
        await self._create_partitions(name, range(count))

    async def update_partitions(self, topic: str, count: int) -> None:
        services, name = self._services(), TopicName.parse(topic)

        async def prepare(indexes: range) -> None:
            await self._create_partitions(name, indexes)
            await self._copy_subscriptions(name, indexes)

        await services.catalog.grow_partitions(name, count, prepare)

    async def _copy_subscriptions(self, name: TopicName, indexes: range) -> None:
        """New partitions get every subscription of the old ones, from their first message on."""
        if not name.is_persistent:
            return
        catalog, subscriptions, routing = self._services().catalog, self._subscriptions, self._routing
        old = [name.partition(index) for index in range(indexes.start) if await catalog.exists(name.partition(index))]
        copied: dict[str, dict[str, str]] = {}
        for known in await routing.call_each(old, subscriptions.durable_subscriptions):
            copied.update(known)
        new, start = [name.partition(index) for index in indexes], [EARLIEST.ledger, EARLIEST.entry]
        for subscription, properties in copied.items():
            await routing.call_each(
                new, subscriptions.create_on_topic, name=subscription, position=start, properties=properties
            )

    async def _create_partitions(self, name: TopicName, indexes: range) -> None:
        if name.is_persistent:
            await self._routing.call_each([name.partition(index) for index in indexes], self.create_partition)

    @peer_call("admin.create_part")
    async def create_partition(self, topic: str) -> None:
        await self._services().topics.create(TopicName.parse(topic))

    async def create_missed_partitions(self, topic: str) -> None:
        """Creates the missing partitions of a partitioned topic; NotFound."""
        name = TopicName.parse(topic)
        count = await self._services().catalog.partitions(name)
        if not count:
            raise TopicNotFound(f"Partitioned Topic {name} not found")
        await self._create_partitions(name, range(count))

    async def delete_partitions(self, topic: str, force: bool) -> None:
        services, name = self._services(), TopicName.parse(topic)
        count = await services.catalog.partitions(name)
        if not count:
            raise TopicNotFound(f"no such partitioned topic: {name}")
        parts = [name.partition(index) for index in range(count)]
        produced = await self._routing.call_each(
            parts, self.check_deletable, force=force
        )  # all are checked before the first is deleted
        await services.catalog.begin_deletion(name)
        await services.schemas.forget_topic(name, may_return=any(produced))
        for _ in range(2):  # clients may have opened some again before they saw the mark of the deletion
            await self._routing.call_each(parts, self.delete_partition, force=force)
        await services.catalog.delete_partitioned(name)
        await services.catalog.forget_grants(name)
        await services.catalog.topic_policies.forget(name)

    @peer_call("admin.check_deletable")
    async def check_deletable(self, topic: str, force: bool) -> bool:
        """Raises NotAllowed while the topic is in use, unless `force`. True: it has producers, which will reconnect."""
        services, name = self._services(), self._served_name(topic)
        found = services.topics.loaded(name)
        if found is None and not force and await services.catalog.exists(name):
            found = await services.topics.get(name, create=False)
        if not force and isinstance(found, Topic):
            found.check_unused()
        elif not force and found is not None and not found.is_idle:
            raise NotAllowed(f"{name} has connected producers or consumers")
        return found is not None and bool(found.producers)

    @peer_call("admin.delete_part")
    async def delete_partition(self, topic: str, force: bool) -> None:
        """Deletes one partition if it exists."""
        services, name = self._services(), self._served_name(topic)
        if services.topics.loaded(name) is not None or await services.catalog.exists(name):
            await services.topics.delete(name, force=force)

    def _served_name(self, topic: str) -> TopicName:
        """Raises ServedElsewhere, because a topic that is not loaded here may be loaded by another broker."""
        name = TopicName.parse(topic)
        check_here(self._services().placement, name)
        return name

    async def list_all(self, namespace: str, domain: str, include_partitioned: bool) -> list[str]:
        """Full names, each partition by itself; `include_partitioned` adds the names of partitioned topics."""
        services = self._services()
        await services.catalog.policies(namespace)
        if domain == Domain.PERSISTENT:
            names = [str(name) for name in await services.catalog.topics(namespace)]
        else:
            names = await self._non_persistent_of_all_brokers(namespace)
        if include_partitioned:
            names += await self.list_partitioned(namespace, domain)
        return sorted(set(names))

    async def _non_persistent_of_all_brokers(self, namespace: str) -> list[str]:
        found = await self._routing.call_all(self.loaded_non_persistent, namespace=namespace, absent_ok=True)
        return [name for some in found for name in some]

    @peer_call("admin.non_persistent")
    async def loaded_non_persistent(self, namespace: str) -> list[str]:
        """Non-persistent topics that are loaded on this broker."""
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

    async def stats(self, topic: str, options: StatsOptions) -> dict[str, Any]:
        services, name = self._services(), TopicName.parse(topic)
        found = services.topics.loaded(name)  # dashboards poll this, so a loaded topic needs no metadata read
        if found is None:
            if await services.catalog.partitions(name):
                raise TopicNotFound(f"{name} is partitioned: use its partitioned stats")
            found = await services.topics.get(name, create=False)
        book = services.topics.sampler.sample(found)
        return await topic_stats(found, book, services.clock.now_ms(), services.address.broker_id, options)

    async def partitioned_stats(self, topic: str, options: StatsOptions) -> dict[str, Any]:
        services, name = self._services(), TopicName.parse(topic)
        count = await services.catalog.partitions(name)
        if not count:
            raise TopicNotFound(f"Partitioned Topic {name} not found")
        parts = [name.partition(index) for index in range(count)]
        figures = await self._routing.call_each(parts, self.partition_stats, options=asdict(options))
        return {
            **merged(figures),
            "metadata": {"partitions": count, "deleted": False},
            "partitions": dict(zip(map(str, parts), figures, strict=True)),
        }

    @peer_call("admin.part_stats")
    async def partition_stats(self, topic: str, options: Mapping[str, bool]) -> dict[str, Any]:
        return await self.stats(topic, StatsOptions(**options))

    async def internal_stats(self, topic: str) -> dict[str, Any]:
        return internal_stats(await self._existing(topic))

    async def terminate(self, topic: str) -> Position:
        """Accepts no message after the last one, whose position is returned. Safe to repeat."""
        found = await self._existing(topic)
        last = await found.terminate()
        return Position(found.log.after(last).ledger, -1) if last == EARLIEST else last

    async def exists(self, topic: str) -> bool:
        services, name = self._services(), TopicName.parse(topic)
        if services.topics.loaded(name) is not None or await services.catalog.exists(name):
            return True
        if await services.catalog.partitions(name.base) > max(name.partition_index, 0):
            return True
        return not name.is_persistent and bool(await self._routing.call_owner(name, self.is_loaded))

    @peer_call("admin.is_loaded")
    async def is_loaded(self, topic: str) -> bool:
        return self._services().topics.loaded(self._served_name(topic)) is not None
