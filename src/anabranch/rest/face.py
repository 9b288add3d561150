"""What HTTP may ask of a broker. Names arrive decoded and full (`persistent://t/n/x`, namespaces as `t/n`).

Every call may raise an `anabranch.model.errors.Error`; its code becomes the status (`rest.errors`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Protocol

from anabranch.broker.stats.subscription_stats import StatsOptions
from anabranch.model.position import Position
from anabranch.rest.brokers_face import BrokersFace
from anabranch.rest.namespace_face import NamespaceFace
from anabranch.rest.publish_face import PublishFace
from anabranch.rest.scalable_face import ScalableFace
from anabranch.rest.schema_face import SchemaFace
from anabranch.rest.topic_face import CursorFace, TopicFace
from anabranch.security.authorization import Grants


class BrokerFace(Protocol):
    @property
    def publishing(self) -> PublishFace: ...

    @property
    def brokers(self) -> BrokersFace: ...

    @property
    def schemas(self) -> SchemaFace: ...

    @property
    def policies(self) -> NamespaceFace: ...

    @property
    def care(self) -> TopicFace: ...

    @property
    def cursors(self) -> CursorFace: ...

    @property
    def scalable(self) -> ScalableFace: ...

    async def check_served(self, topic: str) -> None:
        """Raises ServedElsewhere when another broker serves it; a parent of partitions is everybody's."""

    async def lookup(self, topic: str, authoritative: bool, listener: str | None) -> dict[str, Any]:
        """At least brokerUrl, httpUrl and nativeUrl of the broker that serves the topic."""

    async def partitions(self, topic: str, check_allow_auto_creation: bool) -> int:
        """Partitions of a partitioned topic, 0 for a plain one; NotFound when there is none and none may be created."""

    async def create_topic(self, topic: str, properties: Mapping[str, str]) -> None: ...

    async def delete_topic(self, topic: str, force: bool) -> None: ...

    async def create_partitions(self, topic: str, count: int, properties: Mapping[str, str]) -> None: ...

    async def update_partitions(self, topic: str, count: int) -> None: ...

    async def create_missed_partitions(self, topic: str) -> None:
        """Make again what is missing of a partitioned topic; NotFound."""

    async def delete_partitions(self, topic: str, force: bool) -> None: ...

    async def list_topics(self, namespace: str, domain: str, include_partitioned: bool) -> list[str]:
        """Full names, partitions one by one; with `include_partitioned` the partitioned topics' own names too."""

    async def list_partitioned(self, namespace: str, domain: str) -> list[str]: ...

    async def topic_stats(self, topic: str, options: StatsOptions) -> dict[str, Any]: ...

    async def partitioned_stats(self, topic: str, options: StatsOptions) -> dict[str, Any]: ...

    async def internal_stats(self, topic: str) -> dict[str, Any]: ...

    async def terminate_topic(self, topic: str) -> Position:
        """No message after this one, ever; the last position. Safe to repeat."""

    async def list_tenants(self) -> list[str]: ...

    async def tenant(self, tenant: str) -> dict[str, Any]:
        """What was stored with it; NotFound."""

    async def create_tenant(self, tenant: str, record: Mapping[str, Any]) -> None: ...

    async def update_tenant(self, tenant: str, record: Mapping[str, Any]) -> None: ...

    async def delete_tenant(self, tenant: str) -> None: ...

    async def list_namespaces(self, tenant: str) -> list[str]:
        """As `tenant/namespace`, sorted; NotFound for an unknown tenant."""

    async def create_namespace(self, namespace: str, record: Mapping[str, Any]) -> None:
        """`record`: policies under Pulsar's names."""

    async def delete_namespace(self, namespace: str) -> None: ...

    async def grants(self, namespace: str) -> Grants:
        """Who may do what there; NotFound."""

    async def change_grants(self, namespace: str, change: Callable[[Grants], Grants]) -> None: ...

    async def topic_exists(self, topic: str) -> bool: ...

    def health(self) -> None:
        """Raise NotReady (or what is wrong) unless the broker serves."""

    def metrics(self) -> AsyncIterator[bytes]:
        """Prometheus text, in pieces."""
