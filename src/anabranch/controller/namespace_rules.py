"""What namespaces say about scalable topics: the port that the broker's catalog fills, and what it means. No store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from anabranch.controller.settings import ScalableTopicsSettings
from anabranch.controller.topic.gc_policy import Retention
from anabranch.model.names import TopicName

MINUTE_MS = 60_000
MIB = 1 << 20


class Rules(Protocol):
    """Filled by the broker's catalog."""

    async def check_may_create(self, topic: TopicName) -> None:
        """Raises NotFound for a namespace that is not there, AlreadyExists when a regular topic has the name."""

    async def check_name(self, topic: TopicName) -> None:
        """Raises AlreadyExists when a regular topic has the name, with everything that was written before the call."""

    async def clear_name(self, topic: TopicName) -> None:
        """The scalable topic has the name: what somebody left who died while it made a regular one goes."""

    async def may_auto_create(self, namespace: str) -> bool: ...

    async def auto_scale_policy(self, namespace: str) -> Mapping[str, Any] | None:
        """The namespace's own, under Pulsar's names."""

    async def retention(self, namespace: str) -> tuple[int, int] | None:
        """Minutes and megabytes that the namespace says; None: it says nothing."""


def retention_of(settings: ScalableTopicsSettings, said: tuple[int, int] | None) -> Retention:
    """The namespace's word, or the broker's; -1 is no limit."""
    minutes, mib = said or (settings.retention_minutes, settings.retention_mb)
    return Retention(minutes * MINUTE_MS if minutes >= 0 else -1, mib * MIB if mib >= 0 else -1)
