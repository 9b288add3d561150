"""Policies of namespaces and topics for scalable topics: a port that the broker's catalog implements."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from anabranch.controller.settings import ScalableTopicsSettings
from anabranch.controller.topic.gc_policy import Retention
from anabranch.model.names import TopicName

MINUTE_MS = 60_000
MIB = 1 << 20


class Rules(Protocol):
    """Implemented by `broker/admin/namespace_rules.py`."""

    async def check_may_create(self, topic: TopicName) -> None:
        """Raises NotFound if the namespace does not exist, AlreadyExists if a regular topic has the name."""

    async def check_name(self, topic: TopicName) -> None:
        """Raises AlreadyExists if a regular topic has the name. Sees all writes that were made before the call."""

    async def clear_name(self, topic: TopicName) -> None:
        """The scalable topic owns the name: deletes what a crash during the creation of a regular topic left."""

    async def hold_partitions(self, topic: TopicName, partitions: int) -> bool:
        """A migration is planned: from now on the regular topic's number of partitions (0: not partitioned) does not
        change. False if it is another one, or the topic was deleted."""

    async def may_auto_create(self, namespace: str) -> bool: ...

    async def auto_scale_policy(self, namespace: str) -> Mapping[str, Any] | None:
        """The namespace's policy with Pulsar's field names; None: not set."""

    async def may_auto_subscribe(self, topic: TopicName) -> bool:
        """Whether a consumer may create its subscription of the topic."""

    async def subscriptions_max(self, topic: TopicName) -> int:
        """Most subscriptions of the topic, which each of its segments has; 0: no limit."""

    async def retention(self, topic: TopicName) -> tuple[int, int] | None:
        """Minutes and megabytes; None: neither the topic nor its namespace sets a retention."""


def retention_of(settings: ScalableTopicsSettings, said: tuple[int, int] | None) -> Retention:
    """The retention that is set, or the broker's default; -1 is no limit."""
    minutes, mib = said or (settings.retention_minutes, settings.retention_mb)
    return Retention(minutes * MINUTE_MS if minutes >= 0 else -1, mib * MIB if mib >= 0 else -1)
