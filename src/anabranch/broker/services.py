"""What every connection is given: the parts of the broker that commands act on. A plain bundle, no behaviour."""

from __future__ import annotations

from dataclasses import dataclass, field

from anabranch.broker.catalog.catalog import Catalog
from anabranch.broker.name_generator import NameGiver
from anabranch.broker.peers import Fleet
from anabranch.broker.placement import Address, EverythingHere, Placement
from anabranch.broker.schemas.registry import SchemaRegistry
from anabranch.broker.segment_host.host import EmbeddedHost
from anabranch.broker.settings import BrokerSettings
from anabranch.broker.topic_registry.registry import Topics
from anabranch.controller.interface import ScalableTopics
from anabranch.runtime.clock import Clock
from anabranch.security.access_control import Guard

__all__ = ["SERVER_VERSION", "Address", "Services"]

SERVER_VERSION = "Anabranch 0.1"


@dataclass(frozen=True, slots=True)
class Services:
    settings: BrokerSettings
    clock: Clock
    catalog: Catalog
    topics: Topics
    schemas: SchemaRegistry
    names: NameGiver
    address: Address
    guard: Guard = field(default_factory=Guard)  # lets everybody through unless security is configured
    cluster: Placement | None = None  # None: this broker is alone
    fleet: Fleet | None = None  # the same
    segments: EmbeddedHost | None = None  # None: there are no scalable topics here
    scalable: ScalableTopics | None = None  # None: no scalable topics here

    @property
    def placement(self) -> Placement:
        return EverythingHere(self.address) if self.cluster is None else self.cluster
