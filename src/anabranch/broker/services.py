"""What every connection is given: the parts of the broker that commands act on. A plain bundle, no behaviour."""

from __future__ import annotations

from dataclasses import dataclass

from anabranch.broker.catalog import Catalog
from anabranch.broker.names import NameGiver
from anabranch.broker.settings import BrokerSettings
from anabranch.broker.topics import Topics
from anabranch.runtime.clock import Clock

SERVER_VERSION = "Anabranch 0.1"


@dataclass(frozen=True, slots=True)
class Address:
    """Where clients reach this broker."""

    service_url: str
    http_url: str


@dataclass(frozen=True, slots=True)
class Services:
    settings: BrokerSettings
    clock: Clock
    catalog: Catalog
    topics: Topics
    names: NameGiver
    address: Address
