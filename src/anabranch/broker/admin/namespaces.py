"""Clusters, policies of namespaces, bundles, and calls for all topics of a namespace.

A policy change is applied to the loaded topics before the call returns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from anabranch.broker.admin.owner_routing import OwnerRouting
from anabranch.broker.catalog import bundles
from anabranch.broker.catalog.catalog import NamespacePolicies
from anabranch.broker.catalog.policies import LOCAL_CLUSTER
from anabranch.broker.catalog.policy_fields import shown_record
from anabranch.broker.errors import ConsumerBusy, TopicNotFound
from anabranch.broker.services import Services
from anabranch.broker.topic.topic import Topic
from anabranch.interbroker.peer_calls import peer_call
from anabranch.model.errors import BadRequest, Error, NotAllowed, NotFound
from anabranch.model.names import TopicName
from anabranch.model.position import LATEST

Change = Callable[[dict[str, Any]], dict[str, Any]]


class ForeignCluster(Error):
    """A cluster that does not exist or that the tenant may not use."""

    code = "forbidden"


class NamespaceAdmin:
    def __init__(self, services: Callable[[], Services]) -> None:
        self._services = services
        self._routing = OwnerRouting(services)

    # -- clusters

    async def clusters(self) -> list[str]:
        return await self._services().catalog.cluster_records.names()

    async def cluster(self, name: str) -> dict[str, Any]:
        """The stored record; this cluster's has the addresses of this broker in addition."""
        stored = await self._services().catalog.cluster_records.record(name)
        address = self._services().address
        where: dict[str, Any] = {}
        if name == LOCAL_CLUSTER:
            where = {"serviceUrl": address.http_url, "brokerServiceUrl": address.service_url}
            if address.service_url_tls is not None:
                where["brokerServiceUrlTls"] = address.service_url_tls
            if address.http_url_tls is not None:
                where["serviceUrlTls"] = address.http_url_tls
        return {**where, **stored}

    async def save_cluster(self, name: str, data: Mapping[str, Any], create: bool) -> None:
        """AlreadyExists if it exists and `create` is on, NotFound if it does not and `create` is off."""
        await self._services().catalog.cluster_records.save(name, data, create=create)

    async def change_cluster(self, name: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        """Changes the stored record; NotFound for an unknown cluster."""
        await self._services().catalog.cluster_records.change(name, change)

    async def delete_cluster(self, name: str) -> None:
        """NotAllowed while a tenant or namespace names it."""
        await self._services().catalog.delete_cluster(name)

    async def check_clusters(self, names: Iterable[str]) -> None:
        """NotAllowed if one of them does not exist."""
        await self._services().catalog.cluster_records.check(names)

    # -- namespaces

    async def record(self, namespace: str) -> dict[str, Any]:
        """The stored policies, under Pulsar's names; NotFound."""
        return (await self._services().catalog.policies(namespace)).record

    async def shown(self, namespace: str) -> dict[str, Any]:
        """The policies with every key that Pulsar shows."""
        record = await self.record(namespace)
        return shown_record(record, bundles.shown(bundles.boundaries_of(record)))

    async def change(self, namespace: str, change: Change) -> None:
        """`change` may be called several times, and may raise."""
        services = self._services()
        await services.catalog.change_policies(
            namespace, lambda policies: NamespacePolicies.of(change(policies.record))
        )
        await services.topics.apply_policies(namespace)

    async def check_replication(self, tenant: str, names: Iterable[str]) -> None:
        """ForeignCluster if a cluster does not exist or is not allowed to the tenant."""
        wanted, catalog = set(names), self._services().catalog
        unknown = wanted.difference(await catalog.cluster_records.names())
        if unknown:
            raise ForeignCluster(f"Invalid cluster id: {', '.join(sorted(unknown))}")
        allowed = (await catalog.tenant(tenant)).get("allowedClusters") or [LOCAL_CLUSTER]
        foreign = wanted.difference(allowed)
        if foreign:
            raise ForeignCluster(f"Cluster [{', '.join(sorted(foreign))}] is not in the list of allowed clusters list")

    # -- bundles

    async def bundle_of(self, topic: str) -> str:
        name = TopicName.parse(topic)
        record = await self.record(name.namespace_path)
        return bundles.bundle_of(str(name), bundles.boundaries_of(record))

    async def split_bundle(self, namespace: str, bundle: str) -> None:
        def change(record: dict[str, Any]) -> dict[str, Any]:
            places = bundles.boundaries_of(record)
            return {**record, "bundles": bundles.shown(bundles.split(places, bundles.parse_range(bundle, places)))}

        await self.change(namespace, change)

    async def _inside(self, namespace: str, bundle: str | None) -> Callable[[TopicName], bool]:
        record = await self.record(namespace)
        if bundle is None:
            return lambda name: name.namespace_path == namespace
        span = bundles.parse_range(bundle, bundles.boundaries_of(record))
        return lambda name: name.namespace_path == namespace and bundles.holds(span, str(name))

    async def unload(self, namespace: str, bundle: str | None, destination: str | None = None) -> None:
        """Closes loaded topics; their clients reconnect. With a `destination` (a broker as `brokers list` names it, or
        its id) it serves the bundle's hash range afterwards."""
        await self._inside(namespace, bundle)
        if destination:
            await self._move(namespace, bundle, destination)
        await self._routing.call_all(self.unload_here, absent_ok=True, namespace=namespace, bundle=bundle)

    async def _move(self, namespace: str, bundle: str | None, destination: str) -> None:
        services = self._services()
        if bundle is None:
            raise BadRequest("a destination needs one bundle: unload the bundles one by one")
        if services.peers is None:
            if destination != services.address.broker_id:
                raise NotFound(f"Broker {destination} does not exist")
            return
        facts = await services.peers.facts()
        wanted = next((one for one in facts if destination in (one.id, one.address.broker_id)), None)
        if wanted is None:
            raise NotFound(f"Broker {destination} does not exist")
        if wanted.is_draining:
            raise NotAllowed(f"Broker {destination} is being drained")
        span = bundles.parse_range(bundle, bundles.boundaries_of(await self.record(namespace)))
        await services.peers.move(span, wanted.id)

    @peer_call("policies.unload_mine")
    async def unload_here(self, namespace: str, bundle: str | None) -> None:
        """Closes the topics that this broker serves."""
        inside, topics, here = await self._inside(namespace, bundle), self._services().topics, self._services().address
        await asyncio.gather(*(topics.close(topic.name, here) for topic in topics if inside(topic.name)))

    # -- all topics of a namespace

    async def _persistent(self, namespace: str, bundle: str | None) -> list[TopicName]:
        """Persistent topics of the namespace, on all brokers."""
        inside = await self._inside(namespace, bundle)
        return [name for name in await self._services().catalog.topics(namespace) if inside(name)]

    async def _topic(self, topic: str) -> Topic | None:
        """None: the topic was deleted meanwhile."""
        try:
            found = await self._services().topics.get(TopicName.parse(topic), create=False)
        except TopicNotFound:
            return None
        assert isinstance(found, Topic)
        return found

    async def clear_backlog(self, namespace: str, bundle: str | None, subscription: str | None) -> None:
        """Moves all subscriptions, or the one named, to the end."""
        await self._routing.call_each(
            await self._persistent(namespace, bundle), self.clear_topic_backlog, subscription=subscription
        )

    @peer_call("policies.clear_topic")
    async def clear_topic_backlog(self, topic: str, subscription: str | None) -> None:
        found = await self._topic(topic)
        if found is None:
            return
        for one in list(found.subscriptions.values()):
            if one.is_durable and subscription in (None, one.name):
                await one.seek(found.resolve(LATEST))

    async def unsubscribe(self, namespace: str, bundle: str | None, subscription: str) -> None:
        """ConsumerBusy if the subscription has consumers on any topic; then none is deleted."""
        names = await self._persistent(namespace, bundle)
        if any(await self._routing.call_each(names, self.has_consumers, subscription=subscription)):
            raise ConsumerBusy("Subscription has active connected consumers")
        await self._routing.call_each(names, self.unsubscribe_topic, subscription=subscription)

    @peer_call("policies.is_subscription_used")
    async def has_consumers(self, topic: str, subscription: str) -> bool:
        found = await self._topic(topic)
        known = None if found is None else found.subscriptions.get(subscription)
        return known is not None and bool(known.consumers)

    @peer_call("policies.unsubscribe_topic")
    async def unsubscribe_topic(self, topic: str, subscription: str) -> None:
        """Deletes the subscription if it exists."""
        found = await self._topic(topic)
        if found is not None and subscription in found.subscriptions:
            await found.unsubscribe(subscription, force=False)
