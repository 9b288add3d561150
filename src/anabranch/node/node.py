"""One broker, wired from the concrete classes of all layers.

Parts are opened in the order in which they need each other: stores (storage recovers after a crash), ports, topics,
controllers. They are closed in reverse: stop accepting, notify clients, make everything durable, release the locks.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import AsyncExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Self

from anabranch import __version__
from anabranch.broker.admin.brokers import BrokersAdmin
from anabranch.broker.admin.namespace_rules import ScalableRules
from anabranch.broker.admin.scalable_topics import ScalableAdmin
from anabranch.broker.admin.service import BrokerAdmin
from anabranch.broker.admin.views.machines import Machine
from anabranch.broker.catalog.policies import Retention
from anabranch.broker.catalog.topic_policies import Defaults
from anabranch.broker.placement import EverythingHere, Placement
from anabranch.broker.schemas.registry import SchemaRegistry
from anabranch.broker.services import NameGenerator, Services
from anabranch.broker.topic_registry.factory import SegmentSupport
from anabranch.broker.topic_registry.registry import TopicRegistry
from anabranch.broker.wire.server import BrokerServer
from anabranch.controller.records.record_cache import RecordCache
from anabranch.controller.segment_host import SegmentHost
from anabranch.controller.service import ScalableTopicService
from anabranch.metadata.migration.service import MetadataMigration
from anabranch.metadata.open import without_credentials
from anabranch.metadata.write_gate import GatedStore
from anabranch.model.errors import NotReady
from anabranch.model.metadata_keys import SCALABLE_TOPICS
from anabranch.model.names import TopicName
from anabranch.node.adapters.inactive_cleanup import InactiveCleanup
from anabranch.node.adapters.store_events import StoreEvents
from anabranch.node.adapters.topic_layouts import StoredScalableRecords
from anabranch.node.dynamic_settings import DynamicSettings
from anabranch.node.settings.node import NodeSettings, is_loopback
from anabranch.node.wiring.listeners import Listeners
from anabranch.node.wiring.scalable_topics import step_of
from anabranch.node.wiring.security import make_guard, make_isolation, make_relay, make_tls
from anabranch.node.wiring.segments import SegmentWiring
from anabranch.node.wiring.stores import Stores, open_stores, within_storage_limits
from anabranch.node.wiring.topic_lists import open_topic_lists
from anabranch.rest.access import AccessFilter
from anabranch.rest.routes.table import make_router
from anabranch.rest.server import HttpServer, InternalHandler
from anabranch.runtime.blocking import ThreadBlocking
from anabranch.runtime.chance import SystemChance
from anabranch.runtime.clock import Clock, SystemClock
from anabranch.runtime.logs import get_logger, set_log_level
from anabranch.runtime.net import SocketNetwork
from anabranch.security.access_control import AccessControl

if TYPE_CHECKING:
    from anabranch.node.wiring.cluster import ClusterWiring

log = get_logger(__name__)

PASSWORD_THREADS = 1  # so that password guessing uses one core of the broker at most
STOP_SECONDS = 8.0  # to close all topics; what is left is recovered by the next start, as after a crash
CLOSE_SECONDS = 1.0  # for clients to read their last frames


class Node:
    """`async with Node(settings) as node`: serves inside the block; after it everything is durable and closed."""

    def __init__(
        self,
        settings: NodeSettings,
        clock: Clock | None = None,
        *,
        stop_seconds: float = STOP_SECONDS,
        segments: SegmentHost | None = None,
        on_batches: Callable[[int], None] | None = None,
    ) -> None:
        """`on_batches` gets the number of batches in each durable commit group."""
        self.settings = settings = within_storage_limits(settings)
        self._segments = segments
        self._on_batches = on_batches
        self._stop_seconds = stop_seconds
        self.fenced = asyncio.Event()
        self._clock = clock or SystemClock()
        self._stack = AsyncExitStack()
        self._services: Services | None = None
        self._joining: ClusterWiring | None = None  # in a cluster
        self._changeable: DynamicSettings | None = None  # from the opening of the stores on
        self._controllers_here: ScalableTopicService | None = None

    @property
    def services(self) -> Services:
        if self._services is None:
            raise NotReady("the broker is starting")
        return self._services

    @property
    def service_url(self) -> str:
        return self.services.address.service_url

    @property
    def http_url(self) -> str:
        return self.services.address.http_url

    @property
    def tls_urls(self) -> tuple[str, ...]:
        """Addresses of the TLS ports, binary and HTTP; empty without TLS."""
        address = self.services.address
        return tuple(url for url in (address.service_url_tls, address.http_url_tls) if url is not None)

    async def __aenter__(self) -> Self:
        try:
            await self._open()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def _open(self) -> None:
        """Order of wiring: stores, ports, placement, topics, segments, controllers, services; then the cluster is
        joined and clients are accepted. Objects that are called before `services` is set get it as a callable."""
        clock, stack = self._clock, self._stack
        stores, changeable = await self._open_stores()
        settings = self.settings
        joining = self._joining = self._make_joining(stores) if settings.cluster.enabled else None
        guard = self._guard(stores)
        server = BrokerServer(
            SocketNetwork(),
            lambda: self.services,
            settings.broker.connections_max,
            settings.broker.connections_per_address_max,
        )
        scalable_admin = ScalableAdmin(lambda: self.services)
        admin = self._admin(server, stores, scalable_admin)
        peers, peer_endpoint = (None, None) if joining is None else await joining.meet_others(admin)
        http = self._http(admin, guard, peer_endpoint)
        listeners = Listeners(settings, make_tls(settings.tls), stack)
        address = await listeners.open(server, http)

        place = None if joining is None else joining.place
        placement, record_cache = place or EverythingHere(address), RecordCache()
        # A name that no earlier start of any broker has used.
        names = NameGenerator(f"anabranch-{settings.storage.broker_id}-{clock.now_ms():x}")
        schemas = SchemaRegistry(
            stores.metadata, stores.catalog, stores.blocking, clock, settings.schemas, names.schema
        )
        wiring = self._segment_wiring(stores, placement, record_cache) if settings.scalable_topics.enabled else None
        topics = self._topics(stores, schemas, None if wiring is None else wiring.support)
        segments = None if wiring is None else await wiring.open(topics, peers, stack)
        if segments is not None:
            admin.peer_calls.add(segments)
        controllers = self._controllers(stores.metadata, scalable_admin, placement, segments, record_cache)
        self._controllers_here = controllers
        topic_lists, scalable_lists = await open_topic_lists(stores, controllers, clock, stack)
        self._services = Services(
            clock=clock,
            catalog=stores.catalog,
            topics=topics,
            schemas=schemas,
            names=names,
            address=address,
            guard=guard,
            cluster=place,
            peers=peers,
            segments=segments,
            scalable=controllers,
            topic_lists=topic_lists,
            scalable_lists=scalable_lists,
        )

        if joining is not None:
            await listeners.open_front(server, http)
            await joining.join(topics, server, address)
        if controllers is not None:
            await stack.enter_async_context(controllers)
            if wiring is not None and segments is not None:
                wiring.report_loads(topics, segments, controllers, settings)
            if joining is None:
                controllers.placement_changed(has_gained=True)
            else:
                joining.follow(controllers)
        await stack.enter_async_context(changeable)
        topics.start()
        listeners.start()
        stack.push_async_callback(self._shut, server, topics)
        if joining is not None:
            await joining.wait_serving()

    async def _open_stores(self) -> tuple[Stores, DynamicSettings]:
        """With the settings that are in force: those of the start, and the changes that are stored."""
        stores = await open_stores(self.settings, self._clock, self._stack)
        self._changeable = DynamicSettings(stores.metadata, self.settings, self._clock, self._use_settings)
        self.settings = await self._changeable.load()
        stores.catalog.use_settings(self.settings.broker)
        return stores, self._changeable

    def _http(self, admin: BrokerAdmin, guard: AccessControl, peers: InternalHandler | None) -> HttpServer:
        settings = self.settings
        checked = AccessFilter(guard, self._clock, metrics_open=settings.security.open_metrics)
        access = checked if guard.authenticates else None
        http = settings.http
        return HttpServer(
            make_router(admin, __version__, console=http.console, access=access, is_read_only=http.read_only),
            http,
            access,
            peers,
            make_isolation(settings),
            None if self._joining is None else make_relay(settings.tls),
        )

    def _admin(self, server: BrokerServer, stores: Stores, scalable: ScalableAdmin) -> BrokerAdmin:
        return BrokerAdmin(
            lambda: self.services,
            server,
            stores.ledgers.check_writable,
            self._brokers(stores.migration),
            scalable,
            stores.migration,
            self._policy_defaults,
            stores.ledgers_admin(),
            self._machine(stores),
        )

    def _machine(self, stores: Stores) -> Machine:
        storage = self.settings.storage
        directory = None if storage.url else storage.dir
        return Machine(directory, storage.sync, lambda: stores.metadata.get(SCALABLE_TOPICS))

    def _policy_defaults(self) -> Defaults:
        settings = self.settings
        return Defaults(
            settings.broker,
            schema_strategy=settings.schemas.strategy,
            schema_validation=settings.schemas.validation_enforced,
            retention=Retention(settings.topics.retention_ms, settings.topics.retention_bytes),
            segment_retention=settings.scalable_topics.retention,
        )

    async def _use_settings(self, settings: NodeSettings) -> None:
        """Settings changed while the broker runs (`dynamic_settings.DYNAMIC`)."""
        if settings.log.level != self.settings.log.level:
            set_log_level(settings.log.level)
        self.settings, services = settings, self.services
        services.catalog.use_settings(settings.broker)
        services.schemas.use_settings(settings.schemas)
        if self._controllers_here is not None:
            self._controllers_here.use_settings(settings.scalable_topics)
        await services.topics.apply_all_policies()

    def _make_joining(self, stores: Stores) -> ClusterWiring:
        # Imported here: a broker alone would spend a tenth of its start on it.
        from anabranch.node.wiring.cluster import ClusterWiring

        return ClusterWiring(self.settings, stores, self.fenced.set, self._clock, self._stack)

    def _segment_wiring(self, stores: Stores, placement: Placement, cache: RecordCache) -> SegmentWiring:
        logs = stores.segment_logs(self._ownership_epoch_of)
        return SegmentWiring(stores, logs, StoredScalableRecords(stores.metadata, cache), placement)

    def _topics(self, stores: Stores, schemas: SchemaRegistry, segments: SegmentSupport | None) -> TopicRegistry:
        place, ledgers = None if self._joining is None else self._joining.place, stores.ledgers
        topics = TopicRegistry(
            stores.catalog,
            stores.topic_logs(self._ownership_epoch_of),
            settings=self.settings.broker,
            clock=self._clock,
            check_writable=ledgers.check_writable,
            check_here=None if place is None else place.check_here,
            wait_placed=None if place is None else place.wait_placed,
            segments=segments,
            inactive=InactiveCleanup(schemas, stores.catalog.topic_policies),
        )
        may_confirm = None if place is None else place.may_confirm
        ledgers.start(StoreEvents(topics, fenced=self.fenced.set, may_confirm=may_confirm, batches=self._on_batches))
        return topics

    def _ownership_epoch_of(self, topic: TopicName) -> int | None:
        """None: this broker is alone."""
        return None if self._joining is None else self._joining.place.require_ownership_epoch(topic)

    def _guard(self, stores: Stores) -> AccessControl:
        passwords = ThreadBlocking(PASSWORD_THREADS)
        self._stack.push_async_callback(passwords.close)
        self._warn()
        return make_guard(self.settings.security, stores.catalog, passwords)

    def _brokers(self, migration: MetadataMigration) -> BrokersAdmin:
        return BrokersAdmin(
            lambda: self.services,
            self._changeable,
            lambda: without_credentials(migration.url),
            version=__version__,
            started_ms=self._clock.now_ms(),
        )

    def _controllers(
        self,
        metadata: GatedStore,
        admin: ScalableAdmin,
        placement: Placement,
        own: SegmentHost | None,
        memo: RecordCache,
    ) -> ScalableTopicService | None:
        settings, segments = self.settings.scalable_topics, self._segments or own
        if segments is None:
            return None
        rules = ScalableRules(lambda: self.services, admin, settings.auto_create_segments)
        return ScalableTopicService(
            metadata,
            placement,
            segments,
            rules,
            rules,
            broker=self.settings.storage.broker_id,
            settings=settings,
            clock=self._clock,
            chance=SystemChance(),
            step=step_of(os.environ),
            cache=memo,
            gate=metadata.gate,
        )

    def _warn(self) -> None:
        """Warns of settings that are allowed and risky."""
        settings = self.settings
        beyond = [host for host in (settings.network.host, settings.http.host) if not is_loopback(host)]
        if beyond and settings.security.methods and not settings.tls.is_on:
            log.warning("credentials travel unencrypted: set tls.cert_file and tls.key_file", extra={"host": beyond[0]})
        if settings.security.methods and not settings.security.authorization:
            log.warning("authorization is off: every authenticated role may do everything; set security.authorization")

    async def _shut(self, server: BrokerServer, topics: TopicRegistry) -> None:
        """Closes the topics first, because clients are notified on their connections; then the connections."""
        if self._joining is not None:
            await self._joining.leave()
        server.stop_accepting()
        try:
            async with asyncio.timeout(self._stop_seconds):
                await topics.stop()
        except TimeoutError:
            log.error("topics not closed in time; the next start recovers them", extra={"seconds": self._stop_seconds})
        await server.close_connections(self._clock, CLOSE_SECONDS)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()
