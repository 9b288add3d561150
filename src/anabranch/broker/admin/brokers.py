"""The brokers of the cluster: list, leader, drain, loaded bundles, configuration.

A broker without a cluster is a list of one, and leads. Settings are strings, without secrets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from anabranch.broker.catalog import bundles
from anabranch.broker.catalog.policies import LOCAL_CLUSTER
from anabranch.broker.peers import BrokerFacts
from anabranch.broker.services import Services
from anabranch.broker.stats.subscription_stats import StatsOptions
from anabranch.broker.stats.topic_stats import topic_stats
from anabranch.broker.topic.topic import Topic
from anabranch.broker.topic_registry.factory import AnyTopic
from anabranch.interbroker.peer_calls import Method, peer_call, peer_call_of
from anabranch.model.errors import Error, NotAllowed, NotFound, NotReady


class ChangeableSettings(Protocol):
    """Settings that change while brokers run (`node/dynamic_settings.py`)."""

    def in_force(self) -> Mapping[str, str]:
        """Every setting as text, without secrets."""

    def names(self) -> list[str]:
        """Of those that can change."""

    def values(self) -> dict[str, str]:
        """Of those that were changed."""

    async def set(self, name: str, value: str) -> None:
        """In force here and stored when it returns, soon on all brokers. NotAllowed says why it cannot be."""

    async def unset(self, name: str) -> None:
        """Back to the value of the start."""


ALL_SLOTS = 256  # of a broker without a cluster
_OWNED = {"broker_assignment": "shared", "is_controlled": False, "is_active": True}


class BrokersAdmin:
    def __init__(
        self,
        services: Callable[[], Services],
        settings: ChangeableSettings | None = None,
        metadata_url: Callable[[], str] = str,
        *,
        version: str = "",
        started_ms: int = 0,
    ) -> None:
        """`metadata_url` is that of the store in use, which a migration changes; without credentials."""
        self._services = services
        self._version, self._started_ms = version, started_ms
        self._settings = settings
        self._metadata_url = metadata_url

    async def names(self, cluster: str | None = None) -> list[str]:
        """Host and HTTP port of each; NotFound for another cluster."""
        return sorted(one.address.broker_id for one in await self._facts(cluster))

    async def _facts(self, cluster: str | None) -> list[BrokerFacts]:
        if cluster not in (None, LOCAL_CLUSTER):
            raise NotFound(f"Cluster {cluster} does not exist here")
        services = self._services()
        if services.peers is not None:
            return await services.peers.facts()
        return [
            BrokerFacts(
                id=services.address.broker_id,
                address=services.address,
                version=self._version,
                started_ms=self._started_ms,
                slots=ALL_SLOTS,
                load=0.0,
                is_draining=False,
                is_leader=True,
            )
        ]

    async def _find(self, cluster: str, broker: str) -> BrokerFacts:
        """By host and HTTP port, or by its id."""
        for one in await self._facts(cluster):
            if broker in (one.id, one.address.broker_id):
                return one
        raise NotFound(f"Broker {broker} does not exist")

    async def details(self, cluster: str) -> list[dict[str, Any]]:
        return [_shown(one) for one in await self._facts(cluster)]

    async def leader(self) -> dict[str, str]:
        for one in await self._facts(None):
            if one.is_leader:
                return {"serviceUrl": one.address.http_url, "brokerId": one.address.broker_id}
        raise NotReady("no broker leads now: the election is running")

    async def drain(self, cluster: str, broker: str) -> None:
        """Moves all its topics to the other brokers; it gets no new ones. NotReady if that takes too long."""
        await self._call(await self._find(cluster, broker), self.drain_here)

    async def resume(self, cluster: str, broker: str) -> None:
        await self._call(await self._find(cluster, broker), self.resume_here)

    async def _call(self, broker: BrokerFacts, method: Method) -> Any:
        peers = self._services().peers
        if peers is None or broker.id == peers.me:
            return await method()
        return await peers.call(broker.id, peer_call_of(method).name, {})

    @peer_call("brokers.drain_me")
    async def drain_here(self) -> None:
        peers = self._services().peers
        others = [] if peers is None else [one for one in await peers.facts() if one.id != peers.me]
        if peers is None or all(one.is_draining for one in others):
            raise NotAllowed("there is no other broker for the topics")
        if not await peers.drain():
            raise NotReady("not all topics have moved yet; the drain continues")

    @peer_call("brokers.resume_me")
    async def resume_here(self) -> None:
        peers = self._services().peers
        if peers is not None:
            await peers.resume()

    async def owned(self, cluster: str, broker: str) -> dict[str, Any]:
        """Bundles with loaded topics, as `tenant/namespace/range`."""
        found: dict[str, Any] = await self._call(await self._find(cluster, broker), self.owned_here)
        return found

    @peer_call("brokers.owned_here")
    async def owned_here(self) -> dict[str, Any]:
        loaded = await self._bundles()
        return {name: dict(_OWNED) for name in sorted({bundle for bundle, _ in loaded})}

    async def _bundles(self) -> list[tuple[str, AnyTopic]]:
        services = self._services()
        boundaries: dict[str, Sequence[int]] = {}
        found: list[tuple[str, AnyTopic]] = []
        for topic in services.topics:
            namespace = topic.name.namespace_path
            if namespace not in boundaries:
                try:
                    record = await services.catalog.policies(namespace)
                except NotFound:  # just deleted; its topics are being closed
                    continue
                boundaries[namespace] = bundles.boundaries_of(record.record)
            found.append((f"{namespace}/{bundles.bundle_of(str(topic.name), boundaries[namespace])}", topic))
        return found

    async def topics(self) -> dict[str, Any]:
        """Stats of all loaded topics: namespace → bundle → domain → topic."""
        services = self._services()
        tree: dict[str, dict[str, dict[str, dict[str, Any]]]] = {}
        options = StatsOptions(subscription_backlog_size=False)
        for bundle, topic in await self._bundles():
            try:
                book = services.topics.sampler.sample(topic)
                stats = await topic_stats(topic, book, services.clock.now_ms(), services.address.broker_id, options)
            except Error:  # closed meanwhile
                continue
            namespace, _, place = bundle.rpartition("/")
            domain = tree.setdefault(namespace, {}).setdefault(place, {}).setdefault(str(topic.name.domain), {})
            domain[str(topic.name)] = stats
        return tree

    def configuration(self) -> dict[str, str]:
        """Every setting as a string, by its dotted name."""
        return {} if self._settings is None else dict(self._settings.in_force())

    def dynamic_names(self) -> list[str]:
        return [] if self._settings is None else self._settings.names()

    def dynamic(self) -> dict[str, str]:
        """Settings that were changed at run time."""
        return {} if self._settings is None else self._settings.values()

    async def change(self, setting: str, value: str | None) -> None:
        """None: back to the value of the start. NotAllowed says why a setting cannot change."""
        if self._settings is None:
            raise NotAllowed(f"Can't update non-dynamic configuration: {setting} is read at start")
        if value is None:
            await self._settings.unset(setting)
        else:
            await self._settings.set(setting, value)

    def internal(self) -> dict[str, str]:
        """Where the metadata is, under Pulsar's names."""
        return {
            "metadataStoreUrl": self._metadata_url(),
            "configurationMetadataStoreUrl": self._metadata_url(),
            "ledgersRootPath": "/ledgers",
        }

    async def check_quotas(self) -> None:
        """Checks all backlog quotas now instead of at the next sweep."""
        for topic in self._services().topics:
            if isinstance(topic, Topic):
                await topic.housekeeping.check_quota()


def _shown(one: BrokerFacts) -> dict[str, Any]:
    address = one.address
    urls = {"serviceUrlTls": address.service_url_tls, "httpUrlTls": address.http_url_tls}
    return {
        "id": one.id,
        "brokerId": address.broker_id,
        "serviceUrl": address.service_url,
        "httpUrl": address.http_url,
        **{name: url for name, url in urls.items() if url is not None},
        "slots": one.slots,
        "load": one.load,
        "version": one.version,
        "draining": one.is_draining,
        "leader": one.is_leader,
        "startedMs": one.started_ms,
    }
