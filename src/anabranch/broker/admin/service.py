"""The broker's services for administrators, by noun. REST routes and other brokers call them.

Names arrive decoded and in full. Every call may raise an `anabranch.model.errors.Error`; REST makes a status of its
code (`rest.errors`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from anabranch.broker.admin.auto_scale import AutoScaleAdmin
from anabranch.broker.admin.brokers import BrokersAdmin
from anabranch.broker.admin.namespaces import NamespaceAdmin
from anabranch.broker.admin.partition_hashes import PartitionHashes
from anabranch.broker.admin.publish import PublishAdmin
from anabranch.broker.admin.scalable_topics import ScalableAdmin
from anabranch.broker.admin.schemas import SchemaAdmin
from anabranch.broker.admin.stores.ledgers import LedgersAdmin
from anabranch.broker.admin.stores.metadata_migration import MetadataMigrationAdmin
from anabranch.broker.admin.subscriptions import SubscriptionAdmin
from anabranch.broker.admin.tenants import TenantAdmin
from anabranch.broker.admin.topic_maintenance import TopicMaintenance
from anabranch.broker.admin.topic_migration import TopicMigrationAdmin
from anabranch.broker.admin.topic_policies import TopicPolicyAdmin
from anabranch.broker.admin.topics import TopicAdmin
from anabranch.broker.admin.views.journal import Journal
from anabranch.broker.admin.views.machines import Machine, Machines
from anabranch.broker.admin.views.messages import MessageBrowser
from anabranch.broker.admin.views.timeline import TimelineAdmin
from anabranch.broker.catalog.topic_policies import Defaults
from anabranch.broker.services import SERVER_VERSION, Services
from anabranch.broker.stats.metrics import Metrics
from anabranch.broker.wire.server import BrokerServer
from anabranch.interbroker.peer_calls import PeerCalls
from anabranch.metadata.migration.service import MetadataMigration


class BrokerAdmin:
    def __init__(
        self,
        services: Callable[[], Services],
        server: BrokerServer,
        check_storage: Callable[[], None],
        brokers: BrokersAdmin | None = None,
        scalable_topics: ScalableAdmin | None = None,
        migration: MetadataMigration | None = None,
        policy_defaults: Callable[[], Defaults] = Defaults,
        ledgers: LedgersAdmin | None = None,
        machine: Machine = Machine(),  # noqa: B008  frozen
    ) -> None:
        """`check_storage` raises while nothing can be written. `policy_defaults`: shown for policies that are not
        set."""
        self._services = services
        self._server = server
        self._check_storage = check_storage
        self._metrics: Metrics | None = None  # made once, because it keeps the samples of the last scrape
        self.brokers = brokers or BrokersAdmin(services)
        self.tenants = TenantAdmin(services, server)
        self.namespaces = NamespaceAdmin(services)
        self.subscriptions = SubscriptionAdmin(services)
        self.topics = TopicAdmin(services, self.subscriptions)
        self.maintenance = TopicMaintenance(services)
        self.scalable_topics = scalable_topics or ScalableAdmin(services)
        self.timeline = TimelineAdmin(services, self.scalable_topics)
        self.messages = MessageBrowser(services)
        self.journal = Journal(services)
        self.machines = Machines(services, machine)
        self.partition_hashes = PartitionHashes(services)
        self.topic_migration = TopicMigrationAdmin(services, self.partition_hashes)
        self.auto_scale = AutoScaleAdmin(services, self.namespaces)
        self.topic_policies = TopicPolicyAdmin(services, self.namespaces, self.scalable_topics, policy_defaults)
        self.schemas = SchemaAdmin(services)
        self.metadata_migration = MetadataMigrationAdmin(migration)
        self.ledgers = ledgers or LedgersAdmin()
        self.publishing = PublishAdmin(services)
        self.peer_calls = PeerCalls(
            self.brokers,
            self.namespaces,
            self.subscriptions,
            self.topics,
            self.maintenance,
            self.scalable_topics,
            self.messages,
            self.journal,
            self.machines,
            self.publishing,
            self.partition_hashes,
            self.topic_migration,
            self.auto_scale,
        )
        """What other brokers may call here."""

    def health(self) -> None:
        """Raises NotReady, or what is wrong, unless the broker serves."""
        self._check_storage()
        if (peers := self._services().peers) is not None:
            peers.check_valid()

    def metrics(self) -> AsyncIterator[bytes]:
        """Prometheus text, in pieces."""
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
        return self._metrics.page(list(services.topics), self._gauges, services.scalable)

    def _gauges(self) -> dict[str, float]:
        guard = self._services().guard
        return {
            "anabranch_connections": self._server.connections,
            "anabranch_sign_ins_total": guard.sign_ins[0],
            "anabranch_sign_ins_refused_total": guard.sign_ins[1],
            "anabranch_permissions_refused_total": guard.denials,
            **self.metadata_migration.gauges(),
        }
