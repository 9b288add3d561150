"""The parts of the broker that commands act on; every connection is given this bundle."""

from __future__ import annotations

from dataclasses import dataclass, field

from anabranch.broker.catalog.catalog import Catalog
from anabranch.broker.name_generator import NameGenerator
from anabranch.broker.peers import BrokerPeers
from anabranch.broker.placement import Address, EverythingHere, Placement
from anabranch.broker.schemas.registry import SchemaRegistry
from anabranch.broker.segment_host.host import ClusterSegmentHost
from anabranch.broker.settings import BrokerSettings
from anabranch.broker.topic_registry.registry import TopicRegistry
from anabranch.controller.interface import ScalableTopics
from anabranch.runtime.clock import Clock
from anabranch.security.access_control import AccessControl

__all__ = ["SERVER_VERSION", "Address", "Services"]

SERVER_VERSION = "Anabranch 0.1"


@dataclass(frozen=True, slots=True)
class Services:
    settings: BrokerSettings
    clock: Clock
    catalog: Catalog
    topics: TopicRegistry
    schemas: SchemaRegistry
    names: NameGenerator
    address: Address
    guard: AccessControl = field(default_factory=AccessControl)  # admits everything unless security is configured
    cluster: Placement | None = None  # None: single broker
    peers: BrokerPeers | None = None  # None: single broker
    segments: ClusterSegmentHost | None = None  # None: no scalable topics
    scalable: ScalableTopics | None = None  # None: no scalable topics

    @property
    def placement(self) -> Placement:
        return EverythingHere(self.address) if self.cluster is None else self.cluster
