"""What every connection is given: the parts of the broker that commands act on. A plain bundle, no behaviour."""

from __future__ import annotations

from dataclasses import dataclass, field

from anabranch.broker.catalog import Catalog
from anabranch.broker.guard import Guard
from anabranch.broker.names import NameGiver
from anabranch.broker.schemas import SchemaRegistry
from anabranch.broker.settings import BrokerSettings
from anabranch.broker.topics import Topics
from anabranch.runtime.clock import Clock

SERVER_VERSION = "Anabranch 0.1"


@dataclass(frozen=True, slots=True)
class Address:
    """Where clients reach this broker."""

    service_url: str
    http_url: str
    service_url_tls: str | None = None
    http_url_tls: str | None = None

    @property
    def broker_id(self) -> str:
        """As Pulsar names a broker: host and HTTP port."""
        return self.http_url.partition("://")[2]


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
