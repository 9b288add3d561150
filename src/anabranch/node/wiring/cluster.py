"""What a broker in a cluster has in addition: placement, peers and membership.

A broker alone does not import this module, nor the `cluster` package.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from contextlib import AsyncExitStack

from anabranch import __version__
from anabranch.broker.admin.service import BrokerAdmin
from anabranch.broker.catalog.catalog_watch import CatalogWatch
from anabranch.broker.placement import Address
from anabranch.broker.topic_registry.registry import TopicRegistry
from anabranch.broker.wire.server import BrokerServer
from anabranch.cluster.broker_info import BrokerInfo
from anabranch.cluster.cluster import Cluster
from anabranch.controller.service import ScalableTopicService
from anabranch.interbroker.client import PeerClient
from anabranch.interbroker.endpoint import PeerEndpoint
from anabranch.interbroker.secret import load_secret
from anabranch.interbroker.signature import SECRET_BYTES
from anabranch.model.broker_incarnation import BrokerIncarnation
from anabranch.node.adapters.peer_endpoint import internal_handler
from anabranch.node.adapters.peers import ClusterPeers
from anabranch.node.adapters.placement import ClusterPlacement
from anabranch.node.settings.node import NodeSettings
from anabranch.node.wiring.scalable_topics import follow_placement
from anabranch.node.wiring.security import make_peer_tls
from anabranch.node.wiring.stores import Stores
from anabranch.rest.server import InternalHandler
from anabranch.runtime.chance import SystemChance, secret_bytes
from anabranch.runtime.clock import Clock
from anabranch.runtime.tasks import TaskOwner
from anabranch.runtime.tls import TlsCalls

ISOLATED_SESSIONS = 1.0  # lengths of a session, after its end, until clients are disconnected
SERVING_SECONDS = 60.0  # until a broker that joined serves something


class ClusterWiring:
    """Used in this order: `place`, `meet_others`, `join`, `follow`, `wait_serving`; `leave` at the end."""

    def __init__(
        self,
        settings: NodeSettings,
        stores: Stores,
        fenced: Callable[[], None],
        clock: Clock,
        stack: AsyncExitStack,
    ) -> None:
        self.place = ClusterPlacement(stores.ledgers, fenced, clock)
        self._settings = settings
        self._stores = stores
        self._clock = clock
        self._stack = stack
        self._peer_tls: TlsCalls | None = None

    async def meet_others(self, admin: BrokerAdmin) -> tuple[ClusterPeers, InternalHandler]:
        """Peer calls to the other brokers, and the endpoint for theirs."""
        stores, settings = self._stores, self._settings
        me = BrokerIncarnation(settings.storage.broker_id, stores.ledgers.generation)
        if settings.tls.only:
            self._peer_context()  # so that files that cannot be used are reported at the start
        secret = await load_secret(stores.metadata, secret_bytes(SECRET_BYTES))
        client = PeerClient(secret, me, self._clock, tls=self._peer_context)
        self._stack.callback(client.close)
        peers = ClusterPeers(self.place, stores.metadata, client, me.broker, settings.cluster.drain_seconds)
        return peers, internal_handler(PeerEndpoint(secret, me, self._clock, admin.peer_calls.serve))

    def _peer_context(self) -> ssl.SSLContext:
        """Made when the first broker with TLS ports only is called: the machine's authorities take a while to read."""
        if self._peer_tls is None:
            self._peer_tls = make_peer_tls(self._settings.tls)
        self._peer_tls.refresh()
        return self._peer_tls.context

    async def join(self, topics: TopicRegistry, server: BrokerServer, address: Address) -> None:
        """Joins the cluster; from now on this broker may get slots."""
        await self._stack.enter_async_context(CatalogWatch(self._stores.metadata, topics, server, self._clock))
        self.place.serve(topics)
        self.place.joined(await self._stack.enter_async_context(self._cluster(address)))
        watching = TaskOwner("node")
        self._stack.push_async_callback(watching.close)
        watching.spawn(self.place.watch_fence(), "fence")
        if self._settings.storage.url:
            seconds = ISOLATED_SESSIONS * self._settings.cluster.session_ms / 1000
            watching.spawn(self.place.watch_session(seconds, server.disconnect_all), "session")

    def follow(self, scalable: ScalableTopicService) -> None:
        """Tells the controllers about placement: a scalable topic is led where its name is placed."""
        following = TaskOwner("scalable topics")
        self._stack.push_async_callback(following.close)
        following.spawn(follow_placement(self.place.cluster, scalable), "placement")

    async def wait_serving(self) -> None:
        await self.place.cluster.wait_serving(SERVING_SECONDS)

    async def leave(self) -> None:
        """Hands all slots over while clients can still look topics up."""
        if not self.place.cluster.has_stepped_down:
            await self.place.cluster.drain(self._settings.cluster.drain_seconds)

    def _cluster(self, address: Address) -> Cluster:
        settings, ledgers = self._settings, self._stores.ledgers
        info = BrokerInfo(
            broker=settings.storage.broker_id,
            incarnation=ledgers.generation,
            service_url=address.service_url,
            http_url=address.http_url,
            volume_id=ledgers.volume_id,
            version=__version__,
            started_ms=self._clock.now_ms(),
            service_url_tls=address.service_url_tls,
            http_url_tls=address.http_url_tls,
            listeners=tuple((name, url, url_tls) for name, url, url_tls in address.listeners),
        )
        return Cluster(
            self._stores.metadata,
            info,
            serving=self.place,
            recover=ledgers.recover_peer,
            clock=self._clock,
            chance=SystemChance(),
            session_ms=settings.cluster.session_ms,
        )
