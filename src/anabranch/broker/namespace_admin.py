"""What administrators may ask about clusters, namespaces and their policies, as plain calls. HTTP is a skin over it.

A change counts at once: loaded topics of the namespace are told before the call returns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from anabranch.broker import bundles
from anabranch.broker.catalog import NamespacePolicies
from anabranch.broker.errors import ConsumerBusy
from anabranch.broker.policies import LOCAL_CLUSTER
from anabranch.broker.policyrules import shown_record
from anabranch.broker.services import Services
from anabranch.broker.topic import Topic
from anabranch.model.errors import Error
from anabranch.model.names import TopicName
from anabranch.model.position import LATEST

Change = Callable[[dict[str, Any]], dict[str, Any]]


class ForeignCluster(Error):
    """A cluster that the tenant may not use, or that is not there."""

    code = "forbidden"


class NamespaceAdmin:
    """Implements `rest.namespace_face.NamespaceFace`."""

    def __init__(self, services: Callable[[], Services]) -> None:
        self._services = services

    # -- clusters

    async def clusters(self) -> list[str]:
        return await self._services().catalog.clusters()

    async def cluster(self, name: str) -> dict[str, Any]:
        """Our own one says by itself where it is."""
        stored = await self._services().catalog.cluster(name)
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
        await self._services().catalog.save_cluster(name, data, create=create)

    async def delete_cluster(self, name: str) -> None:
        await self._services().catalog.delete_cluster(name)

    async def check_clusters(self, names: Iterable[str]) -> None:
        await self._services().catalog.check_clusters(names)

    # -- namespaces

    async def record(self, namespace: str) -> dict[str, Any]:
        """The policies as they are stored, under Pulsar's names; NotFound."""
        return (await self._services().catalog.policies(namespace)).record

    async def shown(self, namespace: str) -> dict[str, Any]:
        record = await self.record(namespace)
        return shown_record(record, bundles.shown(bundles.boundaries_of(record)))

    async def change(self, namespace: str, change: Change) -> None:
        services = self._services()
        await services.catalog.change_policies(
            namespace, lambda policies: NamespacePolicies.of(change(policies.record))
        )
        await services.topics.apply_policies(namespace)

    async def check_replication(self, tenant: str, names: Iterable[str]) -> None:
        """Namespaces may only live where their tenant may."""
        wanted, catalog = set(names), self._services().catalog
        unknown = wanted.difference(await catalog.clusters())
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

    async def unload(self, namespace: str, bundle: str | None) -> None:
        """Loaded topics are closed; their clients come back and open them again."""
        inside, topics = await self._inside(namespace, bundle), self._services().topics
        await asyncio.gather(*(topics.close(topic.name) for topic in topics if inside(topic.name)))

    # -- all topics of a namespace at once

    async def _persistent(self, namespace: str, bundle: str | None) -> list[Topic]:
        inside, services = await self._inside(namespace, bundle), self._services()
        found = []
        for name in await services.catalog.topics(namespace):
            if inside(name):
                topic = await services.topics.get(name, create=False)
                assert isinstance(topic, Topic)
                found.append(topic)
        return found

    async def clear_backlog(self, namespace: str, bundle: str | None, subscription: str | None) -> None:
        """Subscriptions (or the one named, where it exists) go to the end."""
        for topic in await self._persistent(namespace, bundle):
            for one in list(topic.subscriptions.values()):
                if one.is_durable and subscription in (None, one.name):
                    await one.seek(topic.resolve(LATEST))

    async def unsubscribe(self, namespace: str, bundle: str | None, subscription: str) -> None:
        """All or nothing: no topic loses it while another one has consumers on it."""
        having = [t for t in await self._persistent(namespace, bundle) if subscription in t.subscriptions]
        if any(topic.subscriptions[subscription].consumers for topic in having):
            raise ConsumerBusy("Subscription has active connected consumers")
        for topic in having:
            await topic.unsubscribe(subscription, force=False)
