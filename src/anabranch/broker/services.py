"""The parts of the broker that commands act on; every connection is given this bundle."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count

from anabranch.broker.catalog.catalog import Catalog
from anabranch.broker.catalog.namespace_lists import NamespaceLists
from anabranch.broker.peers import BrokerPeers
from anabranch.broker.placement import Address, EverythingHere, Placement
from anabranch.broker.schemas.registry import SchemaRegistry
from anabranch.broker.segment_host.host import ClusterSegmentHost
from anabranch.broker.settings import BrokerSettings
from anabranch.broker.topic_registry.registry import TopicRegistry
from anabranch.controller.interface import ScalableTopics
from anabranch.runtime.clock import Clock
from anabranch.security.access_control import AccessControl

__all__ = ["SERVER_VERSION", "Address", "NameGenerator", "Services"]

SERVER_VERSION = "Anabranch 0.1"


class NameGenerator:
    """Names for producers and consumers that bring none, and for stored schemas.

    Names are never reused, because deduplication and takeover go by name. The prefix is new at every start of a broker.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._numbers = count()

    def producer(self) -> str:
        return f"{self._prefix}-{next(self._numbers)}"

    def consumer(self) -> str:
        return f"{self._prefix}-c{next(self._numbers)}"

    def schema(self) -> str:
        """The key of one schema definition."""
        return f"{self._prefix}-s{next(self._numbers)}"


@dataclass(frozen=True, slots=True)
class Services:
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
    topic_lists: NamespaceLists | None = None  # None: clients cannot watch topic lists
    scalable_lists: NamespaceLists | None = None  # None: no scalable topics

    @property
    def settings(self) -> BrokerSettings:
        """Those in force now: some change while the broker runs."""
        return self.catalog.settings

    @property
    def placement(self) -> Placement:
        return EverythingHere(self.address) if self.cluster is None else self.cluster
